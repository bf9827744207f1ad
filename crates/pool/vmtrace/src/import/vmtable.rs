//! `vmtable` of the public Azure traces V1 (2017) and V2 (2019): 11 columns without a header.
//!
//! VM id, subscription, deployment, second of creation, second of deletion, three figures of CPU use, category, cores and
//! memory in GB. In V2 the last two are buckets: `8` means above the previous bucket and up to 8; `>24` means above 24. A bucket
//! is read as its upper end, and an open one as the next power of two.
//!
//! A trace covers 30 days. A VM that existed before has the creation time 0. A VM that existed at the end has a deletion time
//! in the last five minutes and is read as still running.

use units::Bytes;

use super::fields::{GIB, memory, number};
use super::rows::Rows;
use super::sink::Sink;
use crate::error::Result;
use crate::vm::Vm;

const COLUMNS: usize = 11;
/// A deletion at or after this second means that the VM was running at the end of the trace.
const LAST_SECONDS: i64 = 30 * 86_400 - 300;

/// Returns whether a row has this format.
pub(super) fn is_row(row: &[String]) -> bool {
    parts(row).is_ok()
}

struct Parts<'a> {
    subscription: &'a str,
    created: i64,
    deleted: i64,
    cores: u32,
    memory_bytes: Bytes,
    size: String,
}

fn parts(row: &[String]) -> Result<Parts<'_>, String> {
    let [_, subscription, _, created, deleted, _, _, _, _, cores, memory_gb] = row else {
        return Err(format!("the row has {} fields, expected {COLUMNS}", row.len()));
    };
    Ok(Parts {
        subscription,
        created: number("vmcreated", created)?,
        deleted: number("vmdeleted", deleted)?,
        cores: number("vmcorecount", &end_of_bucket(cores))?,
        memory_bytes: memory("vmmemory", &end_of_bucket(memory_gb), GIB)?,
        size: format!("{cores} cores, {memory_gb} GB"),
    })
}

/// Returns the upper end of a bucket: `>24` becomes 32; other values are unchanged.
fn end_of_bucket(field: &str) -> String {
    let above = field.strip_prefix('>').and_then(|above| above.trim().parse::<u32>().ok());
    let power = above.and_then(|above| above.checked_add(1)).and_then(u32::checked_next_power_of_two);
    power.map_or_else(|| field.to_owned(), |power| power.to_string())
}

/// Reads the rows.
pub(super) fn read(rows: &mut Rows, sink: &mut Sink<'_>) -> Result<()> {
    rows.each(sink, |row, sink| {
        let parts = parts(row)?;
        let vm = Vm {
            arrival: parts.created,
            departure: Some(parts.deleted).filter(|&deleted| deleted < LAST_SECONDS),
            cores: parts.cores,
            memory_bytes: parts.memory_bytes,
            customer: Some(sink.customer(parts.subscription)),
            vm_type: sink.vm_type(&parts.size),
            ..Vm::default()
        };
        Ok(Some((vm, parts.deleted.max(parts.created))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_become_their_upper_end() {
        let check = |field: &str, want: &str| assert_eq!(end_of_bucket(field), want);
        check("8", "8");
        check("1.75", "1.75");
        check(">24", "32");
        check(">64", "128");
        check(">x", ">x");
        check(">4294967295", ">4294967295");
    }
}
