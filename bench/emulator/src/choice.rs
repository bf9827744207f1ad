//! Which blocks are slow and which of their pages are parked: by chance, but the same chance for the same seed.

use units::RatioPpm;

/// The bytes that are slow or fast as one: a huge page's, aligned.
pub const BLOCK: u64 = 2 << 20;

/// The bytes that are parked as one.
pub const PAGE: u64 = 4096;

/// Whether something is among a share of all, by a random number that depends on nothing but these three.
fn among(seed: u64, what: u64, share: RatioPpm) -> bool {
    u128::from(mix(seed ^ mix(what))) * 1_000_000 < u128::from(share.0) << 64
}

/// Spreads a number over all 64 bits: the finishing step of the generator `SplitMix64` (Steele, Lea and Flood, OOPSLA
/// 2014), which is a bijection.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Whether the block that starts at `block` is in slow memory, of which there is this share.
#[must_use]
pub fn slow(seed: u64, block: u64, share: RatioPpm) -> bool {
    among(seed, block / BLOCK, share)
}

/// Whether the page that starts at `page` is parked in this draw. Draws are independent of each other, so that over
/// many of them every page counts alike.
#[must_use]
pub fn sampled(seed: u64, draw: u64, page: u64, share: RatioPpm) -> bool {
    among(seed.wrapping_add(mix(draw)), (page / PAGE) | (1 << 63), share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept_and_choices_repeat() {
        let check = |share: u32, low: usize, high: usize| {
            let share = RatioPpm(share);
            let blocks = (0..10_000).filter(|&at| slow(1, at * BLOCK, share)).count();
            let pages = (0..10_000).filter(|&at| sampled(1, 7, at * PAGE, share)).count();
            assert!((low..=high).contains(&blocks) && (low..=high).contains(&pages), "{share:?} {blocks} {pages}");
        };
        check(0, 0, 0);
        check(1_000_000, 10_000, 10_000);
        // Six standard deviations of a binomial distribution.
        check(500_000, 4_700, 5_300);
        check(100_000, 820, 1_180);
        let both = |a: u64, b: u64| {
            (0..10_000).filter(|&at| sampled(1, a, at * PAGE, RatioPpm(500_000)) && sampled(1, b, at * PAGE, RatioPpm(500_000))).count()
        };
        assert!((2_200..2_800).contains(&both(1, 2)), "draws depend on each other");
        assert_eq!(both(1, 1), (0..10_000).filter(|&at| sampled(1, 1, at * PAGE, RatioPpm(500_000))).count());
    }
}
