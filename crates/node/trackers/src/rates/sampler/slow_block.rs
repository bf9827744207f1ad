//! Blocks that are in slow memory: sampled in all stages, and never split.

use std::time::Duration;

use policy::slowdown::rate::{BitSamples, Estimate};

use super::block_rate::{BlockRate, PartSamples, interval_us};
use super::memory::Memory;
use super::round::{Lost, Settings, needs_dense};
use crate::rates::blocks::Block;
use crate::rates::point::Point;
use crate::rates::selection;

/// Lower limit of the sampled parts of a slow block of base pages: a single part could not stand for the others.
pub const PARTS_MIN: usize = 2;

/// Of so many blocks one may be accessed at all samples by chance, although its rate can be measured.
const CHANCE: usize = 100;

/// All slow blocks of a period.
#[derive(Debug)]
pub(super) struct SlowBlocks {
    blocks: Vec<SlowBlock>,
    /// Samples of the whole period: number and time.
    total: (u32, Duration),
    /// Interval of the dense samples.
    dense_us: u64,
    /// Samples of the last stage other than the dense one.
    last_stage: (u32, Duration),
    /// Whether a stage has ended since [`SlowBlocks::rates_of_last_stage`] was called.
    news: bool,
}

/// A slow block with its sampled points.
#[derive(Debug)]
struct SlowBlock {
    block: Block,
    /// Addresses of the points.
    points: Vec<u64>,
    /// Samples of each point so far, without the dense ones.
    total: Vec<BitSamples>,
    /// The dense samples of a huge page.
    dense: Dense,
    /// Samples of each point in the last stage.
    last_stage: Vec<BitSamples>,
    /// Number of pages that the points stand for.
    of: u32,
    /// Whether a point vanished or moved.
    changed: bool,
}

/// The dense samples of a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dense {
    /// Its rate shows without one.
    Unnecessary,
    /// To be taken in the next stage.
    Chosen,
    /// Its samples.
    Seen(BitSamples),
    /// To be taken in the next stage, as all samples of the one before found it accessed.
    ChosenNewlyHot,
    /// Its samples since then: those before are of the time before it became hot.
    SeenNewlyHot(BitSamples),
}

impl Dense {
    fn is_chosen(self) -> bool {
        matches!(self, Self::Chosen | Self::ChosenNewlyHot)
    }
}

impl SlowBlocks {
    /// Chooses the points: one of a huge page, several of a block of base pages.
    ///
    /// The points that the tracker allows are divided evenly, so that blocks get fewer points each the more of them there are.
    pub(super) fn new(blocks: Vec<Block>, settings: Settings, points_max: usize, seed: u64, memory: &dyn Memory, lost: &mut Lost) -> Self {
        let small = blocks.iter().filter(|block| !block.huge).count();
        let for_small = points_max.saturating_sub(blocks.len() - small);
        let parts_max = usize::try_from(settings.parts_max).unwrap_or(usize::MAX).max(PARTS_MIN);
        let each = (for_small / small.max(1)).clamp(PARTS_MIN, parts_max);
        let mut left = points_max;
        let mut chosen = Vec::with_capacity(blocks.len());
        for block in blocks {
            // If the process has exited or the file cannot be read, no page of the block is known.
            let mut points = if block.huge { vec![block.first] } else { memory.present(&block).unwrap_or_default() };
            let of = u32::try_from(points.len()).unwrap_or(u32::MAX);
            selection::some_of_stretches(&mut points, each, seed);
            if points.is_empty() {
                lost.changed += 1;
                continue;
            }
            if points.len() > left {
                lost.over_capacity += 1;
                points.clear();
            }
            left -= points.len();
            let none = vec![BitSamples::default(); points.len()];
            chosen.push(SlowBlock { block, total: none.clone(), dense: Dense::Unnecessary, last_stage: none, points, of, changed: false });
        }
        Self { blocks: chosen, total: (0, Duration::ZERO), dense_us: 0, last_stage: (0, Duration::ZERO), news: false }
    }

    /// Number of points.
    pub(super) fn point_count(&self) -> usize {
        self.blocks.iter().map(|slow| slow.points.len()).sum()
    }

    /// The points of all blocks.
    pub(super) fn points(&self) -> impl Iterator<Item = Point> {
        self.blocks.iter().flat_map(|slow| slow.points.iter().map(|&address| Point { pid: slow.block.pid, address }))
    }

    /// The processes of the blocks.
    pub(super) fn pids(&self) -> impl Iterator<Item = i32> {
        self.blocks.iter().map(|slow| slow.block.pid)
    }

    /// Takes the samples of one stage, in the order of [`SlowBlocks::points`].
    pub(super) fn add(&mut self, samples: &mut dyn Iterator<Item = Option<BitSamples>>, window: Duration) {
        let mut taken = 0;
        for slow in &mut self.blocks {
            for (total, last_stage) in slow.total.iter_mut().zip(&mut slow.last_stage) {
                match samples.next().flatten() {
                    Some(bits) => {
                        *last_stage = bits;
                        total.taken = total.taken.saturating_add(bits.taken);
                        total.accessed = total.accessed.saturating_add(bits.accessed);
                        taken = taken.max(bits.taken);
                    }
                    None => slow.changed = true,
                }
            }
        }
        self.total.0 = self.total.0.saturating_add(taken);
        self.total.1 += window;
        self.last_stage = (taken, window);
        self.news = true;
    }

