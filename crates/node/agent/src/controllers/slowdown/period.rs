//! A sampling period in progress, and the search before it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use trackers::rates::blocks;
use trackers::rates::sampler::{BlockRate, Blocks, Sampler};
use units::Bytes;

use crate::context::Context;
use crate::controllers::slots::Entry;

/// Blocks of one job that are known at once, at most: a tebibyte of huge pages. What a job has beyond that is not moved.
const BLOCKS_MAX: usize = 1 << 19;

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

/// What is observed in a period.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    pub(super) blocks: Blocks,
    pub(super) members: Members,
}

/// The search for the blocks of a period that is about to begin: a machine has thousands of jobs, and a job hundreds of thousands of
/// blocks.
#[derive(Debug)]
pub(super) struct Search {
    /// Time since boot at which it began: the period's.
    pub(super) began: Duration,
    /// The slow node.
    pub(super) node: u32,
    /// The jobs that are left, the next one last, each with the number of its turn to have slow blocks split.
    pub(super) left: Vec<(String, Option<u64>)>,
    /// The search of the next job, if it has begun.
    pub(super) job: Option<blocks::Search>,
    pub(super) chosen: Chosen,
}

impl Search {
    /// Searches a part of the next job. Returns what was found of it with the last part.
    pub(super) fn step(&mut self, entry: &Entry, context: &Context) -> kernel::Result<Option<blocks::Search>> {
        let mut job = match self.job.take() {
            Some(job) => job,
            None => blocks::Search::new(entry.job.cgroup.procs(crate::PROCESSES_MAX)?),
        };
        if job.step(&context.kernel.roots, BLOCKS_MAX)? {
            return Ok(Some(job));
        }
        self.job = Some(job);
        Ok(None)
    }
}
