//! Finds new jobs, forgets ended ones, and refreshes the cgroups of each.

use std::collections::{BTreeMap, BTreeSet};

use kernel::cgroup::{self, Cgroup};

use super::{Agent, report};
use crate::controllers::slots::{Entry, Slots};
use crate::discover::Found;
use crate::job::Job;
use crate::now::Now;

/// The most cgroups of one listing.
const CGROUPS_MAX: usize = 100_000;

impl Agent {
    /// Compares the cgroups of the machine with the jobs.
    pub(super) fn discover(&mut self, now: Now) {
        let listed = match cgroup::list_with_ids(&self.context.kernel.cgroups, CGROUPS_MAX) {
            Ok(listed) => listed,
            Err(error) => return self.context.event(None, error.to_string()),
        };
        let (listed, ids): (Vec<String>, Vec<u64>) = listed.into_iter().unzip();
        let found = self.discovery.rules.find(&self.context.kernel.roots, &listed);
        let id_of: BTreeMap<&str, u64> = listed.iter().map(String::as_str).zip(ids.iter().copied()).collect();
        if found.left_out > 0 {
            log::warn!("{} cgroups match a rule beyond agent.jobs_max and are left alone", found.left_out);
        }
        for (path, what) in found.troubles {
            self.context.event(Some(&path), what);
        }
        let mut before = std::mem::take(&mut self.jobs);
        let mut refused = BTreeSet::new();
        for found in found.jobs {
            let same = |entry: &Entry| id_of.get(found.path.as_str()) == Some(&entry.job.cgroup.id());
            let known = before.remove(&found.path).filter(same).and_then(|entry| self.keep(entry, &found));
            let entry = match known {
                Some(entry) => Some(entry),
                None => match Cgroup::open(&self.context.kernel.cgroups, &found.path) {
                    Ok(cgroup) => self.admit(cgroup, &found, now),
                    Err(_) => continue,
                },
            };
            match entry {
                Some(entry) => drop(self.jobs.insert(found.path, entry)),
                None => drop(refused.insert(found.path)),
            }
        }
        self.discovery.refused = refused;
        for (path, entry) in before {
            for scheduled in &mut self.policies {
                scheduled.policy.release(&entry.job, &mut self.context);
            }
            let exists = id_of.contains_key(path.as_str());
            let what = if exists { "no rule names it any more; it is left alone" } else { "job ended" };
            self.context.event(Some(&path), what.to_owned());
        }
        self.refresh(&id_of);
    }

    /// Takes in which cgroups belong to each job: its own and all below, by their paths and ids.
    fn refresh(&mut self, id_of: &BTreeMap<&str, u64>) {
        for (path, Entry { job, .. }) in &mut self.jobs {
            let below = format!("{path}/");
            let members = id_of.range(below.as_str()..).take_while(|(path, _)| path.starts_with(&below));
            job.members = [job.cgroup.id()].into_iter().chain(members.map(|(_, &id)| id)).collect();
        }
    }

    /// A job that is known, unless the rules treat it otherwise now: then it is released, and begins again with its history.
    fn keep(&mut self, mut entry: Entry, found: &Found) -> Option<Entry> {
        if entry.job.treatment.is_same_but_for_slow(&found.treatment) {
            entry.job.treatment = found.treatment;
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
