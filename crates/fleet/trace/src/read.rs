//! Reads trace files: by row group, as columns.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parquet::basic::Type;
use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;
use parquet_guard::Guard;
use store::FileError;

use crate::direct::{Batch, Direct, Part, Wanted};
use crate::entry::{Basis, Entry, FIGURES, Figures, JobId, Labels};
use crate::error::{Error, Result};
use crate::schema::{self, ID_WORDS, JOB_KEY, WORDS};
use crate::write::entry_bytes;

/// Names of the jobs of one row group: a thousand bytes for each of the entries that a group usually has.
pub(crate) const NAMES_BYTES_MAX: usize = 32 << 20;
/// Distinct words of a label in one row group. Agents write a handful.
pub(crate) const LABELS_MAX: usize = 1 << 10;

/// An open trace file.
pub struct Trace {
    path: PathBuf,
    version: u32,
    basis: Basis,
    /// The file as our own writer wrote it; `None` if its layout is another.
    direct: Option<Box<Direct>>,
    /// Opened when it is needed.
    library: OnceLock<Library>,
}

/// The file as the Parquet library reads it.
struct Library {
    reader: SerializedFileReader<File>,
    guard: Guard,
    /// Index of each column, by name.
    columns: HashMap<String, usize>,
}

impl Library {
    fn open(path: &Path) -> Result<(Self, u32, Basis)> {
        let file = File::open(path).map_err(FileError::at(path, "open"))?;
        let guard = Guard::new(&file).map_err(|problem| Error::damaged(path, problem))?;
        let reader = SerializedFileReader::new(file).map_err(Error::parquet(path))?;
        let metadata = reader.metadata().file_metadata();
        let (version, basis) = schema::trace_metadata(path, metadata.key_value_metadata())?;
        let described = metadata.schema_descr();
        let columns = described.columns().iter().enumerate().map(|(at, column)| (column.path().string(), at)).collect();
        Ok((Self { reader, guard, columns }, version, basis))
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("path", &self.path).field("version", &self.version).finish_non_exhaustive()
    }
}

/// The entries of a row group as columns. All entries of a job in a file are in one row group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// The jobs, in order, each with its rows. Together they cover all rows.
    pub runs: Vec<Run>,
    /// One column per element of [`FIGURES`], one number per row.
    pub figures: Vec<Vec<u64>>,
    /// Counters per histogram.
    pub buckets: usize,
    /// Cold-age histograms, in pages: row by row, `buckets` counters each.
    pub cold_pages: Vec<u64>,
    /// Promotion histograms, in the same layout.
    pub promotions_pages: Vec<u64>,
    labels: [DictionaryColumn; WORDS.len() - ID_WORDS],
}

/// The rows of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The job.
    pub id: JobId,
    /// Indices of its rows, sorted by time.
    pub rows: Range<usize>,
}

/// A column of few distinct words: a dictionary, and each row's index in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DictionaryColumn {
    words: Vec<String>,
    codes: Vec<u32>,
}

impl DictionaryColumn {
    fn push(&mut self, word: &str) {
        // Consecutive rows mostly have the same word.
        let last = self.codes.last().copied().filter(|&code| self.get(code) == word);
        let code = last.or_else(|| self.words.iter().position(|known| known == word).and_then(|at| u32::try_from(at).ok()));
        self.codes.push(code.unwrap_or_else(|| {
            self.words.push(word.to_owned());
            u32::try_from(self.words.len() - 1).unwrap_or(u32::MAX)
        }));
    }

    fn get(&self, code: u32) -> &str {
        usize::try_from(code).ok().and_then(|code| self.words.get(code)).map_or("", String::as_str)
    }

    fn at(&self, row: usize) -> String {
        self.codes.get(row).map(|&code| self.get(code)).unwrap_or_default().to_owned()
    }
}

