//! Bitbrains traces (GWA-T-12): samples every five minutes of what VMs were given and used. Three shapes of it:
//!
//! - as published, one file per VM, semicolons between fields, times in seconds under a header that says milliseconds;
//! - a Parquet file with all samples, of columns `vm`, `ts` (Unix seconds), `cores`, `mem_prov_mib` and `mem_active_mib`;
//! - a summary with a row per VM, of columns `vm`, `t0`, `t1`, `cores`, `prov` and `act_max` (MiB).
//!
//! A VM arrives with its first sample and leaves with its last, unless that is among the last of the file: then it ran on. Many
//! are resized; memory and cores are the most that they had, and one that was at some time more active than it had memory then has
//! touched all. *Active* memory is what was touched lately, so that one minus
//! its largest share bounds the untouched share from above.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::record::Field;

use super::{KIB, Lines, MIB, Sink, bytes_of, number};
use crate::error::{Error, Result};
use crate::read::guarded;
use crate::vm::Vm;

/// A VM whose last sample is no older than this when its file ends ran on.
const MISSED_SECONDS: i64 = 3_600;
/// VMs that a file may have.
const VMS_MAX: usize = 1 << 20;

/// What the samples of one VM come to.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first: i64,
    last: i64,
    cores: u32,
    memory_bytes: u64,
    /// The largest share of its memory that was active at once.
    active: f64,
}

/// One sample.
#[derive(Clone, Copy, Debug)]
struct Sample {
    time: i64,
    cores: u32,
    memory_bytes: u64,
    active_bytes: f64,
}

impl Sample {
    fn seen(self) -> Result<Seen, String> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let active = self.active_bytes / self.memory_bytes as f64;
        if !(active >= 0.0 && active.is_finite()) {
            return Err(format!("active memory is {} bytes, which cannot be", self.active_bytes));
        }
        let Self { time, cores, memory_bytes, .. } = self;
        Ok(Seen { first: time, last: time, cores, memory_bytes, active: active.min(1.0) })
    }
}

impl Seen {
    fn and(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
            cores: self.cores.max(other.cores),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            active: self.active.max(other.active),
        }
    }

    fn vm(&self, ends: i64) -> Vm {
        Vm {
            arrival: self.first,
            departure: Some(self.last).filter(|last| *last < ends - MISSED_SECONDS),
            cores: self.cores,
            memory_bytes: self.memory_bytes,
            untouched_ratio: Some(1.0 - self.active),
            ..Vm::default()
        }
    }
}

/// VMs by the name that the file gives them.
#[derive(Default)]
struct All(BTreeMap<i64, Seen>);

impl All {
    fn add(&mut self, vm: i64, sample: Seen) -> Result<(), String> {
        if self.0.len() >= VMS_MAX && !self.0.contains_key(&vm) {
            return Err(format!("it has more than {VMS_MAX} VMs"));
        }
        self.0.entry(vm).and_modify(|seen| *seen = seen.and(sample)).or_insert(sample);
        Ok(())
    }

    fn put(&self, path: &Path, sink: &mut Sink<'_>) -> Result<()> {
        let ends = self.0.values().map(|seen| seen.last).max().unwrap_or(0);
        for (name, seen) in &self.0 {
            sink.vm(&|| format!("{} VM {name}", path.display()), seen.vm(ends), seen.last)?;
        }
        Ok(())
    }
}

/// Whether this is the header of a file as published.
pub(super) fn is_one_vm(head: &str) -> bool {
    head.starts_with("Timestamp [ms];")
}

/// Reads a file as published.
pub(super) fn one_vm(lines: &mut Lines, sink: &mut Sink<'_>) -> Result<()> {
    let mut all = All::default();
    while let Some(line) = lines.next()? {
        if lines.number == 1 {
            continue;
        }
        sink.row(lines.done_bytes(), lines.bytes);
        match line.and_then(|line| one_sample(&line)).and_then(|sample| all.add(0, sample.seen()?)) {
            Ok(()) => {}
            Err(what) => sink.bad(&format!("{}: {what}", lines.place())),
        }
    }
    // Other VMs are in other files: what became of this one after its last sample is not known.
    let path = lines.path().to_owned();
    all.put(&path, sink)
}

fn one_sample(line: &str) -> Result<Sample, String> {
    let fields: Vec<_> = line.split(';').collect();
    let [time, cores, _, _, _, given, active, ..] = fields.as_slice() else {
        return Err(format!("it has {} fields; there are 11", fields.len()));
    };
    Ok(Sample {
        time: number("Timestamp", time)?,
        cores: number("CPU cores", cores)?,
        memory_bytes: super::memory("Memory capacity provisioned", given, KIB)?,
        active_bytes: number::<f64>("Memory usage", active)? * KIB,
    })
}

