//! One machine's journals: the figures of `thermocline report`, in pieces of bounded size.

use std::path::{Path, PathBuf};

use advise::report::{JobReport, Report, ReportError};
use serde::Serialize;
use serde_json::{Value, json};

/// The most jobs that are listed: those that save most.
const JOBS_MAX: usize = 5_000;

/// A machine's report, and its verdict.
#[derive(Debug)]
pub(crate) struct Machine(Report);

/// A job without its points.
#[derive(Debug, Serialize)]
struct JobRow<'a> {
    job: &'a str,
    class: &'a str,
    policy: &'a str,
    /// At the end.
    memory_bytes: u64,
    far_bytes: u64,
    saved_mean_bytes: u64,
    periods: u64,
    periods_over: u64,
    periods_over_allowed: u64,
    breaks_objective: bool,
}

impl<'a> JobRow<'a> {
    fn new(job: &'a JobReport) -> Self {
        let last = job.points.last();
        Self {
            job: &job.job,
            class: &job.class,
            policy: &job.policy,
            memory_bytes: last.map_or(0, |point| point.memory_bytes.0),
            far_bytes: last.map_or(0, |point| point.far_bytes.0),
            saved_mean_bytes: job.saved_mean_bytes.0,
            periods: job.periods,
            periods_over: job.periods_over,
            periods_over_allowed: job.periods_over_allowed(),
            breaks_objective: job.breaks_objective(),
        }
    }
}

impl Machine {
    /// Reads journal files, or those of a state directory if none is named.
    pub(crate) fn read(journals: &[PathBuf], state_dir: &Path) -> Result<Self, ReportError> {
        if journals.is_empty() { Report::of_directory(state_dir) } else { Report::of_files(journals) }.map(Self)
    }

    /// Everything except the jobs' points.
    pub(crate) fn summary(&self, price_per_gib: Option<f64>) -> Value {
        let report = &self.0;
        let jobs: Vec<_> = report.jobs.iter().take(JOBS_MAX).map(JobRow::new).collect();
        #[expect(clippy::cast_precision_loss, reason = "shown to people")]
        let worth = |saved: i64, price: f64| saved as f64 / f64::from(1 << 30) * price;
        json!({
            "kernel": report.kernel,
            "begins_unix_ms": report.begins_unix_ms,
            "ends_unix_ms": report.ends_unix_ms,
            "dram_bytes": report.dram_bytes,
            "saved_mean_bytes": report.saved_mean_bytes,
            "saved_worth": report.saved_mean_bytes.zip(price_per_gib).map(|(saved, price)| worth(saved, price)),
            "verdict": report.verdict(),
            "broken": report.jobs.iter().any(JobReport::breaks_objective),
            "saved": report.saved,
            "jobs_left_out": report.jobs.len() - jobs.len(),
            "jobs": jobs,
            "events": report.events,
            "events_left_out": report.events_left_out,
        })
    }

    /// A job's points, by its index in the summary.
    pub(crate) fn job(&self, index: usize) -> Option<Value> {
        self.0.jobs.get(index).filter(|_| index < JOBS_MAX).map(|job| json!({ "job": job.job, "points": job.points }))
    }
}
