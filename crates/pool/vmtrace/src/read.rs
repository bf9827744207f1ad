//! Reading VM traces: one row group at a time, with every VM checked.

use std::collections::HashMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use parquet::column::reader::ColumnReader;
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use parquet_guard::Guard;

use crate::about::About;
use crate::error::{Error, Result};
use crate::schema::{self, COLUMNS, OPTIONAL, Row, UNKNOWN};
use crate::vm::{Recorded, Vm};

/// Memory of one VM while its row group is decoded: its columns, and the VM.
const VM_BYTES: u64 = (size_of::<Row>() + size_of::<Vm>() + size_of::<Recorded>()) as u64;

/// An open trace file.
pub struct Trace {
    path: PathBuf,
    version: u64,
    about: About,
    reader: SerializedFileReader<File>,
    guard: Guard,
    /// Position in the file of each of [`COLUMNS`]; `None` for one that the file lacks.
    columns: [Option<usize>; COLUMNS.len()],
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("path", &self.path).field("version", &self.version).finish_non_exhaustive()
    }
}

impl Trace {
    /// Opens a file and reads its metadata.
    ///
    /// # Errors
    /// [`Error::Newer`] for a version above [`schema::VERSION`]; [`Error::Parquet`] and [`Error::Damaged`] for a file that is
    /// not a VM trace; [`Error::File`].
    pub fn open(path: &Path) -> Result<Self> {
        guarded(path, || Self::open_unguarded(path))
    }

    fn open_unguarded(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::file(path, "open"))?;
        let guard = Guard::new(&file).map_err(|problem| Error::damaged(path, problem))?;
        let reader = SerializedFileReader::new(file).map_err(Error::parquet(path))?;
        let metadata = reader.metadata().file_metadata();
        let (version, about) = schema::parse_metadata(path, metadata.key_value_metadata())?;
        let described = metadata.schema_descr().columns();
        let places: HashMap<String, usize> = described.iter().enumerate().map(|(at, column)| (column.path().string(), at)).collect();
        let columns = COLUMNS.map(|name| places.get(name).copied());
        for (at, (column, name)) in columns.iter().zip(COLUMNS).enumerate() {
            match column.map(|column| &described[column]) {
                Some(column) if column.max_def_level() > 0 || column.max_rep_level() > 0 => {
                    return Err(Error::damaged(path, format!("column {name} allows nulls or lists; every column is required and flat")));
                }
                None if at < OPTIONAL => {
                    return Err(Error::damaged(path, format!("the column {name} of version {version} is missing")));
                }
                _ => {}
            }
        }
        Ok(Self { path: path.to_owned(), version, about, columns, reader, guard })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the version of the schema.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the metadata.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Returns the number of row groups.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.reader.num_row_groups()
    }

    /// Returns the number of VMs by the metadata.
    #[must_use]
    pub fn len(&self) -> u64 {
        u64::try_from(self.reader.metadata().file_metadata().num_rows()).unwrap_or(0)
    }

    /// Returns whether the trace has no VMs by the metadata.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the VMs in order of arrival. Holds one row group in memory. Nothing follows after an error.
    #[must_use]
    pub fn vms(&self) -> Vms<'_> {
        Vms { trace: self, group: 0, rows: Vec::new().into_iter(), last: None, failed: false }
    }

    /// Decodes one row group.
    ///
    /// # Errors
    /// [`Error::Parquet`] and [`Error::Damaged`] if the row group does not match the schema.
    pub fn group(&self, index: usize) -> Result<Vec<Vm>> {
        guarded(&self.path, || self.group_unguarded(index))
    }

    fn group_unguarded(&self, index: usize) -> Result<Vec<Vm>> {
        let group = self.reader.get_row_group(index).map_err(Error::parquet(&self.path))?;
        let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(usize::MAX);
        let chunks = self.columns.iter().flatten().map(|&at| group.metadata().column(at));
        self.guard.check(rows, VM_BYTES, std::iter::empty(), chunks).map_err(|problem| self.damaged(problem))?;
        let mut columns: [Vec<i64>; COLUMNS.len()] = std::array::from_fn(|_| Vec::with_capacity(rows));
        for ((column, at), name) in columns.iter_mut().zip(&self.columns).zip(COLUMNS) {
            let &Some(at) = at else {
                column.resize(rows, UNKNOWN);
                continue;
            };
            let ColumnReader::Int64ColumnReader(mut reader) = group.get_column_reader(at).map_err(Error::parquet(&self.path))? else {
                return Err(self.damaged(format!("column {name} is not a 64-bit integer")));
            };
            while column.len() < rows {
                let missing = rows - column.len();
                let (records, ..) = reader.read_records(missing, None, None, column).map_err(Error::parquet(&self.path))?;
                if records == 0 {
                    return Err(self.damaged(format!("column {name} ends after {} of {rows} rows", column.len())));
                }
            }
        }
        let mut vms = Vec::with_capacity(rows);
        for row in (0..rows).map(|at| -> Row { std::array::from_fn(|column| columns[column][at]) }) {
            vms.push(schema::vm(&row).map_err(|problem| self.damaged(format!("VM {}: {problem}", row[0])))?);
        }
        Ok(vms)
    }

    fn damaged(&self, problem: impl Into<String>) -> Error {
        Error::damaged(&self.path, problem)
    }
}

/// The VMs of a trace, in order of arrival.
#[derive(Debug)]
pub struct Vms<'a> {
    trace: &'a Trace,
    group: usize,
    rows: std::vec::IntoIter<Vm>,
    last: Option<(i64, u64)>,
    failed: bool,
}

impl Iterator for Vms<'_> {
    type Item = Result<Vm>;

    fn next(&mut self) -> Option<Result<Vm>> {
        while self.rows.as_slice().is_empty() && !self.failed && self.group < self.trace.groups() {
            match self.trace.group(self.group) {
                Ok(rows) => self.rows = rows.into_iter(),
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
            self.group += 1;
        }
        let vm = self.rows.next().filter(|_| !self.failed)?;
        if self.last.is_some_and(|last| last >= vm.order()) {
            self.failed = true;
            let problem = format!("VM {} at {} s is out of order; rows must be sorted by arrival", vm.id, vm.arrival);
            return Some(Err(self.trace.damaged(problem)));
        }
        self.last = Some(vm.order());
        Some(Ok(vm))
    }
}

/// Runs a function that parses a file by the Parquet library. Some of the library's checks are assertions; a panic in one is
/// reported as a damaged file.
pub(crate) fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::damaged(path, format!("damaged: {}", message.unwrap_or("the Parquet reader panicked"))))
    })
}
