//! Carries out the controllers' plans in small steps, within the byte rate and the CPU budget.

use std::time::Duration;

use units::Pages;

use super::Agent;
use crate::context::{PACE_WAIT, SLICE};
use crate::controllers::slots::Entry;
use crate::controllers::tiering;
use crate::{swap_gate, swap_room};

impl Agent {
    /// Carries out plans, one job after the other, for a slice of time at most. Returns how long to wait for the next step;
    /// `None` if nothing is planned.
    pub(super) fn offload(&mut self) -> Option<Duration> {
        if self.context.options.dry_run {
            return None;
        }
        let end = self.context.clock.now() + SLICE;
        while let Some(path) = self.next_job() {
            let Some(limit) = self.context.step_limit() else { return Some(PACE_WAIT) };
            self.offload_step(&path, limit);
            if self.context.clock.now() >= end {
                return Some(Duration::ZERO);
            }
        }
        None
    }

    /// The next job with a plan. While the machine is short of memory, only jobs of the lowest class are chosen.
    fn next_job(&mut self) -> Option<String> {
        let due = |entry: &Entry| entry.slots.iter().any(|slot| slot.offload_due());
        let class = |entry: &Entry| entry.job.treatment.class;
        let short = self.context.machine.is_short();
        let first = if short { self.jobs.values().filter(|entry| due(entry)).map(class).max() } else { None };
        let chosen = |entry: &Entry| due(entry) && first.is_none_or(|first| class(entry) == first);
        let planned = || self.jobs.iter().filter(|(_, entry)| chosen(entry)).map(|(path, _)| path);
        self.turn = self.turn.wrapping_add(1).checked_rem(planned().count())?;
        planned().nth(self.turn).cloned()
    }

    /// One step of one job's plan.
    fn offload_step(&mut self, path: &str, limit: Pages) {
        let Self { jobs, context, costs, .. } = self;
        let Some(Entry { job, slots }) = jobs.get_mut(path) else { return };
        let cpu_before = context.offload_cpu_time();
        let page = kernel::page_size();
        let writable = tiering::writable(job, context, context.clock.now());
        let swap_limit = writable.map_or(limit, |bytes| limit.min(bytes.to_pages(page)));
        swap_gate::open(job, context, swap_limit);
        // A limit that cannot be read is reported by the request.
        let room = swap_room::limit(job, context, swap_limit).unwrap_or(swap_limit);
        if room < swap_limit && room == Pages::ZERO {
            swap_room::is_full(job, context);
        }
        let swap_limit = room;
        if swap_limit == Pages::ZERO {
            slots.iter_mut().for_each(|slot| slot.drop_writes());
        }
        // The later policies have the shorter periods: their plans are for fewer pages, and go first.
        let due = slots.iter_mut().filter(|slot| slot.offload_due()).last();
        let outcome = due.map_or(Ok(Pages::ZERO), |slot| slot.offload(job, context, limit, swap_limit));
        swap_gate::close(job, context);
        let cpu = context.offload_cpu_time().saturating_sub(cpu_before);
        job.waits.charge_offload(cpu);
        costs.offload_cpu_seconds += cpu.as_secs_f64();
        match outcome {
            Ok(asked) => context.pacing.rate.spend(asked.to_bytes(page)),
            Err(error) => {
                slots.iter_mut().for_each(|slot| slot.forget_ages());
                if !error.is_gone() {
                    context.event(Some(path), format!("offloading stopped until the next scan: {error}"));
                }
            }
        }
    }
}
