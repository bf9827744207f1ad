//! Writes compacted files.

use std::io::BufWriter;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, LogicalType, Type as Physical};
use parquet::data_type::{ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use store::file::temporary_for;
use tempfile::NamedTempFile;
use units::UnixMillis;

use super::{Basis, ByteArray, Entry, Error, JobDay, JobId, KEY_VERSION, Path, PathBuf, Result, VERSION, day_entries_max};
use crate::calendar::DAY_MS;
use crate::schema;
use crate::write::{FileSummary, persist};

/// Columns of text, of numbers, and of bytes, in the order of the file.
pub(super) const WORDS: [&str; 6] = ["cluster", "machine", "job", "class", "policy", "tracker"];
pub(super) const NUMBERS: [&str; 5] = ["job_key", "day_unix_ms", "entries", "page_shift", "checksum"];
pub(super) const TILES: &str = "tiles";

/// Bytes of tiles after which the row group ends with the current job.
const GROUP_BYTES: usize = 16 << 20;

/// Approximate size of a page of the file, in bytes of tiles. A page stays in the processor's cache until it is
/// unpacked; half of this size and twice of it were slower.
pub(super) const PAGE_BYTES: usize = 256 << 10;
/// Days written between two checks of a page's size.
pub(super) const PAGE_CHECK_DAYS: usize = 4;
/// Maximum days in a row group. A reader holds their small columns in less than half of what it allows any file.
const GROUP_DAYS_MAX: usize = 1 << 18;

/// A compacted file being written. It appears under its name when it is complete.
pub struct Compactor {
    path: PathBuf,
    basis: Basis,
    file: SerializedFileWriter<BufWriter<NamedTempFile>>,
    /// Entries of the current row.
    day: Vec<Entry>,
    days: Vec<JobDay>,
    days_bytes: usize,
    last_job: Option<JobId>,
    written: FileSummary,
}

impl std::fmt::Debug for Compactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compactor").field("path", &self.path).field("written", &self.written).finish_non_exhaustive()
    }
}

impl Compactor {
    /// Creates the file that will be renamed to `path`, and its directory.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Parquet`].
    pub fn create(path: &Path, basis: Basis) -> Result<Self> {
        let failed = Error::parquet(path);
        let schema = schema().map_err(&failed)?;
        let file = SerializedFileWriter::new(BufWriter::new(temporary_for(path)?), schema, Arc::new(properties(&basis)));
        let file = file.map_err(&failed)?;
        let (day, days, written) = (Vec::new(), Vec::new(), FileSummary::default());
        Ok(Self { path: path.to_owned(), basis, file, day, days, days_bytes: 0, last_job: None, written })
    }

    /// Appends an entry. Entries must be sorted by [`Entry::order`].
    ///
    /// # Errors
    /// [`Error::Order`]; [`Error::Damaged`] for too many entries of one day; any error of writing.
    pub fn push(&mut self, entry: Entry) -> Result<()> {
        let day = |entry: &Entry| entry.figures.start_unix_ms.0 / DAY_MS;
        if let Some(last) = self.day.last() {
            if last.order() > entry.order() {
                let (job, start_unix_ms) = (entry.id.job.clone(), entry.figures.start_unix_ms);
                return Err(Error::Order { path: self.path.clone(), job, start_unix_ms });
            }
            if last.id != entry.id || day(last) != day(&entry) || last.labels.tracker != entry.labels.tracker {
                self.end_row();
            }
        }
        self.begin_job(&entry.id)?;
        let most = day_entries_max(self.basis.buckets(), VERSION);
        if self.day.len() >= most {
            return Err(Error::damaged(&self.path, format!("{} has more than {most} entries of one day", entry.id.job)));
        }
        self.written.entries += 1;
        self.day.push(entry);
        Ok(())
    }

    /// Ends the row group if it is large and this is another job than that of the last entry.
    fn begin_job(&mut self, id: &JobId) -> Result<()> {
        if self.last_job.as_ref() == Some(id) {
            return Ok(());
        }
        if self.days_bytes >= GROUP_BYTES || self.days.len() >= GROUP_DAYS_MAX / 2 {
            self.end_group()?;
        }
        self.written.jobs += 1;
        self.last_job = Some(id.clone());
        Ok(())
    }

    /// Returns the number of entries so far.
    pub(super) fn entries(&self) -> u64 {
        self.written.entries
    }

    /// Returns whether an entry may be appended by its order.
    pub(super) fn follows(&self, entry: &Entry) -> bool {
        match self.day.last() {
            Some(last) => last.order() <= entry.order(),
            None => self.last_job.as_ref().is_none_or(|last| *last < entry.id),
        }
    }

