//! One sampled page: when it was last accessed, as reported at the end of every aggregation. Pure.

use std::time::Duration;

use units::Age;

/// A gap between two reports longer than this many intervals means that reports were lost.
const GAP: f64 = 1.75;

/// What the kernel reported of a page at the end of one aggregation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Time since boot at which the aggregation ended.
    pub at: Duration,
    /// Whether the page was accessed during the last interval.
    pub accessed: bool,
    /// Intervals since `accessed` last changed.
    pub age: u32,
}

/// How the kernel watches the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watching {
    /// Time between two reports.
    pub interval: Duration,
    /// The end of what earlier sessions reported, as time since boot: reports after it are of this session.
    pub since: Duration,
}

/// A sampled page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// When it joined the sample. It is as old as that at most: what was before was not watched, and may concern another page.
    joined: Duration,
    last_access: Duration,
    reported: Duration,
    /// The longest time without access that an access since the last scan has ended.
    ended: Option<Duration>,
    /// The first access since the last scan, if there is one, and the last access before.
    first: Duration,
    before: Duration,
    /// Whether it was swapped out at the last scan.
    pub swapped: bool,
}

impl Point {
    /// A page that joins the sample now.
    #[must_use]
    pub fn new(now: Duration, swapped: bool) -> Self {
        Self { joined: now, last_access: now, reported: now, ended: None, first: now, before: now, swapped }
    }

    /// Takes in a report. Reports come in the order of time.
    ///
    /// An access between two sessions is not seen, and the page continues its age. Sessions follow each other within a scan.
    pub fn take(&mut self, report: Report, &Watching { interval, since }: &Watching) {
        if report.at <= self.joined {
            return;
        }
        let same_session = self.reported > since;
        let before = std::mem::replace(&mut self.reported, report.at);
        let gap = report.at.saturating_sub(before) > interval.mul_f64(GAP);
        if report.accessed {
            // The accessed bit is set since any time in a gap: a page in use must not seem to have been idle until its end.
            self.access(if gap { before + interval } else { report.at });
            self.last_access = report.at;
        } else if gap && same_session {
            // The kernel counts intervals, which are longer than nominal on a busy machine: only a clear difference is an access.
            let idle = interval.saturating_mul(report.age.saturating_add(1));
            let last = report.at.saturating_sub(idle);
            if last > self.last_access + interval.saturating_mul(2) + idle / 8 {
                self.access(last);
            }
        }
    }

    fn access(&mut self, at: Duration) {
        if self.ended.is_none() {
            (self.first, self.before) = (at, self.last_access);
        }
        let idle = at.saturating_sub(self.last_access);
        self.ended = Some(self.ended.map_or(idle, |before| before.max(idle)));
        self.last_access = at;
    }

    /// Its age at `now`, in scans. It grows with reports only: a page of which nothing is reported is not known to be idle.
    #[must_use]
    pub fn age(&self, now: Duration, scan_period: Duration) -> Age {
        Age::from_idle_time(now.min(self.reported).saturating_sub(self.last_access), scan_period)
    }

    /// When it was first accessed since the last scan; `None` if it was not.
    #[must_use]
    pub fn accessed(&self) -> Option<Duration> {
        self.ended.map(|_| self.first)
    }

    /// Forgets the accesses since the last scan.
    pub fn forget_access(&mut self) {
        if self.ended.take().is_some() {
            self.last_access = self.before;
        }
    }

