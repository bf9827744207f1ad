//! The choice of the blocks that are sampled in a period, and of the sampled parts of a block: pseudo-random, and the same for
//! the same arguments.

use units::RatioPpm;

use super::blocks::Block;

/// Bytes that one word of the idle bitmap covers, if page frames are in the order of addresses.
const STRETCH_BYTES: u64 = 64 << 12;

/// Number of stretches from which the pages are chosen that stand for a block: half of the stretches of 2 MiB.
const STRETCHES: usize = 4;

/// Returns the blocks to sample in period number `period`, in no particular order.
///
/// `1 / share` periods, rounded up, make a cycle. Each cycle puts the blocks in another order and cuts it into as many pieces
/// of equal size as there are periods: while the blocks stay the same, each is sampled once per cycle. A block that appears
/// or disappears shifts the pieces by one block at most.
#[must_use]
pub fn sampled(blocks: &[Block], share: RatioPpm, period: u64) -> Vec<Block> {
    let periods = u64::from(RatioPpm::ONE.0.div_ceil(share.0.clamp(1, RatioPpm::ONE.0)));
    let (cycle, piece) = (period / periods, period % periods);
    let mut order: Vec<(u64, Block)> = blocks.iter().map(|block| (mix(mix(cycle, pid_bits(block.pid)), block.start), *block)).collect();
    order.sort_unstable();
    let cut = |piece: u64| usize::try_from(u128::from(piece) * order.len() as u128 / u128::from(periods)).unwrap_or(order.len());
    order[cut(piece)..cut(piece + 1)].iter().map(|&(_, block)| block).collect()
}

/// Keeps at most `count` of the blocks, each with the same probability.
pub fn some_blocks(blocks: &mut Vec<Block>, count: usize, seed: u64) {
    blocks.sort_unstable_by_key(|block| (mix(mix(seed, pid_bits(block.pid)), block.start), *block));
    blocks.truncate(count);
}

/// Keeps at most `count` of the addresses, each with the same probability, and sorts them.
pub(super) fn some_of(addresses: &mut Vec<u64>, count: usize, seed: u64) {
    if addresses.len() > count {
        addresses.sort_unstable_by_key(|&address| (mix(seed, address), address));
        addresses.truncate(count);
    }
    addresses.sort_unstable();
}

/// Keeps at most `count` of the addresses, and sorts them: random pages of [`STRETCHES`] random stretches, or of more stretches
/// if these have too few pages.
///
/// Idle page tracking reads bits by the word of 64 frames, and the kernel walks the page tables of all 64 for it. Neighbours by
/// address are mostly neighbours by frame: 50 of 512 pages chosen without regard to that would cost nearly as much to sample
/// as all 512. Every stretch has the same probability, and so has every page if stretches are equally full. If neighbours are
/// alike, pages of few stretches carry less information than as many pages from everywhere: the variance grows by
/// `1 + (pages per stretch - 1) r`, with `r` the correlation within stretches (Cochran 1977, section 9.4). The bound on the
/// rate does not account for that.
pub(super) fn some_of_stretches(addresses: &mut Vec<u64>, count: usize, seed: u64) {
    if addresses.len() > count {
        let stretch = |address: u64| mix(!seed, address / STRETCH_BYTES);
        addresses.sort_unstable_by_key(|&address| (stretch(address), address));
        let mut taken = 0;
        for (index, pages) in addresses.chunk_by(|&one, &next| stretch(one) == stretch(next)).enumerate() {
            if index >= STRETCHES && taken >= count {
                break;
            }
            taken += pages.len();
        }
        addresses.truncate(taken);
    }
    some_of(addresses, count, seed);
}

fn pid_bits(pid: i32) -> u64 {
    u64::from(pid.cast_unsigned())
}

