//! Pages of a column: their headers, and their bytes without compression.

use std::ops::Range;

use zstd::bulk::Decompressor;

use super::delta::PADDING;
use super::footer::Chunk;
use super::thrift::{I32, STRUCT, Thrift};

/// Kinds of pages.
const DATA: u64 = 0;
const DICTIONARY: u64 = 2;
/// Encodings.
pub(super) const PLAIN: u64 = 0;
const PLAIN_DICTIONARY: u64 = 2;
pub(super) const DELTA_BINARY_PACKED: u64 = 5;
const RLE_DICTIONARY: u64 = 8;

/// The header of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) dictionary: bool,
    pub(super) values: usize,
    encoding: u64,
    expanded: usize,
    stored: usize,
}

impl Header {
    /// Returns whether the values are indices in the dictionary.
    pub(super) fn is_coded(&self) -> bool {
        [PLAIN_DICTIONARY, RLE_DICTIONARY].contains(&self.encoding)
    }

    pub(super) fn is(&self, encoding: u64) -> bool {
        self.encoding == encoding
    }

    /// Reads a header; `None` if it is not that of a data page of version 1 or of a dictionary.
    fn read(thrift: &mut Thrift<'_>) -> Option<Self> {
        let mut header = Self::default();
        let (mut kind, mut expanded, mut stored, mut values, mut encoding) = (None, None, None, None, None);
        thrift.fields(|thrift, id, of| {
            match (id, of) {
                (1, I32) => kind = Some(thrift.number()?),
                (2, I32) => expanded = Some(thrift.number()?),
                (3, I32) => stored = Some(thrift.number()?),
                (5 | 7, STRUCT) => thrift.fields(|thrift, field, of| {
                    match (field, of) {
                        (1, I32) => values = Some((id, thrift.number()?)),
                        (2, I32) => encoding = Some(thrift.number()?),
                        _ => thrift.skip(of)?,
                    }
                    Some(())
                })?,
                _ => thrift.skip(of)?,
            }
            Some(())
        })?;
        header.dictionary = match (kind?, values?.0) {
            (DATA, 5) => false,
            (DICTIONARY, 7) => true,
            _ => return None,
        };
        header.values = usize::try_from(values?.1).ok()?;
        header.encoding = encoding?;
        header.expanded = usize::try_from(expanded?).ok()?;
        header.stored = usize::try_from(stored?).ok()?;
        Some(header)
    }
}

/// Bytes of pages, of all columns of a row group.
#[derive(Default)]
pub(super) struct Store {
    /// Bytes of the file, followed by [`PADDING`].
    pub(super) raw: Vec<u8>,
    /// Pages that were compressed, one after the other, followed by [`PADDING`].
    expanded: Vec<u8>,
    used: usize,
    decompressor: Option<Decompressor<'static>>,
}

/// Where a page is in the store.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    expanded: bool,
    pub(super) range: Range<usize>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("raw", &self.raw.len()).field("used", &self.used).finish_non_exhaustive()
    }
}

impl Store {
    /// Forgets all pages; keeps the memory.
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    /// Returns the bytes that a place refers to, and all that follow.
    #[inline]
    pub(super) fn bytes(&self, place: &Place) -> &[u8] {
        if place.expanded { &self.expanded } else { &self.raw }
    }

    /// Calls `each` with the header and the place of every page of a column. The column begins at `at` in `raw`. All pages
    /// together may take `limit` bytes after decompression.
    pub(super) fn pages(
        &mut self,
        chunk: &Chunk,
        at: usize,
        limit: usize,
        mut each: impl FnMut(&Self, Header, Place) -> Option<()>,
    ) -> Option<()> {
        let mut at = at;
        let end = at.checked_add(usize::try_from(chunk.bytes).ok()?)?;
        while at < end {
            let mut thrift = Thrift::new(self.raw.get(at..end)?);
            let header = Header::read(&mut thrift)?;
            let begin = at + thrift.position();
            at = begin.checked_add(header.stored).filter(|&at| at <= end)?;
            let place = if chunk.zstd {
                Place { expanded: true, range: self.expand(begin..at, header.expanded, limit)? }
            } else if header.expanded == header.stored {
                Place { expanded: false, range: begin..at }
            } else {
                return None;
            };
            each(self, header, place)?;
        }
        Some(())
    }

    fn expand(&mut self, stored: Range<usize>, expanded: usize, limit: usize) -> Option<Range<usize>> {
        let begin = self.used;
        let end = begin.checked_add(expanded).filter(|&end| end <= limit)?;
        if self.expanded.len() < end + PADDING {
            self.expanded.resize(end + PADDING, 0);
        }
        let decompressor = match &mut self.decompressor {
            Some(decompressor) => decompressor,
            none => none.insert(Decompressor::new().ok()?),
        };
        let written = decompressor.decompress_to_buffer(self.raw.get(stored)?, self.expanded.get_mut(begin..end)?).ok()?;
        self.used = end;
        (written == expanded).then_some(begin..end)
    }

    /// Returns the memory that is held for the next row group.
    pub(super) fn held(&self) -> usize {
        self.raw.capacity() + self.expanded.capacity()
    }
}
