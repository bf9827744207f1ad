//! The Azure V1 trace reduced to arrivals of flavours, as used for training generators of traces:
//! `arrival_s,batch,flavor,cores,memory_gb`, and in some splits `censored,dur_bin,dur_lo_s,dur_hi_s`.
//!
//! Arrivals are in bins of five minutes. A split without the last four columns has no lifetimes. In a split with them, the
//! lifetime is the center of the bin in which it ended. A row with `censored` 1 was still running at the end of the split, and
//! the bin contains its age then. `batch` distinguishes tenants within one bin and is reused in the next. It does not identify
//! a customer and is ignored.

use super::fields::{GIB, field, memory, number};
use super::rows::Rows;
use super::sink::Sink;
use crate::error::Result;
use crate::vm::Vm;

/// Positions of the columns.
pub(super) struct Columns {
    arrival: usize,
    flavour: usize,
    cores: usize,
    memory: usize,
    /// `censored`, `dur_lo_s`, `dur_hi_s`.
    life: Option<[usize; 3]>,
}

impl Columns {
    /// Returns the columns of a header, or `None` if it is not a header of this format.
    pub(super) fn of(head: &[String]) -> Option<Self> {
        let at = |name| head.iter().position(|column| column == name);
        let life = || Some([at("censored")?, at("dur_lo_s")?, at("dur_hi_s")?]);
        let (arrival, flavour, cores, memory) = (at("arrival_s")?, at("flavor")?, at("cores")?, at("memory_gb")?);
        Some(Self { arrival, flavour, cores, memory, life: life() })
    }
}

/// Reads the rows. Returns whether the file has lifetimes.
pub(super) fn read(rows: &mut Rows, columns: &Columns, sink: &mut Sink<'_>) -> Result<bool> {
    rows.each(sink, |row, sink| vm(row, columns, sink).map(Some))?;
    Ok(columns.life.is_some())
}

/// Parses a row. Returns the VM and the last second for which the row has data.
fn vm(row: &[String], columns: &Columns, sink: &mut Sink<'_>) -> Result<(Vm, i64), String> {
    let field = |at| field(row, at);
    let arrival: i64 = number("arrival_s", field(columns.arrival)?)?;
    let cores = number("cores", field(columns.cores)?)?;
    let memory_bytes = memory("memory_gb", field(columns.memory)?, GIB)?;
    let life = match columns.life {
        None => None,
        Some([censored, low, high]) => {
            let censored: u8 = number("censored", field(censored)?)?;
            let (low, high): (u32, u32) = (number("dur_lo_s", field(low)?)?, number("dur_hi_s", field(high)?)?);
            if censored > 1 || low > high {
                return Err(format!("censored is {censored}, dur_lo_s {low} and dur_hi_s {high}, which is inconsistent"));
            }
            Some((censored == 1, i64::from(low), i64::from(high)))
        }
    };
    let vm_type = sink.vm_type(field(columns.flavour)?);
    let (departure, last_seen) = match life {
        // A drawn departure does not extend the trace.
        None => (sink.drawn_departure(vm_type, arrival), arrival),
        Some((true, low, _)) => (None, arrival.saturating_add(low)),
        // The centre of a wide bin may be hours after the split ended, which has data up to the bin's beginning only.
        Some((false, low, high)) => (Some(arrival.saturating_add(low.midpoint(high))), arrival.saturating_add(low)),
    };
    Ok((Vm { arrival, departure, cores, memory_bytes, vm_type, ..Vm::default() }, last_seen))
}
