//! Reading of text files of separated fields, plain or compressed by gzip, with line numbers.
//!
//! A line is a row: no format has line ends within its fields, and a quote that is not closed damages one row only.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder, Terminator};
use flate2::bufread::MultiGzDecoder;

use super::sink::Sink;
use crate::error::{Error, Result};
use crate::vm::Vm;

/// The largest length of a line in bytes. A scheduler's log has all hosts of a cluster in one line, which it reads up to this length.
const LINE_MAX: u64 = 8 << 20;
/// The largest number of fields of a row, far above those of the supported formats.
const FIELDS_MAX: usize = 64;

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
    Rows::open(path, b',')?.reader.take(LINE_MAX).read_until(b'\n', &mut head).map_err(Error::file(path, "read"))?;
    Ok(Start::Text(String::from_utf8_lossy(&head).trim_end().to_owned()))
}

/// The fields of a row, without quotes and without spaces around them.
pub(super) type Row = Vec<String>;

/// An open text file.
pub(super) struct Rows {
    path: PathBuf,
    reader: Box<dyn BufRead>,
    parser: Reader,
    /// Number of the line that was read last, from 1.
    number: u64,
    /// Size of the file on disk in bytes.
    bytes: u64,
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

impl Rows {
    /// Opens a file. Decompresses a gzip file while reading.
    pub(super) fn open(path: &Path, separator: u8) -> Result<Self> {
        let file = File::open(path).map_err(Error::file(path, "open"))?;
        let bytes = file.metadata().map_err(Error::file(path, "read the size of"))?.len();
        let read = Rc::new(Cell::new(0));
        let mut raw = BufReader::with_capacity(1 << 16, Counted { file, read: Rc::clone(&read) });
        let compressed = raw.fill_buf().map_err(Error::file(path, "read"))?.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn BufRead> = if compressed { Box::new(BufReader::new(MultiGzDecoder::new(raw))) } else { Box::new(raw) };
        let parser = ReaderBuilder::new().delimiter(separator).terminator(Terminator::Any(b'\n')).build();
        Ok(Self { path: path.to_owned(), reader, parser, number: 0, bytes, read, line: Vec::new() })
    }

    /// Returns the next row. The inner error is an invalid row; the outer error ends the file.
    pub(super) fn next(&mut self) -> Result<Option<Result<Row, String>>> {
        Ok(self.next_line()?.map(|line| line.and_then(|()| self.split())))
    }

    /// Reads the next line. The errors are those of [`Rows::next`].
    fn next_line(&mut self) -> Result<Option<Result<(), String>>> {
        self.line.clear();
        let read = (&mut self.reader).take(LINE_MAX).read_until(b'\n', &mut self.line);
        let damaged =
            |error| Error::damaged(&self.path, format!("cannot read after line {}: {error}; download the file again", self.number));
        let count = read.map_err(damaged)?;
        if count == 0 {
            return Ok(None);
        }
        let longer = count as u64 == LINE_MAX && !self.line.ends_with(b"\n");
        if longer {
            self.reader.skip_until(b'\n').map_err(damaged)?;
        }
        self.number += 1;
        Ok(Some(if longer { Err(format!("the line is longer than {LINE_MAX} bytes")) } else { Ok(()) }))
    }

    /// Splits the line into fields.
    fn split(&mut self) -> Result<Row, String> {
        self.line.truncate(self.line.trim_ascii_end().len());
        // The parser returns a row at the end of its line, unless a quote is open.
        self.line.push(b'\n');
        self.parser.reset();
        let (mut text, mut ends) = (vec![0; self.line.len()], [0; FIELDS_MAX]);
        let (result, _, length, count) = self.parser.read_record(&self.line, &mut text, &mut ends);
        match result {
            ReadRecordResult::Record => {
                let text = std::str::from_utf8(&text[..length]).map_err(|_| "the line is not UTF-8 text")?;
                let begins = [0].into_iter().chain(ends);
                Ok(begins.zip(&ends[..count]).map(|(begin, &end)| text[begin..end].trim().to_owned()).collect())
            }
            ReadRecordResult::OutputEndsFull => Err(format!("the row has {FIELDS_MAX} fields or more")),
            _ => Err("the line is empty, or a quote in it is not closed".to_owned()),
        }
    }

    /// As [`Rows::each`], with every further line as it is.
    pub(super) fn each_line(
        &mut self,
        sink: &mut Sink<'_>,
        mut each: impl FnMut(&[u8], &mut Sink<'_>) -> Result<Option<(Vm, i64)>, String>,
    ) -> Result<()> {
        while let Some(line) = self.next_line()? {
            sink.row(self.read.get(), self.bytes);
            let found = line.and_then(|()| each(&self.line, sink));
            self.add(sink, found)?;
        }
        Ok(())
    }

    /// Calls `each` for every further row, and adds the VM that it returns, with the last second for which the source has data
    /// about it. Its error is an invalid row.
    pub(super) fn each(
        &mut self,
        sink: &mut Sink<'_>,
        mut each: impl FnMut(&Row, &mut Sink<'_>) -> Result<Option<(Vm, i64)>, String>,
    ) -> Result<()> {
        while let Some(row) = self.next()? {
            sink.row(self.read.get(), self.bytes);
            let found = row.and_then(|row| each(&row, sink));
            self.add(sink, found)?;
        }
        Ok(())
    }

    /// Adds what the current row or line has.
    fn add(&self, sink: &mut Sink<'_>, found: Result<Option<(Vm, i64)>, String>) -> Result<()> {
        let place = || format!("{} line {}", self.path.display(), self.number);
        match found {
            Ok(Some((vm, last_seen))) => sink.vm(&place, vm, last_seen)?,
            Ok(None) => {}
            Err(problem) => sink.bad(&format!("{}: {problem}", place())),
        }
        Ok(())
    }
}
