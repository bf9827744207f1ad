//! Offloads pages that have been idle for a safe time (SDFM sections 4 and 5). Policy: `cold_age`.
//!
//! Every job has this controller: where another policy decides, it holds and keeps learning.

use config::{Actuator, Config, Policy as Named};
use policy::cold_age::{self, Decision, Hold, Params, Reason as Rule, Sample, State, Step};
use policy::histogram::Histogram;
use policy::thresholds::Thresholds;
use policy::tiering::Permitted;
use units::{Age, Bytes, Millis, Pages, RatioPpm};

use super::policy::{Cadence, Policy};
use super::recent::Recent;
use super::seam::{Controller, Slot, run};
use super::tiering;
use super::veto::{self, Reason};
use crate::context::Context;
use crate::context::guardrail::JobPeriod;
use crate::discover::Treatment;
use crate::history::JobHistory;
use crate::job::Job;
use crate::journal::{JobRecord, Record};
use crate::limits::LimitReader;
use crate::now::Now;
use crate::view::JobView;
use crate::{actuators, protection, swap_gate};

mod offload;
mod plan;
pub mod record;
#[cfg(test)]
mod tests;
mod unmapped;

use plan::{Lists, Plan};
use record::{Period, PeriodRecord};

const VETOES: &[Reason] = &[Reason::ObserveOnly, Reason::OtherPolicy, Reason::AtLimit, Reason::Stalled, Reason::NoTier, Reason::CpuBudget];

/// The policy as the scheduler knows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ColdAgePolicy;

impl Policy for ColdAgePolicy {
    fn cadence(&self, _: &Config) -> Cadence {
        Cadence::Control
    }

    fn slot(&self, config: &Config, treatment: &Treatment, thresholds: &Thresholds) -> Option<Box<dyn Slot>> {
        Some(Box::new(ColdAge::new(config, treatment, thresholds)))
    }

    fn release(&mut self, job: &Job, context: &mut Context) {
        protection::release(job, context);
        swap_gate::release(job, context);
    }
}

/// The controller of one job.
#[derive(Debug)]
pub struct ColdAge {
    /// Its parameters.
    pub params: Params,
    /// Its state.
    pub state: State,
    /// What is being offloaded.
    pub plan: Option<Plan>,
    /// The last period.
    pub last: Option<Period>,
    /// Control periods with far memory and a known promotion rate.
    pub periods: u64,
    /// Of these, periods whose promotion rate was above the objective.
    pub slo_violations: u64,
    thresholds: Thresholds,
    scan_period_seconds: f64,
    policy: Named,
    /// The age from which pages are offloaded, by the last decision.
    threshold: Option<Age>,
    /// The most pages to offload until the next decision, if it is for a part of the cold pages.
    part: Option<Pages>,
    /// What steps of the plan have put into the swap cache and the kernel was not yet asked to free.
    cached_out: Bytes,
    /// Pages in DRAM that no process maps and a plan asks for, by the last period.
    unmapped: Pages,
    lists: Lists,
    /// Permitted promotions in a scan from memory that is compressed, and from a device.
    allowances: Option<[Pages; 2]>,
    /// What the stall target permits in each tier.
    permitted: Option<Permitted>,
    limits: LimitReader,
    recent: Recent,
    /// Promotion rate and objective of the last period, if it counted.
    counted: Option<(u64, u64)>,
}

impl ColdAge {
    /// A controller without state.
    #[must_use]
    pub fn new(config: &Config, treatment: &Treatment, thresholds: &Thresholds) -> Self {
        Self {
            params: config.cold_age_for(treatment.class).params(),
            state: State::default(),
            plan: None,
            last: None,
            periods: 0,
            slo_violations: 0,
            thresholds: *thresholds,
            scan_period_seconds: config.agent.scan_period.as_secs_f64(),
            policy: treatment.policy,
            threshold: None,
            part: None,
            cached_out: Bytes::ZERO,
            unmapped: Pages::ZERO,
            lists: Lists::default(),
            allowances: None,
            permitted: None,
            limits: LimitReader::default(),
            recent: Recent::default(),
            counted: None,
        }
    }

    fn decides(&self) -> bool {
        matches!(self.policy, Named::ColdAge | Named::Auto)
    }

    /// Promotions per minute that a period allowed, in millionths of the working set: the configured objective, or what the
    /// stall target and the tier's cost allow.
    #[must_use]
    pub fn objective_ppm(&self, period: &Period) -> u64 {
        match self.policy {
            Named::Auto => period.allowed_ppm().unwrap_or(0),
            _ => u64::from(self.params.promotion_rate_max.0),
        }
    }

