//! Chooses the tier of each job's swap-backed memory, sets it in the job's cgroup, and restores that on exit. Policies:
//! `tiering`, `incompressible` and `endurance`.
//!
//! The other controllers of a job consult this one during their own periods, by [`place`], so its state is part of the job. A
//! decision is read, stepped, recorded and applied like theirs.

use std::time::Duration;

use config::Config;
use policy::incompressible::Verdict;
use policy::thresholds::Thresholds;
use policy::tiering::Tier;
use policy::tiering::row::Accounting;
use policy::veto::Veto;
use trackers::compressibility::{self, Family};
use units::{Age, Bytes, Millis};

use super::policy::{Cadence, Policy};
use super::seam::Slot;
use crate::context::Context;
use crate::discover::Treatment;
use crate::job::{Job, Stall};
use crate::now::Now;
use crate::tiers::PageCosts;

pub mod decide;
pub mod endurance;
pub mod refused;
pub mod state;

use decide::{Decision, Input, Sampled, TierRecord};
use state::Placed;

/// The files of a job's cgroup that limit where its memory may go.
const ZSWAP_MAX: &str = "memory.zswap.max";
const WRITEBACK: &str = "memory.zswap.writeback";

/// The policy as the scheduler knows it: it decides when other controllers ask.
#[derive(Clone, Copy, Debug, Default)]
pub struct TieringPolicy;

impl Policy for TieringPolicy {
    fn cadence(&self, _: &Config) -> Cadence {
        Cadence::Own
    }

    fn slot(&self, _: &Config, _: &Treatment, _: &Thresholds) -> Option<Box<dyn Slot>> {
        None
    }

    fn release(&mut self, job: &Job, context: &mut Context) {
        for name in [ZSWAP_MAX, WRITEBACK] {
            context.undo.restore(&job.cgroup.path().join(name));
        }
    }
}

/// Chooses a job's tier and sets it. Returns why no swap-backed memory may leave DRAM, if none may.
pub fn place(job: &mut Job, context: &mut Context, now: Now) -> Option<Veto> {
    charge(job, now.since_boot);
    let input = read(job, context, now);
    let decision = decide::step(job.tiering.start_mut(), &input);
    debug_assert_eq!(job.tiering.start().writes.bucket, job.tiering.writes.bucket(), "recorded charges give the bucket");
    apply(job, context, &input, &decision);
    let (path, id) = (job.path().to_owned(), job.cgroup.id());
    context.log.push(TierRecord { unix_ms: now.unix_ms, job: path, id, input, decision }.into());
    decision.veto
}

/// What the promotion of a page costs a job.
#[must_use]
pub fn costs_of(job: &Job, context: &Context) -> PageCosts {
    context.tiers.costs(job.tiering.tier())
}

/// The cost of a promotion from memory that is compressed, and from a device, in microseconds. What the job was observed to wait is
/// the cost of the tier that it has.
#[must_use]
pub fn costs_by_tier(job: &Job, context: &Context, stall: Stall) -> [u32; 2] {
    let on_device = job.tiering.tier().is_some_and(|tier| tier.accounting == Accounting::SwapCost);
    let [compressed_us, device_us] = context.tiers.latencies();
    if on_device { [compressed_us, stall.cost_us(device_us)] } else { [stall.cost_us(compressed_us), device_us] }
}

/// Bytes that may be written to devices for a job now; `None` if its tier writes nothing.
#[must_use]
pub fn writable(job: &Job, context: &Context, now: Duration) -> Option<Bytes> {
    if !context.tiers.wears(job.tiering.tier()?) {
        return None;
    }
    Some(writable_past(job, context, now))
}

/// The same if its memory goes to a device whatever its tier.
#[must_use]
pub fn writable_past(job: &Job, context: &Context, now: Duration) -> Bytes {
    job.tiering.writes.available(Millis(units::millis(now))).min(context.tiers.writable(now))
}

/// Charges what a job wrote to devices to its write budget.
pub fn charge(job: &mut Job, now: Duration) {
    let tiering = &mut job.tiering;
    let bytes = std::mem::take(&mut tiering.uncharged);
    tiering.written += bytes;
    tiering.writes.charge(Millis(units::millis(now)), bytes);
}

