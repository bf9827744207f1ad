//! Writes trace files.

use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedFileWriter;
use parquet_guard::{ALLOWANCE_BYTES, TEXT_BYTES};
use store::FileError;
use store::file::temporary_for;
use tempfile::NamedTempFile;
use units::{Bytes, UnixMillis};

use crate::entry::{Basis, Entry, FIGURES, JobId};
use crate::error::{Error, Result};
use crate::schema::{self, WORDS};

/// Entries after which the row group ends with the current job. At 33 buckets a group takes about 6 MB, which is the
/// memory that the writer needs, and its packed bytes stay in the processor's cache while they are read.
pub const GROUP_ENTRIES: usize = 1 << 13;
/// Files of fewer entries are not compressed ([`schema::properties`]).
const SMALL_ENTRIES: usize = 1 << 10;

/// Returns the maximum entries of a row group, and so of one job in one file. A reader holds them in three quarters of what it
/// allows any file; the rest is for names and pages. At 33 buckets that is a year of five-minute entries.
#[must_use]
pub fn group_entries_max(buckets: usize) -> usize {
    usize::try_from(ALLOWANCE_BYTES / 4 * 3 / entry_bytes(buckets)).unwrap_or(usize::MAX)
}

/// Memory of one entry while its row group is decoded: a number for each column and a buffer, three names and a label as the
/// library returns them, and a code for each label.
pub(crate) fn entry_bytes(buckets: usize) -> u64 {
    (8 * (FIGURES.len() + 2 * buckets + 1) + 4 * WORDS.len()) as u64 + 4 * TEXT_BYTES
}

/// A trace file being written. It appears under its name when it is complete.
pub struct Writer {
    path: PathBuf,
    basis: Basis,
    file: Output,
    words: [Vec<ByteArray>; WORDS.len()],
    /// `job_key`, then [`FIGURES`], then the histograms.
    numbers: Vec<Vec<i64>>,
    last: Option<(JobId, UnixMillis)>,
    written: FileSummary,
}

/// The file, whose properties depend on the size of the first row group.
enum Output {
    Unopened(NamedTempFile),
    Open(Box<SerializedFileWriter<BufWriter<NamedTempFile>>>),
    /// An error occurred while the file was opened.
    Failed,
}

/// Summary of a complete file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSummary {
    /// Entries.
    pub entries: u64,
    /// Jobs.
    pub jobs: u64,
    /// Size of the file.
    pub size: Bytes,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("path", &self.path).field("written", &self.written).finish_non_exhaustive()
    }
}

impl Writer {
    /// Creates the file that will be renamed to `path`, and its directory.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Parquet`].
    pub fn create(path: &Path, basis: Basis) -> Result<Self> {
        let file = Output::Unopened(temporary_for(path)?);
        let numbers = vec![Vec::new(); 1 + FIGURES.len() + 2 * basis.buckets()];
        Ok(Self { path: path.to_owned(), basis, file, words: Default::default(), numbers, last: None, written: FileSummary::default() })
    }

    /// Appends an entry. Entries must be sorted by [`Entry::order`].
    ///
    /// # Errors
    /// [`Error::Order`]; [`Error::Damaged`] if a histogram does not have [`Basis::buckets`] counters or a job has more
    /// entries than [`group_entries_max`]; any error of writing.
    pub fn push(&mut self, entry: &Entry) -> Result<()> {
        let buckets = self.basis.buckets();
        if entry.cold_pages.len() != buckets || entry.promotions_pages.len() != buckets {
            let (cold, promotions) = (entry.cold_pages.len(), entry.promotions_pages.len());
            let what = format!("an entry of {} has histograms of {cold} and {promotions} buckets; there are {buckets}", entry.id.job);
            return Err(Error::damaged(&self.path, what));
        }
        let same_job = match &self.last {
            Some((id, start)) if (id, *start) > entry.order() => {
                let (job, start_unix_ms) = (entry.id.job.clone(), entry.figures.start_unix_ms);
                return Err(Error::Order { path: self.path.clone(), job, start_unix_ms });
            }
            Some((id, _)) => *id == entry.id,
            None => false,
        };
        let held = self.numbers[0].len();
        let most = group_entries_max(buckets);
        if held >= GROUP_ENTRIES.min(most / 2) && !same_job {
            self.end_group()?;
        } else if held >= most {
            return Err(Error::damaged(&self.path, format!("{} has more than {most} entries; merge fewer days", entry.id.job)));
        }
        self.buffer(entry, same_job);
        if same_job {
            if let Some((_, start)) = &mut self.last {
                *start = entry.figures.start_unix_ms;
            }
        } else {
            self.written.jobs += 1;
            self.last = Some((entry.id.clone(), entry.figures.start_unix_ms));
        }
        self.written.entries += 1;
        Ok(())
    }

