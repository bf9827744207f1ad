//! Promotion rates, counted in bins.
//!
//! A percentile of a fleet's rates cannot be computed from the percentiles of its parts, but from counts in fixed bins.
//! A bin is narrow (1/128 of its octave, at most 0.8 %), and a percentile is reported as the upper edge of its bin: a
//! limit that holds for the reported value holds for every rate in the bin.

use units::{Millis, RatioPpm};

/// Leading bits of a rate's mantissa that select its bin.
const MANTISSA_BITS: u32 = 7;
/// Bits of an `f64` below those that select the bin.
const SHIFT: u32 = f64::MANTISSA_DIGITS - 1 - MANTISSA_BITS;
/// Rates at or below 2^-20 per minute (0.0001 %/min) are one bin: a two-thousandth of the usual objective.
const LOWEST: f64 = 1.0 / (1 << 20) as f64;
/// Bin index of [`LOWEST`], from its bits.
const OFFSET: u64 = LOWEST.to_bits() >> SHIFT;
/// Twenty octaves, up to the whole working set each minute.
const OCTAVES: usize = 20;

/// Number of bins: one below the octaves, those of the octaves, one above.
pub const BINS: usize = (OCTAVES << MANTISSA_BITS) + 2;

/// Returns the bin of `promotions` in `window`, as a share of a working set, per minute.
///
/// Both products are exact in an `f64` below 2^53; one division follows, which IEEE 754 rounds the same way everywhere.
/// All machines therefore find the same bin. Promotions without a working set are in the highest bin.
#[must_use]
#[inline]
pub fn bin(promotions: u64, working_set: u64, window: Millis) -> usize {
    // Without a branch, because the processor predicts poorly whether a rate is zero. An empty working set counts as
    // one page for one millisecond; any promotion then exceeds the lower edge of the highest bin.
    let page_ms = working_set.saturating_mul(window.0).max(1);
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53, and rounded alike everywhere above")]
    let rate = promotions.saturating_mul(60_000) as f64 / page_ms as f64;
    bin_of(rate)
}

/// A working set during a window, of which promotions are a share per minute: [`bin`] for numbers of 32 bits. Their products fit in
/// signed numbers, which one instruction makes an `f64` of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    page_ms: f64,
}

impl Scale {
    /// Returns the scale of so many pages for so long, up to [`crate::series::WINDOW_MS_MAX`].
    #[inline]
    pub(crate) fn new(working_set: u32, window_ms: u32) -> Self {
        Self { page_ms: real((u64::from(working_set) * u64::from(window_ms)).max(1)) }
    }

    /// Returns the bin of so many promotions.
    #[inline]
    pub(crate) fn bin(self, promotions: u32) -> usize {
        bin_of(real(u64::from(promotions) * 60_000) / self.page_ms)
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact below 2^53, and rounded alike everywhere above")]
#[inline]
fn real(product: u64) -> f64 {
    product.cast_signed() as f64
}

/// Returns the bin of a rate per minute.
#[inline]
fn bin_of(rate: f64) -> usize {
    // A rate in the highest bin: above one, and at the upper edge of a bin of that width.
    const HIGHEST: f64 = 1.0 + 1.0 / (1 << MANTISSA_BITS) as f64;
    // Minimum and maximum of floating-point numbers take no branch, which the processor would predict poorly.
    let rate = if rate > LOWEST { rate } else { LOWEST };
    let rate = if rate < HIGHEST { rate } else { HIGHEST };
    // A rate on an edge belongs to the bin below the edge: hence the subtraction of one.
    #[expect(clippy::cast_possible_truncation, reason = "one of the bins")]
    let bin = (((rate.to_bits() - 1) >> SHIFT) + 1 - OFFSET) as usize;
    bin
}

/// Returns the highest rate of a bin, per minute; infinite for the last bin.
#[must_use]
pub fn upper_edge(bin: usize) -> f64 {
    if bin >= BINS - 1 { f64::INFINITY } else { f64::from_bits((OFFSET + bin as u64) << SHIFT) }
}

/// Returns the bin of the smallest rate at or below which at least `percentile` of all counts lie; `None` without
/// counts.
#[must_use]
pub fn percentile(counts: &[u64], percentile: RatioPpm) -> Option<usize> {
    let total: u128 = counts.iter().map(|&n| u128::from(n)).sum();
    let rank = (total * u128::from(percentile.0)).div_ceil(1_000_000).max(1);
    let mut counted = 0u128;
    counts.iter().position(|&n| {
        counted += u128::from(n);
        counted >= rank
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::series::WINDOW_MS_MAX;

    #[test]
    fn a_rate_on_an_edge_belongs_to_the_bin_below() {
        // One promotion per minute out of so many pages.
        let check =
            |promotions, pages, expected: usize| assert_eq!(bin(promotions, pages, Millis(60_000)), expected, "{promotions} of {pages}");
        check(0, 0, 0);
        check(1, 1 << 20, 0);
        check(1, (1 << 20) - 1, 1);
        check(129, 128 << 20, 1);
        check(130, 128 << 20, 2);
        check(1, 1 << 19, 128);
        check(1, 1, BINS - 2);
        check(2, 1, BINS - 1);
        check(1, 0, BINS - 1);
        check(u64::MAX, 1, BINS - 1);
        assert_eq!((upper_edge(0), upper_edge(128), upper_edge(BINS - 2)), (LOWEST, 2.0 * LOWEST, 1.0));
        assert_eq!(upper_edge(BINS - 1), f64::INFINITY);
    }

    #[test]
    fn a_percentile_is_the_smallest_rate_that_covers_its_share() {
        let check = |counts: &[u64], k, expected| assert_eq!(percentile(counts, RatioPpm(k)), expected, "{k} of {counts:?}");
        check(&[], 980_000, None);
        check(&[0, 0], 980_000, None);
        check(&[98, 2], 980_000, Some(0));
        check(&[97, 3], 980_000, Some(1));
        check(&[0, 5, 0, 5], 0, Some(1));
        check(&[0, 5, 0, 5], 1_000_000, Some(3));
    }

    proptest! {
        #[test]
        fn a_scale_has_the_same_bins(promotions in any::<u32>(), shift in 0u32..32, pages in any::<u32>(), window_ms in 0..WINDOW_MS_MAX) {
            let (promotions, pages) = (promotions >> shift, pages >> (31 - shift));
            let expected = bin(promotions.into(), pages.into(), Millis(window_ms.into()));
            prop_assert_eq!(Scale::new(pages, window_ms).bin(promotions), expected);
        }

        #[test]
        fn a_rate_lies_between_its_bins_edges(promotions in 1u64..1 << 36, pages in 1u64..1 << 34, window_ms in 1u64..1 << 18) {
            let index = bin(promotions, pages, Millis(window_ms));
            let (promotions, denominator) = (u128::from(promotions) * 60_000, u128::from(pages) * u128::from(window_ms));
            // Edges are multiples of 2^-27, from 2^-20 to 1.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole numbers up to 2^27")]
            let at_most = |edge: f64| promotions << 27 <= (edge * f64::from(1 << 27)) as u128 * denominator;
            if index < BINS - 1 {
                prop_assert!(at_most(upper_edge(index)));
            }
            if index > 0 {
                prop_assert!(!at_most(upper_edge(index - 1)));
            }
        }
    }
}
