//! Reading of text files, plain or compressed by gzip, with line numbers.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use crate::error::{Error, Result};

/// The largest length of a line in bytes, far above the lines of the supported formats.
const LINE_MAX: u64 = 1 << 16;

/// The beginning of a file.
pub(super) enum Start {
    Sqlite,
    Parquet,
    /// A text file with this first line.
    Text(String),
}

/// Reads the beginning of a file.
pub(super) fn start(path: &Path) -> Result<Start> {
    let mut magic = Vec::new();
    File::open(path).and_then(|file| file.take(16).read_to_end(&mut magic)).map_err(Error::file(path, "read"))?;
    if magic.starts_with(b"SQLite format 3") {
        return Ok(Start::Sqlite);
    }
    if magic.starts_with(b"PAR1") {
        return Ok(Start::Parquet);
    }
    let mut head = Vec::new();
    Lines::open(path)?.reader.take(LINE_MAX).read_until(b'\n', &mut head).map_err(Error::file(path, "read"))?;
    Ok(Start::Text(String::from_utf8_lossy(&head).trim_end().to_owned()))
}

/// An open text file.
pub(super) struct Lines {
    path: PathBuf,
    reader: Box<dyn BufRead>,
    /// Number of the line that was read last, from 1.
    pub(super) number: u64,
    /// Size of the file on disk in bytes.
    pub(super) bytes: u64,
    read: Rc<Cell<u64>>,
    line: Vec<u8>,
}

/// Counts the bytes read from a file before decompression.
struct Counted {
    file: File,
    read: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(into)?;
        self.read.set(self.read.get() + count as u64);
        Ok(count)
    }
}

impl Lines {
    /// Opens a file. Decompresses a gzip file while reading.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::file(path, "open"))?;
        let bytes = file.metadata().map_err(Error::file(path, "read the size of"))?.len();
        let read = Rc::new(Cell::new(0));
        let mut raw = BufReader::with_capacity(1 << 16, Counted { file, read: Rc::clone(&read) });
        let compressed = raw.fill_buf().map_err(Error::file(path, "read"))?.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn BufRead> = if compressed { Box::new(BufReader::new(MultiGzDecoder::new(raw))) } else { Box::new(raw) };
        Ok(Self { path: path.to_owned(), reader, number: 0, bytes, read, line: Vec::new() })
    }

    /// Returns the next line without its end. The inner error is an invalid line; the outer error ends the file.
    pub(super) fn next(&mut self) -> Result<Option<Result<String, String>>> {
        self.line.clear();
        let read = (&mut self.reader).take(LINE_MAX).read_until(b'\n', &mut self.line);
        let count = read.map_err(|error| {
            Error::damaged(&self.path, format!("cannot read after line {}: {error}; download the file again", self.number))
        })?;
        if count == 0 {
            return Ok(None);
        }
        self.number += 1;
        if count as u64 == LINE_MAX && self.line.last() != Some(&b'\n') {
            self.skip_line()?;
            return Ok(Some(Err(format!("the line is longer than {LINE_MAX} bytes"))));
        }
        match std::str::from_utf8(&self.line) {
            Ok(line) => Ok(Some(Ok(line.trim_end_matches(['\n', '\r']).to_owned()))),
            Err(_) => Ok(Some(Err("the line is not UTF-8 text".to_owned()))),
        }
    }

    fn skip_line(&mut self) -> Result<()> {
        loop {
            self.line.clear();
            let read = (&mut self.reader).take(LINE_MAX).read_until(b'\n', &mut self.line);
            let count = read.map_err(Error::file(&self.path, "read"))?;
            if count == 0 || self.line.last() == Some(&b'\n') {
                return Ok(());
            }
        }
    }

    /// Returns the bytes read so far, of the file as it is on disk.
    pub(super) fn done_bytes(&self) -> u64 {
        self.read.get()
    }

    /// Returns the file and the number of the line that was read last, for messages.
    pub(super) fn place(&self) -> String {
        format!("{} line {}", self.path.display(), self.number)
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}
