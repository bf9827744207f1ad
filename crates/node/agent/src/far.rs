//! The ages of each job's pages in far memory.
//!
//! A tracker of physical pages loses a page that is swapped out: the frame is freed, and the age with it. The ledger keeps ages as
//! counts: pages enter at the age at which they were offloaded, grow older with every scan, and leave when the kernel's swap-in
//! counters increase.
//!
//! The counters do not show *which* pages were promoted. The youngest are assumed: the younger a page, the more likely it is
//! accessed. If that is wrong, the error is small, because a higher threshold does not promote pages; it only limits the next
//! offload. The kernel's totals have precedence: the ledger is reconciled with them at every scan. Where the tracker watches a sample
//! of pages, whether resident or not, the ages of that sample replace these assumptions.

use policy::histogram::AgeCounts;
use serde::{Deserialize, Serialize};
use units::{Age, Pages};

/// The fewest sampled pages from which ages in far memory are estimated.
const POINTS_MIN: Pages = Pages(32);

/// Ages of one job's far pages. Serialized as the ages that have pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(Age, Pages)>", into = "Vec<(Age, Pages)>")]
pub struct FarAges {
    counts: AgeCounts,
}

impl From<Vec<(Age, Pages)>> for FarAges {
    fn from(list: Vec<(Age, Pages)>) -> Self {
        let mut far = Self::default();
        for (age, pages) in list {
            far.offloaded(age, pages);
        }
        far
    }
}

impl From<FarAges> for Vec<(Age, Pages)> {
    fn from(far: FarAges) -> Self {
        far.counts.iter().collect()
    }
}

impl FarAges {
    /// Pages by age.
    #[must_use]
    pub fn counts(&self) -> &AgeCounts {
        &self.counts
    }

    /// `pages` of `age` went out.
    pub fn offloaded(&mut self, age: Age, pages: Pages) {
        self.counts.add(age, pages);
    }

    /// A scan has passed.
    pub fn grow_older(&mut self) {
        self.counts.grow_older();
    }

    /// Removes promoted pages; returns them by the age at which they were accessed.
    pub fn promoted(&mut self, pages: Pages) -> AgeCounts {
        self.counts.take_youngest(pages)
    }

    /// Replaces the ages by those of a sample, and keeps the total: a tracker that sees pages in far memory knows their ages.
    /// A sample of few pages says less than what the ledger remembers, and changes nothing.
    pub fn resemble(&mut self, sample: &AgeCounts) {
        let points = sample.total();
        if points >= POINTS_MIN {
            self.counts = sample.scaled(self.counts.total(), points);
        }
    }

    /// Reconciles the total with the kernel's.
    ///
    /// Pages unknown to the ledger (swapped out by the kernel under pressure, or before the agent started) enter at `unknown_age`;
    /// of pages that no longer exist (freed, unmapped), the youngest leave.
    pub fn reconcile(&mut self, total: Pages, unknown_age: Age) {
        let mine = self.counts.total();
        if total > mine {
            self.counts.add(unknown_age, total - mine);
        } else {
            self.counts.take_youngest(mine - total);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_enough_sample_gives_the_ages() {
        let mut far = FarAges::default();
        far.offloaded(Age(3), Pages(640));
        let mut sample = AgeCounts::default();
        sample.add(Age(5), Pages(8));
        sample.add(Age(70), Pages(23));
        far.resemble(&sample);
        assert_eq!(far.counts().at(Age(3)), Pages(640), "31 points are too few");
        sample.add(Age(70), Pages(1));
        far.resemble(&sample);
        assert_eq!((far.counts().at(Age(5)), far.counts().at(Age(70))), (Pages(160), Pages(480)));
    }

    #[test]
    fn the_kernels_total_has_precedence() {
        let mut far = FarAges::default();
        far.offloaded(Age(10), Pages(100));
        far.grow_older();
        assert_eq!(far.counts().at(Age(11)), Pages(100));
        far.reconcile(Pages(130), Age(1));
        assert_eq!((far.counts().at(Age(1)), far.counts().at(Age(11))), (Pages(30), Pages(100)));
        assert_eq!(far.promoted(Pages(40)).at_least(Age(11)), Pages(10));
        far.reconcile(Pages(50), Age(1));
        assert_eq!(far.counts().total(), Pages(50));
        far.reconcile(Pages(0), Age(1));
        assert_eq!(far.counts().total(), Pages(0));
    }
}
