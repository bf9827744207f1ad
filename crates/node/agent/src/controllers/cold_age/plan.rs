//! What a decision by age makes cold.

use units::{Age, Bytes, Pages};

use crate::actuators::exact::Cursor;

/// The size of a plan's first request.
pub(super) const FIRST: Bytes = Bytes::mib(1);

/// How much larger the next request is after one that took what was meant.
const GROWTH: u64 = 4;

/// A request takes what was meant if page cache is less than this part of it.
const OTHERS_PART: u64 = 16;

/// Pages to offload until the next decision.
///
/// # Request sizes
/// The kernel counts a page as reclaimed when it is free. Pages that are being written to a device are not, so it goes on to the end
/// of their generation, then takes page cache up to the size of the request: 40 MiB asked for took 160 MiB of anonymous memory and 4
/// to 43 MiB of page cache (scenario `never_the_cause`, memory that does not compress). How memory is stored is known afterwards:
/// requests begin small and grow while they take what was meant.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The age from which pages are offloaded.
    pub threshold: Age,
    /// Pages left to ask for.
    pub left: Pages,
    /// The most to ask for in the next request.
    pub step: Pages,
    /// How far the exact actuator has come.
    pub cursor: Cursor,
    /// Cold pages at the last scan.
    cold: Pages,
    /// Of these, pages that the exact actuator has found.
    found: Pages,
    /// Whether the rest is asked of the kernel's lists.
    pub by_lists: bool,
}

impl Plan {
    /// All `cold` pages of the last scan, `most` at most; `None` if there are none. Without such a bound also `unmapped` pages that no
    /// scan counts: whatever is as old may go out then, so that asking for more takes nothing else.
    pub(super) fn new(cold: Pages, threshold: Age, most: Option<Pages>, unmapped: Pages) -> Option<Self> {
        let left = most.map_or(cold + unmapped, |most| cold.min(most));
        let step = FIRST.to_pages(kernel::page_size());
        let plan = || Self { threshold, left, step, cursor: Cursor::default(), cold: left, found: Pages::ZERO, by_lists: false };
        (left > Pages::ZERO).then(plan)
    }

    /// Takes in what the exact actuator found.
    pub(super) fn found(&mut self, pages: Pages) {
        self.found += pages;
    }

    /// Continues with the cold pages that the exact actuator cannot move: those that several processes map, and shared memory that
    /// none maps. Returns whether there are any, and `lists` may be asked. `cached` are the job's pages in the swap cache: no process
    /// maps them either, but they have been asked for, and zswap refused them, or a device is writing them. Each further request would
    /// compress them in vain.
    pub(super) fn turn_to_lists(&mut self, lists: &mut Lists, cached: Pages) -> bool {
        let elsewhere = self.cold - self.found - cached;
        let step = FIRST.to_pages(kernel::page_size());
        if self.by_lists || elsewhere < step || !lists.may_be_asked(elsewhere) {
            return false;
        }
        (self.by_lists, self.left, self.step) = (true, elsewhere, step);
        true
    }

    /// Takes in what a request for `asked` took, of which `swapped` was meant.
    pub(super) fn took(&mut self, asked: Pages, swapped: Pages, file: Pages) {
        self.left = self.left - asked.max(swapped);
        let meant = swapped.0 <= asked.0.saturating_mul(2) && file.0 <= asked.0 / OTHERS_PART;
        // One that took little shows nothing: the kernel may be about to turn to page cache.
        let grow = swapped.0 >= asked.0 / 2;
        self.step = match (meant, grow) {
            (false, _) => FIRST.to_pages(kernel::page_size()),
            (true, true) => Pages(self.step.0.saturating_mul(GROWTH)),
            (true, false) => self.step,
        };
    }
}

/// Whether the kernel's lists give the pages that the exact actuator cannot move.
///
/// `memory.reclaim` takes the pages that it finds coldest, which may be others, or none: pages that zswap has refused stay, and each
/// request compresses them once more. What it took is compared with how many of the cold pages have gone at the next plan: unless that
/// is half of it, or if it took nothing, the lists are not asked for some plans, at each failure for twice as many.
///
/// Where the oldest generation has too few pages, one is opened in place of a request ([`crate::actuators::lru::evict_oldest`]). That is
/// no failure, until as many were opened as the kernel has: what was not accessed is in the oldest one then.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lists {
    /// Cold pages that the exact actuator could not move, at the last plan.
    before: Pages,
    /// Pages taken since; `None` if the lists were not asked.
    taken: Option<Pages>,
    /// Generations opened since, in a row.
    opened: u32,
    /// Failures in a row.
    failures: u32,
    /// Plans to wait for.
    wait: u32,
}

/// The wait is doubled this often at most: to 64 plans.
const FAILURES_MAX: u32 = 6;

/// The kernel's generations (`MAX_NR_GENS`).
const GENERATIONS: u32 = 4;

impl Lists {
    fn may_be_asked(&mut self, elsewhere: Pages) -> bool {
        if self.wait > 0 {
            self.wait -= 1;
            return false;
        }
        if let Some(taken) = self.taken.take() {
            let failed = taken == Pages::ZERO || self.before - elsewhere < Pages(taken.0 / 2);
            self.failures = if failed { (self.failures + 1).min(FAILURES_MAX) } else { 0 };
            if failed {
                self.wait = (1 << self.failures) - 1;
                return false;
            }
        }
        self.before = elsewhere;
        true
    }

