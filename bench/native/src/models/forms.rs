//! The fleet model on every form of a trace on disk, from listing the files to the answer.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use model::generate::Fleet;
use model::grid::Grid;
use model::traces::Traces;
use serde::Serialize;
use trace::{Basis, EXTENSION, Entry, Merge, Spool};
use units::Bytes;

use super::replay;
use crate::measure::{self, Effort};

/// Milliseconds that a file of an agent covers, by default (`trace.file_period`).
const FILE_MS: u64 = 3_600_000;
/// Threads that compact.
const THREADS: NonZero<usize> = NonZero::<usize>::MIN.saturating_add(1);

/// Speed by form, and bytes per entry.
#[derive(Debug, Serialize)]
pub(super) struct Forms {
    /// A file of each machine and hour, written by the agent's spool.
    entries_per_second_per_core_hourly: f64,
    bytes_per_entry_hourly: u64,
    /// A file of each machine.
    entries_per_second_per_core_parquet: f64,
    bytes_per_entry_parquet: u64,
    /// A compacted file.
    entries_per_second_per_core_compacted: f64,
    bytes_per_entry_compacted: u64,
    /// Compacting the files of the machines on two threads, by the clock.
    compact_entries_per_second: f64,
    /// The same per second of CPU time.
    compact_entries_per_second_per_core: f64,
    /// Compacting the hourly files, per second of CPU time.
    compact_entries_per_second_per_core_hourly: f64,
}

/// Measures every form of the traces of a fleet.
///
/// # Errors
/// There is not enough space for the traces, or the kernel does not report CPU time.
pub(super) fn bench(effort: Effort, fleet: &Fleet, grid: &Grid) -> Result<Forms> {
    let few = Effort { runs: effort.runs.min(5) };
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name);
    eprintln!("writing traces");
    let (machines, hourly, compacted) = (at("machines"), at("hourly"), at("compacted"));
    for machine in 0..fleet.machines() {
        fleet.record(machine, &machines)?;
    }
    let machine_files = files(&machines)?;
    for (index, file) in machine_files.iter().enumerate() {
        write_hourly(file, &hourly.join(index.to_string()), fleet.basis())?;
    }
    let hourly_files = files(&hourly)?;
    let rate = |form: &Path| {
        eprintln!("measuring the model on {}", form.display());
        measure::median_rate(few, &mut || Traces::open(&[form.to_owned()]).map_or(0, |traces| replay(&traces, grid, fleet.thresholds())))
    };
    let compacted_file = compacted.join("all.parquet");
    let mut by_clock = Vec::new();
    let compact_rate = |files: &[Vec<PathBuf>], by_clock: &mut Vec<f64>| {
        eprintln!("measuring compaction of {} machines, {} files", files.len(), files.iter().map(Vec::len).sum::<usize>());
        measure::median_rate(few, &mut || {
            let begin = Instant::now();
            let entries = compact(files, &compacted_file).unwrap_or_default();
            #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
            by_clock.push(entries as f64 / begin.elapsed().as_secs_f64());
            entries
        })
    };
    let by_machine: Vec<_> = (0..machine_files.len()).map(|index| files(&hourly.join(index.to_string()))).collect::<Result<_>>()?;
    let compact_hourly = compact_rate(&by_machine, &mut Vec::new())?;
    let by_machine: Vec<_> = machine_files.iter().map(|file| vec![file.clone()]).collect();
    let compact_per_core = compact_rate(&by_machine, &mut by_clock)?;
    by_clock.sort_by(f64::total_cmp);
    let entries = Traces::open(std::slice::from_ref(&compacted))?.entries();
    let bytes = |files: &[PathBuf]| -> Result<u64> {
        let sizes = files.iter().map(|file| Ok(file.metadata()?.len())).collect::<Result<Vec<_>>>()?;
        Ok(sizes.iter().sum::<u64>() / entries.max(1))
    };
    Ok(Forms {
        entries_per_second_per_core_hourly: rate(&hourly)?,
        bytes_per_entry_hourly: bytes(&hourly_files)?,
        entries_per_second_per_core_parquet: rate(&machines)?,
        bytes_per_entry_parquet: bytes(&machine_files)?,
        entries_per_second_per_core_compacted: rate(&compacted)?,
        bytes_per_entry_compacted: bytes(std::slice::from_ref(&compacted_file))?,
        compact_entries_per_second: by_clock.get(by_clock.len() / 2).copied().unwrap_or_default(),
        compact_entries_per_second_per_core: compact_per_core,
        compact_entries_per_second_per_core_hourly: compact_hourly,
    })
}

/// Returns every trace file below a directory.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let objects = store::Store::open(&directory.to_string_lossy())?.list(EXTENSION)?;
    Ok(objects.into_iter().map(|object| directory.join(object.path)).collect())
}

/// Writes the entries of a machine as its agent does: an hour through the spool becomes a file.
fn write_hourly(file: &Path, into: &Path, basis: Basis) -> Result<()> {
    let mut hours: BTreeMap<u64, Vec<Entry>> = BTreeMap::new();
    for entry in Merge::of([file.to_owned()])? {
        let entry = entry?;
        hours.entry(entry.figures.start_unix_ms.0 / FILE_MS).or_default().push(entry);
    }
    let (mut spool, _) = Spool::open(into, basis, Bytes(u64::MAX))?;
    for entries in hours.values() {
        spool.append(entries)?;
        spool.close()?;
    }
    Ok(())
}

/// Compacts files into one, on two threads. Returns the number of entries.
fn compact(machines: &[Vec<PathBuf>], out: &Path) -> Result<u64> {
    Ok(trace::compact::compact(machines, out, THREADS, &mut |_| {})?.file.entries)
}
