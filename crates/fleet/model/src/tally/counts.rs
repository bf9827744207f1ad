//! Counts of entries by pair of a grid and bin of promotion rates.
//!
//! A pair has [`BINS`] bins, which is 20 KiB, and a fleet's entries fall into few of them: bins are kept in blocks that exist
//! once one of their bins is used. Counts are kept as differences, as the sums of the tally are. The counts of all pairs
//! are never in memory at once: [`Counts::each`] sums the differences up pair by pair.

use units::RatioPpm;

use crate::rates::BINS;

/// Bins of a block: four cache lines.
const BLOCK: usize = 32;
/// Blocks of a pair.
const BLOCKS: usize = BINS.div_ceil(BLOCK);

type Block = [u64; BLOCK];

/// See the module. All values are modulo 2^64.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    /// Index of each block of each pair in `blocks`; 0 if it does not exist.
    places: Vec<u32>,
    /// The first one stands for all blocks that do not exist, and is zero.
    blocks: Vec<Block>,
}

impl Counts {
    pub(super) fn new(pairs: usize) -> Self {
        Self { places: vec![0; pairs * BLOCKS], blocks: vec![[0; BLOCK]] }
    }

    /// Adds to a bin of a pair.
    #[inline]
    pub(super) fn add(&mut self, pair: usize, bin: usize, more: u64) {
        let block = self.block(pair * BLOCKS + bin / BLOCK);
        block[bin % BLOCK] = block[bin % BLOCK].wrapping_add(more);
    }

    /// Returns a block, which then exists.
    #[inline]
    fn block(&mut self, place: usize) -> &mut Block {
        let index = match self.places[place] {
            0 => self.create(place),
            index => index,
        };
        &mut self.blocks[index as usize]
    }

    #[cold]
    fn create(&mut self, place: usize) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the largest grid has 4 million blocks")]
        let index = self.blocks.len() as u32;
        self.places[place] = index;
        self.blocks.push([0; BLOCK]);
        index
    }

    /// Returns the blocks that exist, by pair and number: ascending, with the position of their first bin.
    fn existing(&self) -> impl Iterator<Item = (usize, &Block)> {
        let places = self.places.iter().enumerate().filter(|&(_, &index)| index != 0);
        places.map(|(place, &index)| (place, &self.blocks[index as usize]))
    }

    /// Adds other counts of the same pairs.
    pub(super) fn merge(&mut self, other: &Self) {
        for (place, theirs) in other.existing() {
            add(self.block(place), theirs);
        }
    }

    /// Returns the values that are not zero at ascending positions, [`BINS`] positions per pair.
    pub(super) fn sparse(&self) -> impl Iterator<Item = (usize, u64)> {
        self.existing().flat_map(|(place, block)| {
            let first = place / BLOCKS * BINS + place % BLOCKS * BLOCK;
            block.iter().enumerate().filter(|&(_, &count)| count != 0).map(move |(bin, &count)| (first + bin, count))
        })
    }

    /// Sums the differences up, over percentiles and from the longest warm-up on, and calls `visit` with the counts of each
    /// pair, `warmups` pairs per percentile. It stops at the first `false`; returns whether there was none.
    ///
    /// The sums over percentiles are kept, one for each warm-up: most entries are those of jobs for which the longest warm-up
    /// has passed, and only that sum has many blocks.
    pub(super) fn each(&self, warmups: usize, mut visit: impl FnMut(usize, &PairCounts) -> bool) -> bool {
        let percentiles = self.places.len() / BLOCKS / warmups.max(1);
        // By warm-up: the entries for which it is the last that has passed.
        let mut columns = vec![Column::new(); warmups];
        (0..percentiles).all(|percentile| {
            let mut counts = PairCounts { blocks: [[0; BLOCK]; BLOCKS], sums: [0; BLOCKS], total: 0 };
            columns.iter_mut().enumerate().rev().all(|(warmup, column)| {
                let pair = percentile * warmups + warmup;
                column.add(&self.places[pair * BLOCKS..][..BLOCKS], &self.blocks);
                counts.add(column);
                visit(pair, &counts)
            })
        })
    }
}

/// Equal counts; the order in which blocks came to exist does not matter.
impl PartialEq for Counts {
    fn eq(&self, other: &Self) -> bool {
        self.places.len() == other.places.len() && self.sparse().eq(other.sparse())
    }
}

impl Eq for Counts {}

/// The counts of one percentile, of the entries for which a warm-up is the last that has passed.
#[derive(Clone)]
struct Column {
    /// One more than the index of each block in `blocks`; 0 if it does not exist.
    places: [u8; BLOCKS],
    blocks: Vec<Counted>,
}

/// A block with its number and its sum.
#[derive(Clone)]
struct Counted {
    number: usize,
    sum: u64,
    block: Block,
}

impl Column {
    fn new() -> Self {
        const { assert!(BLOCKS < 256, "a place has eight bits") };
        Self { places: [0; BLOCKS], blocks: Vec::new() }
    }

    /// Adds the blocks at these places, where there are any.
    fn add(&mut self, places: &[u32], blocks: &[Block]) {
        for (number, &index) in places.iter().enumerate().filter(|&(_, &index)| index != 0) {
            let counted = self.block(number);
            let changes = &blocks[index as usize];
            add(&mut counted.block, changes);
            counted.sum = changes.iter().fold(counted.sum, |sum, &change| sum.wrapping_add(change));
        }
    }

