//! What forbids a controller to act, in one order for all of them.

use config::Policy;
use kernel::numa;
use policy::veto::Veto;

use super::tiering;
use crate::context::Context;
use crate::job::Job;
use crate::now::Now;

/// A reason not to act, the most lasting first. The first that holds is the one that is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The operator wants the job observed only, or the run is a dry run.
    ObserveOnly,
    /// Another policy decides for the job.
    OtherPolicy,
    /// The job is at a memory limit, and its class or the operator wants it left alone there; or allocations fail.
    AtLimit,
    /// The job's stall is at its pressure target.
    Stalled,
    /// No tier takes the job's swap-backed memory. Checking this chooses the job's tier.
    NoTier,
    /// The kernel migrates pages between nodes by itself.
    NumaBalancing,
    /// The agent has spent its CPU budget.
    CpuBudget,
}

/// The first of `reasons` that forbids acting. A controller lists the reasons that concern it, in ascending order.
pub fn first(reasons: &[Reason], job: &mut Job, context: &mut Context, now: Now) -> Option<Veto> {
    debug_assert!(reasons.is_sorted(), "{reasons:?}");
    reasons.iter().find_map(|reason| check(*reason, job, context, now))
}

fn check(reason: Reason, job: &mut Job, context: &mut Context, now: Now) -> Option<Veto> {
    match reason {
        Reason::ObserveOnly => (!context.may_act(job)).then_some(Veto::ObserveOnly),
        Reason::OtherPolicy => (!matches!(job.treatment.policy, Policy::ColdAge | Policy::Auto)).then_some(Veto::OtherPolicy),
        Reason::AtLimit => job.signals.limit.forbids(context.config.agent.at_limit, job.treatment.class).then_some(Veto::AtLimit),
        Reason::Stalled => job.signals.stall.is_some_and(|stall| stall.at_target).then_some(Veto::Stalled),
        Reason::NoTier => tiering::place(job, context, now),
        Reason::NumaBalancing => {
            let balances = numa::balancing(&context.kernel.roots).is_ok_and(|found| found.mode.is_some_and(|mode| mode != 0));
            balances.then_some(Veto::NumaBalancing)
        }
        Reason::CpuBudget => context.pacing.budget_spent.then_some(Veto::BudgetSpent),
    }
}
