//! Reads a row group in batches.

use std::cell::Cell;
use std::os::unix::fs::FileExt;

use multiversion::multiversion;
use parquet_guard::allowed;

use super::Direct;
use super::batch::{Batch, Part, ROWS, Wanted};
use super::delta::{Delta, PADDING};
use super::footer::{Chunk, Group, Positions};
use super::pages::{DELTA_BINARY_PACKED, Place, Store};
use super::words::Words;
use crate::read::{LABELS_MAX, NAMES_BYTES_MAX, Run};
use crate::schema::{ID_WORDS, WORDS};
use crate::write::entry_bytes;

/// Columns of text that are read: all but the decision.
const TEXTS: usize = WORDS.len() - 1;
/// Memory that a thread keeps between row groups.
const KEPT_BYTES: usize = 64 << 20;

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Memory that is reused.
#[derive(Debug, Default)]
struct Scratch {
    store: Store,
    words: [Words; TEXTS],
    columns: Vec<Numbers>,
    batch: Batch,
}

/// A column of numbers.
#[derive(Debug, Default)]
struct Numbers {
    /// Its pages, and their numbers.
    pages: Vec<(Place, usize)>,
    /// The next page, and the position in the current one.
    next: usize,
    delta: Delta,
}

impl Numbers {
    /// Forgets the pages.
    fn clear(&mut self) {
        self.pages.clear();
        self.next = 0;
        self.delta.close();
    }

    /// Finds the pages of a column.
    fn open(&mut self, store: &mut Store, chunk: &Chunk, at: usize, limit: usize) -> Option<()> {
        self.clear();
        let mut values = 0u64;
        store.pages(chunk, at, limit, |_, header, place| {
            if header.dictionary || !header.is(DELTA_BINARY_PACKED) {
                return None;
            }
            values = values.checked_add(header.values as u64)?;
            self.pages.push((place, header.values));
            Some(())
        })?;
        (values == chunk.values).then_some(())
    }

    /// Reads the next numbers; calls `put` with the index of the first and some of them.
    #[inline]
    fn read(&mut self, store: &Store, count: usize, mut put: impl FnMut(usize, &[u64])) -> Option<()> {
        let mut done = 0;
        while done < count {
            if self.delta.remaining() == 0 {
                let (place, values) = self.pages.get(self.next)?;
                self.delta.open(store.bytes(place), place.range.start, place.range.end, *values)?;
                self.next += 1;
            }
            let (place, _) = self.pages.get(self.next - 1)?;
            let some = self.delta.remaining().min(count - done);
            self.delta.read(store.bytes(place), some, |at, numbers| put(done + at, numbers))?;
            done += some;
        }
        Some(())
    }

    /// Reads numbers that must not be negative.
    fn read_figures(&mut self, store: &Store, into: &mut [u64]) -> Option<()> {
        let mut bits = 0;
        self.read(store, into.len(), |at, numbers| {
            for (slot, &number) in into[at..].iter_mut().zip(numbers) {
                bits |= number;
                *slot = number;
            }
        })?;
        (bits >> 63 == 0).then_some(())
    }

    /// Reads counts of pages below 2^31.
    fn read_counts(&mut self, store: &Store, into: &mut [u32]) -> Option<()> {
        let mut bits = 0;
        self.read(store, into.len(), |at, numbers| bits |= narrow(numbers, &mut into[at..]))?;
        (bits >> 31 == 0).then_some(())
    }
}

