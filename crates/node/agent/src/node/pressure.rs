//! Step, for jobs whose policy watches stalls: how much may be reclaimed until the next period.
//!
//! A job's own pressure files tell of its descendants too: the kernel counts a moment as stalled for a cgroup as soon
//! as any task in or below it waits. So a child that suffers holds its parent back, and the job is handled once, at the
//! level that the operator named.

use std::time::Duration;

use config::Policy;
use kernel::cgroup::Limit;
use policy::veto::Veto;
use units::{Bytes, millis};

use super::{Agent, unix_ms};
use crate::job::Job;
use crate::job::pressed::Surroundings;
use crate::journal::{PressureRecord, Record};

impl Agent {
    /// One period of all jobs under pressure-driven offloading.
    pub(super) fn press(&mut self, now: Duration) {
        let pressed = |job: &Job| matches!(job.treatment.policy, Policy::Pressure | Policy::Auto);
        let paths: Vec<String> = self.jobs.iter().filter(|(_, job)| pressed(job)).map(|(path, _)| path.clone()).collect();
        if paths.is_empty() {
            return;
        }
        self.read_machine();
        for path in paths {
            let Some(mut job) = self.jobs.remove(&path) else { continue };
            let done = self.press_job(&mut job, now);
            if done.is_err()
                && let Some(pressed) = &mut job.pressed
            {
                pressed.plan = None;
            }
            self.jobs.insert(path.clone(), job);
            match done {
                Err(error) if !error.is_gone() => self.trouble(&path, &error),
                _ => {}
            }
        }
    }

    fn press_job(&mut self, job: &mut Job, now: Duration) -> kernel::Result<()> {
        let came_back = job.read_counters()?;
        let returned = job.far.promoted(came_back);
        job.note_promotions(&returned);
        let (memory, io) = (job.cgroup.pressure()?, job.cgroup.io_pressure()?);
        let at_limit = job.at_limit()?;
        let stat = job.cgroup.stat()?;
        let protected = self.protected(job)?;
        // Under `auto`, the age of anonymous memory decides, with what its return would cost.
        let swap = job.treatment.policy == Policy::Pressure && self.place(job, now).is_none();
        let resident = job.memory.current - job.memory.pool;
        let cache = stat.file.unwrap_or_default() - stat.shmem.unwrap_or_default();
        // Where page cache alone may go, it alone is what a share is taken of: a share of the whole job would be all of it.
        let (resident, protected) = if swap { (resident, protected) } else { (cache, protected - (resident - cache)) };
        let around = Surroundings {
            now,
            job_age_ms: millis(now.saturating_sub(job.seen_at)),
            resident,
            protected,
            promoted: job.totals.promoted.to_pages(kernel::page_size()),
            memory_stall_us: memory.some.total_us,
            io_stall_us: io.some.total_us,
            costs: self.costs_of(job),
            swap,
            veto: self.pressure_veto(job, at_limit),
        };
        let Some(pressed) = &mut job.pressed else { return Ok(()) };
        let stepped = pressed.step(&stat, &around);
        job.file_out = job.file_out - stepped.file_returned.to_bytes(kernel::page_size());
        let record = PressureRecord {
            unix_ms: unix_ms(),
            job: job.cgroup.name().to_owned(),
            id: job.cgroup.id(),
            input: stepped.input,
            step: stepped.step,
            balance: stepped.balance,
            lean: stepped.lean,
            reclaimed: stepped.reclaimed,
            memory: job.memory,
        };
        pressed.remember(&record);
        self.pending.push(Record::Pressure(Box::new(record)));
        Ok(())
    }

    /// What forbids reclaim altogether. That anonymous memory has nowhere to go does not: page cache needs no swap.
    fn pressure_veto(&self, job: &Job, at_limit: bool) -> Option<Veto> {
        if !self.may_act(job) {
            return Some(Veto::ObserveOnly);
        }
        if at_limit {
            return Some(Veto::AtLimit);
        }
        self.budget_spent.then_some(Veto::BudgetSpent)
    }

    /// The operator's own `memory.low` or `memory.min`, whichever is more; what we set ourselves does not count.
    fn protected(&self, job: &Job) -> kernel::Result<Bytes> {
        let file = job.cgroup.path().join("memory.low");
        let own = self.undo.original(&file).and_then(|text| text.parse().ok()).map(Bytes);
        let low = match own {
            Some(own) => own,
            None => bytes(job.cgroup.low()?),
        };
        Ok(low.max(bytes(job.cgroup.min()?)))
    }
}

/// A protection of `max` covers all there can be.
fn bytes(limit: Limit) -> Bytes {
    match limit {
        Limit::Bytes(bytes) => bytes,
        Limit::Max => Bytes(u64::MAX),
    }
}

#[cfg(test)]
mod tests;
