//! The parts of the agent's state that the scheduler's files share.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use kernel::cgroup::Cgroup;
use trackers::compressibility::Family;
use units::Millis;

use crate::controllers::policy::Policy;
use crate::discover::Rules;
use crate::history::History;
use crate::now::Now;
use crate::record::Recorder;

/// How long a killed job may take to release its memory before another one is killed.
const ENDING_MAX: Duration = Duration::from_secs(10);

/// A policy, and its next deadline.
#[derive(Debug)]
pub(super) struct Scheduled {
    pub(super) policy: Box<dyn Policy>,
    /// Time since boot of the next period, if the policy has one of its own.
    pub(super) next: Duration,
}

impl Scheduled {
    /// A policy that is not due before the loop begins.
    pub(super) fn new(policy: Box<dyn Policy>) -> Self {
        Self { policy, next: Duration::MAX }
    }
}

/// The choice of zswap's compressor.
#[derive(Debug, Default)]
pub(super) struct ZswapCompressor {
    /// The compressor that suits the jobs best, if it is not the one in use.
    pub(super) chosen: Option<Family>,
    /// When it was last changed.
    pub(super) changed_at: Option<Duration>,
    /// The newest sample that the choice is based on, in milliseconds since boot.
    pub(super) sampled_at: Millis,
    /// What zswap stored, at the last control periods.
    pub(super) stored: VecDeque<Stored>,
}

/// What zswap stored until a time, by counters that only grow while no job ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    /// Time since boot.
    pub(super) at: Duration,
    /// Pages stored since boot.
    pub(super) pages: u64,
    /// Those of them that the agent asked for, or more: some passed zswap.
    pub(super) by_agent: u64,
}

/// What survives the process.
#[derive(Debug)]
pub(super) struct Durable {
    pub(super) history: Option<History>,
    pub(super) recorder: Option<Recorder>,
}

/// What identifies the machine in records.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) boot_id: String,
    pub(super) kernel_release: String,
}

/// Which cgroups are jobs.
#[derive(Debug)]
pub(super) struct Discovery {
    /// The operator's rules.
    pub(super) rules: Rules,
    /// Cgroups that a rule names and that no tracker can observe.
    pub(super) refused: BTreeSet<String>,
}

/// The guard's state.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// When the machine was last checked, as time since boot.
    pub(super) checked: Option<Duration>,
    /// The job that was killed last.
    pub(super) ending: Option<Ending>,
}

/// A job that was killed.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) cgroup: Cgroup,
    pub(super) since: Duration,
}

impl Ending {
    /// Whether it may still be releasing its memory.
    pub(super) fn lasts(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) < ENDING_MAX && self.cgroup.populated().unwrap_or(false)
    }
}

/// A scan that is under way. While it lasts, its trackers are lent to the scanning thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub(super) began: Now,
    /// Whether it began more than half a period late.
    pub(super) late: bool,
    /// CPU time of finding the jobs.
    pub(super) discovery: Duration,
}
