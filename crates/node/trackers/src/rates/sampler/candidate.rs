//! One sampled block on its way through the stages.

use std::time::Duration;

use kernel::Result;
use policy::slowdown::rate::BitSamples;

use super::block_rate::{BlockRate, PartSamples, interval_us, micros};
use super::memory::Memory;
use super::round::{Lost, needs_dense};
use crate::rates::blocks::{BLOCK_BYTES, Block};
use crate::rates::point::Point;
use crate::rates::selection;

/// A sampled block.
#[derive(Debug)]
pub(super) struct Candidate {
    block: Block,
    progress: Progress,
}

/// What is known of a sampled block so far.
#[derive(Debug)]
enum Progress {
    /// A huge page, sampled as a whole in the first stage.
    Whole,
    /// A huge page that most samples of the first stage found accessed: in the second stage.
    Dense(BlockRate),
    /// A huge page whose accessed bit was set at every sample.
    Saturated(BlockRate),
    /// Base pages, sampled from the second stage on.
    Small,
    /// In the second stage: which of these pages are touched.
    Touching(Vec<u64>),
    /// In the third stage: how often the chosen pages are accessed, which stand for all touched ones.
    Counting { chosen: Vec<u64>, of: u32, touched: u32, touch_window_us: u64 },
    /// The estimate is known.
    Rated(BlockRate),
    /// There will be no estimate.
    Lost,
}

impl Candidate {
    /// A block at the start of a period. `points_left` is what the tracker's limit leaves.
    pub(super) fn new(block: Block, points_left: &mut usize, lost: &mut Lost) -> Self {
        let progress = match block.huge {
            false => Progress::Small,
            true if *points_left > 0 => {
                *points_left -= 1;
                Progress::Whole
            }
            true => give_up(&mut lost.over_capacity),
        };
        Self { block, progress }
    }

    /// The block's process.
    pub(super) fn pid(&self) -> i32 {
        self.block.pid
    }

    /// Adds the points to sample in this stage: at every interval, and once at the end.
    pub(super) fn add_points(&self, repeated: &mut Vec<Point>, once: &mut Vec<Point>) {
        match &self.progress {
            Progress::Whole | Progress::Dense(_) => repeated.push(Point { pid: self.block.pid, address: self.block.first }),
            Progress::Touching(pages) => once.extend(points(&self.block, pages)),
            Progress::Counting { chosen, .. } => repeated.extend(points(&self.block, chosen)),
            Progress::Saturated(_) | Progress::Small | Progress::Rated(_) | Progress::Lost => {}
        }
    }

    /// Takes the samples of the points of [`Candidate::add_points`], at the end of a stage.
    pub(super) fn end_stage(
        &mut self,
        samples: &mut dyn Iterator<Item = Option<BitSamples>>,
        window: Duration,
        densely: bool,
        parts_max: u32,
        seed: u64,
        lost: &mut Lost,
    ) {
        let block = self.block;
        let next = match &mut self.progress {
            Progress::Whole => samples.next().flatten().filter(|bits| bits.taken > 0).map(|bits| {
                let rate = huge(block, bits, window);
                if densely && needs_dense(bits) { Progress::Dense(rate) } else { whole(rate) }
            }),
            Progress::Dense(before) => {
                samples.next().flatten().filter(|bits| bits.taken > 0).map(|bits| whole(before.clone().or_dense(huge(block, bits, window))))
            }
            Progress::Touching(pages) => {
                let sampled: Vec<_> = pages.iter().copied().zip(samples.take(pages.len())).collect();
                touched(block, &sampled, window, parts_max, seed)
            }
            Progress::Counting { chosen, of, touched, touch_window_us } => {
                let parts: Vec<_> = samples.take(chosen.len()).flatten().filter(|bits| bits.taken > 0).collect();
                let taken = parts.iter().map(|bits| bits.taken).max();
                let counted = PartSamples { of: *of, touched: *touched, touch_window_us: *touch_window_us, parts: &parts };
                taken.map(|taken| Progress::Rated(counted.rate(block, interval_us(window, taken))))
            }
            Progress::Saturated(_) | Progress::Small | Progress::Rated(_) | Progress::Lost => return,
        };
        self.progress = next.unwrap_or_else(|| give_up(&mut lost.changed));
    }

