//! Reading VM traces: row group by row group, each VM checked.

use std::collections::HashMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use parquet::column::reader::ColumnReader;
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;

use crate::about::About;
use crate::error::{Error, Result};
use crate::schema::{self, COLUMNS, Row};
use crate::vm::Vm;

/// VMs that a row group may have: what a reader holds in memory, 64 times what [`crate::Writer`] makes.
const GROUP_VMS_MAX: usize = 1 << 23;

/// An open trace file.
pub struct Trace {
    path: PathBuf,
    version: u64,
    about: About,
    reader: SerializedFileReader<File>,
    /// Where each of [`COLUMNS`] is.
    columns: [usize; COLUMNS.len()],
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("path", &self.path).field("version", &self.version).finish_non_exhaustive()
    }
}

impl Trace {
    /// Opens a file and reads what it says of itself.
    ///
    /// # Errors
    /// [`Error::Newer`] for a version above [`schema::VERSION`]; [`Error::Parquet`] and [`Error::Damaged`] for what is
    /// no VM trace; [`Error::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        guarded(path, || Self::open_unguarded(path))
    }

    fn open_unguarded(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io(path, "open"))?;
        let reader = SerializedFileReader::new(file).map_err(Error::parquet(path))?;
        let metadata = reader.metadata().file_metadata();
        let (version, about) = schema::parse_metadata(path, metadata.key_value_metadata())?;
        let described = metadata.schema_descr().columns();
        let places: HashMap<String, usize> = described.iter().enumerate().map(|(at, column)| (column.path().string(), at)).collect();
        let mut columns = [0; COLUMNS.len()];
        for (column, name) in columns.iter_mut().zip(COLUMNS) {
            *column = *places.get(name).ok_or_else(|| Error::damaged(path, format!("no column {name}, which version {version} has")))?;
            if described[*column].max_def_level() > 0 || described[*column].max_rep_level() > 0 {
                return Err(Error::damaged(path, format!("column {name} may have nulls or lists; every column is required and flat")));
            }
        }
        for (index, group) in reader.metadata().row_groups().iter().enumerate() {
            if usize::try_from(group.num_rows()).unwrap_or(usize::MAX) > GROUP_VMS_MAX {
                let rows = group.num_rows();
                return Err(Error::damaged(path, format!("row group {index} claims {rows} rows; there are at most {GROUP_VMS_MAX}")));
            }
        }
        Ok(Self { path: path.to_owned(), version, about, columns, reader })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of its schema.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What it says of itself.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }

    /// How many row groups it has.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.reader.num_row_groups()
    }

    /// How many VMs it says that it has.
    #[must_use]
    pub fn len(&self) -> u64 {
        u64::try_from(self.reader.metadata().file_metadata().num_rows()).unwrap_or(0)
    }

    /// Whether it says that it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its VMs by arrival. Only one row group is in memory at a time. After an error there is nothing more.
    #[must_use]
    pub fn vms(&self) -> Vms<'_> {
        Vms { trace: self, group: 0, rows: Vec::new().into_iter(), last: None, failed: false }
    }

    /// Decodes one row group.
    ///
    /// # Errors
    /// [`Error::Parquet`] and [`Error::Damaged`] where it does not hold what the schema says.
    pub fn group(&self, index: usize) -> Result<Vec<Vm>> {
        guarded(&self.path, || self.group_unguarded(index))
    }

    fn group_unguarded(&self, index: usize) -> Result<Vec<Vm>> {
        let group = self.reader.get_row_group(index).map_err(Error::parquet(&self.path))?;
        // Checked when the file was opened.
        let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
        let mut columns: [Vec<i64>; COLUMNS.len()] = Default::default();
        for ((column, &at), name) in columns.iter_mut().zip(&self.columns).zip(COLUMNS) {
            let ColumnReader::Int64ColumnReader(mut reader) = group.get_column_reader(at).map_err(Error::parquet(&self.path))? else {
                return Err(self.damaged(format!("column {name} is no 64-bit integer")));
            };
            while column.len() < rows {
                let wanted = rows - column.len();
                let (records, ..) = reader.read_records(wanted, None, None, column).map_err(Error::parquet(&self.path))?;
                if records == 0 {
                    return Err(self.damaged(format!("column {name} ends after {} of {rows} rows", column.len())));
                }
            }
        }
        let rows = (0..rows).map(|at| -> Row { std::array::from_fn(|column| columns[column][at]) });
        rows.map(|row| schema::vm(&row).map_err(|what| self.damaged(format!("VM {}: {what}", row[0])))).collect()
    }

    fn damaged(&self, what: impl Into<String>) -> Error {
        Error::damaged(&self.path, what)
    }
}

/// The VMs of a trace, by arrival.
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
            let what = format!("VM {} at {} s comes after one that it belongs before; rows are sorted by arrival", vm.id, vm.arrival);
            return Some(Err(self.trace.damaged(what)));
        }
        self.last = Some(vm.order());
        Some(Ok(vm))
    }
}

/// Runs what asks the Parquet library to make sense of a file's bytes. Some of its checks are assertions: damage that trips
/// one is damage, not the end of the program.
pub(crate) fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::damaged(path, format!("damaged: {}", said.unwrap_or("the Parquet reader gave up"))))
    })
}
