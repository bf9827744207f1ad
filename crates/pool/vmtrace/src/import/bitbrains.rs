//! Bitbrains traces (GWA-T-12): samples of provisioned and used resources every five minutes. Three variants:
//!
//! - as published: one file per VM, fields separated by semicolons, times in seconds under a header that says milliseconds;
//! - a Parquet file of all samples with the columns `vm`, `ts` (Unix seconds), `cores`, `mem_prov_mib` and `mem_active_mib`;
//! - a summary of one row per VM with the columns `vm`, `t0`, `t1`, `cores`, `prov` and `act_max` (MiB).
//!
//! A VM arrives with its first sample and leaves with its last. If the last sample is close to the end of the file, the VM is
//! still running. Many VMs are resized: memory and cores are the maximum over all samples, and a VM whose active memory
//! exceeded its memory at some time has touched all. *Active* memory is memory that was touched recently, so 1 minus its
//! largest share is an upper bound of the untouched share.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::record::Field;
use units::Bytes;

use super::fields::{KIB, MIB, bytes_of, field, memory, number};
use super::rows::Rows;
use super::sink::{FORMATS, Sink};
use crate::error::{Error, Result};
use crate::read::guarded;
use crate::vm::Vm;

/// A VM is still running if its last sample is at most this much older than the end of the file.
const MISSED_SECONDS: i64 = 3_600;
/// The largest number of VMs of a file.
const VMS_MAX: usize = 1 << 20;

/// The samples of one VM, aggregated.
#[derive(Clone, Copy, Debug)]
struct Summary {
    first: i64,
    last: i64,
    cores: u32,
    memory_bytes: Bytes,
    /// The largest share of its memory that was active in one sample.
    active: f64,
}

/// One sample.
#[derive(Clone, Copy, Debug)]
struct Sample {
    time: i64,
    cores: u32,
    memory_bytes: Bytes,
    active_bytes: f64,
}

impl Sample {
    fn summary(self) -> Result<Summary, String> {
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let active = self.active_bytes / self.memory_bytes.0 as f64;
        if !(active >= 0.0 && active.is_finite()) {
            return Err(format!("active memory is {} bytes, which is invalid", self.active_bytes));
        }
        let Self { time, cores, memory_bytes, .. } = self;
        Ok(Summary { first: time, last: time, cores, memory_bytes, active: active.min(1.0) })
    }
}

