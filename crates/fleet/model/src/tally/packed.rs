//! The serialized form of a tally. Most bins of most pairs are empty, and a value for a range of percentiles appears
//! only at its start and its end, so few positions are not zero.

use serde::{Deserialize, Serialize};

use super::{Base, Counts, Sums, Tally};
use crate::grid::{Grid, PAIRS_MAX};
use crate::rates::BINS;

/// Upper bound of the page-milliseconds of a fleet: sums of this many such values do not overflow.
pub(crate) const PAGE_MS_MAX: u128 = 1 << 100;
/// Upper bound of the entries of a fleet.
pub(crate) const COUNT_MAX: u64 = 1 << 50;

/// Values at ascending positions: the number of zeros before the value, and the value.
type Sparse<T> = Vec<(u32, T)>;

/// See the module. Sums and bins are stored as signed differences.
#[derive(Serialize, Deserialize)]
pub(super) struct PackedTally {
    base: Base,
    pairs: u32,
    warmups: u32,
    sums: Sparse<[i128; 4]>,
    bins: Sparse<i64>,
}

/// Packs values that are not zero, at ascending positions.
fn sparse<T>(values: impl Iterator<Item = (usize, T)>) -> Sparse<T> {
    let mut next = 0;
    let packed = values.map(|(at, value)| {
        let gap = u32::try_from(at - next).unwrap_or(u32::MAX);
        next = at + 1;
        (gap, value)
    });
    packed.collect()
}

/// Calls `put` with each value at its position below `len`; returns `false` if a position does not exist.
fn spread<T: Copy>(kept: &[(u32, T)], len: usize, mut put: impl FnMut(usize, T)) -> bool {
    let mut next = 0usize;
    kept.iter().all(|&(gap, value)| {
        let at = next.saturating_add(gap as usize);
        next = at.saturating_add(1);
        if at < len {
            put(at, value);
        }
        at < len
    })
}

impl From<Tally> for PackedTally {
    fn from(tally: Tally) -> Self {
        let signed = |sums: &Sums| [sums.stored_page_ms, sums.pool_page_ms, sums.promotions, sums.unresolved].map(u128::cast_signed);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            base: tally.base,
            pairs: count(tally.sums.len()),
            warmups: count(tally.warmups),
            sums: sparse(tally.sums.iter().map(signed).enumerate().filter(|&(_, sums)| sums != [0; 4])),
            bins: sparse(tally.counts.sparse().map(|(at, count)| (at, count.cast_signed()))),
        }
    }
}

impl TryFrom<PackedTally> for Tally {
    type Error = &'static str;

    fn try_from(packed: PackedTally) -> Result<Self, &'static str> {
        let (pairs, warmups) = (packed.pairs as usize, packed.warmups as usize);
        if pairs > PAIRS_MAX || warmups == 0 || !pairs.is_multiple_of(warmups) {
            return Err("a tally of no grid");
        }
        let mut tally = Self { base: packed.base, warmups, sums: vec![Sums::default(); pairs], counts: Counts::new(pairs) };
        let fits = spread(&packed.sums, pairs, |at, sums| {
            let [stored_page_ms, pool_page_ms, promotions, unresolved] = sums.map(i128::cast_unsigned);
            tally.sums[at] = Sums { stored_page_ms, pool_page_ms, promotions, unresolved };
        });
        let fits = fits && spread(&packed.bins, pairs * BINS, |at, count| tally.counts.add(at / BINS, at % BINS, count.cast_unsigned()));
        if fits { Ok(tally) } else { Err("sums of pairs that the grid does not have") }
    }
}

impl Tally {
    /// Returns whether these can be the sums of a fleet over `grid`, so that totals do not overflow.
    pub(crate) fn is_sound(&self, grid: &Grid) -> bool {
        let base = &self.base;
        let counts = [base.jobs, base.jobs_assumed, base.entries];
        let sums = [base.used_page_ms, base.cold_page_ms, base.cold_accesses, base.sampled.page_ms, base.sampled.sampled_page_ms];
        if self.sums.len() != grid.pairs() || self.warmups != grid.warmups().len() {
            return false;
        }
        if counts.iter().any(|&n| n > COUNT_MAX) || sums.iter().any(|&n| n > PAGE_MS_MAX) {
            return false;
        }
        let possible = |&Sums { stored_page_ms, pool_page_ms, promotions, unresolved }: &Sums| {
            let in_order = pool_page_ms <= stored_page_ms && stored_page_ms <= base.cold_page_ms && promotions <= base.cold_accesses;
            in_order && unresolved <= u128::from(base.entries)
        };
        let mut whole = self.clone();
        whole.accumulate();
        // Bins are at most the number of entries, so their sum did not overflow either.
        whole.sums.iter().all(possible)
            && self.counts.each(self.warmups, |_, counts| counts.at_most(base.entries) && counts.total() <= base.entries)
    }
}
