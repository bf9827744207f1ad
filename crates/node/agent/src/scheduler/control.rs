//! A control period: the machine is read, the controllers decide, and their decisions are recorded.

use std::time::Duration;

use config::Class;
use policy::background::Hint;
use units::Bytes;

use super::{Agent, Cadence, Now};
use crate::controllers::slots::Entry;
use crate::controllers::tiering;
use crate::following::watch::Sample;
use crate::history::JobHistory;
use crate::journal::SavingsRecord;
use crate::protection;
use crate::savings::Ledger;
use crate::waits::Latencies;

/// Time between two attempts to sample a job to estimate what it could save.
const ESTIMATE_WAIT: Duration = Duration::from_secs(1);

impl Agent {
    /// One control period of all jobs.
    pub(super) fn control(&mut self, now: Now) {
        self.report_far_memory(now);
        self.limit_savings(now);
        self.end_stage("reading the machine");
        self.read_waits(now);
        self.count_instructions();
        self.end_stage("what jobs wait for");
        self.context.check_budget(now.since_boot);
        self.context.guardrail = (self.following.version() > 0).then(Vec::new);
        for policy in 0..self.policies.len() {
            if self.policies[policy].policy.cadence(&self.context.config) == Cadence::Control {
                self.decide(policy, now, Self::give_turn);
            }
        }
        // Samples are taken by the decisions, and precede the first offload.
        self.choose_compressor(now);
        self.end_stage("the control period");
        // The ancestors' settings follow from the children's.
        while self.context.flush_some() {
            self.give_turn();
        }
        self.end_stage("the undo list");
        self.check_guard_if_due();
        protection::cover_ancestors(&mut self.jobs, &mut self.context, &self.discovery.rules);
        self.context.flush_settings();
        self.end_stage("protection of ancestors");
        self.check_guard_if_due();
        let writes = self.context.tiers.record_writes(now);
        self.context.log.push(writes.into());
        self.close_ledger(now);
        let bundle = self.following.version();
        if let Some(recorder) = &mut self.durable.recorder {
            for what in recorder.take(self.context.log.pending(), &self.jobs, bundle, now.unix_ms) {
                self.context.event(None, what);
            }
        }
        // The journal is written first: an agent killed in between forgets a period of the history that the journal has, and
        // never the reverse.
        self.end_stage("the trace");
        self.write_journal();
        self.end_stage("the journal");
        self.check_guard_if_due();
        self.store_history();
        self.end_stage("the history");
        self.judge_bundle();
        self.update_parameters();
    }

    /// Samples one of the jobs that nothing is decided for, the largest first, if time was saved up for it. Returns how long to wait
    /// for the next; `None` if none is due.
    pub(super) fn estimate_one(&mut self) -> Option<Duration> {
        // During a scan the trackers, and so the ages, belong to the other thread.
        if !self.context.options.estimate || self.scanning.is_some() {
            return None;
        }
        let Self { jobs, context, .. } = self;
        let now = context.now();
        let due = jobs.values_mut().map(|entry| &mut entry.job).filter(|job| tiering::estimate_is_due(job, context, now));
        let largest = due.max_by_key(|job| job.memory.current)?;
        if context.pacing.sampling.is_available(context.clock.now()) {
            tiering::sample_to_estimate(largest, context, now);
            context.publish_due = true;
            // The estimate is by the compressor that the agent would use for what was sampled.
            self.choose_compressor(now);
        }
        Some(ESTIMATE_WAIT)
    }

    /// Reads the machine, and reports if its far memory has become full or available.
    fn report_far_memory(&mut self, now: Now) {
        let context = &mut self.context;
        let before = context.machine.no_far_memory;
        context.read_machine(now);
        if !context.options.dry_run {
            for done in context.tiers.compact(now.since_boot) {
                context.event(None, done);
            }
        }
        match context.machine.no_far_memory {
            now if now == before || context.options.dry_run => {}
            Some(why) if context.machine.pool_full => context.event(None, format!("nothing more is compressed: {why}")),
            Some(why) => context.event(None, format!("nothing is offloaded: {why}")),
            None => context.event(None, "offloading continues".to_owned()),
        }
        if let Some(gap) = context.machine.gap_to_report() {
            context.event(None, format!("zswap and memory.stat disagree by {:.1} % about what is stored", gap * 100.0));
        }
    }

    /// The machine limits what its jobs can have saved: page cache that was not reclaimed would need free memory now. Memory that left
    /// DRAM comes first: the kernel would have evicted page cache to keep it.
    fn limit_savings(&mut self, now: Now) {
        let machine = &self.context.machine;
        let swap_backed: Bytes = self.jobs.values().map(|entry| entry.job.memory.swap_backed()).sum();
        let room = machine.room_bytes - swap_backed;
        let all = self.jobs.values().map(|entry| entry.job.counters.page_cache.bytes()).sum();
        for entry in self.jobs.values_mut() {
            entry.job.take_machine(now, (room, all), machine.pool_overhead);
        }
    }

    /// Reads what the jobs' tasks waited for. The guard has its turn between two jobs, which may have thousands of processes.
    fn read_waits(&mut self, now: Now) {
        let kernel = &mut self.context.kernel;
        kernel.delays.open(&kernel.roots);
        if kernel.delays.get().is_some() {
            self.context.tiers.measure_fault(&kernel.roots, &self.context.clock);
        }
        let paths: Vec<String> = self.jobs.keys().cloned().collect();
        for path in paths {
            let Self { jobs, context, .. } = self;
            let Some(Entry { job, .. }) = jobs.get_mut(&path) else { continue };
            let (slow_rate, slow_ns) = job.signals.slow_accesses;
            let latencies = Latencies { fault: context.tiers.fault(), slow_rate: slow_rate.as_f64(), slow_ns };
            let accounting = context.kernel.delays.get();
            let processes = accounting.map(|accounting| (job.processes(), accounting));
            let read = job.waits.read(&job.cgroup, processes, now.since_boot, latencies);
            if let Err(error) = read
                && !error.is_gone()
            {
                context.report_error(job, &error);
            }
            self.check_guard_if_due();
        }
    }

