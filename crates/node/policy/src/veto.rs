//! Reasons from outside a controller that forbid offloading a job, whatever its policy.

use serde::{Deserialize, Serialize};

/// A reason from outside a controller not to offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Veto {
    /// Another policy decides for this job.
    OtherPolicy,
    /// The job is only observed: class `observe`, or a dry run.
    ObserveOnly,
    /// The job is at a memory limit, where its class or the operator does not want it offloaded (SDFM section 5.1), or its
    /// allocations fail there.
    AtLimit,
    /// The machine has no far memory, or it is full.
    NoFarMemory,
    /// The job's cold pages are incompressible, and there is no other tier for them.
    Incompressible,
    /// The agent has spent its CPU budget.
    BudgetSpent,
    /// The job's tier is a device, and its write budget is spent (TMO section 2.5).
    WritesSpent,
    /// The kernel moves pages between memory nodes by its own rules (`kernel.numa_balancing`).
    NumaBalancing,
    /// The job's stall is at or above its target (TMO section 3.3).
    Stalled,
}
