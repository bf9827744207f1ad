//! Which huge pages in use are split, because most of what they hold is idle. Pure.
//!
//! # Problem
//! A huge page has one accessed bit. In a cache whose objects are spread over huge pages, some object of each is accessed all the
//! time, so that none is ever idle and nothing goes out, whatever part of the memory is cold: 200 requests a second kept all 25 huge
//! pages of a memcached in use, which are 12,800 pages, by 400 requests in a scan. The sample cannot see that: its points in a huge
//! page all have the age of the whole.
//!
//! # Rule
//! Of each process a few huge pages in use are split, as a test. Once their parts have been watched for longer than the job's
//! threshold, those that are idle for it, or far, are counted. If they are [`IDLE_MIN`] of all, every huge page of the process is
//! split, some in each scan, and the policy finds out by the sample what may go out. If not, the tested huge pages are
//! collapsed again, and the process rests, after each such test for twice as long.
//!
//! What it costs: huge pages save misses of the TLB. At most a quarter of the memory that loses them was in use.
//!
//! # Properties
//! Each is a test of this name: a process whose huge pages are in use as a whole keeps them; one whose parts are idle is split in
//! steps; a test that fails is repeated ever more seldom; a process that has exited is forgotten.

use std::collections::{HashMap, HashSet};

use units::{Age, RatioPpm};

use super::split::IDLE;

/// The share of the tested parts that must be idle.
const IDLE_MIN: RatioPpm = RatioPpm(750_000);

/// Fewer points in the tested huge pages prove nothing.
const POINTS_MIN: u64 = 8;

/// Scans for which a process is observed before a test.
const OBSERVED: u32 = 8;

/// Scans that a test takes beyond the threshold: a split makes all parts young, and the scan in which it happens is not whole.
const MARGIN: u32 = 3;

/// Scans between two tests.
const REST: u32 = 32;

/// The rest is doubled this often at most: to 2,048 scans, nearly three days.
const FAILURES_MAX: u32 = 6;

/// Sampled pages of the tested huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// All of them.
    pub points: u64,
    /// Those that are far, or idle for the threshold.
    pub idle: u64,
}

/// What to do with a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Keep,
    /// Splits some huge pages that are in use, and calls [`BusyPages::tested`].
    Test,
    /// Splits huge pages from this address on, and calls [`BusyPages::split`].
    Split(u64),
    /// Collapses these blocks again.
    Collapse(Vec<u64>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// There is no test before this scan.
    Rests { until: u32 },
    /// These blocks were split at this scan.
    Tests { blocks: Vec<u64>, since: u32 },
    /// What lies before this address is split.
    Splits { from: u64 },
}

#[derive(Clone, Debug)]
struct Process {
    state: State,
    /// Tests in a row that failed.
    failures: u32,
}

/// The processes of one job.
#[derive(Debug, Default)]
pub struct BusyPages {
    scan: u32,
    processes: HashMap<i32, Process>,
}

impl BusyPages {
    /// Begins a scan of these processes.
    pub fn begin(&mut self, pids: &HashSet<i32>) {
        self.scan = self.scan.saturating_add(1);
        self.processes.retain(|pid, _| pids.contains(pid));
    }

    /// What to do with a process now. `count` counts the sampled pages of blocks, with those that have been idle for an age.
    pub fn step(&mut self, pid: i32, threshold: Option<Age>, count: impl FnOnce(&[u64], Age) -> Parts) -> Step {
        let scan = self.scan;
        let first = || Process { state: State::Rests { until: scan.saturating_add(OBSERVED) }, failures: 0 };
        let process = self.processes.entry(pid).or_insert_with(first);
        match &process.state {
            State::Rests { until } => {
                if scan < *until {
                    Step::Keep
                } else {
                    Step::Test
                }
            }
            State::Tests { blocks, since } => {
                let idle_for = threshold.unwrap_or(IDLE).max(IDLE);
                if scan < since.saturating_add(u32::from(idle_for.0) + MARGIN) {
                    return Step::Keep;
                }
                let parts = count(blocks, idle_for);
                if parts.points >= POINTS_MIN && parts.idle >= IDLE_MIN.share_of(parts.points) {
                    (process.state, process.failures) = (State::Splits { from: 0 }, 0);
                    return Step::Split(0);
                }
                let blocks = blocks.clone();
                process.rest(scan);
                process.failures = (process.failures + 1).min(FAILURES_MAX);
                Step::Collapse(blocks)
            }
            State::Splits { from } => Step::Split(*from),
        }
    }

    /// Takes in which blocks were split as a test.
    pub fn tested(&mut self, pid: i32, blocks: Vec<u64>) {
        let scan = self.scan;
        if let Some(process) = self.processes.get_mut(&pid) {
            if blocks.is_empty() {
                // No huge page of it is in use, which says nothing about those that it may get.
                process.failures = 0;
                process.rest(scan);
            } else {
                process.state = State::Tests { blocks, since: scan };
            }
        }
    }

