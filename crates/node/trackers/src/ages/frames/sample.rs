//! The sampled frames of one job, and the histograms that follow from them. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use policy::histogram::AgeCounts;
use units::{Age, Pages};

use crate::ages::idle_files::Listed;
use crate::ages::{Sample, Scan};

/// The share of a job's points, one in this many, that may be watched for less time than the oldest age that counts as known.
const LATE_SHARE: usize = 10;

/// A sampled page frame. Times are since boot, and those of scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// The cgroup that its page is charged to: in another one it is another page.
    pub(super) cgroup: u64,
    /// Its page.
    pub(super) page: Listed,
    /// The last scan that found the page accessed; the first that watched it if none did.
    accessed: Duration,
    /// When the frame joined the sample.
    joined: Duration,
    /// Whether the page was allocated or accessed since the frame joined. Otherwise it may have been idle for longer.
    known: bool,
}

impl Point {
    /// A frame that joins now. Its page is `new` if the frame had no page of the job at the last scan.
    pub(super) fn new(now: Duration, cgroup: u64, page: Listed, new: bool) -> Self {
        Self { cgroup, page, accessed: now, joined: now, known: new }
    }
}

/// The age of a page that has been idle from one scan to another. Scans may be slightly early, or late: ages are times.
fn age(from: Duration, to: Duration, scan_period: Duration) -> Age {
    Age::from_idle_time(to.saturating_sub(from) + scan_period / 8, scan_period)
}

/// How a job is sampled: one frame in `2^level`. What is finer than the machine's level is found by a sweep of all frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rate {
    /// The job's level.
    pub(super) level: u32,
    /// The level at which it is sampled where the sweep has not been.
    pub(super) before: u32,
    /// Frames that the sweep has passed since the level was chosen, of so many.
    pub(super) swept: (u64, u64),
}

impl Rate {
    /// The points expected of this many pages, in thousandths.
    fn expected_thousandths(self, pages: Pages) -> u128 {
        let all = u128::from(self.swept.1.max(1));
        let swept = u128::from(self.swept.0).min(all);
        let at = |level: u32| (u128::from(pages.0) * 1000) >> level;
        if self.level >= self.before { at(self.level) } else { (at(self.level) * swept + at(self.before) * (all - swept)) / all }
    }
}

/// The sample of one job.
#[derive(Debug, Default)]
pub(super) struct JobSample {
    /// Its frames.
    pub(super) points: BTreeMap<u64, Point>,
    /// How they are chosen; `None` before the first scan.
    pub(super) rate: Option<Rate>,
    /// Whether the rate was chosen at this scan.
    chosen_now: bool,
    first_scan: Option<Duration>,
    last_scan: Option<Duration>,
    accesses: AgeCounts,
}

/// The job's memory by the kernel's own counters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// Resident anonymous and shared memory.
    pub(super) swap_backed: Pages,
    /// Other page cache.
    pub(super) file: Pages,
}

impl JobSample {
    /// The time since the job's first scan.
    pub(super) fn observed_for(&self, now: Duration) -> Duration {
        self.first_scan.map_or(Duration::ZERO, |first| now.saturating_sub(first))
    }

    /// Samples the job at another rate from this scan on.
    pub(super) fn choose(&mut self, rate: Rate) {
        (self.rate, self.chosen_now) = (Some(rate), true);
    }

    /// Whether a frame of its that is examined at every scan and joins now has a new page.
    pub(super) fn knows_its_frames(&self) -> bool {
        self.last_scan.is_some() && !self.chosen_now
    }

    /// The age of a frame's page at the last scan; `None` if the frame is not in the sample.
    pub(super) fn age(&self, frame: u64, scan_period: Duration) -> Option<Age> {
        Some(age(self.points.get(&frame)?.accessed, self.last_scan?, scan_period))
    }

