//! The seam between the scheduler and the policies: what a controller of one job is.

use std::any::Any;
use std::fmt::Debug;

use config::Config;
use policy::background::Hint;
use units::Pages;

use super::recent::Recent;
use crate::context::Context;
use crate::history::JobHistory;
use crate::job::Job;
use crate::journal::{JobRecord, Record};
use crate::now::Now;
use crate::view::JobView;

/// One policy of one job. A period is [`read`](Self::read), [`step`](Self::step), [`record`](Self::record),
/// [`apply`](Self::apply), in this order; [`run`] is the only caller. The record's replay is an implementation of
/// [`super::replay::Replay`] beside the record.
pub trait Controller: Slot {
    /// What one decision is based on.
    type Input;
    /// What the policy decides.
    type Decision;

    /// Reads what the decision is based on from the kernel, through the arguments.
    ///
    /// # Errors
    /// Any error of the kernel's files. The period is then skipped and the plan dropped.
    fn read(&mut self, job: &mut Job, context: &mut Context, now: Now) -> kernel::Result<Self::Input>;

    /// Calls the policy and keeps its state. Depends on nothing but the controller's parameters, its state and `input`.
    fn step(&mut self, input: &Self::Input) -> Self::Decision;

    /// Closes the period: the journal's record of it, with what was done since the previous decision.
    fn record(&mut self, job: &mut Job, now: Now, input: Self::Input, decision: &Self::Decision) -> Record;

    /// Makes the decision the controller's plan, and sets what takes effect at once.
    ///
    /// # Errors
    /// Any error of the kernel's files.
    fn apply(&mut self, job: &mut Job, context: &mut Context, now: Now, decision: &Self::Decision) -> kernel::Result<()>;
}

/// Runs one period.
///
/// # Errors
/// As [`Controller::read`] and [`Controller::apply`].
pub fn run<C: Controller>(controller: &mut C, job: &mut Job, context: &mut Context, now: Now) -> kernel::Result<()> {
    let input = controller.read(job, context, now)?;
    let decision = controller.step(&input);
    let record = controller.record(job, now, input, &decision);
    // Recorded before it is applied: what is done from here on belongs to the next period.
    context.log.push(record);
    controller.apply(job, context, now, &decision)
}

/// A controller whose types are erased, as the scheduler keeps it.
pub trait Slot: Any + Debug {
    /// The policy's name.
    fn name(&self) -> &'static str;

    /// Runs one period, by [`run`].
    ///
    /// # Errors
    /// As [`run`].
    fn period(&mut self, job: &mut Job, context: &mut Context, now: Now) -> kernel::Result<()>;

    /// Drops or pauses the plan after an error.
    fn abandon(&mut self);

    /// Drops a plan that is based on page ages, because they are no longer current.
    fn forget_ages(&mut self) {}

    /// Replaces the parameters by those of `config`. The state is kept.
    fn configure(&mut self, job: &mut Job, config: &Config);

    /// Writes the parameters and the state into a job's starting record.
    fn start(&self, record: &mut JobRecord);

    /// Writes what must survive a restart into the job's history.
    fn save(&self, _history: &mut JobHistory) {}

    /// Takes over what an earlier agent saved.
    fn restore(&mut self, _history: &JobHistory) {}

    /// Takes a hint of an operator or an orchestrator. Returns whether the policy uses hints.
    fn take_hint(&mut self, _hint: Option<Hint>) -> bool {
        false
    }

    /// Makes a plan from a new scan.
    fn plan(&mut self, _job: &Job) {}

    /// Whether a plan to offload is to be carried out.
    fn offload_due(&self) -> bool {
        false
    }

    /// Carries out one step of the plan, of at most `limit` pages. `swap_limit` is the limit for pages that are written to a
    /// device. Returns the pages that the kernel was asked for.
    ///
    /// # Errors
    /// Any error of the kernel; the plan is then dropped.
    fn offload(&mut self, _job: &mut Job, _context: &mut Context, _limit: Pages, _swap_limit: Pages) -> kernel::Result<Pages> {
        Ok(Pages::ZERO)
    }

    /// Drops the part of the plan that would write to a device, until the next decision.
    fn drop_writes(&mut self) {}

    /// The last decisions; `None` while another policy decides for the job.
    fn recent(&self) -> Option<&Recent>;

    /// The current decision in words; `None` before the first, or if another controller says all there is to say.
    fn explain(&self, job: &Job) -> Option<String>;

    /// Writes the controller's figures into the job's view.
    fn report(&self, _job: &Job, _view: &mut JobView) {}
}
