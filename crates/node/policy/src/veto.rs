//! What the surroundings of a job forbid, whatever its policy would do.

use serde::{Deserialize, Serialize};

/// A reason from outside a controller not to offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Veto {
    /// Another policy decides for this job.
    OtherPolicy,
    /// The operator only wants to look: class `observe`, or a dry run.
    ObserveOnly,
    /// The job has reached its memory limit and shall fail fast rather than thrash (000 section 5.1).
    AtLimit,
    /// There is no far memory on this machine, or it is full.
    NoFarMemory,
    /// The job's cold pages do not shrink enough to be worth compressing, and there is no other tier for them.
    Incompressible,
    /// The agent has spent its CPU budget.
    BudgetSpent,
    /// The job's tier is a device, and what may be written to it for now is spent (001 section 2.5).
    WritesSpent,
    /// The kernel moves pages between memory nodes by rules of its own (`kernel.numa_balancing`).
    NumaBalancing,
    /// This job's own stall is at its target (001 section 3.3).
    Stalled,
}