    /// Appends a packed day. Returns `false` if its job is before that of the last one.
    pub(super) fn push_day(&mut self, day: JobDay) -> Result<bool> {
        self.end_row();
        if self.last_job.as_ref().is_some_and(|last| *last > day.id) {
            return Ok(false);
        }
        self.begin_job(&day.id)?;
        self.written.entries += day.entries as u64;
        self.days_bytes += day.tiles.len();
        self.days.push(day);
        Ok(true)
    }

    fn end_row(&mut self) {
        let Some(first) = self.day.first() else { return };
        let start = first.figures.start_unix_ms.0;
        if let Some(day) = JobDay::pack(&self.day, UnixMillis(start - start % DAY_MS), &self.basis) {
            self.days_bytes += day.tiles.len();
            self.days.push(day);
        }
        self.day.clear();
    }

    fn end_group(&mut self) -> Result<()> {
        if self.days.is_empty() {
            return Ok(());
        }
        if self.days.len() > GROUP_DAYS_MAX {
            return Err(Error::damaged(&self.path, format!("a row group has more than {GROUP_DAYS_MAX} days")));
        }
        write_group(&mut self.file, &self.days).map_err(Error::parquet(&self.path))?;
        self.days.clear();
        self.days_bytes = 0;
        Ok(())
    }

    /// Completes the file: it is durable and appears under its name.
    ///
    /// # Errors
    /// Any error of writing; no file appears then.
    pub fn finish(mut self) -> Result<FileSummary> {
        self.end_row();
        self.end_group()?;
        let buffered = self.file.into_inner().map_err(Error::parquet(&self.path))?;
        let size = persist(&self.path, buffered)?;
        Ok(FileSummary { size, ..self.written })
    }
}

fn schema() -> Result<TypePtr, ParquetError> {
    let mut fields = Vec::new();
    for name in WORDS {
        fields.push(schema::column(name, Physical::BYTE_ARRAY, Some(LogicalType::String))?);
    }
    for name in NUMBERS {
        fields.push(schema::column(name, Physical::INT64, None)?);
    }
    fields.push(schema::column(TILES, Physical::BYTE_ARRAY, None)?);
    Ok(Arc::new(Type::group_type_builder("compact").with_fields(fields).build()?))
}

/// Returns the properties of the writer. Nothing is compressed: tiles are packed, and the other columns are small.
fn properties(basis: &Basis) -> WriterProperties {
    let mut builder = WriterProperties::builder()
        .set_created_by(concat!("thermocline ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(schema::metadata(basis, KEY_VERSION, VERSION)))
        .set_compression(Compression::UNCOMPRESSED)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_dictionary_enabled(false)
        .set_offset_index_disabled(true)
        .set_data_page_size_limit(PAGE_BYTES)
        .set_write_batch_size(PAGE_CHECK_DAYS);
    for name in WORDS {
        builder = builder.set_column_dictionary_enabled(ColumnPath::from(name), true);
    }
    for name in NUMBERS {
        builder = builder.set_column_encoding(ColumnPath::from(name), Encoding::DELTA_BINARY_PACKED);
    }
    builder.build()
}

fn write_group(file: &mut SerializedFileWriter<BufWriter<NamedTempFile>>, days: &[JobDay]) -> Result<(), ParquetError> {
    let missing = || ParquetError::General("fewer columns than the schema has".to_owned());
    let mut group = file.next_row_group()?;
    let text = |word: &str| ByteArray::from(word);
    let words: [fn(&JobDay) -> &str; WORDS.len()] =
        [|day| &day.id.cluster, |day| &day.id.machine, |day| &day.id.job, |day| &day.class, |day| &day.policy, |day| &day.tracker];
    for word in words {
        let mut writer = group.next_column()?.ok_or_else(missing)?;
        let column: Vec<_> = days.iter().map(|day| text(word(day))).collect();
        writer.typed::<ByteArrayType>().write_batch(&column, None, None)?;
        writer.close()?;
    }
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let numbers: [&dyn Fn(&JobDay) -> i64; NUMBERS.len()] = [
        &|day| day.id.job_key,
        &|day| signed(day.day_unix_ms.0),
        &|day| signed(day.entries as u64),
        &|day| i64::from(day.page_shift),
        &|day| day.checksum,
    ];
    for number in numbers {
        let mut writer = group.next_column()?.ok_or_else(missing)?;
        let column: Vec<_> = days.iter().map(number).collect();
        writer.typed::<Int64Type>().write_batch(&column, None, None)?;
        writer.close()?;
    }
    let mut writer = group.next_column()?.ok_or_else(missing)?;
    let column: Vec<_> = days.iter().map(|day| day.tiles.clone()).collect();
    writer.typed::<ByteArrayType>().write_batch(&column, None, None)?;
    writer.close()?;
    group.close()?;
    Ok(())
}