    /// The page of a frame was accessed between the last scan and this one, and is `page` now. How long it had been idle is not known
    /// of a page that joined late: `first_counts` says whether its first access counts at the time that it has been watched.
    pub(super) fn accessed(&mut self, now: Duration, frame: u64, page: Listed, first_counts: bool, scan_period: Duration) {
        let (Some(point), Some(last)) = (self.points.get_mut(&frame), self.last_scan) else { return };
        if page.swap_backed && (point.known || first_counts) {
            self.accesses.add(age(point.accessed, last, scan_period), Pages(1));
        }
        *point = Point { page, accessed: now, known: true, ..*point };
    }

    /// Ends a scan: estimates the histograms of all of the job's memory.
    pub(super) fn finish(&mut self, now: Duration, scan_period: Duration, memory: Memory) -> Scan {
        let (mut resident, mut file) = (AgeCounts::default(), AgeCounts::default());
        for point in self.points.values() {
            let side = if point.page.swap_backed { &mut resident } else { &mut file };
            side.add(age(point.accessed, now, scan_period), Pages(1));
        }
        self.chosen_now = false;
        let rate = self.rate.unwrap_or_default();
        let (points, accesses) = (resident.total(), std::mem::take(&mut self.accesses));
        let covered = covered(rate, points, memory.swap_backed);
        let window = self.last_scan.replace(now).map_or(Duration::ZERO, |then| now.saturating_sub(then));
        let observed = now.saturating_sub(*self.first_scan.get_or_insert(now));
        Scan {
            taken_at: now,
            resident: estimate(&resident, covered, memory.swap_backed),
            file: estimate(&file, self::covered(rate, file.total(), memory.file), memory.file),
            accesses: accesses.scaled(Pages(covered.0.saturating_mul(accesses.total().0) / points.0.max(1)), accesses.total()),
            window,
            resolved_to: age(Duration::ZERO, observed, scan_period).min(self.watched_for(now, scan_period)),
            sample: Some(Sample { points, ..Sample::default() }),
            ..Scan::default()
        }
    }

    /// The age up to which nearly all pages are known: they have been watched as long, or were allocated or accessed since they are.
    fn watched_for(&self, now: Duration, scan_period: Duration) -> Age {
        let mut joined: Vec<Duration> = self.points.values().filter(|point| !point.known).map(|point| point.joined).collect();
        joined.sort_unstable_by(|one, other| other.cmp(one));
        joined.get(self.points.len() / LATE_SHARE).map_or(Age::MAX, |&joined| age(joined, now, scan_period))
    }
}

/// The pages that `points` stand for: all of the job's, unless there are fewer points than that by more than two standard errors.
/// Then the rest was allocated since the sweep passed it.
fn covered(rate: Rate, points: Pages, memory: Pages) -> Pages {
    let expected = rate.expected_thousandths(memory);
    let at_most = u128::from(points.0) * 1000 + 2 * (u128::from(points.0) * 1_000_000).isqrt();
    if at_most >= expected {
        return if points == Pages::ZERO { Pages::ZERO } else { memory };
    }
    let pages = u128::from(memory.0) * u128::from(points.0) * 1000 / expected.max(1);
    Pages(u64::try_from(pages).unwrap_or(u64::MAX)).min(memory)
}

