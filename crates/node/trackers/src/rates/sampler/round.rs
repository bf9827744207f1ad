//! Settings and result of one sampling period.

use std::time::Duration;

use serde::Serialize;

use super::block_rate::BlockRate;
use crate::rates::blocks::Block;

/// How a period samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Samples in each of the three stages.
    pub samples: u32,
    /// The time between two samples.
    pub interval: Duration,
    /// Upper limit of the parts of a block that are sampled for their rates (50 in Thermostat section 3.2).
    pub parts_max: u32,
}

/// The result of a period.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// The sampled blocks without the lost ones, in the order given.
    pub sampled: Vec<BlockRate>,
    /// The slow blocks without the lost ones, in the order given.
    pub slow: Vec<BlockRate>,
    /// Blocks that were split, to be collapsed again.
    pub split: Vec<Block>,
    /// Blocks without an estimate.
    pub lost: Lost,
    /// Samples taken, in all stages.
    pub samples: u32,
    /// The time over which they were taken.
    pub window: Duration,
}

/// Number of blocks without an estimate, or without a precise one, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Pages vanished, moved or changed size during the period, or the process exited.
    pub changed: u32,
    /// The tracker's limit on points was reached. A huge page whose parts exceed the limit, and a slow block, are reported
    /// without an upper bound on their rate.
    pub over_capacity: u32,
    /// Accessed at every sample as a whole, and not split: splitting is off, or the kernel refused.
    pub not_split: u32,
}
