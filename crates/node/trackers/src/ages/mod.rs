//! What observes accesses. Three trackers behind one trait, each giving per-job histograms.
//!
//! | tracker | unit | sees | cannot see |
//! |---|---|---|---|
//! | `page_idle` | page, physical | every mapped access and every `read(2)` of cached pages | nothing on the LRU lists; it is the reference |
//! | `lru_gen` | generation of a cgroup | accesses through page tables | ages beyond its four generations, single pages |
//! | `damon` | region of a process | accesses through page tables, sampled | differences inside a region |
//!
//! All count *swap-backed* pages (anonymous and shared memory: what zswap can hold) apart from file pages, which
//! are reported and not acted upon.

use std::time::Duration;

use kernel::pagemap::Entry;
use policy::histogram::AgeCounts;
use units::{Age, Pages};

pub mod choose;
pub mod damon;
pub mod lru_gen;
pub mod page_idle;

pub use config::Tracker as Kind;

/// A job as trackers see it: who belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The kernel's id of the job's cgroup.
    pub id: u64,
    /// The cgroup's path relative to the cgroup root.
    pub path: &'a str,
    /// Ids of that cgroup and of those below it.
    pub cgroups: &'a [u64],
    /// Its processes.
    pub pids: &'a [i32],
}

/// What one scan found of one job.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The time since boot that the ages are of.
    pub taken_at: Duration,
    /// Resident swap-backed pages by age.
    pub resident: AgeCounts,
    /// Resident file pages by age.
    pub file: AgeCounts,
    /// Accesses to swap-backed pages since the scan before, by the page's age at the access.
    pub accesses: AgeCounts,
    /// The time that `accesses` covers; zero at a job's first scan.
    pub window: Duration,
    /// The oldest age that the tracker tells apart from older ones.
    pub resolved_to: Age,
    /// What it could not see in this scan, for people.
    pub remark: Option<String>,
}

/// Observes jobs.
pub trait Tracker {
    /// Which one it is.
    fn kind(&self) -> Kind;

    /// Looks at all targets; a scan period should have passed since the last look. Results are in their order.
    ///
    /// # Errors
    /// The whole scan fails only when the kernel interface does; one job's trouble is its own result.
    fn scan(&mut self, now: Duration, targets: &[Target<'_>]) -> kernel::Result<Vec<kernel::Result<Scan>>>;

    /// The ages of single pages, where the tracker knows them.
    fn page_ages(&self) -> Option<&dyn PageAges> {
        None
    }

    /// Which of these page frames, found old by the last scan, still hold a page that nobody has accessed since. A
    /// tracker that cannot look again between scans says all of them.
    ///
    /// # Errors
    /// When the kernel interface fails.
    fn still_idle(&self, frames: &[u64]) -> kernel::Result<Vec<bool>> {
        Ok(vec![true; frames.len()])
    }

    /// Takes note that these page frames were handed to the kernel for reclaim.
    fn handed_over(&mut self, _frames: &[u64]) {}

    /// Takes note that this many pages of a job, its oldest, went to far memory.
    fn went_out(&mut self, _job: u64, _pages: Pages) {}

    /// Processes that are watched through kernel threads of ours, which outlive the agent if it is killed.
    fn kdamond_targets(&self) -> Vec<i32> {
        Vec::new()
    }

    /// CPU time that the kernel's threads have spent on our behalf, ever.
    fn kernel_cpu_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Generations of a job whose pages are at least `age` old, where the tracker works by generations.
    fn generations(&self, _path: &str, _age: Age) -> Vec<Generation> {
        Vec::new()
    }

    /// Ends observation and leaves nothing behind in the kernel.
    ///
    /// # Errors
    /// What could not be taken down.
    fn stop(&mut self) -> kernel::Result<()> {
        Ok(())
    }
}

/// Ages of single pages.
pub trait PageAges {
    /// The age of the page that `entry` maps at `address` of process `pid`, if it is one of a watched job's.
    fn age(&self, pid: i32, address: u64, entry: Entry) -> Option<Age>;

    /// Does what the kernel takes for an access to a page, such as reading it, so that the next scan does not.
    fn unseen(&self, _entry: Entry, access: &mut dyn FnMut()) {
        access();
    }

    /// The time since boot that a process's ages are of, where it is not that of the whole scan.
    fn taken_at(&self, _pid: i32) -> Option<Duration> {
        None
    }
}

/// One generation that may be evicted as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The memory cgroup's id in the kernel's own numbering.
    pub memcg: u64,
    /// The NUMA node.
    pub node: u32,
    /// The generation's number.
    pub seq: u64,
    /// Its swap-backed pages.
    pub pages: Pages,
}
