//! Page ages as the agent's trackers report them: of all pages, or of a sample.
//!
//! An age is a number of scans. A page that was accessed since the last scan has age 0, and each scan without an access adds one.

use policy::cold_age::Sample;
use policy::histogram::AgeCounts;
use units::{Age, Pages, RatioPpm};

use crate::kernel::Place;
use crate::trace::Kind;
use crate::view::View;

/// Pages by age at a scan, and the accesses before it.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Resident anonymous pages; of a sample, scaled to all of them.
    pub resident: AgeCounts,
    /// Far anonymous pages.
    pub far: AgeCounts,
    /// Resident page cache; empty if it is not tracked.
    pub file: AgeCounts,
    /// Accesses to anonymous pages since the scan before, by the age that they had.
    pub accesses: AgeCounts,
    /// Those among them that were returns from far memory.
    pub returned: AgeCounts,
    /// The sample that resident pages and accesses were estimated from; `None` if all were counted.
    pub sample: Option<Sample>,
    /// Mean compressed size of the cold resident anonymous pages; `None` if there are none.
    pub compressed: Option<RatioPpm>,
}

/// A tracker.
#[derive(Clone, Debug)]
pub struct Ages {
    scan_intervals: u32,
    /// One in so many groups is tracked; 1 is all of them, and page cache too.
    one_in: u32,
    seed: u64,
    accesses: Groups,
    returned: Groups,
}

/// A hash of a group's number, which a step of SplitMix64 mixes.
pub(super) fn mixed(group: u32, seed: u64) -> u64 {
    let mut mixed = (u64::from(group) ^ seed.rotate_left(32)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Groups by age, while they are gone through one by one.
#[derive(Clone, Debug)]
struct Groups([u64; 256]);

impl Default for Groups {
    fn default() -> Self {
        Self([0; 256])
    }
}

impl Groups {
    fn add(&mut self, age: Age) {
        self.0[usize::from(age.0)] += 1;
    }

    /// The same in pages.
    fn pages(&self, view: &View<'_>) -> AgeCounts {
        let mut counts = AgeCounts::default();
        for (age, &groups) in (0u8..=255).zip(&self.0) {
            counts.add(Age(age), view.pages(groups));
        }
        counts
    }
}

impl Ages {
    /// A tracker that scans every `scan_ms`, of one in `one_in` groups.
    #[must_use]
    pub fn new(scan_ms: u64, interval_ms: u64, one_in: u32, seed: u64) -> Self {
        let scan_intervals = u32::try_from(scan_ms / interval_ms.max(1)).unwrap_or(u32::MAX).max(1);
        Self { scan_intervals, one_in: one_in.max(1), seed, accesses: Groups::default(), returned: Groups::default() }
    }

    /// Whether all pages are tracked, page cache included.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.one_in == 1
    }

    /// Whether a group is tracked.
    fn tracks(&self, group: u32) -> bool {
        if self.is_exact() {
            return true;
        }
        mixed(group, self.seed).is_multiple_of(u64::from(self.one_in))
    }

    /// The age of a group that exists.
    #[must_use]
    pub fn age_of(&self, view: &View<'_>, group: u32) -> Option<Age> {
        Some(self.age(view.interval(), view.last_access(group)?))
    }

    /// The age that a group had at an access in this interval, if the one before was in interval `before`. The scan that is in
    /// progress has not counted the group yet.
    #[must_use]
    pub fn age_before(&self, view: &View<'_>, before: u32) -> Age {
        self.age(view.interval().saturating_sub(1), before)
    }

    /// Whether this interval and an earlier one are of the same scan.
    #[must_use]
    pub fn is_same_scan(&self, view: &View<'_>, before: u32) -> bool {
        before / self.scan_intervals == view.interval() / self.scan_intervals
    }

    /// Whether a scan ends with this interval.
    #[must_use]
    pub fn is_scan(&self, view: &View<'_>) -> bool {
        (view.interval() + 1).is_multiple_of(self.scan_intervals)
    }

    /// The age at the end of interval `now` of a page that was last accessed in interval `last`.
    fn age(&self, now: u32, last: u32) -> Age {
        let scans = (now + 1) / self.scan_intervals;
        Age(u8::try_from(scans.saturating_sub(last / self.scan_intervals + 1)).unwrap_or(u8::MAX))
    }

    /// Takes in an interval. Returns the result of a scan if one ends with it.
    pub fn observe(&mut self, view: &View<'_>) -> Option<Scan> {
        for touch in view.touches().iter().filter(|touch| view.kind(touch.group) == Kind::Anon) {
            let Some(before) = touch.before else { continue };
            let age = self.age_before(view, before);
            if touch.from.is_far() {
                self.returned.add(age);
            } else if self.tracks(touch.group) {
                self.accesses.add(age);
            }
        }
        self.is_scan(view).then(|| self.scan(view))
    }

    fn scan(&mut self, view: &View<'_>) -> Scan {
        let (mut resident, mut far, mut file, mut total) = (Groups::default(), Groups::default(), Groups::default(), 0);
        let (mut cold, mut cold_compressed) = (0u64, 0u64);
        for group in 0..view.groups() {
            let Some(last) = view.last_access(group) else { continue };
            let age = self.age(view.interval(), last);
            match (view.kind(group), view.place(group)) {
                (Kind::Anon, Place::Resident) => {
                    total += 1;
                    if age > Age(0) {
                        cold += 1;
                        cold_compressed += u64::from(view.compressed(group).0);
                    }
                    if self.tracks(group) {
                        resident.add(age);
                    }
                }
                (Kind::Anon, _) => far.add(age),
                (Kind::File, Place::Resident) if self.is_exact() => file.add(age),
                (Kind::File, _) => {}
            }
        }
        let mut scan = Scan { resident: resident.pages(view), far: far.pages(view), file: file.pages(view), ..Scan::default() };
        scan.compressed = cold_compressed.checked_div(cold).and_then(|mean| u32::try_from(mean).ok()).map(RatioPpm);
        let mut accesses = std::mem::take(&mut self.accesses).pages(view);
        if !self.is_exact() {
            let (of, pages) = (view.pages(total), scan.resident.total());
            scan.sample = Some(Sample { pages, of });
            accesses = accesses.scaled(of, pages);
            scan.resident = scan.resident.scaled(of, pages);
        }
        scan.returned = std::mem::take(&mut self.returned).pages(view);
        accesses.merge(&scan.returned);
        scan.accesses = accesses;
        scan
    }

    /// Resident anonymous groups of at least this age, `most` pages at most, in the order of their numbers.
    #[must_use]
    pub fn old(&self, view: &View<'_>, threshold: Age, most: Pages) -> Vec<u32> {
        // By [`Self::age`]: the scan of the last access was so many scans ago.
        let scans = (view.interval() + 1) / self.scan_intervals;
        let before = scans.saturating_sub(u32::from(threshold.0)) * self.scan_intervals;
        let is_old = |group: &u32| {
            view.last_access(*group).is_some_and(|last| last < before)
                && view.kind(*group) == Kind::Anon
                && view.place(*group) == Place::Resident
        };
        let groups = usize::try_from(most.0.div_ceil(view.group_pages())).unwrap_or(usize::MAX);
        (0..view.groups()).filter(is_old).take(groups).collect()
    }
}
