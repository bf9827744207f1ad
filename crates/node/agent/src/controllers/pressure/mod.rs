//! Reclaims from a job while its stalls stay below a target (TMO section 3.3). Policies: `pressure`, and `balance` between
//! anonymous and file memory.
//!
//! A job's pressure files include its descendants: the kernel counts a moment as stalled for a cgroup if any task in or below
//! it waits. A child that waits therefore holds back its parent, and the job is handled once, at the level that the operator
//! named.

use std::time::Duration;

use config::{Config, Policy as Named};
use kernel::cgroup::MemoryStat;
use policy::balance::{self, AnonFileBias};
use policy::pressure::{self, Params, Step};
use policy::thresholds::Thresholds;
use policy::veto::Veto;
use units::{Bytes, Millis, Pages};

use super::policy::{Cadence, Policy};
use super::recent::Recent;
use super::seam::{Controller, Slot, run};
use super::tiering;
use super::veto::{self, Reason};
use crate::context::Context;
use crate::discover::Treatment;
use crate::job::{Job, Stall};
use crate::journal::{JobRecord, Record};
use crate::limits::LimitReader;
use crate::now::Now;
use crate::protection;
use crate::tiers::PageCosts;
use crate::view::JobView;

mod amount;
mod reclaiming;
pub mod record;

use amount::Amount;
use record::{Period, PressureRecord, PressureStart, Reclaimed};

/// That anonymous memory has no tier forbids nothing: page cache needs no swap.
const VETOES: &[Reason] = &[Reason::ObserveOnly, Reason::AtLimit, Reason::CpuBudget];

/// With fewer promotions than this in a period no cost is learned: other waits would be counted as theirs.
const LEARN_PAGES_MIN: u64 = 32;

/// Each period has a weight of one part in this many.
const LEARN_PARTS: u64 = 4;

/// The policy as the scheduler knows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PressurePolicy;

impl Policy for PressurePolicy {
    fn cadence(&self, config: &Config) -> Cadence {
        Cadence::Every(config.pressure.period)
    }

    fn slot(&self, config: &Config, treatment: &Treatment, _: &Thresholds) -> Option<Box<dyn Slot>> {
        let applies = matches!(treatment.policy, Named::Pressure | Named::Auto);
        applies.then(|| Box::new(Pressure::new(config.pressure_for(treatment.class))) as Box<dyn Slot>)
    }
}

/// Both controllers of one job.
#[derive(Debug)]
pub struct Pressure {
    /// Parameters and state.
    pub start: PressureStart,
    /// What is to be reclaimed until the next decision.
    pub plan: Option<Amount>,
    /// The last period.
    pub last: Option<Period>,
    limits: LimitReader,
    recent: Recent,
    outcome: Reclaimed,
    /// Reclaimed beyond what was asked for: the kernel reclaims in batches, and small jobs are asked for less than one.
    surplus: Bytes,
    stepped_at: Option<Duration>,
    refaults: Option<Refaults>,
    /// Refaults of both kinds since the controller started.
    refaulted: Pages,
    /// Stall for memory and I/O, ever, at the last period.
    stalled_us: Option<u64>,
}

/// Pages that were refaulted, by kind: ever, or since the last period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refaults {
    /// From swap, compressed or not.
    anon: Pages,
    /// Page cache that had been evicted.
    file: Pages,
}

/// What one period is based on.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    pressure: pressure::Input,
    balance: balance::Input,
}

/// What both controllers decided.
#[derive(Clone, Copy, Debug)]
pub struct Decided {
    step: Step,
    bias: AnonFileBias,
}

impl Pressure {
    /// A controller without state.
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self {
            start: PressureStart { params, state: pressure::State::default(), balance: balance::State::default() },
            plan: None,
            last: None,
            limits: LimitReader::default(),
            recent: Recent::default(),
            outcome: Reclaimed::default(),
            surplus: Bytes::ZERO,
            stepped_at: None,
            refaults: None,
            refaulted: Pages::ZERO,
            stalled_us: None,
        }
    }

    /// Learns what a refault costs this job from the stall of the last period.
    fn learn_cost(&mut self, stall: &mut Stall, stalled_us: u64, refaults: Refaults) {
        let waited = self.stalled_us.replace(stalled_us).map_or(0, |before| stalled_us.saturating_sub(before));
        let pages = refaults.anon.0 + refaults.file.0;
        if pages >= LEARN_PAGES_MIN {
            stall.observed_cost_us = (stall.observed_cost_us * (LEARN_PARTS - 1) + waited / pages) / LEARN_PARTS;
        }
    }

    /// Refaults since the last call.
    fn refaults(&mut self, stat: &MemoryStat, promoted: Pages) -> Refaults {
        let now = Refaults { anon: promoted, file: Pages(stat.workingset_refault_file.unwrap_or(0)) };
        let before = self.refaults.replace(now).unwrap_or(now);
        let refaults = Refaults { anon: now.anon - before.anon, file: now.file - before.file };
        self.refaulted += refaults.anon + refaults.file;
        refaults
    }
}

impl Controller for Pressure {
    type Input = Input;
    type Decision = Decided;

