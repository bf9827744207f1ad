//! Phases of slow and fast memory, and what happened in the slow ones.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Upper limit of the reported phases; the last ones are kept.
const PHASES_MAX: usize = 10_000;

/// The beginning of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// Time in milliseconds since the epoch.
    pub unix_ms: u64,
    /// Whether memory is slow.
    pub slow: bool,
}

/// Accesses and time in slow phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    /// Number of accesses to parked pages.
    pub accesses: u64,
    /// Total length.
    pub time: Duration,
    /// Processor time of the program in all threads, including faults.
    pub cpu: Duration,
}

impl Slow {
    fn add(&mut self, other: Self) {
        self.accesses += other.accesses;
        self.time += other.time;
        self.cpu += other.cpu;
    }

    /// Processor time without faults, of which each took `fault_cpu`.
    #[must_use]
    pub fn own(&self, fault_cpu: Duration) -> Duration {
        let faults_ns = fault_cpu.as_nanos().saturating_mul(self.accesses.into());
        self.cpu.saturating_sub(Duration::from_nanos(u64::try_from(faults_ns).unwrap_or(u64::MAX)))
    }
}

/// Counters of the program at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    pub(crate) at: Instant,
    pub(crate) accesses: u64,
    pub(crate) cpu: Duration,
}

/// The phases, and sums over the slow ones.
#[derive(Debug, Default)]
pub(crate) struct Phases {
    /// Counters up to which the sums are complete.
    last: Option<Snapshot>,
    is_slow: bool,
    /// Sums since the last decision of the policy, or the start.
    pub(crate) period: Slow,
    /// Sums over all slow phases that are reported.
    pub(crate) all: Slow,
    list: VecDeque<Phase>,
    /// When the current phase began.
    began: Option<Instant>,
}

impl Phases {
    /// Accounts accesses and time up to `now`; `reported` is whether they are part of the report.
    pub(crate) fn account(&mut self, now: Snapshot, reported: bool) {
        if let Some(then) = self.last.replace(now).filter(|_| self.is_slow) {
            let passed = Slow {
                accesses: now.accesses.saturating_sub(then.accesses),
                time: now.at.saturating_duration_since(then.at),
                cpu: now.cpu.saturating_sub(then.cpu),
            };
            self.period.add(passed);
            if reported {
                self.all.add(passed);
            }
        }
    }

    /// Returns whether memory is slow from now on, given the length of the phases.
    pub(crate) fn next(&self, now: Instant, length: Option<Duration>) -> bool {
        match (length, self.began) {
            (Some(length), Some(began)) if now.saturating_duration_since(began) >= length => !self.is_slow,
            (_, None) => true,
            _ => self.is_slow,
        }
    }

    /// Whether a phase has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.began.is_some()
    }

    /// Processor time at the last snapshot.
    pub(crate) fn last_cpu(&self) -> Option<Duration> {
        self.last.map(|last| last.cpu)
    }

    /// The beginnings of the phases, oldest first.
    pub(crate) fn list(&self) -> Vec<Phase> {
        self.list.iter().copied().collect()
    }

    /// Begins a phase, unless the current one is of the same kind.
    pub(crate) fn begin(&mut self, now: Instant, is_slow: bool) {
        if self.began.is_some() && self.is_slow == is_slow {
            return;
        }
        (self.is_slow, self.began) = (is_slow, Some(now));
        if self.list.len() == PHASES_MAX {
            self.list.pop_front();
        }
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        self.list.push_back(Phase { unix_ms: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX), slow: is_slow });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slow_phases_are_accounted() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        // The program uses half of a processor.
        let snapshot = |seconds: u64, accesses: u64| Snapshot { at: at(seconds), accesses, cpu: Duration::from_millis(500 * seconds) };
        let slow = |accesses, seconds| Slow { accesses, time: Duration::from_secs(seconds), cpu: Duration::from_millis(500 * seconds) };
        let mut phases = Phases::default();
        phases.account(snapshot(0, 5), true);
        assert!(phases.next(at(3), Some(Duration::from_secs(10))), "the first phase is slow");
        phases.account(snapshot(3, 5), true);
        phases.begin(at(3), true);
        phases.account(snapshot(5, 25), false);
        phases.account(snapshot(13, 105), true);
        assert_eq!((phases.period, phases.all), (slow(100, 10), slow(80, 8)));
        // Restoring all pages takes a moment.
        assert!(!phases.next(at(13), Some(Duration::from_secs(10))) && phases.next(at(13), None));
        phases.account(snapshot(14, 110), true);
        phases.begin(at(14), false);
        phases.account(snapshot(23, 111), true);
        assert!(!phases.next(at(23), Some(Duration::from_secs(10))) && phases.next(at(24), Some(Duration::from_secs(10))));
        assert_eq!((phases.period, phases.all), (slow(105, 11), slow(85, 9)));
        phases.begin(at(24), true);
        phases.begin(at(25), true);
        assert_eq!(phases.list().iter().map(|phase| phase.slow).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!(phases.began, Some(at(24)), "a phase of the same kind does not begin again");
        let own = |us: u64| phases.all.own(Duration::from_micros(us));
        assert_eq!((own(0), own(20_000), own(u64::MAX / 2)), (Duration::from_millis(4500), Duration::from_millis(2800), Duration::ZERO));
    }
}
