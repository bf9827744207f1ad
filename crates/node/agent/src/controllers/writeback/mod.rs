//! Moves what stays unaccessed in zswap on to the swap device: of jobs under policy `auto`, but not of class `conservative`, unless
//! `writeback.enabled` is false. Policy: `writeback`.
//!
//! Each control period the page maps are surveyed and the policy decides. Its plan is carried out in batches of [`BATCH_BLOCKS`]
//! blocks, each within one turn of the loop: no tier is chosen meanwhile.

use std::time::Duration;

use config::{Class, Config, Policy as Named, Tier};
use kernel::cgroup::MemoryStat;
use kernel::vmstat;
use policy::thresholds::Thresholds;
use policy::writeback::{self, Decision, Input, Obstacle, Params, State, Step};
use units::{Bytes, Millis, RatioPpm};

use super::policy::{Cadence, Policy};
use super::recent::Recent;
use super::seam::{Controller, Slot, run};
use super::slots::Jobs;
use super::tiering;
use super::veto::{self, Reason};
use crate::context::{Context, PACE_WAIT};
use crate::discover::Treatment;
use crate::job::Job;
use crate::journal::{JobRecord, Record};
use crate::now::Now;
use crate::view::JobView;

mod batch;
mod gate;
pub mod record;
pub mod survey;

use record::{WritebackRecord, WritebackStart, explain};
use survey::Blocks;

/// A job at its memory limit is not touched: pages come into DRAM for a moment.
const VETOES: &[Reason] = &[Reason::ObserveOnly, Reason::OtherPolicy, Reason::AtLimit, Reason::Stalled, Reason::CpuBudget];

/// Blocks of a batch: 1 MiB comes into DRAM for a moment.
const BATCH_BLOCKS: usize = 16;

/// The policy as the scheduler knows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct WritebackPolicy;

impl Policy for WritebackPolicy {
    fn cadence(&self, _: &Config) -> Cadence {
        Cadence::Control
    }

    fn slot(&self, config: &Config, treatment: &Treatment, _: &Thresholds) -> Option<Box<dyn Slot>> {
        // What returns from the device waits longer than the latency-critical jobs of class `conservative` should.
        let bears_it = treatment.policy == Named::Auto && treatment.class != Class::Conservative;
        let applies = bears_it && config.writeback.enabled;
        applies.then(|| Box::new(Writeback::new(params(config))) as Box<dyn Slot>)
    }

    /// One batch of one job's plan, within the byte rate and the CPU budget.
    fn act(&mut self, jobs: &mut Jobs, context: &mut Context) -> Option<Duration> {
        if context.options.dry_run {
            return None;
        }
        let (job, writeback) = jobs.values_mut().find_map(|entry| {
            let writeback = entry.slots.get_mut::<Writeback>().filter(|writeback| writeback.plan.is_some())?;
            Some((&mut entry.job, writeback))
        })?;
        let Some(limit) = context.step_limit() else { return Some(PACE_WAIT) };
        match writeback.step_plan(job, context, limit) {
            Ok((moved, wait)) => {
                context.pacing.rate.spend(moved);
                return Some(wait);
            }
            Err(error) if error.is_gone() => {}
            Err(error) => context.event(Some(job.path()), format!("moving memory from zswap to the device ended: {error}")),
        }
        Some(Duration::ZERO)
    }
}

/// The policy's parameters.
fn params(config: &Config) -> Params {
    config.writeback.params(kernel::page_size())
}

/// The controller of one job.
#[derive(Debug)]
pub struct Writeback {
    /// Parameters and state.
    pub start: WritebackStart,
    /// What is being carried out.
    pub plan: Option<Plan>,
    /// The last period.
    pub last: Option<(Input, Step)>,
    blocks: Blocks,
    recent: Recent,
    read_at: Option<Millis>,
    /// Whether the kernel wrote other memory since the last decision.
    spilled: bool,
    /// What was moved since the last decision.
    written: Bytes,
    /// The same since the agent started.
    total: Bytes,
}

/// Blocks to move.
#[derive(Debug, Default)]
pub struct Plan {
    /// Process and address of each, the next one last.
    left: Vec<(i32, u64)>,
    /// What the batches have left in the swap cache.
    cached: Bytes,
    /// Turns in a row in which the device had not taken that.
    waited: u32,
}

impl Writeback {
    /// A controller without state.
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self {
            start: WritebackStart { params, state: State::default() },
            plan: None,
            last: None,
            blocks: Blocks::default(),
            recent: Recent::default(),
            read_at: None,
            spilled: false,
            written: Bytes::ZERO,
            total: Bytes::ZERO,
        }
    }

    /// As after a batch in which the kernel wrote other memory.
    #[cfg(test)]
    pub(crate) fn pretend_spill(&mut self) {
        self.spilled = true;
        self.plan = None;
    }

    fn after(&self) -> Option<Millis> {
        self.last.and_then(|(_, step)| step.after_ms)
    }
}

/// Why nothing of the job can be moved now.
fn obstacle(job: &Job, context: &Context) -> kernel::Result<Option<Obstacle>> {
    if !context.machine.zswap_enabled || job.cgroup.zswap_max()?.is_none() {
        return Ok(Some(Obstacle::NoZswap));
    }
    if !context.tiers.all_on_devices() {
        return Ok(Some(Obstacle::NoDevice));
    }
    if job.treatment.tier == Tier::Zswap {
        return Ok(Some(Obstacle::NoWriteback));
    }
    if let Some(obstacle) = gate::obstacle(job, context)? {
        return Ok(Some(obstacle));
    }
    Ok(is_short(job, context)?.then_some(Obstacle::ShortOfMemory))
}

