//! Measures how old the pages of all jobs are.

use std::collections::BTreeMap;
use std::time::Duration;

use kernel::process::thread_cpu_time;
use trackers::ages::choose::CONFIGURED;
use trackers::ages::{self, Scan, Target};

use super::scanner::Part;
use super::state::Running;
use super::{Agent, Error, Now};
use crate::context::Context;
use crate::controllers::slots::Entry;
use crate::costs::Costs;
use crate::job::Job;
use crate::ram_disks::RamDisks;

impl Agent {
    /// Begins a scan of all jobs. Plans that are based on ages end here: the ages are about to change.
    ///
    /// # Errors
    /// As [`super::scanner::Scanner::results`].
    pub(super) fn begin_scan(&mut self, now: Now, late: bool) -> Result<(), Error> {
        let before = self.scan_cpu_time();
        self.discover(now);
        let by_tracker = self.targets();
        self.jobs.values_mut().for_each(abandon);
        let noted = self.note_kdamond_targets(&by_tracker);
        let mut parts = Vec::new();
        for (kind, targets) in by_tracker {
            let may_open = if by_kdamond(kind) { noted.clone() } else { Ok(()) };
            let context = &mut self.context;
            let open = |()| context.trackers.open(kind, &context.kernel.roots, &context.config.agent).map_err(|error| error.to_string());
            if let Err(error) = may_open.and_then(open) {
                self.context.event(None, format!("tracker {}: {error}", kind.as_str()));
            } else if let Some(tracker) = self.context.trackers.lend(kind) {
                parts.push(Part::new(tracker, targets));
            }
        }
        let discovery = self.scan_cpu_time().saturating_sub(before);
        self.scanner.begin(now.since_boot, parts)?;
        self.scanning = Some(Running { began: now, late, discovery });
        Ok(())
    }

    /// CPU time of this thread, without that of policies that had their turn in between.
    fn scan_cpu_time(&self) -> Duration {
        thread_cpu_time().unwrap_or_default().saturating_sub(self.deciding_cpu)
    }

    /// What each tracker is to scan. Finding the processes of a thousand jobs takes long on a busy machine.
    fn targets(&mut self) -> BTreeMap<ages::Kind, Vec<Target>> {
        let mut by_tracker: BTreeMap<ages::Kind, Vec<Target>> = BTreeMap::new();
        let paths: Vec<String> = self.jobs.keys().cloned().collect();
        for path in paths {
            if let Some(entry) = self.jobs.get(&path) {
                let target = target(&entry.job, &self.context);
                by_tracker.entry(entry.job.tracker.0).or_default().push(target);
            }
            self.give_turn();
        }
        by_tracker
    }

    /// Takes in the scan that is under way, if it ends within `wait`. Returns whether it did.
    ///
    /// # Errors
    /// As [`super::scanner::Scanner::results`].
    pub(super) fn finish_scan(&mut self, wait: Duration) -> Result<bool, Error> {
        let Some(Running { began, late, discovery }) = self.scanning else { return Ok(false) };
        let Some(parts) = self.scanner.results(wait)? else { return Ok(false) };
        self.scanning = None;
        self.scanned_at = began.since_boot;
        let before = thread_cpu_time().unwrap_or_default();
        let mut cpu = discovery;
        for part in parts {
            cpu += part.cpu;
            self.costs.ages_cpu_seconds += part.cpu.as_secs_f64();
            self.take_part(part);
        }
        cpu += thread_cpu_time().unwrap_or_default().saturating_sub(before);
        let took = self.context.clock.now().saturating_sub(began.since_boot);
        self.costs.scans += 1;
        // A scan that takes longer than its period makes the next one start late.
        self.costs.late_scans += u64::from(late || took > self.context.config.agent.scan_period);
        self.costs.scan_seconds = took.as_secs_f64();
        self.costs.scan_cpu_seconds += cpu.as_secs_f64();
        Ok(true)
    }

