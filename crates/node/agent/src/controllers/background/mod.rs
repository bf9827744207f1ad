//! Compacts jobs that have gone to the background once, while the machine is not short of memory, and prefetches them on their
//! return (LPC talk). Policy: `background`.

use std::time::Duration;

use config::{Config, Policy as Named};
use policy::background::{self, Decision, Hint, Params, Reason, State};
use policy::thresholds::Thresholds;
use units::RatioPpm;

use super::policy::{Cadence, Policy};
use super::recent::Recent;
use super::seam::{Controller, Slot, run};
use super::slots::Jobs;
use super::veto::{self, Reason as Forbidden};
use crate::actuators::compact::Task;
use crate::context::{Context, PACE_WAIT};
use crate::discover::Treatment;
use crate::history::JobHistory;
use crate::job::Job;
use crate::journal::{JobRecord, Record};
use crate::now::Now;
use crate::swap_gate;
use crate::view::JobView;

mod compaction;
mod drain;
mod plan;
pub mod record;

use plan::Plan;
use record::{BackgroundRecord, BackgroundStart, Done, explain};

/// A job at its memory limit is compacted as well: in the background it does not use the memory that it holds.
const VETOES: &[Forbidden] = &[Forbidden::ObserveOnly, Forbidden::NoTier, Forbidden::CpuBudget];

/// The policy as the scheduler knows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackgroundPolicy;

impl Policy for BackgroundPolicy {
    fn cadence(&self, _: &Config) -> Cadence {
        Cadence::Control
    }

    fn slot(&self, config: &Config, treatment: &Treatment, _: &Thresholds) -> Option<Box<dyn Slot>> {
        let applies = matches!(treatment.policy, Named::Background | Named::Auto);
        applies.then(|| Box::new(Background::new(config.background.params(), treatment.policy)) as Box<dyn Slot>)
    }

    /// One step of one job's compaction or prefetch, within the byte rate and the CPU budget.
    fn act(&mut self, jobs: &mut Jobs, context: &mut Context) -> Option<Duration> {
        if context.options.dry_run {
            return None;
        }
        // One job after the other: taking turns would delay each of them.
        let (job, background) = jobs.values_mut().find_map(|entry| {
            let background = entry.slots.get_mut::<Background>().filter(|background| background.is_due())?;
            Some((&mut entry.job, background))
        })?;
        let Some(limit) = context.step_limit() else { return Some(PACE_WAIT) };
        swap_gate::open(job, context, limit);
        let outcome = background.step_plan(job, context, limit);
        swap_gate::close(job, context);
        match outcome {
            Ok((moved, wait)) => {
                context.pacing.rate.spend(moved);
                return Some(wait);
            }
            Err(error) if error.is_gone() => {}
            Err(error) => context.event(Some(job.path()), format!("compaction abandoned: {error}")),
        }
        Some(Duration::ZERO)
    }
}

/// The controller of one job.
#[derive(Debug)]
pub struct Background {
    /// Parameters and state.
    pub start: BackgroundStart,
    /// The last hint of an operator or orchestrator.
    pub hint: Option<Hint>,
    /// What is being carried out.
    pub plan: Option<Plan>,
    /// The last period.
    pub last: Option<Decided>,
    recent: Recent,
    done: Done,
    /// The job's processes at the last decision.
    pids: Vec<i32>,
    policy: Named,
}

/// A decision, and what it is based on.
#[derive(Clone, Copy, Debug)]
pub struct Decided {
    /// What the controller observed.
    pub input: background::Input,
    /// What it decided.
    pub decision: Decision,
}

impl Background {
    /// A controller without state.
    #[must_use]
    pub fn new(params: Params, policy: Named) -> Self {
        Self {
            start: BackgroundStart { params, state: State::default() },
            hint: None,
            plan: None,
            last: None,
            recent: Recent::default(),
            done: Done::default(),
            pids: Vec::new(),
            policy,
        }
    }

    /// The plan follows the decision.
    fn follow(&mut self, input: &background::Input, decision: Decision) {
        match decision {
            Decision::Compact => self.plan = Some(Plan::new(Task::Compact, &self.pids)),
            Decision::Prefetch => self.plan = Some(Plan::new(Task::Prefetch, &self.pids)),
            // Compaction is decided once, and may then take many periods.
            Decision::Nothing { reason: Reason::Done } => {
                let paused = input.veto.is_some() || background::short_of_memory(&self.start.params, input);
                if let Some(plan) = &mut self.plan {
                    plan.paused = paused;
                }
            }
            Decision::Nothing { reason: Reason::Foreground } => {
                self.plan.take_if(|plan| plan.task == Task::Compact);
            }
            Decision::Nothing { .. } => self.plan = None,
        }
    }

