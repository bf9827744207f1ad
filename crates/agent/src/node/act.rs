//! Act: offload what was planned, in small steps within the byte rate and the CPU budget.

use std::time::Duration;

use config::Actuator;
use kernel::priority::IdlePriority;
use kernel::zswap::Zswap;
use policy::units::{Bytes, Pages};

use super::Agent;
use crate::actuators::{self, Asked, exact, lru};
use crate::job::{Job, Plan};

/// Pages per step: small enough that the loop never waits long for the kernel.
const STEP_PAGES: Pages = Pages(2048);

/// How long the loop may offload before it looks at its messages and its watches again; a step more at most.
const SLICE: Duration = Duration::from_millis(50);

/// How soon it looks again when the byte rate or the CPU budget is used up.
const PACE_WAIT: Duration = Duration::from_millis(50);

/// What the kernel counts around a step.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    swapped: Bytes,
    pool: Bytes,
    zswapped: Bytes,
    rejected: u64,
}

impl Agent {
    /// Carries out what is planned, the jobs taking turns, for a slice of time at most. Returns how long to wait before
    /// there is more to do; `None` where nothing is planned.
    pub(super) fn act(&mut self) -> Option<Duration> {
        if self.options.dry_run {
            return None;
        }
        let end = self.clock.now() + SLICE;
        while let Some(path) = self.next_turn() {
            let now = self.clock.now();
            let cpu = self.cpu_time();
            if self.budget.spent(now, cpu) {
                self.budget_spent = true;
                return Some(PACE_WAIT);
            }
            let limit = self.rate.available(now).to_pages(kernel::page_size()).min(STEP_PAGES);
            if limit == Pages::ZERO {
                return Some(PACE_WAIT);
            }
            self.act_on(&path, limit);
            if self.clock.now() >= end {
                return Some(Duration::ZERO);
            }
        }
        None
    }

    /// The job whose turn it is, of those with a plan.
    fn next_turn(&mut self) -> Option<String> {
        let planned = || self.jobs.iter().filter(|(_, job)| job.plan.is_some()).map(|(path, _)| path);
        self.turn = self.turn.wrapping_add(1).checked_rem(planned().count())?;
        planned().nth(self.turn).cloned()
    }

    /// One step of one job's plan.
    fn act_on(&mut self, path: &str, limit: Pages) {
        let Some(mut job) = self.jobs.remove(path) else { return };
        let outcome = self.step_plan(&mut job, limit);
        self.jobs.insert(path.to_owned(), job);
        match outcome {
            Ok(asked) => self.rate.spend(asked.to_bytes(kernel::page_size())),
            Err(error) => {
                if let Some(job) = self.jobs.get_mut(path) {
                    job.plan = None;
                }
                if !error.is_gone() {
                    self.event(Some(path), format!("offloading stopped until the next scan: {error}"));
                }
            }
        }
    }

    fn step_plan(&mut self, job: &mut Job, limit: Pages) -> kernel::Result<Pages> {
        let Some(mut plan) = job.plan.take() else { return Ok(Pages::ZERO) };
        let before = self.count(job)?;
        // Compression runs in this thread, inside the system call: in slack cycles only (000 section 5.1).
        let idle = IdlePriority::enter();
        let limit = limit.min(plan.left);
        let asked = self.ask(job, &mut plan, limit);
        drop(idle);
        let asked = asked?;
        let after = self.count(job)?;

        let went_out = (after.swapped - before.swapped).to_pages(kernel::page_size());
        job.stored.original += after.zswapped - before.zswapped;
        job.stored.compressed += after.pool - before.pool;
        job.stored.rejected += Pages(after.rejected.saturating_sub(before.rejected));
        plan.left = plan.left - asked.pages;
        let pages = asked.pages;
        if let Some(tracker) = self.trackers.get_mut(&job.tracker.0) {
            tracker.went_out(job.cgroup.id(), went_out);
        }
        let more = !asked.finished && plan.left > Pages::ZERO;
        job.took_out(pages, asked.ages, went_out, plan.threshold);
        job.plan = more.then_some(plan);
        Ok(pages)
    }

    fn ask(&mut self, job: &Job, plan: &mut Plan, limit: Pages) -> kernel::Result<Asked> {
        let Some(tracker) = self.trackers.get_mut(&job.tracker.0) else { return Ok(Asked { finished: true, ..Asked::default() }) };
        match (actuators::choose(self.config.agent.actuator, job.tracker.0), &self.lru) {
            (Actuator::LruGen, Some(files)) => lru::evict_step(files, tracker.as_ref(), job.path(), plan.threshold, limit).map(|asked| {
                let finished = asked.pages < limit || asked.pages == Pages::ZERO;
                Asked { finished, ..asked }
            }),
            (Actuator::MemoryReclaim | Actuator::LruGen, _) => {
                let amount = limit.to_bytes(kernel::page_size());
                lru::reclaim_step(job.path(), amount).map_err(|source| kernel::Error::Io {
                    path: job.cgroup.path().to_owned(),
                    op: "reclaim from",
                    source,
                })?;
                Ok(Asked { pages: limit, ..Asked::default() })
            }
            (Actuator::Exact | Actuator::Auto, _) => {
                exact::step(&self.roots, &mut self.walker, tracker.as_mut(), &mut plan.cursor, plan.threshold, limit)
            }
        }
    }

    fn count(&self, job: &Job) -> kernel::Result<Before> {
        let stat = job.cgroup.stat()?;
        let rejected = Zswap::probe(&self.roots).and_then(|zswap| zswap.rejected()).unwrap_or_default();
        Ok(Before {
            swapped: job.cgroup.swap_current()?.unwrap_or_default(),
            pool: stat.zswap.unwrap_or_default(),
            zswapped: stat.zswapped.unwrap_or_default(),
            rejected,
        })
    }
}
