//! Jobs that have gone to the background: compacted once, when nobody is in want of memory (003).

use std::time::Duration;

use kernel::priority::IdlePriority;
use kernel::{meminfo, psi};
use policy::background::{Decision, Hint, Input, Reason};
use policy::balance::Lean;
use policy::veto::Veto;
use units::{Bytes, Pages, RatioPpm, millis};

use super::act::PACE_WAIT;
use super::{Agent, unix_ms};
use crate::actuators::compact::{self, Task};
use crate::actuators::lru::ANON_FIRST;
use crate::job::Job;
use crate::job::background::{BackgroundPeriod, Done, Drain, Plan};
use crate::journal::{BackgroundRecord, Record};
use crate::view;

/// How much may wait in the swap cache for a device to take it; until it has, no more is paged out.
const CACHED_MAX: Bytes = Bytes::mib(32);

/// The least swap cache that is worth a request.
const DRAIN_MIN: Bytes = Bytes(256 << 10);

/// The first and the largest request for swap cache.
const DRAIN_FIRST: Bytes = Bytes::mib(1);
const DRAIN_MAX: Bytes = Bytes::mib(8);

/// Requests that took other memory, [`MISSED_WAIT`] apart, until the rest is left to the kernel.
const MISSED_MAX: u32 = 3;
const MISSED_WAIT: Duration = Duration::from_secs(2);

/// Looks at a device that takes nothing, [`PACE_WAIT`] apart, until it is given up: 10 s.
const WAITED_MAX: u32 = 200;

impl Agent {
    /// One control period of all jobs that may go to the background.
    pub(super) fn look_at_background(&mut self, now: Duration) {
        let paths: Vec<String> = self.jobs.iter().filter(|(_, job)| job.background.is_some()).map(|(path, _)| path.clone()).collect();
        for path in paths {
            self.look_at(&path, now);
        }
    }

    /// Takes an operator's word; it stands until the job ends or the next word comes.
    pub(super) fn take_hint(&mut self, path: &str, hint: Option<Hint>) {
        let Some(background) = self.jobs.get_mut(path).and_then(|job| job.background.as_mut()) else {
            return self.event(Some(path), "a hint came too late: the job has ended".to_owned());
        };
        background.hint = hint;
        let word = match hint {
            Some(Hint::Background) => "told that the job is in the background",
            Some(Hint::Foreground) => "told that the job is in the foreground",
            None => "told to see for ourselves where the job is",
        };
        self.event(Some(path), word.to_owned());
        // At once: what is asked back late is of no use.
        self.look_at(path, self.clock.now());
    }

    fn look_at(&mut self, path: &str, now: Duration) {
        let Some(mut job) = self.jobs.remove(path) else { return };
        let done = self.step_background(&mut job, now);
        if done.is_err()
            && let Some(background) = &mut job.background
            && let Some(plan) = &mut background.plan
        {
            plan.paused = true;
        }
        self.jobs.insert(path.to_owned(), job);
        match done {
            Err(error) if !error.is_gone() => self.trouble(path, &error),
            _ => {}
        }
    }

    fn step_background(&mut self, job: &mut Job, now: Duration) -> kernel::Result<()> {
        let (machine_stall, available) = self.machine_want()?;
        let veto = self.background_veto(job, now);
        let frozen = job.cgroup.frozen()?;
        // Where CPU time is not told, nobody is idle.
        let cpu_usage_us = job.cgroup.cpu_usage_us()?.unwrap_or(millis(now));
        let pids = job.cgroup.procs(super::scan::PROCESSES_MAX)?;
        let Some(background) = &mut job.background else { return Ok(()) };
        let input = Input { now_ms: millis(now), hint: background.hint, frozen, cpu_usage_us, machine_stall, available, veto };
        let (decision, done) = background.step(input, &pids);
        let before = background.recent.back().map(|period| period.decision);
        let period = BackgroundPeriod { unix_ms: unix_ms(), decision, machine_stall, available, done };
        background.remember(period);
        let (name, id) = (job.cgroup.name().to_owned(), job.cgroup.id());
        if is_news(before, decision) {
            self.event(Some(&name), view::explain_background(&period));
        }
        let record = BackgroundRecord { unix_ms: period.unix_ms, job: name, id, input, decision, done, memory: job.memory };
        self.pending.push(Record::Background(Box::new(record)));
        Ok(())
    }

