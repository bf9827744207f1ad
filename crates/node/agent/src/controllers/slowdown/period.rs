//! A sampling period in progress.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use trackers::rates::sampler::{BlockRate, Sampler};
use units::Bytes;

/// A period in progress.
#[derive(Debug)]
pub(super) struct Period {
    pub(super) sampler: Sampler,
    pub(super) began: Duration,
    pub(super) members: Members,
}

/// Whose memory is observed.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// The job of each process.
    pub(super) jobs: BTreeMap<i32, String>,
    /// Processes whose huge pages may be split.
    pub(super) splittable: BTreeSet<i32>,
    /// The memory of each job that can be moved, and the part of it in the slow node.
    pub(super) memory: BTreeMap<String, (Bytes, Bytes)>,
}

impl Members {
    /// The job of a sampled block.
    pub(super) fn job_of(&self, rated: &BlockRate) -> Option<&str> {
        self.jobs.get(&rated.block.pid).map(String::as_str)
    }
}
