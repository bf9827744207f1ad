//! Limits on the memory that a Parquet file from outside takes.
//!
//! Pages are compressed and encoded, so that a hundred bytes can stand for a gigabyte. The Parquet library allocates what a
//! page's header and a dictionary's header declare. [`Guard`] reads these headers before the library does, and refuses a row
//! group whose rows and pages need more than [`allowed`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::ChunkReader;

mod header;
#[cfg(feature = "testing")]
pub mod testing;

use header::{Header, Kind};

/// Memory that a row group may take whatever the size of its file: constant columns compress to almost nothing.
pub const ALLOWANCE_BYTES: u64 = 128 << 20;
/// Memory per byte of the file that a row group may take beyond the allowance.
pub const FACTOR: u64 = 4;
/// The library's objects in memory, per byte of the footer that describes them: an empty key takes three bytes there, and 48 here
/// in a list that grows by doubling.
const FOOTER_FACTOR: u64 = 64;
/// Size of the value that the library keeps for each text: a reference into its page.
pub const TEXT_BYTES: u64 = 32;
/// Shortest text in a dictionary: its length.
const TEXT_BYTES_MIN: u64 = 4;

/// Returns the memory that reading one row group of a file of this size may take.
#[must_use]
pub fn allowed(file_bytes: u64) -> u64 {
    ALLOWANCE_BYTES + FACTOR * file_bytes
}

/// Pages of one column of a row group, by their headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pages {
    /// Size of all pages after decompression.
    total: u64,
    /// Size of the largest page, before and after decompression together.
    largest: u64,
    /// Size of the dictionary after decompression.
    dictionary: u64,
}

/// Checks row groups of one file before they are read.
#[derive(Debug)]
pub struct Guard {
    file: File,
    file_bytes: u64,
}

impl Guard {
    /// Checks the size of the footer. The error names the problem.
    ///
    /// # Errors
    /// The file cannot be read, or its footer is too large for it.
    pub fn new(file: &File) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("cannot be read: {error}");
        let mut file = file.try_clone().map_err(failed)?;
        let file_bytes = file.metadata().map_err(failed)?.len();
        let mut tail = [0; 8];
        // A file without a footer is for the library to refuse.
        if file_bytes >= 12 {
            file.seek(SeekFrom::End(-8)).and_then(|_| file.read_exact(&mut tail)).map_err(failed)?;
            file.rewind().map_err(failed)?;
            let [a, b, c, d, ..] = tail;
            let (footer, limit) = (u64::from(u32::from_le_bytes([a, b, c, d])), allowed(file_bytes) / FOOTER_FACTOR);
            if footer > limit {
                return Err(format!("the footer has {footer} bytes; the limit for a file of {file_bytes} bytes is {limit}"));
            }
        }
        Ok(Self { file, file_bytes })
    }

    /// Checks a row group of `rows` rows, each of which takes `row_bytes` of memory. All pages of columns of text, `texts`, are in
    /// memory at the same time, but only one page of `others`. The error names the problem.
    ///
    /// # Errors
    /// The row group needs more memory than [`allowed`], or its page headers are damaged.
    pub fn check<'a>(
        &self,
        rows: usize,
        row_bytes: u64,
        texts: impl Iterator<Item = &'a ColumnChunkMetaData>,
        others: impl Iterator<Item = &'a ColumnChunkMetaData>,
    ) -> Result<(), String> {
        let mut pages = 0u64;
        for chunk in texts {
            let found = self.pages(chunk)?;
            pages = pages.saturating_add(found.total).saturating_add(found.dictionary / TEXT_BYTES_MIN * TEXT_BYTES);
        }
        let mut one = 0;
        for chunk in others {
            let found = self.pages(chunk)?;
            // The dictionary stays while the pages pass: as its page, and decoded.
            one = one.max(found.largest.saturating_add(found.dictionary * (1 + TEXT_BYTES / TEXT_BYTES_MIN)));
        }
        let needed = row_bytes.saturating_mul(rows as u64).saturating_add(pages).saturating_add(one);
        let limit = allowed(self.file_bytes);
        if needed > limit {
            return Err(format!(
                "a row group of {rows} rows takes {needed} bytes of memory; the limit for a file of {} bytes is {limit}; \
                 write it again in row groups of fewer rows",
                self.file_bytes
            ));
        }
        Ok(())
    }

    /// Reads the headers of a column's pages.
    fn pages(&self, chunk: &ColumnChunkMetaData) -> Result<Pages, String> {
        let name = || chunk.column_path().string();
        let (mut at, length) = chunk.byte_range();
        let end = at.checked_add(length).filter(|&end| end <= self.file_bytes).ok_or_else(|| format!("column {} is truncated", name()))?;
        let mut pages = Pages::default();
        while at < end {
            let read = self.file.get_read(at).map_err(|error| format!("column {}: {error}", name()))?;
            let (header, header_bytes) =
                Header::read(read, end - at).map_err(|problem| format!("a page of column {}: {problem}", name()))?;
            at = at.saturating_add(header_bytes).saturating_add(header.stored);
            pages.total = pages.total.saturating_add(header.expanded);
            pages.largest = pages.largest.max(header.expanded.saturating_add(header.stored));
            if let Kind::Dictionary { values } = header.kind {
                if values.saturating_mul(TEXT_BYTES_MIN) > header.expanded {
                    let bytes = header.expanded;
                    return Err(format!("a page of column {}: a dictionary of {bytes} bytes cannot have {values} values", name()));
                }
                pages.dictionary = pages.dictionary.saturating_add(header.expanded);
            }
        }
        Ok(pages)
    }
}
