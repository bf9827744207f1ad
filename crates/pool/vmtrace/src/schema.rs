//! The columns and the metadata of a VM trace file.
//!
//! Every column is free of nulls, flat and a signed 64-bit integer, which all Parquet readers read alike. Rows are sorted by
//! arrival, then id. Files of earlier programs lack the last four columns ([`OPTIONAL`]); their values are then unknown.
//!
//! | column | |
//! |---|---|
//! | `id` | unique |
//! | `arrival_seconds` | seconds since an instant that all rows share |
//! | `lifetime_seconds` | -1: still running at the end of the trace, or unknown |
//! | `cores`, `memory_bytes` | the requested resources |
//! | `cluster` | 0 if the trace has one cluster |
//! | `customer` | -1: unknown, as for the columns below |
//! | `vm_type`, `guest_os`, `location` | indices into the lists of names in the metadata |
//! | `untouched_ppm` | share of its memory that the VM never touched, in parts per million |
//! | `slowdown_64ns_ppm`, `slowdown_140ns_ppm` | slowdown with all memory on the pool, in parts per million; -1,000,000: unknown |
//! | `pool_bytes`, `pool_requested_bytes` | pool memory that a scheduler gave the VM, and that was requested; -1: no scheduler recorded it, as for the columns below |
//! | `arrival_event`, `departure_event` | numbers of the scheduler's events: the order within a second |
//!
//! The metadata holds the version as `thermocline.vmtrace_version`, and [`About`] as JSON in `thermocline.vmtrace_about`.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, Repetition, Type as Physical, ZstdLevel};
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::{ColumnPath, Type, TypePtr};

use units::Bytes;

use crate::about::About;
use crate::error::{Error, Result};
use crate::vm::{Recorded, Vm};

/// Version of the schema. A reader accepts older files and refuses newer ones.
pub const VERSION: u64 = 1;

/// The columns, in the order of the file.
pub const COLUMNS: [&str; 17] = [
    "id",
    "arrival_seconds",
    "lifetime_seconds",
    "cores",
    "memory_bytes",
    "cluster",
    "customer",
    "vm_type",
    "guest_os",
    "location",
    "untouched_ppm",
    "slowdown_64ns_ppm",
    "slowdown_140ns_ppm",
    "pool_bytes",
    "pool_requested_bytes",
    "arrival_event",
    "departure_event",
];

/// The first of [`COLUMNS`] that a file may lack. Its values and those of the columns after it are then [`UNKNOWN`].
pub(crate) const OPTIONAL: usize = 13;

/// Marks an unknown value, of a slowdown excepted.
pub(crate) const UNKNOWN: i64 = -1;
/// Marks an unknown slowdown. It is below every valid value: no VM finishes in no time.
const SLOWDOWN_UNKNOWN: i64 = -1_000_000;
const PPM: f64 = 1e6;

const KEY_VERSION: &str = "thermocline.vmtrace_version";
const KEY_ABOUT: &str = "thermocline.vmtrace_about";

/// A row of numbers.
pub(crate) type Row = [i64; COLUMNS.len()];

#[expect(clippy::cast_possible_truncation, reason = "at most a thousand times a million, as checked")]
fn ppm(ratio: Option<f64>, unknown: i64) -> i64 {
    ratio.map_or(unknown, |ratio| libm::round(ratio * PPM) as i64)
}

/// Converts a checked VM to a row. Ratios are rounded to parts per million.
pub(crate) fn row(vm: &Vm) -> Row {
    let wide = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let known = |number: Option<u16>| number.map_or(UNKNOWN, i64::from);
    let recorded = |of: fn(&Recorded) -> Option<u64>| vm.recorded.as_deref().and_then(of).map_or(UNKNOWN, wide);
    [
        wide(vm.id),
        vm.arrival,
        vm.lifetime().unwrap_or(UNKNOWN),
        i64::from(vm.cores),
        wide(vm.memory_bytes.0),
        i64::from(vm.cluster),
        vm.customer.map_or(UNKNOWN, wide),
        known(vm.vm_type),
        known(vm.guest_os),
        known(vm.location),
        ppm(vm.untouched_ratio, UNKNOWN),
        ppm(vm.slowdown_64ns, SLOWDOWN_UNKNOWN),
        ppm(vm.slowdown_140ns, SLOWDOWN_UNKNOWN),
        recorded(|of| Some(of.pool_bytes.0)),
        recorded(|of| Some(of.requested_bytes.0)),
        recorded(|of| Some(of.arrival_event)),
        recorded(|of| of.departure_event),
    ]
}

