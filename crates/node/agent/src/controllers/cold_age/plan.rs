//! What a decision by age makes cold.

use units::{Age, Bytes, Pages};

use crate::actuators::exact::Cursor;
use crate::job::Job;

/// The size of a plan's first request.
const FIRST: Bytes = Bytes::mib(1);

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
}

impl Plan {
    /// All pages of the last scan that are old enough; `None` if there are none.
    pub(super) fn new(job: &Job, threshold: Age) -> Option<Self> {
        let left = job.scan.as_ref().map_or(Pages::ZERO, |scan| scan.resident.at_least(threshold));
        let step = FIRST.to_pages(kernel::page_size());
        (left > Pages::ZERO).then(|| Self { threshold, left, step, cursor: Cursor::new(&job.pids) })
    }

    /// Takes in what a request for `asked` took, of which `swapped` was meant.
    pub(super) fn took(&mut self, asked: Pages, swapped: Pages, file: Pages) {
        self.left = self.left - asked.max(swapped);
        let meant = swapped.0 <= asked.0.saturating_mul(2) && file.0 <= asked.0 / OTHERS_PART;
        self.step = if meant { Pages(self.step.0.saturating_mul(GROWTH)) } else { FIRST.to_pages(kernel::page_size()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_grow_while_they_take_what_was_meant() {
        let first = FIRST.to_pages(kernel::page_size());
        let mut plan = Plan { threshold: Age(1), left: Pages(100_000), step: first, cursor: Cursor::new(&[]) };
        plan.took(first, first, Pages::ZERO);
        assert_eq!((plan.left, plan.step), (Pages(100_000) - first, Pages(first.0 * 4)));
        plan.took(plan.step, Pages(plan.step.0 + 64), Pages(3));
        assert_eq!(plan.step, Pages(first.0 * 16));
        let left = plan.left;
        plan.took(plan.step, plan.step, Pages(plan.step.0 / 8));
        assert_eq!((left - plan.left, plan.step), (Pages(first.0 * 16), first), "page cache too");
        plan.took(plan.step, Pages(41_000), Pages::ZERO);
        assert_eq!((left - plan.left, plan.step), (Pages(first.0 * 16 + 41_000), first), "a whole generation is under way to a device");
        plan.took(plan.step, Pages(1 << 40), Pages::ZERO);
        assert_eq!(plan.left, Pages::ZERO);
    }
}