impl Rows {
    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.figures.first().map_or(0, Vec::len)
    }

    /// Returns whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the cold-age histogram of a row.
    #[must_use]
    pub fn cold(&self, row: usize) -> &[u64] {
        &self.cold_pages[row * self.buckets..][..self.buckets]
    }

    /// Returns the promotion histogram of a row.
    #[must_use]
    pub fn promotions(&self, row: usize) -> &[u64] {
        &self.promotions_pages[row * self.buckets..][..self.buckets]
    }

    /// Returns the numbers of a row.
    #[must_use]
    pub fn figures(&self, row: usize) -> Figures {
        Figures::from_array(std::array::from_fn(|column| self.figures[column][row]))
    }

    /// Returns the class, policy, tracker and last decision of a row.
    #[must_use]
    pub fn labels(&self, row: usize) -> Labels {
        let [class, policy, tracker, decision] = &self.labels;
        Labels { class: class.at(row), policy: policy.at(row), tracker: tracker.at(row), decision: decision.at(row) }
    }

    /// Returns the tracker of a row.
    #[must_use]
    pub fn tracker(&self, row: usize) -> &str {
        let tracker = &self.labels[2];
        tracker.codes.get(row).map_or("", |&code| tracker.get(code))
    }

    /// Returns a row of the run with index `run` as an entry.
    #[must_use]
    pub fn entry(&self, run: usize, row: usize) -> Entry {
        Entry {
            id: self.runs[run].id.clone(),
            labels: self.labels(row),
            figures: self.figures(row),
            cold_pages: self.cold(row).to_vec(),
            promotions_pages: self.promotions(row).to_vec(),
        }
    }

    /// Iterates over all entries in order.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.runs.iter().enumerate().flat_map(move |(index, run)| run.rows.clone().map(move |row| self.entry(index, row)))
    }
}

impl Trace {
    /// Opens a file and reads its metadata.
    ///
    /// # Errors
    /// [`Error::Newer`] for a version above [`schema::VERSION`]; [`Error::Parquet`] and [`Error::Damaged`] if the file
    /// is not a trace; [`Error::File`].
    pub fn open(path: &Path) -> Result<Self> {
        guarded(path, || Self::open_unguarded(path))
    }

    fn open_unguarded(path: &Path) -> Result<Self> {
        let library = OnceLock::new();
        if let Some(direct) = Direct::open(path) {
            return Ok(Self {
                path: path.to_owned(),
                version: direct.version,
                basis: direct.basis,
                direct: Some(Box::new(direct)),
                library,
            });
        }
        let (opened, version, basis) = Library::open(path)?;
        let _ = library.set(opened);
        Ok(Self { path: path.to_owned(), version, basis, direct: None, library })
    }

    /// Returns the file as the library reads it.
    fn library(&self) -> Result<&Library> {
        if let Some(library) = self.library.get() {
            return Ok(library);
        }
        let opened = Library::open(&self.path)?.0;
        Ok(self.library.get_or_init(|| opened))
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the version of the file's schema.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the basis of the histograms.
    #[must_use]
    pub fn basis(&self) -> &Basis {
        &self.basis
    }

    /// Returns the number of row groups.
    #[must_use]
    pub fn groups(&self) -> usize {
        let direct = self.direct.as_deref().map(Direct::groups);
        direct.or_else(|| self.library.get().map(|library| library.reader.num_row_groups())).unwrap_or(0)
    }

    /// Returns the number of entries according to the file's metadata.
    #[must_use]
    pub fn entries(&self) -> u64 {
        let library = || u64::try_from(self.library.get()?.reader.metadata().file_metadata().num_rows()).ok();
        self.direct.as_deref().map(|direct| direct.rows).or_else(library).unwrap_or(0)
    }

    /// Calls `each` for the rows of one row group, in order: the jobs' rows in each [`Batch`]. Several times as fast as
    /// [`Self::group`].
    ///
    /// Returns whether the whole group was read. `false`: it is not as our own writer writes it, or has a sum of pages beyond 31 bits,
    /// and [`Self::group`] must read it; some rows may have been passed to `each` before that was found.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn scan<E>(&self, group: usize, wanted: &Wanted, each: &mut dyn FnMut(&Batch, &Part<'_>) -> Result<(), E>) -> Result<bool, E> {
        self.direct.as_deref().map_or(Ok(false), |direct| direct.scan(group, wanted, each))
    }

