//! The entries of one job over time: columns, one row per trace entry.

use std::num::NonZero;

use multiversion::multiversion;
use policy::histogram::Histogram;
use policy::thresholds::Thresholds;
use units::{Age, Millis, RatioPpm, UnixMillis};

use crate::origin::Origin;

/// Longest window of an entry, in milliseconds: 24 days. Longer windows are clamped to it.
pub(crate) const WINDOW_MS_MAX: u32 = i32::MAX.cast_unsigned();

/// How much of a job's cold memory a compressed pool would accept, and its compressed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compressibility {
    /// Share of the cold pages that far memory accepts; the rest is incompressible and stays in DRAM.
    pub compressible: RatioPpm,
    /// Compressed size of an accepted page, as a share of a page: a third at a compression ratio of 3.
    pub compressed: RatioPpm,
}

/// Reason why a row is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The histogram has other thresholds.
    #[error("a histogram of {found} buckets after histograms of {expected}; all entries must have the same thresholds")]
    Buckets {
        /// Buckets of the row.
        found: usize,
        /// Buckets of the rows before it.
        expected: usize,
    },
    /// A count exceeds 32 bits.
    #[error("{0} pages in one histogram; the model counts up to 4294967295 of them (16 TiB of 4 KiB pages)")]
    Count(u64),
    /// Time does not increase.
    #[error("an entry that ends at a job age of {} ms after one that ends at {} ms; entries must be sorted by time", .now.0, .last.0)]
    Order {
        /// Age of the job at the end of the row.
        now: Millis,
        /// Age of the job at the end of the row before it.
        last: Millis,
    },
    /// Suffix sums increase.
    #[error("a histogram with more pages above an age than above a younger age")]
    Rising,
}

/// The entries of one job in order of time.
///
/// Histograms are stored row by row as suffix sums of 32 bits each, cold ages before promotions, because all queries
/// are about suffix sums. An entry of 32 thresholds takes 288 bytes; reading them limits the speed of the whole model.
#[derive(Clone, Debug)]
pub struct Series {
    /// Buckets of a histogram: one more than thresholds.
    buckets: usize,
    thresholds: Thresholds,
    /// Start of the first entry.
    pub start_unix_ms: UnixMillis,
    /// How its memory compresses.
    pub compressibility: Compressibility,
    /// Whether the compressibility is assumed, because no page of the job was ever compressed.
    pub assumed: bool,
    entries: Vec<Entry>,
    sums: Vec<u32>,
    /// The trackers that [`Origin::tracker`] counts; none for a generated job.
    trackers: Vec<String>,
}

/// An entry without its histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Age of the job at the end of the entry.
    pub age_ms: Millis,
    window_ms: u32,
    /// How its ages were obtained.
    pub origin: Origin,
}

/// One row, borrowed. In both histograms the first number counts all pages, and number i + 1 those at or above
/// threshold i. No number is greater than the one before it.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Age of the job at the end of the entry.
    pub age_ms: Millis,
    /// Duration of the entry.
    pub window_ms: Millis,
    /// Accesses in the window, by the minimum age of the page at the access.
    pub promotions: &'a [u32],
    /// Pages at the end of the entry, resident and far, by minimum age.
    pub cold: &'a [u32],
    /// How its ages were obtained.
    pub origin: Origin,
}

/// A row without its histograms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRow {
    /// Age of the job at the end of the entry.
    pub(crate) age_ms: Millis,
    /// Duration of the entry.
    pub(crate) window_ms: Millis,
    /// The oldest age that the tracker distinguished; 0 if unknown.
    pub(crate) resolved_to: Age,
    /// Pages of the sample; 0 if all pages were counted.
    pub(crate) sampled: u32,
}

fn clamped(window_ms: Millis) -> u32 {
    u32::try_from(window_ms.0).unwrap_or(WINDOW_MS_MAX).min(WINDOW_MS_MAX)
}

