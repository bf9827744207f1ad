//! The sample of one job: its points, the processes that have them, and the histograms that follow.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use policy::histogram::AgeCounts;
use units::{Age, Pages};

use kernel::thp::HUGE_PAGE;

use super::blocks::Space;
use super::busy::{BusyPages, Parts};
use super::held::Held;
use super::point::{Point, Report, Watching};

/// Processes in which a shared page is watched. A page that more processes have is not judged: an access through another one
/// would be missed.
const SHARERS_MAX: u32 = 32;

/// New pages join the sample when they are more than one in this many of it,
const NEW_SHARE: usize = 32;

/// or after this many scans: each change of the list costs two writes per page.
const SCANS_BETWEEN: u32 = 4;

/// A page of the job. A page that several processes share is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    space: Space,
    page: u64,
    /// The process that has it alone; `None` if it is shared.
    process: Option<i32>,
}

/// A sampled page and the processes in which it is watched.
#[derive(Debug)]
struct Sampled {
    point: Point,
    /// Processes that had it at the last scan.
    sharers: u32,
}

/// The sample of one job.
#[derive(Debug, Default)]
pub struct JobSample {
    /// One page in `2^level` is sampled; `None` before the first scan.
    pub level: Option<u32>,
    pages: HashMap<Key, Sampled>,
    /// The page that each process has at an address.
    at: HashMap<(i32, u64), Key>,
    /// Processes at the last scan.
    processes: HashSet<i32>,
    /// Scans since pages joined.
    scans_since: u32,
    first_scan: Option<Duration>,
    last_scan: Option<Duration>,
    /// Its huge pages that are in use.
    pub busy: BusyPages,
    /// Blocks of processes with idle pages in which the last scan has left no huge page.
    pub small: HashSet<(i32, u64)>,
}

/// What one scan counted, in points.
#[derive(Debug, Default)]
pub struct Counted {
    /// Resident pages by age.
    pub resident: AgeCounts,
    /// Pages in far memory by age.
    pub far: AgeCounts,
    /// Resident pages that were accessed since the last scan, by age at the access.
    pub accesses: AgeCounts,
    /// Pages that were accessed in far memory since the last scan, by age at the access.
    pub promoted: AgeCounts,
    /// Time since the last scan; zero at the first.
    pub window: Duration,
    /// The oldest age that the sample distinguishes yet.
    pub resolved_to: Age,
    /// Whether pages joined the sample: the list of watched pages must be renewed.
    pub joined: bool,
}

impl JobSample {
    /// The time since the job's first scan.
    pub fn observed_for(&self, now: Duration) -> Duration {
        self.first_scan.map_or(Duration::ZERO, |first| now.saturating_sub(first))
    }

    /// The processes to sample: those that were there at the last scan. What a younger one has is young, and watching processes that
    /// come and go would change the list at every scan. At the job's first scan, which knows no ages, all are.
    pub fn settled(&mut self, pids: &[i32]) -> Vec<i32> {
        let before = std::mem::replace(&mut self.processes, pids.iter().copied().collect());
        let first = self.first_scan.is_none();
        pids.iter().copied().filter(|pid| first || before.contains(pid)).collect()
    }

    /// Takes in a report of the page at an address of a process.
    pub fn take(&mut self, pid: i32, address: u64, report: Report, watching: &Watching) {
        if let Some(sampled) = self.at.get(&(pid, address)).and_then(|key| self.pages.get_mut(key)) {
            sampled.point.take(report, watching);
        }
    }

    /// The age at its last report of the page at an address of a process; `None` if it is not in the sample.
    #[must_use]
    pub fn age(&self, pid: i32, address: u64, scan_period: Duration) -> Option<Age> {
        let sampled = self.pages.get(self.at.get(&(pid, address))?)?;
        (sampled.sharers <= SHARERS_MAX).then(|| sampled.point.age(Duration::MAX, scan_period))
    }

