//! Huge pages in slow memory that are split for a period, to find out how many of their pages are accessed.
//!
//! khugepaged may collapse one meanwhile. Then each of its pages shows the accesses to all of it, and DAMON reports them without a
//! sign of that: such a block has no rate.

use std::time::Duration;

use kernel::Result;
use policy::slowdown::rate::{self, BitSamples};

use super::block_rate::{BlockRate, micros};
use super::memory::Memory;
use super::round::Lost;
use crate::rates::blocks::Block;
use crate::rates::point::Point;
use crate::rates::selection;

/// Pages of such a block that are sampled; they stand for all of it.
pub(super) const PAGES: usize = 128;

/// All of them in a period.
#[derive(Debug, Default)]
pub(super) struct SplitBlocks {
    /// Blocks that are not split yet.
    whole: Vec<Block>,
    split: Vec<SplitBlock>,
    /// Blocks without a rate.
    lost: Vec<Block>,
    window: Duration,
}

#[derive(Debug)]
struct SplitBlock {
    block: Block,
    /// The addresses of the sampled pages.
    pages: Vec<u64>,
    /// Pages of the block.
    of: u32,
    /// How often a sampled page was found accessed.
    accessed: u32,
    /// Whether a page vanished or moved.
    changed: bool,
    /// Whether khugepaged collapsed the block.
    collapsed: bool,
}

impl SplitBlocks {
    /// Takes as many blocks as `points_left` allows, and lowers it.
    pub(super) fn new(mut blocks: Vec<Block>, points_left: &mut usize, lost: &mut Lost) -> Self {
        let fit = *points_left / PAGES;
        let over = blocks.split_off(fit.min(blocks.len()));
        lost.over_capacity += u32::try_from(over.len()).unwrap_or(u32::MAX);
        *points_left -= blocks.len() * PAGES;
        Self { whole: blocks, lost: over, ..Self::default() }
    }

    /// Splits the blocks, and chooses the pages to sample. Adds what was split to `split`.
    pub(super) fn split(&mut self, memory: &dyn Memory, seed: u64, split: &mut Vec<Block>, lost: &mut Lost) -> Result<()> {
        for block in std::mem::take(&mut self.whole) {
            let pages = match memory.split(&block) {
                Ok(true) => {
                    split.push(block);
                    memory.present(&block)
                }
                Ok(false) => {
                    lost.not_split += 1;
                    self.lost.push(block);
                    continue;
                }
                Err(error) => Err(error),
            };
            match pages {
                Ok(mut pages) if !pages.is_empty() => {
                    let of = u32::try_from(pages.len()).unwrap_or(u32::MAX);
                    selection::some_of(&mut pages, PAGES, seed);
                    self.split.push(SplitBlock { block, pages, of, accessed: 0, changed: false, collapsed: false });
                }
                Err(error) if !error.is_gone() => return Err(error),
                _ => {
                    lost.changed += 1;
                    self.lost.push(block);
                }
            }
        }
        Ok(())
    }

    /// Finds out which blocks are huge pages again, at the end of a stage.
    pub(super) fn check(&mut self, memory: &dyn Memory) -> Result<()> {
        for split in &mut self.split {
            match memory.is_huge(&split.block) {
                Ok(huge) => split.collapsed |= huge,
                Err(error) if error.is_gone() => split.changed = true,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The processes of the blocks.
    pub(super) fn pids(&self) -> impl Iterator<Item = i32> {
        self.whole.iter().chain(self.split.iter().map(|split| &split.block)).map(|block| block.pid)
    }

    /// The pages of all blocks, which are checked once in each stage but the dense one.
    pub(super) fn points(&self) -> impl Iterator<Item = Point> {
        self.split.iter().flat_map(|split| split.pages.iter().map(|&address| Point { pid: split.block.pid, address }))
    }

    /// Takes the samples of one stage, in the order of [`SplitBlocks::points`].
    pub(super) fn add(&mut self, samples: &mut dyn Iterator<Item = Option<BitSamples>>, window: Duration) {
        for split in &mut self.split {
            for _ in &split.pages {
                match samples.next().flatten() {
                    Some(bits) => split.accessed = split.accessed.saturating_add(bits.accessed),
                    None => split.changed = true,
                }
            }
        }
        self.window += window;
    }

    /// The rates of the blocks, and those without one: a page that was found accessed is one access. Counts the others as lost.
    pub(super) fn take_rates(&mut self, lost: &mut Lost) -> (Vec<BlockRate>, Vec<Block>) {
        let window_us = micros(self.window);
        let mut rates = Vec::with_capacity(self.split.len());
        for split in std::mem::take(&mut self.split) {
            if split.changed || split.collapsed {
                *(if split.collapsed { &mut lost.collapsed } else { &mut lost.changed }) += 1;
                self.lost.push(split.block);
                continue;
            }
            // So many pages in this time are as much as all pages in a part of it.
            let sampled = u32::try_from(split.pages.len()).unwrap_or(u32::MAX);
            let exposure_us = window_us * u64::from(sampled) / u64::from(split.of.max(1));
            let touched = u64::from(split.accessed) * u64::from(split.of) / u64::from(sampled.max(1));
            rates.push(BlockRate {
                block: split.block,
                estimate: rate::counted(split.accessed.into(), exposure_us),
                samples: BitSamples { taken: sampled, accessed: split.accessed },
                parts: Some((split.of, u32::try_from(touched).unwrap_or(u32::MAX).min(split.of))),
            });
        }
        (rates, std::mem::take(&mut self.lost))
    }
}
