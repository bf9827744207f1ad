//! Measures how old the pages of all jobs are.

use std::collections::BTreeMap;
use std::time::Duration;

use trackers::ages::choose::CONFIGURED;
use trackers::ages::{self, Scan, Target};

use super::{Agent, Now};
use crate::controllers::slots::Entry;
use crate::costs::Costs;
use crate::job::Job;
use crate::ram_disks::RamDisks;

impl Agent {
    /// One scan of all jobs.
    pub(super) fn scan(&mut self, now: Now) {
        let cpu_before = self.context.cpu_time();
        self.discover(now);
        let mut by_tracker: BTreeMap<ages::Kind, Vec<String>> = BTreeMap::new();
        for (path, entry) in &self.jobs {
            by_tracker.entry(entry.job.tracker.0).or_default().push(path.clone());
        }
        for (kind, paths) in by_tracker {
            let before = self.context.cpu_time();
            self.scan_with(kind, now, &paths);
            let cost = self.context.cpu_time().saturating_sub(before);
            self.judge_cost(kind, cost);
        }
        self.costs.scans += 1;
        self.costs.scan_seconds = self.context.clock.now().saturating_sub(now.since_boot).as_secs_f64();
        self.costs.scan_cpu_seconds += self.context.cpu_time().saturating_sub(cpu_before).as_secs_f64();
    }

    fn scan_with(&mut self, kind: ages::Kind, now: Now, paths: &[String]) {
        if let Err(error) = self.open_tracker(kind, paths) {
            return self.context.event(None, format!("tracker {}: {error}", kind.as_str()));
        }
        let entries = paths.iter().filter_map(|path| self.jobs.get(path));
        let targets: Vec<_> = entries.map(|Entry { job, .. }| target(job, self.context.may_split(job))).collect();
        let Some(tracker) = self.context.trackers.get_mut(kind) else { return };
        let scans = match tracker.scan(now.since_boot, &targets) {
            Ok(scans) => scans,
            // The jobs keep their last threshold but get no new plan: nothing is offloaded without current ages.
            Err(error) => {
                for path in paths {
                    self.jobs.get_mut(path).into_iter().for_each(abandon);
                }
                return self.context.event(None, format!("tracker {}: {error}", kind.as_str()));
            }
        };
        let ram_disks = *self.context.tiers.ram_disks();
        for (path, scan) in paths.iter().zip(scans) {
            let Some(entry) = self.jobs.get_mut(path) else { continue };
            if let Err(error) = scan.and_then(|scan| take_scan(&mut entry.job, scan, &mut self.costs, &ram_disks)) {
                abandon(entry);
                if !error.is_gone() {
                    self.context.report_error(&mut entry.job, &error);
                }
            }
        }
    }

    /// Opens a tracker at its first use. The processes that kdamonds are going to watch are first written to the undo list.
    fn open_tracker(&mut self, kind: ages::Kind, paths: &[String]) -> kernel::Result<()> {
        let context = &mut self.context;
        context.trackers.open(kind, &context.kernel.roots, &context.config.agent)?;
        if matches!(kind, ages::Kind::Damon | ages::Kind::Sampled) {
            let watched = context.trackers.get(kind).map(|tracker| tracker.kdamond_targets()).unwrap_or_default();
            let jobs = paths.iter().filter_map(|path| self.jobs.get(path));
            let mut pids: Vec<i32> = jobs.flat_map(|entry| entry.job.pids.iter().copied()).chain(watched).collect();
            pids.sort_unstable();
            pids.dedup();
            let path = context.config.agent.runtime_dir.join("undo.json");
            context.undo.set_kdamond_targets(&pids).map_err(|source| kernel::Error::Io { path, op: "write", source })?;
        }
        Ok(())
    }

    /// Judges what a scan with `kind` cost. If it is too expensive, jobs for which `auto` chose it use the next best tracker; a
    /// tracker that the operator chose stays, and the CPU budget limits offloading instead.
    fn judge_cost(&mut self, kind: ages::Kind, cpu: Duration) {
        let (period, budget) = (self.context.config.agent.scan_period, self.context.config.agent.cpu_budget);
        if !self.context.trackers.is_too_expensive(kind, cpu, period, budget) {
            return;
        }
        let Some((next, _)) = self.context.trackers.offer.next_after(kind) else { return };
        let mut moved = 0;
        for entry in self.jobs.values_mut().filter(|entry| entry.job.tracker.0 == kind && entry.job.tracker.1 != CONFIGURED) {
            entry.job.tracker = (next, "the better tracker costs more than agent.cpu_budget");
            entry.job.scan = None;
            abandon(entry);
            moved += 1;
        }
        if moved == 0 {
            return;
        }
        self.context.trackers.offer.exclude(kind);
        let (cost, kind, next) = (cpu.as_secs_f64(), kind.as_str(), next.as_str());
        let what = format!("{kind} took {cost:.2} s of CPU per scan, over agent.cpu_budget; {moved} jobs use {next} now");
        self.context.event(None, what);
    }

    /// After a scan: the controllers plan with the new ages.
    pub(super) fn plan(&mut self) {
        for Entry { job, slots } in self.jobs.values_mut() {
            slots.iter_mut().for_each(|slot| slot.plan(job));
        }
    }
}

/// Without current ages no plan is carried out.
fn abandon(entry: &mut Entry) {
    entry.slots.iter_mut().for_each(|slot| slot.forget_ages());
}

fn target(job: &Job, may_split: bool) -> Target<'_> {
    let (id, threshold) = (job.cgroup.id(), job.signals.threshold);
    Target { id, path: job.path(), cgroups: &job.members, pids: &job.pids, threshold, may_split }
}

fn take_scan(job: &mut Job, scan: Scan, costs: &mut Costs, ram_disks: &RamDisks) -> kernel::Result<()> {
    let pages = scan.resident.total() + scan.file.total();
    costs.scanned_bytes += pages.to_bytes(kernel::page_size());
    costs.ages_splits += scan.split;
    job.take_scan(scan, ram_disks)
}
