//! Writes a generated fleet as trace files, as its agents would have written them.

use std::path::{Path, PathBuf};

use trace::{Basis, Entry, Figures, FileSummary, JobId, Labels};

use super::{ENTRY_MS, Fleet, START_UNIX_MS};
use crate::fleet::Label;
use crate::series::{Series, buckets};

/// Bytes per page.
pub const PAGE_BYTES: u64 = 4096;
/// Milliseconds between scans (SDFM section 5.1).
pub const SCAN_PERIOD_MS: u64 = 120_000;

impl Fleet {
    /// Returns the basis of the histograms.
    #[must_use]
    pub fn basis(&self) -> Basis {
        Basis { thresholds: *self.thresholds(), scan_period_ms: SCAN_PERIOD_MS, page_bytes: PAGE_BYTES }
    }

    /// Writes the jobs of the machine with this index into a file below `directory`; returns `None` if it has no jobs.
    ///
    /// # Errors
    /// Those of writing a trace.
    pub fn record(&self, machine: u64, directory: &Path) -> trace::Result<Option<FileSummary>> {
        let mut jobs: Vec<(JobId, Label, Series)> = Vec::new();
        let mut series = Series::new(self.thresholds());
        for slot in self.slots(machine) {
            self.slot(slot, &mut series, &mut |label, series| {
                let kind = &label.class;
                let id = JobId::new(&label.cluster, &label.machine, &format!("/{kind}-{slot}"), "generated", jobs.len() as u64);
                jobs.push((id, label.clone(), series.clone()));
            });
        }
        jobs.sort_by(|a, b| a.0.cmp(&b.0));
        let Some((first, ..)) = jobs.first() else { return Ok(None) };
        let mut writer = trace::Writer::create(&path(directory, first), self.basis())?;
        for (id, label, series) in &jobs {
            for entry in entries(id, label, series) {
                writer.push(&entry)?;
            }
        }
        writer.finish().map(Some)
    }
}

/// Returns the path that agents use for entries of a machine that begin on the first day.
fn path(directory: &Path, id: &JobId) -> PathBuf {
    let partitions =
        format!("cluster={}/date={}/machine={}", id.cluster, trace::calendar::date(units::UnixMillis(START_UNIX_MS)), id.machine);
    directory.join(partitions).join("generated.parquet")
}

fn entries(id: &JobId, label: &Label, series: &Series) -> impl Iterator<Item = Entry> {
    // A sample of the cold pages includes incompressible ones, which keep their size.
    let (compressible, compressed) = (series.compressibility.compressible.as_f64(), series.compressibility.compressed.as_f64());
    let sampled_compressed_ppm = super::whole((compressible * compressed + 1.0 - compressible) * 1e6);
    let start = series.start_unix_ms;
    series.rows().zip(0u64..).map(move |(row, index)| {
        let widen = |sums: &[u32]| buckets(sums).map(u64::from).collect::<Vec<_>>();
        let (cold_pages, promotions_pages) = (widen(row.cold), widen(row.promotions));
        let figures = Figures {
            start_unix_ms: start + index * u64::from(ENTRY_MS),
            duration_ms: u64::from(row.window_ms),
            periods: u64::from(row.window_ms / 60_000),
            held_periods: u64::from(row.window_ms / 60_000),
            job_age_ms: row.age_ms,
            window_ms: u64::from(row.window_ms),
            working_set_bytes: cold_pages[0] * PAGE_BYTES,
            memory_bytes: cold_pages.iter().sum::<u64>() * PAGE_BYTES,
            sampled_compressed_ppm,
            ..Figures::default()
        };
        // No memory was moved: these jobs are only observed.
        let words = [label.class.as_str(), "cold_age", "generated", "observe_only"].map(ToOwned::to_owned);
        let [class, policy, tracker, decision] = words;
        Entry { id: id.clone(), labels: Labels { class, policy, tracker, decision }, figures, cold_pages, promotions_pages }
    })
}