impl Direct {
    /// Calls `each` for the rows of a row group, in order: the jobs' rows in each batch. Returns whether the whole group was
    /// read: if not, some rows may have been passed to `each`, and the library must read the group again.
    pub(crate) fn scan<E>(
        &self,
        group: usize,
        wanted: &Wanted,
        each: &mut dyn FnMut(&Batch, &Part<'_>) -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut scratch = SCRATCH.take().unwrap_or_default();
        let scanned = self.open_group(group, wanted, &mut scratch).map_or(Ok(false), |rows| scratch.batches(rows, each));
        if scratch.store.held() + scratch.words.iter().map(Words::held).sum::<usize>() <= KEPT_BYTES {
            SCRATCH.set(Some(scratch));
        }
        scanned
    }

    /// Reads the columns of a group without unpacking their numbers. Returns the number of rows.
    fn open_group(&self, group: usize, wanted: &Wanted, scratch: &mut Scratch) -> Option<usize> {
        let group = self.row_groups()?.get(group)?;
        let rows = usize::try_from(group.rows).ok()?;
        let buckets = self.basis.buckets();
        let Scratch { store, words, columns, batch } = scratch;
        let (begin, limit) = self.load(group, store)?;
        // The rows themselves are never in memory at the same time. A file that the library would refuse is refused all the same.
        let limit = limit.checked_sub(entry_bytes(buckets).checked_mul(group.rows)?)?;
        let limit = usize::try_from(limit).ok()?;
        let place = |column: usize| {
            let chunk = group.chunks.get(column).filter(|chunk| chunk.values == group.rows)?;
            Some((chunk, usize::try_from(chunk.start.checked_sub(begin)?).ok()?))
        };
        for (column, words) in words.iter_mut().enumerate() {
            let words_max = if column < ID_WORDS { rows } else { LABELS_MAX };
            words.read(store, place(column)?, rows, words_max, limit)?;
        }
        let positions = Positions::new(self.version, buckets);
        let numbers = std::iter::once(Some(Positions::key()));
        let numbers = numbers.chain(wanted.figures.iter().map(|&figure| positions.figure(figure)));
        let numbers = numbers.chain((0..2 * buckets).map(|bucket| Some(positions.cold + bucket)));
        columns.resize_with(1 + wanted.figures.len() + 2 * buckets, Numbers::default);
        for (column, position) in columns.iter_mut().zip(numbers) {
            // Columns that are newer than the file have no pages, and are zero.
            match position {
                Some(position) => {
                    let (chunk, at) = place(position)?;
                    column.open(store, chunk, at, limit)?;
                }
                None => column.clear(),
            }
        }
        batch.figures.resize(wanted.figures.len(), [0; ROWS]);
        batch.keys.resize(1, [0; ROWS]);
        batch.sums.resize(2 * buckets, [0; ROWS]);
        Some(rows)
    }

    /// Reads the bytes of a group. Returns the position of the first, and the memory that remains for the group.
    fn load(&self, group: &Group, store: &mut Store) -> Option<(u64, u64)> {
        store.clear();
        let limit = allowed(self.file_bytes);
        let begin = group.chunks.iter().map(|chunk| chunk.start).min()?;
        let end = group.chunks.iter().try_fold(0, |end: u64, chunk| Some(end.max(chunk.start.checked_add(chunk.bytes)?)))?;
        let bytes = end.checked_sub(begin).filter(|_| end <= self.file_bytes)?;
        let limit = limit.checked_sub(bytes)?;
        let length = usize::try_from(bytes).ok()?;
        store.raw.resize(length + PADDING, 0);
        self.file.read_exact_at(&mut store.raw[..length], begin).ok()?;
        Some((begin, limit))
    }
}

impl Scratch {
    /// Unpacks the rows and passes them on.
    fn batches<E>(&mut self, rows: usize, each: &mut dyn FnMut(&Batch, &Part<'_>) -> Result<(), E>) -> Result<bool, E> {
        let mut last_key = None;
        let mut names = 0;
        let mut begin = 0;
        while begin < rows {
            let count = (rows - begin).min(ROWS);
            if self.unpack(count).is_none() {
                return Ok(false);
            }
            let mut at = 0;
            while at < count {
                let [cluster, machine, job, class, policy, tracker] = &mut self.words;
                let row = begin + at;
                let starts = [&mut *cluster, machine, job].map(|words| words.begins(row)).contains(&true);
                let [cluster, machine, job, class, policy, tracker] =
                    [cluster, machine, job, class, policy, tracker].map(|words| words.run(row));
                let end = [cluster.1, machine.1, job.1, class.1, policy.1, tracker.1].into_iter().min().unwrap_or(rows);
                let key = self.batch.keys[0][at];
                let same = self.batch.keys[0][at..count.min(end - begin)].iter().take_while(|&&other| other == key).count();
                let begins = starts || last_key != Some(key);
                last_key = Some(key);
                if begins {
                    names += size_of::<Run>() + cluster.0.len() + machine.0.len() + job.0.len();
                }
                if names > NAMES_BYTES_MAX {
                    return Ok(false);
                }
                let part = Part {
                    rows: at..at + same,
                    cluster: cluster.0,
                    machine: machine.0,
                    job: job.0,
                    job_key: key.cast_signed(),
                    class: class.0,
                    policy: policy.0,
                    tracker: tracker.0,
                    begins,
                };
                each(&self.batch, &part)?;
                at += same;
            }
            begin += count;
        }
        Ok(true)
    }

    /// Unpacks the next rows into the batch.
    fn unpack(&mut self, count: usize) -> Option<()> {
        let Self { store, columns, batch, .. } = self;
        batch.rows = count;
        let (key, rest) = columns.split_first_mut()?;
        key.read(store, count, |at, numbers| batch.keys[0][at..at + numbers.len()].copy_from_slice(numbers))?;
        let (figures, counts) = rest.split_at_mut(batch.figures.len());
        for (column, into) in figures.iter_mut().zip(&mut batch.figures) {
            if column.pages.is_empty() {
                into[..count].fill(0);
            } else {
                column.read_figures(store, &mut into[..count])?;
            }
        }
        for (column, into) in counts.iter_mut().zip(&mut batch.sums) {
            column.read_counts(store, &mut into[..count])?;
        }
        let buckets = batch.sums.len() / 2;
        let (cold, promotions) = batch.sums.split_at_mut(buckets);
        add_up(cold, count)?;
        add_up(promotions, count)
    }
}

/// Copies the low 32 bits of numbers; returns the bits that any of them has.
#[multiversion(targets("x86_64+avx2"))]
fn narrow(numbers: &[u64], into: &mut [u32]) -> u64 {
    numbers.iter().zip(into).fold(0, |bits, (&number, slot)| {
        #[expect(clippy::cast_possible_truncation, reason = "the caller rejects what has other bits")]
        let low = number as u32;
        *slot = low;
        bits | number
    })
}

/// Replaces counts by suffix sums, which must be below 2^31. If the sum before is, and the count, then their sum does not
/// overflow, and its highest bit shows that it is not.
#[multiversion(targets("x86_64+avx2"))]
fn add_up(columns: &mut [[u32; ROWS]], count: usize) -> Option<()> {
    let mut bits = 0;
    for above in (1..columns.len()).rev() {
        let (below, above) = columns.split_at_mut(above);
        let (Some(below), Some(above)) = (below.last_mut(), above.first()) else { continue };
        for (sum, &above) in below[..count].iter_mut().zip(&above[..count]) {
            *sum = sum.wrapping_add(above);
            bits |= *sum;
        }
        if bits >> 31 != 0 {
            return None;
        }
    }
    Some(())
}