/// Returns the buckets of the histogram with these suffix sums.
pub fn buckets(sums: &[u32]) -> impl Iterator<Item = u32> {
    let above = sums.iter().skip(1).chain(std::iter::once(&0));
    sums.iter().zip(above).map(|(sum, above)| sum - above)
}

impl Series {
    /// Creates a series without entries, for histograms over `thresholds`.
    #[must_use]
    pub fn new(thresholds: &Thresholds) -> Self {
        let compressibility = Compressibility { compressible: RatioPpm::ONE, compressed: RatioPpm(333_333) };
        Self {
            buckets: thresholds.len() + 1,
            thresholds: *thresholds,
            start_unix_ms: UnixMillis::EPOCH,
            compressibility,
            assumed: false,
            entries: Vec::new(),
            sums: Vec::new(),
            trackers: Vec::new(),
        }
    }

    /// Removes the entries and keeps the allocated memory for the next job.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.sums.clear();
        self.trackers.clear();
    }

    /// Sets how the ages of the last entry were obtained; without this call they are exact. `resolved_to` is 0 if unknown,
    /// `sampled` is 0 if all pages were counted.
    pub fn set_origin(&mut self, tracker: &str, resolved_to: Age, sampled: u32) {
        if self.entries.is_empty() {
            return;
        }
        let index = self.tracker_index(tracker);
        let origin = Origin::new(&self.thresholds, index, resolved_to, sampled);
        self.entries.last_mut().into_iter().for_each(|last| last.origin = origin);
    }

    /// Returns the entries without their histograms.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the trackers that [`Origin::tracker`] counts; none for a generated job.
    #[must_use]
    pub fn trackers(&self) -> &[String] {
        &self.trackers
    }

    /// Takes over the trackers of another series, whose rows are appended.
    pub fn set_trackers(&mut self, of: &Self) {
        self.trackers.clone_from(&of.trackers);
    }

    /// Appends an entry by the buckets of its histograms.
    ///
    /// # Errors
    /// [`RowError`]; the series is then unchanged.
    pub fn push<T: Copy + Into<u64>>(&mut self, age_ms: Millis, window_ms: Millis, promotions: &[T], cold: &[T]) -> Result<(), RowError> {
        self.check(age_ms, [promotions.len(), cold.len()])?;
        let begin = self.sums.len();
        self.sums.resize(begin + 2 * self.buckets, 0);
        let (cold_sums, promotions_sums) = self.sums[begin..].split_at_mut(self.buckets);
        // Both histograms in one loop: each sum depends on the one before it, and neither histogram on the other. The
        // sums can only overflow if some count exceeds 32 bits, which is detected.
        let (mut promoted, mut pages, mut bits) = (0u64, 0u64, 0u64);
        let sums = promotions_sums.iter_mut().zip(cold_sums);
        for ((promoted_from, pages_from), (&promotions, &cold)) in sums.zip(promotions.iter().zip(cold)).rev() {
            let (promotions, cold) = (promotions.into(), cold.into());
            bits |= promotions | cold;
            promoted = promoted.wrapping_add(promotions);
            pages = pages.wrapping_add(cold);
            #[expect(clippy::cast_possible_truncation, reason = "rejected below")]
            let sums = (promoted as u32, pages as u32);
            (*promoted_from, *pages_from) = sums;
        }
        if (bits | promoted | pages) >> u32::BITS != 0 {
            self.sums.truncate(begin);
            let sum = |counts: &[T]| counts.iter().fold(0, |sum: u64, &count| sum.saturating_add(count.into()));
            return Err(RowError::Count(sum(promotions).max(sum(cold))));
        }
        self.push_times(age_ms, window_ms, Origin::exact(&self.thresholds));
        Ok(())
    }

    /// Appends suffix sums of entries, row by row and cold ages before promotions, whose numbers [`Self::append`] appends next.
    /// `append_sums` appends them.
    ///
    /// # Errors
    /// That of `append_sums`; [`RowError::Rising`] and the index of the row. The series is then unchanged.
    pub(crate) fn append_unpacked<E>(
        &mut self,
        append_sums: impl FnOnce(&mut Vec<u32>) -> Result<(), E>,
    ) -> Result<Result<(), (usize, RowError)>, E> {
        let begin = self.sums.len();
        append_sums(&mut self.sums)?;
        let rising = first_rising(&self.sums[begin..], self.buckets);
        if rising.is_some() {
            self.sums.truncate(begin);
        }
        Ok(rising.map_or(Ok(()), |row| Err((row, RowError::Rising))))
    }

    /// Appends entries whose ages were obtained by one tracker. `append_sums` appends the suffix sums of all of them, cold ages
    /// before promotions; it is not checked that they decrease.
    ///
    /// # Errors
    /// [`RowError`] and the index of the row; the series is then unchanged.
    pub(crate) fn append(
        &mut self,
        tracker: &str,
        rows: impl Iterator<Item = NewRow>,
        append_sums: impl FnOnce(&mut Vec<u32>),
    ) -> Result<(), (usize, RowError)> {
        let before = self.len();
        let tracker = self.tracker_index(tracker);
        let (thresholds, last) = (self.thresholds, self.entries.last().copied());
        let mut last_age = last.map(|last| last.age_ms);
        let of = |row: &NewRow| Origin::new(&thresholds, tracker, row.resolved_to, row.sampled);
        let mut origin = last.map(|last| last.origin).filter(|last| last.tracker == tracker);
        // The first entry whose age is not above the one before it.
        let mut disordered = None;
        self.entries.extend(rows.enumerate().map(|(index, row)| {
            if disordered.is_none() && last_age.is_some_and(|last| last >= row.age_ms) {
                disordered = last_age.map(|last| (index, RowError::Order { now: row.age_ms, last }));
            }
            last_age = Some(row.age_ms);
            let same = origin.filter(|last| last.resolved_to == row.resolved_to);
            let origin = *origin.insert(same.map_or_else(|| of(&row), |last| Origin { sampled: row.sampled, ..last }));
            Entry { age_ms: row.age_ms, window_ms: clamped(row.window_ms), origin }
        }));
        if let Some(error) = disordered {
            self.truncate(before);
            return Err(error);
        }
        append_sums(&mut self.sums);
        if self.sums.len() == self.len() * 2 * self.buckets {
            return Ok(());
        }
        let found = (self.sums.len() / 2).saturating_sub(before * self.buckets) / (self.len() - before).max(1);
        self.truncate(before);
        Err((0, RowError::Buckets { found, expected: self.buckets }))
    }

    fn truncate(&mut self, entries: usize) {
        self.entries.truncate(entries);
        self.sums.truncate(entries * 2 * self.buckets);
    }

    /// Returns the index of a tracker, which is added if it is new.
    fn tracker_index(&mut self, tracker: &str) -> u8 {
        let known = self.trackers.iter().position(|known| known == tracker);
        let index = known.unwrap_or_else(|| {
            self.trackers.push(tracker.to_owned());
            self.trackers.len() - 1
        });
        u8::try_from(index).unwrap_or(u8::MAX)
    }

    /// Appends a row of another series, at another time.
    ///
    /// # Errors
    /// Those of [`Series::push`].
    pub fn push_row(&mut self, age_ms: Millis, row: &Row<'_>) -> Result<(), RowError> {
        self.check(age_ms, [row.promotions.len(), row.cold.len()])?;
        self.sums.extend_from_slice(row.cold);
        self.sums.extend_from_slice(row.promotions);
        self.push_times(age_ms, row.window_ms, row.origin);
        Ok(())
    }

    fn push_times(&mut self, age_ms: Millis, window_ms: Millis, origin: Origin) {
        self.entries.push(Entry { age_ms, window_ms: clamped(window_ms), origin });
    }

    fn check(&self, age_ms: Millis, lengths: [usize; 2]) -> Result<(), RowError> {
        if let Some(found) = lengths.into_iter().find(|&found| found != self.buckets) {
            return Err(RowError::Buckets { found, expected: self.buckets });
        }
        match self.entries.last() {
            Some(last) if last.age_ms >= age_ms => Err(RowError::Order { now: age_ms, last: last.age_ms }),
            _ => Ok(()),
        }
    }

    /// Appends an entry from the histograms of the controller.
    ///
    /// # Errors
    /// Those of [`Series::push`].
    pub fn push_histograms(&mut self, age_ms: Millis, window_ms: Millis, promotions: &Histogram, cold: &Histogram) -> Result<(), RowError> {
        self.push(age_ms, window_ms, promotions.buckets(), cold.buckets())
    }

    /// Returns the same job with longer entries: each is the sum of `entries` consecutive ones, as agents sum their
    /// control periods. Promotions and windows are added, pages are means, rounded down.
    ///
    /// # Errors
    /// [`RowError::Count`] if promotions add up to more than 32 bits.
    pub fn summed(&self, entries: NonZero<usize>) -> Result<Self, RowError> {
        let (start_unix_ms, compressibility, assumed) = (self.start_unix_ms, self.compressibility, self.assumed);
        let empty = Self { start_unix_ms, compressibility, assumed, ..Self::new(&self.thresholds) };
        let rows: Vec<Row<'_>> = self.rows().collect();
        rows.chunks(entries.get()).try_fold(empty, |mut summed, rows| {
            let sum = |column: for<'a> fn(&Row<'a>) -> &'a [u32]| {
                let mut sums = vec![0u64; self.buckets];
                for row in rows {
                    sums.iter_mut().zip(buckets(column(row))).for_each(|(sum, count)| *sum += u64::from(count));
                }
                sums
            };
            let cold: Vec<u64> = sum(|row| row.cold).into_iter().map(|pages| pages / rows.len() as u64).collect();
            let window_ms = rows.iter().fold(Millis::ZERO, |sum, row| sum + row.window_ms);
            summed.push(rows.last().map_or(Millis::ZERO, |row| row.age_ms), window_ms, &sum(|row| row.promotions), &cold)?;
            Ok(summed)
        })
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of buckets of a histogram.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.buckets
    }

    /// Iterates over the entries in order of time.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.entries.iter().zip(self.sums.chunks_exact(2 * self.buckets)).map(|(entry, sums)| {
            let (cold, promotions) = sums.split_at(self.buckets);
            Row { age_ms: entry.age_ms, window_ms: Millis(entry.window_ms.into()), promotions, cold, origin: entry.origin }
        })
    }

    /// Returns the bytes that one pass over the entries reads.
    #[must_use]
    pub fn size(&self) -> usize {
        self.len() * (size_of::<Entry>() + 2 * self.buckets * size_of::<u32>())
    }

    /// Returns the suffix sums of all rows, one row after the other.
    #[must_use]
    pub fn sums(&self) -> &[u32] {
        &self.sums
    }
}

