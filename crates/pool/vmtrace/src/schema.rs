//! The columns of a VM trace file, and what its metadata says.
//!
//! Every column is required (no nulls), flat and a signed 64-bit integer, because that is what every reader reads alike.
//! Rows are sorted by arrival, then id.
//!
//! | column | |
//! |---|---|
//! | `id` | no two rows have the same |
//! | `arrival_seconds` | since an instant that all rows share |
//! | `lifetime_seconds` | -1: it still ran when the trace ended, or that is unknown |
//! | `cores`, `memory_bytes` | what was asked for |
//! | `cluster` | 0 where only one is known |
//! | `customer` | -1: unknown, as in all that follow |
//! | `vm_type`, `guest_os`, `location` | places in the lists of words that the metadata holds |
//! | `untouched_ppm` | millionths of its memory that it never touched |
//! | `slowdown_64ns_ppm`, `slowdown_140ns_ppm` | millionths that it is slower by, all on the pool; -1,000,000: unknown |
//!
//! The metadata holds the version as `thermocline.vmtrace_version`, and [`About`] as JSON in `thermocline.vmtrace_about`.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, Repetition, Type as Physical, ZstdLevel};
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::{ColumnPath, Type, TypePtr};

use crate::about::About;
use crate::error::{Error, Result};
use crate::vm::Vm;

/// The version of the schema. A reader takes older files, and refuses newer ones by name.
pub const VERSION: u64 = 1;

/// The columns, in the order of the file.
pub const COLUMNS: [&str; 13] = [
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
];

const UNKNOWN: i64 = -1;
/// No VM runs in no time at all.
const SLOWDOWN_UNKNOWN: i64 = -1_000_000;
const PPM: f64 = 1e6;

const KEY_VERSION: &str = "thermocline.vmtrace_version";
const KEY_ABOUT: &str = "thermocline.vmtrace_about";

/// A row of numbers.
pub(crate) type Row = [i64; COLUMNS.len()];

#[expect(clippy::cast_possible_truncation, reason = "checked to be at most a thousand times a million")]
fn ppm(ratio: Option<f64>, unknown: i64) -> i64 {
    ratio.map_or(unknown, |ratio| libm::round(ratio * PPM) as i64)
}

/// A checked VM as a row. Ratios are rounded to millionths.
pub(crate) fn row(vm: &Vm) -> Row {
    let wide = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let known = |number: Option<u16>| number.map_or(UNKNOWN, i64::from);
    [
        wide(vm.id),
        vm.arrival,
        vm.lifetime().unwrap_or(UNKNOWN),
        i64::from(vm.cores),
        wide(vm.memory_bytes),
        i64::from(vm.cluster),
        vm.customer.map_or(UNKNOWN, wide),
        known(vm.vm_type),
        known(vm.guest_os),
        known(vm.location),
        ppm(vm.untouched_ratio, UNKNOWN),
        ppm(vm.slowdown_64ns, SLOWDOWN_UNKNOWN),
        ppm(vm.slowdown_140ns, SLOWDOWN_UNKNOWN),
    ]
}

/// A row as a VM, checked; or what is wrong with it.
pub(crate) fn vm(row: &Row) -> Result<Vm, String> {
    let wrong = |column: usize| format!("{} is {}, which cannot be", COLUMNS[column], row[column]);
    let word = |column: usize| match row[column] {
        UNKNOWN => Ok(None),
        number => u16::try_from(number).map(Some).map_err(|_| wrong(column)),
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53 where it is sound; else the check below refuses it")]
    let ratio = |column: usize, unknown: i64| (row[column] != unknown).then(|| row[column] as f64 / PPM);
    let arrival = row[1];
    let departure = match row[2] {
        UNKNOWN => None,
        lifetime => Some(arrival.checked_add(lifetime).ok_or_else(|| wrong(2))?),
    };
    let customer = match row[6] {
        UNKNOWN => None,
        customer => Some(u64::try_from(customer).map_err(|_| wrong(6))?),
    };
    let vm = Vm {
        id: u64::try_from(row[0]).map_err(|_| wrong(0))?,
        arrival,
        departure,
        cores: u32::try_from(row[3]).map_err(|_| wrong(3))?,
        memory_bytes: u64::try_from(row[4]).map_err(|_| wrong(4))?,
        cluster: u32::try_from(row[5]).map_err(|_| wrong(5))?,
        customer,
        vm_type: word(7)?,
        guest_os: word(8)?,
        location: word(9)?,
        untouched_ratio: ratio(10, UNKNOWN),
        slowdown_64ns: ratio(11, SLOWDOWN_UNKNOWN),
        slowdown_140ns: ratio(12, SLOWDOWN_UNKNOWN),
    };
    vm.check().map_err(|fault| fault.to_string())?;
    Ok(vm)
}

/// The schema.
pub(crate) fn schema() -> Result<TypePtr, parquet::errors::ParquetError> {
    let mut fields = Vec::with_capacity(COLUMNS.len());
    for name in COLUMNS {
        let column = Type::primitive_type_builder(name, Physical::INT64).with_repetition(Repetition::REQUIRED);
        fields.push(Arc::new(column.build()?));
    }
    Ok(Arc::new(Type::group_type_builder("vms").with_fields(fields).build()?))
}

/// How files are written: statistics of arrivals and clusters alone, by which a reader can skip.
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

/// What a file's metadata says.
pub(crate) fn metadata(path: &Path, about: &About) -> Result<[KeyValue; 2]> {
    let about = serde_json::to_string(about).map_err(|error| Error::damaged(path, format!("cannot say what it is: {error}")))?;
    Ok([(KEY_VERSION, VERSION.to_string()), (KEY_ABOUT, about)].map(|(key, value)| KeyValue::new(key.to_owned(), value)))
}

/// The version and [`About`] out of a file's metadata. A newer version is refused.
pub(crate) fn parse_metadata(path: &Path, found: Option<&Vec<KeyValue>>) -> Result<(u64, About)> {
    let value = |key: &str| {
        let value = found.into_iter().flatten().find(|pair| pair.key == key).and_then(|pair| pair.value.as_deref());
        value.ok_or_else(|| Error::damaged(path, format!("no VM trace of thermocline: its metadata has no {key}; import it first")))
    };
    let text = value(KEY_VERSION)?;
    let version = text.parse::<u64>().map_err(|_| Error::damaged(path, format!("{KEY_VERSION} is {text:?}, no number")))?;
    if version > VERSION {
        return Err(Error::Newer { path: path.to_owned(), found: version, known: VERSION });
    }
    let text = value(KEY_ABOUT)?;
    let about = serde_json::from_str(text).map_err(|error| Error::damaged(path, format!("{KEY_ABOUT} cannot be read: {error}")))?;
    Ok((version, about))
}
