//! Records the jobs' control periods as entries of a trace, which a fleet's evaluation reads. The journal holds every period of one
//! machine; the trace holds sums of periods of all machines.

use std::collections::BTreeMap;
use std::time::Duration;

use config::Config;
use kernel::Roots;
use policy::cold_age::Decision;
use policy::thresholds::Thresholds;
use trace::{Basis, CloseReport, Entry, Figures, JobId, Labels, Sink, Spool, calendar};
use units::{Age, Bytes, Millis, Pages, UnixMillis};

use crate::controllers::slots::Jobs;
use crate::job::Job;
use crate::journal::{PeriodRecord, Record};

/// Entries kept while the spool cannot be written.
const UNWRITTEN_MAX: usize = 10_000;

/// Sums periods into entries and writes them to the spool.
#[derive(Debug)]
pub struct Recorder {
    cluster: String,
    machine: String,
    boot_id: String,
    /// When this agent started: distinguishes its entries from those of earlier agents.
    start_unix_ms: UnixMillis,
    entry_ms: Millis,
    file_ms: Millis,
    spool: Spool,
    sink: Sink,
    jobs: BTreeMap<String, Recorded>,
    /// Finished entries that are not in the spool yet.
    unwritten: Vec<Entry>,
    /// The file that the entries in the spool's log belong to.
    log_of: Option<FileTime>,
    /// Last reported error of the spool; a repeated error is reported once.
    error: Option<String>,
    /// Last reported error of the store; `None` while it accepts files.
    store_error: Option<String>,
}

/// The machine's name in traces and rollouts: the configured one, or the host name.
#[must_use]
pub fn machine_name(roots: &Roots, config: &Config) -> String {
    if !config.trace.machine.is_empty() {
        return config.trace.machine.clone();
    }
    kernel::file::read(&roots.proc.join("sys/kernel/hostname"), kernel::file::SMALL).unwrap_or_default().trim().to_owned()
}

/// The file that a time belongs to, by day and file period: a file ends with its period, and with the day.
type FileTime = (u64, u64);

/// The state of a job between its periods.
#[derive(Debug)]
struct Recorded {
    id: JobId,
    cgroup_id: u64,
    /// When the last scan ended of which the promotions are counted.
    scanned_at: Option<Duration>,
    /// Stall for memory and I/O, ever, in microseconds.
    stalled_us: Option<[u64; 2]>,
    /// Processes killed by the out-of-memory killer, ever.
    oom_killed: Option<u64>,
    /// Microseconds that the job lost, of its own work, and of the agent's CPU time for it, since the agent first observed it.
    costs_us: Option<[u64; 3]>,
    /// When its latest entry begins.
    begun_unix_ms: UnixMillis,
    entry: Option<Partial>,
}

/// An unfinished entry. Its levels are sums that are divided by the number of periods at the end.
#[derive(Debug)]
struct Partial {
    labels: Labels,
    figures: Figures,
    cold: Vec<u64>,
    promotions: Vec<u64>,
}

impl Recorder {
    /// Starts to record if `[trace]` names a store, and closes the file that an earlier agent left. Returns what to report.
    ///
    /// # Errors
    /// If the spool cannot be used.
    pub fn start(
        roots: &Roots,
        config: &Config,
        thresholds: &Thresholds,
        boot_id: &str,
        unix_ms: UnixMillis,
    ) -> trace::Result<Option<(Self, Vec<String>)>> {
        let settings = &config.trace;
        if settings.store.is_empty() {
            return Ok(None);
        }
        let machine = machine_name(roots, config);
        let basis = Basis {
            thresholds: *thresholds,
            scan_period_ms: config.agent.scan_period.into(),
            page_bytes: Bytes(kernel::page_size().bytes()),
        };
        let (spool, left_behind) = Spool::open(&config.agent.state_dir.join("trace"), basis, settings.spool_size)?;
        let sink = Sink::start(&spool.ready(), &settings.store, config.agent.network.as_deref())?;
        let recorder = Self {
            cluster: settings.cluster.clone(),
            machine,
            boot_id: boot_id.to_owned(),
            start_unix_ms: unix_ms,
            entry_ms: Millis::from(settings.entry_period).max(Millis(1)),
            file_ms: Millis::from(settings.file_period).max(Millis(1)),
            spool,
            sink,
            jobs: BTreeMap::new(),
            unwritten: Vec::new(),
            log_of: None,
            error: None,
            store_error: None,
        };
        Ok(Some((recorder, dropped(&left_behind).into_iter().collect())))
    }

