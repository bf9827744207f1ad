//! Carries out a plan by age, in small steps.

use config::{Actuator, Tracker};
use policy::balance::AnonFileBias;
use policy::tiering::row::Accounting;
use trackers::compressibility::PageTest;
use units::{Bytes, Pages};

use super::ColdAge;
use super::plan::{FIRST, Plan};
use crate::actuators::exact::{self, Order};
use crate::actuators::{self, Asked, lru};
use crate::context::Context;
use crate::controllers::tiering;
use crate::job::Job;
use crate::reclaim::{charge, count, note_stored, reclaim};
use crate::swap_room::took_page_cache;

/// How much may stay in the swap cache while a plan is carried out, and the most that one request frees of it.
const FREE_MAX: Bytes = Bytes::mib(4);

/// The smallest request.
const FREE_MIN: Bytes = Bytes(256 << 10);

/// Requests in a row.
const FREE_REQUESTS: u32 = 4;

impl ColdAge {
    /// One step of the plan. Returns the pages that the kernel was asked for.
    pub(super) fn step_plan(&mut self, job: &mut Job, context: &mut Context, limit: Pages) -> kernel::Result<Pages> {
        let Some(mut plan) = self.plan.take() else { return Ok(Pages::ZERO) };
        let before = count(job, context)?;
        let limit = limit.min(plan.left).min(plan.step);
        let asked = if plan.by_lists { ask_lists(job, context, limit) } else { ask(job, context, &mut plan, limit) };
        let asked = asked?;
        let after = count(job, context)?;

        let offloaded = (after.swapped - before.swapped).to_pages(kernel::page_size());
        charge(job, context, &before, &after);
        note_stored(job, &before, &after);
        // What was charged to swap before leaves the swap cache, or is being written.
        let other = (before.unmapped - after.unmapped).max(after.writeback - before.writeback).to_pages(kernel::page_size());
        plan.took(asked.pages, offloaded.max(other), (before.file - after.file).to_pages(kernel::page_size()));
        context.trackers.swapped_out(job.tracker.0, job.cgroup.id(), offloaded);
        let refused = took_page_cache(job, context, asked.pages.to_bytes(kernel::page_size()), &before, &after);
        let finished = asked.finished || plan.left == Pages::ZERO;
        let finished = if plan.by_lists {
            match asked.pages {
                Pages::ZERO if offloaded == Pages::ZERO => self.lists.opened(),
                _ => self.lists.took(offloaded),
            }
            finished || offloaded == Pages::ZERO
        } else {
            plan.found(asked.found);
            let cached = (after.cached + after.refused).to_pages(kernel::page_size());
            finished && !(is_exact(job, context) && plan.turn_to_lists(&mut self.lists, cached))
        };
        let more = !finished && !refused;
        job.account_offload(asked.pages, asked.ages, offloaded, plan.threshold);
        self.part = self.part.map(|part| part - asked.pages.max(offloaded));
        self.cached_out += after.cached - before.cached;
        if self.cached_out >= FREE_MAX || !more {
            self.free_swap_cache(job, context)?;
        }
        self.plan = more.then_some(plan);
        Ok(asked.pages)
    }

    /// Frees what steps have left in the swap cache. `MADV_PAGEOUT` to a device starts the write and returns; the pages stay in
    /// DRAM, clean in the end, until they are reclaimed.
    ///
    /// The kernel is asked once for what the plan's steps put there, and not more: promoted pages are in the swap cache as well,
    /// and are in use. It is asked for half of that at a time: for nearly all of it, or while the pages are of its youngest
    /// generations, it would reclaim other memory. Then the rest waits for the next period.
    pub(super) fn free_swap_cache(&mut self, job: &mut Job, context: &mut Context) -> kernel::Result<()> {
        if !context.tiers.offer.device {
            return Ok(());
        }
        for _ in 0..FREE_REQUESTS {
            let before = count(job, context)?;
            let clean = self.cached_out.min(before.cached - before.writeback);
            if clean < FREE_MIN {
                return Ok(());
            }
            let asked = FREE_MAX.min(Bytes(clean.0 / 2));
            reclaim(job, context, asked, AnonFileBias::Swappiness(lru::ANON_FIRST))?;
            self.cached_out = self.cached_out - asked;
            let after = count(job, context)?;
            charge(job, context, &before, &after);
            let file = before.file - after.file;
            job.account_reclaim((after.swapped - before.swapped).to_pages(kernel::page_size()), file);
            if file > before.cached - after.cached {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Whether the job's cold pages were counted by frame, and those that one process maps are moved one by one.
fn is_exact(job: &Job, context: &Context) -> bool {
    let kind = job.tracker.0;
    kind == Tracker::PageIdle && actuators::choose(context.config.agent.actuator, kind) == Actuator::Exact
}

/// Asks the kernel's lists for up to `limit` pages: the oldest generations where there are any, otherwise `memory.reclaim`.
fn ask_lists(job: &Job, context: &mut Context, limit: Pages) -> kernel::Result<Asked> {
    match &context.kernel.lru {
        Some(files) => lru::evict_oldest(files, job.path(), FIRST.to_pages(kernel::page_size()), limit),
        None => ask_reclaim(job, context, limit),
    }
}

/// Asks `memory.reclaim` for up to `limit` pages.
fn ask_reclaim(job: &Job, context: &mut Context, limit: Pages) -> kernel::Result<Asked> {
    reclaim(job, context, limit.to_bytes(kernel::page_size()), AnonFileBias::Swappiness(lru::ANON_FIRST))?;
    Ok(Asked { pages: limit, ..Asked::default() })
}

/// The test of single pages, if it is configured and the job's memory goes to where pages are compressed.
fn page_test(job: &Job, context: &Context) -> kernel::Result<Option<PageTest>> {
    let knobs = &context.config.incompressible;
    let compressed = job.tiering.tier().is_none_or(|tier| tier.accounting == Accounting::Compressed);
    (knobs.each_page && compressed).then(|| PageTest::new(tiering::family(context), knobs.ratio)).transpose()
}

/// Asks the kernel for up to `limit` pages of the plan, by the job's actuator.
fn ask(job: &Job, context: &mut Context, plan: &mut Plan, limit: Pages) -> kernel::Result<Asked> {
    let (kind, configured) = (job.tracker.0, context.config.agent.actuator);
    let mut test = page_test(job, context)?;
    let Some(tracker) = context.trackers.get_mut(kind) else { return Ok(Asked { finished: true, ..Asked::default() }) };
    match (actuators::choose(configured, kind), &context.kernel.lru) {
        (Actuator::LruGen, Some(files)) => {
            let asked = lru::evict_step(files, tracker.as_ref(), job.path(), plan.threshold, limit)?;
            let finished = asked.pages < limit || asked.pages == Pages::ZERO;
            Ok(Asked { finished, ..asked })
        }
        (Actuator::MemoryReclaim | Actuator::LruGen, _) => ask_reclaim(job, context, limit),
        (Actuator::Exact | Actuator::Auto, _) => {
            let (roots, walker) = (&context.kernel.roots, &mut context.kernel.walker);
            let order = Order { job: job.path(), threshold: plan.threshold, limit, test: test.as_mut() };
            plan.cursor.begin(|| job.processes());
            exact::step(roots, walker, tracker.as_mut(), &mut plan.cursor, order)
        }
    }
}