    /// Decodes the row groups one after the other.
    pub fn rows(&self) -> impl Iterator<Item = Result<Rows>> + '_ {
        (0..self.groups()).map(|group| self.group(group))
    }

    /// Decodes one row group.
    ///
    /// # Errors
    /// [`Error::Parquet`] and [`Error::Damaged`] if the group does not have the columns of the schema.
    pub fn group(&self, index: usize) -> Result<Rows> {
        guarded(&self.path, || self.group_unguarded(index))
    }

    fn group_unguarded(&self, index: usize) -> Result<Rows> {
        let library = self.library()?;
        let group = library.reader.get_row_group(index).map_err(Error::parquet(&self.path))?;
        let mut columns = self.columns_of(library, group.as_ref())?;
        let buckets = self.basis.buckets();
        let runs = columns.runs()?;
        let mut labels = <[DictionaryColumn; WORDS.len() - ID_WORDS]>::default();
        for (coded, name) in labels.iter_mut().zip(&WORDS[ID_WORDS..]) {
            for word in columns.words(name)? {
                coded.push(text(&word));
                if coded.words.len() > LABELS_MAX {
                    return Err(self.damaged(format!("column {name} has more than {LABELS_MAX} distinct words in one row group")));
                }
            }
        }
        let mut figures = Vec::with_capacity(FIGURES.len());
        for figure in FIGURES {
            // Columns that are newer than the file are zero.
            figures.push(if figure.since > self.version { vec![0; columns.rows] } else { columns.counts(figure.name)? });
        }
        let cold_pages = columns.histograms(buckets, schema::cold_column)?;
        let promotions_pages = columns.histograms(buckets, schema::promotions_column)?;
        Ok(Rows { runs, figures, buckets, cold_pages, promotions_pages, labels })
    }

    /// Returns the first job of a row group without decoding the rest; `None` if the group is empty.
    ///
    /// # Errors
    /// As [`Self::group`].
    pub fn first_job(&self, index: usize) -> Result<Option<JobId>> {
        guarded(&self.path, || {
            let library = self.library()?;
            let group = library.reader.get_row_group(index).map_err(Error::parquet(&self.path))?;
            let mut columns = self.columns_of(library, group.as_ref())?;
            columns.rows = columns.rows.min(1);
            Ok(columns.runs()?.into_iter().next().map(|run| run.id))
        })
    }

    /// Checks the memory that a row group takes before anything of it is read.
    fn columns_of<'a>(&'a self, library: &'a Library, group: &'a dyn RowGroupReader) -> Result<Columns<'a>> {
        let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(usize::MAX);
        let chunks = |text: bool| {
            let columns = group.metadata().columns().iter();
            columns.filter(move |chunk| (chunk.column_type() == Type::BYTE_ARRAY) == text)
        };
        let checked = library.guard.check(rows, entry_bytes(self.basis.buckets()), chunks(true), chunks(false));
        checked.map_err(|problem| self.damaged(problem))?;
        Ok(Columns { trace: self, library, group, rows, numbers: Vec::new() })
    }

    fn damaged(&self, what: impl Into<String>) -> Error {
        Error::damaged(&self.path, what)
    }
}

/// Reads the columns of one row group.
struct Columns<'a> {
    trace: &'a Trace,
    library: &'a Library,
    group: &'a dyn RowGroupReader,
    rows: usize,
    /// Buffer, reused for each column.
    numbers: Vec<i64>,
}

