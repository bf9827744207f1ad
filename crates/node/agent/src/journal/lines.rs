//! Journals as a stream: one record in memory at a time, however long they are.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use units::PageSize;

use super::{AgentRecord, Journal, ReadError, Record, VERSION};

/// The records of one file, read as they are asked for.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    line: usize,
    bytes: Vec<u8>,
    first: Option<Record>,
}

impl Lines {
    /// Those of a file that is still to be opened.
    ///
    /// # Errors
    /// As its first record.
    pub(super) fn of(path: &Path) -> Result<Self, ReadError> {
        Self::open(path, File::open(path).map_err(|source| ReadError::Io { path: path.to_owned(), source })?)
    }

    fn open(path: &Path, file: File) -> Result<Self, ReadError> {
        let mut lines = Self { path: path.to_owned(), reader: BufReader::new(file), line: 0, bytes: Vec::new(), first: None };
        lines.first = lines.parse().transpose()?;
        Ok(lines)
    }

    /// The next record. A torn last line, as a killed agent leaves it, is dropped.
    fn parse(&mut self) -> Option<Result<Record, ReadError>> {
        self.bytes.clear();
        self.line += 1;
        match self.reader.read_until(b'\n', &mut self.bytes) {
            Err(source) => return Some(Err(ReadError::Io { path: self.path.clone(), source })),
            Ok(_) if self.bytes.last() != Some(&b'\n') => return None,
            Ok(_) => {}
        }
        let refused = |message: String| ReadError::Line { path: self.path.clone(), line: self.line, message };
        Some(match serde_json::from_slice(&self.bytes) {
            Err(error) => Err(refused(error.to_string())),
            Ok(Record::Agent(AgentRecord { version, .. })) if version > VERSION => {
                Err(ReadError::Newer { path: self.path.clone(), found: version })
            }
            Ok(Record::Agent(AgentRecord { page_bytes, .. })) if PageSize::new(page_bytes).is_none() => {
                Err(refused(format!("page_bytes is {page_bytes}, which is no power of two")))
            }
            Ok(record) => Ok(record),
        })
    }

    /// When the first record was written, in milliseconds since the epoch; `None` where there is none.
    fn begins_at(&self) -> Option<u64> {
        Some(match self.first.as_ref()? {
            Record::Agent(AgentRecord { unix_ms, .. }) | Record::Event { unix_ms, .. } => *unix_ms,
            Record::Job(job) => job.unix_ms,
            Record::Period(period) => period.unix_ms,
            Record::Pressure(period) => period.unix_ms,
            Record::Background(period) => period.unix_ms,
            Record::Slow(period) => period.unix_ms,
        })
    }
}

impl Iterator for Lines {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.first.take().map(Ok).or_else(|| self.parse())
    }
}

/// Opens the named files and orders them from oldest to newest: a shell sorts `journal` before `journal.1`.
///
/// # Errors
/// When a file cannot be opened, or its first line is not a record.
pub fn of_files(paths: &[PathBuf]) -> Result<Vec<Lines>, ReadError> {
    let mut opened = paths.iter().map(|path| Lines::of(path)).collect::<Result<Vec<_>, _>>()?;
    opened.sort_by_key(Lines::begins_at);
    Ok(opened)
}

/// Opens the files that an agent keeps in `directory`, from oldest to newest. Empty if no agent ever ran.
///
/// All are opened before the first is read on, newest first, and one that is met twice is left out: the agent may rename
/// them meanwhile, but then an older name holds what was open already, and no file is missed.
///
/// # Errors
/// When a file cannot be opened, or its first line is not a record.
pub fn of_directory(directory: &Path) -> Result<Vec<Lines>, ReadError> {
    let newest = Journal::path(directory);
    let mut opened = Vec::new();
    let mut known = Vec::new();
    for number in 0.. {
        let path = if number == 0 { newest.clone() } else { newest.with_extension(number.to_string()) };
        let io_error = |source| ReadError::Io { path: path.clone(), source };
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            other => other.map_err(io_error)?,
        };
        let metadata = file.metadata().map_err(io_error)?;
        let identity = (metadata.dev(), metadata.ino());
        if !known.contains(&identity) {
            known.push(identity);
            opened.push(Lines::open(&path, file)?);
        }
    }
    // Their numbers tell the order, whatever was done to the clock.
    opened.reverse();
    Ok(opened)
}
