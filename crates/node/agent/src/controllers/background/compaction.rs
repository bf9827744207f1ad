//! Carries out a compaction or a prefetch, in small steps.

use std::time::Duration;

use units::{Bytes, Pages};

use super::Background;
use super::plan::Plan;
use super::record::Done;
use crate::actuators::compact::{self, Task};
use crate::context::Context;
use crate::controllers::tiering;
use crate::job::Job;
use crate::reclaim::{charge, count};

impl Background {
    /// One step of the plan; an error ends the plan. Returns what the step moved, and how long to wait before the next one.
    pub(super) fn step_plan(&mut self, job: &mut Job, context: &mut Context, limit: Pages) -> kernel::Result<(Bytes, Duration)> {
        let page = kernel::page_size();
        let Some(mut plan) = self.plan.take() else { return Ok((Bytes::ZERO, Duration::ZERO)) };
        let limit = match plan.task {
            Task::Compact => tiering::writable(job, context, context.clock.now()).map_or(limit, |bytes| limit.min(bytes.to_pages(page))),
            Task::Prefetch => limit,
        };
        let (stall, available) = context.memory_pressure()?;
        // A step that only frees memory need not wait.
        if !plan.cursor.pages_done() && (limit == Pages::ZERO || self.must_wait(stall, available)) {
            self.pause(job, context, plan);
            return Ok((Bytes::ZERO, Duration::ZERO));
        }
        if plan.task == Task::Compact
            && context.tiers.offer.device
            && !plan.drain.over
            && let Some(wait) = plan.drain.step(job, context, plan.cursor.pages_done())?
        {
            if plan.drain.is_stuck() {
                report(job, context, &plan);
            } else {
                self.plan = Some(plan);
            }
            return Ok((Bytes::ZERO, wait));
        }
        let (moved, finished) = self.advise(job, context, &mut plan, limit)?;
        if finished {
            report(job, context, &plan);
        } else {
            self.plan = Some(plan);
        }
        Ok((moved, Duration::ZERO))
    }

    /// Advises the kernel about the next pages. Returns what was moved, and whether the plan is finished.
    fn advise(&mut self, job: &mut Job, context: &mut Context, plan: &mut Plan, limit: Pages) -> kernel::Result<(Bytes, bool)> {
        let before = count(job, context)?;
        let (roots, walker) = (&context.kernel.roots, &mut context.kernel.walker);
        let advised = compact::step(roots, walker, &job.cgroup, plan.task, &mut plan.cursor, limit);
        let advised = advised?;
        let after = count(job, context)?;

        let offloaded = after.swapped - before.swapped;
        let done = match plan.task {
            Task::Compact => Done { asked: advised.moved, offloaded, deactivated: advised.deactivated, prefetched: Bytes::ZERO },
            Task::Prefetch => Done { prefetched: advised.moved, ..Done::default() },
        };
        plan.done += done;
        self.done += done;
        charge(job, context, &before, &after);
        let pages = offloaded.to_pages(kernel::page_size());
        context.trackers.swapped_out(job.tracker.0, job.cgroup.id(), pages);
        job.account_reclaim(pages, Bytes::ZERO);
        Ok((advised.moved, advised.finished))
    }

    /// A compaction waits for a better period; a prefetch, which would come too late then, is dropped.
    fn pause(&mut self, job: &Job, context: &mut Context, plan: Plan) {
        let what = match plan.task {
            Task::Compact => "compaction waits: the machine is short of memory, or the write budget is spent",
            Task::Prefetch => "prefetch dropped: the machine is short of memory",
        };
        context.event(Some(job.path()), what.to_owned());
        self.plan = (plan.task == Task::Compact).then_some(Plan { paused: true, ..plan });
    }
}

/// Reports what a finished plan has done.
fn report(job: &Job, context: &mut Context, plan: &Plan) {
    let Done { asked, offloaded, deactivated, prefetched } = plan.done;
    let what = match plan.task {
        Task::Compact => format!("compacted: {offloaded} of {asked} left DRAM, {deactivated} of file mappings deactivated"),
        Task::Prefetch => format!("prefetched: {prefetched} requested"),
    };
    let stuck = if plan.drain.is_stuck() { "; the swap device takes no more" } else { "" };
    context.event(Some(job.path()), what + stuck);
}
