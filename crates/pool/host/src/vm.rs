//! Guests as they are asked for, and as they are remembered.

use std::collections::{BTreeMap, VecDeque};

use manager::api::Slice;
use serde::{Deserialize, Serialize};

use crate::driver::{Machine, Process, Usage};
use crate::monitor::Verdict;
use crate::room::Room;
use crate::share::Share;

/// The longest name: it is part of the paths of sockets, which are short.
pub const NAME_MAX: usize = 32;
const CORES_MAX: u32 = 512;
const ARGUMENTS_MAX: usize = 256;
/// Bytes of a domain.
const DOMAIN_MAX: usize = 256 << 10;
/// Events that are kept of each guest.
const EVENTS_MAX: usize = 100;

/// A guest that is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Letters, digits, `-`, `_` and `.`, beginning with a letter or digit.
    pub name: String,
    /// Cores, memory (local and pool together) and the metadata that predictions are based on.
    pub vm: predict::Request,
    /// Requested pool memory. `None`: as much as is predicted to be safe.
    #[serde(default)]
    pub pool_bytes: Option<u64>,
    /// What is added to the hypervisor's command line: disks, networks, kernels.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// The domain that it is made from, where libvirt starts it: XML.
    #[serde(default)]
    pub domain: Option<String>,
}

impl Request {
    /// What is wrong with it.
    ///
    /// # Errors
    /// Which value, and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        let Self { name, vm: predict::Request { cores, memory_bytes, .. }, arguments, domain, .. } = self;
        let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
        if !first || name.len() > NAME_MAX || !name.chars().all(letter) {
            return Err(format!("name {name:?}: give 1 to {NAME_MAX} letters, digits, -, _ and ., the first a letter or digit"));
        }
        if !(1..=CORES_MAX).contains(cores) {
            return Err(format!("cores = {cores}: give 1 to {CORES_MAX}"));
        }
        if *memory_bytes < 64 << 20 || *memory_bytes > 1 << 46 || memory_bytes % (1 << 20) != 0 {
            return Err(format!("memory of {memory_bytes} bytes: give 64MiB to 64TiB, in whole MiB"));
        }
        if arguments.len() > ARGUMENTS_MAX {
            return Err(format!("{} arguments: give at most {ARGUMENTS_MAX}", arguments.len()));
        }
        if let Some(bytes) = domain.as_ref().map(String::len).filter(|&bytes| bytes > DOMAIN_MAX) {
            return Err(format!("a domain of {bytes} bytes: give at most {DOMAIN_MAX}"));
        }
        // A second set of these would undo what the first is for.
        let ours = ["-m", "-numa", "-incoming", "-S", "-daemonize", "-pidfile", "-qmp", "-smp", "-name", "-machine", "-accel", "-cpu"];
        if let Some(bad) = arguments.iter().find(|argument| ours.contains(&argument.as_str())) {
            return Err(format!("argument {bad} is not for a guest to give: memory, nodes and monitor are the host's affair"));
        }
        Ok(())
    }
}

/// What a guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its slices are being had, or its hypervisor started.
    Starting,
    /// It runs.
    Running,
    /// It is being ended.
    Stopping,
    /// It has ended, and the pool does not know yet.
    Ended,
}

/// Something that happened to a guest, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, in seconds of Unix time.
    pub at: f64,
    /// What, and why.
    pub what: String,
}

/// What was seen of a guest in many looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looks {
    /// How many.
    pub count: u64,
    /// Bytes in the pool that it accessed in a period, summed over all periods.
    pub pool_accessed_bytes: u64,
    /// The same of its local memory.
    pub local_accessed_bytes: u64,
}

impl Looks {
    /// Adds one.
    pub fn add(&mut self, usage: &Usage) {
        self.count += 1;
        self.pool_accessed_bytes = self.pool_accessed_bytes.saturating_add(usage.pool_accessed_bytes);
        self.local_accessed_bytes = self.local_accessed_bytes.saturating_add(usage.local_accessed_bytes);
    }
}

/// What the processor's counters showed of a guest, and what the model said to that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// When, in seconds of Unix time.
    pub at: f64,
    /// The probability that the guest does not notice slow memory; none where the model says nothing.
    pub score: Option<f64>,
    /// Whether that counts as insensitive.
    pub insensitive: bool,
    /// The counters. In a request they are those of an earlier VM of the same workload.
    pub counters: BTreeMap<String, f64>,
}

