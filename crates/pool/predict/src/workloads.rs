//! What the counters of earlier VMs say about a workload (Pond section 4.4).
//!
//! # Problem
//! A VM arrives without counters of its own; those of earlier VMs of the same workload stand for it. But a deployment starts many
//! VMs in one second, and none of them has run when the next one arrives. And VMs of a workload are alike, not equal: the
//! latest one alone is often an exception.
//!
//! # Rule
//! Only VMs that have run for a while count. A workload is insensitive if each of the latest [`Evidence::agree`] of them is.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use crate::decision::{Latency, NoAnswer};

/// Which earlier VMs decide about a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// So many of them, the latest ones, must all be insensitive; 1 at least.
    pub agree: usize,
    /// Each of them must have run for so many seconds.
    pub run_seconds: i64,
}

impl Default for Evidence {
    /// Five VMs that have run for ten minutes.
    fn default() -> Self {
        Self { agree: 5, run_seconds: 600 }
    }
}

/// The largest number of workloads; further ones have no answer.
const WORKLOADS_MAX: usize = 100_000;

/// What the latency model said of the VMs of each workload.
#[derive(Clone, Debug)]
pub struct Workloads<K> {
    evidence: Evidence,
    /// By start: those that have not run for long enough, and as many before them as must agree.
    vms: HashMap<K, VecDeque<(i64, Latency)>>,
}

impl<K: Eq + Hash> Workloads<K> {
    /// No workloads.
    #[must_use]
    pub fn new(evidence: Evidence) -> Self {
        Self { evidence: Evidence { agree: evidence.agree.max(1), ..evidence }, vms: HashMap::new() }
    }

    /// Records what the model says of a VM's counters. VMs are recorded in the order of their start.
    pub fn record(&mut self, workload: K, started: i64, latency: Latency) {
        if self.vms.len() >= WORKLOADS_MAX && !self.vms.contains_key(&workload) {
            return;
        }
        let vms = self.vms.entry(workload).or_default();
        vms.push_back((started, latency));
        // The first one is not needed once as many after it have run for long enough.
        while vms.get(self.evidence.agree).is_some_and(|&(next, _)| self.evidence.has_run(next, started)) {
            vms.pop_front();
        }
    }

    /// Returns what the earlier VMs of a workload say at a time: the lowest score of those that must agree.
    pub fn latency(&self, workload: &K, now: i64) -> Latency {
        let vms = self.vms.get(workload).into_iter().flatten().rev();
        let mut seen = 0;
        let mut lowest: Option<Latency> = None;
        for &(_, latency) in vms.filter(|&&(started, _)| self.evidence.has_run(started, now)).take(self.evidence.agree) {
            seen += 1;
            lowest = Some(lowest.map_or(latency, |before| less_sure(before, latency)));
        }
        lowest.filter(|_| seen == self.evidence.agree).unwrap_or(Latency::NoAnswer(NoAnswer::NoHistory))
    }
}

impl Evidence {
    fn has_run(self, started: i64, now: i64) -> bool {
        started.saturating_add(self.run_seconds) <= now
    }
}

/// Returns the one that says less for an insensitive workload.
fn less_sure(a: Latency, b: Latency) -> Latency {
    let rank = |latency: Latency| match latency {
        Latency::NoModel => (0, 0.0),
        Latency::NoAnswer(_) => (1, 0.0),
        Latency::Sensitive(score) => (2, score),
        Latency::Insensitive(score) => (3, score),
    };
    if rank(b) < rank(a) { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_HISTORY: Latency = Latency::NoAnswer(NoAnswer::NoHistory);

    #[test]
    fn the_latest_vms_that_have_run_must_agree() {
        let yes = Latency::Insensitive;
        let check = |vms: &[(i64, Latency)], now: i64, want: Latency| {
            let mut workloads = Workloads::new(Evidence { agree: 2, run_seconds: 100 });
            workloads.record(8, 0, Latency::Sensitive(0.0));
            vms.iter().for_each(|&(started, latency)| workloads.record(7, started, latency));
            assert_eq!(workloads.latency(&7, now), want, "{vms:?} at {now}");
        };
        check(&[], 1_000, NO_HISTORY);
        check(&[(0, yes(0.9))], 1_000, NO_HISTORY);
        check(&[(0, yes(0.9)), (0, yes(0.8))], 99, NO_HISTORY);
        check(&[(0, yes(0.9)), (0, yes(0.8))], 100, yes(0.8));
        // The third has not run for long enough; then it is one of the two.
        let three = [(0, yes(0.9)), (10, yes(0.8)), (50, Latency::Sensitive(0.3))];
        check(&three, 149, yes(0.8));
        check(&three, 150, Latency::Sensitive(0.3));
        check(&[(0, Latency::Sensitive(0.3)), (1, yes(0.9)), (2, yes(0.7))], 200, yes(0.7));
        check(&[(0, yes(0.9)), (1, Latency::NoAnswer(NoAnswer::Drifted))], 200, Latency::NoAnswer(NoAnswer::Drifted));
        check(&[(0, Latency::NoModel), (1, yes(0.9))], 200, Latency::NoModel);
        check(&[(0, yes(0.9)), (i64::MAX, yes(0.9))], i64::MAX, yes(0.9));
    }

    #[test]
    fn the_number_of_workloads_is_limited() {
        let mut workloads = Workloads::new(Evidence { agree: 1, run_seconds: 0 });
        for workload in 0..=WORKLOADS_MAX {
            workloads.record(workload, 0, Latency::Insensitive(0.5));
        }
        workloads.record(0, 1, Latency::Insensitive(0.9));
        assert_eq!(workloads.latency(&0, 1), Latency::Insensitive(0.9));
        assert_eq!(workloads.latency(&WORKLOADS_MAX, 1), NO_HISTORY);
    }

    #[test]
    fn as_few_vms_are_kept_as_decide() {
        let mut workloads = Workloads::new(Evidence { agree: 3, run_seconds: 10 });
        for second in 0..1_000 {
            workloads.record((), second, Latency::Insensitive(0.5));
        }
        assert_eq!(workloads.vms[&()].len(), 3 + 10);
    }
}
