//! Copies of the agent's state: for the journal's beginning, and for other threads.

use config::Kind;
use policy::histogram::AgeCounts;
use trackers::compressibility::Family;
use units::{Age, Bytes, Millis, RatioPpm, UnixMillis};

use super::Agent;
use super::state::Identity;
use crate::context::Context;
use crate::controllers::slots::{Entry, Jobs};
use crate::following::Following;
use crate::job::Job;
use crate::journal::{AgentRecord, JobRecord, Record, VERSION};
use crate::machine::Machine;
use crate::now::Now;
use crate::savings::Ledger;
use crate::trials::TrialView;
use crate::view::{JobTotals, JobView, KindTotals, RecentDecisions, View};

/// Ages whose bytes are reported, in scan periods.
const REPORTED_AGES: [u8; 9] = [1, 2, 4, 8, 16, 30, 61, 125, 255];

/// What every file of the journal begins with: the agent, and each job's controllers in their current state.
pub(super) fn beginning(context: &Context, identity: &Identity, following: &Following, jobs: &Jobs) -> Vec<Record> {
    let unix_ms = context.clock.unix_ms();
    records(&agent_record(context, identity, following.version(), unix_ms), jobs)
}

/// The same, with a given agent record.
pub(super) fn records(agent: &AgentRecord, jobs: &Jobs) -> Vec<Record> {
    let jobs = jobs.values().map(|entry| job_record(entry, agent.unix_ms).into());
    std::iter::once(Record::Agent(agent.clone())).chain(jobs).collect()
}

/// The record of the agent.
pub(super) fn agent_record(context: &Context, identity: &Identity, bundle: u64, unix_ms: UnixMillis) -> AgentRecord {
    AgentRecord {
        version: VERSION,
        unix_ms,
        boot_id: identity.boot_id.clone(),
        kernel: identity.kernel_release.clone(),
        page_bytes: kernel::page_size().bytes(),
        scan_period_ms: Millis(units::millis(context.config.agent.scan_period)),
        thresholds: context.thresholds,
        bundle,
        writes: Some(context.tiers.start()),
    }
}

/// The starting record of a job.
pub(super) fn job_record(Entry { job, slots }: &Entry, unix_ms: UnixMillis) -> JobRecord {
    let mut record = JobRecord::new(unix_ms, job.path(), job.cgroup.id(), job.treatment.class, job.tracker.0.as_str());
    record.policy = job.treatment.policy;
    record.tiering = Some(job.tiering.start());
    slots.iter().for_each(|slot| slot.start(&mut record));
    record
}

impl Agent {
    /// A copy of the state for other threads.
    pub(super) fn report(&self) -> View {
        let Self { context, .. } = self;
        let period = context.config.agent.scan_period.as_secs_f64();
        let jobs: Vec<_> = self.jobs.values().map(|entry| job_view(entry, context, self.family(), period)).collect();
        let ledger = self.ledger_now();
        let mut view = View {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            kernel: self.identity.kernel_release.clone(),
            dry_run: context.options.dry_run,
            scan_period_seconds: period,
            machine: context.machine.clone(),
            tiers: context.tiers.view(context.machine.pool_bytes, Now::of(&context.clock).since_boot),
            slow: None,
            slow_trouble: None,
            rollout: (!self.following.own().rollout.store.is_empty()).then(|| self.following.view()),
            costs: self.costs,
            saved_bytes: ledger.net_bytes,
            could_save_bytes: could_save(&jobs, &ledger, |job| job.could_save_bytes),
            could_save_at_most_bytes: could_save(&jobs, &ledger, |job| job.could_save_bytes.or(job.could_save_at_most_bytes)),
            savings: ledger,
            totals_by_kind: totals_by_kind(&jobs, context.machine.total_bytes),
            jobs,
        };
        self.policies.iter().for_each(|scheduled| scheduled.policy.report(&mut view));
        view
    }
}

/// The sum of the jobs' estimates, minus what the agent occupies.
fn could_save(jobs: &[JobView], ledger: &Ledger, estimate: impl Fn(&JobView) -> Option<Bytes>) -> Option<i64> {
    let known: Vec<Bytes> = jobs.iter().filter_map(estimate).collect();
    let signed = |bytes: Bytes| i64::try_from(bytes.0).unwrap_or(i64::MAX);
    (!known.is_empty()).then(|| signed(known.into_iter().sum()) - signed(ledger.agent_bytes + ledger.kdamond_bytes))
}

