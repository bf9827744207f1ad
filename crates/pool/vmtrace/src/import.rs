//! Import of public traces. Each format is read row by row; invalid rows are counted and reported.
//!
//! Formats are recognized by the first bytes of a file. Rows go through a [`Sorter`], so that a source may have any size and
//! any order.

mod bitbrains;
mod fields;
mod flavours;
pub mod lifetimes;
mod lives;
#[cfg(feature = "sqlite")]
mod packing;
mod placements;
mod rows;
mod sink;
mod vmtable;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::about::{About, CategoryNames};
use crate::error::{Error, Result};
use crate::sort::Sorter;
use crate::write::Written;

use rows::{Rows, Start};
use sink::{FORMATS, Sink};

pub use sink::{Options, Report};

/// Most sources that a trace names.
const NAMES_MAX: usize = 16;

/// The origin of a format's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Epoch {
    /// The beginning of the trace.
    Trace,
    /// 1970 (UTC).
    Unix,
}

/// The properties of a source.
struct Source {
    format: &'static str,
    epoch: Epoch,
    /// Whether the source records departures.
    lifetimes: bool,
}

/// Imports all sources into the trace `to`. Their times must have the same origin. Calls `progress` with the bytes (or rows)
/// read and the total of the current source.
///
/// # Errors
/// [`Error::Damaged`] for a file of an unknown format or a truncated one, for sources whose times have different origins, and
/// if no row is valid; any error of reading or writing. No file is created then.
pub fn import(from: &[PathBuf], to: &Path, options: &Options, progress: &mut dyn FnMut(u64, u64)) -> Result<Report> {
    let (sink, about) = gather(from, to, options, progress)?;
    let Written { vms, bytes } = sink.sorter.finish(&about)?;
    Ok(Report { vms, bytes, ..sink.report })
}

/// Reads all sources.
fn gather<'a>(from: &[PathBuf], to: &Path, options: &'a Options, progress: &'a mut dyn FnMut(u64, u64)) -> Result<(Sink<'a>, About)> {
    let mut sink = Sink {
        sorter: Sorter::new(to),
        options,
        names: CategoryNames::default(),
        random: fastrand::Rng::with_seed(options.seed),
        ends: None,
        next_id: 0,
        report: Report::default(),
        progress,
        customers: HashMap::new(),
    };
    let mut first: Option<(&Path, Epoch)> = None;
    let mut all_have_lifetimes = true;
    for path in from {
        let source = read(path, &mut sink)?;
        if let Some((other, epoch)) = first
            && epoch != source.epoch
        {
            let (this, that) = (origin(source.epoch), origin(epoch));
            let problem = format!("its times count from {this}, those of {} from {that}; import them separately", other.display());
            return Err(Error::damaged(path, problem));
        }
        first.get_or_insert((path, source.epoch));
        all_have_lifetimes &= source.lifetimes;
        if !sink.report.formats.contains(&source.format) {
            sink.report.formats.push(source.format);
        }
    }
    let (named, epoch) = first.unwrap_or((Path::new("no file"), Epoch::Trace));
    if options.lifetimes.is_some() && all_have_lifetimes {
        return Err(Error::damaged(named, "the source has lifetimes of its own; lifetimes are drawn only for a source without them"));
    }
    if sink.report.vms == 0 {
        let cause =
            sink.report.bad_rows.first().map_or_else(|| "the file has no rows".to_owned(), |bad| format!("the first invalid row: {bad}"));
        return Err(Error::damaged(named, format!("no VM found; {cause}")));
    }
    let about = About {
        origin: format!("{} ({})", names(from), sink.report.formats.join(", ")),
        generated: false,
        ends: sink.ends.unwrap_or(0),
        unix_time: epoch == Epoch::Unix,
        names: std::mem::take(&mut sink.names),
    };
    Ok((sink, about))
}

/// The names of sources; of many only their number.
fn names(from: &[PathBuf]) -> String {
    if from.len() > NAMES_MAX {
        return format!("{} files", from.len());
    }
    let names: Vec<_> = from.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy()).collect();
    names.join(", ")
}

fn origin(epoch: Epoch) -> &'static str {
    match epoch {
        Epoch::Trace => "the beginning of a trace",
        Epoch::Unix => "1970",
    }
}

/// Returns whether a file has records of guests of pool hosts.
///
/// # Errors
/// Any error of reading it.
pub fn is_of_guests(path: &Path) -> Result<bool> {
    Ok(matches!(rows::start(path)?, Start::Text(head) if lives::is_line(&head)))
}

fn read(path: &Path, sink: &mut Sink<'_>) -> Result<Source> {
    let source = |format, epoch, lifetimes| Source { format, epoch, lifetimes };
    match rows::start(path)? {
        Start::Sqlite => packing_sqlite(path, sink).map(|()| source("AzureTracesForPacking2020", Epoch::Trace, true)),
        Start::Parquet => bitbrains::parquet(path, sink).map(|()| source("Bitbrains samples", Epoch::Unix, true)),
        Start::Text(head) if lives::is_line(&head) => {
            lives::read(&mut Rows::open(path, b',')?, sink).map(|()| source("guests of pool hosts", Epoch::Unix, true))
        }
        Start::Text(head) if placements::is_line(&head) => {
            placements::read(path, sink).map(|()| source("log of a scheduler", Epoch::Unix, true))
        }
        Start::Text(head) => {
            let one_vm = bitbrains::is_one_vm(&head);
            let mut rows = Rows::open(path, if one_vm { b';' } else { b',' })?;
            let first = rows.next()?.and_then(Result::ok).unwrap_or_default();
            if one_vm {
                bitbrains::one_vm(path, &mut rows, sink).map(|()| source("Bitbrains, one VM", Epoch::Unix, true))
            } else if let Some(columns) = flavours::Columns::of(&first) {
                let lifetimes = flavours::read(&mut rows, &columns, sink)?;
                Ok(source("Azure V1 by flavours", Epoch::Trace, lifetimes))
            } else if let Some(columns) = bitbrains::summary_columns(&first) {
                bitbrains::summary(path, &mut rows, &columns, sink).map(|()| source("Bitbrains summary", Epoch::Unix, true))
            } else if vmtable::is_row(&first) {
                // There is no header: the first row is read again.
                vmtable::read(&mut Rows::open(path, b',')?, sink).map(|()| source("Azure vmtable", Epoch::Trace, true))
            } else {
                let head: String = head.chars().take(60).collect();
                Err(Error::damaged(path, format!("unknown format: the file begins with {head:?}; {FORMATS}")))
            }
        }
    }
}

#[cfg(feature = "sqlite")]
fn packing_sqlite(path: &Path, sink: &mut Sink<'_>) -> Result<()> {
    packing::read(path, sink)
}

#[cfg(not(feature = "sqlite"))]
fn packing_sqlite(path: &Path, _: &mut Sink<'_>) -> Result<()> {
    Err(Error::damaged(path, "the file is a SQLite database, which this program cannot read; build it with --features sqlite"))
}

#[cfg(test)]
mod tests;
