//! Numbers in the encoding DELTA_BINARY_PACKED, a few at a time.
//!
//! A page begins with its first number. Each further number is its difference from the one before it; the differences of
//! a block, minus the smallest of them, are packed in groups of 32 or 64 (miniblocks), each with its own number of bits
//! (Parquet's `Encodings.md`). All arithmetic is modulo 2^64, as in the writer.

/// Numbers of a miniblock, at most.
const GROUP_MAX: usize = 64;
/// Miniblocks of a block, at most.
const GROUPS_MAX: usize = 8;
/// Bytes that [`unpack`] may read after the packed ones.
pub(super) const PADDING: usize = 16;

/// The position in one page. The bytes are passed to each call, so that pages of many columns can be in one buffer; at least
/// [`PADDING`] bytes must follow those of the page.
#[derive(Clone, Debug)]
pub(super) struct Delta {
    at: usize,
    end: usize,
    /// Numbers of the page that have not been unpacked.
    left: usize,
    group: usize,
    groups: usize,
    widths: [u8; GROUPS_MAX],
    /// The next miniblock of the block.
    next: usize,
    smallest: u64,
    last: u64,
    /// The part of `buffer` that was unpacked and not returned.
    from: usize,
    to: usize,
    buffer: [u64; GROUP_MAX],
}

impl Default for Delta {
    fn default() -> Self {
        let widths = [0; GROUPS_MAX];
        let buffer = [0; GROUP_MAX];
        Self { at: 0, end: 0, left: 0, group: 0, groups: 0, widths, next: 0, smallest: 0, last: 0, from: 0, to: 0, buffer }
    }
}

/// Reads a number of seven bits per byte.
fn varint(bytes: &[u8], at: &mut usize, end: usize) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(..end)?.get(*at)?;
        *at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn signed(zigzag: u64) -> u64 {
    (zigzag >> 1) ^ (zigzag & 1).wrapping_neg()
}

impl Delta {
    /// Starts to read the page in `bytes[at..end]`, which must have `values` numbers. The buffer is not cleared: this happens
    /// for every page of every column.
    pub(super) fn open(&mut self, bytes: &[u8], mut at: usize, end: usize, values: usize) -> Option<()> {
        self.close();
        let block = usize::try_from(varint(bytes, &mut at, end)?).ok()?;
        let groups = usize::try_from(varint(bytes, &mut at, end)?).ok()?;
        let total = varint(bytes, &mut at, end)?;
        let first = signed(varint(bytes, &mut at, end)?);
        let group = block.checked_div(groups)?;
        if groups > GROUPS_MAX || (group != 32 && group != 64) || group * groups != block || total != values as u64 || values == 0 {
            return None;
        }
        (self.at, self.end, self.left) = (at, end, values - 1);
        (self.group, self.groups, self.next) = (group, groups, groups);
        (self.last, self.buffer[0], self.to) = (first, first, 1);
        Some(())
    }

    /// Forgets the page.
    pub(super) fn close(&mut self) {
        (self.left, self.from, self.to) = (0, 0, 0);
    }

    /// Returns the numbers of the page that have not been returned.
    pub(super) fn remaining(&self) -> usize {
        self.left + self.to - self.from
    }

    /// Reads `count` numbers, at most [`Self::remaining`], and calls `put` with the index of the first and some of them, in order.
    #[inline]
    pub(super) fn read(&mut self, bytes: &[u8], count: usize, mut put: impl FnMut(usize, &[u64])) -> Option<()> {
        let mut done = 0;
        while done < count {
            if self.from == self.to {
                self.fill(bytes)?;
            }
            let some = (self.to - self.from).min(count - done);
            put(done, self.buffer.get(self.from..self.from + some)?);
            self.from += some;
            done += some;
        }
        Some(())
    }

    /// Unpacks the next miniblock.
    fn fill(&mut self, bytes: &[u8]) -> Option<()> {
        if self.left == 0 {
            return None;
        }
        if self.next == self.groups {
            self.smallest = signed(varint(bytes, &mut self.at, self.end)?);
            let widths = bytes.get(..self.end)?.get(self.at..self.at.checked_add(self.groups)?)?;
            self.widths[..self.groups].copy_from_slice(widths);
            self.at += self.groups;
            self.next = 0;
        }
        let width = usize::from(self.widths[self.next]);
        self.next += 1;
        let length = self.group / 8 * width;
        let packed = bytes.get(self.at..self.at + length + PADDING)?;
        if self.at + length > self.end {
            return None;
        }
        self.at += length;
        // The last miniblock is padded to its whole length.
        let some = self.left.min(self.group);
        let (smallest, mut last) = (self.smallest, self.last);
        if width == 0 {
            for slot in &mut self.buffer[..some] {
                last = last.wrapping_add(smallest);
                *slot = last;
            }
        } else {
            unpack_by_width(packed, width, &mut self.buffer[..self.group])?;
            for slot in &mut self.buffer[..some] {
                last = last.wrapping_add(smallest.wrapping_add(*slot));
                *slot = last;
            }
        }
        self.last = last;
        self.left -= some;
        (self.from, self.to) = (0, some);
        Some(())
    }
}

/// Unpacks numbers of `W` bits each. Eight of them take `W` bytes.
#[inline]
fn unpack<const W: usize>(packed: &[u8], numbers: &mut [u64]) -> Option<()> {
    let mask = u64::MAX >> (64 - W);
    for (index, eight) in numbers.chunks_exact_mut(8).enumerate() {
        let bytes = packed.get(index * W..index * W + W + PADDING)?;
        for (number, slot) in eight.iter_mut().enumerate() {
            let bit = number * W;
            let from = bit / 8;
            *slot = if W <= 57 {
                (u64::from_le_bytes(*bytes[from..].first_chunk()?) >> (bit % 8)) & mask
            } else {
                #[expect(clippy::cast_possible_truncation, reason = "the mask follows")]
                let low = (u128::from_le_bytes(*bytes[from..].first_chunk()?) >> (bit % 8)) as u64;
                low & mask
            };
        }
    }
    Some(())
}

macro_rules! by_width {
    ($packed:ident, $width:ident, $numbers:ident: $($w:literal)*) => {
        match $width {
            $($w => unpack::<$w>($packed, $numbers),)*
            _ => None,
        }
    };
}

fn unpack_by_width(packed: &[u8], width: usize, numbers: &mut [u64]) -> Option<()> {
    by_width!(packed, width, numbers: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35
        36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64)
}
