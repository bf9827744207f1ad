//! Hostile files for tests.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::reader::ColumnReader;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::Result;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::file::writer::SerializedFileWriter;

/// Values written at once.
const BATCH: usize = 1 << 12;

/// Hostile changes of a file.
#[derive(Clone, Debug)]
pub struct Changes {
    /// Rows of the one row group.
    pub rows: usize,
    /// Text in the first column of text, instead of its own.
    pub text: Option<Vec<u8>>,
    /// Entries with an empty key in the footer.
    pub keys: usize,
    /// The largest page.
    pub page_bytes: usize,
}

/// Copies the first row of the file `from`, `changes.rows` times, into one row group of the file `to`.
///
/// # Errors
/// `from` cannot be read, or `to` cannot be written.
pub fn magnify(from: &Path, to: &Path, changes: &Changes) -> Result<()> {
    let reader = SerializedFileReader::new(File::open(from)?)?;
    let metadata = reader.metadata().file_metadata();
    let mut keys = metadata.key_value_metadata().cloned().unwrap_or_default();
    keys.extend(std::iter::repeat_n(KeyValue::new(String::new(), None), changes.keys));
    let properties = WriterProperties::builder()
        .set_key_value_metadata(Some(keys))
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_dictionary_enabled(false)
        .set_data_page_size_limit(changes.page_bytes)
        .set_encoding(Encoding::PLAIN);
    let schema = metadata.schema_descr().root_schema_ptr();
    let mut writer = SerializedFileWriter::new(File::create(to)?, schema, Arc::new(properties.build()))?;
    let source = reader.get_row_group(0)?;
    let mut group = writer.next_row_group()?;
    let mut text = changes.text.clone();
    let mut at = 0;
    while let Some(mut column) = group.next_column()? {
        match (source.get_column_reader(at)?, column.untyped()) {
            (ColumnReader::Int64ColumnReader(mut reader), ColumnWriter::Int64ColumnWriter(writer)) => {
                let mut first = Vec::new();
                reader.read_records(1, None, None, &mut first)?;
                let batch = vec![first[0]; BATCH];
                for done in (0..changes.rows).step_by(BATCH) {
                    writer.write_batch(&batch[..BATCH.min(changes.rows - done)], None, None)?;
                }
            }
            (ColumnReader::ByteArrayColumnReader(mut reader), ColumnWriter::ByteArrayColumnWriter(writer)) => {
                let mut first = Vec::new();
                reader.read_records(1, None, None, &mut first)?;
                let batch = vec![text.take().map_or_else(|| first[0].clone(), ByteArray::from); BATCH.min(changes.rows)];
                for done in (0..changes.rows).step_by(BATCH) {
                    writer.write_batch(&batch[..BATCH.min(changes.rows - done)], None, None)?;
                }
            }
            _ => {}
        }
        column.close()?;
        at += 1;
    }
    group.close()?;
    writer.close()?;
    Ok(())
}