    /// Takes in what one tracker measured.
    fn take_part(&mut self, Part { tracker, targets, scans, cpu }: Part) {
        let kind = tracker.kind();
        self.context.trackers.give_back(tracker);
        let ram_disks = *self.context.tiers.ram_disks();
        match scans {
            Ok(scans) => {
                for (target, scan) in targets.iter().zip(scans) {
                    // A cgroup that was recreated meanwhile, or is given another tracker, is scanned next time.
                    let same = |job: &Job| job.cgroup.id() == target.id && job.tracker.0 == kind;
                    let known = self.jobs.get_mut(&target.path).filter(|entry| same(&entry.job));
                    let Some(entry) = known else { continue };
                    if let Err(error) = scan.and_then(|scan| take_scan(&mut entry.job, scan, &mut self.costs, &ram_disks))
                        && !error.is_gone()
                    {
                        self.context.report_error(&mut entry.job, &error);
                    }
                }
            }
            Err(error) => self.context.event(None, format!("tracker {}: {error}", kind.as_str())),
        }
        self.judge_cost(kind, cpu);
    }

    /// Writes the processes that kdamonds are going to watch, and those that they watch now, to the undo list: those of all trackers,
    /// before any of them scans.
    fn note_kdamond_targets(&mut self, by_tracker: &BTreeMap<ages::Kind, Vec<Target>>) -> Result<(), String> {
        let watching = by_tracker.iter().filter(|(kind, _)| by_kdamond(**kind));
        let mut pids: Vec<i32> = watching.flat_map(|(_, targets)| targets.iter().flat_map(|target| &target.pids)).copied().collect();
        let watched = self.context.trackers.iter_mut().flat_map(|tracker| tracker.kdamond_targets());
        pids.extend(watched);
        if pids.is_empty() {
            return Ok(());
        }
        // The sample's unused slots have this process.
        pids.push(std::process::id().cast_signed());
        pids.sort_unstable();
        pids.dedup();
        self.context.undo.set_kdamond_targets(&pids).map_err(|error| format!("undo list: {error}"))
    }

    /// Judges what a scan with `kind` cost. If it is too expensive, it samples fewer pages; without a sample, or if that is small already,
    /// jobs for which `auto` chose it use the next best tracker. One that the operator chose stays, and the CPU budget limits offloading
    /// instead.
    pub(super) fn judge_cost(&mut self, kind: ages::Kind, cpu: Duration) {
        let (period, budget) = (self.context.config.agent.scan_period, self.context.config.agent.cpu_budget);
        if !self.context.trackers.is_too_expensive(kind, cpu, period, budget) {
            return;
        }
        if let Some(pages) = self.context.trackers.get_mut(kind).and_then(|tracker| tracker.sample_fewer()) {
            let (cost, kind) = (cpu.as_secs_f64(), kind.as_str());
            let what = format!("{kind} took {cost:.2} s of CPU per scan, over agent.cpu_budget; it samples {pages} pages at most now");
            return self.context.event(None, what);
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

    /// After a scan: the controllers plan with the new ages. A job whose scan failed gets no plan.
    pub(super) fn plan(&mut self) {
        let current = |job: &Job| job.scan.as_ref().is_some_and(|scan| scan.taken_at >= self.scanned_at);
        for Entry { job, slots } in self.jobs.values_mut().filter(|entry| current(&entry.job)) {
            slots.iter_mut().for_each(|slot| slot.plan(job));
        }
    }
}

/// Whether kernel threads watch processes for a tracker.
fn by_kdamond(kind: ages::Kind) -> bool {
    matches!(kind, ages::Kind::Damon | ages::Kind::Sampled)
}

/// Without current ages no plan is carried out.
fn abandon(entry: &mut Entry) {
    entry.slots.iter_mut().for_each(|slot| slot.forget_ages());
}

fn target(job: &Job, context: &Context) -> Target {
    let (id, threshold) = (job.cgroup.id(), job.signals.threshold);
    // Other trackers need none, and a thousand jobs have tens of thousands.
    let pids = if by_kdamond(job.tracker.0) { job.processes() } else { Vec::new() };
    let (path, cgroups) = (job.path().to_owned(), job.members.clone());
    let (may_split, may_split_busy) = (context.may_split(job), context.may_split_busy(job));
    Target { id, path, cgroups, pids, threshold, may_split, may_split_busy }
}

fn take_scan(job: &mut Job, scan: Scan, costs: &mut Costs, ram_disks: &RamDisks) -> kernel::Result<()> {
    let pages = scan.resident.total() + scan.file.total();
    costs.scanned_bytes += pages.to_bytes(kernel::page_size());
    costs.ages_splits += scan.split;
    job.take_scan(scan, ram_disks)
}