    /// Adds the periods among `records` of a control period that ends at `unix_ms`, with a bundle of this version in effect. Entries
    /// of jobs that are not among `jobs` are finished. Returns what to report.
    pub fn take(&mut self, records: &[Record], jobs: &Jobs, bundle: u64, unix_ms: UnixMillis) -> Vec<String> {
        for record in records {
            if let Record::Period(period) = record
                && let Some(entry) = jobs.get(&period.job)
            {
                self.add(period, &entry.job, bundle);
            }
        }
        let gone: Vec<_> =
            self.jobs.iter().filter(|(path, known)| jobs.get(*path).is_none_or(|entry| entry.job.cgroup.id() != known.cgroup_id)).collect();
        let gone: Vec<_> = gone.into_iter().map(|(path, _)| path.clone()).collect();
        for path in gone {
            let known = self.jobs.remove(&path);
            self.unwritten.extend(known.and_then(Recorded::finish));
        }
        let mut reports = self.write(unix_ms);
        reports.extend(self.report_store());
        reports
    }

    /// A report when an error of the store starts, changes or ends.
    fn report_store(&mut self) -> Option<String> {
        let now = self.sink.status().error;
        if now == self.store_error {
            return None;
        }
        let ready = self.spool.ready();
        let report = now.as_ref().map_or_else(
            || "trace: the store accepts files again".to_owned(),
            |now| format!("trace: {now}; files wait in {}", ready.display()),
        );
        self.store_error = now;
        Some(report)
    }

    /// Finishes all entries, and sends them to the store or leaves them to the next start. Returns what to report.
    pub fn stop(mut self, unix_ms: UnixMillis) -> Vec<String> {
        self.unwritten.extend(std::mem::take(&mut self.jobs).into_values().filter_map(Recorded::finish));
        let mut reports = self.write(unix_ms);
        let closed = self.spool.close();
        self.report(closed, &mut reports);
        self.sink.wake();
        self.sink.stop();
        reports
    }

    fn add(&mut self, period: &PeriodRecord, job: &Job, bundle: u64) {
        let Self { cluster, machine, boot_id, start_unix_ms, .. } = self;
        if self.jobs.get(&period.job).is_some_and(|known| known.cgroup_id != period.id) {
            let before = self.jobs.remove(&period.job);
            self.unwritten.extend(before.and_then(Recorded::finish));
        }
        let known = self.jobs.entry(period.job.clone()).or_insert_with(|| Recorded {
            id: JobId::new(cluster, machine, &period.job, boot_id, period.id),
            cgroup_id: period.id,
            scanned_at: None,
            stalled_us: None,
            oom_killed: None,
            costs_us: None,
            begun_unix_ms: UnixMillis::EPOCH,
            entry: None,
        });
        // Entries of all jobs and machines end at the same minutes of the clock, so that they can be compared. A period belongs to
        // the minutes in which it begins.
        let minutes = |start_unix_ms: UnixMillis| start_unix_ms.0 / self.entry_ms.0;
        // An entry has one bundle. If the clock is set back, entries keep their order, because readers sort by their start.
        let begins = begin(period).max(known.begun_unix_ms + Millis(1));
        let due = known.entry.as_ref().is_some_and(|entry| {
            let sum = &entry.figures;
            minutes(sum.start_unix_ms) != minutes(begins)
                || sum.bundle_version != bundle
                || sum.duration_ms >= self.entry_ms + self.entry_ms
        });
        if due {
            self.unwritten.extend(known.finish_entry());
        }
        known.add(period, job, begins, bundle, *start_unix_ms);
    }

    /// Writes finished entries to the spool, in the files that they belong to. Returns what to report.
    fn write(&mut self, unix_ms: UnixMillis) -> Vec<String> {
        let mut reports = Vec::new();
        let mut entries = std::mem::take(&mut self.unwritten);
        entries.sort_by_key(|entry| entry.figures.start_unix_ms);
        let mut rest = entries.as_slice();
        while let Some(first) = rest.first() {
            let time = self.file_time(first.figures.start_unix_ms);
            let (same, later) = rest.split_at(rest.partition_point(|entry| self.file_time(entry.figures.start_unix_ms) <= time));
            self.close_unless(time, &mut reports);
            let appended = self.spool.append(same);
            let failed = appended.is_err();
            self.report(appended.map(|()| CloseReport::default()), &mut reports);
            if failed {
                let lost = rest.len().saturating_sub(UNWRITTEN_MAX);
                self.unwritten = rest[lost..].to_vec();
                if lost > 0 {
                    reports.push(format!("trace: {lost} entries are lost: the spool could not be written for too long"));
                }
                return reports;
            }
            self.log_of = Some(time);
            rest = later;
        }
        // An unfinished entry may still belong to the file.
        let mut starts = self.jobs.values().filter_map(|job| job.entry.as_ref()).map(|entry| entry.figures.start_unix_ms);
        if !starts.any(|start| Some(self.file_time(start)) == self.log_of) {
            self.close_unless(self.file_time(unix_ms), &mut reports);
        }
        reports
    }