    fn buffer(&mut self, entry: &Entry, same_job: bool) {
        let Entry { id, labels, figures, cold_pages, promotions_pages } = entry;
        let words = [&id.cluster, &id.machine, &id.job, &labels.class, &labels.policy, &labels.tracker, &labels.decision];
        for (column, word) in self.words.iter_mut().zip(words) {
            // Words rarely change between consecutive entries: share the bytes.
            let value = column.last().filter(|last| same_job && last.data() == word.as_bytes()).cloned();
            column.push(value.unwrap_or_else(|| ByteArray::from(word.as_str())));
        }
        let (key, columns) = self.numbers.split_at_mut(1);
        key[0].push(id.job_key);
        let figures = figures.to_array();
        let values = figures.iter().chain(cold_pages).chain(promotions_pages);
        for (column, &value) in columns.iter_mut().zip(values) {
            column.push(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }

    /// Opens the file before its first row group.
    fn open(&mut self, small: bool) -> Result<()> {
        let failed = Error::parquet(&self.path);
        let temporary = match std::mem::replace(&mut self.file, Output::Failed) {
            Output::Unopened(temporary) => temporary,
            open => {
                self.file = open;
                return Ok(());
            }
        };
        let schema = schema::schema(self.basis.buckets()).map_err(&failed)?;
        let properties = Arc::new(schema::properties(&self.basis, small).map_err(&failed)?);
        let file = SerializedFileWriter::new(BufWriter::new(temporary), schema, properties).map_err(&failed)?;
        self.file = Output::Open(Box::new(file));
        Ok(())
    }

    fn write_group(&mut self) -> Result<()> {
        if let Output::Open(file) = &mut self.file {
            write_group(file, &self.words, &self.numbers).map_err(Error::parquet(&self.path))?;
        }
        Ok(())
    }

    fn end_group(&mut self) -> Result<()> {
        if self.numbers[0].is_empty() {
            return Ok(());
        }
        self.open(false)?;
        self.write_group()?;
        self.words.iter_mut().for_each(Vec::clear);
        self.numbers.iter_mut().for_each(Vec::clear);
        Ok(())
    }

    /// Completes the file: it is durable and appears under its name.
    ///
    /// # Errors
    /// Any error of writing; no file appears then.
    pub fn finish(mut self) -> Result<FileSummary> {
        self.open(self.written.entries < SMALL_ENTRIES as u64)?;
        self.end_group()?;
        let Output::Open(file) = self.file else {
            return Err(Error::damaged(&self.path, "the file was not opened, as an error before reported; write it again"));
        };
        let size = persist(&self.path, file.into_inner().map_err(Error::parquet(&self.path))?)?;
        Ok(FileSummary { size, ..self.written })
    }
}

fn write_group(
    file: &mut SerializedFileWriter<BufWriter<NamedTempFile>>,
    words: &[Vec<ByteArray>],
    numbers: &[Vec<i64>],
) -> Result<(), ParquetError> {
    let missing = || ParquetError::General("fewer columns than the schema has".to_owned());
    let mut group = file.next_row_group()?;
    for column in words {
        let mut writer = group.next_column()?.ok_or_else(missing)?;
        writer.typed::<ByteArrayType>().write_batch(column, None, None)?;
        writer.close()?;
    }
    for column in numbers {
        let mut writer = group.next_column()?.ok_or_else(missing)?;
        writer.typed::<Int64Type>().write_batch(column, None, None)?;
        writer.close()?;
    }
    group.close()?;
    Ok(())
}

/// Extension of the names of trace files, without the dot.
pub const EXTENSION: &str = "parquet";

/// Persists a completely written file under its name. Returns its size.
pub(crate) fn persist(path: &Path, buffered: BufWriter<NamedTempFile>) -> Result<Bytes> {
    let temporary = buffered.into_inner().map_err(|error| FileError::at(path, "write")(error.into_error()))?;
    Ok(store::file::persist(temporary, path)?)
}
