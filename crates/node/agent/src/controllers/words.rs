//! Words for what several controllers report.

use policy::veto::Veto;

/// Why a controller holds although its policy would act.
#[must_use]
pub fn veto(veto: Veto) -> &'static str {
    match veto {
        Veto::OtherPolicy => "another policy decides for this job",
        Veto::ObserveOnly => "observing only",
        Veto::AtLimit => "the job is at its memory limit, or its allocations fail there",
        Veto::NoFarMemory => "there is no far memory, or it is full (see `thermocline doctor`)",
        Veto::Incompressible => "its cold pages do not compress",
        Veto::BudgetSpent => "the agent has spent its CPU budget",
        Veto::WritesSpent => "the device's write budget is spent for now",
        Veto::NumaBalancing => "the kernel migrates pages between nodes by itself: set kernel.numa_balancing to 0, or slow.manage to true",
        Veto::Stalled => "its stall is at its pressure target",
    }
}