    /// Closes the log's file unless it is that of this time.
    fn close_unless(&mut self, time: FileTime, reports: &mut Vec<String>) {
        if self.log_of.is_some_and(|log_of| log_of != time) {
            let closed = self.spool.close();
            self.log_of = if closed.is_ok() { None } else { self.log_of };
            self.report(closed, reports);
            self.sink.wake();
        }
    }

    fn file_time(&self, UnixMillis(unix_ms): UnixMillis) -> FileTime {
        (unix_ms / calendar::DAY_MS, unix_ms / self.file_ms.0)
    }

    /// Reports an error once while it stays the same.
    fn report(&mut self, outcome: trace::Result<CloseReport>, reports: &mut Vec<String>) {
        match outcome {
            Ok(closed) => {
                reports.extend(dropped(&closed));
                self.error = None;
            }
            Err(error) => {
                let what = format!("trace: {error}");
                if self.error.as_ref() != Some(&what) {
                    reports.push(what.clone());
                }
                self.error = Some(what);
            }
        }
    }
}

fn dropped(closed: &CloseReport) -> Option<String> {
    let (files, bytes) = (closed.dropped_files, closed.dropped_bytes);
    (files > 0)
        .then(|| format!("trace: {files} files of {bytes} are lost: the store was unavailable for too long; increase trace.spool_size"))
}

impl Recorded {
    fn add(&mut self, period: &PeriodRecord, job: &Job, begins_unix_ms: UnixMillis, bundle: u64, agent_start_unix_ms: UnixMillis) {
        let PeriodRecord { input, step, outcome, memory, .. } = period;
        let page = kernel::page_size();
        let scanned_at = job.scan.as_ref().map(|scan| scan.taken_at);
        // A decision between two scans uses the promotions of the first scan again.
        let fresh = input.window_ms > Millis(0) && scanned_at != self.scanned_at;
        self.scanned_at = scanned_at;
        let stalled_us = self.stalled_since(job);
        let oom_kills = self.oom_killed_since(job);
        let costs_us = self.costs_since(job);
        let zswapped = job.cgroup.stat().ok().and_then(|stat| stat.zswapped).unwrap_or_default();
        let compressed = (zswapped + memory.zram_stored).min(memory.far);
        let held = matches!(step.decision, Decision::Hold { .. });
        let far_on = memory.far > Bytes::ZERO || outcome.promoted > Pages::ZERO;

        let entry = self.entry.get_or_insert_with(|| {
            self.begun_unix_ms = begins_unix_ms;
            Partial::begin(period, begins_unix_ms, bundle)
        });
        entry.labels = Labels {
            class: job.treatment.class.to_string(),
            policy: job.treatment.policy.to_string(),
            tracker: job.tracker.0.as_str().to_owned(),
            decision: decision(&step.decision),
        };
        let sum = &mut entry.figures;
        sum.periods += 1;
        sum.duration_ms += outcome.elapsed_ms;
        sum.job_age_ms = input.job_age_ms;
        sum.working_set_bytes += step.working_set.to_bytes(page);
        sum.memory_bytes += memory.current;
        sum.zswap_stored_bytes += compressed;
        sum.zswap_pool_bytes += memory.compressed_dram();
        sum.swap_bytes += memory.far - compressed;
        sum.slow_node_bytes += memory.slow;
        sum.file_out_bytes += memory.file;
        sum.sampled_compressed_ppm = job.tiering.compressed().unwrap_or_default();
        sum.asked_pages += outcome.asked;
        sum.offloaded_pages += outcome.offloaded;
        sum.promoted_pages += outcome.promoted;
        sum.memory_stall_us += stalled_us[0];
        sum.io_stall_us += stalled_us[1];
        sum.oom_kills += oom_kills;
        sum.lost_us += costs_us[0];
        sum.own_work_us += costs_us[1];
        sum.offload_cpu_us += costs_us[2];
        sum.agent_start_unix_ms = agent_start_unix_ms;
        sum.threshold_scans = u64::from(step.threshold.unwrap_or(Age(0)).0);
        sum.held_periods += u64::from(held);
        sum.far_periods += u64::from(far_on);
        entry.add_origin(job);
        let sum = &mut entry.figures;
        add(&mut entry.cold, input.cold.buckets());
        if fresh {
            sum.window_ms += input.window_ms;
            add(&mut entry.promotions, input.promotions.buckets());
        }
    }

