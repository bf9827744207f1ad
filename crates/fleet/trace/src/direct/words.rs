//! Columns of text: a dictionary, and runs of rows with the same word.

use super::footer::Chunk;
use super::pages::{Header, PLAIN, Place, Store};

/// A column of text. Its rows are runs: consecutive rows mostly have the same word.
#[derive(Debug, Default)]
pub(super) struct Words {
    text: Vec<u8>,
    /// Range of each word in `text`.
    words: Vec<(u32, u32)>,
    /// Word and end of each run.
    runs: Vec<(u32, u32)>,
    rows: u32,
    /// The run of the last call of [`Words::run`].
    current: usize,
}

impl Words {
    /// Reads a column of `rows` values, which must have a dictionary of at most `words_max` words, all of them UTF-8.
    pub(super) fn read(
        &mut self,
        store: &mut Store,
        (chunk, at): (&Chunk, usize),
        rows: usize,
        words_max: usize,
        limit: usize,
    ) -> Option<()> {
        self.text.clear();
        self.words.clear();
        self.runs.clear();
        (self.rows, self.current) = (0, 0);
        let rows = u32::try_from(rows).ok()?;
        store.pages(chunk, at, limit, |store, header, place| self.page(store, header, &place, rows, words_max))?;
        (self.rows == rows).then_some(())
    }

    fn page(&mut self, store: &Store, header: Header, place: &Place, rows: u32, words_max: usize) -> Option<()> {
        let bytes = store.bytes(place).get(place.range.clone())?;
        if !header.dictionary {
            let values = u32::try_from(header.values).ok().filter(|&values| values <= rows - self.rows)?;
            return if header.is_coded() { self.codes(bytes, values) } else { None };
        }
        if !header.is(PLAIN) && !header.is_coded() || header.values > words_max || !self.words.is_empty() {
            return None;
        }
        let mut rest = bytes;
        for _ in 0..header.values {
            let (length, after) = rest.split_first_chunk::<4>()?;
            let (word, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            std::str::from_utf8(word).ok()?;
            let begin = u32::try_from(self.text.len()).ok()?;
            self.text.extend_from_slice(word);
            self.words.push((begin, u32::try_from(self.text.len()).ok()?));
            rest = after;
        }
        Some(())
    }

    /// Reads indices in the dictionary: runs, and groups of eight packed numbers.
    fn codes(&mut self, bytes: &[u8], values: u32) -> Option<()> {
        let (&width, mut rest) = bytes.split_first()?;
        let width = u32::from(width);
        if width > 24 {
            return None;
        }
        let end = self.rows + values;
        while self.rows < end {
            let mut header = 0u64;
            for shift in (0..35).step_by(7) {
                let (&byte, after) = rest.split_first()?;
                rest = after;
                header |= u64::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            let left = end - self.rows;
            let count = u32::try_from(header >> 1).ok()?;
            if header & 1 == 0 {
                let (value, after) = rest.split_at_checked(width.div_ceil(8) as usize)?;
                let code = value.iter().rev().fold(0, |code, &byte| code << 8 | u32::from(byte));
                self.push(code, count.min(left))?;
                rest = after;
            } else {
                let length = (count as usize).checked_mul(width as usize)?;
                let (packed, after) = rest.split_at_checked(length)?;
                let values = count.checked_mul(8)?.min(left);
                for index in 0..values as usize {
                    let bit = index * width as usize;
                    let number =
                        (0..4).fold(0, |number, at| number | u32::from(packed.get(bit / 8 + at).copied().unwrap_or(0)) << (8 * at));
                    self.push((number >> (bit % 8)) & ((1 << width) - 1), 1)?;
                }
                rest = after;
            }
            if count == 0 {
                return None;
            }
        }
        Some(())
    }

    fn push(&mut self, code: u32, count: u32) -> Option<()> {
        self.words.get(code as usize)?;
        self.rows += count;
        // A damaged dictionary may have a word twice.
        let same = self.runs.last().is_some_and(|&(last, _)| last == code || self.bytes(last) == self.bytes(code));
        match self.runs.last_mut().filter(|_| same) {
            Some((_, end)) => *end = self.rows,
            None => self.runs.push((code, self.rows)),
        }
        Some(())
    }

    fn bytes(&self, code: u32) -> &[u8] {
        self.words.get(code as usize).and_then(|&(begin, end)| self.text.get(begin as usize..end as usize)).unwrap_or_default()
    }

    /// Returns the word of a row and the end of its run. Rows must not decrease from call to call.
    pub(super) fn run(&mut self, row: usize) -> (&str, usize) {
        while self.runs.get(self.current).is_some_and(|&(_, end)| end as usize <= row) {
            self.current += 1;
        }
        let (code, end) = self.runs.get(self.current).copied().unwrap_or((u32::MAX, self.rows));
        (std::str::from_utf8(self.bytes(code)).unwrap_or_default(), end as usize)
    }

    /// Returns whether a run begins with this row. Rows must not decrease from call to call.
    pub(super) fn begins(&mut self, row: usize) -> bool {
        let before = row.checked_sub(1).map(|last| self.run(last).1);
        before.is_none_or(|end| end == row)
    }

    /// Returns the memory that is held for the next row group.
    pub(super) fn held(&self) -> usize {
        self.text.capacity() + 8 * (self.words.capacity() + self.runs.capacity())
    }
}