    /// The blocks without a huge page at the last scan, all of whose sampled pages were accessed since: either they were, or the kernel
    /// has made a huge page of them ([`super::collapsed`]).
    #[must_use]
    pub fn accessed_as_a_whole(&self) -> Vec<(i32, u64)> {
        let mut whole: HashMap<(i32, u64), bool> = HashMap::new();
        for (&(pid, address), key) in &self.at {
            let block = (pid, address - address % HUGE_PAGE);
            if let Some(Sampled { point, .. }) = self.pages.get(key).filter(|sampled| self.small.contains(&block) && !sampled.point.swapped)
            {
                *whole.entry(block).or_insert(true) &= point.accessed().is_some();
            }
        }
        whole.into_iter().filter_map(|(block, whole)| whole.then_some(block)).collect()
    }

    /// Forgets the accesses to the sampled pages of a block that came last, and all at once.
    pub fn forget_last_accesses(&mut self, pid: i32, block: u64) {
        let keys: Vec<Key> = self.at.iter().filter(|&(&at, _)| is_in(at, pid, &[block])).map(|(_, &key)| key).collect();
        let last = keys.iter().filter_map(|key| self.pages.get(key)?.point.accessed()).max();
        for key in keys {
            if let Some(sampled) = self.pages.get_mut(&key).filter(|sampled| sampled.point.accessed() == last) {
                sampled.point.forget_access();
            }
        }
    }

    /// Counts the pages that the job's processes hold now, `held`. New pages join the sample now and then; before that they are not
    /// counted.
    ///
    /// `known_until` is the time of the last report: an access since then is not known yet.
    pub fn scan(&mut self, held: &[(i32, Held)], now: Duration, known_until: Duration, scan_period: Duration) -> Counted {
        let resolved = known_until.saturating_sub(*self.first_scan.get_or_insert(now));
        let mut counted = Counted {
            window: self.last_scan.replace(now).map_or(Duration::ZERO, |then| now.saturating_sub(then)),
            resolved_to: Age::from_idle_time(resolved, scan_period),
            ..Counted::default()
        };
        let admits = self.admits(held);
        let before = std::mem::take(&mut self.at);
        self.pages.values_mut().for_each(|sampled| sampled.sharers = 0);
        let mut swapped_before = HashMap::new();
        for &(pid, held) in held {
            let key = key_of(pid, &held, before.get(&(pid, held.address)));
            // A page that is not watched at this address must not be counted: it would seem idle.
            if !admits && (!before.contains_key(&(pid, held.address)) || !self.pages.contains_key(&key)) {
                continue;
            }
            self.at.insert((pid, held.address), key);
            let sampled = self.pages.entry(key).or_insert_with(|| Sampled { point: Point::new(now, held.swapped), sharers: 0 });
            sampled.sharers += 1;
            let swapped = std::mem::replace(&mut sampled.point.swapped, held.swapped);
            swapped_before.entry(key).or_insert(swapped);
        }
        counted.joined = admits;
        self.pages.retain(|_, sampled| sampled.sharers > 0);
        for (key, sampled) in self.pages.iter_mut().filter(|(_, sampled)| sampled.sharers <= SHARERS_MAX) {
            let age = sampled.point.age(known_until, scan_period);
            let side = if sampled.point.swapped { &mut counted.far } else { &mut counted.resident };
            side.add(age, Pages(1));
            if let Some(age) = sampled.point.take_access(scan_period) {
                let was_far = swapped_before.get(key).copied().unwrap_or(false);
                let side = if was_far { &mut counted.promoted } else { &mut counted.accesses };
                side.add(age, Pages(1));
            }
        }
        counted
    }

    /// Whether new pages join the sample at this scan.
    fn admits(&mut self, held: &[(i32, Held)]) -> bool {
        let new = held.iter().filter(|(pid, held)| !self.at.contains_key(&(*pid, held.address))).count();
        let admits = new * NEW_SHARE > held.len() || (new > 0 && self.scans_since >= SCANS_BETWEEN);
        self.scans_since = if admits { 0 } else { self.scans_since.saturating_add(1) };
        admits
    }

