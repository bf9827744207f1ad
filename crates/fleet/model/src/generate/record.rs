//! Writes a generated fleet as trace files, as its agents would have written them.

use std::path::{Path, PathBuf};

use trace::{Basis, Entry, Figures, FileSummary, JobId, Labels};
use units::{Age, Bytes, Millis};

use super::{ENTRY, Fleet, START};
use crate::fleet::Label;
use crate::series::{Series, buckets};

/// Size of a page.
pub const PAGE: Bytes = Bytes::kib(4);
/// Time between scans (SDFM section 5.1).
pub const SCAN_PERIOD: Millis = Millis::seconds(120);

impl Fleet {
    /// Returns the basis of the histograms.
    #[must_use]
    pub fn basis(&self) -> Basis {
        Basis { thresholds: *self.thresholds(), scan_period_ms: SCAN_PERIOD, page_bytes: PAGE }
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
    let partitions = format!("cluster={}/date={}/machine={}", id.cluster, trace::calendar::date(START), id.machine);
    directory.join(partitions).join("generated.parquet")
}

fn entries(id: &JobId, label: &Label, series: &Series) -> impl Iterator<Item = Entry> {
    // A sample of the cold pages includes incompressible ones, which keep their size.
    let (compressible, compressed) = (series.compressibility.compressible.as_f64(), series.compressibility.compressed.as_f64());
    let sampled_compressed_ppm = super::ppm(compressible * compressed + 1.0 - compressible);
    let start = series.start_unix_ms;
    series.rows().zip(0u64..).map(move |(row, index)| {
        let widen = |sums: &[u32]| buckets(sums).map(u64::from).collect::<Vec<_>>();
        let (cold_pages, promotions_pages) = (widen(row.cold), widen(row.promotions));
        let figures = Figures {
            start_unix_ms: start + ENTRY.saturating_mul(index),
            duration_ms: row.window_ms,
            periods: row.window_ms.0 / 60_000,
            held_periods: row.window_ms.0 / 60_000,
            job_age_ms: row.age_ms,
            window_ms: row.window_ms,
            working_set_bytes: PAGE.saturating_mul(cold_pages[0]),
            memory_bytes: PAGE.saturating_mul(cold_pages.iter().sum()),
            sampled_compressed_ppm,
            resolved_to_scans: u64::from(Age::MAX.0),
            ..Figures::default()
        };
        // No memory was moved: these jobs are only observed.
        let words = [label.class.as_str(), "cold_age", "generated", "observe_only"].map(ToOwned::to_owned);
        let [class, policy, tracker, decision] = words;
        Entry { id: id.clone(), labels: Labels { class, policy, tracker, decision }, figures, cold_pages, promotions_pages }
    })
}
