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
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::entry::Basis;

mod batch;
mod delta;
mod footer;
mod pages;
mod scan;
mod thrift;
mod words;

pub use batch::{Batch, Part, Wanted};
use footer::{Footer, Group, Positions, TAIL_BYTES};

/// Bytes read from the end of a file at first. They contain the footer of most files: with 33 buckets, that of a row group.
const END_BYTES: u64 = 12 << 10;
/// Footers beyond this size are left to the library: at 5 KiB per row group, they are those of files of 1 GB.
const FOOTER_BYTES_MAX: usize = 2 << 20;

/// A trace file whose layout was recognized.
#[derive(Debug)]
pub(crate) struct Direct {
    file: File,
    file_bytes: u64,
    pub(crate) version: u32,
    pub(crate) basis: Basis,
    pub(crate) rows: u64,
    /// The end of the file.
    end: Vec<u8>,
    /// Position of the row groups in it, and their number.
    groups_at: Range<usize>,
    groups: usize,
    /// The row groups, once one of them is read: a store of many files is listed without reading them.
    row_groups: OnceLock<Option<Vec<Group>>>,
}

impl Direct {
    /// Reads the footer of a file; `None` if it is not that of a trace as written by our own writer.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        let file_bytes = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
        let read = |length: u64| {
            let mut bytes = vec![0; usize::try_from(length).ok()?];
            file.read_exact_at(&mut bytes, file_bytes.checked_sub(length)?).ok()?;
            Some(bytes)
        };
        let mut end = read(file_bytes.min(END_BYTES))?;
        let length = footer::length(end.get(end.len().checked_sub(TAIL_BYTES)?..)?)?;
        let all = length.checked_add(TAIL_BYTES).filter(|&all| all <= FOOTER_BYTES_MAX)?;
        if all > end.len() {
            end = read(all as u64)?;
        }
        let begin = end.len() - all;
        let Footer { version, basis, rows, groups, groups_at } = Footer::read(path, &end[begin..begin + length])?;
        let groups_at = begin + groups_at.start..begin + groups_at.end;
        Some(Self { file, file_bytes, version, basis, rows, end, groups_at, groups, row_groups: OnceLock::new() })
    }

    /// Returns the number of row groups.
    pub(crate) fn groups(&self) -> usize {
        self.groups
    }

    fn row_groups(&self) -> Option<&[Group]> {
        let columns = Positions::new(self.version, self.basis.buckets()).columns;
        let read = || footer::groups(self.end.get(self.groups_at.clone())?, columns);
        self.row_groups.get_or_init(read).as_deref()
    }
}

#[cfg(test)]
mod tests;
