//! Guests: the request to start one, and the record that the host keeps of it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use manager::api::Slice;
use serde::{Deserialize, Serialize};
use settings::Invalid;
use units::Bytes;

use crate::driver::{Machine, Usage};
use crate::drivers::description::Description;
use crate::events::label;
use crate::free_memory::FreeMemory;
use crate::monitor::Verdict;
use crate::prediction::Prediction;
use crate::process::Process;
use crate::share::Share;
use crate::touched::Touched;

/// Longest name in bytes. Names are part of the paths of sockets, which are short.
pub const NAME_MAX: usize = 32;
const CORES_MAX: u32 = 512;
const MEMORY_MIN: Bytes = Bytes::mib(64);
const MEMORY_MAX: Bytes = Bytes(1 << 46);
/// Events that are kept of each guest.
const EVENTS_MAX: usize = 100;

/// A request to start a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Letters, digits, `-`, `_` and `.`; the first is a letter or digit.
    pub name: String,
    /// Cores, memory (local and pool together) and the metadata that predictions are based on.
    pub vm: predict::Request,
    /// Requested pool memory. `None`: as much as is predicted to be safe.
    #[serde(default)]
    pub pool_bytes: Option<Bytes>,
    /// Disks, networks and boot options, in the form of the host's driver.
    #[serde(default)]
    pub description: Option<Description>,
}

impl Request {
    /// The guest's memory, local and pool together.
    #[must_use]
    pub fn memory(&self) -> Bytes {
        self.vm.memory_bytes
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The first key of a guest file with an invalid value, and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        match self.problems().first() {
            None => Ok(()),
            Some((key, invalid)) => Err(format!("{key}: {invalid}")),
        }
    }

    /// Returns the keys of a guest file with invalid values, and what is allowed.
    pub(crate) fn problems(&self) -> Vec<(String, Invalid)> {
        let (name, cores, memory) = (&self.name, self.vm.cores, self.memory());
        let mut problems = Vec::new();
        let mut problem = |key: &str, message: String, remedy: String| problems.push((key.to_owned(), Invalid::new(message, remedy)));
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
        if !first || name.len() > NAME_MAX || !name.chars().all(allowed) {
            let remedy = format!("write 1 to {NAME_MAX} letters, digits, -, _ and ., the first a letter or digit");
            problem("name", format!("{name:?} is not the name of a guest"), remedy);
        }
        if !(1..=CORES_MAX).contains(&cores) {
            problem("cores", format!("{cores} is out of range"), format!("write 1 to {CORES_MAX}"));
        }
        if memory < MEMORY_MIN || memory > MEMORY_MAX || !memory.0.is_multiple_of(1 << 20) {
            problem("memory", format!("{} bytes are not allowed", memory.0), "write 64MiB to 64TiB, in whole MiB".to_owned());
        }
        if let Some(description) = &self.description
            && let Err((key, invalid)) = description.check()
        {
            problems.push((format!("{}.{key}", description.table()), invalid));
        }
        problems
    }
}

/// State of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its slices are being requested, or its hypervisor is starting.
    Starting,
    /// It runs.
    Running,
    /// It is being stopped.
    Stopping,
    /// It has exited, and the pool manager has not been informed yet.
    Ended,
}

/// An event in the life of a guest, with its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Time in seconds since 1970.
    pub at: f64,
    /// Event and reason.
    pub what: String,
}

/// Sums over the monitor's samples of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples {
    /// Number of samples.
    pub count: u64,
    /// Pool memory accessed in a period, summed over all periods.
    pub pool_accessed_bytes: Bytes,
    /// Local memory accessed in a period, summed over all periods.
    pub local_accessed_bytes: Bytes,
}

impl Samples {
    /// Adds a sample.
    pub fn add(&mut self, usage: &Usage) {
        self.count += 1;
        self.pool_accessed_bytes += usage.pool_accessed_bytes;
        self.local_accessed_bytes += usage.local_accessed_bytes;
    }
}

/// Performance counters of a guest, and the latency model's prediction from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CounterSample {
    /// Time in seconds since 1970.
    pub at: f64,
    /// Probability that the guest is insensitive to memory latency. `None`: the model makes no prediction from these
    /// counters.
    pub score: Option<f64>,
    /// Whether the model counts the guest as insensitive.
    pub insensitive: bool,
    /// Values by counter name, the same names as in `counters` of a request.
    pub counters: BTreeMap<String, f64>,
}

/// The record of a guest, also on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The request.
    pub request: Request,
    /// Current state.
    pub state: State,
    /// Division of its memory at the start, and the reason.
    pub share: Share,
    /// The guest as it was started, with the slices that it started with.
    pub machine: Machine,
    /// When it began to run, in seconds since 1970.
    #[serde(default)]
    pub started_at: Option<f64>,
    /// The most memory that it had touched at any sample, local and in the pool.
    #[serde(default)]
    pub touched_bytes: Option<Bytes>,
    /// The most of its pool memory that it had touched at any sample.
    #[serde(default)]
    pub pool_touched_bytes: Option<Bytes>,
    /// The memory that it had touched, over time.
    #[serde(default)]
    pub touched_over_time: Touched,
    /// The model that gave it pool memory as untouched: the end of its training.
    #[serde(default)]
    pub model: Option<i64>,
    /// What the model of untouched memory answered. `None`: there was no model, or the request set the pool memory.
    #[serde(default)]
    pub prediction: Option<Prediction>,
    /// Its process. `None` before the process is known and after its exit.
    pub process: Option<Process>,
    /// Slices that its process still maps.
    pub mapped: Vec<Slice>,
    /// Whether the manager still assigns the slices to this guest.
    pub assigned: bool,
    /// Whether it was moved to local memory.
    pub mitigated: bool,
    /// The part of its pool memory that was moved home, whose slices it keeps. `None`: no part was.
    #[serde(default)]
    pub home_bytes: Option<Bytes>,
    /// Failed attempts to move it to local memory.
    pub mitigation_failures: u32,
    /// Last sample of its memory.
    pub usage: Option<Usage>,
    /// Sums over all samples except the first, which covers the boot.
    pub samples: Samples,
    /// Performance counters at the last sample with more pool accesses than predicted. `None` if they were not sampled.
    #[serde(default)]
    pub counted: Option<CounterSample>,
    /// The monitor's last verdict.
    pub verdict: Option<Verdict>,
    /// How many samples had which verdict, by its name.
    #[serde(default)]
    pub verdicts: BTreeMap<String, u64>,
    /// Free memory at the last request to release its slices.
    pub free_memory: Option<FreeMemory>,
    /// Events, the latest last.
    pub events: VecDeque<Event>,
}