    /// Counts a period against the objective once the job has far memory.
    fn count(&mut self, period: &Period, far: Bytes) {
        self.counted = None;
        // A period in which all far memory was promoted ends without any, and is the worst case.
        let far_memory = far > Bytes::ZERO || period.outcome.promoted > Pages::ZERO;
        if let Some(rate) = period.promotion_rate_ppm()
            && far_memory
            && period.job_age_ms >= self.params.warmup_ms
        {
            let objective = self.objective_ppm(period);
            self.periods += 1;
            self.slo_violations += u64::from(rate > objective);
            self.counted = Some((rate, objective));
        }
    }

    /// The threshold of the decision applies to future plans, and at once to the current one.
    fn follow(&mut self, decision: &Decision) {
        (self.threshold, self.part) = match *decision {
            Decision::Offload { threshold, pages, reason: Rule::Partial } => (Some(threshold), Some(pages)),
            Decision::Offload { threshold, .. } => (Some(threshold), None),
            Decision::Hold { .. } => (None, None),
        };
        match (self.threshold, &mut self.plan) {
            (None, _) => self.plan = None,
            (Some(threshold), Some(plan)) => {
                plan.threshold = threshold.max(plan.threshold);
                plan.left = self.part.map_or(plan.left, |part| plan.left.min(part));
            }
            (Some(_), None) => {}
        }
    }

    /// Reports the last period to the guardrail, while a bundle is in effect.
    fn report_period(&self, job: &Job, context: &mut Context, elapsed_ms: Millis) {
        if !context.may_act(job) {
            return;
        }
        let Some(guardrail) = &mut context.guardrail else { return };
        guardrail.push(JobPeriod {
            job: job.path().to_owned(),
            class: job.treatment.class,
            policy: self.policy,
            periods: self.periods,
            promotions_ppm: self.counted,
            stall_target: job.signals.stall.map(|stall| stall.target),
            far: job.memory.far > Bytes::ZERO,
            stall_us: job.cgroup.pressure().map_or(0, |memory| memory.some.total_us),
            elapsed_ms,
        });
    }
}

/// The age of the oldest pages that can go out now, if that is done by the generations that the job's tracker opens.
fn reach(job: &Job, context: &Context) -> Option<Age> {
    let (kind, configured) = (job.tracker.0, context.config.agent.actuator);
    let by_generation = actuators::choose(configured, kind) == Actuator::LruGen && context.kernel.lru.is_some();
    context.trackers.get(kind).filter(|_| by_generation)?.reach(job.path())
}

impl Controller for ColdAge {
    type Input = cold_age::Input;
    type Decision = Step;

    fn read(&mut self, job: &mut Job, context: &mut Context, now: Now) -> kernel::Result<cold_age::Input> {
        job.observe(context.tiers.ram_disks())?;
        job.signals.limit = self.limits.read(&job.cgroup, now.since_boot)?;
        let veto = veto::first(VETOES, job, context, now);
        let tier_us = tiering::costs_of(job, context).anon_us;
        let job_age_ms = job.age_ms(now);
        let accesses = job.promotions.for_decision();
        let window_ms = units::millis(accesses.window);
        let promotions = Histogram::from_counts(&accesses.all, &self.thresholds);
        let returned = Histogram::from_counts(&accesses.far, &self.thresholds);
        let allowance = job.signals.stall.map(|stall| cold_age::allowance(stall.of_anon(), Millis(window_ms), stall.cost_us(tier_us)));
        self.allowances = job.signals.stall.map(|stall| {
            tiering::costs_by_tier(job, context, stall).map(|cost_us| cold_age::allowance(stall.of_anon(), Millis(window_ms), cost_us))
        });
        let resident = job.scan.as_ref().map(|scan| scan.resident.clone()).unwrap_or_default();
        let points = job.scan.as_ref().and_then(|scan| scan.sample.as_ref()).map(|sample| sample.points);
        let sample = points.map(|pages| Sample { pages, of: resident.total() });
        let mut cold = resident.clone();
        cold.merge(job.far.counts());
        Ok(cold_age::Input {
            job_age_ms: Millis(job_age_ms.0),
            window_ms: Millis(window_ms),
            cold: Histogram::from_counts(&cold, &self.thresholds),
            resident: Histogram::from_counts(&resident, &self.thresholds),
            promotions,
            returned: (sample.is_some() || self.params.partial || self.params.mean).then_some(returned),
            allowance,
            trial_max: context.trial_max(job, Millis(window_ms), RatioPpm(0)),
            sample,
            reach: reach(job, context),
            veto,
        })
    }

    fn step(&mut self, input: &cold_age::Input) -> Step {
        let (state, step) = cold_age::step(&self.params, &self.thresholds, &self.state, input);
        self.state = state;
        self.permitted = self.allowances.and_then(|allowances| {
            let [compressed, device] = allowances.map(|allowed| state.far_max(&self.params, &self.thresholds, input, allowed));
            Some(Permitted { compressed: compressed?, device: device? })
        });
        step
    }

