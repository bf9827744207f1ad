//! The monitor's period: a sample of every guest with pool memory, a verdict, a mitigation.

use std::time::Duration;

use predict::Latency;
use units::Bytes;

use super::home::Advice;
use super::lives;
use super::table::{Claim, Host, now};
use crate::accesses::Seen;
use crate::driver::Usage;
use crate::events::{Event, label};
use crate::monitor::{self, Verdict};
use crate::process::Process;
use crate::vm::{CounterSample, State};

impl Host {
    /// Samples every guest once. `proceed` is checked before each: a sample takes seconds if performance counters are
    /// sampled.
    pub(super) fn watch(&self, proceed: impl Fn() -> bool) {
        for name in self.names() {
            if !proceed() {
                return;
            }
            let Ok(mut guest) = self.claim(&name, "being sampled") else { continue };
            let Some(process) = guest.process.filter(|_| guest.state == State::Running) else { continue };
            self.sample_workload(&mut guest, &process);
            if guest.mapped.is_empty() {
                self.sample_touched(&mut guest, &process);
                guest.try_save();
            } else {
                self.sample(&mut guest, &process);
            }
        }
        self.judge_model();
    }

    /// Updates the most memory that a guest has touched.
    pub(super) fn sample_touched(&self, guest: &mut Claim<'_>, process: &Process) {
        let touched = self.counts.observing(|| self.driver.touched(&guest.machine, process), |_| Duration::ZERO);
        match touched {
            Ok(usage) => guest.add_touched(&usage, now(), self.settings.period),
            Err(error) => log::debug!("guest {}: {error}", guest.request.name),
        }
    }

    fn sample(&self, guest: &mut Claim<'_>, process: &Process) {
        let observe = || self.driver.usage(&guest.machine, process, &self.settings.accesses);
        let kernel = |usage: &Result<Usage, _>| usage.as_ref().map_or(Duration::ZERO, |usage| usage.kernel_cpu);
        let usage = match self.counts.observing(observe, kernel) {
            Ok(usage) => usage,
            // If the process has exited, the check of guests detects it.
            Err(error) => {
                log::warn!("guest {}: {error}", guest.request.name);
                return;
            }
        };
        guest.add_touched(&usage, now(), self.settings.period);
        let before = guest.usage.replace(usage);
        let is_first = before.is_none();
        if !is_first && let Seen::By(_) = usage.seen {
            guest.samples.add(&usage);
        }
        let mut subject = monitor::Guest {
            // Pool memory that is being released needs no mitigation.
            pool_bytes: if guest.assigned { guest.pool_bytes() } else { Bytes::ZERO },
            insensitive: guest.share.insensitive,
            mitigated: guest.mitigated,
            in_part: guest.home_bytes.is_some(),
            failures: guest.mitigation_failures,
        };
        let is_tolerated = is_first || monitor::tolerated(&self.settings.monitor, &subject, &usage).is_some();
        let by_counters = if is_tolerated { None } else { self.sample_counters(guest, process) };
        subject.insensitive = by_counters.unwrap_or(subject.insensitive);
        // The first sample includes all accesses since the guest's start.
        let judged = if is_first { Verdict::AsPredicted } else { self.judge(guest, &subject, &usage) };
        let Advice { verdict, why, part } = self.by_its_blocks(guest, process, judged);
        self.counts.count(Event::Verdict, label(verdict));
        let same_seen = before.is_some_and(|before| before.seen == usage.seen);
        if guest.add_verdict(verdict) || !same_seen {
            // Counters of an earlier sample are no reason for this verdict.
            let score = by_counters.and(guest.counted.as_ref()).and_then(|counted| counted.score);
            guest.note(describe(verdict, &usage, subject.pool_bytes, score) + &why);
        }
        guest.try_save();
        match verdict {
            Verdict::Mitigate => self.mitigate(guest),
            Verdict::MoveHot => self.move_hot(guest, process, &part),
            _ => {}
        }
    }

    /// Samples the counters of a guest that has run for long enough, once, for later guests of its workload.
    fn sample_workload(&self, guest: &mut Claim<'_>, process: &Process) {
        let is_due = guest.counted.is_none() && guest.request.vm.customer.is_some();
        if is_due && lives::has_run(guest, self.settings.least_life, now()) {
            self.sample_counters(guest, process);
        }
    }

