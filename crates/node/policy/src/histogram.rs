//! Age histograms, which trackers measure and controllers read.
//!
//! Trackers count pages at all 256 ages ([`AgeCounts`]); policies, the journal and traces use them folded into the buckets of the
//! thresholds ([`Histogram`]). A cold-age histogram counts pages by their current age (SDFM section 4.4); a promotion histogram counts
//! accesses by the age of the page at the access (SDFM section 4.3).

use serde::{Deserialize, Serialize};

use crate::thresholds::{THRESHOLDS_MAX, Thresholds};
use units::{Age, Pages};

/// Pages at each of the 256 ages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgeCounts(Box<[u64; 256]>);

impl Default for AgeCounts {
    fn default() -> Self {
        Self(Box::new([0; 256]))
    }
}

impl AgeCounts {
    /// Adds `pages` at `age`.
    pub fn add(&mut self, age: Age, pages: Pages) {
        let slot = &mut self.0[usize::from(age.0)];
        *slot = slot.saturating_add(pages.0);
    }

    /// Returns the pages of exactly this age.
    #[must_use]
    pub fn at(&self, age: Age) -> Pages {
        Pages(self.0[usize::from(age.0)])
    }

    /// Returns the pages of this age or older.
    #[must_use]
    pub fn at_least(&self, age: Age) -> Pages {
        self.0[usize::from(age.0)..].iter().map(|&n| Pages(n)).sum()
    }

    /// Returns the number of all pages.
    #[must_use]
    pub fn total(&self) -> Pages {
        self.at_least(Age(0))
    }

    /// Returns the ages that have pages, youngest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Age, Pages)> + '_ {
        (0u8..=255).zip(self.0.iter()).filter(|&(_, &n)| n > 0).map(|(age, &n)| (Age(age), Pages(n)))
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (age, pages) in other.iter() {
            self.add(age, pages);
        }
    }

    /// Returns the counts times `numerator / denominator`, each age rounded such that the sum over all younger ages and itself is:
    /// the total is exact. Empty if `denominator` is zero.
    #[must_use]
    pub fn scaled(&self, numerator: Pages, denominator: Pages) -> Self {
        let mut scaled = Self::default();
        let (mut sum, mut given) = (0u128, 0u64);
        for (age, pages) in self.iter() {
            sum += u128::from(pages.0);
            let until = (sum * u128::from(numerator.0) * 2 + u128::from(denominator.0)).checked_div(u128::from(denominator.0) * 2);
            let until = until.map_or(0, |until| u64::try_from(until).unwrap_or(u64::MAX));
            scaled.add(age, Pages(until - given));
            given = until;
        }
        scaled
    }

    /// Makes every page one scan older; the two oldest ages are merged.
    pub fn grow_older(&mut self) {
        let oldest = self.0[254].saturating_add(self.0[255]);
        self.0.copy_within(0..255, 1);
        self.0[0] = 0;
        self.0[255] = oldest;
    }

    /// Removes up to `pages`, youngest ages first, and returns what was removed.
    pub fn take_youngest(&mut self, pages: Pages) -> Self {
        self.take(pages, 0..=255)
    }

    /// Removes up to `pages`, oldest ages first, and returns what was removed.
    pub fn take_oldest(&mut self, pages: Pages) -> Self {
        self.take(pages, (0..=255).rev())
    }

    fn take(&mut self, pages: Pages, ages: impl Iterator<Item = u8>) -> Self {
        let mut taken = Self::default();
        let mut left = pages.0;
        for age in ages {
            if left == 0 {
                break;
            }
            let slot = &mut self.0[usize::from(age)];
            let now = left.min(*slot);
            *slot -= now;
            left -= now;
            taken.add(Age(age), Pages(now));
        }
        taken
    }

    /// Adds one page for each byte; the byte is its age.
    ///
    /// Runs of equal ages are common, and successive increments of one counter wait for the previous store. Four partial histograms
    /// break this dependency.
    pub fn fold(&mut self, ages: &[u8]) {
        // A partial count must not overflow 32 bits, so the slice is processed in blocks far below 2^32.
        for block in ages.chunks(1 << 30) {
            let mut parts = [[0u32; 256]; 4];
            let mut quads = block.chunks_exact(4);
            for quad in &mut quads {
                parts[0][usize::from(quad[0])] += 1;
                parts[1][usize::from(quad[1])] += 1;
                parts[2][usize::from(quad[2])] += 1;
                parts[3][usize::from(quad[3])] += 1;
            }
            for &age in quads.remainder() {
                parts[0][usize::from(age)] += 1;
            }
            for (age, total) in self.0.iter_mut().enumerate() {
                *total += parts.iter().map(|part| u64::from(part[age])).sum::<u64>();
            }
        }
    }
}

/// Pages by threshold: bucket 0 is younger than every threshold, bucket `i` is at or above threshold `i - 1` and below threshold `i`,
/// the last bucket is at or above the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>", into = "Vec<u64>")]
pub struct Histogram {
    buckets: [u64; THRESHOLDS_MAX + 1],
    len: usize,
}

impl Histogram {
    /// Returns an empty histogram over `thresholds`.
    #[must_use]
    pub fn empty(thresholds: &Thresholds) -> Self {
        Self { buckets: [0; THRESHOLDS_MAX + 1], len: thresholds.len() + 1 }
    }

    /// Folds page counts at every age into the thresholds' buckets.
    #[must_use]
    pub fn from_counts(counts: &AgeCounts, thresholds: &Thresholds) -> Self {
        let mut histogram = Self::empty(thresholds);
        let mut bucket = 0;
        for (age, pages) in counts.iter() {
            while thresholds.get(bucket).is_some_and(|threshold| threshold <= age) {
                bucket += 1;
            }
            histogram.buckets[bucket] = histogram.buckets[bucket].saturating_add(pages.0);
        }
        histogram
    }

