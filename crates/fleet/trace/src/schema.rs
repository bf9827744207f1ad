//! The columns and the metadata of a trace file.
//!
//! Every column is required (without nulls) and flat: all readers handle such columns alike, and fastest. Numbers are
//! signed 64-bit integers, because some readers convert unsigned ones to decimals. They are stored DELTA_BINARY_PACKED,
//! because the numbers of a job change little between consecutive entries. Words are stored by dictionary.
//!
//! | columns | type | |
//! |---|---|---|
//! | `cluster`, `machine`, `job`, `job_key` | text, text, text, number | [`crate::JobId`]; the file is sorted by it, then by time |
//! | `class`, `policy`, `tracker`, `decision` | text | [`crate::Labels`] |
//! | the names in [`FIGURES`] | number | [`crate::Figures`] |
//! | `cold_00_pages`, `cold_01_pages`, ... | number | the cold-age histogram, one column per bucket |
//! | `promotions_00_pages`, ... | number | the promotion histogram |

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{DeltaBinaryPackedEncoderOptions, EnabledStatistics, WriterProperties};
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use policy::thresholds::Thresholds;
use units::{Bytes, Millis};

use crate::entry::{Basis, FIGURES};
use crate::error::{Error, Result};

/// Version of the schema. Readers accept older files and reject newer ones.
///
/// Version 2 adds slow memory nodes; version 3 parameter bundles, restarts of the agent and OOM kills;
/// version 4 how ages were obtained; version 5 what jobs lost to far memory.
pub const VERSION: u32 = 5;

/// Text columns: the first three belong to [`crate::JobId`], the others to [`crate::Labels`].
pub(crate) const WORDS: [&str; 7] = ["cluster", "machine", "job", "class", "policy", "tracker", "decision"];
/// Number of [`WORDS`] that belong to the identity.
pub(crate) const ID_WORDS: usize = 3;
/// Column of the number that belongs to the identity.
pub(crate) const JOB_KEY: &str = "job_key";

const KEY_VERSION: &str = "thermocline.trace_version";
const KEY_THRESHOLDS: &str = "thermocline.thresholds_scans";
const KEY_SCAN_PERIOD: &str = "thermocline.scan_period_ms";
const KEY_PAGE: &str = "thermocline.page_bytes";

/// Returns the name of a bucket's column in the cold-age histogram.
#[must_use]
pub fn cold_column(bucket: usize) -> String {
    format!("cold_{bucket:02}_pages")
}

/// Returns the name of a bucket's column in the promotion histogram.
#[must_use]
pub fn promotions_column(bucket: usize) -> String {
    format!("promotions_{bucket:02}_pages")
}

/// Returns the columns of numbers in the order of the file, from `job_key` to the last promotion bucket.
pub(crate) fn numbers(buckets: usize) -> impl Iterator<Item = String> {
    let histograms = (0..buckets).map(cold_column).chain((0..buckets).map(promotions_column));
    std::iter::once(JOB_KEY.to_owned()).chain(FIGURES.iter().map(|figure| figure.name.to_owned())).chain(histograms)
}

/// Returns a required column.
pub(crate) fn column(name: &str, physical: Physical, logical: Option<LogicalType>) -> Result<TypePtr, parquet::errors::ParquetError> {
    let column = Type::primitive_type_builder(name, physical).with_repetition(Repetition::REQUIRED).with_logical_type(logical);
    Ok(Arc::new(column.build()?))
}

/// Returns the schema for histograms of this many buckets: text columns, then numbers.
pub(crate) fn schema(buckets: usize) -> Result<TypePtr, parquet::errors::ParquetError> {
    let mut fields = Vec::new();
    for name in WORDS {
        fields.push(column(name, Physical::BYTE_ARRAY, Some(LogicalType::String))?);
    }
    for name in numbers(buckets) {
        fields.push(column(&name, Physical::INT64, None)?);
    }
    Ok(Arc::new(Type::group_type_builder("trace").with_fields(fields).build()?))
}

