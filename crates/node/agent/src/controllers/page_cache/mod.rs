//! Reclaims page cache of jobs under policies `cold_age` and `auto`, while its refaults and the promotions keep the objective, which
//! under `auto` is the stall target.

use std::time::Duration;

use config::{Config, Policy as Named};
use policy::balance::AnonFileBias;
use policy::cold_age;
use policy::refaults::{self, Decision, Step};
use policy::thresholds::Thresholds;
use units::{Age, Bytes, Millis, Pages, RatioPpm};

use super::policy::{Cadence, Policy};
use super::recent::Recent;
use super::seam::{Controller, Slot, run};
use super::tiering;
use super::veto::{self, Reason};
use crate::context::Context;
use crate::discover::Treatment;
use crate::job::Job;
use crate::journal::{JobRecord, Record};
use crate::now::Now;
use crate::reclaim::{charge, count, reclaim};
use crate::tiers::PageCosts;
use kernel::cgroup::MemoryStat;
use trackers::ages::Kind;

pub mod record;

use record::{PageCacheRecord, PageCacheStart};

/// That anonymous memory has no tier forbids nothing: page cache needs no swap.
const VETOES: &[Reason] = &[Reason::ObserveOnly, Reason::AtLimit, Reason::Stalled, Reason::CpuBudget];

/// The policy as the scheduler knows it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageCachePolicy;

impl Policy for PageCachePolicy {
    fn cadence(&self, _: &Config) -> Cadence {
        Cadence::Control
    }

    fn slot(&self, config: &Config, treatment: &Treatment, _: &Thresholds) -> Option<Box<dyn Slot>> {
        let cold_age = config.cold_age_for(treatment.class);
        let applies = matches!(treatment.policy, Named::ColdAge | Named::Auto) && cold_age.page_cache;
        applies.then(|| Box::new(PageCache::new(cold_age.refaults())) as Box<dyn Slot>)
    }
}

/// The controller of one job.
#[derive(Debug)]
pub struct PageCache {
    /// Parameters and state.
    pub start: PageCacheStart,
    /// What is to be reclaimed until the next decision.
    plan: Pages,
    last: Option<Step>,
    recent: Recent,
    before: Option<Readings>,
    /// Page cache reclaimed since the last decision.
    reclaimed: Pages,
}

/// Counters at the last period.
#[derive(Clone, Copy, Debug)]
struct Readings {
    at: Duration,
    /// Promotions, ever.
    promoted: Pages,
    /// Refaults of page cache, ever.
    refaulted: Pages,
    /// Time in which a task waited for a device, ever, in microseconds; `None` where the kernel does not count it.
    waited_us: Option<u64>,
}

impl PageCache {
    /// A controller without state.
    #[must_use]
    pub fn new(params: refaults::Params) -> Self {
        Self {
            start: PageCacheStart { params, state: refaults::State::default() },
            plan: Pages::ZERO,
            last: None,
            recent: Recent::default(),
            before: None,
            reclaimed: Pages::ZERO,
        }
    }
}

/// What a refault costs, as a share of what a promotion costs.
fn refault_cost(costs: PageCosts) -> RatioPpm {
    let ppm = u64::from(costs.file_us) * 1_000_000 / u64::from(costs.anon_us.max(1));
    RatioPpm(u32::try_from(ppm).unwrap_or(u32::MAX))
}

/// How many promotions take as long as the job waited for devices between two readings.
fn waited(before: Readings, now: Readings, costs: PageCosts) -> Option<Pages> {
    let waited_us = now.waited_us?.saturating_sub(before.waited_us?);
    Some(Pages(waited_us / u64::from(costs.anon_us.max(1))))
}

/// Page cache that is as old as the anonymous memory that goes out, or that was idle for a whole scan while none goes out. `None` if
/// the tracker does not see every access to it.
fn cold(job: &Job) -> Option<Pages> {
    let scan = job.scan.as_ref().filter(|_| matches!(job.tracker.0, Kind::PageIdle | Kind::SampledFrames))?;
    Some(scan.file.at_least(job.signals.threshold.unwrap_or(Age(1))))
}

/// Page cache that is not of code that runs, if the job's tracker opens generations and knows no ages of page cache.
fn spare(job: &Job, context: &Context, cache: Bytes, stat: &MemoryStat) -> Option<Pages> {
    if cold(job).is_some() {
        return None;
    }
    context.trackers.get(job.tracker.0)?.reach(job.path())?;
    Some(unused(cache, stat.file_mapped?, stat.inactive_file?).to_pages(kernel::page_size()))
}

/// Page cache that no process maps, or that is not in the kernel's two youngest generations, whichever is more. Of mapped shared memory
/// as much is assumed to be page cache.
fn unused(cache: Bytes, mapped: Bytes, inactive: Bytes) -> Bytes {
    inactive.max(cache - mapped)
}

impl Controller for PageCache {
    type Input = refaults::Input;
    type Decision = Step;

