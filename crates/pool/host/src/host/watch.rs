//! The monitor's round: a look at every guest with pool memory, a verdict, a repair.

use predict::Latency;

use super::{Held, Host, now};
use crate::driver::Process;
use crate::metrics::{Event, word};
use crate::monitor::{self, Verdict};
use crate::vm::{Counted, State};

impl Host {
    /// Looks at every guest once, or at as many as it comes to: a look takes seconds where counters are counted.
    pub(super) fn watch(&self, goes_on: impl Fn() -> bool) {
        for name in self.names() {
            if !goes_on() {
                return;
            }
            let Ok(mut held) = self.hold(&name, "being looked at") else { continue };
            if held.state == State::Running && !held.mapped.is_empty() {
                self.look(&mut held);
            }
        }
    }

    fn look(&self, held: &mut Held<'_>) {
        let Some(process) = held.process else { return };
        let usage = match self.driver.usage(&held.machine, &process) {
            Ok(usage) => usage,
            // Its end is noticed elsewhere.
            Err(error) => {
                log::warn!("guest {}: {error}", held.request.name);
                return;
            }
        };
        let first = held.usage.replace(usage).is_none();
        if !first {
            held.looks.add(&usage);
        }
        let mut guest = monitor::Guest {
            // What is being taken away already needs no repair.
            pool_bytes: if held.assigned { held.pool_bytes() } else { 0 },
            insensitive: held.share.insensitive,
            repaired: held.repaired,
            failures: held.repair_failures,
        };
        let is_at_ease = first || monitor::at_ease(&self.settings.monitor, &guest, &usage).is_some();
        let notices_not = if is_at_ease { None } else { self.counted(held, &process) };
        guest.insensitive = notices_not.unwrap_or(guest.insensitive);
        // The first look sees accesses of all its life.
        let verdict = if first { Verdict::AsPredicted } else { self.judge(held, &guest, &usage) };
        self.counts.count(Event::Verdict, word(verdict));
        if held.verdict.replace(verdict) != Some(verdict) {
            let (touched, pool) = (usage.pool_touched_bytes, guest.pool_bytes);
            let (accessed, local) = (usage.pool_accessed_bytes, usage.local_accessed_bytes);
            // What was counted at an earlier look is not why.
            let score = notices_not.and(held.counted.as_ref()).and_then(|counted| counted.score);
            let by = score.map_or_else(String::new, |score| format!("; by its counters, insensitive with probability {score:.2}"));
            held.note(format!(
                "{verdict:?}: touched {touched} of {pool} bytes in the pool, accessed {accessed} there and {local} local{by}"
            ));
        }
        held.try_save();
        if verdict == Verdict::Repair {
            self.repair(held);
        }
    }

    /// Whether a guest notices the pool, by what the processor's counters show of it now and the model says to that. None where
    /// nothing counts, or nothing is said.
    fn counted(&self, held: &mut Held<'_>, process: &Process) -> Option<bool> {
        let (perf, time) = self.perf.as_ref()?;
        let predictor = self.predictor.as_ref()?;
        let (outcome, counted) = match perf.of_process(process.pid, *time) {
            Ok(counters) => {
                #[expect(clippy::cast_possible_truncation, reason = "the model takes no more digits")]
                let values = counters.iter().map(|(name, &value)| (name.clone(), value as f32)).collect();
                let latency = predictor.latency(Some(&values));
                let (outcome, score) = match latency {
                    Latency::Insensitive(score) => ("insensitive", Some(score)),
                    Latency::Sensitive(score) => ("sensitive", Some(score)),
                    Latency::NoAnswer(_) | Latency::NoModel => ("no_answer", None),
                };
                (outcome, Some(Counted { at: now(), score, insensitive: matches!(latency, Latency::Insensitive(_)), counters }))
            }
            Err(why) => {
                log::warn!("guest {}: no counters: {why}", held.request.name);
                ("failed", None)
            }
        };
        self.counts.count(Event::Counters, outcome);
        held.counted = counted;
        held.counted.as_ref().filter(|counted| counted.score.is_some()).map(|counted| counted.insensitive)
    }

    fn judge(&self, held: &Held<'_>, guest: &monitor::Guest, usage: &crate::driver::Usage) -> Verdict {
        let table = self.table();
        let rested = table.totals.last_repair.is_none_or(|last| now() - last >= self.settings.rest.as_secs_f64());
        let host = monitor::Host {
            started: table.totals.started,
            repaired: table.totals.repaired,
            rested,
            free_local_bytes: self.settings.local_bytes.saturating_sub(table.local_bytes()),
            repair_bytes: self.driver.repair_bytes(&held.machine),
        };
        monitor::judge(&self.settings.monitor, guest, usage, &host)
    }

    /// Moves a guest to local memory, once.
    fn repair(&self, held: &mut Held<'_>) {
        let Some(process) = held.process else { return };
        match self.driver.to_local(&held.machine, &process, self.settings.repair_within) {
            Ok(moved) => {
                held.process = Some(moved.process);
                held.repaired = true;
                held.mapped.clear();
                let pause = moved.pause_seconds;
                self.counts.count(Event::Repair, "ok");
                self.counts.paused(pause);
                let (seconds, bytes) = (moved.total_seconds, moved.copied_bytes);
                held.note(format!("moved to local memory: paused for {pause:.3} s, {seconds:.3} s in all, {bytes} bytes copied"));
                held.try_save();
                self.count(|totals| {
                    totals.repaired += 1;
                    totals.last_repair = Some(now());
                });
                self.settle(held);
            }
            Err(error) => {
                self.counts.count(Event::Repair, "failed");
                held.repair_failures += 1;
                held.note(error.to_string());
                held.try_save();
            }
        }
    }
}
