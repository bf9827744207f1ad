//! Thrift's compact protocol, as far as Parquet's footer and page headers use it. Every function returns `None` for bytes
//! that are not what it reads.

/// Nesting of structs and lists; the format has six levels.
const DEPTH_MAX: u8 = 12;

/// Types of the compact protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I8: u8 = 3;
const I16: u8 = 4;
pub(super) const I32: u8 = 5;
pub(super) const I64: u8 = 6;
const DOUBLE: u8 = 7;
pub(super) const BINARY: u8 = 8;
pub(super) const LIST: u8 = 9;
const SET: u8 = 10;
pub(super) const STRUCT: u8 = 12;

/// A position in encoded bytes.
#[derive(Clone, Debug)]
pub(super) struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Thrift<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the number of bytes read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Returns the bytes read since a position.
    pub(super) fn since(&self, position: usize) -> Option<&'a [u8]> {
        self.bytes.get(position..self.at)
    }

    /// Passes over these bytes; returns `false` if there are others, or if they are none.
    pub(super) fn pass(&mut self, known: &[u8]) -> bool {
        let same = !known.is_empty() && self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(known));
        self.at += if same { known.len() } else { 0 };
        same
    }

    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    fn varint(&mut self) -> Option<u64> {
        let first = self.byte()?;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        let mut number = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// Reads a number, which must not be negative.
    #[inline]
    pub(super) fn number(&mut self) -> Option<u64> {
        let zigzag = self.varint()?;
        (zigzag & 1 == 0).then_some(zigzag >> 1)
    }

    /// Reads text or bytes.
    #[inline]
    pub(super) fn binary(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        let bytes = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(bytes)
    }

    /// Reads the beginning of a list: the number of its elements, and their type.
    pub(super) fn list(&mut self) -> Option<(usize, u8)> {
        let start = self.byte()?;
        let count = if start >> 4 == 15 { usize::try_from(self.varint()?).ok()? } else { usize::from(start >> 4) };
        Some((count, start & 0x0f))
    }

    /// Reads a struct: calls `field` for each of its fields with the field's id and type. `field` reads or skips its value.
    /// Ids must increase, so that no later field replaces one that was read.
    #[inline]
    pub(super) fn fields(&mut self, mut field: impl FnMut(&mut Self, u64, u8) -> Option<()>) -> Option<()> {
        let mut last = 0;
        loop {
            let byte = self.byte()?;
            if byte == 0 {
                return Some(());
            }
            let id = match byte >> 4 {
                0 => self.number()?,
                more => last + u64::from(more),
            };
            if id <= last || id > u64::from(u16::MAX) {
                return None;
            }
            last = id;
            field(self, id, byte & 0x0f)?;
        }
    }

    /// Skips a value of this type.
    pub(super) fn skip(&mut self, of: u8) -> Option<()> {
        self.skip_at(of, 0)
    }

    fn skip_at(&mut self, of: u8, depth: u8) -> Option<()> {
        match of {
            _ if depth > DEPTH_MAX => None,
            TRUE | FALSE => Some(()),
            I8 => self.byte().map(drop),
            I16 | I32 | I64 => self.varint().map(drop),
            DOUBLE => {
                self.at = self.at.checked_add(8).filter(|&at| at <= self.bytes.len())?;
                Some(())
            }
            BINARY => self.binary().map(drop),
            LIST | SET => {
                let (count, of) = self.list()?;
                // Each element takes a byte at least, so a list ends with the bytes.
                match of {
                    I16 | I32 | I64 => (0..count).try_for_each(|_| self.varint().map(drop)),
                    BINARY => (0..count).try_for_each(|_| self.binary().map(drop)),
                    // A boolean is a byte in a list.
                    TRUE | FALSE => (0..count).try_for_each(|_| self.byte().map(drop)),
                    _ => (0..count).try_for_each(|_| self.skip_at(of, depth + 1)),
                }
            }
            STRUCT => self.fields(|thrift, _, of| thrift.skip_at(of, depth + 1)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_bytes_end_and_do_not_panic() {
        let mut random = fastrand::Rng::with_seed(5);
        for length in 0..64 {
            for _ in 0..2_000 {
                let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
                let mut thrift = Thrift::new(&bytes);
                let _ = thrift.skip(STRUCT);
                assert!(thrift.position() <= length);
            }
        }
        // A list of 2^60 booleans in eleven bytes.
        let endless = [0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert_eq!(Thrift::new(&endless).skip(STRUCT), None);
    }

    #[test]
    fn fields_are_read_by_id() {
        // Field 1: number 5; field 3: text "ab"; field 4: a list of two numbers.
        let bytes = [0x16, 10, 0x28, 2, b'a', b'b', 0x19, 0x26, 2, 4, 0];
        let (mut number, mut text, mut thrift) = (0, &[][..], Thrift::new(&bytes));
        let read = thrift.fields(|thrift, id, of| {
            match id {
                1 => number = thrift.number()?,
                3 => text = thrift.binary()?,
                _ => thrift.skip(of)?,
            }
            Some(())
        });
        assert_eq!((read, number, text, thrift.position()), (Some(()), 5, &b"ab"[..], bytes.len()));
        for cut in 0..bytes.len() {
            assert_eq!(Thrift::new(&bytes[..cut]).skip(STRUCT), None, "{cut}");
        }
    }
}