/// Converts a row to a VM and checks it. Returns the problem if a value is invalid.
pub(crate) fn vm(row: &Row) -> Result<Vm, String> {
    let invalid = |column| invalid(row, column);
    let index = |column: usize| match row[column] {
        UNKNOWN => Ok(None),
        number => u16::try_from(number).map(Some).map_err(|_| invalid(column)),
    };
    #[expect(clippy::cast_precision_loss, reason = "valid values are far below 2^53; the check below refuses others")]
    let ratio = |column: usize, unknown: i64| (row[column] != unknown).then(|| row[column] as f64 / PPM);
    let arrival = row[1];
    let departure = match row[2] {
        UNKNOWN => None,
        lifetime => Some(arrival.checked_add(lifetime).ok_or_else(|| invalid(2))?),
    };
    let customer = match row[6] {
        UNKNOWN => None,
        customer => Some(u64::try_from(customer).map_err(|_| invalid(6))?),
    };
    let vm = Vm {
        id: u64::try_from(row[0]).map_err(|_| invalid(0))?,
        arrival,
        departure,
        cores: u32::try_from(row[3]).map_err(|_| invalid(3))?,
        memory_bytes: Bytes(u64::try_from(row[4]).map_err(|_| invalid(4))?),
        cluster: u32::try_from(row[5]).map_err(|_| invalid(5))?,
        customer,
        vm_type: index(7)?,
        guest_os: index(8)?,
        location: index(9)?,
        untouched_ratio: ratio(10, UNKNOWN),
        slowdown_64ns: ratio(11, SLOWDOWN_UNKNOWN),
        slowdown_140ns: ratio(12, SLOWDOWN_UNKNOWN),
        recorded: recorded(row)?.map(Box::new),
    };
    vm.check().map_err(|error| error.to_string())?;
    Ok(vm)
}

/// Converts the columns of a scheduler's log; `None` if the row has none of it.
fn recorded(row: &Row) -> Result<Option<Recorded>, String> {
    let columns = OPTIONAL..COLUMNS.len();
    if row[columns.clone()].iter().all(|&number| number == UNKNOWN) {
        return Ok(None);
    }
    let number = |column: usize| u64::try_from(row[column]).map_err(|_| invalid(row, column));
    let [pool, requested, arrival, departure] = [0, 1, 2, 3].map(|at| columns.start + at);
    Ok(Some(Recorded {
        pool_bytes: Bytes(number(pool)?),
        requested_bytes: Bytes(number(requested)?),
        arrival_event: number(arrival)?,
        departure_event: if row[departure] == UNKNOWN { None } else { Some(number(departure)?) },
    }))
}

fn invalid(row: &Row, column: usize) -> String {
    format!("{} is {}, which is out of range", COLUMNS[column], row[column])
}

/// Returns the Parquet schema.
pub(crate) fn schema() -> Result<TypePtr, parquet::errors::ParquetError> {
    let mut fields = Vec::with_capacity(COLUMNS.len());
    for name in COLUMNS {
        let column = Type::primitive_type_builder(name, Physical::INT64).with_repetition(Repetition::REQUIRED);
        fields.push(Arc::new(column.build()?));
    }
    Ok(Arc::new(Type::group_type_builder("vms").with_fields(fields).build()?))
}

/// Returns the properties of new files. Only arrivals and clusters have statistics, which let readers skip row groups.
pub(crate) fn properties() -> Result<WriterProperties, parquet::errors::ParquetError> {
    let sorted_by = [1, 0].map(|column_idx| SortingColumn { column_idx, descending: false, nulls_first: false });
    let mut builder = WriterProperties::builder()
        .set_created_by(concat!("thermocline ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_sorting_columns(Some(sorted_by.to_vec()))
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_dictionary_enabled(false)
        .set_offset_index_disabled(true)
        .set_encoding(Encoding::DELTA_BINARY_PACKED);
    for name in ["arrival_seconds", "cluster"] {
        builder = builder.set_column_statistics_enabled(ColumnPath::from(name), EnabledStatistics::Chunk);
    }
    Ok(builder.build())
}

/// Returns the metadata of a new file.
pub(crate) fn metadata(path: &Path, about: &About) -> Result<[KeyValue; 2]> {
    let about = serde_json::to_string(about).map_err(|error| Error::damaged(path, format!("the metadata cannot be written: {error}")))?;
    Ok([(KEY_VERSION, VERSION.to_string()), (KEY_ABOUT, about)].map(|(key, value)| KeyValue::new(key.to_owned(), value)))
}

/// Reads the version and [`About`] from a file's metadata. Refuses a newer version.
pub(crate) fn parse_metadata(path: &Path, found: Option<&Vec<KeyValue>>) -> Result<(u64, About)> {
    let value = |key: &str| {
        let value = found.into_iter().flatten().find(|pair| pair.key == key).and_then(|pair| pair.value.as_deref());
        value.ok_or_else(|| {
            Error::damaged(path, format!("not a VM trace of thermocline: its metadata has no {key}; run `thermocline pool import` first"))
        })
    };
    let text = value(KEY_VERSION)?;
    let version = text.parse::<u64>().map_err(|_| Error::damaged(path, format!("{KEY_VERSION} is {text:?}, which is not a number")))?;
    if version > VERSION {
        return Err(Error::Newer { path: path.to_owned(), found: version, known: VERSION });
    }
    let text = value(KEY_ABOUT)?;
    let about = serde_json::from_str(text).map_err(|error| Error::damaged(path, format!("{KEY_ABOUT} cannot be read: {error}")))?;
    Ok((version, about))
}
