//! Page ages: five trackers behind one trait, each returns histograms per job.
//!
//! | tracker | unit | sees | does not see |
//! |---|---|---|---|
//! | `page_idle` | page frame | every mapped access and every `read(2)` of cached pages | pages outside the LRU lists |
//! | `sampled_frames` | random page frame | the same | pages outside the LRU lists |
//! | `sampled` | random page of a process | accesses through page tables | tmpfs that no process maps |
//! | `lru_gen` | generation of a cgroup | accesses through page tables | ages beyond four generations, single pages |
//! | `damon` | region of a process | accesses through page tables, sampled | differences inside a region |
//!
//! `page_idle` is the reference for the others. All count *swap-backed* pages (anonymous and shared memory, which zswap
//! can hold) separately from file pages, which are reported and not acted upon.

use std::time::Duration;

use kernel::pagemap::Entry;
use policy::histogram::AgeCounts;
use units::{Age, Bytes, Pages};

pub mod choose;
pub mod damon;
pub mod frames;
mod generations;
mod idle_files;
pub mod lru_gen;
pub mod page_idle;
mod passed_over;
pub mod sampled;

pub use config::Tracker as Kind;

/// A job as trackers see it: its cgroups and processes.
#[derive(Clone, Debug)]
pub struct Target {
    /// Kernel id of the job's cgroup.
    pub id: u64,
    /// Path of the cgroup, relative to the cgroup root.
    pub path: String,
    /// Ids of that cgroup and its descendants.
    pub cgroups: Vec<u64>,
    /// Processes of the job, for trackers that watch processes.
    pub pids: Vec<i32>,
    /// The age from which its pages are offloaded, by the last decision; `None` before the first.
    pub threshold: Option<Age>,
    /// Whether idle huge pages of its sample may be split.
    pub may_split: bool,
    /// Whether huge pages of the job that are in use may be split, if most of what they hold is idle.
    pub may_split_busy: bool,
}

/// The result of one scan for one job.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Time since boot at which the ages were taken.
    pub taken_at: Duration,
    /// Resident swap-backed pages by age.
    pub resident: AgeCounts,
    /// Resident file pages by age.
    pub file: AgeCounts,
    /// Accesses to swap-backed pages since the previous scan, by the page's age at the access.
    pub accesses: AgeCounts,
    /// Time covered by `accesses`; zero at a job's first scan.
    pub window: Duration,
    /// The oldest age that the tracker distinguishes from older ones.
    pub resolved_to: Age,
    /// Huge pages that this scan split.
    pub split: u64,
    /// A message to the user about accesses that this scan could not see.
    pub remark: Option<String>,
    /// The sample that the counts are estimated from; `None` if every page was counted.
    pub sample: Option<Sample>,
}

/// A random sample of a job's swap-backed pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Number of resident pages in it.
    pub points: Pages,
    /// Sampled pages in far memory by age, counted in points.
    pub far: AgeCounts,
    /// Sampled pages that were accessed in far memory since the previous scan, by age at the access, counted in points.
    pub promoted: AgeCounts,
}

/// Measures the page ages of jobs. A scan may run on another thread than the one that uses its results.
pub trait Tracker: Send {
    /// Which tracker this is.
    fn kind(&self) -> Kind;

    /// Scans all targets, one scan period after the previous scan. Results are in the order of the targets.
    ///
    /// # Errors
    /// When the kernel interface fails. An error that concerns one job is that job's result.
    fn scan(&mut self, now: Duration, targets: &[Target]) -> kernel::Result<Vec<kernel::Result<Scan>>>;

    /// Ages of single pages, if the tracker knows them.
    fn page_ages(&self) -> Option<&dyn PageAges> {
        None
    }

    /// Returns which of these page frames, found old by the last scan, hold a page that was not accessed since. A
    /// tracker that cannot check between scans returns `true` for all.
    ///
    /// # Errors
    /// When the kernel interface fails.
    fn still_idle(&self, frames: &[u64]) -> kernel::Result<Vec<bool>> {
        Ok(vec![true; frames.len()])
    }

    /// Records that reclaim of these page frames was requested from the kernel.
    fn reclaim_requested(&mut self, _frames: &[u64]) {}

    /// Records that the offload of these page frames, found old by the last scan, is in vain until their pages are accessed.
    fn pass_over(&mut self, _frames: &[u64]) {}

    /// Records that this number of pages of a job, its oldest, was swapped out.
    fn swapped_out(&mut self, _job: u64, _pages: Pages) {}

    /// Processes that kernel threads watch for this tracker. These threads survive the agent if it is killed.
    fn kdamond_targets(&self) -> Vec<i32> {
        Vec::new()
    }

    /// CPU time of the tracker's kernel threads since it was opened.
    fn kernel_cpu_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Memory of the tracker's kernel threads and of what they keep, by an upper bound.
    fn kernel_memory(&self) -> Bytes {
        Bytes::ZERO
    }

    /// Generations of a job whose pages are at least `age` old; empty unless the tracker works by generations.
    fn generations(&self, _path: &str, _age: Age) -> Vec<Generation> {
        Vec::new()
    }

    /// The age of a job's oldest generation that is worth evicting ([`EVICTED_MIN`]), where generations are opened at the pace of its
    /// threshold; `None` elsewhere.
    fn reach(&self, _path: &str) -> Option<Age> {
        None
    }

    /// Samples half as many pages from the next scan on, and returns how many at most; `None` if it has no sample, or samples so few that
    /// half of them would say too little.
    fn sample_fewer(&mut self) -> Option<u64> {
        None
    }

    /// Stops observation and leaves nothing behind in the kernel.
    ///
    /// # Errors
    /// What could not be stopped.
    fn stop(&mut self) -> kernel::Result<()> {
        Ok(())
    }
}

/// Ages of single pages.
pub trait PageAges {
    /// Age of the page that `entry` maps at `address` of process `pid`; `None` if it belongs to no watched job.
    fn age(&self, pid: i32, address: u64, entry: Entry) -> Option<Age>;

    /// Whether the page that `entry` maps was passed over, and not accessed since ([`Tracker::pass_over`]).
    fn is_passed_over(&self, _entry: Entry) -> bool {
        false
    }

    /// Whether every page has an age. False for a sample: [`Self::age`] is `None` for pages that are not in it.
    fn are_complete(&self) -> bool {
        true
    }

    /// Performs an access to the page that `entry` maps at `address` of process `pid`, such as reading it, so that the next scan
    /// does not count it.
    fn hide_access(&self, _pid: i32, _address: u64, _entry: Entry, access: &mut dyn FnMut()) {
        access();
    }

    /// Time since boot at which the ages of this process were taken, if it differs from [`Scan::taken_at`].
    fn taken_at(&self, _pid: i32) -> Option<Duration> {
        None
    }
}

/// The fewest pages that a generation is asked for. The kernel isolates so many at once (`MIN_LRU_BATCH` in `mm/vmscan.c`); if it
/// finds no anonymous ones among the oldest, it takes page cache instead.
pub const EVICTED_MIN: Pages = Pages(64);

/// A generation of MGLRU, which can be evicted as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The memory cgroup's id in MGLRU's debugfs file.
    pub memcg: u64,
    /// NUMA node.
    pub node: u32,
    /// Sequence number of the generation.
    pub seq: u64,
    /// Swap-backed pages of the generation and all older ones.
    pub pages: Pages,
}
