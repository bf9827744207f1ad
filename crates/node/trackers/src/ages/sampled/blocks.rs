//! Which pages are sampled: one in each aligned block of `2^level` pages, at a place that depends on the block alone. Pure.
//!
//! Every page therefore has the same probability, `2^-level`, whenever it was allocated and whoever maps it: new memory is in the
//! sample at once, freed memory leaves it, and nothing has to be drawn again. The page of a block is that of one of its halves, so a
//! change of the level keeps half of the pages, and their ages.

use std::ops::Range;

/// The finest level: with one page in four, neighbours are rare. (The kernel would merge two adjacent pages into one region.)
pub const LEVEL_MIN: u32 = 2;

/// The coarsest level: one page in 4 GiB of 4 KiB pages.
pub const LEVEL_MAX: u32 = 20;

/// A space of page numbers: the virtual addresses of private memory, the offsets of one shared object, or page frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Space(pub u64);

impl Space {
    /// Private memory. Processes that were forked share their addresses, so that a page that they share is chosen in all of them.
    pub const PRIVATE: Self = Self(0);

    /// Page frames.
    pub const FRAMES: Self = Self(u64::MAX);
}

/// The sampled page numbers of `pages`, ascending, no two adjacent.
pub fn chosen(seed: u64, space: Space, level: u32, pages: Range<u64>) -> impl Iterator<Item = u64> {
    let first = pages.start >> level;
    let blocks = if pages.is_empty() { first..first } else { first..((pages.end - 1) >> level) + 1 };
    let mut before = None;
    blocks.filter_map(move |block| {
        let page = page_of(seed, space, level, block);
        let adjacent = before.is_some_and(|before| before + 1 == page);
        if adjacent || !pages.contains(&page) {
            return None;
        }
        before = Some(page);
        Some(page)
    })
}

/// The page of a block: that of one of its halves, down to a single page.
pub(in crate::ages) fn page_of(seed: u64, space: Space, level: u32, block: u64) -> u64 {
    (1..=level).rev().fold(block, |block, level| block << 1 | half(seed, space, level, block))
}

/// Whether a page is that of its block, whatever its neighbours are.
pub(in crate::ages) fn is_chosen(seed: u64, space: Space, level: u32, page: u64) -> bool {
    (1..=level).all(|level| half(seed, space, level, page >> level) == page >> (level - 1) & 1)
}

/// The half of a block of `2^level` pages that has its page.
fn half(seed: u64, space: Space, level: u32, block: u64) -> u64 {
    mix(seed ^ space.0.rotate_left(17) ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(level) << 57) & 1
}

/// Mixes all bits of a word (the finaliser of `SplitMix64`, as in `java.util.SplittableRandom`).
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// The level at which `held` pages give between a half and all of `wanted` points; keeps `current` while the number of points is
/// between a quarter and twice of `wanted`, because a change forgets ages.
#[must_use]
pub fn level_for(held: u64, wanted: u64, current: Option<u32>) -> u32 {
    let wanted = wanted.max(1);
    if let Some(level) = current
        && (held >> level) <= wanted * 2
        && ((held >> level) >= wanted / 4 || level == LEVEL_MIN)
    {
        return level;
    }
    let blocks = held.div_ceil(wanted).max(1);
    blocks.checked_next_power_of_two().map_or(LEVEL_MAX, u64::trailing_zeros).clamp(LEVEL_MIN, LEVEL_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_page_is_equally_likely() {
        // 64 positions in blocks of 64 pages, over 64,000 blocks: each is chosen 1000 times, with a standard deviation of 31.
        let mut counts = [0u32; 64];
        for page in chosen(1, Space::PRIVATE, 6, 0..64 * 64_000) {
            counts[usize::try_from(page % 64).unwrap()] += 1;
        }
        assert!(counts.iter().all(|&count| (840..1160).contains(&count)), "{counts:?}");
    }

    #[test]
    fn one_page_of_each_block_is_chosen() {
        for level in 0..8 {
            let chosen: Vec<u64> = (0..1 << 12).filter(|&page| is_chosen(9, Space::FRAMES, level, page)).collect();
            let pages: Vec<u64> = (0..1 << (12 - level)).map(|block| page_of(9, Space::FRAMES, level, block)).collect();
            assert_eq!(chosen, pages, "level {level}");
        }
    }

    #[test]
    fn pages_of_a_part_are_those_of_the_whole() {
        let whole: BTreeSet<u64> = chosen(7, Space(3), 4, 0..100_000).collect();
        let part: Vec<u64> = chosen(7, Space(3), 4, 1_234..56_789).collect();
        // At the start of a part a page may lack the neighbour that excluded it from the whole.
        let extra = part.iter().filter(|page| !whole.contains(page)).count();
        assert!(extra <= 1, "{extra}");
        assert_eq!(part.len() - extra, whole.range(1_234..56_789).count());
        assert!(part.is_sorted_by(|one, next| one + 1 < *next), "ascending, none adjacent");
        assert_eq!(chosen(7, Space(3), 4, 5..5).count(), 0);
    }

    #[test]
    fn a_coarser_level_keeps_half_of_the_pages() {
        for level in 2..10 {
            let fine: BTreeSet<u64> = chosen(3, Space::PRIVATE, level, 0..1 << 16).collect();
            let coarse: Vec<u64> = chosen(3, Space::PRIVATE, level + 1, 0..1 << 16).collect();
            let kept = coarse.iter().filter(|page| fine.contains(page)).count();
            // Neighbours that only the finer level excludes are the rest.
            assert!(kept * 100 >= coarse.len() * 85, "{kept} of {} at level {level}", coarse.len());
        }
    }

    #[test]
    fn spaces_and_seeds_choose_differently() {
        let of = |seed, space| chosen(seed, space, 5, 0..100_000).collect::<BTreeSet<u64>>();
        let base = of(1, Space::PRIVATE);
        for other in [of(2, Space::PRIVATE), of(1, Space(99))] {
            let common = base.intersection(&other).count();
            assert!(common < base.len() / 16, "{common} of {}", base.len());
        }
    }

    #[test]
    fn the_level_follows_the_memory_and_does_not_flap() {
        for (held, wanted, current, want) in [
            (0, 1024, None, 2),
            (4096, 1024, None, 2),
            (4097, 1024, None, 3),
            (1 << 28, 1024, None, 18),
            (u64::MAX, 1, None, 20),
            (4097, 1024, Some(2), 2),
            (9000, 1024, Some(2), 4),
            (1 << 20, 1024, Some(10), 10),
            (1 << 18, 1024, Some(10), 10),
            ((1 << 18) - 1, 1024, Some(10), 8),
            (10, 1024, Some(2), 2),
        ] {
            assert_eq!(level_for(held, wanted, current), want, "{held} {wanted} {current:?}");
        }
    }
}
