//! The last resort against decompression bursts (000 section 4.2): when pages come back from far memory faster than
//! the machine can hold them, the lowest class of job ends first. Off unless the operator turns it on.

use config::Class;
use kernel::meminfo;
use policy::units::{Bytes, RatioPpm};

use super::Agent;
use crate::job::Job;

impl Agent {
    /// Ends one job if the machine is out of memory because of promotions.
    pub(super) fn guard(&mut self) {
        if !self.config.guard.enabled || self.options.dry_run {
            return;
        }
        let Ok(info) = meminfo::read(&self.roots) else { return };
        if !exhausted(info.available, info.total, self.config.guard.available_min) {
            return;
        }
        let mut burst = Bytes::ZERO;
        for job in self.jobs.values_mut() {
            // What it reads is booked to the job as usual; the next scan finds nothing of it twice.
            if let Ok(pages) = job.read_counters() {
                let ages = job.far.promoted(pages);
                job.note_promotions(&ages);
                burst += pages.to_bytes(kernel::page_size());
            }
        }
        if burst == Bytes::ZERO {
            return;
        }
        let Some(path) = victim(self.jobs.values()).map(|job| job.path().to_owned()) else { return };
        let killed = self.jobs.get(&path).map(|job| job.cgroup.kill());
        let available = info.available;
        self.event(
            Some(&path),
            match killed {
                Some(Err(error)) => format!("guard could not end the job: {error}"),
                _ => format!("guard ended the job: {available} available while {burst} came back from far memory"),
            },
        );
        self.write_journal();
    }
}

fn exhausted(available: Bytes, total: Bytes, min: RatioPpm) -> bool {
    available.0 < min.share_of(total.0)
}

/// The job to end: of the lowest class that may be acted upon, the one with most in far memory. Jobs that are only
/// observed were not given to us.
fn victim<'a>(jobs: impl Iterator<Item = &'a Job>) -> Option<&'a Job> {
    jobs.filter(|job| !matches!(job.class, Class::Off | Class::Observe) && job.memory.far > Bytes::ZERO)
        .max_by_key(|job| (job.class, job.memory.far))
}
