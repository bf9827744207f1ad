//! The serialized form of a tally. Most bins of most pairs are empty, and a value for a range of percentiles appears
//! only at its start and its end, so few positions are not zero.

use serde::{Deserialize, Serialize};

use super::{Base, Sums, Tally, Total};
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

fn sparse<T: PartialEq + Default>(values: impl Iterator<Item = T>) -> Sparse<T> {
    let mut gap = 0;
    let mut kept = Vec::new();
    for value in values {
        if value == T::default() {
            gap += 1;
        } else {
            kept.push((gap, value));
            gap = 0;
        }
    }
    kept
}

/// Restores values to their positions; returns `false` if a position does not exist.
fn spread<T: Copy, U>(kept: &[(u32, T)], places: &mut [U], put: impl Fn(T) -> U) -> bool {
    let mut next = 0usize;
    kept.iter().all(|&(gap, value)| {
        next = next.saturating_add(gap as usize);
        let place = places.get_mut(next);
        next = next.saturating_add(1);
        place.map(|place| *place = put(value)).is_some()
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
            sums: sparse(tally.sums.iter().map(signed)),
            bins: sparse(tally.bins.iter().map(|n| n.cast_signed())),
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
        let mut tally = Self { base: packed.base, warmups, sums: vec![Sums::default(); pairs], bins: vec![0; pairs * BINS] };
        let sums = |sums: [i128; 4]| {
            let [stored_page_ms, pool_page_ms, promotions, unresolved] = sums.map(i128::cast_unsigned);
            Sums { stored_page_ms, pool_page_ms, promotions, unresolved }
        };
        let fits = spread(&packed.sums, &mut tally.sums, sums) && spread(&packed.bins, &mut tally.bins, i64::cast_unsigned);
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
        let possible = |total: &Total| {
            let Sums { stored_page_ms, pool_page_ms, promotions, unresolved } = total.sums;
            let in_order = pool_page_ms <= stored_page_ms && stored_page_ms <= base.cold_page_ms && promotions <= base.cold_accesses;
            // Bins are at most the number of entries, so their sum did not overflow either.
            in_order
                && unresolved <= u128::from(base.entries)
                && total.bins.iter().all(|&n| n <= base.entries)
                && total.entries_on <= base.entries
        };
        self.clone().finish(grid).iter().all(possible)
    }
}
