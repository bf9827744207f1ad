//! What is read of the agent's status: a part of `agent::view::View`, as it arrives.

use serde::Deserialize;
use units::Bytes;

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct View {
    pub(super) version: String,
    pub(super) kernel: String,
    pub(super) dry_run: bool,
    pub(super) saved_bytes: i64,
    pub(super) machine: Machine,
    pub(super) tiers: Tiers,
    pub(super) costs: Costs,
    pub(super) jobs: Vec<Job>,
    /// The last event that concerns the machine, in a journal.
    #[serde(skip)]
    pub(super) event: Option<Explained>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Machine {
    pub(super) total_bytes: Bytes,
    pub(super) available_bytes: Bytes,
    pub(super) pool_bytes: Bytes,
    pub(super) stored_bytes: Bytes,
    pub(super) swap_total_bytes: Bytes,
    pub(super) swap_free_bytes: Bytes,
    pub(super) no_far_memory: Option<String>,
    pub(super) troubles: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Tiers {
    pub(super) rows: Vec<Tier>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Tier {
    pub(super) name: String,
    pub(super) read_us: Option<u32>,
    pub(super) free_bytes: Option<Bytes>,
    pub(super) memory_bytes: Bytes,
    pub(super) writable_bytes: Option<Bytes>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Costs {
    pub(super) rss_bytes: Bytes,
    pub(super) cpu_seconds: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Job {
    pub(super) job: String,
    pub(super) class: String,
    pub(super) policy: String,
    pub(super) tier: Option<String>,
    pub(super) tier_reason: String,
    pub(super) tracker: String,
    pub(super) memory_bytes: Bytes,
    pub(super) working_set_bytes: Bytes,
    pub(super) cold_bytes: Bytes,
    pub(super) far_bytes: Bytes,
    pub(super) saved_bytes: Bytes,
    /// `None` in a journal, which does not record it.
    pub(super) protection_bytes: Option<Bytes>,
    pub(super) threshold_seconds: Option<f64>,
    pub(super) promotion_rate_ratio_per_min: Option<f64>,
    pub(super) slo_ratio_per_min: f64,
    pub(super) stall_ratio: Option<f64>,
    pub(super) explanation: String,
    /// Bytes that are at least this old, by age in seconds.
    pub(super) cold_age: Vec<(f64, Bytes)>,
    #[serde(default)]
    pub(super) recent: Vec<Decisions>,
}

impl Job {
    /// Whether the last period was over its objective.
    pub(super) fn is_over(&self) -> bool {
        self.promotion_rate_ratio_per_min.is_some_and(|rate| rate > self.slo_ratio_per_min)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Decisions {
    pub(super) controller: String,
    pub(super) decisions: Vec<Explained>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Explained {
    pub(super) unix_ms: u64,
    pub(super) text: String,
}

/// Bytes for ratios that are shown to people.
#[expect(clippy::cast_precision_loss, reason = "shown to people")]
pub(super) fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}