    /// After the first stage: chooses the huge pages to sample densely.
    pub(super) fn choose_dense(&mut self) {
        for slow in self.blocks.iter_mut().filter(|slow| slow.block.huge && !slow.changed) {
            if slow.total.first().is_some_and(|&bits| bits.taken > 0 && needs_dense(bits)) {
                slow.dense = Dense::Chosen;
            }
        }
    }

    /// After a later stage: chooses the huge pages whose rate its samples do not show, if there is one where those of the first stage did.
    /// Dense samples from before may be of the time before all of them became hot.
    pub(super) fn choose_newly_hot(&mut self) {
        if self.blocks.iter().any(|slow| slow.is_saturated_now() && slow.dense == Dense::Unnecessary) {
            self.blocks.iter_mut().filter(|slow| slow.is_saturated_now()).for_each(|slow| slow.dense = Dense::ChosenNewlyHot);
        }
    }

    /// Whether more blocks than chance explains are accessed too often for their rate to be measured: all of the dense samples found them
    /// accessed, and all of the last stage. Of blocks that stay in slow memory one in some hundred does.
    pub(super) fn are_too_hot_to_measure(&self) -> bool {
        let count = self.blocks.iter().filter(|slow| slow.is_saturated_now() && slow.is_saturated_densely()).count();
        count * CHANCE > self.blocks.len()
    }

    /// The points to sample densely.
    pub(super) fn dense_points(&self) -> impl Iterator<Item = Point> {
        let chosen = self.blocks.iter().filter(|slow| slow.dense.is_chosen());
        chosen.map(|slow| Point { pid: slow.block.pid, address: slow.block.first })
    }

    /// Takes dense samples, in the order of [`SlowBlocks::dense_points`].
    pub(super) fn add_dense(&mut self, samples: &mut dyn Iterator<Item = Option<BitSamples>>, window: Duration) {
        let mut taken = 0;
        for slow in self.blocks.iter_mut().filter(|slow| slow.dense.is_chosen()) {
            match samples.next().flatten() {
                Some(bits) => {
                    slow.dense = if slow.dense == Dense::Chosen { Dense::Seen(bits) } else { Dense::SeenNewlyHot(bits) };
                    taken = taken.max(bits.taken);
                }
                None => slow.changed = true,
            }
        }
        if taken > 0 {
            self.dense_us = interval_us(window, taken);
            self.news = true;
        }
    }

    /// Rates from the samples of the last stage, with dense ones, once after each stage: a block that became hot shows there first.
    pub(super) fn rates_of_last_stage(&mut self) -> Option<Vec<BlockRate>> {
        if !std::mem::take(&mut self.news) {
            return None;
        }
        let (taken, window) = self.last_stage;
        let interval = interval_us(window, taken);
        Some(self.blocks.iter().filter_map(|slow| slow.rate(&slow.last_stage, interval, self.dense_us)).collect())
    }

    /// Rates from all samples of the period, in the order given; counts blocks that changed as lost.
    pub(super) fn take_rates(&mut self, lost: &mut Lost) -> Vec<BlockRate> {
        let (taken, window) = self.total;
        let interval = interval_us(window, taken);
        let mut rates = Vec::with_capacity(self.blocks.len());
        for slow in std::mem::take(&mut self.blocks) {
            match slow.rate(&slow.total, interval, self.dense_us) {
                Some(rate) => rates.push(rate),
                None => lost.changed += 1,
            }
        }
        rates
    }
}

impl SlowBlock {
    /// Whether all dense samples found it accessed.
    fn is_saturated_densely(&self) -> bool {
        matches!(self.dense, Dense::Seen(bits) | Dense::SeenNewlyHot(bits) if bits.taken > 0 && bits.accessed >= bits.taken)
    }

    /// Whether it is a huge page that all samples of the last stage found accessed.
    fn is_saturated_now(&self) -> bool {
        let all = |bits: &BitSamples| bits.taken > 0 && bits.accessed >= bits.taken;
        self.block.huge && !self.changed && self.last_stage.first().is_some_and(all)
    }

    /// The rate from these samples of the points; `None` if the block has changed.
    fn rate(&self, samples: &[BitSamples], interval_us: u64, dense_us: u64) -> Option<BlockRate> {
        let Some(&first) = samples.first() else {
            // Not sampled because the tracker's limit was reached: without an upper bound, the policy promotes it.
            return Some(BlockRate { block: self.block, estimate: Estimate::default(), samples: BitSamples::default(), parts: None });
        };
        if self.block.huge {
            let before = BlockRate::of_huge(self.block, first, interval_us);
            let rate = match self.dense {
                Dense::Seen(dense) => before.or_dense(BlockRate::of_huge(self.block, dense, dense_us)),
                Dense::SeenNewlyHot(dense) => BlockRate::of_huge(self.block, dense, dense_us),
                Dense::Unnecessary | Dense::Chosen | Dense::ChosenNewlyHot => before,
            };
            return (rate.samples.taken > 0 && !self.changed).then_some(rate);
        }
        let parts: Vec<_> = samples.iter().copied().filter(|bits| bits.taken > 0).collect();
        // All pages count as touched, because the pages that are no points are not checked.
        let counted = PartSamples { of: self.of, touched: self.of, touch_window_us: 0, parts: &parts };
        (!parts.is_empty()).then(|| counted.rate(self.block, interval_us))
    }
}
