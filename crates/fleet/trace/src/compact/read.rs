//! Reads compacted files.

use std::fs::File;

use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::ByteArrayType;
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;
use parquet_guard::{Guard, TEXT_BYTES};
use store::FileError;
use units::UnixMillis;

use super::write::{NUMBERS, TILES, WORDS};
use super::{Basis, ByteArray, Error, JobDay, JobId, KEY_VERSION, Path, PathBuf, Result, SINCE_TRACKER, VERSION};
use crate::read::guarded;
use crate::schema;

/// Memory of a row without its tiles: words as the library returns them, and numbers.
const DAY_BYTES: u64 = WORDS.len() as u64 * TEXT_BYTES + 8 * NUMBERS.len() as u64;

/// An open compacted file.
pub struct CompactedTrace {
    path: PathBuf,
    version: u32,
    basis: Basis,
    reader: SerializedFileReader<File>,
    guard: Guard,
    /// Number of columns of words: the last is missing before version 3.
    words: usize,
    /// Indices of the columns: words, numbers, tiles.
    columns: Vec<usize>,
}

impl std::fmt::Debug for CompactedTrace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompactedTrace").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The days of a row group, sorted by job, then by day. They are read on demand: one page of the file is in memory at a
/// time. All days of a job in a file are in one row group.
pub struct Days<'a> {
    file: &'a CompactedTrace,
    /// The small columns, for all days.
    words: Vec<Vec<ByteArray>>,
    numbers: Vec<Vec<i64>>,
    tiles: ColumnReaderImpl<ByteArrayType>,
    rows: std::ops::Range<usize>,
}

impl std::fmt::Debug for Days<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Days").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl Iterator for Days<'_> {
    type Item = Result<JobDay>;

    fn next(&mut self) -> Option<Result<JobDay>> {
        let row = self.rows.next()?;
        let Self { file, words, numbers, tiles, .. } = self;
        let read = guarded(&file.path, || {
            let mut values = Vec::new();
            let read = tiles.read_records(1, None, None, &mut values);
            read.map_err(Error::parquet(&file.path))?;
            let tiles = values.pop().ok_or_else(|| Error::damaged(&file.path, format!("the entries end before row {row}")))?;
            file.day(row, words, numbers, tiles)
        });
        // The position after damaged bytes is unknown: stop.
        if read.is_err() {
            self.rows.start = self.rows.end;
        }
        Some(read)
    }
}

impl CompactedTrace {
    /// Opens a file and reads its metadata.
    ///
    /// # Errors
    /// [`Error::Newer`] for a version above [`VERSION`]; [`Error::Parquet`] and [`Error::Damaged`] if the file is not a
    /// compacted trace; [`Error::File`].
    pub fn open(path: &Path) -> Result<Self> {
        guarded(path, || {
            let file = File::open(path).map_err(FileError::at(path, "open"))?;
            let guard = Guard::new(&file).map_err(|problem| Error::damaged(path, problem))?;
            let reader = SerializedFileReader::new(file).map_err(Error::parquet(path))?;
            let metadata = reader.metadata().file_metadata();
            let (version, basis) = schema::parse_metadata(path, metadata.key_value_metadata(), KEY_VERSION, "compacted trace", VERSION)?;
            let mut columns = Vec::new();
            let words = WORDS.len() - usize::from(version < SINCE_TRACKER);
            for name in WORDS[..words].iter().chain(&NUMBERS).chain([&TILES]) {
                let described = metadata.schema_descr().columns();
                let at = described.iter().position(|column| column.path().string() == *name && column.max_def_level() == 0);
                columns.push(at.ok_or_else(|| Error::damaged(path, format!("the required column {name} is missing")))?);
            }
            Ok(Self { path: path.to_owned(), version, basis, words, columns, reader, guard })
        })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the basis of the histograms.
    #[must_use]
    pub fn basis(&self) -> &Basis {
        &self.basis
    }

    /// Returns the version of the file's layout.
    pub(super) fn version(&self) -> u32 {
        self.version
    }

    /// Returns the first job of each row group.
    ///
    /// # Errors
    /// As [`Self::group`].
    pub fn first_jobs(&self) -> Result<Vec<JobId>> {
        guarded(&self.path, || (0..self.groups()).map(|index| self.first_job(index)).collect())
    }

    fn first_job(&self, index: usize) -> Result<JobId> {
        let group = self.reader.get_row_group(index).map_err(Error::parquet(&self.path))?;
        if self.checked_rows(group.as_ref())? == 0 {
            return Err(Error::damaged(&self.path, format!("row group {index} is empty")));
        }
        let word = |at: usize| -> Result<String> {
            let values = self.bytes(group.as_ref(), self.columns[at], 1)?;
            Ok(values.first().and_then(|value| value.as_utf8().ok()).unwrap_or("?").to_owned())
        };
        let keys = self.numbers(group.as_ref(), self.columns[self.words], 1)?;
        Ok(JobId { cluster: word(0)?, machine: word(1)?, job: word(2)?, job_key: keys[0] })
    }

    /// Returns the number of row groups.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.reader.num_row_groups()
    }

