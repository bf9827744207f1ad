//! The last resort against decompression bursts (SDFM section 4.2): if pages are promoted faster than the machine has memory for
//! them, a job of the lowest class is killed. Disabled unless the operator enables it.

use config::Class;
use kernel::meminfo;
use units::{Bytes, RatioPpm};

use super::state::Ending;
use super::{Agent, GUARD_WAIT};

impl Agent {
    /// Kills one job if the machine is out of memory because of promotions.
    pub(super) fn check_guard(&mut self) {
        if !self.context.config.guard.enabled || self.context.options.dry_run {
            // No next check is due: it may have been switched off while the agent runs.
            self.guard.checked = None;
            return;
        }
        let checked = self.context.clock.now();
        let due = self.guard.checked.replace(checked).map(|last| last + GUARD_WAIT);
        if let Some(due) = due.filter(|due| checked > *due + GUARD_WAIT / 2) {
            self.missed_deadline("the guard's check", due, checked);
        }
        let context = &mut self.context;
        let Ok(info) = meminfo::read(&context.kernel.roots) else { return };
        let (available, now) = (info.available, context.clock.now());
        if !exhausted(available, info.total, context.config.guard.available_min) {
            return;
        }
        if self.guard.ending.as_ref().is_some_and(|ending| ending.lasts(now)) {
            return;
        }
        let mut burst = Bytes::ZERO;
        let mut candidates = Vec::new();
        for (path, entry) in &mut self.jobs {
            let job = &mut entry.job;
            let Ok(pages) = job.observe(context.tiers.ram_disks()) else { continue };
            let promoted = pages.to_bytes(kernel::page_size());
            burst += promoted;
            candidates.push((path.clone(), job.treatment.class, job.memory.far + promoted));
        }
        if burst == Bytes::ZERO {
            return;
        }
        let Some(entry) = victim(candidates).and_then(|path| self.jobs.get(&path)) else { return };
        let (path, cgroup) = (entry.job.path().to_owned(), entry.job.cgroup.clone());
        let what = match cgroup.kill() {
            Ok(()) => format!("guard killed the job: {available} available while {burst} were promoted from far memory"),
            Err(error) => format!("guard could not kill the job: {error}"),
        };
        self.guard.ending = Some(Ending { cgroup, since: now });
        context.event(Some(&path), what);
        self.write_journal();
    }

    /// The same, if it was last checked long enough ago.
    pub(super) fn check_guard_if_due(&mut self) {
        if self.guard.checked.is_none_or(|last| self.context.clock.now() >= last + GUARD_WAIT) {
            self.check_guard();
        }
    }
}

fn exhausted(available: Bytes, total: Bytes, min: RatioPpm) -> bool {
    available.0 < min.share_of(total.0)
}

/// The job to kill: of the lowest class that the agent may act on, the one with most far memory, including what was just promoted:
/// the job that causes the burst may have no far memory left. Jobs that are only observed are never killed.
fn victim(candidates: Vec<(String, Class, Bytes)>) -> Option<String> {
    let may_act = |class: &Class| !matches!(class, Class::Off | Class::Observe);
    let allowed = candidates.into_iter().filter(|(_, class, far)| may_act(class) && *far > Bytes::ZERO);
    allowed.max_by_key(|(_, class, far)| (*class, *far)).map(|(path, _, _)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(candidates: &[(&str, Class, u64)], expected: Option<&str>) {
        let candidates = candidates.iter().map(|&(path, class, mib)| (path.to_owned(), class, Bytes::mib(mib))).collect();
        assert_eq!(victim(candidates).as_deref(), expected);
    }

    #[test]
    fn the_job_with_most_far_memory_of_the_lowest_class_is_killed() {
        check(&[("/db", Class::Conservative, 900), ("/web", Class::Standard, 500), ("/log", Class::Aggressive, 1)], Some("/log"));
        check(&[("/a", Class::Standard, 5), ("/b", Class::Standard, 7), ("/c", Class::Conservative, 900)], Some("/b"));
        check(&[("/log", Class::Aggressive, 0), ("/web", Class::Standard, 5)], Some("/web"));
    }

    #[test]
    fn observed_jobs_are_never_killed() {
        check(&[("/x", Class::Observe, 900), ("/y", Class::Off, 900)], None);
        check(&[], None);
    }
}