    /// Returns the buckets, one more than thresholds.
    #[must_use]
    pub fn buckets(&self) -> &[u64] {
        &self.buckets[..self.len]
    }

    /// Returns the pages younger than every threshold. In a cold-age histogram this is the working set (SDFM section 4.2).
    #[must_use]
    pub fn below_first(&self) -> Pages {
        Pages(self.buckets[0])
    }

    /// Returns the pages at or above threshold `index`; zero past the last.
    #[must_use]
    pub fn at_or_above(&self, index: usize) -> Pages {
        self.buckets().iter().skip(index + 1).map(|&n| Pages(n)).sum()
    }

    /// Whether this histogram has the buckets of a set of this size.
    #[must_use]
    pub fn fits(&self, thresholds: &Thresholds) -> bool {
        self.len == thresholds.len() + 1
    }

    /// Adds the counts of `other`, which must have the same thresholds.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(other.buckets) {
            *mine = mine.saturating_add(theirs);
        }
    }
}

/// A number of buckets that no set of thresholds has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketCountError(usize);

impl std::fmt::Display for BucketCountError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a histogram of {} buckets; there must be 3 to {}", self.0, THRESHOLDS_MAX + 1)
    }
}

impl std::error::Error for BucketCountError {}

impl TryFrom<Vec<u64>> for Histogram {
    type Error = BucketCountError;

    fn try_from(list: Vec<u64>) -> Result<Self, BucketCountError> {
        if !(3..=THRESHOLDS_MAX + 1).contains(&list.len()) {
            return Err(BucketCountError(list.len()));
        }
        let mut buckets = [0; THRESHOLDS_MAX + 1];
        buckets[..list.len()].copy_from_slice(&list);
        Ok(Self { buckets, len: list.len() })
    }
}

impl From<Histogram> for Vec<u64> {
    fn from(histogram: Histogram) -> Self {
        histogram.buckets().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(pairs: &[(u8, u64)]) -> AgeCounts {
        let mut counts = AgeCounts::default();
        for &(age, n) in pairs {
            counts.add(Age(age), Pages(n));
        }
        counts
    }

    #[test]
    fn scaled_counts_keep_the_total_and_the_shape() {
        let sample = counts(&[(0, 1), (3, 1), (9, 1)]);
        assert_eq!(sample.scaled(Pages(100), Pages(3)), counts(&[(0, 33), (3, 34), (9, 33)]));
        assert_eq!(sample.scaled(Pages(1), Pages(3)).total(), Pages(1));
        assert_eq!(sample.scaled(Pages(u64::MAX), Pages(3)).total(), Pages(u64::MAX));
        assert_eq!(sample.scaled(Pages(5), Pages(0)), counts(&[]));
    }

    #[test]
    fn folds_into_the_bucket_below_each_threshold() {
        let set = Thresholds::try_from(vec![1, 4, 10]).unwrap();
        let folded = Histogram::from_counts(&counts(&[(0, 5), (1, 7), (3, 1), (4, 2), (9, 3), (10, 11), (255, 13)]), &set);
        assert_eq!(folded.buckets(), [5, 8, 5, 24]);
        assert_eq!(folded.below_first(), Pages(5));
        let suffixes: Vec<_> = (0..4).map(|i| folded.at_or_above(i).0).collect();
        assert_eq!(suffixes, [37, 29, 24, 0]);
    }

    #[test]
    fn growing_older_loses_no_page() {
        let mut pages = counts(&[(0, 3), (254, 5), (255, 7)]);
        pages.grow_older();
        assert_eq!(pages, counts(&[(1, 3), (255, 12)]));
    }

    #[test]
    fn promotions_leave_from_the_young_end() {
        let mut far = counts(&[(2, 3), (9, 5)]);
        assert_eq!(far.take_youngest(Pages(4)), counts(&[(2, 3), (9, 1)]));
        assert_eq!(far, counts(&[(9, 4)]));
        assert_eq!(far.take_youngest(Pages(10)), counts(&[(9, 4)]));
        assert_eq!(far.total(), Pages(0));
        let mut near = counts(&[(2, 3), (9, 5)]);
        assert_eq!(near.take_oldest(Pages(6)), counts(&[(2, 1), (9, 5)]));
        assert_eq!(near, counts(&[(2, 2)]));
    }

    #[test]
    fn invalid_bucket_counts_are_refused() {
        let parse = |text: &str| serde_json::from_str::<Histogram>(text).is_ok();
        assert!(parse("[1,2,3]"));
        for bad in ["[]", "[1,2]", "[1,-2,3]", "[1.5,2,3]"] {
            assert!(!parse(bad), "{bad}");
        }
        assert!(!parse(&format!("{:?}", vec![0; 66])));
    }

    proptest! {
        #[test]
        fn bytes_fold_into_the_same_counts_as_one_by_one(ages in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let mut folded = AgeCounts::default();
            folded.fold(&ages);
            let mut single = AgeCounts::default();
            for &age in &ages {
                single.add(Age(age), Pages(1));
            }
            prop_assert_eq!(folded, single);
        }

        #[test]
        fn folding_conserves_pages_and_suffix_sums(ages in proptest::collection::vec((any::<u8>(), 0u64..1 << 40), 0..300), n in 2usize..=64) {
            let set = Thresholds::log_spaced(n).unwrap();
            let pages = counts(&ages);
            let folded = Histogram::from_counts(&pages, &set);
            prop_assert_eq!(folded.buckets().iter().sum::<u64>(), pages.total().0);
            for (i, &threshold) in set.as_slice().iter().enumerate() {
                prop_assert_eq!(folded.at_or_above(i), pages.at_least(threshold));
            }
        }
    }
}