    /// Before the second stage: splits a saturated huge page, and lists the pages to check for being touched.
    ///
    /// `points_left` is what the tracker's limit leaves. Adds the block to `split` if it was split.
    pub(super) fn split_if_saturated(
        &mut self,
        memory: &dyn Memory,
        points_left: &mut usize,
        split: &mut Vec<Block>,
        lost: &mut Lost,
    ) -> Result<()> {
        let was_huge = match &self.progress {
            Progress::Small => false,
            Progress::Saturated(_) if *points_left < parts_of_a_whole_block() => {
                lost.over_capacity += 1;
                return Ok(());
            }
            Progress::Saturated(_) => match unless_gone(memory.split(&self.block))? {
                Some(true) => {
                    split.push(self.block);
                    true
                }
                Some(false) => {
                    lost.not_split += 1;
                    return Ok(());
                }
                None => {
                    self.progress = give_up(&mut lost.changed);
                    return Ok(());
                }
            },
            _ => return Ok(()),
        };
        self.progress = match unless_gone(memory.present(&self.block))? {
            Some(pages) if !pages.is_empty() && pages.len() <= *points_left => {
                *points_left -= pages.len();
                Progress::Touching(pages)
            }
            Some(pages) if !pages.is_empty() && !was_huge => give_up(&mut lost.over_capacity),
            _ => give_up(&mut lost.changed),
        };
        Ok(())
    }

    /// The estimate at the end of the period; `None` for a lost block.
    pub(super) fn into_rate(self) -> Option<BlockRate> {
        match self.progress {
            Progress::Rated(rate) | Progress::Saturated(rate) => Some(rate),
            _ => None,
        }
    }
}

/// The rate of a huge page from samples of it as a whole.
fn huge(block: Block, samples: BitSamples, window: Duration) -> BlockRate {
    BlockRate::of_huge(block, samples, interval_us(window, samples.taken))
}

/// The result of sampling a huge page as a whole.
fn whole(rate: BlockRate) -> Progress {
    if rate.samples.accessed >= rate.samples.taken { Progress::Saturated(rate) } else { Progress::Rated(rate) }
}

/// Chooses the parts to sample among those that were touched within the window. `None` if all pages have vanished.
fn touched(block: Block, sampled: &[(u64, Option<BitSamples>)], window: Duration, parts_max: u32, seed: u64) -> Option<Progress> {
    let of = count(sampled.iter().filter(|(_, bits)| bits.is_some()));
    let mut chosen: Vec<u64> =
        sampled.iter().filter(|(_, bits)| bits.is_some_and(|bits| bits.accessed > 0)).map(|&(page, _)| page).collect();
    let (touched, touch_window_us) = (count(chosen.iter()), micros(window));
    if of == 0 {
        return None;
    }
    if touched == 0 {
        let samples = BitSamples { taken: of, accessed: 0 };
        let untouched = PartSamples { of, touched, touch_window_us, parts: &[] };
        return Some(Progress::Rated(BlockRate { samples, ..untouched.rate(block, 0) }));
    }
    selection::some_of(&mut chosen, usize::try_from(parts_max.max(1)).unwrap_or(usize::MAX), seed);
    Some(Progress::Counting { chosen, of, touched, touch_window_us })
}

/// The points at pages of a block.
fn points<'a>(block: &Block, pages: &'a [u64]) -> impl Iterator<Item = Point> + use<'a> {
    let pid = block.pid;
    pages.iter().map(move |&address| Point { pid, address })
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

/// Base pages of a whole block.
fn parts_of_a_whole_block() -> usize {
    usize::try_from(BLOCK_BYTES / kernel::page_size().bytes()).unwrap_or(usize::MAX)
}

/// Counts a block as lost.
fn give_up(count: &mut u32) -> Progress {
    *count += 1;
    Progress::Lost
}

fn unless_gone<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.is_gone() => Ok(None),
        other => other.map(Some),
    }
}
