//! Reads the layout that our own writer makes without the Parquet library.
//!
//! The library creates a decompression context and several buffers for each column of each row group; a file that an agent
//! writes each hour has a hundred columns of some hundred numbers, so that this took most of the time. Here, one context and
//! a few buffers serve all files of a thread, and numbers are unpacked straight into columns of a few hundred rows, which
//! stay in the processor's cache.
//!
//! # Agreement with the library
//! Whatever is not recognized is `None`: the caller then reads the file with the library, which either reads it or reports
//! what is wrong. No error is made here. A file that is read here gives the same values there (a test compares them, also on
//! damaged files).
//!
//! # Memory
//! That of [`parquet_guard::allowed`], as with the library: rows and all pages of a row group together.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use parquet::file::metadata::KeyValue;

use crate::entry::Basis;
use crate::schema;

mod batch;
mod delta;
mod footer;
mod pages;
mod scan;
mod thrift;
mod words;

pub use batch::{Batch, Part, Wanted};
use footer::{Footer, Group, TAIL_BYTES};

/// Files up to this size are read at once.
const SMALL_BYTES: u64 = 64 << 10;
/// Bytes read from the end of a larger file. They contain the footer of most files.
const END_BYTES: u64 = 32 << 10;
/// Footers beyond this size are left to the library: at 12 KiB per row group, they are those of files of 17 GB.
const FOOTER_BYTES_MAX: usize = 2 << 20;

/// A trace file whose layout was recognized.
#[derive(Debug)]
pub(crate) struct Direct {
    file: File,
    file_bytes: u64,
    pub(crate) version: u32,
    pub(crate) basis: Basis,
    pub(crate) rows: u64,
    groups: Vec<Group>,
    /// The whole file, if it is small.
    whole: Option<Vec<u8>>,
}

impl Direct {
    /// Reads the footer of a file; `None` if it is not that of a trace as written by our own writer.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        let file_bytes = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
        let read = |begin: u64, end: u64| {
            let mut bytes = vec![0; usize::try_from(end.checked_sub(begin)?).ok()?];
            file.read_exact_at(&mut bytes, begin).ok()?;
            Some(bytes)
        };
        let small = file_bytes <= SMALL_BYTES;
        let mut begin = if small { 0 } else { file_bytes - END_BYTES };
        let mut bytes = read(begin, file_bytes)?;
        let length = footer::length(bytes.get(bytes.len().checked_sub(TAIL_BYTES)?..)?)?;
        let all = length.checked_add(TAIL_BYTES).filter(|&all| all <= FOOTER_BYTES_MAX)?;
        if all > bytes.len() {
            begin = file_bytes.checked_sub(all as u64)?;
            bytes = read(begin, file_bytes)?;
        }
        let footer_bytes = &bytes[bytes.len() - all..bytes.len() - TAIL_BYTES];
        let footer = Footer::read(footer_bytes)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let keys = footer.keys.iter().map(|(key, value)| KeyValue::new(text(key), text(value))).collect();
        let (version, basis) = schema::trace_metadata(path, Some(&keys)).ok()?;
        if !footer.has_columns(version, basis.buckets()) {
            return None;
        }
        let Footer { rows, groups, .. } = footer;
        Some(Self { file, file_bytes, version, basis, rows, groups, whole: (begin == 0).then_some(bytes) })
    }

    /// Returns the number of row groups.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }
}

#[cfg(test)]
mod tests;
