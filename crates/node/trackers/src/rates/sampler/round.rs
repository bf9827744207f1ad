//! Settings and result of one sampling period.

use std::time::Duration;

use policy::slowdown::rate::{self, BitSamples};
use serde::Serialize;
use units::AccessRate;

use super::block_rate::{BlockRate, micros};
use crate::rates::blocks::Block;
use crate::rates::tracker::RateTracker;

/// The blocks of a period.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    /// Blocks that are not in the slow node.
    pub sampled: Vec<Block>,
    /// Blocks of the slow node that stay as they are.
    pub slow: Vec<Block>,
    /// Huge pages of the slow node that are split for the period.
    pub split: Vec<Block>,
}

/// How a period samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Samples in each of the stages but the dense one, which has three times as many.
    pub samples: u32,
    /// The time between two of them; of the dense stage they are [`DENSER`] times as dense.
    pub interval: Duration,
    /// Upper limit of the parts of a block that are sampled for their rates (50 in Thermostat section 3.2).
    pub parts_max: u32,
}

/// How many times denser the samples of the dense stage follow each other: it resolves rates so many times as high. The denser, the more
/// accesses the processor's cached translations hide.
pub const DENSER: u32 = 8;

/// How often the points of a stage are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// Number of samples.
    pub(super) samples: u32,
    /// The time between two samples.
    pub(super) interval: Duration,
}

impl Settings {
    /// The stages other than the dense one.
    pub(super) fn pace(&self, tracker: &dyn RateTracker) -> Pace {
        Pace { samples: self.samples, interval: self.interval.max(tracker.interval_min()) }
    }

    /// Dense sampling, with as many samples as all other stages; `None` if the tracker cannot sample at least twice as often.
    pub(super) fn dense(&self, tracker: &dyn RateTracker) -> Option<Pace> {
        let usual = self.pace(tracker).interval;
        let interval = (usual / DENSER).max(tracker.dense_interval_min());
        (interval * 2 <= usual).then_some(Pace { samples: self.samples * 3, interval })
    }

    /// The highest rate of a huge page in the slow node that a period can measure.
    pub(super) fn measurable(&self, tracker: &dyn RateTracker) -> AccessRate {
        let all = Pace { samples: self.samples * 3, ..self.pace(tracker) };
        let Pace { samples, interval } = self.dense(tracker).unwrap_or(all);
        rate::resolvable(samples, micros(interval))
    }
}

/// Whether a huge page is to be sampled densely: half of the samples or more found it accessed. From nine of ten on they say less about
/// its rate; below, the dense ones show whether the others were of a time in which it was cold, or its program did not run
/// ([`super::BlockRate::or_dense`]).
pub(super) fn needs_dense(samples: BitSamples) -> bool {
    u64::from(samples.accessed) * 2 >= u64::from(samples.taken)
}

/// The result of a period.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// The sampled blocks without the lost ones, in the order given.
    pub sampled: Vec<BlockRate>,
    /// The slow blocks without the lost ones, in the order given.
    pub slow: Vec<BlockRate>,
    /// The blocks of the slow node that were split, without the lost ones: by accessed pages.
    pub slow_split: Vec<BlockRate>,
    /// The lost ones of these.
    pub slow_lost: Vec<Block>,
    /// Blocks that were split, to be collapsed again.
    pub split: Vec<Block>,
    /// Blocks without an estimate.
    pub lost: Lost,
    /// The highest rate of a huge page in the slow node that such a period can measure.
    pub measurable: AccessRate,
    /// Samples taken, in all stages but the dense one.
    pub samples: u32,
    /// The time over which they were taken.
    pub window: Duration,
}

/// Number of blocks without an estimate, or without a precise one, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Pages vanished, moved or changed size during the period, or the process exited.
    pub changed: u32,
    /// Huge pages in slow memory that were split for the period, and collapsed by khugepaged within it.
    pub collapsed: u32,
    /// The tracker's limit on points was reached. A huge page whose parts exceed the limit, and a slow block, are reported
    /// without an upper bound on their rate.
    pub over_capacity: u32,
    /// Accessed at every sample as a whole, and not split: splitting is off, or the kernel refused.
    pub not_split: u32,
}
