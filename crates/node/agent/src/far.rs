//! The ages of each job's pages in far memory.
//!
//! A tracker of physical pages loses a page that is swapped out: the frame is freed, and the age with it. The ledger keeps ages as
//! counts: pages enter at the age at which they were offloaded, grow older with every scan, and leave when the kernel's swap-in
//! counters increase.
//!
//! The counters do not show *which* pages were promoted. The youngest are assumed: the younger a page, the more likely it is
//! accessed. If that is wrong, the error is small, because a higher threshold does not promote pages; it only limits the next
//! offload. The kernel's totals have precedence: the ledger is reconciled with them at every scan.

use policy::histogram::AgeCounts;
use serde::{Deserialize, Serialize};
use units::{Age, Pages};

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
