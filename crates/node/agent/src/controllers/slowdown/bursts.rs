//! The job's bursts: which of its slow blocks are split to find out about them, and what they add to its rates.

use policy::slowdown::bursts::{Bursts, Key};
use policy::slowdown::rate::BitSamples;
use trackers::rates::blocks::Block;
use trackers::rates::sampler::BlockRate;
use trackers::rates::selection;

use super::Found;

/// Blocks of a job that are split in a period.
const SPLIT: usize = 4;

/// Once there is evidence, blocks are split in one of so many of the job's turns.
const TURNS: u64 = 4;

/// Jobs whose blocks are split in the same period.
const JOBS: usize = 2;

fn key(block: &Block) -> Key {
    (block.pid, block.start)
}

/// The number of the turn that a job has in period number `period` to have blocks split; `None` if it is other jobs' turn.
pub(super) fn turn(period: u64, job: usize, jobs: usize) -> Option<u64> {
    let turns = jobs.div_ceil(JOBS).max(1) as u64;
    (period + job as u64).is_multiple_of(turns).then_some(period / turns)
}

/// Takes the blocks out of `slow` that are split in a job's turn: some of the huge pages whose bit was found set before, and at most half
/// of these, as the others are compared with them.
pub(super) fn take_split(bursts: &Bursts, slow: &mut Vec<Block>, turn: u64) -> Vec<Block> {
    if bursts.has_evidence() && !turn.is_multiple_of(TURNS) {
        return Vec::new();
    }
    let mut known: Vec<Block> = slow.iter().copied().filter(|block| block.huge && bursts.knows(key(block))).collect();
    // A single one is split in every second turn.
    let half = if known.len() == 1 { usize::from(turn % 2 == 1) } else { known.len() / 2 };
    selection::some_blocks(&mut known, SPLIT.min(half), turn);
    known.sort_unstable();
    slow.retain(|block| known.binary_search(block).is_err());
    known
}

impl Found {
    /// Takes in what a period showed, and adds the bursts to the rates of all huge pages but those of the fast node that were
    /// sampled in parts.
    ///
    /// A period that ended early, with a window of zero, shows nothing.
    pub(super) fn weigh(&mut self, bursts: &mut Bursts, window_us: u64) {
        let whole = |rated: &&mut BlockRate| rated.block.huge && rated.parts.is_none();
        if window_us > 0 {
            for rated in self.slow.iter_mut().filter(whole) {
                bursts.add_whole(key(&rated.block), rated.estimate.mean, window_us);
            }
            for rated in &self.slow_split {
                bursts.add_split(key(&rated.block), rated.estimate.mean, window_us);
            }
            // Huge pages of the fast node are sampled as a whole in the first of three stages.
            for rated in self.sampled.iter_mut().filter(whole) {
                bursts.add_fast(key(&rated.block), rated.estimate.mean, window_us / 3);
            }
            bursts.end_period();
        }
        // They are in slow memory, whatever is known of this period.
        let lost = std::mem::take(&mut self.slow_lost).into_iter().map(|block| {
            let estimate = bursts.long_run(key(&block));
            BlockRate { block, estimate, samples: BitSamples::default(), parts: None }
        });
        self.slow_split.extend(lost);
        for rated in self.slow.iter_mut().chain(&mut self.sampled).filter(whole).chain(&mut self.slow_split) {
            rated.estimate = bursts.weigh(key(&rated.block), rated.estimate);
        }
        self.slow.append(&mut self.slow_split);
    }
}

#[cfg(test)]
mod tests {
    use policy::slowdown::rate::Estimate;
    use units::{AccessRate, Bytes};

    use super::*;

    const SECOND_US: u64 = 1_000_000;

    fn block(number: u64) -> Block {
        Block { pid: 7, start: number << 21, end: (number + 1) << 21, first: number << 21, bytes: Bytes::mib(2), huge: true, node: 1 }
    }

    fn rated(block: Block, per_second: u64) -> BlockRate {
        let mean = AccessRate::per_second(per_second);
        BlockRate { block, estimate: Estimate { mean, upper: Some(mean) }, samples: BitSamples::default(), parts: None }
    }

    /// Bursts whose blocks 0 to `count` are known.
    fn known(count: u64) -> Bursts {
        let mut bursts = Bursts::default();
        let mut found = Found { slow: (0..count).map(|number| rated(block(number), 1)).collect(), ..Found::default() };
        found.weigh(&mut bursts, SECOND_US);
        bursts
    }

    #[test]
    fn a_few_known_blocks_are_split_and_never_all() {
        for (count, expected) in [(0, [0, 0]), (1, [0, 1]), (2, [1, 1]), (7, [3, 3]), (40, [4, 4])] {
            let bursts = known(count);
            for period in 0..20 {
                let mut slow: Vec<Block> = (0..60).map(block).collect();
                slow.extend([Block { huge: false, ..block(0) }]);
                let split = take_split(&bursts, &mut slow, period);
                assert_eq!((split.len(), slow.len() + split.len()), (expected[usize::from(period % 2 == 1)], 61), "{count} {period}");
                assert!(split.iter().all(|split| split.huge && split.start < count << 21 && !slow.contains(split)));
            }
        }
    }

    #[test]
    fn jobs_take_turns_and_none_is_left_out() {
        for jobs in 1..9 {
            let turns: Vec<Vec<u64>> =
                (0..jobs).map(|job| (0..24).filter_map(|period| turn(period, job, jobs)).collect::<Vec<_>>()).collect();
            assert!((0..24).all(|period| (0..jobs).filter(|&job| turn(period, job, jobs).is_some()).count() <= JOBS), "{jobs}");
            assert!(turns.iter().all(|own| own.len() >= 24 / jobs.div_ceil(JOBS) && own.windows(2).all(|pair| pair[1] == pair[0] + 1)));
        }
    }

    #[test]
    fn bursts_are_added_to_whole_huge_pages_only() {
        let mut bursts = known(8);
        let parts = |rated: BlockRate| BlockRate { parts: Some((512, 1)), ..rated };
        let base_pages = BlockRate { block: Block { huge: false, ..block(30) }, ..parts(rated(block(30), 1)) };
        let mut found = Found {
            slow: vec![rated(block(0), 1), base_pages.clone()],
            slow_split: vec![parts(rated(block(1), 500))],
            sampled: vec![rated(block(5), 0), rated(block(20), 1), rated(block(21), 0), parts(rated(block(22), 1))],
            ..Found::default()
        };
        found.weigh(&mut bursts, SECOND_US);
        let factor = bursts.pages_per_bit() / 1_000_000;
        assert!(factor > 20, "{factor}");
        let mean = |rated: &BlockRate| rated.estimate.mean.0 / 1_000_000;
        assert_eq!((found.slow.len(), found.slow_split.len()), (3, 0));
        assert!(mean(&found.slow[0]) >= factor && found.slow[1] == base_pages && mean(&found.slow[2]) > 500);
        assert!(mean(&found.sampled[0]) > factor / 2, "promoted, and known: {}", mean(&found.sampled[0]));
        assert_eq!(mean(&found.sampled[1]), factor, "not known, and accessed now");
        assert_eq!((mean(&found.sampled[2]), mean(&found.sampled[3])), (0, 1));
        let before = bursts.pages_per_bit();
        found.slow_lost = vec![block(3)];
        found.weigh(&mut bursts, 0);
        let lost = found.slow.last().unwrap();
        assert!(lost.block == block(3) && mean(lost) >= factor && lost.estimate.upper > Some(lost.estimate.mean), "{lost:?}");
        assert_eq!(bursts.pages_per_bit(), before, "a period that ended early");
    }
}
