//! Importing what others publish: each format read row by row, what cannot be used counted and named.
//!
//! Formats are told apart by their first bytes; nobody has to name one. [`FORMATS`] lists them. Rows go through a
//! [`Sorter`], so that neither the size nor the order of a source matters.

mod bitbrains;
mod flavours;
pub mod lifetimes;
mod lines;
#[cfg(feature = "sqlite")]
mod packing;
mod vmtable;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::about::{About, Words, number_of};
use crate::error::{Error, Result};
use crate::sort::Sorter;
use crate::vm::Vm;
use crate::write::Written;

use lifetimes::Lifetimes;
use lines::{Lines, Start};

/// A format, and what its files begin with.
const FORMATS: &str = "\
known are: Azure V1 and V2 `vmtable` (CSV of 11 columns without a header), Azure V1 by flavours (CSV headed \
arrival_s,batch,flavor,cores,memory_gb,...), AzureTracesForPacking2020 (SQLite), GWA-T-12 Bitbrains (semicolons, one VM per \
file; a Parquet file of vm, ts, ...; or a summary headed vm,n,t0,t1,...); each also as .gz";

/// Bad rows that are told in full.
const TOLD_MAX: usize = 10;

/// How to import.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Lifetimes for rows of sources that have none.
    pub lifetimes: Option<Lifetimes>,
    /// The seed of what is drawn.
    pub seed: u64,
    /// Cores of the machines of AzureTracesForPacking2020, whose types are shares of a machine.
    pub machine_cores: u32,
    /// Their memory.
    pub machine_memory_bytes: u64,
}

/// What became of an import.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The format of each source.
    pub formats: Vec<&'static str>,
    /// Rows read: of VMs, or of samples.
    pub rows: u64,
    /// VMs that came of them.
    pub vms: u64,
    /// Those without a departure.
    pub still_running: u64,
    /// Those whose lifetime was drawn.
    pub lifetimes_drawn: u64,
    /// The first rows that could not be used: file, line, and what is wrong.
    pub bad_rows: Vec<String>,
    /// How many there are in all.
    pub bad_rows_total: u64,
    /// The size of the file that was made.
    pub bytes: u64,
}

/// From when times of a format count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Epoch {
    /// From the beginning of the trace.
    Trace,
    /// From 1970.
    Unix,
}

/// What is known about the rows that come.
struct Source {
    format: &'static str,
    epoch: Epoch,
    /// Whether it tells when VMs left.
    lifetimes: bool,
}

/// Where importers put what they read.
struct Sink<'a> {
    sorter: Sorter,
    options: &'a Options,
    words: Words,
    random: fastrand::Rng,
    ends: Option<i64>,
    next_id: u64,
    report: Report,
    progress: &'a mut dyn FnMut(u64, u64),
    /// Numbers of customers by a keyed hash of what the source calls them.
    customers: HashMap<String, u64>,
}

/// Customers that are told apart. What comes after shares the last number; public traces have below ten thousand.
const CUSTOMERS_MAX: usize = 1 << 22;

impl Sink<'_> {
    /// Takes a row. Its id is given here, by order of coming. `last_seen` is the last second at which the source tells of it.
    fn vm(&mut self, place: &dyn Fn() -> String, mut vm: Vm, last_seen: i64) -> Result<()> {
        if let Err(fault) = vm.check() {
            self.bad(&format!("{}: {fault}", place()));
            return Ok(());
        }
        vm.id = self.next_id;
        self.next_id += 1;
        self.ends = Some(self.ends.map_or(last_seen, |ends| ends.max(last_seen)));
        self.report.vms += 1;
        self.report.still_running += u64::from(vm.departure.is_none());
        self.sorter.push(vm)
    }

    fn bad(&mut self, what: &str) {
        self.report.bad_rows_total += 1;
        if self.report.bad_rows.len() < TOLD_MAX {
            self.report.bad_rows.push(what.to_owned());
        }
    }

    fn row(&mut self, done_bytes: u64, of_bytes: u64) {
        self.report.rows += 1;
        (self.progress)(done_bytes, of_bytes);
    }

    fn vm_type(&mut self, word: &str) -> Option<u16> {
        number_of(&mut self.words.vm_types, word)
    }

    fn customer(&mut self, name: &str) -> u64 {
        if let Some(&number) = self.customers.get(name) {
            return number;
        }
        let number = self.customers.len() as u64;
        if self.customers.len() < CUSTOMERS_MAX {
            self.customers.insert(name.to_owned(), number);
        }
        number
    }

    /// When a VM leaves whose source does not say; `None` where nothing is known, or it outlives all that was seen to end.
    fn drawn_departure(&mut self, vm_type: Option<u16>, arrival: i64) -> Option<i64> {
        let name = vm_type.and_then(|vm_type| self.words.vm_types.get(usize::from(vm_type)));
        let lifetime = self.options.lifetimes.as_ref()?.draw(name.map(String::as_str), self.random.f64());
        self.report.lifetimes_drawn += u64::from(lifetime.is_some());
        lifetime.map(|lifetime| arrival.saturating_add(lifetime))
    }
}