    /// Returns a block, which then exists.
    fn block(&mut self, number: usize) -> &mut Counted {
        if self.places[number] == 0 {
            self.blocks.push(Counted { number, sum: 0, block: [0; BLOCK] });
            #[expect(clippy::cast_possible_truncation, reason = "there are less than 256 blocks")]
            let place = self.blocks.len() as u8;
            self.places[number] = place;
        }
        &mut self.blocks[usize::from(self.places[number]) - 1]
    }
}

/// The counts of one pair.
pub(super) struct PairCounts {
    blocks: [Block; BLOCKS],
    /// The sum of each block.
    sums: [u64; BLOCKS],
    total: u64,
}

impl PairCounts {
    fn add(&mut self, column: &Column) {
        for Counted { number, sum, block } in &column.blocks {
            add(&mut self.blocks[*number], block);
            self.sums[*number] = self.sums[*number].wrapping_add(*sum);
            self.total = self.total.wrapping_add(*sum);
        }
    }

    /// Returns the number of entries.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Returns whether no bin has more than `most` entries.
    pub(super) fn at_most(&self, most: u64) -> bool {
        self.blocks.iter().flatten().all(|&count| count <= most)
    }

    /// Returns the same as [`crate::rates::percentile`], with `more` entries in the lowest bin, block by block.
    pub(super) fn percentile(&self, percentile: RatioPpm, more: u64) -> Option<usize> {
        let total = u128::from(self.total()) + u128::from(more);
        let rank = (total * u128::from(percentile.0)).div_ceil(1_000_000).max(1);
        let mut counted = u128::from(more);
        if more > 0 && counted >= rank {
            return Some(0);
        }
        let number = self.sums.iter().position(|&sum| {
            let reached = counted + u128::from(sum) >= rank;
            counted += if reached { 0 } else { u128::from(sum) };
            reached
        })?;
        let bin = self.blocks[number].iter().position(|&count| {
            counted += u128::from(count);
            counted >= rank
        })?;
        Some(number * BLOCK + bin)
    }
}

fn add(mine: &mut Block, theirs: &Block) {
    for (mine, theirs) in mine.iter_mut().zip(theirs) {
        *mine = mine.wrapping_add(*theirs);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rates;

    /// A change of a count: percentile, warm-up, bin, entries.
    type Change = (usize, usize, usize, u64);

    /// Counts of every pair, summed up one by one.
    fn dense(percentiles: usize, warmups: usize, changes: &[Change]) -> Vec<Vec<u64>> {
        let pairs = (0..percentiles).flat_map(|percentile| (0..warmups).map(move |warmup| (percentile, warmup)));
        let counts = pairs.map(|(percentile, warmup)| {
            let mut counts = vec![0u64; BINS];
            let of_pair = changes.iter().filter(|&&(from, warm, ..)| from <= percentile && warm >= warmup);
            of_pair.for_each(|&(.., bin, more)| counts[bin] += more);
            counts
        });
        counts.collect()
    }

    proptest! {
        #[test]
        fn every_pair_has_the_counts_and_percentiles_of_the_plain_sum(
            (percentiles, warmups) in (1usize..5, 1usize..5),
            changes in proptest::collection::vec((0usize..5, 0usize..5, prop_oneof![Just(0), 0..BINS, Just(BINS - 1)], 1u64..1000), 0..40),
            (share, more) in (0u32..=1_000_000, prop_oneof![Just(0), 0u64..5000]),
        ) {
            let changes: Vec<Change> = changes.into_iter().map(|(k, s, bin, n)| (k % percentiles, s % warmups, bin, n)).collect();
            let mut halves = [Counts::new(percentiles * warmups), Counts::new(percentiles * warmups)];
            for (at, &(k, s, bin, n)) in changes.iter().enumerate() {
                halves[at % 2].add(k * warmups + s, bin, n);
            }
            let [mut counts, other] = halves;
            counts.merge(&other);
            let expected = dense(percentiles, warmups, &changes);
            let mut visited = 0;
            let all = counts.each(warmups, |pair, counts| {
                visited += 1;
                let mut plain = expected[pair].clone();
                assert_eq!(counts.total(), plain.iter().sum::<u64>());
                assert!(counts.at_most(counts.total()));
                assert_eq!(counts.percentile(RatioPpm(share), 0), rates::percentile(&plain, RatioPpm(share)));
                plain[0] += more;
                assert_eq!(counts.percentile(RatioPpm(share), more), rates::percentile(&plain, RatioPpm(share)));
                true
            });
            prop_assert!(all);
            prop_assert_eq!(visited, percentiles * warmups);
        }
    }

    #[test]
    fn equality_is_that_of_values() {
        let of = |order: &[(usize, usize)]| {
            let mut counts = Counts::new(3);
            order.iter().for_each(|&(pair, bin)| counts.add(pair, bin, 1));
            counts
        };
        assert_eq!(of(&[(0, 7), (2, 100)]), of(&[(2, 100), (0, 7)]));
        assert_ne!(of(&[(0, 7)]), of(&[(1, 7)]));
        let mut none = of(&[(1, BINS - 1)]);
        none.add(1, BINS - 1, u64::MAX);
        assert_eq!(none, Counts::new(3), "a block of zeros is no block");
        assert_ne!(Counts::new(3), Counts::new(4));
    }
}