    /// Counts the instructions of the largest jobs, if the operator wants that.
    fn count_instructions(&mut self) {
        let Self { jobs, context, instructions, .. } = self;
        let most = usize::try_from(context.config.agent.count_instructions).unwrap_or(0);
        if let Some(error) = instructions.read(&context.kernel.roots, jobs, most) {
            context.event(None, error.to_string());
        }
    }

    /// Ends a period of the ledger of savings, and records it.
    fn close_ledger(&mut self, now: Now) {
        let (mut accounted, mut freed) = (Bytes::ZERO, Bytes::ZERO);
        for entry in self.jobs.values_mut() {
            let closed = entry.job.counters.requests.close();
            (accounted, freed) = (accounted + closed.0, freed + closed.1);
        }
        self.ledger = self.ledger_now().reconciled((accounted, freed));
        self.context
            .log
            .push(SavingsRecord { unix_ms: now.unix_ms, dram_bytes: self.context.machine.total_bytes, ledger: self.ledger }.into());
    }

    /// The ledger now, with the reconciliation of the last period.
    pub(super) fn ledger_now(&self) -> Ledger {
        let Self { context, costs, .. } = self;
        let jobs = self.jobs.values().map(|entry| (&entry.job.memory, &entry.job.counters.requests));
        let now = Ledger::of(jobs, &context.machine, costs.rss_bytes, context.trackers.kernel_memory());
        Ledger { request_gap_ratio: self.ledger.request_gap_ratio, ..now }
    }

    /// One period of a policy that has a period of its own.
    pub(super) fn decide_now(&mut self, policy: usize, now: Now) {
        if self.jobs.values().any(|entry| entry.slots.has(policy)) {
            self.context.read_machine(now);
            self.limit_savings(now);
            self.decide(policy, now, Self::check_guard_if_due);
            while self.context.flush_some() {
                self.check_guard_if_due();
            }
        }
    }

    /// Whatever else is due has its turn, in the middle of work for all jobs.
    pub(super) fn give_turn(&mut self) {
        self.check_guard_if_due();
        self.decide_due();
    }

    /// One period of a policy, for all jobs that it has. With a thousand of them this may take longer than the guard and the policies
    /// with a period of their own wait: `others` have their turn between two jobs.
    fn decide(&mut self, policy: usize, now: Now, others: fn(&mut Self)) {
        let paths: Vec<String> = self.jobs.keys().cloned().collect();
        for path in paths {
            let Self { jobs, context, .. } = self;
            let Some(Entry { job, slots }) = jobs.get_mut(&path) else { continue };
            let Some(slot) = slots.at(policy) else { continue };
            if let Err(error) = slot.period(job, context, now) {
                slot.abandon();
                if !error.is_gone() {
                    context.report_error(job, &error);
                }
            }
            others(self);
        }
    }

    /// Takes a hint; it stays valid until the job ends or the next hint. The controller decides at once: a late prefetch is
    /// useless.
    pub(super) fn take_hint(&mut self, path: &str, hint: Option<Hint>) {
        let context = &mut self.context;
        let slot = self.jobs.get_mut(path).and_then(|Entry { job, slots }| {
            let slot = slots.iter_mut().find_map(|slot| slot.take_hint(hint).then_some(slot))?;
            Some((job, slot))
        });
        let Some((job, slot)) = slot else {
            return context.event(Some(path), "a hint came too late: the job has ended".to_owned());
        };
        let what = match hint {
            Some(Hint::Background) => "hint: the job is in the background",
            Some(Hint::Foreground) => "hint: the job is in the foreground",
            None => "hint: detect whether the job is in the background",
        };
        context.event(Some(path), what.to_owned());
        let now = context.now();
        if let Err(error) = slot.period(job, context, now) {
            slot.abandon();
            if !error.is_gone() {
                context.report_error(job, &error);
            }
        }
        context.flush_settings();
    }

    /// Stores what a restart must know of each job.
    pub(super) fn store_history(&mut self) {
        let Some(history) = &mut self.durable.history else { return };
        let jobs = self.jobs.iter().map(|(path, Entry { job, slots })| {
            let mut history = JobHistory::of(job);
            slots.iter().for_each(|slot| slot.save(&mut history));
            (path.clone(), history)
        });
        let cgroups = &self.context.kernel.cgroups;
        let exists = |path: &str, id: u64| kernel::cgroup::Cgroup::open(cgroups, path).is_ok_and(|cgroup| cgroup.id() == id);
        if let Err(error) = history.store(self.context.tiers.writes(), jobs, exists) {
            log::error!("history: {error}; after a restart these jobs would warm up again");
        }
    }

    /// Passes the periods of all jobs to the guardrail, which may reject the bundle in effect.
    fn judge_bundle(&mut self) {
        for period in self.context.guardrail.take().unwrap_or_default() {
            let own = self.following.own();
            let (cold_age, class): (_, Class) = (own.cold_age_for(period.class), period.class);
            let sample = Sample::of(&period, &cold_age, own.pressure_for(class).stall_target);
            let promotion_max = own.rollout.promotion_max;
            if let Some(watch) = self.following.watch() {
                watch.note(&period.job, &sample, promotion_max);
            }
        }
        let jobs = &self.jobs;
        if let Some(watch) = self.following.watch() {
            watch.keep(|job| jobs.contains_key(job));
        }
    }
}