impl Columns<'_> {
    fn open(&self, name: &str) -> Result<ColumnReader> {
        let Some(&at) = self.library.columns.get(name) else {
            return Err(self.trace.damaged(format!("column {name} of version {} is missing", self.trace.version)));
        };
        let column = self.library.reader.metadata().file_metadata().schema_descr().column(at);
        if column.max_def_level() > 0 || column.max_rep_level() > 0 {
            return Err(self.trace.damaged(format!("column {name} is optional or repeated; every column of a trace is required and flat")));
        }
        self.group.get_column_reader(at).map_err(Error::parquet(&self.trace.path))
    }

    fn complete(&self, name: &str, read: usize) -> Result<()> {
        if read == self.rows {
            return Ok(());
        }
        Err(self.trace.damaged(format!("column {name} ends after {read} of {} rows", self.rows)))
    }

    /// Reads a column of numbers into `self.numbers`.
    fn read_numbers(&mut self, name: &str) -> Result<()> {
        let ColumnReader::Int64ColumnReader(mut reader) = self.open(name)? else {
            return Err(self.trace.damaged(format!("column {name} has not the type of a 64-bit integer")));
        };
        self.numbers.clear();
        while self.numbers.len() < self.rows {
            let missing = self.rows - self.numbers.len();
            let (records, ..) = reader.read_records(missing, None, None, &mut self.numbers).map_err(Error::parquet(&self.trace.path))?;
            if records == 0 {
                break;
            }
        }
        self.complete(name, self.numbers.len())
    }

    /// Reads a column of non-negative numbers.
    fn counts(&mut self, name: &str) -> Result<Vec<u64>> {
        self.read_numbers(name)?;
        let counts: Option<Vec<u64>> = self.numbers.iter().map(|&number| u64::try_from(number).ok()).collect();
        counts.ok_or_else(|| self.trace.damaged(format!("column {name} has a negative number")))
    }

    /// Reads histograms, stored as one column per bucket, into one row of counters per entry.
    fn histograms(&mut self, buckets: usize, name: fn(usize) -> String) -> Result<Vec<u64>> {
        let mut histograms = vec![0; self.rows * buckets];
        for bucket in 0..buckets {
            let name = name(bucket);
            self.read_numbers(&name)?;
            for (histogram, &number) in histograms.chunks_exact_mut(buckets).zip(&self.numbers) {
                histogram[bucket] =
                    u64::try_from(number).map_err(|_| self.trace.damaged(format!("column {name} has a negative number")))?;
            }
        }
        Ok(histograms)
    }

    fn words(&mut self, name: &str) -> Result<Vec<ByteArray>> {
        let ColumnReader::ByteArrayColumnReader(mut reader) = self.open(name)? else {
            return Err(self.trace.damaged(format!("column {name} has not the type of a text")));
        };
        let mut words = Vec::with_capacity(self.rows);
        while words.len() < self.rows {
            let (records, ..) =
                reader.read_records(self.rows - words.len(), None, None, &mut words).map_err(Error::parquet(&self.trace.path))?;
            if records == 0 {
                break;
            }
        }
        self.complete(name, words.len())?;
        Ok(words)
    }

    /// Splits the rows into runs of one job each.
    fn runs(&mut self) -> Result<Vec<Run>> {
        let words = [self.words(WORDS[0])?, self.words(WORDS[1])?, self.words(WORDS[2])?];
        self.read_numbers(JOB_KEY)?;
        let mut runs: Vec<Run> = Vec::new();
        // A name is stored once in the file, and here once for each run.
        let mut names = 0;
        for row in 0..self.rows {
            let same = row > 0 && self.numbers[row] == self.numbers[row - 1] && words.iter().all(|column| column[row] == column[row - 1]);
            match runs.last_mut().filter(|_| same) {
                Some(run) => run.rows.end = row + 1,
                None => {
                    let [cluster, machine, job] = words.each_ref().map(|column| text(&column[row]).to_owned());
                    names += size_of::<Run>() + cluster.len() + machine.len() + job.len();
                    if names > NAMES_BYTES_MAX {
                        return Err(self.trace.damaged(format!("the names of a row group take more than {NAMES_BYTES_MAX} bytes")));
                    }
                    runs.push(Run { id: JobId { cluster, machine, job, job_key: self.numbers[row] }, rows: row..row + 1 });
                }
            }
        }
        Ok(runs)
    }
}

/// Calls the Parquet library on bytes of a file. The library checks some of them by assertions: a panic is reported as
/// a damaged file and does not end the program.
pub(crate) fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::damaged(path, format!("damaged: {}", message.unwrap_or("the Parquet library panicked"))))
    })
}

/// Returns a word as text. Agents write UTF-8 only; a word that is not UTF-8 becomes "?", and the numbers beside it
/// stay usable.
fn text(word: &ByteArray) -> &str {
    word.as_utf8().unwrap_or("?")
}