/// Makes the trace `to` of all sources, whose times count from the same instant. `progress` is told bytes (or rows) read, and how
/// many there are, of the source at hand.
///
/// # Errors
/// [`Error::Damaged`] for a file of no known format or one that ends within itself, for sources whose times do not count from
/// the same instant, and where no row can be used; any error of reading or writing. No file is made then.
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
        words: Words::default(),
        random: fastrand::Rng::with_seed(options.seed),
        ends: None,
        next_id: 0,
        report: Report::default(),
        progress,
        customers: HashMap::new(),
    };
    let mut first: Option<(&Path, Epoch)> = None;
    let mut all_tell_lifetimes = true;
    for path in from {
        let source = read(path, &mut sink)?;
        if let Some((other, epoch)) = first
            && epoch != source.epoch
        {
            let (ours, theirs) = (since(source.epoch), since(epoch));
            return Err(Error::damaged(path, format!("its times count {ours}, those of {} {theirs}: import them apart", other.display())));
        }
        first.get_or_insert((path, source.epoch));
        all_tell_lifetimes &= source.lifetimes;
        sink.report.formats.push(source.format);
    }
    let (named, epoch) = first.unwrap_or((Path::new("nothing"), Epoch::Trace));
    if options.lifetimes.is_some() && all_tell_lifetimes {
        return Err(Error::damaged(named, "it has lifetimes of its own; others are drawn only for a source that has none"));
    }
    if sink.report.vms == 0 {
        let first = sink.report.bad_rows.first().map_or_else(|| "it has no rows".to_owned(), |bad| format!("the first is bad: {bad}"));
        return Err(Error::damaged(named, format!("no VM in it; {first}")));
    }
    let names: Vec<_> = from.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy()).collect();
    let about = About {
        origin: format!("{} ({})", names.join(", "), sink.report.formats.join(", ")),
        generated: false,
        ends: sink.ends.unwrap_or(0),
        unix_time: epoch == Epoch::Unix,
        words: std::mem::take(&mut sink.words),
    };
    Ok((sink, about))
}

fn since(epoch: Epoch) -> &'static str {
    match epoch {
        Epoch::Trace => "from the beginning of a trace",
        Epoch::Unix => "from 1970",
    }
}

fn read(path: &Path, sink: &mut Sink<'_>) -> Result<Source> {
    let source = |format, epoch, lifetimes| Source { format, epoch, lifetimes };
    match lines::start(path)? {
        Start::Sqlite => packing_sqlite(path, sink).map(|()| source("AzureTracesForPacking2020", Epoch::Trace, true)),
        Start::Parquet => bitbrains::parquet(path, sink).map(|()| source("Bitbrains samples", Epoch::Unix, true)),
        Start::Text(head) => {
            let mut lines = Lines::open(path)?;
            if let Some(columns) = flavours::Columns::of(&head) {
                let lifetimes = flavours::read(&mut lines, &columns, sink)?;
                Ok(source("Azure V1 by flavours", Epoch::Trace, lifetimes))
            } else if bitbrains::is_one_vm(&head) {
                bitbrains::one_vm(&mut lines, sink).map(|()| source("Bitbrains, one VM", Epoch::Unix, true))
            } else if let Some(columns) = bitbrains::summary_columns(&head) {
                bitbrains::summary(&mut lines, &columns, sink).map(|()| source("Bitbrains summary", Epoch::Unix, true))
            } else if vmtable::is_row(&head) {
                vmtable::read(&mut lines, sink).map(|()| source("Azure vmtable", Epoch::Trace, true))
            } else {
                let head: String = head.chars().take(60).collect();
                Err(Error::damaged(path, format!("it begins with {head:?}, which is of no known format; {FORMATS}")))
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
    Err(Error::damaged(path, "a SQLite database, which this program was built without; build it with --features sqlite"))
}

/// A field as a number, or what is wrong with it.
fn number<T: std::str::FromStr>(name: &str, field: &str) -> Result<T, String> {
    field.trim().parse().map_err(|_| format!("{name} is {:?}, no number that it can be", shortened(field)))
}

/// Memory in units of so many bytes, as whole bytes.
fn memory(name: &str, field: &str, unit: f64) -> Result<u64, String> {
    let amount: f64 = number(name, field)?;
    bytes_of(amount, unit).ok_or_else(|| format!("{name} is {:?}; it must be above 0 and below 1 PiB", shortened(field)))
}

fn bytes_of(amount: f64, unit: f64) -> Option<u64> {
    #[expect(clippy::cast_precision_loss, reason = "a power of two")]
    let most = crate::vm::MEMORY_BYTES_MAX as f64;
    let bytes = libm::round(amount * unit);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within bounds")]
    (bytes >= 1.0 && bytes <= most).then_some(bytes as u64)
}

fn shortened(field: &str) -> String {
    field.trim().chars().take(40).collect()
}

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;
const GIB: f64 = 1024.0 * MIB;

#[cfg(test)]
mod tests;