    /// The addresses to watch, by process, ascending.
    #[must_use]
    pub fn watched(&self) -> HashMap<i32, Vec<u64>> {
        self.addresses(|_, sampled| sampled.sharers <= SHARERS_MAX)
    }

    /// The addresses of resident pages that one process has alone and that were at least `age` old at their last report, by process,
    /// ascending.
    #[must_use]
    pub fn idle_for(&self, age: Age, scan_period: Duration) -> HashMap<i32, Vec<u64>> {
        self.addresses(|key, Sampled { point, .. }| {
            let private = key.process.is_some() && key.space == Space::PRIVATE;
            private && !point.swapped && point.age(Duration::MAX, scan_period) >= age
        })
    }

    /// The addresses of resident pages that one process has alone and that were accessed less than `age` ago, by process, ascending.
    #[must_use]
    pub fn in_use(&self, age: Age, scan_period: Duration) -> HashMap<i32, Vec<u64>> {
        self.addresses(|key, Sampled { point, .. }| {
            let private = key.process.is_some() && key.space == Space::PRIVATE;
            private && !point.swapped && point.age(Duration::MAX, scan_period) < age
        })
    }

    /// Counts the sampled pages of a process in huge page blocks, and those that are far or have been idle for `age`.
    #[must_use]
    pub fn parts(&self, pid: i32, blocks: &[u64], age: Age, scan_period: Duration) -> Parts {
        let mut parts = Parts::default();
        for point in self.points_in(pid, blocks) {
            parts.points += 1;
            parts.idle += u64::from(point.swapped || point.age(Duration::MAX, scan_period) >= age);
        }
        parts
    }

    /// Whether a sampled page of a process in a block is far.
    #[must_use]
    pub fn has_far(&self, pid: i32, block: u64) -> bool {
        self.points_in(pid, &[block]).any(|point| point.swapped)
    }

    fn points_in<'a>(&'a self, pid: i32, blocks: &'a [u64]) -> impl Iterator<Item = &'a Point> {
        self.at
            .iter()
            .filter(move |&(&at, _)| is_in(at, pid, blocks))
            .filter_map(|(_, key)| self.pages.get(key))
            .map(|sampled| &sampled.point)
    }

    fn addresses(&self, which: impl Fn(&Key, &Sampled) -> bool) -> HashMap<i32, Vec<u64>> {
        let mut addresses: HashMap<i32, Vec<u64>> = HashMap::new();
        for ((pid, address), key) in &self.at {
            if self.pages.get(key).is_some_and(|sampled| which(key, sampled)) {
                addresses.entry(*pid).or_default().push(*address);
            }
        }
        addresses.values_mut().for_each(|addresses| addresses.sort_unstable());
        addresses
    }
}

/// Whether an address, given with its process, is in one of the blocks of process `pid`.
fn is_in((of, address): (i32, u64), pid: i32, blocks: &[u64]) -> bool {
    of == pid && blocks.contains(&(address - address % HUGE_PAGE))
}