    /// How much the machine is in want of memory: the share of the last 10 s in which tasks waited for it, and how much
    /// of it is available. Where the kernel keeps no pressure, what is available decides alone.
    fn machine_want(&self) -> kernel::Result<(RatioPpm, RatioPpm)> {
        let stall = match psi::memory(&self.roots) {
            Ok(pressure) => pressure.some.avg10,
            Err(error) if error.is_unsupported() => RatioPpm(0),
            Err(error) => return Err(error),
        };
        let info = meminfo::read(&self.roots)?;
        Ok((stall, RatioPpm::of(info.available.0, info.total.0).unwrap_or_default()))
    }

    /// What the surroundings forbid, the most lasting reason first. A job at its memory limit is compacted all the same:
    /// in the background it has no use for what it holds.
    fn background_veto(&mut self, job: &mut Job, now: Duration) -> Option<Veto> {
        if !self.may_act(job) {
            return Some(Veto::ObserveOnly);
        }
        self.place(job, now).or_else(|| self.budget_spent.then_some(Veto::BudgetSpent))
    }

    /// One step of one job's compaction or prefetch, within the byte rate and the CPU budget. Returns how long to wait
    /// before there is more to do; `None` where nothing is under way.
    pub(super) fn compact(&mut self) -> Option<Duration> {
        if self.options.dry_run {
            return None;
        }
        let due = |job: &Job| job.background.as_ref().is_some_and(crate::job::background::Background::due);
        // One job after the other: nothing is gained by taking turns.
        let path = self.jobs.iter().find(|(_, job)| due(job)).map(|(path, _)| path.clone())?;
        let Some(limit) = self.step_limit() else { return Some(PACE_WAIT) };
        let mut job = self.jobs.remove(&path)?;
        let plan = job.background.as_mut().and_then(|background| background.plan.take());
        let outcome = plan.map_or(Ok((Bytes::ZERO, Duration::ZERO)), |plan| self.step_task(&mut job, plan, limit));
        self.jobs.insert(path.clone(), job);
        match outcome {
            Ok((moved, wait)) => {
                self.rate.spend(moved);
                return Some(wait);
            }
            Err(error) if error.is_gone() => {}
            Err(error) => self.event(Some(&path), format!("compaction given up: {error}")),
        }
        Some(Duration::ZERO)
    }

    /// One step of a plan, which an error ends. Returns what it moved, and how long to wait before the next one.
    fn step_task(&mut self, job: &mut Job, mut plan: Plan, limit: Pages) -> kernel::Result<(Bytes, Duration)> {
        let page = kernel::page_size();
        let limit = match plan.task {
            Task::Compact => self.writable(job, self.clock.now()).map_or(limit, |bytes| limit.min(bytes.to_pages(page))),
            Task::Prefetch => limit,
        };
        let (stall, available) = self.machine_want()?;
        let Some(background) = &mut job.background else { return Ok((Bytes::ZERO, Duration::ZERO)) };
        // What only frees memory need not wait for more.
        if !plan.cursor.pages_done() && (limit == Pages::ZERO || background.must_wait(stall, available)) {
            self.hold_back(job, plan);
            return Ok((Bytes::ZERO, Duration::ZERO));
        }
        if plan.task == Task::Compact
            && self.tiers.offer.device
            && !plan.drain.over
            && let Some(wait) = self.drain(job, &mut plan)?
        {
            let plan = if plan.drain.waited > WAITED_MAX { self.finish(job, &plan) } else { Some(plan) };
            if let Some(background) = &mut job.background {
                background.took(plan, Done::default());
            }
            return Ok((Bytes::ZERO, wait));
        }
        let before = self.count(job)?;
        // Compression runs in this thread, inside the system call: in slack cycles only. A prefetch is waited for.
        let idle = (plan.task == Task::Compact).then(IdlePriority::enter);
        let advised = compact::step(&self.roots, &mut self.walker, &job.cgroup, plan.task, &mut plan.cursor, limit);
        drop(idle);
        let advised = advised?;
        let after = self.count(job)?;

        let went_out = after.swapped - before.swapped;
        let done = match plan.task {
            Task::Compact => Done { asked: advised.moved, offloaded: went_out, deactivated: advised.deactivated, prefetched: Bytes::ZERO },
            Task::Prefetch => Done { prefetched: advised.moved, ..Done::default() },
        };
        plan.done += done;
        self.wrote(job, &before, &after);
        if let Some(tracker) = self.trackers.get_mut(&job.tracker.0) {
            tracker.swapped_out(job.cgroup.id(), went_out.to_pages(page));
        }
        job.was_reclaimed(went_out.to_pages(page), Bytes::ZERO);
        let plan = if advised.finished { self.finish(job, &plan) } else { Some(plan) };
        if let Some(background) = &mut job.background {
            background.took(plan, done);
        }
        Ok((advised.moved, Duration::ZERO))
    }

