//! Reading journals, with one record in memory at a time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use units::{PageSize, UnixMillis};

use super::file::Journal;
use super::record::{AgentRecord, Record, VERSION};

/// How every record starts.
const RECORD_START: &[u8] = b"{\"record\":\"";

/// The longest line that is read. The longest in the recorded journals of the tests has 1,820 bytes. While a record is decoded,
/// lists of short numbers take tens of times their text.
pub const LINE_BYTES_MAX: u64 = 4 << 20;

/// Why a journal cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read the journal {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A line is no record.
    #[error("{path}:{line}: no journal record: {message}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from one.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// The file was written by a newer agent.
    #[error("{path} has journal version {found}; this program reads up to {VERSION}; use the program that wrote it")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

/// One file.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// Its complete records.
    pub records: Vec<Record>,
    /// Bytes of a torn last line, as a killed agent leaves it; zero if there is none.
    pub torn_bytes: usize,
}

/// Reads the complete records of one file.
///
/// # Errors
/// As [`read_contents`].
pub fn read(path: &Path) -> Result<Vec<Record>, ReadError> {
    read_contents(path).map(|contents| contents.records)
}

/// Reads one file. A torn last line is skipped and reported if it is the beginning of a record.
///
/// # Errors
/// [`ReadError`] for anything else that is not a record of a known version.
pub fn read_contents(path: &Path) -> Result<Contents, ReadError> {
    let mut lines = Lines::of(path)?;
    let records = lines.by_ref().collect::<Result<_, _>>()?;
    Ok(Contents { records, torn_bytes: lines.torn_bytes })
}

/// The records of one file, read as they are asked for.
#[derive(Debug)]
pub struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    line: usize,
    bytes: Vec<u8>,
    first: Option<Record>,
    torn_bytes: usize,
}

impl Lines {
    /// Opens a file.
    fn of(path: &Path) -> Result<Self, ReadError> {
        Self::open(path, File::open(path).map_err(|source| ReadError::Io { path: path.to_owned(), source })?)
    }

    fn open(path: &Path, file: File) -> Result<Self, ReadError> {
        let reader = BufReader::new(file);
        let mut lines = Self { path: path.to_owned(), reader, line: 0, bytes: Vec::new(), first: None, torn_bytes: 0 };
        lines.first = lines.parse().transpose()?;
        Ok(lines)
    }

    fn parse(&mut self) -> Option<Result<Record, ReadError>> {
        self.bytes.clear();
        self.line += 1;
        if let Err(source) = self.reader.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut self.bytes) {
            return Some(Err(ReadError::Io { path: self.path.clone(), source }));
        }
        let refused = |message: String| ReadError::Line { path: self.path.clone(), line: self.line, message };
        if self.bytes.len() as u64 > LINE_BYTES_MAX {
            return Some(Err(refused(format!("it is longer than {LINE_BYTES_MAX} bytes, which no agent writes; remove the line"))));
        }
        if self.bytes.last() != Some(&b'\n') {
            let common = self.bytes.len().min(RECORD_START.len());
            if self.bytes[..common] != RECORD_START[..common] {
                return Some(Err(refused("a line without an end that does not start as a record".to_owned())));
            }
            self.torn_bytes = self.bytes.len();
            return None;
        }
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

    /// When the first record was written; `None` if the file is empty.
    fn begins_at(&self) -> Option<UnixMillis> {
        self.first.as_ref().map(Record::unix_ms)
    }
}

impl Iterator for Lines {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.first.take().map(Ok).or_else(|| self.parse())
    }
}

/// The named files, sorted by the time of their first records: a shell sorts `journal` before `journal.1`.
///
/// # Errors
/// If a file cannot be read, or its first line is no record.
pub fn of_files(paths: &[PathBuf]) -> Result<Vec<Lines>, ReadError> {
    let mut opened = paths.iter().map(|path| Lines::of(path)).collect::<Result<Vec<_>, _>>()?;
    opened.sort_by_key(Lines::begins_at);
    Ok(opened)
}

/// The files that an agent keeps in `directory`, oldest first. None if it never ran.
///
/// All are opened before the first is read further, newest first, and a file that is found twice is left out: the agent may
/// rename files meanwhile, but then an older name refers to a file that is already open, and no file is missed.
///
/// # Errors
/// If a file cannot be read, or its first line is no record.
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
    // The numbers give the order, even if the wall clock was set back.
    opened.reverse();
    Ok(opened)
}
