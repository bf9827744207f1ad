//! Finds new jobs, forgets ended ones, and refreshes the cgroups and processes of each.

use std::collections::BTreeSet;

use kernel::cgroup::{self, Cgroup};

use super::{Agent, report};
use crate::controllers::slots::{Entry, Slots};
use crate::discover::Found;
use crate::job::Job;
use crate::now::Now;

/// Bounds of one listing.
const CGROUPS_MAX: usize = 100_000;
const PROCESSES_MAX: usize = 4_096;
const MEMBERS_MAX: usize = 4_096;

impl Agent {
    /// Compares the cgroups of the machine with the jobs.
    pub(super) fn discover(&mut self, now: Now) {
        let listed = match cgroup::list(&self.context.kernel.cgroups, CGROUPS_MAX) {
            Ok(listed) => listed,
            Err(error) => return self.context.event(None, error.to_string()),
        };
        let found = self.discovery.rules.find(&self.context.kernel.roots, &listed);
        if found.left_out > 0 {
            log::warn!("{} cgroups match a rule beyond agent.jobs_max and are left alone", found.left_out);
        }
        for (path, what) in found.troubles {
            self.context.event(Some(&path), what);
        }
        let mut before = std::mem::take(&mut self.jobs);
        let mut refused = BTreeSet::new();
        for found in found.jobs {
            let Ok(cgroup) = Cgroup::open(&self.context.kernel.cgroups, &found.path) else { continue };
            let known = before.remove(&found.path).filter(|entry| entry.job.cgroup.id() == cgroup.id());
            let known = known.and_then(|entry| self.keep(entry, &found));
            match known.or_else(|| self.admit(cgroup, &found, now)) {
                Some(entry) => drop(self.jobs.insert(found.path, entry)),
                None => drop(refused.insert(found.path)),
            }
        }
        self.discovery.refused = refused;
        for (path, entry) in before {
            for scheduled in &mut self.policies {
                scheduled.policy.release(&entry.job, &mut self.context);
            }
            let exists = listed.contains(&path);
            let what = if exists { "no rule names it any more; it is left alone" } else { "job ended" };
            self.context.event(Some(&path), what.to_owned());
        }
        self.refresh_all();
    }

    /// Refreshes all jobs. With a thousand of them it takes seconds on a busy machine.
    fn refresh_all(&mut self) {
        let paths: Vec<String> = self.jobs.keys().cloned().collect();
        for path in paths {
            if let Some(entry) = self.jobs.get_mut(&path) {
                refresh(&mut entry.job);
            }
            self.give_turn();
        }
    }

    /// A job that is known, unless the rules treat it otherwise now: then it is released, and begins again with its history.
    fn keep(&mut self, entry: Entry, found: &Found) -> Option<Entry> {
        if entry.job.treatment == found.treatment {
            return Some(entry);
        }
        for scheduled in &mut self.policies {
            scheduled.policy.release(&entry.job, &mut self.context);
        }
        None
    }

    /// Creates a job with its controllers, and restores its history if an earlier agent knew it.
    fn admit(&mut self, cgroup: Cgroup, found: &Found, now: Now) -> Option<Entry> {
        let (context, treatment) = (&mut self.context, found.treatment);
        let Some(tracker) = context.trackers.offer.choose(treatment.tracker) else {
            // Reported once, not at every scan.
            if !self.discovery.refused.contains(&found.path) {
                let why = context.trackers.offer.unavailable(treatment.tracker).map(ToString::to_string).unwrap_or_default();
                context.event(Some(&found.path), format!("not watched: {why}"));
            }
            return None;
        };
        let mut job = Job::new(cgroup, treatment, tracker, &context.config, now);
        let slots = self.policies.iter().map(|scheduled| scheduled.policy.slot(&context.config, &treatment, &context.thresholds));
        let mut slots = Slots::new(slots.collect());
        let history = self.durable.history.as_ref().and_then(|history| history.of(&found.path, job.cgroup.id()));
        if let Some(history) = history {
            job.seen_at = history.seen_at_ms.to_duration();
            job.far = history.far.clone();
            job.counters.page_cache = history.page_cache;
            job.tiering.restore(history.incompressible, history.writes);
        }
        for slot in slots.iter_mut() {
            slot.configure(&mut job, &context.config);
            if let Some(history) = history {
                slot.restore(history);
            }
        }
        let known = if history.is_some() { "continues" } else { "starts" };
        let (class, policy) = (treatment.class.as_str(), treatment.policy.as_str());
        let (name, reason) = (tracker.0.as_str(), tracker.1);
        context.event(Some(&found.path), format!("job {known}: class {class}, policy {policy}, tracker {name} ({reason})"));
        let entry = Entry { job, slots };
        context.log.push(report::job_record(&entry, now.unix_ms).into());
        Some(entry)
    }
}

/// Reads which cgroups and processes belong to a job. A job that ends meanwhile is noticed at the next scan.
fn refresh(job: &mut Job) {
    job.members = vec![job.cgroup.id()];
    if let Ok(below) = job.cgroup.descendants(MEMBERS_MAX) {
        job.members.extend(below.iter().map(Cgroup::id));
    }
    job.pids = job.cgroup.procs(PROCESSES_MAX).unwrap_or_default();
}
