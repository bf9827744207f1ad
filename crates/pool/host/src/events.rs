//! Counts of events since the daemon's start, for metrics.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kernel::process;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use serde::Serialize;

/// An event that is counted by outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A guest was requested.
    Start,
    /// The monitor gave a verdict on a guest.
    Verdict,
    /// Performance counters of a guest were sampled.
    Counters,
    /// A guest was moved to local memory.
    Mitigation,
    /// The hot part of a guest's pool memory was sought.
    Hot,
    /// A guest was asked for all of its pool memory.
    Release,
    /// A slice was taken from a running guest.
    Offline,
}

impl Event {
    /// All events, with metric name and help.
    pub(crate) const ALL: [(Self, &'static str, &'static str); 7] = [
        (Self::Start, "starts", "Requests to start a guest, by outcome"),
        (Self::Verdict, "verdicts", "Samples of guests with pool memory, by the monitor's verdict"),
        (Self::Counters, "counters", "Samples of performance counters of guests that access the pool, by the latency model's prediction"),
        (Self::Mitigation, "mitigations", "Moves of guests to local memory, by outcome"),
        (Self::Hot, "hot_parts", "Guests that may have to be moved, by what was done about the hot part of their pool memory"),
        (
            Self::Release,
            "releases",
            "Requests to guests to release all pool memory, by outcome; no_free_memory: the guest was not asked, because it uses too much memory",
        ),
        (Self::Offline, "slices_offlined", "Slices to be taken from running guests, by outcome"),
    ];
}

/// Counts since the daemon's start.
#[derive(Debug)]
pub(crate) struct Counts {
    events: Mutex<BTreeMap<(Event, String), u64>>,
    /// Pauses of guests during mitigation, in seconds.
    pub(crate) pauses: Histogram,
    /// CPU time of observing guests, in seconds.
    pub(crate) observation_cpu: Counter<f64, AtomicU64>,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            events: Mutex::default(),
            pauses: Histogram::new([0.005, 0.02, 0.05, 0.1, 0.3, 1.0, 3.0]),
            observation_cpu: Counter::default(),
        }
    }
}

impl Counts {
    /// Counts an event with its outcome.
    pub(crate) fn count(&self, event: Event, outcome: impl Into<String>) {
        *self.events.lock().unwrap_or_else(PoisonError::into_inner).entry((event, outcome.into())).or_default() += 1;
    }

    /// Records the pause of a guest during its move.
    pub(crate) fn paused(&self, pause: Duration) {
        self.pauses.observe(pause.as_secs_f64());
    }

    /// Observes a guest, and counts the CPU time of that: this thread's, and what `kernel` says of kernel threads.
    pub(crate) fn observing<T>(&self, observe: impl FnOnce() -> T, kernel: impl FnOnce(&T) -> Duration) -> T {
        let own = || process::thread_cpu_time().unwrap_or_default();
        let before = own();
        let observed = observe();
        let cpu = own().saturating_sub(before) + kernel(&observed);
        self.observation_cpu.inc_by(cpu.as_secs_f64());
        observed
    }

    /// The outcomes of an event and their counts.
    pub(crate) fn outcomes(&self, event: Event) -> Vec<(String, u64)> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.iter().filter(|((of, _), _)| *of == event).map(|((_, outcome), &count)| (outcome.clone(), count)).collect()
    }
}

/// The JSON name of an enum value, used as a label.
pub(crate) fn label(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
