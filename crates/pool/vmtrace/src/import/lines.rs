//! Text files, packed or not, line by line with their numbers.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use crate::error::{Error, Result};

/// Bytes that a line may have. No format that is read here comes near.
const LINE_MAX: u64 = 1 << 16;

/// What a file begins with.
pub(super) enum Start {
    Sqlite,
    Parquet,
    /// Its first line.
    Text(String),
}

/// Looks at the beginning of a file.
pub(super) fn start(path: &Path) -> Result<Start> {
    let mut magic = Vec::new();
    File::open(path).and_then(|file| file.take(16).read_to_end(&mut magic)).map_err(Error::io(path, "read"))?;
    if magic.starts_with(b"SQLite format 3") {
        return Ok(Start::Sqlite);
    }
    if magic.starts_with(b"PAR1") {
        return Ok(Start::Parquet);
    }
    let mut head = Vec::new();
    Lines::open(path)?.reader.take(LINE_MAX).read_until(b'\n', &mut head).map_err(Error::io(path, "read"))?;
    Ok(Start::Text(String::from_utf8_lossy(&head).trim_end().to_owned()))
}

/// A text file that is being read.
pub(super) struct Lines {
    path: PathBuf,
    reader: Box<dyn BufRead>,
    /// The number of the line that was read last, from 1.
    pub(super) number: u64,
    /// Bytes of the file, and how many of them have been read.
    pub(super) bytes: u64,
    read: Rc<Cell<u64>>,
    line: Vec<u8>,
}

/// Counts what is read of a file before it is unpacked: how far we are.
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
    /// Opens a file; one that was packed by gzip is unpacked on the way.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io(path, "open"))?;
        let bytes = file.metadata().map_err(Error::io(path, "look at"))?.len();
        let read = Rc::new(Cell::new(0));
        let mut raw = BufReader::with_capacity(1 << 16, Counted { file, read: Rc::clone(&read) });
        let packed = raw.fill_buf().map_err(Error::io(path, "read"))?.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn BufRead> = if packed { Box::new(BufReader::new(MultiGzDecoder::new(raw))) } else { Box::new(raw) };
        Ok(Self { path: path.to_owned(), reader, number: 0, bytes, read, line: Vec::new() })
    }

    /// The next line without its end. `Err` within is a line that cannot be used; the outer one ends the file.
    pub(super) fn next(&mut self) -> Result<Option<Result<String, String>>> {
        self.line.clear();
        let read = (&mut self.reader).take(LINE_MAX).read_until(b'\n', &mut self.line);
        let count = read.map_err(|error| {
            Error::damaged(&self.path, format!("it cannot be read after line {}: {error}; get the file again", self.number))
        })?;
        if count == 0 {
            return Ok(None);
        }
        self.number += 1;
        if count as u64 == LINE_MAX && self.line.last() != Some(&b'\n') {
            self.skip_line()?;
            return Ok(Some(Err(format!("it is longer than {LINE_MAX} bytes"))));
        }
        match std::str::from_utf8(&self.line) {
            Ok(line) => Ok(Some(Ok(line.trim_end_matches(['\n', '\r']).to_owned()))),
            Err(_) => Ok(Some(Err("it is no text (UTF-8)".to_owned()))),
        }
    }

    fn skip_line(&mut self) -> Result<()> {
        loop {
            self.line.clear();
            let read = (&mut self.reader).take(LINE_MAX).read_until(b'\n', &mut self.line);
            let count = read.map_err(Error::io(&self.path, "read"))?;
            if count == 0 || self.line.last() == Some(&b'\n') {
                return Ok(());
            }
        }
    }

    /// How far we are, in bytes of the file as it is on the disk.
    pub(super) fn done_bytes(&self) -> u64 {
        self.read.get()
    }

    /// The line that was read last, for people.
    pub(super) fn place(&self) -> String {
        format!("{} line {}", self.path.display(), self.number)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}
