//! Jobs that have gone to the background: compacted once, when nobody is in want of memory (003).

use std::time::Duration;

use kernel::priority::IdlePriority;
use kernel::{meminfo, psi};
use policy::background::{Decision, Hint, Input, Reason};
use policy::balance::Lean;
use policy::units::{Bytes, Pages, RatioPpm};
use policy::veto::Veto;

use super::act::{PACE_WAIT, STEP_PAGES};
use super::{Agent, unix_ms};
use crate::actuators::compact::{self, Task};
use crate::actuators::lru::ANON_FIRST;
use crate::job::background::{BackgroundPeriod, Done, Plan};
use crate::job::{Job, millis};
use crate::journal::{BackgroundRecord, Record};
use crate::view;

/// How much may wait in the swap cache for a device to take it; until it has, no more is paged out.
const CACHED_MAX: Bytes = Bytes::mib(32);

/// Clean swap cache that is worth a request while more comes, and at the end.
const DRAIN: Bytes = Bytes::mib(4);
const DRAIN_LAST: Bytes = Bytes(256 << 10);

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
        // What only waits for a device to free memory need not wait for more.
        if !plan.advised && (limit == Pages::ZERO || background.must_wait(stall, available)) {
            self.hold_back(job, plan);
            return Ok((Bytes::ZERO, Duration::ZERO));
        }
        let cached = if plan.task == Task::Compact { self.drain(job, plan.advised)? } else { Bytes::ZERO };
        if plan.advised || cached >= CACHED_MAX {
            return Ok((Bytes::ZERO, self.wait_for_device(job, plan, cached)));
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
        plan.advised = advised.finished;
        self.wrote(job, &before, &after);
        if let Some(tracker) = self.trackers.get_mut(&job.tracker.0) {
            tracker.went_out(job.cgroup.id(), went_out.to_pages(page));
        }
        job.was_reclaimed(went_out.to_pages(page), Bytes::ZERO);
        let drained = plan.task == Task::Prefetch || !self.tiers.offer.device || after.cached < DRAIN_LAST;
        let plan = if plan.advised && drained { self.finish(job, &plan) } else { Some(plan) };
        if let Some(background) = &mut job.background {
            background.took(plan, done);
        }
        Ok((advised.moved, Duration::ZERO))
    }

    /// Frees what a device has taken over, and returns what is left in the swap cache. `MADV_PAGEOUT` to a device starts
    /// the writing and returns; the pages keep their DRAM, clean in the end, until somebody reclaims them.
    ///
    /// Asked for more than is clean, or for nearly all of it, the kernel would go on to file pages, which are to stay: it
    /// reclaims up to twice what it is asked for.
    fn drain(&self, job: &Job, last: bool) -> kernel::Result<Bytes> {
        if !self.tiers.offer.device {
            return Ok(Bytes::ZERO);
        }
        let stat = job.cgroup.stat()?;
        let cached = stat.swapcached.unwrap_or_default();
        let clean = cached - stat.file_writeback.unwrap_or_default();
        if clean >= if last { DRAIN_LAST } else { DRAIN } {
            self.reclaim(job, Bytes(clean.0 / 2), Lean::Swappiness(ANON_FIRST))?;
        }
        Ok(cached)
    }

    /// Lets a device catch up. One that takes nothing for long ends the plan.
    fn wait_for_device(&mut self, job: &mut Job, mut plan: Plan, cached: Bytes) -> Duration {
        plan.waited = if cached < plan.cached { 0 } else { plan.waited + 1 };
        plan.cached = cached;
        let drained = plan.advised && cached < DRAIN_LAST;
        let plan = if drained || plan.waited > WAITED_MAX { self.finish(job, &plan) } else { Some(plan) };
        if let Some(background) = &mut job.background {
            background.took(plan, Done::default());
        }
        PACE_WAIT
    }

    /// Tells what a plan has done, and ends it.
    fn finish(&mut self, job: &Job, plan: &Plan) -> Option<Plan> {
        let Done { asked, offloaded, deactivated, prefetched } = plan.done;
        let what = match plan.task {
            Task::Compact => format!("compacted: {offloaded} of {asked} left DRAM, {deactivated} of file mappings deactivated"),
            Task::Prefetch => format!("prefetched: {prefetched} asked back"),
        };
        let stuck = if plan.waited > WAITED_MAX { "; the swap device takes no more" } else { "" };
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
