//! What other threads may see of the agent: a copy, made after each round.

use std::sync::{Arc, PoisonError, RwLock};

use config::Kind;
use policy::background::Hint;
use policy::cold_age::Decision;
use serde::Serialize;
use units::Bytes;

use crate::controllers::recent::Explained;
use crate::costs::Costs;
use crate::following::FollowingView;
use crate::job::Totals;
use crate::machine::Machine;
use crate::savings::Ledger;
use crate::slow_node::SlowNode;
use crate::tiers::TiersView;
use crate::trials::TrialView;
use crate::waits::WaitsView;

/// The whole agent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct View {
    /// The program's version.
    pub version: &'static str,
    /// The process.
    pub pid: u32,
    /// The kernel's release.
    pub kernel: String,
    /// Whether it only observes.
    pub dry_run: bool,
    /// Seconds from scan to scan.
    pub scan_period_seconds: f64,
    /// The machine.
    pub machine: Machine,
    /// Its tiers.
    pub tiers: TiersView,
    /// The slow memory node, if a job uses one.
    pub slow: Option<SlowNode>,
    /// Why nothing can be placed there.
    pub slow_trouble: Option<String>,
    /// The rollout that the machine follows; `None` if none is configured.
    pub rollout: Option<FollowingView>,
    /// What the agent itself costs.
    pub costs: Costs,
    /// DRAM that the machine gained from all jobs, minus what that occupies; negative while the agent costs more.
    pub saved_bytes: i64,
    /// DRAM that could be saved, by the estimates of all jobs that have one, minus what the agent occupies; `None` before the first.
    pub could_save_bytes: Option<i64>,
    /// The same with `could_save_at_most_bytes` of the jobs whose history is too short for an estimate.
    pub could_save_at_most_bytes: Option<i64>,
    /// `saved_bytes` by kind, and reconciled with the kernel's counters.
    pub savings: Ledger,
    /// Memory and savings of the jobs of each kind (TMO figures 9 and 10).
    pub totals_by_kind: [KindTotals; Kind::ALL.len()],
    /// Its jobs, by path.
    pub jobs: Vec<JobView>,
}

/// The current view for other threads. Readers take a reference and hold no lock while they use it, so that a slow scrape or
/// client never delays the loop.
#[derive(Clone, Debug, Default)]
pub struct Published(Arc<RwLock<Arc<View>>>);

impl Published {
    /// The current view.
    #[must_use]
    pub fn get(&self) -> Arc<View> {
        // The lock protects the exchange of a pointer: even after a panic the view is complete.
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the view.
    pub fn set(&self, view: View) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
    }
}

/// All jobs of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct KindTotals {
    /// The kind.
    pub kind: &'static str,
    /// How many jobs.
    pub jobs: usize,
    /// Memory charged to them.
    pub memory_bytes: Bytes,
    /// DRAM that the machine gained from them.
    pub saved_bytes: Bytes,
    /// `memory_bytes` as a share of the machine's memory.
    pub memory_ratio: f64,
    /// `saved_bytes` as a share of the machine's memory.
    pub saved_ratio: f64,
}

/// Totals of one job since the agent started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JobTotals {
    /// What moved.
    #[serde(flatten)]
    pub moved: Totals,
    /// Control periods with far memory and a known promotion rate.
    pub periods: u64,
    /// Of these, periods whose promotion rate was above the objective.
    pub slo_violations: u64,
}

/// The last decisions of one controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecentDecisions {
    /// Its name.
    pub controller: &'static str,
    /// Its decisions in words, oldest first.
    pub decisions: Vec<Explained>,
}

