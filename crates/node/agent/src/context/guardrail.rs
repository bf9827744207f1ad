//! A job's control period, as the agent's guardrail uses it.

use config::{Class, Policy};
use units::{Millis, RatioPpm};

/// One control period of one job, under a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPeriod {
    /// The job.
    pub job: String,
    /// Its class, by which the operator's own objectives are found.
    pub class: Class,
    /// Its policy.
    pub policy: Policy,
    /// Periods with far memory so far.
    pub periods: u64,
    /// Promotion rate and the objective in effect, in millionths of the working set per minute; `None` if the period does not
    /// count.
    pub promotions_ppm: Option<(u64, u64)>,
    /// The stall target in effect.
    pub stall_target: Option<RatioPpm>,
    /// Whether the job has far memory.
    pub far: bool,
    /// Stall of its tasks for memory, ever, in microseconds.
    pub stall_us: u64,
    /// Length of the period in milliseconds.
    pub elapsed_ms: Millis,
}