/// Returns the first row of two histograms each, one of which has a number that is greater than the one before it.
#[multiversion(targets("x86_64+avx2"))]
fn first_rising(rows: &[u32], buckets: usize) -> Option<usize> {
    // If no number has its highest bit set, a difference has it set exactly if it is negative. Testing the bit needs no
    // comparison, which old vector units only have for signed numbers.
    let bits = |sums: &[u32]| {
        let last = sums.last().copied().unwrap_or(0);
        sums.iter().zip(&sums[1..]).fold(last, |bits, (&sum, &above)| bits | sum | sum.wrapping_sub(above))
    };
    let falls = |sums: &[u32]| sums.is_sorted_by(|sum, above| sum >= above);
    rows.chunks_exact(2 * buckets).position(|row| {
        let (cold, promotions) = row.split_at(buckets);
        bits(cold) | bits(promotions) > i32::MAX.cast_unsigned() && !(falls(cold) && falls(promotions))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_checked_and_returned() {
        let thresholds = Thresholds::try_from(vec![1, 4]).unwrap();
        let mut series = Series::new(&thresholds);
        let mut check = |age_ms, promotions: &[u64], cold: &[u64], expected| {
            assert_eq!(series.push(Millis(age_ms), Millis(1_000), promotions, cold), expected)
        };
        check(1_000, &[1, 2, 3], &[4, 5, 6], Ok(()));
        check(2_000, &[1, 2], &[4, 5, 6], Err(RowError::Buckets { found: 2, expected: 3 }));
        check(2_000, &[1, 2, 3], &[4, 5, (1 << 32) - 9], Err(RowError::Count(1 << 32)));
        check(2_000, &[1, u64::MAX, 3], &[4, 5, 6], Err(RowError::Count(u64::MAX)));
        check(1_000, &[1, 2, 3], &[4, 5, 6], Err(RowError::Order { now: Millis(1_000), last: Millis(1_000) }));
        check(2_000, &[7, 8, 9], &[0, 1, u64::from(u32::MAX) - 1], Ok(()));
        let rows: Vec<_> = series.rows().map(|row| (row.age_ms.0, row.promotions.to_vec(), row.cold.to_vec())).collect();
        assert_eq!(rows, [(1_000, vec![6, 5, 3], vec![15, 11, 6]), (2_000, vec![24, 17, 9], vec![u32::MAX, u32::MAX, u32::MAX - 1])]);
        assert_eq!(buckets(&rows[1].2).collect::<Vec<_>>(), [0, 1, u32::MAX - 1]);
        let summed = series.summed(NonZero::new(2).unwrap()).unwrap();
        let rows: Vec<_> = summed.rows().map(|row| (row.age_ms.0, row.window_ms.0, row.promotions.to_vec(), row.cold.to_vec())).collect();
        let half = u32::MAX / 2;
        assert_eq!(rows, [(2_000, 2_000, vec![30, 22, 12], vec![half + 8, half + 6, half + 3])]);
        // The remaining rows form a shorter entry.
        assert_eq!(series.summed(NonZero::new(3).unwrap()).unwrap().sums(), summed.sums());
        assert_eq!(series.summed(NonZero::<usize>::MIN).unwrap().sums(), series.sums());
        let mut same = Series::new(&thresholds);
        let mut check = |age_ms, sums: &[u32], expected: Result<(), RowError>| {
            let row = NewRow { age_ms: Millis(age_ms), window_ms: Millis(1_000), resolved_to: Age::MAX, sampled: 0 };
            let appended = same.append_unpacked::<()>(|all| {
                all.extend_from_slice(sums);
                Ok(())
            });
            let appended = appended.unwrap().and_then(|()| same.append("", std::iter::once(row), |_| {}));
            assert_eq!(appended, expected.map_err(|error| (0, error)));
        };
        check(1_000, &[15, 11, 6, 6, 5, 3], Ok(()));
        check(2_000, &[15, 11, 6, 6, 5], Err(RowError::Buckets { found: 2, expected: 3 }));
        check(1_000, &[15, 11, 6, 6, 5, 3], Err(RowError::Order { now: Millis(1_000), last: Millis(1_000) }));
        check(2_000, &[15, 11, 12, 6, 5, 3], Err(RowError::Rising));
        check(2_000, &[15, 11, 6, 6, 5, u32::MAX], Err(RowError::Rising));
        check(2_000, &[u32::MAX, u32::MAX, u32::MAX - 1, 24, 17, 9], Ok(()));
        assert_eq!(same.sums(), series.sums());
        series.clear();
        assert!(series.is_empty() && series.push(Millis(1), Millis(1), &[0u32; 3], &[0; 3]).is_ok());
    }
}
