//! Writing VM traces: one file, sorted by arrival.

use std::fs::{File, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::data_type::Int64Type;
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedFileWriter;
use tempfile::NamedTempFile;
use units::Bytes;

use crate::about::About;
use crate::error::{Error, Result};
use crate::schema::{self, COLUMNS};
use crate::vm::Vm;

/// VMs of a row group, which the writer holds in memory: about 18 MB.
pub const GROUP_VMS: usize = 1 << 17;

/// A trace file being written. It appears under its name when it is complete.
pub struct Writer {
    path: PathBuf,
    file: SerializedFileWriter<BufWriter<NamedTempFile>>,
    columns: Vec<Vec<i64>>,
    last: Option<(i64, u64)>,
    written: Written,
    durable: bool,
}

/// Size of a finished file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Number of VMs.
    pub vms: u64,
    /// Size of the file.
    pub bytes: Bytes,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("path", &self.path).field("written", &self.written).finish_non_exhaustive()
    }
}

impl Writer {
    /// Begins the file `path`. Creates its directory.
    ///
    /// # Errors
    /// Any error of creating files there.
    pub fn create(path: &Path) -> Result<Self> {
        Self::begin(path, true)
    }

    /// Begins a temporary file that need not survive a crash.
    pub(crate) fn scratch(path: &Path) -> Result<Self> {
        Self::begin(path, false)
    }

    fn begin(path: &Path, durable: bool) -> Result<Self> {
        let failed = Error::parquet(path);
        let (schema, properties) = (schema::schema().map_err(&failed)?, schema::properties().map_err(&failed)?);
        let file = SerializedFileWriter::new(BufWriter::new(temporary_for(path)?), schema, Arc::new(properties)).map_err(&failed)?;
        let columns = vec![Vec::new(); COLUMNS.len()];
        Ok(Self { path: path.to_owned(), file, columns, last: None, written: Written::default(), durable })
    }

    /// Adds a VM. VMs must be added in the order of [`Vm::order`].
    ///
    /// # Errors
    /// [`Error::Order`], also for a duplicate; [`Error::Damaged`] if [`Vm::check`] fails; any error of writing.
    pub fn push(&mut self, vm: &Vm) -> Result<()> {
        vm.check().map_err(|error| Error::damaged(&self.path, format!("VM {}: {error}", vm.id)))?;
        if self.last.is_some_and(|last| last >= vm.order()) {
            return Err(Error::Order { path: self.path.clone(), id: vm.id, arrival: vm.arrival });
        }
        self.last = Some(vm.order());
        for (column, number) in self.columns.iter_mut().zip(schema::row(vm)) {
            column.push(number);
        }
        self.written.vms += 1;
        if self.columns[0].len() >= GROUP_VMS { self.end_group() } else { Ok(()) }
    }

    fn end_group(&mut self) -> Result<()> {
        if !self.columns[0].is_empty() {
            write_group(&mut self.file, &self.columns).map_err(Error::parquet(&self.path))?;
            self.columns.iter_mut().for_each(Vec::clear);
        }
        Ok(())
    }

    /// Completes the file: it is on disk under its name.
    ///
    /// # Errors
    /// Any error of writing; the file does not exist then.
    pub fn finish(mut self, about: &About) -> Result<Written> {
        self.end_group()?;
        for pair in schema::metadata(&self.path, about)? {
            self.file.append_key_value_metadata(pair);
        }
        let buffered = self.file.into_inner().map_err(Error::parquet(&self.path))?;
        let bytes = persist(&self.path, buffered, self.durable)?;
        Ok(Written { bytes, ..self.written })
    }
}

fn write_group(file: &mut SerializedFileWriter<BufWriter<NamedTempFile>>, columns: &[Vec<i64>]) -> Result<(), ParquetError> {
    let mut group = file.next_row_group()?;
    for column in columns {
        let next = group.next_column()?;
        let mut writer = next.ok_or_else(|| ParquetError::General("fewer columns than the schema has".to_owned()))?;
        writer.typed::<Int64Type>().write_batch(column, None, None)?;
        writer.close()?;
    }
    group.close()?;
    Ok(())
}

/// Creates a temporary file beside `path`, which is renamed when it is complete. Its permissions follow the umask.
fn temporary_for(path: &Path) -> Result<NamedTempFile> {
    let directory = directory_of(path);
    std::fs::create_dir_all(directory).map_err(Error::file(directory, "create"))?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".unfinished-").permissions(Permissions::from_mode(0o666));
    builder.tempfile_in(directory).map_err(Error::file(directory, "create a file in"))
}

/// Returns the directory of a file.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Renames a written file to its final name, after syncing it if `durable`. Returns its size.
fn persist(path: &Path, buffered: BufWriter<NamedTempFile>, durable: bool) -> Result<Bytes> {
    let mut temporary = buffered.into_inner().map_err(|error| Error::file(path, "write")(error.into_error()))?;
    temporary.flush().map_err(Error::file(path, "write"))?;
    if durable {
        temporary.as_file().sync_all().map_err(Error::file(path, "write"))?;
    }
    let bytes = temporary.as_file().metadata().map_err(Error::file(path, "read the size of"))?.len();
    temporary.persist(path).map_err(|error| Error::file(path, "create")(error.error))?;
    if durable {
        // A rename is durable after the directory is synced.
        let directory = directory_of(path);
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(Error::file(directory, "write"))?;
    }
    Ok(Bytes(bytes))
}