impl Record {
    /// The record of a guest that is about to start.
    #[must_use]
    pub fn new(request: Request, share: Share) -> Self {
        let machine = Machine {
            name: request.name.clone(),
            cores: request.vm.cores,
            local_bytes: share.local_bytes,
            slices: Vec::new(),
            description: request.description.clone(),
        };
        Self {
            request,
            state: State::Starting,
            share,
            machine,
            started_at: None,
            touched_bytes: None,
            pool_touched_bytes: None,
            touched_over_time: Touched::default(),
            model: None,
            prediction: None,
            process: None,
            mapped: Vec::new(),
            assigned: false,
            mitigated: false,
            home_bytes: None,
            mitigation_failures: 0,
            usage: None,
            samples: Samples::default(),
            counted: None,
            verdict: None,
            verdicts: BTreeMap::new(),
            free_memory: None,
            events: VecDeque::new(),
        }
    }

    /// Local memory that it occupies.
    #[must_use]
    pub fn local_bytes(&self) -> Bytes {
        if self.mitigated { self.request.memory() } else { self.machine.local_bytes + self.moved_home() }
    }

    /// Local memory in place of its pool memory. What it releases of that is released with the slice.
    #[must_use]
    pub fn moved_home(&self) -> Bytes {
        self.home_bytes.unwrap_or_default().min(self.pool_bytes())
    }

    /// Pool memory that it maps.
    #[must_use]
    pub fn pool_bytes(&self) -> Bytes {
        self.mapped.iter().map(|slice| slice.bytes).sum()
    }

    /// Adds what was touched at a sample, in seconds since 1970. Samples are taken each `period`.
    pub fn add_touched(&mut self, usage: &Usage, at: f64, period: Duration) {
        let touched = usage.local_touched_bytes + usage.pool_touched_bytes;
        self.touched_bytes = self.touched_bytes.max(Some(touched));
        self.pool_touched_bytes = self.pool_touched_bytes.max(Some(usage.pool_touched_bytes));
        let age = Duration::try_from_secs_f64(self.started_at.map_or(0.0, |started| at - started)).unwrap_or_default();
        self.touched_over_time.add(age, touched, period);
    }

    /// Sets the verdict of a sample. Returns whether it differs from the one before.
    pub fn add_verdict(&mut self, verdict: Verdict) -> bool {
        *self.verdicts.entry(label(verdict)).or_default() += 1;
        self.verdict.replace(verdict) != Some(verdict)
    }

    /// Records an event and logs it.
    pub fn note(&mut self, at: f64, what: impl Into<String>) {
        let what = what.into();
        log::info!("guest {}: {what}", self.request.name);
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event { at, what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked() {
        let good = Request {
            name: "redis-1".to_owned(),
            vm: predict::Request { cores: 2, memory_bytes: Bytes::gib(1), ..predict::Request::default() },
            pool_bytes: None,
            description: None,
        };
        let check = |request: Request, wrong: Option<&str>| match (request.check(), wrong) {
            (Ok(()), None) => {}
            (Err(found), Some(wrong)) => assert!(found.contains(wrong), "{found}"),
            (found, _) => panic!("{request:?}: {found:?}"),
        };
        let with = |cores, memory_bytes| Request { vm: predict::Request { cores, memory_bytes, ..good.vm.clone() }, ..good.clone() };
        check(good.clone(), None);
        for name in ["", "a/b", "-a", ".", "a b", "ä", &"a".repeat(NAME_MAX + 1)] {
            check(Request { name: name.to_owned(), ..good.clone() }, Some("name"));
        }
        check(with(0, Bytes::gib(1)), Some("cores: 0"));
        check(with(2, Bytes::mib(1)), Some("1048576 bytes"));
        check(with(2, Bytes::gib(1) + Bytes(1)), Some("whole MiB"));
        let described = |json: &str| Request { description: Some(serde_json::from_str(json).unwrap()), ..good.clone() };
        check(described(r#"{"qemu": {"arguments": ["-kernel", "bzImage"]}}"#), None);
        check(described(r#"{"qemu": {"arguments": ["-numa", "node"]}}"#), Some("-numa"));
    }

    #[test]
    fn unknown_keys_are_refused() {
        let check = |text: &str, valid: bool| assert_eq!(serde_json::from_str::<Request>(text).is_ok(), valid, "{text}");
        check(r#"{"name": "a", "vm": {"cores": 1, "memory_bytes": 1, "arrival": 0}}"#, true);
        check(r#"{"name": "a", "vm": {"cores": 1, "memory_bytes": 1, "arrival": 0, "core": 2}}"#, false);
        check(r#"{"name": "a", "vm": {"cores": 1, "memory_bytes": 1, "arrival": 0}, "description": {"qemu": {"argument": []}}}"#, false);
    }
}