    /// Whether the latency model predicts from the guest's current performance counters that it is insensitive. `None`
    /// if counters are not sampled or the model makes no prediction.
    fn sample_counters(&self, guest: &mut Claim<'_>, process: &Process) -> Option<bool> {
        let (perf, time) = self.perf.as_ref()?;
        let predictor = self.predictor().filter(|predictor| predictor.has_latency_model())?;
        let counters = match self.counts.observing(|| perf.of_process(process.pid, *time), |_| Duration::ZERO) {
            Ok(counters) => counters,
            Err(why) => {
                log::warn!("guest {}: cannot sample its performance counters: {why}", guest.request.name);
                self.counts.count(Event::Counters, "failed");
                return None;
            }
        };
        let latency = lives::latency(&predictor, &counters);
        let (outcome, score) = match latency {
            Latency::Insensitive(score) => ("insensitive", Some(score)),
            Latency::Sensitive(score) => ("sensitive", Some(score)),
            Latency::NoAnswer(_) | Latency::NoModel => ("no_answer", None),
        };
        self.counts.count(Event::Counters, outcome);
        let insensitive = matches!(latency, Latency::Insensitive(_));
        // A guest speaks once for its workload, and again if it turns out to be sensitive.
        if (guest.counted.is_none() || !insensitive) && lives::has_run(guest, self.settings.least_life, now()) {
            self.lives().add_counted(&guest.request.vm, latency);
        }
        guest.counted = Some(CounterSample { at: now(), score, insensitive, counters });
        score.map(|_| insensitive)
    }

    fn judge(&self, guest: &Claim<'_>, subject: &monitor::Guest, usage: &Usage) -> Verdict {
        let table = self.table();
        let cooldown = self.settings.cooldown.as_secs_f64();
        let host = monitor::Host {
            started: table.totals.started,
            mitigated: table.totals.mitigated,
            cooled_down: table.totals.last_mitigation.is_none_or(|last| now() - last >= cooldown),
            free_local_bytes: self.settings.local.saturating_sub(table.local_used()),
            // Pages that are local already do not move again.
            mitigation_bytes: self.driver.mitigation_bytes(&guest.machine).saturating_sub(guest.moved_home()),
        };
        monitor::judge(&self.settings.monitor, subject, usage, &host)
    }

    /// Moves a guest to local memory.
    pub(super) fn mitigate(&self, guest: &mut Claim<'_>) {
        let Some(process) = guest.process else { return };
        match self.driver.move_to_local(&guest.machine, &process, self.settings.mitigation_timeout) {
            Ok(moved) => {
                guest.process = Some(moved.process);
                guest.mitigated = true;
                guest.mapped.clear();
                self.counts.count(Event::Mitigation, "ok");
                self.counts.paused(moved.pause);
                let (pause, seconds, copied) = (moved.pause.as_secs_f64(), moved.total.as_secs_f64(), moved.copied.0);
                guest.note(format!("moved to local memory: paused for {pause:.3} s, {seconds:.3} s in all, {copied} bytes copied"));
                guest.try_save();
                let is_counted = guest.home_bytes.is_some();
                self.update_totals(|totals| {
                    totals.mitigated += u64::from(!is_counted);
                    totals.last_mitigation = Some(now());
                });
                self.return_slices(guest);
            }
            Err(error) => {
                self.counts.count(Event::Mitigation, "failed");
                guest.mitigation_failures += 1;
                guest.note(error.to_string());
                guest.try_save();
            }
        }
    }
}

fn describe(verdict: Verdict, usage: &Usage, pool: Bytes, score: Option<f64>) -> String {
    let Usage { pool_touched_bytes, pool_accessed_bytes, local_accessed_bytes, .. } = usage;
    let by = score.map_or_else(String::new, |score| format!("; by its counters, insensitive with probability {score:.2}"));
    let touched = format!("{verdict:?}: touched {} of {} bytes in the pool", pool_touched_bytes.0, pool.0);
    match usage.seen {
        Seen::By(instrument) => {
            let (there, local) = (pool_accessed_bytes.0, local_accessed_bytes.0);
            format!("{touched}, accessed {there} there and {local} local, as seen by {instrument}{by}")
        }
        Seen::Not(why) => format!("{touched}; what it accesses cannot be seen: {why}"),
    }
}
