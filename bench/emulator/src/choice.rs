//! The pseudo-random choice of slow blocks and parked pages, the same for the same seed.

use units::RatioPpm;

/// Bytes of a block, which is slow or fast as a whole: an aligned huge page.
pub const BLOCK: u64 = 2 << 20;

/// Bytes of a page, which is parked as a whole.
pub const PAGE: u64 = 4096;

/// Returns whether an item belongs to a random share of all items, depending only on the arguments.
fn among(seed: u64, item: u64, share: RatioPpm) -> bool {
    u128::from(mix(seed ^ mix(item))) * 1_000_000 < u128::from(share.0) << 64
}

/// Distributes a number over all 64 bits: the finalizer of the generator `SplitMix64` (Steele, Lea and Flood, OOPSLA
/// 2014), which is a bijection.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Returns whether the block at address `block` is slow, if this share of all blocks is.
#[must_use]
pub fn is_slow(seed: u64, block: u64, share: RatioPpm) -> bool {
    among(seed, block / BLOCK, share)
}

/// Returns whether the page at address `page` is parked in this draw. Draws are independent, so that over many of them
/// every page has the same weight.
#[must_use]
pub fn is_sampled(seed: u64, draw: u64, page: u64, share: RatioPpm) -> bool {
    among(seed.wrapping_add(mix(draw)), (page / PAGE) | (1 << 63), share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_keep_shares_and_are_reproducible() {
        let check = |share: u32, low: usize, high: usize| {
            let share = RatioPpm(share);
            let blocks = (0..10_000).filter(|&at| is_slow(1, at * BLOCK, share)).count();
            let pages = (0..10_000).filter(|&at| is_sampled(1, 7, at * PAGE, share)).count();
            assert!((low..=high).contains(&blocks) && (low..=high).contains(&pages), "{share:?} {blocks} {pages}");
        };
        check(0, 0, 0);
        check(1_000_000, 10_000, 10_000);
        // Six standard deviations of a binomial distribution.
        check(500_000, 4_700, 5_300);
        check(100_000, 820, 1_180);
        let both = |a: u64, b: u64| {
            (0..10_000)
                .filter(|&at| is_sampled(1, a, at * PAGE, RatioPpm(500_000)) && is_sampled(1, b, at * PAGE, RatioPpm(500_000)))
                .count()
        };
        assert!((2_200..2_800).contains(&both(1, 2)), "draws are not independent");
        assert_eq!(both(1, 1), (0..10_000).filter(|&at| is_sampled(1, 1, at * PAGE, RatioPpm(500_000))).count());
    }
}