    /// The age at which it was accessed since the last call; `None` if it was not.
    pub fn take_access(&mut self, scan_period: Duration) -> Option<Age> {
        self.ended.take().map(|idle| Age::from_idle_time(idle, scan_period))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WATCHING: Watching = Watching { interval: Duration::from_secs(30), since: Duration::ZERO };
    const SCAN: Duration = Duration::from_secs(120);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn report(at: u64, accessed: bool, age: u32) -> Report {
        Report { at: secs(at), accessed, age }
    }

    #[test]
    fn an_access_ends_the_age_and_is_counted_at_it() {
        let mut point = Point::new(secs(0), false);
        for at in (30..=1200).step_by(30) {
            point.take(report(at, false, 0), &WATCHING);
        }
        assert_eq!(point.age(secs(1200), SCAN), Age(10));
        assert_eq!(point.take_access(SCAN), None);
        point.take(report(1230, true, 0), &WATCHING);
        point.take(report(1260, true, 1), &WATCHING);
        assert_eq!(point.take_access(SCAN), Some(Age(10)), "the longest of the scan");
        point.take(report(1380, false, 3), &WATCHING);
        assert_eq!((point.take_access(SCAN), point.age(secs(1379), SCAN), point.age(secs(1380), SCAN)), (None, Age(0), Age(1)));
        assert_eq!(point.age(secs(9000), SCAN), Age(1), "nothing was reported since");
    }

    #[test]
    fn lost_reports_are_made_up_by_the_kernels_age() {
        let mut point = Point::new(secs(0), false);
        point.take(report(30, true, 0), &WATCHING);
        assert_eq!(point.take_access(SCAN), Some(Age(0)));
        // Nothing was heard for 970 s; the kernel says: idle for ten intervals, since 700.
        point.take(report(1000, false, 9), &WATCHING);
        assert_eq!(point.take_access(SCAN), Some(Age(5)), "from 30 to 700");
        assert_eq!(point.age(secs(1000), SCAN), Age(2));
        // Idle throughout, by intervals that took 5 % longer than nominal: no access.
        let mut idle = Point::new(secs(0), false);
        idle.take(report(30, true, 0), &WATCHING);
        idle.take_access(SCAN);
        idle.take(report(3045, false, 94), &WATCHING);
        assert_eq!((idle.take_access(SCAN), idle.age(secs(3045), SCAN)), (None, Age(25)));
    }

    #[test]
    fn a_page_in_use_was_not_idle_in_a_gap() {
        let mut point = Point::new(secs(0), false);
        for at in (30..=300).step_by(30) {
            point.take(report(at, true, 0), &WATCHING);
        }
        point.take_access(SCAN);
        // The kernel took no samples for 15 minutes, as if the machine had been paused.
        point.take(report(1230, true, 0), &WATCHING);
        assert_eq!((point.take_access(SCAN), point.age(secs(1230), SCAN)), (Some(Age(0)), Age(0)));
        // The same between two sessions.
        point.take(report(2400, true, 0), &Watching { since: secs(1230), ..WATCHING });
        assert_eq!(point.take_access(SCAN), Some(Age(0)));
        // An idle page has been idle for as long as it was watched.
        for at in (2430..=3600).step_by(30) {
            point.take(report(at, false, 0), &WATCHING);
        }
        point.take(report(4800, true, 0), &WATCHING);
        assert_eq!(point.take_access(SCAN), Some(Age(10)));
    }

    #[test]
    fn a_new_session_knows_nothing_of_the_time_before_it() {
        let mut point = Point::new(secs(0), false);
        for at in (30..=1200).step_by(30) {
            point.take(report(at, false, 0), &WATCHING);
        }
        let next = Watching { since: secs(1200), ..WATCHING };
        // Its regions begin at age 0, which is no access.
        point.take(report(1290, false, 0), &next);
        point.take(report(1320, false, 1), &next);
        assert_eq!((point.take_access(SCAN), point.age(secs(1320), SCAN)), (None, Age(11)));
        // Reports of the same session are lost: the kernel's age counts.
        point.take(report(1500, false, 1), &next);
        assert_eq!((point.take_access(SCAN), point.age(secs(1500), SCAN)), (Some(Age(12)), Age(0)));
    }

    #[test]
    fn a_page_is_no_older_than_it_was_watched() {
        let mut point = Point::new(secs(600), false);
        point.take(report(590, true, 0), &WATCHING);
        assert_eq!(point.take_access(SCAN), None, "before it joined");
        // The slot's former process had an idle page at this address.
        point.take(report(630, false, 400), &WATCHING);
        point.take(report(720, false, 403), &WATCHING);
        assert_eq!(point.age(secs(720), SCAN), Age(1));
    }
}
