//! The last resort against decompression bursts (000 section 4.2): when pages come back from far memory faster than
//! the machine can hold them, the lowest class of job ends first. Off unless the operator turns it on.

use std::time::Duration;

use config::Class;
use kernel::cgroup::Cgroup;
use kernel::meminfo;
use units::{Bytes, RatioPpm};

use super::Agent;

/// How long a job that was ended may take to give its memory back before another one is.
const ENDING_MAX: Duration = Duration::from_secs(10);

/// A job that the guard has ended.
#[derive(Debug)]
pub(super) struct Ending {
    cgroup: Cgroup,
    since: Duration,
}

impl Ending {
    /// Whether its memory may still be on the way back.
    fn lasts(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) < ENDING_MAX && self.cgroup.populated().unwrap_or(false)
    }
}

impl Agent {
    /// Ends one job if the machine is out of memory because of promotions.
    pub(super) fn guard(&mut self) {
        if !self.config.guard.enabled || self.options.dry_run {
            return;
        }
        let Ok(info) = meminfo::read(&self.roots) else { return };
        let (available, now) = (info.available, self.clock.now());
        if !exhausted(available, info.total, self.config.guard.available_min) {
            return;
        }
        if self.ending.as_ref().is_some_and(|ending| ending.lasts(now)) {
            return;
        }
        let mut burst = Bytes::ZERO;
        let mut candidates = Vec::new();
        for (path, job) in &mut self.jobs {
            // What it reads is booked to the job as usual; the next scan finds nothing of it twice.
            let Ok(pages) = job.read_counters() else { continue };
            let ages = job.far.promoted(pages);
            job.note_promotions(&ages);
            let came_back = pages.to_bytes(kernel::page_size());
            burst += came_back;
            candidates.push((path.clone(), job.treatment.class, job.memory.far + came_back));
        }
        if burst == Bytes::ZERO {
            return;
        }
        let Some(job) = victim(candidates).and_then(|path| self.jobs.get(&path)) else { return };
        let (path, cgroup) = (job.path().to_owned(), job.cgroup.clone());
        let what = match cgroup.kill() {
            Ok(()) => format!("guard ended the job: {available} available while {burst} came back from far memory"),
            Err(error) => format!("guard could not end the job: {error}"),
        };
        self.ending = Some(Ending { cgroup, since: now });
        self.event(Some(&path), what);
        self.write_journal();
    }
}

fn exhausted(available: Bytes, total: Bytes, min: RatioPpm) -> bool {
    available.0 < min.share_of(total.0)
}

/// The job to end: of the lowest class that may be acted upon, the one with most in far memory, what has just come
/// back included: a burst's own job may have nothing left there. Jobs that are only observed were not given to us.
fn victim(candidates: Vec<(String, Class, Bytes)>) -> Option<String> {
    let ours = |class: &Class| !matches!(class, Class::Off | Class::Observe);
    let given = candidates.into_iter().filter(|(_, class, far)| ours(class) && *far > Bytes::ZERO);
    given.max_by_key(|(_, class, far)| (*class, *far)).map(|(path, _, _)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(candidates: &[(&str, Class, u64)], want: Option<&str>) {
        let candidates = candidates.iter().map(|&(path, class, mib)| (path.to_owned(), class, Bytes::mib(mib))).collect();
        assert_eq!(victim(candidates).as_deref(), want);
    }

    #[test]
    fn the_lowest_class_ends_first_and_of_it_the_one_with_most_in_far_memory() {
        check(&[("/db", Class::Conservative, 900), ("/web", Class::Standard, 500), ("/log", Class::Aggressive, 1)], Some("/log"));
        check(&[("/a", Class::Standard, 5), ("/b", Class::Standard, 7), ("/c", Class::Conservative, 900)], Some("/b"));
        check(&[("/log", Class::Aggressive, 0), ("/web", Class::Standard, 5)], Some("/web"));
    }

    #[test]
    fn jobs_that_were_not_given_to_us_never_end() {
        check(&[("/x", Class::Observe, 900), ("/y", Class::Off, 900)], None);
        check(&[], None);
    }
}