    /// Whether there is a step to carry out now.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| !plan.paused)
    }

    /// Whether the plan must wait at this memory pressure of the machine.
    fn must_wait(&self, machine_stall: RatioPpm, available: RatioPpm) -> bool {
        self.last.is_none_or(|last| {
            background::short_of_memory(&self.start.params, &background::Input { machine_stall, available, ..last.input })
        })
    }

    /// The plan in progress in words, or else the last decision.
    fn current(&self) -> Option<String> {
        let Some(plan) = &self.plan else { return self.last.map(|last| explain(&last.input, last.decision)) };
        Some(match plan.task {
            _ if plan.paused => format!("compaction waits after {}", plan.done.asked),
            Task::Compact => format!("being compacted, {} so far", plan.done.asked),
            Task::Prefetch => format!("being prefetched, {} so far", plan.done.prefetched),
        })
    }
}

impl Controller for Background {
    type Input = background::Input;
    type Decision = Decided;

    fn read(&mut self, job: &mut Job, context: &mut Context, now: Now) -> kernel::Result<background::Input> {
        let (machine_stall, available) = context.memory_pressure()?;
        let veto = veto::first(VETOES, job, context, now);
        let frozen = job.cgroup.frozen()?;
        // Without CPU accounting no job is idle: the time that passed counts as used.
        let cpu_usage_us = job.cgroup.cpu_usage_us()?.unwrap_or(now.boot_ms().0);
        self.pids = job.cgroup.procs(crate::PROCESSES_MAX)?;
        Ok(background::Input { now_ms: now.boot_ms(), hint: self.hint, frozen, cpu_usage_us, machine_stall, available, veto })
    }

    fn step(&mut self, input: &background::Input) -> Decided {
        let (state, decision) = background::step(&self.start.params, &self.start.state, input);
        self.start.state = state;
        Decided { input: *input, decision }
    }

    fn record(&mut self, job: &mut Job, now: Now, input: background::Input, decided: &Decided) -> Record {
        self.recent.push(now.unix_ms, &explain(&input, decided.decision));
        BackgroundRecord {
            unix_ms: now.unix_ms,
            job: job.path().to_owned(),
            id: job.cgroup.id(),
            input,
            decision: decided.decision,
            done: std::mem::take(&mut self.done),
            memory: job.memory,
        }
        .into()
    }

    fn apply(&mut self, job: &mut Job, context: &mut Context, _: Now, decided: &Decided) -> kernel::Result<()> {
        let Decided { input, decision } = *decided;
        self.follow(&input, decision);
        let before = self.last.replace(*decided).map(|last| last.decision);
        if is_news(before, decision) {
            context.event(Some(job.path()), explain(&input, decision));
        }
        Ok(())
    }
}

impl Slot for Background {
    fn name(&self) -> &'static str {
        "background"
    }

    fn period(&mut self, job: &mut Job, context: &mut Context, now: Now) -> kernel::Result<()> {
        run(self, job, context, now)
    }

    fn abandon(&mut self) {
        if let Some(plan) = &mut self.plan {
            plan.paused = true;
        }
    }

    fn configure(&mut self, _: &mut Job, config: &Config) {
        self.start.params = config.background.params();
    }

    fn start(&self, record: &mut JobRecord) {
        record.background = Some(self.start);
    }

    fn save(&self, history: &mut JobHistory) {
        history.hint = self.hint;
    }

    fn restore(&mut self, history: &JobHistory) {
        self.hint = history.hint;
    }

    fn take_hint(&mut self, hint: Option<Hint>) -> bool {
        self.hint = hint;
        true
    }

    fn recent(&self) -> Option<&Recent> {
        Some(&self.recent)
    }

    fn explain(&self, _: &Job) -> Option<String> {
        // Under `auto` the other controllers have more to say about a job in the foreground.
        let foreground = Decision::Nothing { reason: Reason::Foreground };
        let silent = self.policy == Named::Auto && self.last.is_some_and(|last| last.decision == foreground);
        if silent { None } else { self.current() }
    }

    fn report(&self, _: &Job, view: &mut JobView) {
        view.hint = self.hint;
    }
}

/// Whether a decision is worth an event: it differs from the previous one and is not a steady state.
fn is_news(before: Option<Decision>, now: Decision) -> bool {
    let quiet = match now {
        Decision::Nothing { reason: Reason::Foreground } => before.is_none(),
        Decision::Nothing { reason: Reason::Done } => true,
        Decision::Nothing { .. } | Decision::Compact | Decision::Prefetch => false,
    };
    before != Some(now) && !quiet
}