/// The page that a process holds. Of a swapped page the kernel does not say who shares it: it remains what it was.
fn key_of(pid: i32, held: &Held, before: Option<&Key>) -> Key {
    let process = match (held.shared, before) {
        (Some(true), _) => None,
        (Some(false), _) => Some(pid),
        (None, before) => before.map_or(Some(pid), |key| key.process),
    };
    Key { space: held.space, page: held.page, process }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCAN: Duration = Duration::from_secs(120);
    const WATCHING: Watching = Watching { interval: Duration::from_secs(30), since: Duration::ZERO };

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn page(number: u64, shared: Option<bool>, swapped: bool) -> Held {
        Held { address: number * 4096, space: Space::PRIVATE, page: number, shared, swapped }
    }

    fn report(at: u64, accessed: bool) -> Report {
        Report { at: secs(at), accessed, age: 0 }
    }

    fn counts(pairs: &[(u8, u64)]) -> AgeCounts {
        let mut counts = AgeCounts::default();
        pairs.iter().for_each(|&(age, pages)| counts.add(Age(age), Pages(pages)));
        counts
    }

    #[test]
    fn a_page_that_goes_out_keeps_its_age_and_its_return_is_a_promotion() {
        let mut job = JobSample::default();
        let scan = |job: &mut JobSample, swapped: bool, at| {
            job.scan(&[(7, page(1, (!swapped).then_some(false), swapped))], secs(at), secs(at), SCAN)
        };
        scan(&mut job, false, 0);
        for at in (30..=600).step_by(30) {
            job.take(7, 4096, report(at, false), &WATCHING);
        }
        assert_eq!(scan(&mut job, true, 600).far, counts(&[(5, 1)]));
        assert_eq!((job.age(7, 4096, SCAN), job.age(7, 8192, SCAN), job.age(8, 4096, SCAN)), (Some(Age(5)), None, None));
        for at in (630..=1200).step_by(30) {
            job.take(7, 4096, report(at, false), &WATCHING);
        }
        job.take(7, 4096, report(1230, true), &WATCHING);
        let counted = scan(&mut job, false, 1240);
        assert_eq!((counted.promoted, counted.resident, counted.far), (counts(&[(10, 1)]), counts(&[(0, 1)]), counts(&[])));
        assert_eq!((counted.accesses, counted.window), (counts(&[]), secs(640)));
        assert_eq!(counted.resolved_to, Age(10));
    }

    #[test]
    fn processes_join_at_their_second_scan() {
        let mut job = JobSample::default();
        assert_eq!(job.settled(&[7, 8]), [7, 8], "the first scan");
        job.scan(&[], secs(0), secs(0), SCAN);
        assert_eq!(job.settled(&[7, 9]), [7]);
        assert_eq!(job.settled(&[7, 9, 10]), [7, 9]);
        assert_eq!(job.settled(&[8, 10]), [10], "8 was away");
    }

    #[test]
    fn a_page_that_was_freed_leaves_and_a_new_one_begins_at_zero() {
        let mut job = JobSample::default();
        job.scan(&[(7, page(1, Some(false), false))], secs(0), secs(0), SCAN);
        assert_eq!(job.scan(&[], secs(1200), secs(1200), SCAN).resident.total(), Pages(0));
        let counted = job.scan(&[(8, page(1, Some(false), false))], secs(1320), secs(1320), SCAN);
        assert_eq!((counted.resident, counted.accesses), (counts(&[(0, 1)]), counts(&[])), "of another process");
    }

    #[test]
    fn a_shared_page_counts_once_with_its_latest_access() {
        let mut job = JobSample::default();
        let held = [(7, page(1, Some(true), false)), (8, page(1, Some(true), false)), (9, page(1, Some(false), false))];
        job.scan(&held, secs(0), secs(0), SCAN);
        for at in (30..=360).step_by(30) {
            for (pid, accessed) in [(7, false), (8, at == 240), (9, false)] {
                job.take(pid, 4096, report(at, accessed), &WATCHING);
            }
        }
        let counted = job.scan(&held, secs(360), secs(360), SCAN);
        assert_eq!(counted.resident, counts(&[(1, 1), (3, 1)]));
        assert_eq!(counted.accesses, counts(&[(2, 1)]));
        let watched = job.watched();
        assert_eq!((watched.len(), &watched[&7]), (3, &vec![4096]));
    }

    #[test]
    fn a_few_new_pages_wait_for_others() {
        let mut job = JobSample::default();
        let held = |pages: u64| (0..pages).map(|number| (7, page(2 * number, Some(false), false))).collect::<Vec<_>>();
        let mut scan = |pages, at| {
            let counted = job.scan(&held(pages), secs(at), secs(at), SCAN);
            (counted.resident.total(), counted.joined)
        };
        assert_eq!(scan(320, 0), (Pages(320), true));
        for at in [120, 240, 360, 480] {
            assert_eq!(scan(325, at), (Pages(320), false), "not watched yet");
        }
        assert_eq!(scan(325, 600), (Pages(325), true));
        assert_eq!(scan(340, 720), (Pages(340), true), "many at once");
        assert_eq!(scan(330, 840), (Pages(330), false), "freed");
    }

    #[test]
    fn what_a_collapse_shows_is_no_access() {
        let mut job = JobSample::default();
        // Three pages of a block, and two of the next.
        let pages = [512, 516, 520, 1024, 1028];
        let held = pages.map(|number| (7, page(number, Some(false), false)));
        job.scan(&held, secs(0), secs(0), SCAN);
        job.small = HashSet::from([(7, HUGE_PAGE), (7, 2 * HUGE_PAGE)]);
        let mut take = |at, accessed: &[u64]| {
            pages.iter().for_each(|number| job.take(7, number * 4096, report(at, accessed.contains(number)), &WATCHING));
            let mut whole = job.accessed_as_a_whole();
            whole.sort_unstable();
            whole
        };
        (30..=330).step_by(30).for_each(|at| assert_eq!(take(at, &[]), []));
        assert_eq!(take(360, &[516, 1024]), [], "parts");
        assert_eq!(take(390, &[512, 516, 520]), [(7, HUGE_PAGE)], "as a whole");
        assert_eq!(take(420, &[1028]), [(7, HUGE_PAGE), (7, 2 * HUGE_PAGE)]);
        job.forget_last_accesses(7, HUGE_PAGE);
        let counted = job.scan(&held, secs(420), secs(420), SCAN);
        assert_eq!(counted.accesses, counts(&[(3, 3)]), "that of 516 at 360, and those of the second block");
        // Of the first block, 512 and 520 are as old as before; 516 was accessed at 390 as well.
        assert_eq!(counted.resident, counts(&[(0, 3), (3, 2)]));
        job.small.clear();
        assert_eq!(job.accessed_as_a_whole(), [], "of what was a huge page nothing is known");
    }

    #[test]
    fn parts_of_a_huge_page_are_idle_or_far() {
        let mut job = JobSample::default();
        // Four pages of one block, and one of the next.
        let at = |number: u64, swapped: bool| (7, page(number, (!swapped).then_some(false), swapped));
        let held = |swapped| [at(512, false), at(516, false), at(520, swapped), at(1020, false), at(1024, false)];
        job.scan(&held(false), secs(0), secs(0), SCAN);
        for time in (30..=360).step_by(30) {
            for number in [512, 516, 520, 1020, 1024] {
                job.take(7, number * 4096, report(time, number == 512 || (number == 520 && time == 330)), &WATCHING);
            }
        }
        job.scan(&held(true), secs(360), secs(360), SCAN);
        assert_eq!(job.parts(7, &[HUGE_PAGE], Age(3), SCAN), Parts { points: 4, idle: 3 });
        assert_eq!(job.parts(7, &[HUGE_PAGE, 2 * HUGE_PAGE], Age(3), SCAN), Parts { points: 5, idle: 4 });
        assert_eq!(job.parts(7, &[HUGE_PAGE], Age(4), SCAN), Parts { points: 4, idle: 1 }, "none is as old");
        assert_eq!(job.parts(8, &[HUGE_PAGE], Age(3), SCAN), Parts::default());
        assert!(job.has_far(7, HUGE_PAGE) && !job.has_far(7, 2 * HUGE_PAGE));
        assert_eq!(job.in_use(Age(2), SCAN), HashMap::from([(7, vec![512 * 4096])]));
    }

    #[test]
    fn a_page_of_too_many_processes_is_not_judged() {
        let mut job = JobSample::default();
        let sharers = i32::try_from(SHARERS_MAX).unwrap() + 1;
        let held: Vec<_> = (0..sharers).map(|pid| (pid, page(1, Some(true), false))).collect();
        assert_eq!(job.scan(&held, secs(0), secs(0), SCAN).resident.total(), Pages(0));
        assert!(job.watched().is_empty());
        assert_eq!(job.scan(&held[1..], secs(120), secs(120), SCAN).resident.total(), Pages(1));
    }
}
