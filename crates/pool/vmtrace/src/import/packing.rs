//! AzureTracesForPacking2020: a SQLite database of VMs and their types.
//!
//! The table `vm` has one row per VM: type, tenant, and start and end in fractional days. A negative start is before the trace;
//! a VM without an end ran beyond the 90 days of the trace. The table `vmType` has the share of a machine that a type takes, for
//! several kinds of machines. Shares are applied to a machine of `machine_cores` and `machine_memory_bytes` of
//! [`Options`](super::Options). Of the machines that can hold a type, the one with the lowest id is used.

use std::collections::HashMap;
use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row};
use units::Bytes;

use super::fields::bytes_of;
use super::sink::Sink;
use crate::error::{Error, Result};
use crate::vm::Vm;

const DAY_SECONDS: f64 = 86_400.0;
/// The largest number of distinct types.
const TYPES_MAX: usize = 1 << 16;

/// Cores and memory in bytes by type.
type Types = HashMap<String, (u32, Bytes)>;

/// Reads the database.
pub(super) fn read(path: &Path, sink: &mut Sink<'_>) -> Result<()> {
    let failed = |error: rusqlite::Error| Error::damaged(path, format!("cannot read the file as AzureTracesForPacking2020: {error}"));
    let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(failed)?;
    let types = types(path, &database, sink).map_err(failed)?;
    let count: i64 = database.query_row("SELECT COUNT(*) FROM vm", [], |row| row.get(0)).map_err(failed)?;
    let count = u64::try_from(count).unwrap_or(0);
    let mut statement = database.prepare("SELECT vmTypeId, tenantId, starttime, endtime FROM vm").map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    let mut number = 0;
    while let Some(row) = rows.next().map_err(failed)? {
        number += 1;
        sink.row(number, count);
        let place = || format!("{} vm row {number}", path.display());
        match vm(row, &types, sink) {
            Ok((vm, last_seen)) => sink.vm(&place, vm, last_seen)?,
            Err(problem) => sink.bad(&format!("{}: {problem}", place())),
        }
    }
    Ok(())
}

fn types(path: &Path, database: &Connection, sink: &mut Sink<'_>) -> Result<Types, rusqlite::Error> {
    let mut types = Types::new();
    let mut statement = database.prepare("SELECT vmTypeId, core, memory FROM vmType ORDER BY vmTypeId, machineId")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let name = text(row.get_ref(0)?);
        if types.contains_key(&name) || types.len() >= TYPES_MAX {
            continue;
        }
        let share = |at: usize| Ok::<_, rusqlite::Error>(real(row.get_ref(at)?).filter(|share| *share > 0.0 && *share <= 1.0));
        let (Some(core), Some(memory)) = (share(1)?, share(2)?) else {
            sink.bad(&format!(
                "{} type {name}: the type takes {} of a machine's cores and {} of its memory; a share must be above 0 and at most 1",
                path.display(),
                text(row.get_ref(1)?),
                text(row.get_ref(2)?)
            ));
            continue;
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the machine's")]
        let cores = libm::round(core * f64::from(sink.options.machine_cores)).max(1.0) as u32;
        #[expect(clippy::cast_precision_loss, reason = "a share of it is taken")]
        if let Some(bytes) = bytes_of(memory, sink.options.machine_memory_bytes.0 as f64) {
            types.insert(name, (cores, bytes));
        }
    }
    Ok(types)
}

fn vm(row: &Row<'_>, types: &Types, sink: &mut Sink<'_>) -> Result<(Vm, i64), String> {
    let field = |at: usize| row.get_ref(at).map_err(|error| error.to_string());
    let name = text(field(0)?);
    let &(cores, memory_bytes) = types.get(&name).ok_or_else(|| format!("its type {name} is missing in vmType, or invalid there"))?;
    let arrival = seconds("starttime", field(2)?)?;
    let departure = match field(3)? {
        ValueRef::Null => None,
        end => Some(seconds("endtime", end)?),
    };
    let vm = Vm {
        arrival,
        departure,
        cores,
        memory_bytes,
        customer: Some(sink.customer(&text(field(1)?))),
        vm_type: sink.vm_type(&name),
        ..Vm::default()
    };
    Ok((vm, departure.unwrap_or(arrival)))
}

