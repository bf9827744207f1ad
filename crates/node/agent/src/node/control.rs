//! Step: what to do with each job, and why.

use std::time::Duration;

use config::{AtLimit, Class, Policy};
use kernel::cgroup::Limit;
use policy::cold_age::{self, Decision};
use policy::veto::Veto;
use units::{Bytes, Pages};

use super::{Agent, unix_ms};
use crate::actuators::exact::Cursor;
use crate::job::pressed::Pressed;
use crate::job::{ClosedPeriod, Job, Plan};
use crate::journal::{PeriodRecord, Record};

/// `memory.low` is set anew only when the working set has changed by more than this part: every write is a durable
/// note first.
const LOW_CHANGE_PARTS: u64 = 8;

impl Agent {
    /// One control period of all jobs.
    pub(super) fn control(&mut self, now: Duration) {
        // The same moment on both clocks: how long a period took and when it ended belong together.
        let at_unix_ms = unix_ms();
        let before = self.machine.no_far_memory;
        self.read_machine();
        match self.machine.no_far_memory {
            now if now == before || self.options.dry_run => {}
            Some(why) if self.machine.pool_full => self.event(None, format!("nothing more is compressed: {why}")),
            Some(why) => self.event(None, format!("nothing is offloaded: {why}")),
            None => self.event(None, "offloading goes on".to_owned()),
        }
        if let Some(gap) = self.machine.gap_to_report() {
            self.event(None, format!("zswap and memory.stat disagree by {:.1} % about what is stored", gap * 100.0));
        }
        let cpu = self.cpu_time();
        self.budget_spent = self.budget.spent(now, cpu);
        let paths: Vec<String> = self.jobs.keys().cloned().collect();
        for path in paths {
            if let Err(error) = self.control_job(&path, now, at_unix_ms)
                && !error.is_gone()
            {
                if let Some(job) = self.jobs.get_mut(&path) {
                    job.plan = None;
                }
                self.trouble(&path, &error);
            }
        }
        self.look_at_background(now);
        let bundle = self.following.version();
        for what in self.recorder.as_mut().map(|recorder| recorder.take(&self.pending, &self.jobs, bundle, unix_ms())).unwrap_or_default() {
            self.event(None, what);
        }
        // The journal first: killed in between, the agent forgets a period of a job's history that the journal has,
        // and never the other way round.
        self.write_journal();
        self.store_history();
        self.watch_those_that_live();
        self.go_by();
    }

    /// Tells what went wrong with a job; once, while it stays the same.
    pub(super) fn trouble(&mut self, path: &str, error: &kernel::Error) {
        let what = error.to_string();
        let known = self.jobs.get_mut(path).is_some_and(|job| job.trouble.replace(what.clone()).as_ref() == Some(&what));
        if !known {
            self.event(Some(path), what);
        }
    }

    /// Reads the machine anew, and tells what cannot be read; once, while it stays so.
    pub(super) fn read_machine(&mut self) {
        let known = std::mem::take(&mut self.machine.troubles);
        self.machine.read(&self.roots, &self.cgroups, self.config.swap.write_budget > Bytes::ZERO);
        let now = self.clock.now();
        let (zswap, shrinker) = (self.machine.zswap_enabled, self.machine.shrinker_enabled);
        let troubles = self.tiers.read(&self.roots, &self.machine.areas, zswap, shrinker, now);
        self.machine.troubles.extend(troubles);
        for trouble in self.machine.troubles.clone() {
            if !known.contains(&trouble) {
                self.event(None, trouble);
            }
        }
    }

    fn control_job(&mut self, path: &str, now: Duration, at_unix_ms: u64) -> kernel::Result<()> {
        // Taken out and put back, so that the job and the agent can be used side by side.
        let Some(mut job) = self.jobs.remove(path) else { return Ok(()) };
        let done = self.step_job(&mut job, now, at_unix_ms);
        self.jobs.insert(path.to_owned(), job);
        done
    }

    fn step_job(&mut self, job: &mut Job, now: Duration, at_unix_ms: u64) -> kernel::Result<()> {
        let came_back = job.read_counters()?;
        let returned = job.far.promoted(came_back);
        job.note_promotions(&returned);
        let at_limit = job.at_limit()?;
        let veto = self.veto(job, at_limit, now);
        let tier_us = self.costs_of(job).anon_us;
        let stall_target = job.pressed.as_ref().map(|pressed| (pressed.params.stall_target, pressed.cost_us(tier_us)));
        let input = job.input(&self.thresholds, now, stall_target, veto);
        let (state, step) = cold_age::step(&job.params, &self.thresholds, &job.state, &input);
        job.state = state;
        job.follow(&step.decision);
        if self.may_act(job) {
            self.protect(job, step.working_set);
            self.fail_fast(job, at_limit);
            if job.plan.is_none() {
                self.follow_up(job)?;
            }
        }
        let outcome = job.close_period(now);
        let memory = job.memory;
        let period = PeriodRecord { unix_ms: at_unix_ms, job: job.path().to_owned(), id: job.cgroup.id(), input, step, outcome, memory };
        let counted = job.remember(ClosedPeriod::from(&period));
        self.watch(job, counted, outcome.elapsed_ms);
        self.pending.push(Record::Period(Box::new(period)));
        Ok(())
    }