/// Whether the kernel counts what it writes back from zswap, of the job and of the machine, and what it stores there (Linux 6.8).
fn counts_writeback(stat: &MemoryStat, context: &Context) -> kernel::Result<bool> {
    Ok(stat.zswpwb.is_some() && stat.zswpout.is_some() && vmstat::read(&context.kernel.roots)?.zswpwb.is_some())
}

/// Whether a batch could meet a memory limit, of the job or an ancestor, or the machine has no memory for one.
fn is_short(job: &Job, context: &Context) -> kernel::Result<bool> {
    let room = Bytes::mib(4);
    let full = |level: &kernel::cgroup::LimitLevel| match level.limit {
        kernel::cgroup::Limit::Bytes(limit) => limit - level.current < room,
        kernel::cgroup::Limit::Max => false,
    };
    Ok(context.machine.is_short() || job.cgroup.limit_levels()?.iter().any(full))
}

impl Controller for Writeback {
    type Input = Input;
    type Decision = Step;

    fn read(&mut self, job: &mut Job, context: &mut Context, now: Now) -> kernel::Result<Input> {
        let now_ms = now.boot_ms();
        let veto = veto::first(VETOES, job, context, now);
        let stat = job.cgroup.stat()?;
        let uncounted = (!counts_writeback(&stat, context)?).then_some(Obstacle::NoCounters);
        let obstacle = obstacle(job, context)?.or(uncounted);
        let is_never = matches!(obstacle, Some(Obstacle::NoZswap | Obstacle::NoCounters | Obstacle::NoDevice));
        let surveyed = if veto.is_none() && !is_never {
            let kernel = &mut context.kernel;
            self.blocks.survey(&kernel.roots, &mut kernel.walker, &job.processes(), now_ms, self.after())
        } else {
            survey::Surveyed::default()
        };
        let (pool, stored) = (stat.zswap.unwrap_or_default(), stat.zswapped.unwrap_or_default());
        let writable = tiering::writable_past(job, context, now.since_boot);
        let scan_ms = Millis::from(context.config.agent.scan_period);
        let stall = job.signals.stall.unwrap_or_default();
        let elapsed_ms = now_ms.saturating_sub(self.read_at.replace(now_ms).unwrap_or(now_ms));
        Ok(Input {
            elapsed_ms,
            threshold_ms: job.signals.threshold.map(|age| Millis(scan_ms.0.saturating_mul(u64::from(age.0)))),
            latencies_us: tiering::costs_by_tier(job, context, stall),
            compressed: RatioPpm::of(pool.0, stored.0).unwrap_or_default(),
            stall_target: stall.target,
            writable: writable.to_pages(kernel::page_size()),
            oldest_ms: surveyed.oldest,
            written_rate: surveyed.written_rate,
            expected: surveyed.expected,
            returned: surveyed.returned,
            written: self.written.to_pages(kernel::page_size()),
            spilled: std::mem::take(&mut self.spilled),
            obstacle,
            veto,
        })
    }

    fn step(&mut self, input: &Input) -> Step {
        let (state, step) = writeback::step(&self.start.params, &self.start.state, input);
        self.start.state = state;
        step
    }

    fn record(&mut self, job: &mut Job, now: Now, input: Input, step: &Step) -> Record {
        self.recent.push(now.unix_ms, &explain(&input, step));
        self.last = Some((input, *step));
        let (watched, moved) = self.blocks.pages();
        WritebackRecord {
            unix_ms: now.unix_ms,
            job: job.path().to_owned(),
            id: job.cgroup.id(),
            input,
            step: *step,
            written: std::mem::take(&mut self.written),
            watched: [watched, moved].map(|pages| pages.to_bytes(kernel::page_size())),
            partial: self.blocks.partial,
        }
        .into()
    }

    fn apply(&mut self, _: &mut Job, _: &mut Context, now: Now, step: &Step) -> kernel::Result<()> {
        // What the last plan has left in the swap cache is still to be freed.
        let cached = self.plan.take().map_or(Bytes::ZERO, |plan| plan.cached);
        let left = match (step.decision, step.after_ms) {
            (Decision::Write { pages }, Some(after)) => {
                let mut left = self.blocks.oldest(now.boot_ms(), after, pages);
                left.reverse();
                left
            }
            _ => Vec::new(),
        };
        self.plan = (!left.is_empty() || cached > Bytes::ZERO).then_some(Plan { left, cached, waited: 0 });
        Ok(())
    }
}

impl Slot for Writeback {
    fn name(&self) -> &'static str {
        "writeback"
    }

    fn period(&mut self, job: &mut Job, context: &mut Context, now: Now) -> kernel::Result<()> {
        run(self, job, context, now)
    }

    fn abandon(&mut self) {
        self.plan = None;
    }

    fn configure(&mut self, _: &mut Job, config: &Config) {
        self.start.params = params(config);
    }

    fn start(&self, record: &mut JobRecord) {
        record.writeback = Some(self.start);
    }

    fn recent(&self) -> Option<&Recent> {
        Some(&self.recent)
    }

    fn explain(&self, _: &Job) -> Option<String> {
        let part = if self.blocks.partial { "; only a part of the job is watched" } else { "" };
        self.last.map(|(input, step)| explain(&input, &step) + part)
    }

    fn report(&self, _: &Job, view: &mut JobView) {
        view.moved_to_device_bytes = self.total;
    }
}