/// A guest as it is remembered, on disk too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// As it was asked for.
    pub request: Request,
    /// What it does.
    pub state: State,
    /// How its memory was divided when it started, and why.
    pub share: Share,
    /// As it was started. Its slices here are those it began with.
    pub machine: Machine,
    /// Its process; none before it has one.
    pub process: Option<Process>,
    /// Slices that its process still maps.
    pub mapped: Vec<Slice>,
    /// Whether the pool still counts its slices as its.
    pub assigned: bool,
    /// It was moved to local memory.
    pub repaired: bool,
    /// Attempts to do so that failed.
    pub repair_failures: u32,
    /// The last look at what it holds.
    pub usage: Option<Usage>,
    /// All looks but the first, which sees the boot.
    pub looks: Looks,
    /// The processor's counters, when it last accessed more of the pool than predicted; none where nothing counts.
    #[serde(default)]
    pub counted: Option<Counted>,
    /// What the monitor said of the last one.
    pub verdict: Option<Verdict>,
    /// What was found when somebody last wanted its pool memory back.
    pub room: Option<Room>,
    /// What happened, the latest last.
    pub events: VecDeque<Event>,
}

impl Record {
    /// A guest that is about to start.
    #[must_use]
    pub fn new(request: Request, share: Share) -> Self {
        let machine = Machine {
            name: request.name.clone(),
            cores: request.vm.cores,
            local_bytes: share.local_bytes,
            slices: Vec::new(),
            arguments: request.arguments.clone(),
            domain: request.domain.clone(),
        };
        Self {
            request,
            state: State::Starting,
            share,
            machine,
            process: None,
            mapped: Vec::new(),
            assigned: false,
            repaired: false,
            repair_failures: 0,
            usage: None,
            looks: Looks::default(),
            counted: None,
            verdict: None,
            room: None,
            events: VecDeque::new(),
        }
    }

    /// Local memory that it holds.
    #[must_use]
    pub fn local_bytes(&self) -> u64 {
        if self.repaired { self.request.vm.memory_bytes } else { self.machine.local_bytes }
    }

    /// Pool memory that it holds.
    #[must_use]
    pub fn pool_bytes(&self) -> u64 {
        self.mapped.iter().map(|slice| slice.bytes).sum()
    }

    /// Remembers what happened, and logs it.
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
    fn requests_are_checked_before_anything_is_done() {
        let good = Request {
            name: "redis-1".to_owned(),
            vm: predict::Request { cores: 2, memory_bytes: 1 << 30, ..predict::Request::default() },
            pool_bytes: None,
            arguments: vec!["-kernel".to_owned(), "bzImage".to_owned()],
            domain: None,
        };
        let check = |request: Request, wrong: Option<&str>| match (request.check(), wrong) {
            (Ok(()), None) => {}
            (Err(found), Some(wrong)) => assert!(found.contains(wrong), "{found}"),
            (found, _) => panic!("{request:?}: {found:?}"),
        };
        check(good.clone(), None);
        for name in ["", "a/b", "-a", ".", "a b", "ä", &"a".repeat(NAME_MAX + 1)] {
            check(Request { name: name.to_owned(), ..good.clone() }, Some("name"));
        }
        check(Request { vm: predict::Request { cores: 0, ..good.vm.clone() }, ..good.clone() }, Some("cores = 0"));
        check(Request { vm: predict::Request { memory_bytes: 1 << 20, ..good.vm.clone() }, ..good.clone() }, Some("1048576 bytes"));
        check(Request { vm: predict::Request { memory_bytes: (1 << 30) + 1, ..good.vm.clone() }, ..good.clone() }, Some("whole MiB"));
        check(Request { arguments: vec!["-numa".to_owned(), "node".to_owned()], ..good.clone() }, Some("-numa"));
        check(Request { arguments: vec![String::new(); 257], ..good.clone() }, Some("at most 256"));
        check(Request { domain: Some(" ".repeat((256 << 10) + 1)), ..good }, Some("at most 262144"));
    }
}