/// A well-mixed function of two numbers: the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
fn mix(seed: u64, value: u64) -> u64 {
    let mut z = value.wrapping_add(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use units::Bytes;

    use super::*;

    fn blocks(count: u64) -> Vec<Block> {
        let block = |n: u64| Block {
            pid: if n.is_multiple_of(3) { 7 } else { 8 },
            start: n << 21,
            end: (n + 1) << 21,
            first: n << 21,
            bytes: Bytes::mib(2),
            huge: true,
            node: 0,
        };
        (0..count).map(block).collect()
    }

    #[test]
    fn every_block_is_sampled_once_per_cycle_in_equal_pieces() {
        for (count, ppm, periods) in
            [(1000, 50_000, 20), (7, 50_000, 20), (0, 50_000, 20), (1001, 300_000, 4), (5, 1_000_000, 1), (9, 2_000_000, 1)]
        {
            let blocks = blocks(count);
            for cycle in 0..3 {
                let pieces: Vec<_> = (0..periods).map(|p| sampled(&blocks, RatioPpm(ppm), cycle * periods + p)).collect();
                let seen: BTreeSet<_> = pieces.iter().flatten().copied().collect();
                assert_eq!((seen.len(), pieces.iter().map(Vec::len).sum::<usize>()), (blocks.len(), blocks.len()), "{count} {ppm}");
                let sizes = pieces.iter().map(|piece| piece.len() as u64);
                assert!(sizes.clone().all(|size| size == count / periods || size == count / periods + 1), "{count} {ppm}");
            }
        }
    }

    #[test]
    fn the_choice_depends_on_the_cycle_and_not_on_the_order_of_blocks() {
        let forward = blocks(400);
        let backward: Vec<_> = forward.iter().rev().copied().collect();
        let share = RatioPpm(50_000);
        assert_eq!(sampled(&forward, share, 3), sampled(&backward, share, 3));
        assert_ne!(sampled(&forward, share, 3), sampled(&forward, share, 23), "the order differs between cycles");
        // The low and the high half of memory are chosen alike.
        let low = sampled(&forward, RatioPpm(500_000), 0).iter().filter(|block| block.start < 200 << 21).count();
        assert!((70..=130).contains(&low), "{low} of 100 expected");
    }

    #[test]
    fn an_additional_block_shifts_few_others() {
        let (before, after) = (blocks(1000), blocks(1001));
        let share = RatioPpm(100_000);
        let of = |blocks: &[Block]| (0..10).map(|period| sampled(blocks, share, period)).collect::<Vec<_>>();
        let moved: usize = of(&before).iter().zip(of(&after)).map(|(was, is)| was.iter().filter(|block| !is.contains(block)).count()).sum();
        assert!(moved <= 10, "{moved}");
    }

    #[test]
    fn parts_are_chosen_with_equal_probability_and_sorted() {
        let mut hits = [0u32; 100];
        for seed in 0..2_000 {
            let mut addresses: Vec<u64> = (0..100).collect();
            some_of(&mut addresses, 10, seed);
            assert!(addresses.len() == 10 && addresses.is_sorted());
            addresses.iter().for_each(|&address| hits[usize::try_from(address).unwrap()] += 1);
        }
        // 200 expected of each, with a standard deviation of 13.
        assert!(hits.iter().all(|hits| (130..270).contains(hits)), "{hits:?}");
        let mut few = vec![3, 1, 2];
        some_of(&mut few, 10, 0);
        assert_eq!(few, [1, 2, 3]);
    }

    #[test]
    fn parts_come_from_few_stretches_chosen_with_equal_probability() {
        const PAGE: u64 = 4096;
        let chosen = |mut addresses: Vec<u64>, seed| {
            some_of_stretches(&mut addresses, 50, seed);
            addresses
        };
        let stretches = |addresses: &[u64]| addresses.iter().map(|address| address / STRETCH_BYTES).collect::<BTreeSet<_>>();
        let mut hits = [0u32; 8];
        for seed in 0..2_000 {
            let pages = chosen((0..512).map(|page| page * PAGE).collect(), seed);
            assert_eq!((pages.len(), stretches(&pages).len()), (50, STRETCHES));
            stretches(&pages).iter().for_each(|&stretch| hits[usize::try_from(stretch).unwrap()] += 1);
            // One page in each stretch: as many stretches as requested pages.
            assert_eq!(chosen((0..512).map(|page| page * STRETCH_BYTES).collect(), seed).len(), 50);
        }
        // 1000 expected of each, with a standard deviation of 22.
        assert!(hits.iter().all(|hits| (880..1120).contains(hits)), "{hits:?}");
    }
}