/// Scales counts of points to the pages that they stand for; the rest of the memory counts as young.
fn estimate(points: &AgeCounts, covered: Pages, memory: Pages) -> AgeCounts {
    let mut pages = points.scaled(covered, points.total());
    pages.add(Age(0), memory - pages.total());
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCAN: Duration = Duration::from_secs(120);

    fn page(swap_backed: bool) -> Listed {
        Listed { head: 7, swap_backed }
    }

    fn job(points: u64, rate: Rate) -> JobSample {
        let mut job = JobSample { rate: Some(rate), ..JobSample::default() };
        job.points.extend((0..points).map(|frame| (frame, Point::new(Duration::ZERO, 5, page(true), true))));
        job.finish(Duration::ZERO, SCAN, Memory { swap_backed: Pages(0), file: Pages(0) });
        job
    }

    fn whole(level: u32) -> Rate {
        Rate { level, before: level, swept: (0, 0) }
    }

    #[test]
    fn points_stand_for_the_kernels_total() {
        let mut job = job(100, whole(4));
        (60..100).for_each(|frame| job.accessed(SCAN, frame, page(true), true, SCAN));
        job.points.insert(900, Point::new(SCAN, 5, page(false), true));
        let scan = job.finish(SCAN, SCAN, Memory { swap_backed: Pages(1700), file: Pages(20) });
        assert_eq!((scan.resident.at(Age(1)), scan.resident.total()), (Pages(1020), Pages(1700)));
        assert_eq!((scan.file.total(), scan.accesses.at(Age(0))), (Pages(20), Pages(680)));
        assert_eq!((scan.sample.unwrap().points, scan.window), (Pages(100), SCAN));
    }

    #[test]
    fn ages_are_times_whenever_scans_come() {
        let mut job = job(2, whole(4));
        let memory = Memory { swap_backed: Pages(32), file: Pages(0) };
        let at = |per_cent: u32| SCAN * per_cent / 100;
        assert_eq!(job.finish(at(95), SCAN, memory).resident.at(Age(1)), Pages(32), "slightly early");
        assert_eq!(job.finish(at(300), SCAN, memory).resident.at(Age(3)), Pages(32), "one was left out");
        job.accessed(at(400), 0, page(true), true, SCAN);
        let scan = job.finish(at(400), SCAN, memory);
        assert_eq!((scan.accesses.at(Age(3)), scan.resident.at(Age(4)), job.age(1, SCAN)), (Pages(16), Pages(16), Some(Age(4))));
    }

    #[test]
    fn memory_that_the_sweep_has_not_found_counts_as_young() {
        // 200 points were expected of 3200 pages, at one in 16.
        let mut late = job(100, Rate { level: 4, before: 9, swept: (10, 10) });
        let scan = late.finish(SCAN, SCAN, Memory { swap_backed: Pages(3200), file: Pages(0) });
        assert_eq!((scan.resident.at(Age(1)), scan.resident.at(Age(0))), (Pages(1600), Pages(1600)));
        // The sweep has passed half of the frames: half of the points are expected, and stand for everything.
        let mut half = job(100, Rate { level: 4, before: 20, swept: (5, 10) });
        let scan = half.finish(SCAN, SCAN, Memory { swap_backed: Pages(3200), file: Pages(0) });
        assert_eq!(scan.resident.at(Age(1)), Pages(3200));
        let none = job(0, whole(4)).finish(SCAN, SCAN, Memory { swap_backed: Pages(10), file: Pages(3) });
        assert_eq!((none.resident.at(Age(0)), none.file.at(Age(0)), none.accesses.total()), (Pages(10), Pages(3), Pages(0)));
    }

    #[test]
    fn what_is_known_is_as_old_as_nine_in_ten_points() {
        let unknown = |now, frames: std::ops::Range<u64>| frames.map(move |frame| (frame, Point::new(now, 5, page(true), false)));
        let mut job = job(0, whole(4));
        job.points.extend(unknown(Duration::ZERO, 0..100));
        let memory = Memory { swap_backed: Pages(1600), file: Pages(0) };
        for scan in 0..20 {
            assert_eq!(u32::from(job.finish(SCAN * scan, SCAN, memory).resolved_to.0), scan);
        }
        // Pages are found late; then some of them are accessed, after an idle time that is not known.
        job.points.extend(unknown(SCAN * 20, 200..211));
        assert_eq!(job.finish(SCAN * 20, SCAN, memory).resolved_to, Age(20), "eleven of 111 may be late");
        job.points.extend(unknown(SCAN * 20, 211..213));
        assert_eq!(job.finish(SCAN * 20, SCAN, memory).resolved_to, Age(0));
        (200..203).for_each(|frame| job.accessed(SCAN * 21, frame, page(true), false, SCAN));
        let scan = job.finish(SCAN * 21, SCAN, memory);
        assert_eq!((scan.resolved_to, scan.accesses.total()), (Age(21), Pages(0)));
        job.accessed(SCAN * 22, 200, page(true), false, SCAN);
        assert_eq!(job.finish(SCAN * 22, SCAN, memory).accesses.total(), Pages(1600 / 113));
    }
}
