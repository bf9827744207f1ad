//! The footer of a trace file: where each column of each row group is.

use std::cell::RefCell;

use super::thrift::{BINARY, I32, I64, LIST, STRUCT, Thrift};
use crate::entry::FIGURES;
use crate::schema::{self, ID_WORDS, JOB_KEY, WORDS};

/// The end of a file: the length of the footer, and the format's mark.
pub(super) const TAIL_BYTES: usize = 8;
const MARK: &[u8] = b"PAR1";
/// Compressions.
const UNCOMPRESSED: u64 = 0;
const ZSTD: u64 = 6;
/// Physical types.
const INT64: u64 = 2;
const BYTE_ARRAY: u64 = 6;

/// A column of a row group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Position of its first page in the file.
    pub(super) start: u64,
    /// Bytes of all of its pages, with their headers.
    pub(super) bytes: u64,
    /// Values.
    pub(super) values: u64,
    /// Whether its pages are compressed by zstd; if not, they are not compressed.
    pub(super) zstd: bool,
}

/// A row group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    /// Rows.
    pub(super) rows: u64,
    /// Its columns in the order of the file.
    pub(super) chunks: Vec<Chunk>,
}

/// What a footer says, without the names of the columns.
#[derive(Debug, Default)]
pub(super) struct Footer<'a> {
    /// The bytes of the schema.
    schema: &'a [u8],
    /// Keys and values.
    pub(super) keys: Vec<(&'a [u8], &'a [u8])>,
    /// Rows of all groups.
    pub(super) rows: u64,
    pub(super) groups: Vec<Group>,
}

/// Returns the length of the footer in front of a file's last [`TAIL_BYTES`].
pub(super) fn length(tail: &[u8]) -> Option<usize> {
    let (length, mark) = tail.split_first_chunk::<4>()?;
    usize::try_from(u32::from_le_bytes(*length)).ok().filter(|_| mark == MARK)
}

impl<'a> Footer<'a> {
    /// Reads a footer; `None` if it has anything that a trace has not.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut footer = Self::default();
        let mut thrift = Thrift::new(bytes);
        thrift.fields(|thrift, id, of| match (id, of) {
            (2, LIST) => {
                let start = thrift.position();
                thrift.skip(LIST)?;
                footer.schema = thrift.since(start)?;
                Some(())
            }
            (3, I64) => {
                footer.rows = thrift.number()?;
                Some(())
            }
            (4, LIST) => {
                let (count, _) = thrift.list()?;
                (0..count).try_for_each(|_| {
                    footer.groups.push(group(thrift)?);
                    Some(())
                })
            }
            (5, LIST) => {
                let (count, _) = thrift.list()?;
                (0..count).try_for_each(|_| {
                    footer.keys.push(pair(thrift)?);
                    Some(())
                })
            }
            // Encryption.
            (8 | 9, _) => None,
            _ => thrift.skip(of),
        })?;
        Some(footer)
    }

    /// Returns whether the columns are those of a trace of this version, in the order in which the writer has them.
    pub(super) fn has_columns(&self, version: u32, buckets: usize) -> bool {
        thread_local! {
            /// The last schema that was recognized: a store has many files with the same.
            static KNOWN: RefCell<(u32, usize, Vec<u8>)> = const { RefCell::new((0, 0, Vec::new())) };
        }
        KNOWN.with_borrow_mut(|(known_version, known_buckets, known)| {
            if (*known_version, *known_buckets) == (version, buckets) && known == self.schema {
                return true;
            }
            let columns = columns(self.schema).unwrap_or_default();
            let expected = names(version, buckets);
            let recognized = columns.len() == expected.len()
                && columns
                    .iter()
                    .zip(&expected)
                    .all(|((name, of), (expected, text))| *name == expected.as_bytes() && *of == if *text { BYTE_ARRAY } else { INT64 })
                && self.groups.iter().all(|group| group.chunks.len() == columns.len());
            if recognized {
                (*known_version, *known_buckets) = (version, buckets);
                self.schema.clone_into(known);
            }
            recognized
        }) && self.groups.iter().all(|group| group.chunks.len() == Positions::new(version, buckets).columns)
    }
}

/// Returns the names of the columns of a version, and whether each has text.
fn names(version: u32, buckets: usize) -> Vec<(String, bool)> {
    let numbers = schema::numbers(buckets).filter(|name| !FIGURES.iter().any(|figure| figure.name == name && figure.since > version));
    WORDS.iter().map(|&name| (name.to_owned(), true)).chain(numbers.map(|name| (name, false))).collect()
}