    /// Microseconds of stall for memory and I/O since the last call; zero if the kernel has no PSI.
    fn stalled_since(&mut self, job: &Job) -> [u64; 2] {
        let Ok(memory) = job.cgroup.pressure() else { return [0; 2] };
        let now = [memory.some.total_us, job.cgroup.io_pressure().map_or(0, |io| io.some.total_us)];
        let before = self.stalled_us.replace(now).unwrap_or(now);
        [0, 1].map(|at| now[at].saturating_sub(before[at]))
    }

    /// Processes killed by the out-of-memory killer since the last call; zero if the kernel does not count them.
    fn oom_killed_since(&mut self, job: &Job) -> u64 {
        let Ok(events) = job.cgroup.events() else { return 0 };
        let before = self.oom_killed.replace(events.oom_kill).unwrap_or(events.oom_kill);
        events.oom_kill.saturating_sub(before)
    }

    /// Microseconds that the job lost, of its own work, and of the agent's CPU time for it, since the last call.
    fn costs_since(&mut self, job: &Job) -> [u64; 3] {
        let measured = job.waits.measured();
        let offload = Duration::try_from_secs_f64(job.waits.view().offload_cpu_seconds).unwrap_or_default();
        let now = [measured.lost, measured.own_work, offload].map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let before = self.costs_us.replace(now).unwrap_or(now);
        [0, 1, 2].map(|at| now[at].saturating_sub(before[at]))
    }

    fn finish(mut self) -> Option<Entry> {
        self.finish_entry()
    }

    fn finish_entry(&mut self) -> Option<Entry> {
        let Partial { labels, mut figures, cold, promotions } = self.entry.take()?;
        let periods = figures.periods.max(1);
        for level in [
            &mut figures.working_set_bytes,
            &mut figures.memory_bytes,
            &mut figures.zswap_stored_bytes,
            &mut figures.zswap_pool_bytes,
            &mut figures.swap_bytes,
            &mut figures.slow_node_bytes,
            &mut figures.file_out_bytes,
        ] {
            level.0 /= periods;
        }
        figures.sampled_pages.0 /= periods;
        let cold_pages = cold.into_iter().map(|pages| pages / periods).collect();
        Some(Entry { id: self.id.clone(), labels, figures, cold_pages, promotions_pages: promotions })
    }
}

impl Partial {
    fn begin(period: &PeriodRecord, start_unix_ms: UnixMillis, bundle_version: u64) -> Self {
        let buckets = period.input.cold.buckets().len();
        let figures = Figures { start_unix_ms, bundle_version, ..Figures::default() };
        Self { labels: Labels::default(), figures, cold: vec![0; buckets], promotions: vec![0; buckets] }
    }

    /// Records how the ages of the job's last scan were obtained.
    fn add_origin(&mut self, job: &Job) {
        let Some(scan) = &job.scan else { return };
        // At least 1: every tracker distinguishes accessed pages from others, and 0 means unknown.
        let resolved = u64::from(scan.resolved_to.0).max(1);
        let sum = &mut self.figures;
        sum.resolved_to_scans = if sum.resolved_to_scans == 0 { resolved } else { sum.resolved_to_scans.min(resolved) };
        sum.sampled_pages += scan.sample.as_ref().map_or(Pages::ZERO, |sample| sample.points);
    }
}

/// When a period began.
fn begin(period: &PeriodRecord) -> UnixMillis {
    period.unix_ms - period.outcome.elapsed_ms
}

fn add(sums: &mut [u64], counters: &[u64]) {
    for (sum, &counter) in sums.iter_mut().zip(counters) {
        *sum = sum.saturating_add(counter);
    }
}

/// A decision in one word: `offload`, or the reason to hold by its name in the journal.
fn decision(decision: &Decision) -> String {
    let Decision::Hold { reason } = decision else { return "offload".to_owned() };
    match serde_json::to_value(reason) {
        Ok(serde_json::Value::String(word)) => word,
        // A veto has a name of its own.
        Ok(serde_json::Value::Object(veto)) => veto.values().find_map(|word| word.as_str()).unwrap_or("vetoed").to_owned(),
        _ => "hold".to_owned(),
    }
}