    /// Frees what a device has taken over. `MADV_PAGEOUT` to a device starts the writing and returns; the pages keep their
    /// DRAM, clean in the end, until somebody reclaims them. Returns how long to wait before the next step; `None` where
    /// paging out may go on.
    ///
    /// The kernel is not to be asked for more than is clean, nor for nearly all of it, or it goes on to file pages, which
    /// are to stay. It does so too while the clean pages are of its youngest generations. So what it took is measured;
    /// where that is the wrong memory it is asked again only after a while, and few times.
    fn drain(&mut self, job: &mut Job, plan: &mut Plan) -> kernel::Result<Option<Duration>> {
        let now = self.clock.now();
        let before = self.count(job)?;
        let clean = before.cached - job.cgroup.stat()?.file_writeback.unwrap_or_default();
        let last = plan.cursor.pages_done();
        if last && before.cached < DRAIN_MIN {
            plan.drain.over = true;
            return Ok(None);
        }
        if !last && before.cached < CACHED_MAX {
            return Ok(None);
        }
        if now < plan.drain.not_before {
            return Ok(Some(plan.drain.not_before - now));
        }
        if clean < DRAIN_MIN {
            plan.drain.waited += 1;
            return Ok(Some(PACE_WAIT));
        }
        let ask = Bytes(plan.drain.asked.0.saturating_mul(2)).clamp(DRAIN_FIRST, DRAIN_MAX).min(Bytes(clean.0 / 2));
        self.reclaim(job, ask, Lean::Swappiness(ANON_FIRST))?;
        let after = self.count(job)?;
        let went_out = (after.swapped - before.swapped).to_pages(kernel::page_size());
        self.wrote(job, &before, &after);
        job.was_reclaimed(went_out, before.file - after.file);
        let others = (before.anon + before.file) - (after.anon + after.file);
        if others > before.cached - after.cached {
            let missed = plan.drain.missed + 1;
            plan.drain = Drain { over: missed >= MISSED_MAX, missed, not_before: now + MISSED_WAIT, ..Drain::default() };
        } else {
            plan.drain = Drain { asked: ask, ..Drain::default() };
        }
        Ok(Some(Duration::ZERO))
    }

    /// Tells what a plan has done, and ends it.
    fn finish(&mut self, job: &Job, plan: &Plan) -> Option<Plan> {
        let Done { asked, offloaded, deactivated, prefetched } = plan.done;
        let what = match plan.task {
            Task::Compact => format!("compacted: {offloaded} of {asked} left DRAM, {deactivated} of file mappings deactivated"),
            Task::Prefetch => format!("prefetched: {prefetched} asked back"),
        };
        let stuck = if plan.drain.waited > WAITED_MAX { "; the swap device takes no more" } else { "" };
        self.event(Some(job.path()), what + stuck);
        None
    }

    /// What is under way waits for a better period; a prefetch that would come late is dropped.
    fn hold_back(&mut self, job: &mut Job, plan: Plan) {
        let what = match plan.task {
            Task::Compact => "compaction waits: the machine is short of memory, or of what may be written",
            Task::Prefetch => "prefetch dropped: the machine is short of memory",
        };
        self.event(Some(job.path()), what.to_owned());
        if let Some(background) = &mut job.background {
            background.took((plan.task == Task::Compact).then_some(Plan { paused: true, ..plan }), Done::default());
        }
    }
}

/// Whether a decision is worth an event: it is another one than before, and not what nobody asks about.
fn is_news(before: Option<Decision>, now: Decision) -> bool {
    let quiet = match now {
        Decision::Nothing { reason: Reason::Foreground } => before.is_none(),
        Decision::Nothing { reason: Reason::Done } => true,
        Decision::Nothing { .. } | Decision::Compact | Decision::Prefetch => false,
    };
    before != Some(now) && !quiet
}

#[cfg(test)]
mod tests;
