//! The unpacked entries of a job's day.

use super::Number;
use crate::pack::LANES;

/// The unpacked entries of a job's day. Reused for each day, it allocates no further memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DayEntries {
    buckets: usize,
    pub(super) sums: Vec<u32>,
    pub(super) numbers: DayNumbers,
}

/// The numbers of a day's entries, beside their histograms. Reused for each day.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DayNumbers {
    /// Numbers of a row: before those of the entry are the last of its sums, as both are unpacked together.
    width: usize,
    before: usize,
    /// Numbers of an entry that the file's version has.
    known: usize,
    rows: Vec<u32>,
}

/// The numbers of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a>(&'a [u32]);

impl Numbers<'_> {
    /// Returns a number; 0 if the file's version lacks it.
    #[must_use]
    #[inline]
    pub fn get(&self, number: Number) -> u32 {
        self.0.get(number as usize).copied().unwrap_or(0)
    }
}

impl DayNumbers {
    /// Sets what rows of `stride` numbers have after so many sums, and returns where they go without the columns of tiles that have
    /// sums alone.
    pub(super) fn prepare(&mut self, sums: usize, stride: usize, known: usize) -> &mut Vec<u32> {
        self.before = sums % LANES;
        self.width = stride - (sums - self.before);
        self.known = known;
        self.rows.clear();
        &mut self.rows
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len().checked_div(self.width).unwrap_or(0)
    }

    /// Returns whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the numbers of each entry.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = Numbers<'_>> {
        let numbers = self.before..self.before + self.known;
        self.rows.chunks_exact(self.width.max(1)).map(move |row| Numbers(&row[numbers.clone()]))
    }

    /// Returns a number of an entry; 0 if the file's version lacks it.
    #[must_use]
    #[inline]
    pub fn get(&self, entry: usize, number: Number) -> u32 {
        if number as usize >= self.known {
            return 0;
        }
        self.rows[entry * self.width + self.before + number as usize]
    }
}

impl DayEntries {
    /// Removes the entries, and prepares for those of histograms of so many buckets.
    pub(super) fn clear(&mut self, buckets: usize) {
        self.buckets = buckets;
        self.sums.clear();
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Returns the suffix sums of an entry's cold-age histogram, by bucket, followed by those of its promotion
    /// histogram. It is not checked that they decrease.
    #[must_use]
    #[inline]
    pub fn sums(&self, entry: usize) -> &[u32] {
        &self.sums[entry * 2 * self.buckets..][..2 * self.buckets]
    }

    /// Returns a number of an entry; 0 if the file's version lacks it.
    #[must_use]
    #[inline]
    pub fn number(&self, entry: usize, number: Number) -> u32 {
        self.numbers.get(entry, number)
    }
}