/// Converts fractional days to seconds.
fn seconds(name: &str, days: ValueRef<'_>) -> Result<i64, String> {
    let seconds = real(days).map(|days| libm::round(days * DAY_SECONDS)).filter(|seconds| seconds.abs() < 1e12);
    #[expect(clippy::cast_possible_truncation, reason = "within bounds")]
    seconds.map(|seconds| seconds as i64).ok_or_else(|| format!("{name} is {}, which is not a valid number of days", text(days)))
}

#[expect(clippy::cast_precision_loss, reason = "days and shares")]
fn real(value: ValueRef<'_>) -> Option<f64> {
    match value {
        ValueRef::Integer(number) => Some(number as f64),
        ValueRef::Real(number) => Some(number),
        _ => None,
    }
}

fn text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "NULL".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) | ValueRef::Blob(text) => String::from_utf8_lossy(text).chars().take(40).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Options, Report, import};
    use super::*;
    use crate::read::Trace;

    const SCHEMA: &str =
        "CREATE TABLE vmType (id INTEGER, vmTypeId INTEGER, machineId INTEGER, core REAL, memory REAL, hdd REAL, ssd REAL, nic REAL);
        CREATE TABLE vm (vmId INTEGER, tenantId INTEGER, vmTypeId INTEGER, priority INTEGER, starttime REAL, endtime REAL);
        INSERT INTO vmType VALUES (0, 7, 1, 0.5, 0.5, 0, 0, 0), (1, 7, 0, 0.25, 0.125, 0, 0, 0), (2, 8, 0, 0.001, 0.01, 0, 0, 0);";

    fn imported(rows: &str) -> crate::Result<(Report, Vec<Vm>)> {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("packing.sqlite"), dir.path().join("out.parquet"));
        let database = Connection::open(&from).unwrap();
        database.execute_batch(&format!("{SCHEMA}{rows}")).unwrap();
        database.close().unwrap();
        let options = Options { machine_cores: 64, machine_memory_bytes: Bytes::gib(512), ..Options::default() };
        let report = import(&[from], &to, &options, &mut |_, _| ())?;
        Ok((report, Trace::open(&to).unwrap().vms().map(crate::Result::unwrap).collect()))
    }

    #[test]
    fn shares_of_a_machine_become_cores_and_memory() {
        let (report, vms) = imported("INSERT INTO vm VALUES (1, 3, 7, 0, -0.5, 2.5), (2, 3, 8, 1, 1, NULL);").unwrap();
        assert_eq!((report.formats.as_slice(), report.bad_rows_total), (["AzureTracesForPacking2020"].as_slice(), 0));
        let first = Vm {
            arrival: -43_200,
            departure: Some(216_000),
            cores: 16,
            memory_bytes: Bytes::gib(64),
            customer: Some(0),
            vm_type: Some(0),
            ..Vm::default()
        };
        // A share below one core counts as one core.
        let second =
            Vm { id: 1, arrival: 86_400, departure: None, cores: 1, memory_bytes: Bytes(5_497_558_139), vm_type: Some(1), ..first.clone() };
        assert_eq!(vms, [first, second]);
    }

    #[test]
    fn invalid_rows_are_named_in_the_report() {
        let check = |rows: &str, want: &str| {
            let rows = format!("INSERT INTO vm VALUES (1, 3, 7, 0, 0, 1); {rows}");
            let report = imported(&rows).unwrap().0;
            assert_eq!(report.bad_rows_total, 1, "{report:?}");
            assert!(report.bad_rows[0].contains(want), "{report:?}");
        };
        check("INSERT INTO vm VALUES (1, 3, 99, 0, 0, 1);", "vm row 2: its type 99 is missing in vmType");
        check("INSERT INTO vm VALUES (1, 3, 7, 0, 'noon', 1);", "starttime is noon");
        check("INSERT INTO vm VALUES (1, 3, 7, 0, 2, 1);", "departure is 86400 s");
        check("INSERT INTO vmType VALUES (3, 9, 0, 1.5, 0.5, 0, 0, 0);", "type 9: the type takes 1.5 of a machine's cores");
        let error = imported("DROP TABLE vm;").unwrap_err().to_string();
        assert!(error.contains("AzureTracesForPacking2020") && error.contains("vm"), "{error}");
    }
}
