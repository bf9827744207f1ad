//! Act: offload what was planned, in small steps within the byte rate and the CPU budget.

use std::time::Duration;

use config::Actuator;
use kernel::priority::IdlePriority;
use kernel::zswap::Zswap;
use policy::balance::Lean;
use units::{Bytes, Pages};

use super::Agent;
use crate::actuators::{self, Asked, exact, lru};
use crate::job::pressed::{Amount, Reclaimed};
use crate::job::{Job, Plan};

/// Pages per step: small enough that the loop never waits long for the kernel.
const STEP_PAGES: Pages = Pages(2048);

/// How much may stay in the swap cache while a plan is carried out, and the most that one request frees of it.
const FOLLOW_UP: Bytes = Bytes::mib(4);

/// What is not worth a request.
const FOLLOW_UP_MIN: Bytes = Bytes(256 << 10);

/// Requests in a row.
const FOLLOW_UPS: u32 = 4;

/// How long the loop may offload before it looks at its messages and its watches again; a step more at most.
pub(super) const SLICE: Duration = Duration::from_millis(50);

/// How soon it looks again when the byte rate or the CPU budget is used up.
pub(super) const PACE_WAIT: Duration = Duration::from_millis(50);

/// What the kernel counts around a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Before {
    pub(super) swapped: Bytes,
    pool: Bytes,
    zswapped: Bytes,
    /// What zswap has written back to a device, ever.
    written_back: Bytes,
    pub(super) anon: Bytes,
    pub(super) file: Bytes,
    pub(super) cached: Bytes,
    /// What is being written, to swap devices too.
    writeback: Bytes,
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
            let Some(limit) = self.step_limit() else { return Some(PACE_WAIT) };
            self.act_on(&path, limit);
            if self.clock.now() >= end {
                return Some(Duration::ZERO);
            }
        }
        None
    }

    /// How much one step may move now; `None` while the byte rate or the CPU budget is used up.
    pub(super) fn step_limit(&mut self) -> Option<Pages> {
        let now = self.clock.now();
        let cpu = self.cpu_time();
        if self.budget.spent(now, cpu) {
            self.budget_spent = true;
            return None;
        }
        Some(self.rate.available(now).to_pages(kernel::page_size()).min(STEP_PAGES)).filter(|&limit| limit > Pages::ZERO)
    }

    /// The job whose turn it is, of those with something to do. While the machine is short of memory, the lowest class
    /// gives first.
    fn next_turn(&mut self) -> Option<String> {
        let due = |job: &Job| job.plan.is_some() || job.pressed.as_ref().is_some_and(|pressed| pressed.plan.is_some());
        let first =
            if self.machine.is_short() { self.jobs.values().filter(|job| due(job)).map(|job| job.treatment.class).max() } else { None };
        let turns = |job: &Job| due(job) && first.is_none_or(|class| job.treatment.class == class);
        let planned = || self.jobs.iter().filter(|(_, job)| turns(job)).map(|(path, _)| path);
        self.turn = self.turn.wrapping_add(1).checked_rem(planned().count())?;
        planned().nth(self.turn).cloned()
    }

    /// One step of one job's plan.
    fn act_on(&mut self, path: &str, limit: Pages) {
        let Some(mut job) = self.jobs.remove(path) else { return };
        let writable = self.writable(&job, self.clock.now()).map_or(limit, |bytes| limit.min(bytes.to_pages(kernel::page_size())));
        if writable == Pages::ZERO {
            job.drop_anon_plans();
        }
        let amount = job.pressed.as_mut().and_then(|pressed| pressed.plan.take());
        let outcome = match amount {
            Some(amount) if amount.anon > Bytes::ZERO => self.step_amount(&mut job, amount, writable),
            Some(amount) => self.step_amount(&mut job, amount, limit),
            None => self.step_plan(&mut job, writable),
        };
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
        self.wrote(job, &before, &after);
        note_stored(job, &before, &after);
        plan.left = plan.left - asked.pages;
        let pages = asked.pages;
        if let Some(tracker) = self.trackers.get_mut(&job.tracker.0) {
            tracker.swapped_out(job.cgroup.id(), went_out);
        }
        let more = !asked.finished && plan.left > Pages::ZERO;
        job.took_out(pages, asked.ages, went_out, plan.threshold);
        job.cached_out += after.cached - before.cached;
        if job.cached_out >= FOLLOW_UP || !more {
            self.follow_up(job)?;
        }
        job.plan = more.then_some(plan);
        Ok(pages)
    }

    /// One request of pressure-driven offloading: the kernel chooses the pages.
    fn step_amount(&mut self, job: &mut Job, amount: Amount, limit: Pages) -> kernel::Result<Pages> {
        let page = kernel::page_size();
        let anon_first = amount.anon > Bytes::ZERO;
        let asked = if anon_first { amount.anon } else { amount.file }.min(limit.to_bytes(page));
        let before = self.count(job)?;
        self.reclaim(job, asked, if anon_first { Lean::Swappiness(lru::ANON_FIRST) } else { Lean::FileOnly })?;
        let after = self.count(job)?;
        let went_out = (after.swapped - before.swapped).to_pages(page);
        self.wrote(job, &before, &after);
        note_stored(job, &before, &after);
        let reclaimed = Reclaimed { asked, anon: before.anon - after.anon, file: before.file - after.file };
        if let Some(tracker) = self.trackers.get_mut(&job.tracker.0) {
            tracker.swapped_out(job.cgroup.id(), went_out);
        }
        job.was_reclaimed(went_out, reclaimed.file);
        if let Some(pressed) = &mut job.pressed {
            pressed.took(reclaimed);
            let left = match anon_first {
                true => Amount { anon: amount.anon - asked, ..amount },
                false => Amount { file: amount.file - asked, ..amount },
            };
            pressed.plan = (left.total() > Bytes::ZERO).then_some(left);
        }
        Ok(asked.to_pages(page))
    }

    /// Books what a step wrote: at once, so that the next one keeps within what is left.
    pub(super) fn wrote(&mut self, job: &mut Job, before: &Before, after: &Before) {
        // What zswap took and wrote back since was no write past it.
        let compressed = (after.zswapped + after.written_back) - (before.zswapped + before.written_back);
        job.wrote((after.swapped - before.swapped) - compressed);
        let now = self.clock.now();
        self.book_writes(job, now);
        self.tiers.note_writes(&self.roots, now);
    }

    /// Frees what steps have left in the swap cache. `MADV_PAGEOUT` to a device starts the writing and returns; the
    /// pages keep their DRAM, clean in the end, until somebody reclaims them.
    ///
    /// The kernel is asked once for what our steps put there, and no more: pages that came back lie in the swap cache too,
    /// and are in use. It is asked for half of that at a time: for nearly all of it, or while the pages are of its youngest
    /// generations, it would go on to other memory. Then the rest waits for the next period.
    pub(super) fn follow_up(&mut self, job: &mut Job) -> kernel::Result<()> {
        if !self.tiers.offer.device {
            return Ok(());
        }
        for _ in 0..FOLLOW_UPS {
            let before = self.count(job)?;
            let clean = job.cached_out.min(before.cached - before.writeback);
            if clean < FOLLOW_UP_MIN {
                return Ok(());
            }
            let asked = FOLLOW_UP.min(Bytes(clean.0 / 2));
            self.reclaim(job, asked, Lean::Swappiness(lru::ANON_FIRST))?;
            job.cached_out = job.cached_out - asked;
            let after = self.count(job)?;
            self.wrote(job, &before, &after);
            let file = before.file - after.file;
            job.was_reclaimed((after.swapped - before.swapped).to_pages(kernel::page_size()), file);
            if file > before.cached - after.cached {
                return Ok(());
            }
        }
        Ok(())
    }

    pub(super) fn reclaim(&self, job: &Job, amount: Bytes, lean: Lean) -> kernel::Result<()> {
        let swappiness = match lean {
            Lean::FileOnly => 0,
            Lean::Swappiness(swappiness) => swappiness,
        };
        lru::reclaim_step(job.path(), amount, swappiness).map_err(|source| kernel::Error::Io {
            path: job.cgroup.path().to_owned(),
            op: "reclaim from",
            source,
        })
    }

    fn ask(&mut self, job: &Job, plan: &mut Plan, limit: Pages) -> kernel::Result<Asked> {
        let Some(tracker) = self.trackers.get_mut(&job.tracker.0) else { return Ok(Asked { finished: true, ..Asked::default() }) };
        match (actuators::choose(self.config.agent.actuator, job.tracker.0), &self.lru) {
            (Actuator::LruGen, Some(files)) => lru::evict_step(files, tracker.as_ref(), job.path(), plan.threshold, limit).map(|asked| {
                let finished = asked.pages < limit || asked.pages == Pages::ZERO;
                Asked { finished, ..asked }
            }),
            (Actuator::MemoryReclaim | Actuator::LruGen, _) => {
                self.reclaim(job, limit.to_bytes(kernel::page_size()), Lean::Swappiness(lru::ANON_FIRST))?;
                Ok(Asked { pages: limit, ..Asked::default() })
            }
            (Actuator::Exact | Actuator::Auto, _) => {
                exact::step(&self.roots, &mut self.walker, tracker.as_mut(), &mut plan.cursor, plan.threshold, limit)
            }
        }
    }

    pub(super) fn count(&self, job: &Job) -> kernel::Result<Before> {
        let stat = job.cgroup.stat()?;
        let rejected = Zswap::probe(&self.roots).and_then(|zswap| zswap.rejected()).unwrap_or_default();
        Ok(Before {
            swapped: job.cgroup.swap_current()?.unwrap_or_default(),
            pool: stat.zswap.unwrap_or_default(),
            zswapped: stat.zswapped.unwrap_or_default(),
            written_back: Pages(stat.zswpwb.unwrap_or(0)).to_bytes(kernel::page_size()),
            // Shared memory is swapped, however the kernel books it.
            anon: stat.anon.unwrap_or_default() + stat.shmem.unwrap_or_default(),
            file: stat.file.unwrap_or_default() - stat.shmem.unwrap_or_default(),
            cached: stat.swapcached.unwrap_or_default(),
            writeback: stat.file_writeback.unwrap_or_default(),
            rejected,
        })
    }
}

/// What zswap made of a step, for the judge of compressibility.
fn note_stored(job: &mut Job, before: &Before, after: &Before) {
    job.stored.original += after.zswapped - before.zswapped;
    job.stored.compressed += after.pool - before.pool;
    job.stored.rejected += Pages(after.rejected.saturating_sub(before.rejected));
}
