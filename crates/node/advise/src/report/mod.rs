//! What an agent saved and what its jobs felt, from its journal: figures and one page that needs no network.
//!
//! `collect` adds up the records, `page` writes them as HTML, `chart` draws.

use std::path::{Path, PathBuf};

use agent::journal::{ReadError, lines};
use serde::Serialize;
use units::{Bytes, UnixMillis};

mod chart;
mod collect;
mod page;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The agent has never run with this state directory.
    #[error("there is no journal in {0}; run `thermocline agent` first, or name journal files")]
    NoJournal(PathBuf),
    /// The journals have no control period of a job.
    #[error("the journal has no control period of a job yet; the agent writes one each agent.control_period")]
    Empty,
    /// A journal cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A machine's journal in figures.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The kernel's release.
    pub kernel: String,
    /// The first and the last control period, in milliseconds since the epoch.
    pub begins_unix_ms: UnixMillis,
    /// See `begins_unix_ms`.
    pub ends_unix_ms: UnixMillis,
    /// DRAM of the machine; `None` in journals before version 5.
    pub dram_bytes: Option<Bytes>,
    /// Mean of what the machine gained, minus what that, the agent and its kdamonds occupy; `None` in journals before version 5.
    pub saved_mean_bytes: Option<i64>,
    /// The same over time.
    pub saved: Vec<Sample>,
    /// The jobs, those with the largest savings first.
    pub jobs: Vec<JobReport>,
    /// The last events, oldest first.
    pub events: Vec<Event>,
    /// Events before these.
    pub events_left_out: usize,
}

/// A figure at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// Bytes.
    pub bytes: i64,
}

/// One job.
#[derive(Clone, Debug, Default, Serialize)]
pub struct JobReport {
    /// Its cgroup.
    pub job: String,
    /// Its class, and the policy that decided for it.
    pub class: String,
    /// See `class`.
    pub policy: String,
    /// Control periods with far memory and a known promotion rate, of the policies that have this objective: `cold_age` and `auto`.
    pub periods: u64,
    /// Of these, periods over the objective.
    pub periods_over: u64,
    /// The share of periods that may be over it: 1 - K.
    pub over_allowed_ratio: f64,
    /// Mean of what the machine gained from it.
    pub saved_mean_bytes: Bytes,
    /// Where its memory was over time.
    pub points: Vec<Point>,
}

impl JobReport {
    /// The share of periods over the objective; `None` without a period.
    #[must_use]
    pub fn over_ratio(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "shown to people")]
        (self.periods > 0).then(|| self.periods_over as f64 / self.periods as f64)
    }

    /// How many of its periods may be over the objective; rounded up, so that one of a few is no breach.
    #[must_use]
    pub fn periods_over_allowed(&self) -> u64 {
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a count")]
        let allowed = (self.periods as f64 * self.over_allowed_ratio).ceil() as u64;
        allowed
    }

    /// Whether more periods were over the objective than may be.
    #[must_use]
    pub fn breaks_objective(&self) -> bool {
        self.periods_over > self.periods_over_allowed()
    }
}

/// One or several control periods of a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// Memory charged to the job.
    pub memory_bytes: Bytes,
    /// In far memory, uncompressed.
    pub far_bytes: Bytes,
    /// Promotion rate as a share of the objective, the highest of these periods; `None` if it is not known.
    pub of_objective_ratio: Option<f64>,
}

/// Something that is not a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Milliseconds since the epoch.
    pub unix_ms: UnixMillis,
    /// The job concerned; `None`: the machine.
    pub job: Option<String>,
    /// What happened.
    pub what: String,
}

impl Report {
    /// Reads the journals of a state directory.
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn of_directory(directory: &Path) -> Result<Self, ReportError> {
        let files = lines::of_directory(directory)?;
        if files.is_empty() {
            return Err(ReportError::NoJournal(directory.to_owned()));
        }
        collect::collect(files.into_iter().flatten())
    }

    /// Reads journal files of one machine, in any order.
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn of_files(paths: &[PathBuf]) -> Result<Self, ReportError> {
        collect::collect(lines::of_files(paths)?.into_iter().flatten())
    }

    /// The verdict: what was saved, and whether the objectives were kept.
    #[must_use]
    pub fn verdict(&self) -> Vec<String> {
        let mut lines = Vec::new();
        lines.push(match (self.saved_mean_bytes, self.dram_bytes) {
            (Some(saved), Some(dram)) if saved > 0 => {
                let saved = Bytes(saved.unsigned_abs());
                format!("Saved {saved} of DRAM on average, of {dram}: net of compressed copies and of the agent.")
            }
            (Some(_), _) => "Saved nothing: the agent cost more memory than it saved.".to_owned(),
            (None, _) => format!("Saved {} in the jobs; this journal does not know the machine's costs.", self.saved_in_jobs()),
        });
        let judged: Vec<_> = self.jobs.iter().filter(|job| job.periods > 0).collect();
        let broken: Vec<_> = judged.iter().filter(|job| job.breaks_objective()).collect();
        lines.push(match (judged.len(), broken.len()) {
            (0, _) => "No job of policy cold_age or auto had far memory: no promotion objective was at stake.".to_owned(),
            (all, 0) => format!("The promotion objective was kept in {all} of {all} jobs with far memory."),
            (all, broken) => format!("The promotion objective was BROKEN in {broken} of {all} jobs with far memory."),
        });
        for job in broken {
            let (over, allowed) = (job.periods_over, job.periods_over_allowed());
            lines.push(format!("{}: {over} of {} periods over the objective, {allowed} allowed.", job.job, job.periods));
        }
        lines
    }

    fn saved_in_jobs(&self) -> Bytes {
        Bytes(self.jobs.iter().map(|job| job.saved_mean_bytes.0).sum())
    }

    /// The page: HTML without scripts that loads nothing.
    #[must_use]
    pub fn page(&self) -> String {
        page::page(self)
    }
}

#[cfg(test)]
mod tests;