    /// Takes in that a generation was opened in place of a request.
    pub(super) fn opened(&mut self) {
        self.opened += 1;
        if self.opened >= GENERATIONS {
            self.took(Pages::ZERO);
        }
    }

    /// Takes in what a request took.
    pub(super) fn took(&mut self, pages: Pages) {
        self.opened = 0;
        *self.taken.get_or_insert_default() += pages;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(left: u64) -> Plan {
        let step = FIRST.to_pages(kernel::page_size());
        let (cold, found) = (Pages(left), Pages::ZERO);
        Plan { threshold: Age(1), left: cold, step, cursor: Cursor::default(), cold, found, by_lists: false }
    }

    #[test]
    fn the_lists_are_asked_for_what_the_exact_actuator_did_not_find() {
        let mut lists = Lists::default();
        let mut first = plan(10_000);
        first.found(Pages(4_000));
        first.took(Pages(3_900), Pages(3_900), Pages::ZERO);
        assert!(first.turn_to_lists(&mut lists, Pages::ZERO));
        assert_eq!((first.left, first.by_lists), (Pages(6_000), true));
        assert!(!first.turn_to_lists(&mut lists, Pages::ZERO), "once in a plan");
        let mut all = plan(10_000);
        all.found(Pages(9_990));
        assert!(!all.turn_to_lists(&mut lists, Pages::ZERO), "less than a request");
        let mut refused = plan(10_000);
        refused.found(Pages(4_000));
        assert!(!refused.turn_to_lists(&mut lists, Pages(5_900)), "they are in the swap cache");
        assert!(refused.turn_to_lists(&mut lists, Pages(3_000)) && refused.left == Pages(3_000));
    }

    #[test]
    fn lists_that_give_other_pages_are_left_alone_for_longer_each_time() {
        let mut lists = Lists::default();
        assert!(lists.may_be_asked(Pages(6_000)));
        lists.took(Pages(5_000));
        assert!(lists.may_be_asked(Pages(2_000)), "4000 of 5000 were meant");
        for wait in [1, 3, 7, 15, 31, 63, 63] {
            lists.took(Pages(1_000));
            assert!(!lists.may_be_asked(Pages(2_000)), "none of 1000 was meant");
            assert_eq!((0..wait).filter(|_| lists.may_be_asked(Pages(2_000))).count(), 0);
            assert!(lists.may_be_asked(Pages(2_000)), "after {wait} plans");
        }
        lists.took(Pages(1_000));
        assert!(lists.may_be_asked(Pages(1_400)), "600 of 1000");
        lists.took(Pages(1_000));
        assert!(!lists.may_be_asked(Pages(1_400)));
        assert!(!lists.may_be_asked(Pages(1_400)));
        assert!(lists.may_be_asked(Pages(1_400)), "the wait is short again");
        lists.took(Pages::ZERO);
        assert!(!lists.may_be_asked(Pages(1_400)), "nothing came");
    }

    #[test]
    fn generations_are_opened_before_the_lists_are_left_alone() {
        let mut lists = Lists::default();
        for _ in 0..4 {
            assert!(lists.may_be_asked(Pages(2_000)));
            lists.opened();
        }
        assert!(!lists.may_be_asked(Pages(2_000)), "four generations, and nothing is in the oldest one");
        let mut lists = Lists::default();
        for _ in 0..3 {
            assert!(lists.may_be_asked(Pages(2_000)));
            lists.opened();
        }
        assert!(lists.may_be_asked(Pages(2_000)));
        lists.took(Pages(1_500));
        assert!(lists.may_be_asked(Pages(500)), "what was opened before counts no more");
        lists.opened();
        assert!(lists.may_be_asked(Pages(500)));
    }

    #[test]
    fn what_no_process_maps_goes_out_with_all_that_is_as_old() {
        let left = |cold, most, unmapped| Plan::new(Pages(cold), Age(3), most, Pages(unmapped)).map(|plan| plan.left);
        assert_eq!(left(100, None, 40), Some(Pages(140)));
        assert_eq!(left(0, None, 40), Some(Pages(40)), "a sample of mapped pages counts none of it");
        assert_eq!(left(100, Some(Pages(30)), 40), Some(Pages(30)), "in place of it others might go, which are too many");
        assert_eq!(left(0, Some(Pages(30)), 40), None);
        assert_eq!(left(0, None, 0), None);
    }

    #[test]
    fn requests_grow_while_they_take_what_was_meant() {
        let first = FIRST.to_pages(kernel::page_size());
        let mut plan = plan(100_000);
        plan.took(first, first, Pages::ZERO);
        assert_eq!((plan.left, plan.step), (Pages(100_000) - first, Pages(first.0 * 4)));
        plan.took(plan.step, Pages(plan.step.0 + 64), Pages(3));
        assert_eq!(plan.step, Pages(first.0 * 16));
        plan.took(Pages(900), Pages(300), Pages(3));
        assert_eq!(plan.step, Pages(first.0 * 16), "little came: it does not grow");
        let left = plan.left;
        plan.took(plan.step, plan.step, Pages(plan.step.0 / 8));
        assert_eq!((left - plan.left, plan.step), (Pages(first.0 * 16), first), "page cache too");
        plan.took(plan.step, Pages(41_000), Pages::ZERO);
        assert_eq!((left - plan.left, plan.step), (Pages(first.0 * 16 + 41_000), first), "a whole generation is under way to a device");
        plan.took(plan.step, Pages(1 << 40), Pages::ZERO);
        assert_eq!(plan.left, Pages::ZERO);
    }
}
