//! Read: which jobs there are, and how old their pages are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kernel::cgroup::{self, Cgroup};
use units::Bytes;

use super::{Agent, job_record};
use crate::discover::Found;
use crate::job::Job;
use trackers::ages::{self, Scan, Target, Tracker, damon, lru_gen, page_idle};

/// Bounds on what one listing may return.
const CGROUPS_MAX: usize = 100_000;
pub(super) const PROCESSES_MAX: usize = 4_096;
const MEMBERS_MAX: usize = 4_096;

impl Agent {
    /// One scan of all jobs.
    pub(super) fn scan(&mut self, now: Duration) {
        let cpu_before = self.cpu_time();
        self.discover(now);
        let mut by_tracker: BTreeMap<ages::Kind, Vec<String>> = BTreeMap::new();
        for (path, job) in &self.jobs {
            by_tracker.entry(job.tracker.0).or_default().push(path.clone());
        }
        for (kind, paths) in by_tracker {
            let before = self.cpu_time();
            self.scan_with(kind, now, &paths);
            let cost = self.cpu_time().saturating_sub(before);
            self.judge_cost(kind, cost);
        }
        self.costs.scans += 1;
        let seconds = self.clock.now().saturating_sub(now).as_secs_f64();
        self.costs.scan_seconds = seconds;
        let cpu = self.cpu_time().saturating_sub(cpu_before);
        self.costs.scan_cpu_seconds += cpu.as_secs_f64();
    }

    fn scan_with(&mut self, kind: ages::Kind, now: Duration, paths: &[String]) {
        if let Err(error) = self.open_tracker(kind, paths) {
            return self.event(None, format!("tracker {}: {error}", kind.as_str()));
        }
        let Some(tracker) = self.trackers.get_mut(&kind) else { return };
        let targets: Vec<_> = paths.iter().filter_map(|path| self.jobs.get(path)).map(target).collect();
        let scans = match tracker.scan(now, &targets) {
            Ok(scans) => scans,
            // The jobs keep their last decision's threshold but get no new plan: nothing is done blindly.
            Err(error) => {
                for path in paths {
                    if let Some(job) = self.jobs.get_mut(path) {
                        job.plan = None;
                    }
                }
                return self.event(None, format!("tracker {}: {error}", kind.as_str()));
            }
        };
        let mut troubles = Vec::new();
        for (path, scan) in paths.iter().zip(scans) {
            let Some(job) = self.jobs.get_mut(path) else { continue };
            if let Err(error) = scan.and_then(|scan| take_scan(job, scan, &mut self.costs.scanned_bytes)) {
                job.plan = None;
                if !error.is_gone() {
                    troubles.push((path.clone(), error));
                }
            }
        }
        for (path, error) in troubles {
            self.trouble(&path, &error);
        }
    }

    /// Finds new jobs, forgets ended ones, and refreshes who belongs to each.
    fn discover(&mut self, now: Duration) {
        let listed = match cgroup::list(&self.cgroups, CGROUPS_MAX) {
            Ok(listed) => listed,
            Err(error) => return self.event(None, error.to_string()),
        };
        let found = self.rules.find(&self.roots, &listed);
        if found.left_out > 0 {
            log::warn!("{} cgroups match a rule beyond agent.jobs_max and are left alone", found.left_out);
        }
        for (path, what) in found.troubles {
            self.event(Some(&path), what);
        }
        let mut before = std::mem::take(&mut self.jobs);
        let mut refused = BTreeSet::new();
        for found in found.jobs {
            let Ok(cgroup) = Cgroup::open(&self.cgroups, &found.path) else { continue };
            let known = before.remove(&found.path).filter(|job| job.cgroup.id() == cgroup.id());
            match known.or_else(|| self.admit(cgroup, &found, now)) {
                Some(mut job) => {
                    refresh(&mut job);
                    self.jobs.insert(found.path, job);
                }
                None => drop(refused.insert(found.path)),
            }
        }
        self.refused = refused;
        for (path, job) in before {
            self.release(&job);
            self.event(Some(&path), "job ended".to_owned());
        }
    }