    fn read(&mut self, job: &mut Job, context: &mut Context, now: Now) -> kernel::Result<Input> {
        job.observe(context.tiers.ram_disks())?;
        let (memory, io) = (job.cgroup.pressure()?, job.cgroup.io_pressure()?);
        job.signals.limit = self.limits.read(&job.cgroup, now.since_boot)?;
        let stat = job.cgroup.stat()?;
        let protected = protection::operators(job, context)?;
        // Under `auto`, the age of anonymous memory decides, with the cost of its promotion.
        let swap = job.treatment.policy == Named::Pressure && tiering::place(job, context, now).is_none();
        let resident = job.memory.current - job.memory.pool;
        let shmem = stat.shmem.unwrap_or_default();
        let cache = stat.file.unwrap_or_default() - shmem;
        // If only page cache may be reclaimed, shares are of page cache: a share of the whole job could be all of it.
        let (resident, protected) = if swap { (resident, protected) } else { (cache, protected - (resident - cache)) };
        let costs = tiering::costs_of(job, context);
        let veto = veto::first(VETOES, job, context, now).or_else(|| decided_elsewhere(job, context));

        let promoted = job.counters.totals.promoted.to_pages(kernel::page_size());
        let refaults = self.refaults(&stat, promoted);
        let (memory_stall_us, io_stall_us) = (memory.some.total_us, io.some.total_us);
        if let Some(stall) = &mut job.signals.stall {
            self.learn_cost(stall, memory_stall_us.saturating_add(io_stall_us), refaults);
        }
        let elapsed = self.stepped_at.replace(now.since_boot).map_or(Duration::ZERO, |then| now.since_boot.saturating_sub(then));
        let balance = balance::Input {
            anon_refaults: refaults.anon,
            file_refaults: refaults.file,
            anon_cost_us: costs.anon_us,
            file_cost_us: costs.file_us,
            // Shared memory is swapped, although the kernel accounts it as page cache.
            anon: stat.anon.unwrap_or_default() + shmem,
            file: cache,
            swap,
        };
        let counters = pressure::Counters { memory_stall_us, io_stall_us, refaults: self.refaulted };
        let pressure = pressure::Input {
            job_age_ms: job.age_ms(now),
            elapsed_ms: Millis(units::millis(elapsed)),
            resident,
            protected,
            counters,
            refault_cost_us: uncharged_cost(refaults, costs),
            veto,
        };
        Ok(Input { pressure, balance })
    }

    fn step(&mut self, input: &Input) -> Decided {
        let (balance, bias) = balance::step(&self.start.balance, &input.balance);
        let (state, step) = pressure::step(&self.start.params, &self.start.state, &input.pressure);
        (self.start.balance, self.start.state) = (balance, state);
        self.plan = self.amount(&step.decision, bias, &input.balance);
        Decided { step, bias }
    }

    fn record(&mut self, job: &mut Job, now: Now, input: Input, decided: &Decided) -> Record {
        let period = Period { step: decided.step, lean: decided.bias };
        if let Some(stall) = &mut job.signals.stall {
            stall.at_target = period.is_stalled();
        }
        self.recent.push(now.unix_ms, &period.explain());
        self.last = Some(period);
        PressureRecord {
            unix_ms: now.unix_ms,
            job: job.path().to_owned(),
            id: job.cgroup.id(),
            input: input.pressure,
            step: decided.step,
            balance: input.balance,
            lean: decided.bias,
            reclaimed: std::mem::take(&mut self.outcome),
            memory: job.memory,
        }
        .into()
    }

    fn apply(&mut self, _: &mut Job, _: &mut Context, _: Now, _: &Decided) -> kernel::Result<()> {
        Ok(())
    }
}

impl Slot for Pressure {
    fn name(&self) -> &'static str {
        "pressure"
    }

    fn period(&mut self, job: &mut Job, context: &mut Context, now: Now) -> kernel::Result<()> {
        run(self, job, context, now)
    }

    fn abandon(&mut self) {
        self.plan = None;
    }

    fn configure(&mut self, job: &mut Job, config: &Config) {
        self.start.params = config.pressure_for(job.treatment.class);
        job.signals.stall.get_or_insert_default().target = self.start.params.stall_target;
    }

    fn start(&self, record: &mut JobRecord) {
        record.pressure = Some(self.start);
    }

    fn offload_due(&self) -> bool {
        self.plan.is_some()
    }

    fn offload(&mut self, job: &mut Job, context: &mut Context, limit: Pages, swap_limit: Pages) -> kernel::Result<Pages> {
        self.reclaim_step(job, context, limit, swap_limit)
    }

    fn drop_writes(&mut self) {
        self.plan = self.plan.map(|plan| Amount { anon: Bytes::ZERO, ..plan }).filter(|plan| plan.total() > Bytes::ZERO);
    }

    fn recent(&self) -> Option<&Recent> {
        Some(&self.recent)
    }

    fn explain(&self, _: &Job) -> Option<String> {
        self.last.map(|last| last.explain())
    }

    fn report(&self, _: &Job, view: &mut JobView) {
        let Some(Period { step, .. }) = self.last else { return };
        view.stall_ratio = Some(step.memory_stall.as_f64());
        view.io_stall_ratio = Some(step.io_stall.as_f64());
        view.refault_stall_ratio = Some(step.refault_stall.as_f64());
    }
}

/// Mean cost of a refault that no pressure file includes, in microseconds: refaults of page cache are all included.
fn uncharged_cost(refaults: Refaults, costs: PageCosts) -> u32 {
    let mean = (u64::from(costs.uncharged_us) * refaults.anon.0).checked_div(refaults.anon.0 + refaults.file.0);
    mean.map_or(costs.uncharged_us, |mean| u32::try_from(mean).unwrap_or(u32::MAX))
}

/// Under policy `auto` ages decide for anonymous memory and refaults for page cache; this controller observes the stalls.
fn decided_elsewhere(job: &Job, context: &Context) -> Option<Veto> {
    (job.treatment.policy == Named::Auto && context.config.cold_age.page_cache).then_some(Veto::OtherPolicy)
}
