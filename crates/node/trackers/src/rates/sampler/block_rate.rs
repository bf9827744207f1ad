//! The access rate of a block, from samples of its accessed bits.

use std::time::Duration;

use policy::slowdown::rate::{self, BitSamples, Estimate, Parts};

use crate::rates::blocks::Block;

/// A block with its access rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRate {
    /// The block.
    pub block: Block,
    /// Its accesses per second.
    pub estimate: Estimate,
    /// The samples that the estimate is based on: of the block as a whole, or of all of its parts together.
    pub samples: BitSamples,
    /// For a block sampled in parts: the number of its parts, and how many of them were touched.
    pub parts: Option<(u32, u32)>,
}

impl BlockRate {
    /// The rate of a huge page from samples of it as a whole.
    pub(super) fn of_huge(block: Block, samples: BitSamples, interval_us: u64) -> Self {
        Self { block, estimate: rate::page(samples, interval_us), samples, parts: None }
    }

    /// This rate or that from dense samples, whichever says more: the dense ones if they have the smaller error, and also if they
    /// contradict the others. Samples find a hot page idle while its program does not run, as when a hypervisor takes the processor
    /// away, and none find an idle page accessed: the higher rate is the right one.
    pub(super) fn or_dense(self, dense: Self) -> Self {
        let contradicts = self.estimate.upper.is_some_and(|upper| dense.estimate.mean > upper);
        if dense_is_better(self.samples) || contradicts { dense } else { self }
    }
}

/// Whether dense samples say more about a huge page's rate than those before it.
///
/// With `x` accesses expected between two of `n` samples, the relative error of the rate is `sqrt((exp(x) - 1) / n) / x`. It is least at
/// `x = 1.6`; at 2.3, where nine of ten samples find the page accessed, 30 samples eight times as dense have the smaller error.
fn dense_is_better(before: BitSamples) -> bool {
    u64::from(before.accessed) * 10 >= u64::from(before.taken) * 9
}

/// Samples of some parts of a block, which stand for all of its touched parts.
pub(super) struct PartSamples<'a> {
    /// Parts of the block.
    pub(super) of: u32,
    /// How many of them were touched within `touch_window_us`.
    pub(super) touched: u32,
    /// Microseconds within which parts were checked for being touched; 0 if all count as touched.
    pub(super) touch_window_us: u64,
    /// Samples of the chosen parts.
    pub(super) parts: &'a [BitSamples],
}

impl PartSamples<'_> {
    /// Estimates the rate of the block, from samples `interval_us` microseconds apart.
    pub(super) fn rate(&self, block: Block, interval_us: u64) -> BlockRate {
        let &Self { of, touched, touch_window_us, parts: bits } = self;
        let estimate = rate::parts(&Parts { of, touched, touch_window_us, samples: bits, interval_us });
        let sum = |count: fn(&BitSamples) -> u32| bits.iter().map(count).fold(0, u32::saturating_add);
        let samples = BitSamples { taken: sum(|bits| bits.taken), accessed: sum(|bits| bits.accessed) };
        BlockRate { block, estimate, samples, parts: Some((of, touched)) }
    }
}

/// The mean sampling interval in microseconds, if `taken` samples took `window`.
pub(super) fn interval_us(window: Duration, taken: u32) -> u64 {
    micros(window) / u64::from(taken.max(1))
}

/// A duration in whole microseconds.
pub(super) fn micros(time: Duration) -> u64 {
    units::micros(time)
}