    /// Takes a job in, with its history if an earlier agent knew it.
    fn admit(&mut self, cgroup: Cgroup, found: &Found, now: Duration) -> Option<Job> {
        let treatment = found.treatment;
        let Some(tracker) = self.offer.choose(treatment.tracker) else {
            // Told once, not at every scan.
            if !self.refused.contains(&found.path) {
                let why = self.offer.unavailable(treatment.tracker).map(ToString::to_string).unwrap_or_default();
                self.event(Some(&found.path), format!("not watched: {why}"));
            }
            return None;
        };
        let params = super::follow::parameters(&self.config, treatment.class);
        let mut job = Job::new(cgroup, treatment, tracker, &params, now);
        let history = self.history.as_ref().and_then(|history| history.of(&found.path, job.cgroup.id()));
        if let Some(history) = history {
            job.seen_at = Duration::from_millis(history.seen_at_ms);
            job.state = history.state;
            job.incompressible = history.incompressible;
            job.far = history.far.clone();
            job.file_out = history.file_out;
            job.writes = history.writes.unwrap_or(job.writes);
            if let Some(background) = &mut job.background {
                background.hint = history.hint;
            }
        }
        let known = if history.is_some() { "goes on" } else { "starts" };
        let (class, policy) = (treatment.class.as_str(), treatment.policy.as_str());
        let (name, reason) = (tracker.0.as_str(), tracker.1);
        self.event(Some(&found.path), format!("job {known}: class {class}, policy {policy}, tracker {name} ({reason})"));
        self.pending.push(job_record(&job));
        Some(job)
    }

    /// Opens a tracker at its first use, and writes down what it will leave in the kernel before it does.
    fn open_tracker(&mut self, kind: ages::Kind, paths: &[String]) -> kernel::Result<()> {
        let agent = &self.config.agent;
        if !self.trackers.contains_key(&kind) {
            let tracker: Box<dyn Tracker> = match kind {
                ages::Kind::PageIdle => Box::new(page_idle::PageIdle::open(&self.roots)?),
                ages::Kind::LruGen => Box::new(lru_gen::LruGen::open(&self.roots, agent.scan_period)?),
                ages::Kind::Damon | ages::Kind::Auto => {
                    let limits = damon::Limits {
                        scan_period: agent.scan_period,
                        regions_max: u64::from(agent.damon_regions_max),
                        processes_max: usize::try_from(agent.damon_processes_max).unwrap_or(usize::MAX),
                    };
                    Box::new(damon::Damon::open(&self.roots, limits)?)
                }
            };
            self.trackers.insert(kind, tracker);
        }
        if kind == ages::Kind::Damon {
            let watched = self.trackers.get(&kind).map(|tracker| tracker.kdamond_targets()).unwrap_or_default();
            let mut pids: Vec<i32> = paths.iter().filter_map(|path| self.jobs.get(path)).flat_map(|job| job.pids.clone()).collect();
            pids.extend(watched);
            pids.sort_unstable();
            pids.dedup();
            let path = self.config.agent.runtime_dir.join("undo.json");
            self.undo.set_kdamond_targets(&pids).map_err(|source| kernel::Error::Io { path, op: "write", source })?;
        }
        Ok(())
    }
}

fn target(job: &Job) -> Target<'_> {
    Target { id: job.cgroup.id(), path: job.path(), cgroups: &job.members, pids: &job.pids }
}

fn take_scan(job: &mut Job, scan: Scan, scanned: &mut Bytes) -> kernel::Result<()> {
    let pages = scan.resident.total() + scan.file.total();
    *scanned += pages.to_bytes(kernel::page_size());
    job.take_scan(scan)
}

/// Reads anew which cgroups and processes belong to a job. One that vanishes meanwhile is found ended next time.
fn refresh(job: &mut Job) {
    job.members = vec![job.cgroup.id()];
    if let Ok(below) = job.cgroup.descendants(MEMBERS_MAX) {
        job.members.extend(below.iter().map(Cgroup::id));
    }
    job.pids = job.cgroup.procs(PROCESSES_MAX).unwrap_or_default();
}