/// What a job could save, or when that is known: after two scans, at the next decision.
fn estimate(view: &mut JobView, job: &Job, context: &Context, family: Family) {
    let machine = &context.machine;
    let pool = RatioPpm::of(machine.pool_bytes.0, machine.stored_bytes.0);
    let device = context.tiers.offer.device && context.config.swap.write_budget > Bytes::ZERO;
    // A device keeps no copy in DRAM.
    let stored = |ratio: RatioPpm| if ratio == RatioPpm(0) { ratio } else { Machine::with_entries(ratio) };
    let occupied = job.tiering.would_occupy(family, device).or(pool).map(stored);
    view.would_occupy_ratio = occupied.map(RatioPpm::as_f64);
    view.could_save_bytes = occupied.and_then(|occupied| job.could_save(occupied));
    view.could_save_at_most_bytes = occupied.and_then(|occupied| job.could_save_at_most(occupied));
    let short = job.signals.observed && job.signals.short_history;
    view.could_save_needs_history = short && view.could_save_bytes.is_none();
    if view.could_save_bytes.is_none() && !short {
        let config = &context.config.agent;
        let due = job.seen_at + config.scan_period + config.control_period;
        let left = due.saturating_sub(Now::of(&context.clock).since_boot);
        // A decision comes with each control period.
        view.could_save_known_in_seconds = Some(if left.is_zero() { config.control_period } else { left }.as_secs_f64());
    }
}

fn job_view(Entry { job, slots }: &Entry, context: &Context, family: Family, period: f64) -> JobView {
    let mut view = memory_view(job, &context.machine, period);
    estimate(&mut view, job, context, family);
    let keep = Millis::from(context.config.agent.trial_keep);
    view.trial = context.trial_of(job).map(|(kept, tolerated)| TrialView::of(kept, tolerated, context.clock.unix_ms(), keep));
    let explained: Vec<String> = slots.iter().filter_map(|slot| slot.explain(job)).collect();
    view.explanation = if explained.is_empty() { "no control period has passed yet".to_owned() } else { explained.join("; and ") };
    for slot in slots.iter() {
        slot.report(job, &mut view);
        if let Some(recent) = slot.recent().filter(|recent| !recent.is_empty()) {
            view.recent.push(RecentDecisions { controller: slot.name(), decisions: recent.to_vec() });
        }
    }
    view
}

/// What is known of a job besides its controllers.
fn memory_view(job: &Job, machine: &Machine, period: f64) -> JobView {
    let page = kernel::page_size();
    let scan = job.scan.clone().unwrap_or_default();
    let (tier, tier_reason) = job.tiering.words();
    let mut cold = scan.resident.clone();
    cold.merge(job.far.counts());
    let cold_bytes = cold.at_least(Age(1)).to_bytes(page);
    let far = job.memory.far;
    let reported = |counts: &AgeCounts| {
        REPORTED_AGES.iter().map(|&age| (f64::from(age) * period, counts.at_least(Age(age)).to_bytes(page))).collect::<Vec<_>>()
    };
    let advised = job.tiering.measured.filter(|_| machine.zswap_enabled);
    JobView {
        job: job.path().to_owned(),
        class: job.treatment.class.as_str(),
        kind: job.treatment.kind.as_str(),
        policy: job.treatment.policy.as_str(),
        tier,
        tier_reason,
        compressed_ratio: job.tiering.compressed().map(RatioPpm::as_f64),
        advice: advised.and_then(|measured| measured.advice(&machine.compressor)),
        written_bytes: job.tiering.written,
        tracker: job.tracker.0.as_str(),
        tracker_reason: job.tracker.1,
        scanned_at_seconds: job.scan.as_ref().map(|scan| scan.taken_at.as_secs_f64()),
        resolved_to_seconds: f64::from(scan.resolved_to.0) * period,
        sample_points: scan.sample.map(|sample| sample.points.0),
        remark: scan.remark,
        memory_bytes: job.memory.current,
        protection_claimed_bytes: job.protection.claimed,
        protection_bytes: job.protection.effective,
        hard_protection: job.hard_protection,
        working_set_bytes: cold.at(Age(0)).to_bytes(page),
        cold_bytes,
        cold_file_bytes: scan.file.at_least(Age(1)).to_bytes(page),
        far_bytes: far,
        pool_bytes: job.memory.pool_dram(),
        zram_bytes: job.memory.zram,
        file_out_bytes: job.memory.file,
        slow_bytes: job.memory.slow,
        saved_bytes: job.memory.saved(),
        coverage_ratio: RatioPpm::of(far.0, cold_bytes.0).map_or(0.0, |ratio| ratio.as_f64().min(1.0)),
        waits: job.waits.view(),
        totals: JobTotals { moved: job.counters.totals, ..JobTotals::default() },
        cold_age: reported(&cold),
        accessed: reported(&scan.accesses),
        accessed_window_seconds: scan.window.as_secs_f64(),
        ..JobView::default()
    }
}

/// Sums of the jobs of each kind, for a machine with this much memory.
fn totals_by_kind(jobs: &[JobView], machine: Bytes) -> [KindTotals; Kind::ALL.len()] {
    let share = |bytes: Bytes| RatioPpm::of(bytes.0, machine.0).map_or(0.0, RatioPpm::as_f64);
    let mut totals = [KindTotals::default(); Kind::ALL.len()];
    for (total, kind) in totals.iter_mut().zip(Kind::NAMES) {
        total.kind = kind;
        for job in jobs.iter().filter(|job| job.kind == *kind) {
            total.jobs += 1;
            total.memory_bytes += job.memory_bytes;
            total.saved_bytes += job.saved_bytes;
        }
        total.memory_ratio = share(total.memory_bytes);
        total.saved_ratio = share(total.saved_bytes);
    }
    totals
}