/// Returns the properties of the writer. Only columns that queries filter by have statistics; histograms have none.
///
/// A small file is not compressed: packed numbers shrink little, and to set up the decompression of some hundred of them takes
/// longer than to read them.
pub(crate) fn properties(basis: &Basis, small: bool) -> Result<WriterProperties, parquet::errors::ParquetError> {
    // By identity, then by time: `job_key` and `start_unix_ms` directly follow the seven text columns.
    let sorted_by = [0, 1, 2, 7, 8].map(|column_idx| SortingColumn { column_idx, descending: false, nulls_first: false });
    let mut builder = WriterProperties::builder()
        .set_created_by(concat!("thermocline ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(metadata(basis, KEY_VERSION, VERSION)))
        .set_sorting_columns(Some(sorted_by.to_vec()))
        .set_compression(if small { Compression::UNCOMPRESSED } else { Compression::ZSTD(ZstdLevel::try_new(1)?) })
        .set_statistics_enabled(EnabledStatistics::None)
        .set_dictionary_enabled(false)
        .set_offset_index_disabled(true)
        .set_encoding(Encoding::DELTA_BINARY_PACKED);
    if small {
        // The last group of differences is padded to its whole length, which is a quarter of a small column if it is of 64.
        builder = builder.set_delta_binary_packed_encoder_options(DeltaBinaryPackedEncoderOptions::try_new(128, 4)?);
    }
    for name in WORDS {
        builder = builder
            .set_column_dictionary_enabled(ColumnPath::from(name), true)
            .set_column_encoding(ColumnPath::from(name), Encoding::PLAIN);
    }
    for name in WORDS.iter().copied().chain([JOB_KEY, FIGURES[0].name]) {
        builder = builder.set_column_statistics_enabled(ColumnPath::from(name), EnabledStatistics::Chunk);
    }
    Ok(builder.build())
}

/// Returns the metadata for a basis and a version.
pub(crate) fn metadata(basis: &Basis, version_key: &str, version: u32) -> Vec<KeyValue> {
    let ages: Vec<_> = basis.thresholds.as_slice().iter().map(|age| age.0.to_string()).collect();
    [
        (version_key, version.to_string()),
        (KEY_THRESHOLDS, ages.join(",")),
        (KEY_SCAN_PERIOD, basis.scan_period_ms.0.to_string()),
        (KEY_PAGE, basis.page_bytes.0.to_string()),
    ]
    .map(|(key, value)| KeyValue::new(key.to_owned(), value))
    .to_vec()
}

/// Reads the version and the basis from a trace file's metadata.
pub(crate) fn trace_metadata(path: &Path, found: Option<&Vec<KeyValue>>) -> Result<(u32, Basis)> {
    parse_metadata(path, found, KEY_VERSION, "trace", VERSION)
}

/// Reads the version and the basis from a file's metadata. A newer version is an error.
pub(crate) fn parse_metadata(
    path: &Path,
    found: Option<&Vec<KeyValue>>,
    version_key: &str,
    kind: &'static str,
    known: u32,
) -> Result<(u32, Basis)> {
    let value = |key: &str| {
        let value = found.into_iter().flatten().find(|pair| pair.key == key).and_then(|pair| pair.value.as_deref());
        value.ok_or_else(|| Error::damaged(path, format!("not a thermocline {kind}: its metadata has no {key}")))
    };
    let number = |key: &str| {
        let text = value(key)?;
        text.parse::<u64>().map_err(|_| Error::damaged(path, format!("{key} is {text:?}, not a number")))
    };
    let version = number(version_key)?;
    let version = u32::try_from(version).unwrap_or(u32::MAX);
    if version > known {
        return Err(Error::Newer { path: path.to_owned(), kind, found: version, known });
    }
    let text = value(KEY_THRESHOLDS)?;
    let ages: Result<Vec<u8>, _> = text.split(',').map(str::parse).collect();
    let thresholds = ages.ok().and_then(|ages| Thresholds::try_from(ages).ok());
    let thresholds = thresholds.ok_or_else(|| Error::damaged(path, format!("{KEY_THRESHOLDS} is {text:?}, not a list of cold ages")))?;
    Ok((version, Basis { thresholds, scan_period_ms: Millis(number(KEY_SCAN_PERIOD)?), page_bytes: Bytes(number(KEY_PAGE)?) }))
}