/// One job.
#[derive(Clone, Debug, Default, Serialize)]
pub struct JobView {
    /// Its cgroup relative to the cgroup root.
    pub job: String,
    /// Its class.
    pub class: &'static str,
    /// Its kind.
    pub kind: &'static str,
    /// Its policy.
    pub policy: &'static str,
    /// Where its swap-backed memory goes.
    pub tier: Option<String>,
    /// Why that tier, or why none.
    pub tier_reason: &'static str,
    /// The last hint of an operator; `None` if there is none.
    pub hint: Option<Hint>,
    /// Compressed size of its sampled cold pages, as a share of their size.
    pub compressed_ratio: Option<f64>,
    /// Advice to use another compressor, if that would save much more.
    pub advice: Option<String>,
    /// Bytes that it wrote to swap devices.
    pub written_bytes: Bytes,
    /// Bytes that the agent moved from zswap to the swap device.
    pub moved_to_device_bytes: Bytes,
    /// The tracker that measures its page ages.
    pub tracker: &'static str,
    /// Why that tracker.
    pub tracker_reason: &'static str,
    /// Time since boot of the last scan; `None` before the first.
    pub scanned_at_seconds: Option<f64>,
    /// Ages beyond this one, in seconds, are estimated by the tracker.
    pub resolved_to_seconds: f64,
    /// Resident pages that the ages are estimated from; `None` if all pages were counted.
    pub sample_points: Option<u64>,
    /// What the tracker could not measure.
    pub remark: Option<String>,
    /// Memory charged to it.
    pub memory_bytes: Bytes,
    /// What its own `memory.low` or `memory.min` claims.
    pub protection_claimed_bytes: Bytes,
    /// The part of its memory that is protected in effect: the kernel bounds the claim by the settings of all ancestors.
    pub protection_bytes: Bytes,
    /// Whether the agent has set `memory.min`, because the kernel reclaims in spite of `memory.low`.
    pub hard_protection: bool,
    /// Swap-backed bytes accessed within the minimum cold age.
    pub working_set_bytes: Bytes,
    /// Swap-backed bytes idle for the minimum cold age or longer, far ones included.
    pub cold_bytes: Bytes,
    /// Cold file bytes, which are not acted upon.
    pub cold_file_bytes: Bytes,
    /// Uncompressed bytes in far memory.
    pub far_bytes: Bytes,
    /// DRAM that their compressed copies occupy in zswap, with the job's share of the allocator's own pages.
    pub pool_bytes: Bytes,
    /// DRAM that they occupy on zram devices, which the kernel charges to no cgroup.
    pub zram_bytes: Bytes,
    /// Page cache that the agent reclaimed and that the kernel would still hold.
    pub file_out_bytes: Bytes,
    /// Bytes in a slow memory node.
    pub slow_bytes: Bytes,
    /// Estimated accesses per second to these, in the last period; `None` if its policy places nothing there.
    pub slow_rate_per_second: Option<f64>,
    /// The budget of accesses per second that its tolerated slowdown allows.
    pub slow_budget_per_second: Option<f64>,
    /// What it may have there by its floor of fast memory, its upper bound or its share; `None` without a bound.
    pub slow_max_bytes: Option<Bytes>,
    /// DRAM that the machine gained: far memory without its compressed copies in zswap and zram, page cache, and memory in a slow node.
    pub saved_bytes: Bytes,
    /// DRAM that offloading all swap-backed memory idle for the threshold would save, net of its compressed copies; `None` until it is
    /// known. Page cache is not included.
    pub could_save_bytes: Option<Bytes>,
    /// What `could_save_bytes` can become at most: all that was not accessed between two scans is offloaded. Known first.
    pub could_save_at_most_bytes: Option<Bytes>,
    /// What these copies would occupy as a share, by a sample or, without one, by what the machine's pool holds.
    pub would_occupy_ratio: Option<f64>,
    /// Seconds until `could_save_bytes` can be known; `None` if it is, and if that cannot be said.
    pub could_save_known_in_seconds: Option<f64>,
    /// Whether `could_save_bytes` is unknown because the history is too short for a threshold that meets the objective.
    pub could_save_needs_history: bool,
    /// Share of the last `pressure.period` in which some task waited for memory; `None` if its policy does not use stalls.
    pub stall_ratio: Option<f64>,
    /// The same for I/O.
    pub io_stall_ratio: Option<f64>,
    /// Cost of refaults by the tier's measured latency, as a share of that period.
    pub refault_stall_ratio: Option<f64>,
    /// What it lost to far memory.
    pub waits: WaitsView,
    /// The result of its last trial that was kept; `None` without one.
    pub trial: Option<TrialView>,
    /// `far_bytes / cold_bytes` (SDFM section 6.1).
    pub coverage_ratio: f64,
    /// The cold-age threshold in seconds; `None` if none qualifies.
    pub threshold_seconds: Option<f64>,
    /// The last decision.
    pub decision: Option<Decision>,
    /// The current decisions of all controllers in words.
    pub explanation: String,
    /// Promotions per minute in the last period, as a ratio of the working set.
    pub promotion_rate_ratio_per_min: Option<f64>,
    /// The objective for it.
    pub slo_ratio_per_min: f64,
    /// Totals since the agent started.
    pub totals: JobTotals,
    /// Swap-backed bytes that are at least this old, by age in seconds.
    pub cold_age: Vec<(f64, Bytes)>,
    /// Resident swap-backed bytes that were accessed in the last scan's window at this age or older, by age in seconds.
    pub accessed: Vec<(f64, Bytes)>,
    /// The time that `accessed` covers, in seconds.
    pub accessed_window_seconds: f64,
    /// The last decisions of each controller; only `explain` shows them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<RecentDecisions>,
}

impl View {
    /// A copy without the jobs' last decisions, by far the largest part.
    #[must_use]
    pub fn brief(&self) -> Self {
        let brief = |job: &JobView| JobView {
            job: job.job.clone(),
            tier: job.tier.clone(),
            advice: job.advice.clone(),
            remark: job.remark.clone(),
            explanation: job.explanation.clone(),
            cold_age: job.cold_age.clone(),
            accessed: job.accessed.clone(),
            recent: Vec::new(),
            ..*job
        };
        Self {
            kernel: self.kernel.clone(),
            machine: self.machine.clone(),
            tiers: self.tiers.clone(),
            slow_trouble: self.slow_trouble.clone(),
            rollout: self.rollout.clone(),
            jobs: self.jobs.iter().map(brief).collect(),
            ..*self
        }
    }
}