    pub(super) fn may_act(&self, job: &Job) -> bool {
        !self.options.dry_run && !matches!(job.treatment.class, Class::Off | Class::Observe)
    }

    /// What the surroundings forbid, the most lasting reason first.
    fn veto(&mut self, job: &mut Job, at_limit: bool, now: Duration) -> Option<Veto> {
        if !self.may_act(job) {
            return Some(Veto::ObserveOnly);
        }
        if !matches!(job.treatment.policy, Policy::ColdAge | Policy::Auto) {
            return Some(Veto::OtherPolicy);
        }
        if at_limit {
            return Some(Veto::AtLimit);
        }
        if job.pressed.as_ref().is_some_and(Pressed::stalled) {
            return Some(Veto::Stalled);
        }
        let nowhere = self.place(job, now);
        nowhere.or_else(|| self.budget_spent.then_some(Veto::BudgetSpent))
    }

    /// Protects the working set while the machine runs out of memory (000 section 5.1's soft limit).
    fn protect(&mut self, job: &Job, working_set: Pages) {
        // What is of the lowest class gives first.
        if !self.config.agent.protect_working_set || job.treatment.class == Class::Aggressive {
            return;
        }
        let Ok(Limit::Bytes(current)) = job.cgroup.low() else { return };
        let file = job.cgroup.path().join("memory.low");
        // The operator's own protection is never lowered.
        let own = self.undo.original(&file).and_then(|text| text.parse().ok()).unwrap_or(current.0);
        let wanted = working_set.to_bytes(kernel::page_size()).0.max(own);
        if wanted.abs_diff(current.0) <= wanted.max(current.0) / LOW_CHANGE_PARTS {
            return;
        }
        if wanted == own {
            self.undo.restore(&file);
        } else if let Err(error) = self.undo.set(&file, &wanted.to_string()) {
            log::warn!("{}: {error}", file.display());
        }
    }

    /// Has a job at its limit fail fast instead of swapping on (000 section 5.1), where the operator wants that.
    fn fail_fast(&mut self, job: &Job, at_limit: bool) {
        if self.config.agent.at_limit != AtLimit::FailFast {
            return;
        }
        let file = job.cgroup.path().join("memory.swap.max");
        if !at_limit {
            self.undo.restore(&file);
            return;
        }
        if self.undo.original(&file).is_some() {
            return;
        }
        let used = job.cgroup.swap_current().ok().flatten().unwrap_or_default();
        match self.undo.set(&file, &used.0.to_string()) {
            Ok(()) => self.event(Some(job.path()), format!("at its memory limit: swap capped at {used}")),
            Err(error) => log::warn!("{}: {error}", file.display()),
        }
    }

    /// Takes back what was set for a job that is no longer one.
    pub(super) fn release(&mut self, job: &Job) {
        for name in ["memory.low", "memory.swap.max"] {
            self.undo.restore(&job.cgroup.path().join(name));
        }
        for what in crate::slow::bring_home(&self.cgroups, &mut self.undo, Some(job.path())) {
            self.event(Some(job.path()), what);
        }
        self.release_tier(job);
    }

    /// After a scan: what each job's threshold makes cold now.
    pub(super) fn plan(&mut self) {
        for job in self.jobs.values_mut() {
            let Some(threshold) = job.threshold else {
                job.plan = None;
                continue;
            };
            let left = job.scan.as_ref().map_or(Pages::ZERO, |scan| scan.resident.at_least(threshold));
            job.plan = (left > Pages::ZERO).then(|| Plan { threshold, left, cursor: Cursor::new(&job.pids) });
        }
    }
}

impl Job {
    /// Takes a decision over: the threshold for the plans to come, and at once for the one under way.
    fn follow(&mut self, decision: &Decision) {
        self.threshold = match decision {
            Decision::Offload { threshold, .. } => Some(*threshold),
            Decision::Hold { .. } => None,
        };
        match self.threshold {
            None => self.plan = None,
            Some(threshold) => {
                if let Some(plan) = &mut self.plan {
                    plan.threshold = threshold.max(plan.threshold);
                }
            }
        }
    }
}
