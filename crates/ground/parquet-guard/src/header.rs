//! Headers of pages: `PageHeader` of Parquet's `parquet.thrift`, in Thrift's compact protocol.

use std::io::Read;

/// The largest header. Statistics in it are short: writers truncate them.
const HEADER_BYTES_MAX: u64 = 1 << 16;
/// Nesting of structs and lists in a header; the format has three levels.
const DEPTH_MAX: u8 = 8;

/// Encodings whose values take no more memory than their page and their number imply. `DELTA_BYTE_ARRAY` repeats the start of
/// one text in all others, `DELTA_LENGTH_BYTE_ARRAY` allocates what its bytes declare.
const ENCODINGS: [(u64, &str); 5] = [(0, "PLAIN"), (2, "PLAIN_DICTIONARY"), (3, "RLE"), (5, "DELTA_BINARY_PACKED"), (8, "RLE_DICTIONARY")];

/// Types of the compact protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I8: u8 = 3;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const STRUCT: u8 = 12;

/// The kind of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Data,
    Dictionary {
        values: u64,
    },
    /// The library skips it.
    Other,
}

/// The header of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// Size after decompression.
    pub(crate) expanded: u64,
    /// Size in the file.
    pub(crate) stored: u64,
}

impl Header {
    /// Reads a header, which with its page has at most `left` bytes. Returns its length beside it.
    pub(crate) fn read(from: impl Read, left: u64) -> Result<(Self, u64), String> {
        let mut input = Input { from: from.take(left.min(HEADER_BYTES_MAX)), used: 0 };
        let (mut kind, mut expanded, mut stored, mut values, mut encoding) = (None, None, None, None, None);
        let mut last = 0;
        while let Some((id, of)) = input.field(&mut last)? {
            match (id, of) {
                (1, _) => kind = Some(input.number(of)?),
                (2, _) => expanded = Some(input.number(of)?),
                (3, _) => stored = Some(input.number(of)?),
                // DataPageHeader, DictionaryPageHeader, DataPageHeaderV2.
                (5 | 7 | 8, STRUCT) => {
                    let mut inner = 0;
                    while let Some((field, of)) = input.field(&mut inner)? {
                        match (id, field) {
                            (7, 1) => values = Some(input.number(of)?),
                            (5 | 7, 2) | (8, 4) => encoding = Some(input.number(of)?),
                            _ => input.skip(of, 0)?,
                        }
                    }
                }
                _ => input.skip(of, 0)?,
            }
        }
        let missing = || "its header lacks a required field".to_owned();
        let kind = match kind.ok_or_else(missing)? {
            0 | 3 => Kind::Data,
            2 => Kind::Dictionary { values: values.ok_or_else(missing)? },
            _ => Kind::Other,
        };
        if kind != Kind::Other {
            let encoding = encoding.ok_or_else(missing)?;
            if !ENCODINGS.iter().any(|(known, _)| *known == encoding) {
                let known: Vec<_> = ENCODINGS.iter().map(|(number, name)| format!("{number} ({name})")).collect();
                return Err(format!("its encoding is {encoding}; {} are supported", known.join(", ")));
            }
        }
        let header = Self { kind, expanded: expanded.ok_or_else(missing)?, stored: stored.ok_or_else(missing)? };
        if header.stored > left - input.used {
            return Err(format!("it has {} bytes, but {} follow", header.stored, left - input.used));
        }
        Ok((header, input.used))
    }
}

struct Input<R> {
    from: R,
    used: u64,
}

impl<R: Read> Input<R> {
    fn byte(&mut self) -> Result<u8, String> {
        let mut byte = [0];
        self.from.read_exact(&mut byte).map_err(|_| "its header does not end".to_owned())?;
        self.used += 1;
        Ok(byte[0])
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("its header has a number of more than ten bytes".to_owned())
    }

    /// Reads a number of the type `of`, which must not be negative.
    fn number(&mut self, of: u8) -> Result<u64, String> {
        if !(I8 + 1..=I64).contains(&of) {
            return Err(format!("its header has a field of type {of} in the place of a number"));
        }
        let zigzag = self.varint()?;
        if zigzag & 1 == 1 {
            return Err("its header has a negative number".to_owned());
        }
        Ok(zigzag >> 1)
    }

    /// Reads the beginning of a field: its id and type; `None` at the end of the struct. Ids must increase, so that no later
    /// field replaces one that was checked.
    fn field(&mut self, last: &mut u64) -> Result<Option<(u64, u8)>, String> {
        let byte = self.byte()?;
        if byte == 0 {
            return Ok(None);
        }
        let id = match byte >> 4 {
            0 => self.number(I64)?,
            more => *last + u64::from(more),
        };
        if id <= *last || id > u64::from(u16::MAX) {
            return Err(format!("its header has field {id} after field {last}"));
        }
        *last = id;
        Ok(Some((id, byte & 0x0f)))
    }

    fn skip(&mut self, of: u8, depth: u8) -> Result<(), String> {
        match of {
            _ if depth > DEPTH_MAX => Err(format!("its header is nested deeper than {DEPTH_MAX} levels")),
            TRUE | FALSE => Ok(()),
            I8 => self.byte().map(drop),
            4..=I64 => self.varint().map(drop),
            DOUBLE => (0..8).try_for_each(|_| self.byte().map(drop)),
            BINARY => (0..self.varint()?).try_for_each(|_| self.byte().map(drop)),
            LIST | SET => {
                let start = self.byte()?;
                let count = if start >> 4 == 15 { self.varint()? } else { u64::from(start >> 4) };
                let of = start & 0x0f;
                // A boolean is a byte in a list.
                let of = if of == TRUE || of == FALSE { I8 } else { of };
                (0..count).try_for_each(|_| self.skip(of, depth + 1))
            }
            STRUCT => {
                let mut last = 0;
                while let Some((_, of)) = self.field(&mut last)? {
                    self.skip(of, depth + 1)?;
                }
                Ok(())
            }
            other => Err(format!("its header has the unknown type {other}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data page of 100 bytes, 40 of them stored, 3 values in PLAIN, with levels in RLE.
    const DATA: [u8; 18] = [0x15, 0, 0x15, 200, 1, 0x15, 80, 0x2c, 0x15, 6, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0];

    fn read(bytes: &[u8], left: u64) -> Result<(Header, u64), String> {
        Header::read(bytes, left)
    }

    #[test]
    fn a_header_is_read() {
        assert_eq!(read(&DATA, 100), Ok((Header { kind: Kind::Data, expanded: 100, stored: 40 }, 18)));
    }

    #[test]
    fn a_truncated_or_overlong_header_is_refused() {
        for cut in 0..DATA.len() {
            assert!(read(&DATA[..cut], 100).is_err(), "{cut}");
        }
        assert!(read(&DATA, 57).unwrap_err().contains("40 bytes, but 39 follow"));
    }

    #[test]
    fn no_later_field_replaces_a_checked_one() {
        // Field 2 again, in the long form, before the end.
        let mut again = DATA[..17].to_vec();
        again.extend([0x05, 4, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0]);
        assert!(read(&again, 100).unwrap_err().contains("field 2 after field 5"));
    }

    #[test]
    fn encodings_that_expand_without_limit_are_refused() {
        let mut delta = DATA;
        delta[11] = 14;
        assert!(read(&delta, 100).unwrap_err().contains("encoding is 7"));
    }
}