/// Reads what the decision is based on. If policy `incompressible` asks for a sample of the job's pages, it is taken here.
///
/// The first offload of a job is preceded by a sample, so that no page is compressed in vain; later samples show whether its
/// memory has changed.
fn read(job: &mut Job, context: &mut Context, now: Now) -> Input {
    let machine = &context.machine;
    let mut input = Input {
        now_ms: now.boot_ms(),
        page_bytes: kernel::page_size().bytes(),
        far_memory: machine.no_far_memory.is_none() && !job.tiering.refused.holds(now.since_boot),
        pool_full: machine.pool_full,
        stored: policy::incompressible::Stored::default(),
        sampled: None,
        charged: job.tiering.writes.take_charges(),
        rows: Vec::new(),
        permitted: job.signals.permitted.filter(|_| context.config.tier.by_saving),
    };
    if input.far_memory || input.pool_full {
        input.stored = std::mem::take(&mut job.tiering.stored);
        let due = decide::sample_due(&job.tiering.start(), input.now_ms, input.page_bytes, input.stored);
        let warm = job.age_ms(now) >= job.tiering.warmup_ms;
        let retry_ms = job.tiering.start().incompressible.retry_ms;
        let old = job.tiering.sampled_at_ms.is_none_or(|then| input.now_ms.saturating_sub(then) >= retry_ms);
        // A sample reads the job's memory, which is not done to a job that is only observed.
        if context.may_act(job) && (due || (warm && old)) && may_try(job, context, input.now_ms) {
            input.sampled = sample(job, context, input.now_ms);
        }
    }
    // After the sample, which measures how fast pages are decompressed.
    input.rows = context.tiers.rows(now.since_boot);
    if job.cgroup.zswap_writeback().ok().flatten().is_none() {
        input.rows.iter_mut().for_each(|row| row.writes_back = None);
    }
    input
}

/// Whether the sample of a job that nothing is decided for is old. Its ages come first: they show which pages are cold.
#[must_use]
pub fn estimate_is_due(job: &Job, context: &Context, now: Now) -> bool {
    let retry_ms = job.tiering.start().incompressible.retry_ms;
    let old = job.tiering.sampled_at_ms.is_none_or(|then| now.boot_ms().saturating_sub(then) >= retry_ms);
    let scanned = job.scan.as_ref().is_some_and(|scan| scan.window > Duration::ZERO);
    old && scanned && has_waited(job, context, now.boot_ms())
}

/// Samples such a job.
pub fn sample_to_estimate(job: &mut Job, context: &mut Context, now: Now) {
    let _ = sample(job, context, now.boot_ms());
}

/// Failures after which a job is tried less often, half as often after each: jobs without readable pages must not take the time of others.
const FAILURES_FREE: u32 = 3;

/// The wait is doubled this often at most: to 64 control periods.
const FAILURES_MAX: u32 = 6;

/// Whether the last try is a control period ago, and there is time for one. A job without cold pages that can be read would be asked
/// for them in every period of every policy, and each time costs its page maps.
fn has_waited(job: &Job, context: &Context, now_ms: Millis) -> bool {
    let wait = context.config.agent.control_period * (1 << job.tiering.failures.saturating_sub(FAILURES_FREE).min(FAILURES_MAX));
    job.tiering.tried_at_ms.is_none_or(|then| now_ms.saturating_sub(then) >= Millis(units::millis(wait)))
}

/// Whether a job may be tried now.
fn may_try(job: &Job, context: &mut Context, now_ms: Millis) -> bool {
    has_waited(job, context, now_ms) && context.pacing.sampling.is_available(context.clock.now())
}

/// Whether zswap is on, or would be with an agent that acts: by its configuration, or as `thermocline setup` proposes where nothing
/// else compresses. A run that changes nothing estimates with that.
#[must_use]
pub fn reckons_with_zswap(context: &Context) -> bool {
    let would_be = || context.config.zswap.manage || context.tiers.zram_algorithm().is_none();
    context.machine.zswap_enabled || (context.options.dry_run && would_be())
}