    /// Returns the number of entries according to the file's rows.
    ///
    /// # Errors
    /// As [`Self::group`].
    pub fn entries(&self) -> Result<u64> {
        let at = self.columns[self.words + NUMBERS.iter().position(|name| *name == "entries").unwrap_or(0)];
        guarded(&self.path, || {
            let mut total = 0u64;
            for index in 0..self.groups() {
                let group = self.reader.get_row_group(index).map_err(Error::parquet(&self.path))?;
                let rows = self.checked_rows(group.as_ref())?;
                let counts = self.numbers(group.as_ref(), at, rows)?;
                total = counts.into_iter().fold(total, |total, count| total.saturating_add(u64::try_from(count).unwrap_or(0)));
            }
            Ok(total)
        })
    }

    /// Reads one row group. Its entries stay packed.
    ///
    /// # Errors
    /// [`Error::Parquet`] and [`Error::Damaged`] if it does not have the columns of the schema, here or when a day is
    /// read.
    pub fn group(&self, index: usize) -> Result<Days<'_>> {
        guarded(&self.path, || {
            let group = self.reader.get_row_group(index).map_err(Error::parquet(&self.path))?;
            let rows = self.checked_rows(group.as_ref())?;
            let (words, rest) = self.columns.split_at(self.words);
            let (numbers, tiles) = rest.split_at(NUMBERS.len());
            let words: Vec<_> = words.iter().map(|&at| self.bytes(group.as_ref(), at, rows)).collect::<Result<_>>()?;
            let numbers: Vec<_> = numbers.iter().map(|&at| self.numbers(group.as_ref(), at, rows)).collect::<Result<_>>()?;
            let tiles = match group.get_column_reader(tiles[0]).map_err(Error::parquet(&self.path))? {
                ColumnReader::ByteArrayColumnReader(reader) => reader,
                _ => return Err(Error::damaged(&self.path, format!("column {TILES} has not the type of bytes"))),
            };
            Ok(Days { file: self, words, numbers, tiles, rows: 0..rows })
        })
    }

    /// Returns the number of rows of a row group, after checking the memory that it takes.
    fn checked_rows(&self, group: &dyn RowGroupReader) -> Result<usize> {
        let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(usize::MAX);
        let (words, rest) = self.columns.split_at(self.words);
        let chunks = |columns: &[usize]| columns.iter().map(|&at| group.metadata().column(at)).collect::<Vec<_>>();
        let checked = self.guard.check(rows, DAY_BYTES, chunks(words).into_iter(), chunks(rest).into_iter());
        checked.map_err(|problem| Error::damaged(&self.path, problem))?;
        Ok(rows)
    }

    fn day(&self, row: usize, words: &[Vec<ByteArray>], numbers: &[Vec<i64>], tiles: ByteArray) -> Result<JobDay> {
        let word = |column: usize| words.get(column).map_or("", |words| words[row].as_utf8().unwrap_or("?")).to_owned();
        let count = |column: usize| {
            let number = numbers[column][row];
            u64::try_from(number).map_err(|_| Error::damaged(&self.path, format!("{} is {number} in row {row}", NUMBERS[column])))
        };
        Ok(JobDay {
            id: JobId { cluster: word(0), machine: word(1), job: word(2), job_key: numbers[0][row] },
            class: word(3),
            policy: word(4),
            tracker: word(5),
            day_unix_ms: UnixMillis(count(1)?),
            entries: usize::try_from(count(2)?).unwrap_or(usize::MAX),
            page_shift: u32::try_from(count(3)?).unwrap_or(u32::MAX),
            version: self.version,
            checksum: numbers[4][row],
            tiles,
        })
    }

    fn bytes(&self, group: &dyn RowGroupReader, at: usize, rows: usize) -> Result<Vec<ByteArray>> {
        let mut values = Vec::with_capacity(rows);
        match group.get_column_reader(at).map_err(Error::parquet(&self.path))? {
            ColumnReader::ByteArrayColumnReader(mut reader) => {
                while values.len() < rows {
                    let read = reader.read_records(rows - values.len(), None, None, &mut values);
                    if read.map_err(Error::parquet(&self.path))?.0 == 0 {
                        break;
                    }
                }
            }
            _ => return Err(Error::damaged(&self.path, format!("column {at} has not the type of a text"))),
        }
        self.complete(at, values, rows)
    }

    fn numbers(&self, group: &dyn RowGroupReader, at: usize, rows: usize) -> Result<Vec<i64>> {
        let mut values = Vec::with_capacity(rows);
        match group.get_column_reader(at).map_err(Error::parquet(&self.path))? {
            ColumnReader::Int64ColumnReader(mut reader) => {
                while values.len() < rows {
                    let read = reader.read_records(rows - values.len(), None, None, &mut values);
                    if read.map_err(Error::parquet(&self.path))?.0 == 0 {
                        break;
                    }
                }
            }
            _ => return Err(Error::damaged(&self.path, format!("column {at} has not the type of a 64-bit integer"))),
        }
        self.complete(at, values, rows)
    }

    fn complete<T>(&self, at: usize, values: Vec<T>, rows: usize) -> Result<Vec<T>> {
        if values.len() == rows {
            return Ok(values);
        }
        Err(Error::damaged(&self.path, format!("column {at} ends after {} of {rows} rows", values.len())))
    }
}