    fn read(&mut self, job: &mut Job, context: &mut Context, now: Now) -> kernel::Result<refaults::Input> {
        let page = kernel::page_size();
        let stat = job.cgroup.stat()?;
        let cache = stat.file.unwrap_or_default() - stat.shmem.unwrap_or_default();
        let readings = Readings {
            at: now.since_boot,
            promoted: job.counters.totals.promoted.to_pages(page),
            refaulted: Pages(stat.workingset_refault_file.unwrap_or(0)),
            waited_us: job.cgroup.io_pressure().map(|io| io.some.total_us).ok(),
        };
        let before = self.before.replace(readings).unwrap_or(readings);
        let elapsed_ms = Millis(units::millis(readings.at.saturating_sub(before.at)));
        let costs = tiering::costs_of(job, context);
        let allowance = job.signals.stall.map(|stall| cold_age::allowance(stall.target, elapsed_ms, costs.anon_us));
        let resident = job.scan.as_ref().map(|scan| scan.resident.total() - scan.resident.at_least(Age(1)));
        Ok(refaults::Input {
            job_age_ms: Millis(job.age_ms(now).0),
            elapsed_ms,
            cache: cache.to_pages(page),
            working_set: resident.unwrap_or_default(),
            promoted: readings.promoted - before.promoted,
            refaulted: readings.refaulted - before.refaulted,
            refault_cost: refault_cost(costs),
            waited: waited(before, readings, costs),
            cold: cold(job),
            spare: spare(job, context, cache, &stat),
            allowance,
            trial_max: context.trial_max(job, elapsed_ms, refault_cost(costs)),
            saved: Some(job.counters.page_cache.bytes().to_pages(page)),
            reclaimed: Some(self.reclaimed),
            veto: veto::first(VETOES, job, context, now),
        })
    }

    fn step(&mut self, input: &refaults::Input) -> Step {
        let (state, step) = refaults::step(&self.start.params, &self.start.state, input);
        self.start.state = state;
        self.plan = match step.decision {
            Decision::Reclaim { pages } => pages,
            Decision::Hold { .. } => Pages::ZERO,
        };
        step
    }

    fn record(&mut self, job: &mut Job, now: Now, input: refaults::Input, step: &Step) -> Record {
        self.recent.push(now.unix_ms, &record::explain(step));
        self.last = Some(*step);
        if let Some(stall) = &mut job.signals.stall {
            stall.page_cache = self.start.state.taken();
        }
        PageCacheRecord {
            unix_ms: now.unix_ms,
            job: job.path().to_owned(),
            id: job.cgroup.id(),
            input,
            step: *step,
            reclaimed: std::mem::take(&mut self.reclaimed),
        }
        .into()
    }

    fn apply(&mut self, _: &mut Job, _: &mut Context, _: Now, _: &Step) -> kernel::Result<()> {
        Ok(())
    }
}

impl Slot for PageCache {
    fn name(&self) -> &'static str {
        "page_cache"
    }

    fn period(&mut self, job: &mut Job, context: &mut Context, now: Now) -> kernel::Result<()> {
        run(self, job, context, now)
    }

    fn abandon(&mut self) {
        self.plan = Pages::ZERO;
    }

    fn configure(&mut self, job: &mut Job, config: &Config) {
        self.start.params = config.cold_age_for(job.treatment.class).refaults();
    }

    fn start(&self, record: &mut JobRecord) {
        record.page_cache = Some(self.start);
    }

    fn offload_due(&self) -> bool {
        self.plan > Pages::ZERO
    }

    fn offload(&mut self, job: &mut Job, context: &mut Context, limit: Pages, _: Pages) -> kernel::Result<Pages> {
        let page = kernel::page_size();
        let asked = self.plan.min(limit);
        self.plan = self.plan - asked;
        let before = count(job, context)?;
        reclaim(job, context, asked.to_bytes(page), AnonFileBias::FileOnly)?;
        let after = count(job, context)?;
        charge(job, context, &before, &after);
        let file = before.file - after.file;
        self.reclaimed += file.to_pages(page);
        job.account_reclaim((after.swapped - before.swapped).to_pages(page), file);
        Ok(asked)
    }

    fn recent(&self) -> Option<&Recent> {
        Some(&self.recent)
    }

    fn explain(&self, _: &Job) -> Option<String> {
        self.last.as_ref().map(record::explain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_runs_is_not_taken() {
        let unused = |cache, mapped, inactive| unused(Bytes::mib(cache), Bytes::mib(mapped), Bytes::mib(inactive));
        assert_eq!(unused(9, 9, 0), Bytes::ZERO, "all of it is code in use");
        assert_eq!(unused(9, 9, 7), Bytes::mib(7), "most of it was not executed for long");
        assert_eq!(unused(100, 9, 0), Bytes::mib(91), "files that were read, in the youngest generations");
        assert_eq!(unused(9, 500, 0), Bytes::ZERO, "shared memory is mapped as well");
    }
}