    /// Takes in that a step failed: the process rests, so that the same error does not end each scan.
    pub fn failed(&mut self, pid: i32) {
        let scan = self.scan;
        if let Some(process) = self.processes.get_mut(&pid) {
            process.failures = (process.failures + 1).min(FAILURES_MAX);
            process.rest(scan);
        }
    }

    /// Takes in up to which address the process is split; `None` if all of it is.
    pub fn split(&mut self, pid: i32, next: Option<u64>) {
        let scan = self.scan;
        if let Some(process) = self.processes.get_mut(&pid) {
            match next {
                Some(from) => process.state = State::Splits { from },
                None => process.rest(scan),
            }
        }
    }
}

impl Process {
    fn rest(&mut self, scan: u32) {
        self.state = State::Rests { until: scan.saturating_add(REST << self.failures) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: i32 = 7;

    fn scanned(busy: &mut BusyPages, threshold: Option<Age>, parts: Parts) -> Step {
        busy.begin(&HashSet::from([PID]));
        busy.step(PID, threshold, |_, _| parts)
    }

    /// Scans until something is done, and how many these were.
    fn until_done(busy: &mut BusyPages, threshold: Option<Age>, parts: Parts) -> (u32, Step) {
        for scans in 1..10_000 {
            let step = scanned(busy, threshold, parts);
            if step != Step::Keep {
                return (scans, step);
            }
        }
        (10_000, Step::Keep)
    }

    const USED: Parts = Parts { points: 64, idle: 47 };
    const IDLE_PARTS: Parts = Parts { points: 64, idle: 48 };

    #[test]
    fn a_process_whose_huge_pages_are_in_use_as_a_whole_keeps_them() {
        let mut busy = BusyPages::default();
        assert_eq!(until_done(&mut busy, None, USED), (OBSERVED + 1, Step::Test));
        busy.tested(PID, vec![0, 1 << 21]);
        assert_eq!(until_done(&mut busy, None, USED), (u32::from(IDLE.0) + MARGIN, Step::Collapse(vec![0, 1 << 21])));
        let mut few = BusyPages::default();
        until_done(&mut few, None, USED);
        few.tested(PID, vec![0]);
        let too_few = Parts { points: 7, idle: 7 };
        assert!(matches!(until_done(&mut few, None, too_few).1, Step::Collapse(_)), "seven points prove nothing");
    }

    #[test]
    fn one_whose_parts_are_idle_is_split_in_steps() {
        let mut busy = BusyPages::default();
        until_done(&mut busy, Some(Age(20)), IDLE_PARTS);
        busy.tested(PID, vec![0]);
        let (scans, step) = until_done(&mut busy, Some(Age(20)), IDLE_PARTS);
        assert_eq!((scans, step), (20 + MARGIN, Step::Split(0)), "they are watched for longer than the threshold");
        busy.split(PID, Some(1 << 30));
        assert_eq!(until_done(&mut busy, None, USED), (1, Step::Split(1 << 30)), "the test is over");
        busy.split(PID, None);
        assert_eq!(until_done(&mut busy, None, IDLE_PARTS), (REST, Step::Test), "what became huge since");
    }

    #[test]
    fn a_test_that_fails_is_repeated_ever_more_seldom() {
        let mut busy = BusyPages::default();
        let mut rests = Vec::new();
        for _ in 0..9 {
            rests.push(until_done(&mut busy, None, USED).0);
            busy.tested(PID, vec![0]);
            until_done(&mut busy, None, USED);
        }
        assert_eq!(rests[1..], [32, 64, 128, 256, 512, 1024, 2048, 2048]);
        // A step that the kernel refuses counts as one.
        let mut refused = BusyPages::default();
        until_done(&mut refused, None, USED);
        refused.failed(PID);
        assert_eq!(until_done(&mut refused, None, USED).0, 2 * REST);
        // One that finds no huge page in use does not count.
        let mut none = BusyPages::default();
        for _ in 0..3 {
            until_done(&mut none, None, USED);
            none.tested(PID, vec![]);
            assert_eq!(until_done(&mut none, None, USED).0, REST);
        }
    }

    #[test]
    fn a_process_that_has_exited_is_forgotten() {
        let mut busy = BusyPages::default();
        until_done(&mut busy, None, USED);
        busy.begin(&HashSet::new());
        assert!(busy.processes.is_empty());
        busy.tested(PID, vec![0]);
        busy.split(PID, None);
        assert!(busy.processes.is_empty());
        assert_eq!(until_done(&mut busy, None, USED).0, OBSERVED + 1, "another one with its id begins as any");
    }
}