    fn record(&mut self, job: &mut Job, now: Now, input: cold_age::Input, step: &Step) -> Record {
        let outcome = job.close_period(now);
        let record = PeriodRecord {
            unix_ms: now.unix_ms,
            job: job.path().to_owned(),
            id: job.cgroup.id(),
            input,
            step: *step,
            outcome,
            memory: job.memory,
            resolved_to: job.scan.as_ref().map(|scan| scan.resolved_to),
        };
        let period = Period::from(&record);
        self.count(&period, job.memory.far);
        let decided = match step.decision {
            Decision::Offload { threshold, .. } => Some(threshold),
            Decision::Hold { .. } => step.threshold,
        };
        job.signals.threshold = step.pace.or(decided).or(job.signals.threshold);
        job.signals.part = match step.decision {
            Decision::Offload { pages, reason: Rule::Partial, .. } => Some(pages),
            Decision::Hold { reason: Hold::PartIsFar | Hold::Owed } => Some(Pages::ZERO),
            // Nothing more goes out for some periods after too much has returned.
            Decision::Hold { .. } if step.threshold.is_none() => job.signals.part.map(|_| Pages::ZERO),
            _ => None,
        };
        job.signals.permitted = self.permitted;
        job.signals.observed = period.window_ms > Millis(0);
        job.signals.short_history = job.signals.threshold.is_none() && self.state.is_short(&self.params);
        #[expect(clippy::cast_precision_loss, reason = "shown to people")]
        let rate = period.promotion_rate_ppm().map_or_else(|| "-".to_owned(), |ppm| format!("{:.3}%/min", ppm as f64 / 1e4));
        self.recent.push(now.unix_ms, &format!("promotions {rate:>11}  {}", period.explain(self.scan_period_seconds)));
        self.last = Some(period);
        record.into()
    }

    fn apply(&mut self, job: &mut Job, context: &mut Context, _: Now, step: &Step) -> kernel::Result<()> {
        self.follow(&step.decision);
        self.unmapped = unmapped::pages(job, context);
        if context.may_act(job) {
            protection::protect(job, context, step.working_set);
            swap_gate::close(job, context);
            if self.plan.is_none() {
                self.free_swap_cache(job, context)?;
            }
        }
        let elapsed_ms = self.last.map_or(Millis::ZERO, |period| period.outcome.elapsed_ms);
        self.report_period(job, context, elapsed_ms);
        Ok(())
    }
}

impl Slot for ColdAge {
    fn name(&self) -> &'static str {
        "cold_age"
    }

    fn period(&mut self, job: &mut Job, context: &mut Context, now: Now) -> kernel::Result<()> {
        run(self, job, context, now)
    }

    fn abandon(&mut self) {
        self.plan = None;
    }

    fn forget_ages(&mut self) {
        self.plan = None;
    }

    fn configure(&mut self, job: &mut Job, config: &Config) {
        self.params = config.cold_age_for(job.treatment.class).params();
    }

    fn start(&self, record: &mut JobRecord) {
        (record.params, record.state) = (self.params, self.state);
    }

    fn save(&self, history: &mut JobHistory) {
        history.state = self.state;
    }

    fn restore(&mut self, history: &JobHistory) {
        self.state = history.state;
    }

    fn plan(&mut self, job: &Job) {
        let cold = |threshold| job.scan.as_ref().map_or(Pages::ZERO, |scan| scan.resident.at_least(threshold));
        self.plan = self.threshold.and_then(|threshold| Plan::new(cold(threshold), threshold, self.part, self.unmapped));
    }

    fn offload_due(&self) -> bool {
        self.plan.is_some()
    }

    fn offload(&mut self, job: &mut Job, context: &mut Context, _: Pages, swap_limit: Pages) -> kernel::Result<Pages> {
        self.step_plan(job, context, swap_limit)
    }

    fn drop_writes(&mut self) {
        self.plan = None;
    }

    fn recent(&self) -> Option<&Recent> {
        self.decides().then_some(&self.recent)
    }

    fn explain(&self, _: &Job) -> Option<String> {
        self.last.filter(|_| self.decides()).map(|last| last.explain(self.scan_period_seconds))
    }

    fn report(&self, _: &Job, view: &mut JobView) {
        let last = self.last.as_ref();
        let objective = last.map_or(u64::from(self.params.promotion_rate_max.0), |last| self.objective_ppm(last));
        view.decision = last.map(|last| last.step.decision);
        view.threshold_seconds = last.and_then(|last| last.step.threshold).map(|age| f64::from(age.0) * self.scan_period_seconds);
        #[expect(clippy::cast_precision_loss, reason = "shown to people")]
        {
            view.promotion_rate_ratio_per_min = last.and_then(Period::promotion_rate_ppm).map(|ppm| ppm as f64 / 1e6);
            view.slo_ratio_per_min = objective as f64 / 1e6;
        }
        (view.totals.periods, view.totals.slo_violations) = (self.periods, self.slo_violations);
    }
}