impl Summary {
    fn merge(self, other: Self) -> Self {
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

/// VMs by their number in the file.
#[derive(Default)]
struct Summaries(BTreeMap<i64, Summary>);

impl Summaries {
    fn add(&mut self, vm: i64, sample: Summary) -> Result<(), String> {
        if self.0.len() >= VMS_MAX && !self.0.contains_key(&vm) {
            return Err(format!("the file has more than {VMS_MAX} VMs"));
        }
        self.0.entry(vm).and_modify(|summary| *summary = summary.merge(sample)).or_insert(sample);
        Ok(())
    }

    fn write(&self, path: &Path, sink: &mut Sink<'_>) -> Result<()> {
        let ends = self.0.values().map(|summary| summary.last).max().unwrap_or(0);
        for (number, summary) in &self.0 {
            sink.vm(&|| format!("{} VM {number}", path.display()), summary.vm(ends), summary.last)?;
        }
        Ok(())
    }
}

/// Returns whether this is the header of a file as published.
pub(super) fn is_one_vm(head: &str) -> bool {
    head.starts_with("Timestamp [ms];")
}

/// Reads the samples of a file as published.
pub(super) fn one_vm(path: &Path, rows: &mut Rows, sink: &mut Sink<'_>) -> Result<()> {
    let mut all = Summaries::default();
    rows.each(sink, |row, _| all.add(0, one_sample(row)?.summary()?).map(|()| None))?;
    // Other VMs are in other files, so the state of this VM after its last sample is unknown.
    all.write(path, sink)
}

fn one_sample(row: &[String]) -> Result<Sample, String> {
    Ok(Sample {
        time: number("Timestamp", field(row, 0)?)?,
        cores: number("CPU cores", field(row, 1)?)?,
        memory_bytes: memory("Memory capacity provisioned", field(row, 5)?, KIB)?,
        active_bytes: number::<f64>("Memory usage", field(row, 6)?)? * KIB,
    })
}

/// Returns the positions of the columns `vm`, `t0`, `t1`, `cores`, `prov` and `act_max` of a summary.
pub(super) fn summary_columns(head: &[String]) -> Option<[usize; 6]> {
    let at = |name| head.iter().position(|column| column == name);
    Some([at("vm")?, at("t0")?, at("t1")?, at("cores")?, at("prov")?, at("act_max")?])
}

/// Reads the rows of a summary.
pub(super) fn summary(path: &Path, rows: &mut Rows, columns: &[usize; 6], sink: &mut Sink<'_>) -> Result<()> {
    let mut all = Summaries::default();
    rows.each(sink, |row, _| {
        let (vm, summary) = summary_row(row, columns)?;
        all.add(vm, summary).map(|()| None)
    })?;
    all.write(path, sink)
}

fn summary_row(row: &[String], &[vm, t0, t1, cores, prov, act_max]: &[usize; 6]) -> Result<(i64, Summary), String> {
    let sample = Sample {
        time: number("t0", field(row, t0)?)?,
        cores: number("cores", field(row, cores)?)?,
        memory_bytes: memory("prov", field(row, prov)?, MIB)?,
        active_bytes: number::<f64>("act_max", field(row, act_max)?)? * MIB,
    };
    let last: i64 = number("t1", field(row, t1)?)?;
    let summary = sample.summary()?;
    if last < summary.first {
        return Err(format!("t1 is {last}, before t0, {}", summary.first));
    }
    Ok((number("vm", field(row, vm)?)?, Summary { last, ..summary }))
}

/// Reads a Parquet file of samples.
pub(super) fn parquet(path: &Path, sink: &mut Sink<'_>) -> Result<()> {
    let mut all = Summaries::default();
    guarded(path, || samples(path, &mut all, sink))?;
    all.write(path, sink)
}

const SAMPLE_COLUMNS: [&str; 5] = ["vm", "ts", "cores", "mem_prov_mib", "mem_active_mib"];

fn samples(path: &Path, all: &mut Summaries, sink: &mut Sink<'_>) -> Result<()> {
    let file = File::open(path).map_err(Error::file(path, "open"))?;
    let reader = SerializedFileReader::new(file).map_err(Error::parquet(path))?;
    let metadata = reader.metadata().file_metadata();
    let names: Vec<_> = metadata.schema_descr().columns().iter().map(|column| column.path().string()).collect();
    let mut columns = [0; SAMPLE_COLUMNS.len()];
    for (column, name) in columns.iter_mut().zip(SAMPLE_COLUMNS) {
        let missing = || Error::damaged(path, format!("not a file of Bitbrains samples: the column {name} is missing; {FORMATS}"));
        *column = names.iter().position(|column| column == name).ok_or_else(missing)?;
    }
    let rows = u64::try_from(metadata.num_rows()).unwrap_or(0);
    for (number, row) in (1_u64..).zip(reader.get_row_iter(None).map_err(Error::parquet(path))?) {
        let row = row.map_err(Error::parquet(path))?;
        sink.row(number, rows);
        let fields: Vec<_> = row.get_column_iter().map(|(_, field)| field).collect();
        let value = |at: usize| {
            fields.get(columns[at]).and_then(|field| real(field)).ok_or_else(|| format!("{} is not a number", SAMPLE_COLUMNS[at]))
        };
        let sample = || {
            let memory_bytes =
                bytes_of(value(3)?, MIB).ok_or_else(|| format!("mem_prov_mib is {}, which is out of range", value(3).unwrap_or(0.0)))?;
            let sample = Sample {
                time: whole(value(1)?),
                cores: u32::try_from(whole(value(2)?)).unwrap_or(0),
                memory_bytes,
                active_bytes: value(4)? * MIB,
            };
            all.add(whole(value(0)?), sample.summary()?)
        };
        let mut sample = sample;
        if let Err(problem) = sample() {
            sink.bad(&format!("{} row {number}: {problem}", path.display()));
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

#[expect(clippy::cast_possible_truncation, reason = "saturates; values out of range are refused later")]
fn whole(number: f64) -> i64 {
    number as i64
}