/// Where the columns of a summary are: `vm`, `t0`, `t1`, `cores`, `prov`, `act_max`.
pub(super) fn summary_columns(head: &str) -> Option<[usize; 6]> {
    let at = |name| head.split(',').position(|column| column.trim() == name);
    Some([at("vm")?, at("t0")?, at("t1")?, at("cores")?, at("prov")?, at("act_max")?])
}

/// Reads a summary.
pub(super) fn summary(lines: &mut Lines, columns: &[usize; 6], sink: &mut Sink<'_>) -> Result<()> {
    let mut all = All::default();
    while let Some(line) = lines.next()? {
        if lines.number == 1 {
            continue;
        }
        sink.row(lines.done_bytes(), lines.bytes);
        match line.and_then(|line| summary_row(&line, columns)).and_then(|(vm, seen)| all.add(vm, seen)) {
            Ok(()) => {}
            Err(what) => sink.bad(&format!("{}: {what}", lines.place())),
        }
    }
    let path = lines.path().to_owned();
    all.put(&path, sink)
}

fn summary_row(line: &str, columns: &[usize; 6]) -> Result<(i64, Seen), String> {
    let fields: Vec<_> = line.split(',').collect();
    let field = |at: usize| fields.get(columns[at]).copied().ok_or_else(|| format!("it has {} fields, which is too few", fields.len()));
    let sample = Sample {
        time: number("t0", field(1)?)?,
        cores: number("cores", field(3)?)?,
        memory_bytes: super::memory("prov", field(4)?, MIB)?,
        active_bytes: number::<f64>("act_max", field(5)?)? * MIB,
    };
    let last: i64 = number("t1", field(2)?)?;
    let seen = sample.seen()?;
    if last < seen.first {
        return Err(format!("t1 is {last}, before t0, {}", seen.first));
    }
    Ok((number("vm", field(0)?)?, Seen { last, ..seen }))
}

/// Reads a Parquet file of samples.
pub(super) fn parquet(path: &Path, sink: &mut Sink<'_>) -> Result<()> {
    let mut all = All::default();
    guarded(path, || samples(path, &mut all, sink))?;
    all.put(path, sink)
}

const SAMPLE_COLUMNS: [&str; 5] = ["vm", "ts", "cores", "mem_prov_mib", "mem_active_mib"];

fn samples(path: &Path, all: &mut All, sink: &mut Sink<'_>) -> Result<()> {
    let file = File::open(path).map_err(Error::io(path, "open"))?;
    let reader = SerializedFileReader::new(file).map_err(Error::parquet(path))?;
    let metadata = reader.metadata().file_metadata();
    let names: Vec<_> = metadata.schema_descr().columns().iter().map(|column| column.path().string()).collect();
    let mut columns = [0; SAMPLE_COLUMNS.len()];
    for (column, name) in columns.iter_mut().zip(SAMPLE_COLUMNS) {
        let missing =
            || Error::damaged(path, format!("no column {name}: neither Bitbrains samples nor one to be imported; {}", super::FORMATS));
        *column = names.iter().position(|have| have == name).ok_or_else(missing)?;
    }
    let rows = u64::try_from(metadata.num_rows()).unwrap_or(0);
    for (number, row) in (1_u64..).zip(reader.get_row_iter(None).map_err(Error::parquet(path))?) {
        let row = row.map_err(Error::parquet(path))?;
        sink.row(number, rows);
        let fields: Vec<_> = row.get_column_iter().map(|(_, field)| field).collect();
        let value =
            |at: usize| fields.get(columns[at]).and_then(|field| real(field)).ok_or_else(|| format!("{} is no number", SAMPLE_COLUMNS[at]));
        let sample = || {
            let memory_bytes =
                bytes_of(value(3)?, MIB).ok_or_else(|| format!("mem_prov_mib is {}, which cannot be", value(3).unwrap_or(0.0)))?;
            let sample = Sample {
                time: whole(value(1)?),
                cores: u32::try_from(whole(value(2)?)).unwrap_or(0),
                memory_bytes,
                active_bytes: value(4)? * MIB,
            };
            all.add(whole(value(0)?), sample.seen()?)
        };
        let mut sample = sample;
        if let Err(what) = sample() {
            sink.bad(&format!("{} row {number}: {what}", path.display()));
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "seconds and MiB are far below 2^53")]
fn real(field: &Field) -> Option<f64> {
    match *field {
        Field::Byte(number) => Some(number.into()),
        Field::Short(number) => Some(number.into()),
        Field::Int(number) => Some(number.into()),
        Field::Long(number) => Some(number as f64),
        Field::UByte(number) => Some(number.into()),
        Field::UShort(number) => Some(number.into()),
        Field::UInt(number) => Some(number.into()),
        Field::Float(number) => Some(number.into()),
        Field::Double(number) => Some(number),
        _ => None,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "saturates; what cannot be is refused later")]
fn whole(number: f64) -> i64 {
    number as i64
}