/// The family of the compressor that the machine's far memory uses: zswap's, or zram's if zswap is off.
#[must_use]
pub fn family(context: &Context) -> Family {
    let zram = if reckons_with_zswap(context) { None } else { context.tiers.zram_algorithm() };
    let zswap = &context.config.zswap;
    let would_set = context.options.dry_run && zswap.manage && !matches!(zswap.compressor.as_str(), "" | "auto");
    let compressor = if would_set { &zswap.compressor } else { &context.machine.compressor };
    Family::of_compressor(zram.as_ref().unwrap_or(compressor))
}

/// Compresses a few of a job's cold pages as a test; `None` if none can be read.
fn sample(job: &mut Job, context: &mut Context, now_ms: Millis) -> Option<Sampled> {
    let knobs = &context.config.incompressible;
    let family = family(context);
    let request = compressibility::Request {
        threshold: Age(1),
        pages: usize::try_from(knobs.sample_pages).unwrap_or(usize::MAX),
        ratio_max: knobs.ratio,
        family,
    };
    job.tiering.tried_at_ms = Some(now_ms);
    let ages = context.trackers.page_ages(job.tracker.0);
    let began = context.clock.now();
    let measured = compressibility::measure(&context.kernel.roots, &mut context.kernel.walker, &job.processes(), ages, &request).ok();
    let done = context.clock.now();
    context.pacing.sampling.spend(done.saturating_sub(began), done);
    job.tiering.failures = job.tiering.failures.saturating_add(1);
    let measured = measured.filter(|measured| measured.sample.pages > 0)?;
    job.tiering.failures = 0;
    let shrunk = measured.of(family);
    job.tiering.sampled_at_ms = Some(now_ms);
    job.tiering.measured = Some(measured);
    context.tiers.decompressed_in(u32::try_from(shrunk.decompress_us).unwrap_or(u32::MAX));
    let of = |family| {
        let tried = measured.of(family);
        format!("{} in {} us", tried.ratio, tried.compress_us)
    };
    let (pages, lzo, lz4, zstd) = (measured.sample.pages, of(Family::Lzo), of(Family::Lz4), of(Family::Zstd));
    log::info!("{}: {pages} cold pages shrink to {lzo} each by lzo, {lz4} by lz4, {zstd} by zstd", job.path());
    Some(Sampled { sample: measured.sample, ratio: shrunk.ratio })
}

/// Reports a changed choice and sets it.
fn apply(job: &mut Job, context: &mut Context, input: &Input, decision: &Decision) {
    if let (Some(sampled), Verdict::Incompressible) = (input.sampled, decision.verdict) {
        let (bad, all) = (sampled.sample.incompressible, sampled.sample.pages);
        context.event(Some(job.path()), format!("{bad} of {all} sampled pages do not compress; zswap does not suit the job"));
    }
    let by_operator = job.tiering.start().operator.is_some();
    let placed = decision.choice.map(|choice| Placed { choice, by_operator });
    let before = std::mem::replace(&mut job.tiering.placed, placed);
    let Some(placed) = placed else { return };
    if before.map(|placed| placed.choice) != Some(placed.choice) {
        let (tier, why) = state::words(Some(placed));
        context.event(Some(job.path()), format!("tier {}: {why}", tier.as_deref().unwrap_or("none")));
    }
    if let Some(tier) = placed.tier()
        && context.may_act(job)
    {
        let in_front = input.rows.iter().any(|row| row.id == tier.first && row.is_in_front_of_swap());
        set(job, context, tier, in_front);
    }
}

/// Has the kernel put a job's memory where it was decided: in zswap or past it, with or without writeback. Which swap area it goes to
/// past zswap, the kernel decides for all cgroups alike. A kernel without these files compresses first, and writes what does
/// not fit or does not shrink.
fn set(job: &Job, context: &mut Context, tier: Tier, in_front: bool) {
    if !context.machine.zswap_enabled {
        return;
    }
    let zswap_max = (!in_front).then_some("0");
    let writeback = (in_front && tier.second.is_none()).then_some("0");
    for (name, value) in [(ZSWAP_MAX, zswap_max), (WRITEBACK, writeback)] {
        let file = job.cgroup.path().join(name);
        match value {
            Some(value) if file.exists() => context.undo.defer(file, value.to_owned()),
            Some(_) => {}
            None => drop(context.undo.restore(&file)),
        }
    }
}