/// Positions of columns in a row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Positions {
    version: u32,
    /// Position of the first bucket of cold ages.
    pub(super) cold: usize,
    /// Number of columns.
    columns: usize,
}

impl Positions {
    /// Returns the positions of a version.
    pub(super) fn new(version: u32, buckets: usize) -> Self {
        let figures = FIGURES.iter().filter(|figure| figure.since <= version).count();
        let cold = Self::key() + 1 + figures;
        Self { version, cold, columns: cold + 2 * buckets }
    }

    /// Returns the position of [`JOB_KEY`].
    pub(super) fn key() -> usize {
        debug_assert!(!JOB_KEY.is_empty() && ID_WORDS < WORDS.len());
        WORDS.len()
    }

    /// Returns the position of a figure, by its index in [`FIGURES`]; `None` if the version lacks it.
    pub(super) fn figure(&self, index: usize) -> Option<usize> {
        let known = |figure: &&crate::entry::Figure| figure.since <= self.version;
        FIGURES.get(index).filter(known)?;
        Some(Self::key() + 1 + FIGURES[..index].iter().filter(known).count())
    }
}

/// Reads the schema: a root, and columns that are all required and flat. Returns the name and the type of each.
fn columns(schema: &[u8]) -> Option<Vec<(&[u8], u64)>> {
    let mut thrift = Thrift::new(schema);
    let (count, _) = thrift.list()?;
    let mut columns = Vec::new();
    for index in 0..count {
        let (mut kind, mut repetition, mut name, mut children) = (None, None, &[][..], None);
        thrift.fields(|thrift, id, of| {
            match (id, of) {
                (1, I32) => kind = Some(thrift.number()?),
                (3, I32) => repetition = Some(thrift.number()?),
                (4, BINARY) => name = thrift.binary()?,
                (5, I32) => children = Some(thrift.number()?),
                _ => thrift.skip(of)?,
            }
            Some(())
        })?;
        match (index, kind, repetition, children) {
            (0, None, _, Some(children)) if children == count as u64 - 1 => {}
            (1.., Some(kind), Some(0), None) => columns.push((name, kind)),
            _ => return None,
        }
    }
    Some(columns)
}

fn group(thrift: &mut Thrift<'_>) -> Option<Group> {
    let mut group = Group::default();
    thrift.fields(|thrift, id, of| match (id, of) {
        (1, LIST) => {
            let (count, _) = thrift.list()?;
            group.chunks.reserve(count.min(256));
            (0..count).try_for_each(|_| {
                group.chunks.push(chunk(thrift)?);
                Some(())
            })
        }
        (3, I64) => {
            group.rows = thrift.number()?;
            Some(())
        }
        _ => thrift.skip(of),
    })?;
    Some(group)
}

fn chunk(thrift: &mut Thrift<'_>) -> Option<Chunk> {
    let mut chunk = None;
    thrift.fields(|thrift, id, of| match (id, of) {
        (3, STRUCT) => {
            chunk = Some(places(thrift)?);
            Some(())
        }
        // The column is in another file, or encrypted.
        (1 | 8 | 9, _) => None,
        _ => thrift.skip(of),
    })?;
    chunk
}

fn places(thrift: &mut Thrift<'_>) -> Option<Chunk> {
    let mut chunk = Chunk::default();
    let (mut codec, mut data, mut dictionary) = (None, None, None);
    thrift.fields(|thrift, id, of| {
        match (id, of) {
            (4, I32) => codec = Some(thrift.number()?),
            (5, I64) => chunk.values = thrift.number()?,
            (7, I64) => chunk.bytes = thrift.number()?,
            (9, I64) => data = Some(thrift.number()?),
            (11, I64) => dictionary = Some(thrift.number()?),
            _ => thrift.skip(of)?,
        }
        Some(())
    })?;
    chunk.start = dictionary.unwrap_or(data?).min(data?);
    chunk.zstd = match codec? {
        UNCOMPRESSED => false,
        ZSTD => true,
        _ => return None,
    };
    Some(chunk)
}

fn pair<'a>(thrift: &mut Thrift<'a>) -> Option<(&'a [u8], &'a [u8])> {
    let (mut key, mut value) = (&[][..], &[][..]);
    thrift.fields(|thrift, id, of| {
        match (id, of) {
            (1, BINARY) => key = thrift.binary()?,
            (2, BINARY) => value = thrift.binary()?,
            _ => thrift.skip(of)?,
        }
        Some(())
    })?;
    Some((key, value))
}
