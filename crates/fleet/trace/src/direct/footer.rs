//! The footer of a trace file: where each column of each row group is.

use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;

use parquet::file::metadata::KeyValue;

use super::thrift::{BINARY, I32, I64, LIST, STRUCT, Thrift};
use crate::entry::{Basis, FIGURES};
use crate::schema::{self, WORDS};

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

/// What a footer says.
#[derive(Clone, Debug)]
pub(super) struct Footer {
    pub(super) version: u32,
    pub(super) basis: Basis,
    /// Rows of all groups.
    pub(super) rows: u64,
    /// Number of row groups, and their place in the footer.
    pub(super) groups: usize,
    pub(super) groups_at: Range<usize>,
}

/// The last footer whose columns were recognized. A store has many files with the same, except for their row groups.
#[derive(Default)]
struct Known {
    schema: Vec<u8>,
    /// The bytes after the row groups.
    after: Vec<u8>,
    version_and_basis: Option<(u32, Basis)>,
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::new(Known::default());
}

/// Returns the length of the footer in front of a file's last [`TAIL_BYTES`].
pub(super) fn length(tail: &[u8]) -> Option<usize> {
    let (length, mark) = tail.split_first_chunk::<4>()?;
    usize::try_from(u32::from_le_bytes(*length)).ok().filter(|_| mark == MARK)
}

impl Footer {
    /// Reads a footer; `None` if it has anything that a trace has not.
    pub(super) fn read(path: &Path, bytes: &[u8]) -> Option<Self> {
        KNOWN.with_borrow_mut(|known| Self::as_known(bytes, known).or_else(|| Self::read_all(path, bytes, known)))
    }

    /// Reads a footer that differs from the last one in its row groups only. That they end where the rest begins is checked when
    /// they are read ([`groups`]).
    fn as_known(bytes: &[u8], known: &Known) -> Option<Self> {
        let (version, basis) = known.version_and_basis?;
        let (mut rows, mut groups, mut begin) = (None, None, 0);
        let mut thrift = Thrift::new(bytes);
        // Ends at the row groups.
        let _ = thrift.fields(|thrift, id, of| match (id, of) {
            (1, I32) => thrift.number().map(drop),
            (2, LIST) => thrift.pass(&known.schema).then_some(()),
            (3, I64) => {
                rows = Some(thrift.number()?);
                Some(())
            }
            (4, LIST) => {
                begin = thrift.position();
                groups = Some(thrift.list()?.0);
                None
            }
            _ => None,
        });
        let end = bytes.len().checked_sub(known.after.len()).filter(|&end| end >= begin)?;
        let same = bytes.ends_with(&known.after);
        Some(Self { version, basis, rows: rows?, groups: groups?, groups_at: begin..end }).filter(|_| same)
    }

    fn read_all(path: &Path, bytes: &[u8], known: &mut Known) -> Option<Self> {
        let (mut schema, mut rows, mut groups, mut groups_at) = (&[][..], 0, 0, 0..0);
        let mut keys = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Thrift::new(bytes).fields(|thrift, id, of| {
            match (id, of) {
                (2, LIST) => {
                    let start = thrift.position();
                    thrift.skip(LIST)?;
                    schema = thrift.since(start)?;
                }
                (3, I64) => rows = thrift.number()?,
                (4, LIST) => {
                    let start = thrift.position();
                    groups = thrift.clone().list()?.0;
                    thrift.skip(LIST)?;
                    groups_at = start..thrift.position();
                }
                (5, LIST) => {
                    for _ in 0..thrift.list()?.0 {
                        let (key, value) = pair(thrift)?;
                        keys.push(KeyValue::new(text(key), text(value)));
                    }
                }
                // Encryption.
                (8 | 9, _) => return None,
                _ => thrift.skip(of)?,
            }
            Some(())
        })?;
        let (version, basis) = schema::trace_metadata(path, Some(&keys)).ok()?;
        let columns = columns(schema)?;
        let expected = names(version, basis.buckets());
        let same = |((name, of), (expected, text)): (&(&[u8], u64), &(String, bool))| {
            *name == expected.as_bytes() && *of == if *text { BYTE_ARRAY } else { INT64 }
        };
        if columns.len() != expected.len() || !columns.iter().zip(&expected).all(same) {
            return None;
        }
        schema.clone_into(&mut known.schema);
        bytes.get(groups_at.end..)?.clone_into(&mut known.after);
        known.version_and_basis = Some((version, basis));
        Some(Self { version, basis, rows, groups, groups_at })
    }
}

/// Reads the row groups, which must take all of the bytes and have so many columns each.
pub(super) fn groups(bytes: &[u8], columns: usize) -> Option<Vec<Group>> {
    let mut thrift = Thrift::new(bytes);
    let (count, _) = thrift.list()?;
    let mut groups = Vec::new();
    for _ in 0..count {
        groups.push(group(&mut thrift)?);
    }
    let complete = thrift.position() == bytes.len() && groups.iter().all(|group| group.chunks.len() == columns);
    complete.then_some(groups)
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
    pub(super) columns: usize,
}

impl Positions {
    /// Returns the positions of a version.
    pub(super) fn new(version: u32, buckets: usize) -> Self {
        let figures = FIGURES.iter().filter(|figure| figure.since <= version).count();
        let cold = Self::key() + 1 + figures;
        Self { version, cold, columns: cold + 2 * buckets }
    }

    /// Returns the position of the job's number.
    pub(super) fn key() -> usize {
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
