//! Merges several sorted files into one sorted stream.
//!
//! A file is opened when the stream reaches its first job, and read one row group at a time. Memory holds one row group
//! of each file whose range of jobs overlaps the current position; among the files that agents write, these are the
//! files of one machine.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::path::{Path, PathBuf};

use units::UnixMillis;

use crate::entry::{Basis, Entry, JobId};
use crate::error::{Error, Result};
use crate::read::{Rows, Trace};

/// A sorted stream of the entries of several files. An entry that several files contain is returned once.
#[derive(Debug)]
pub struct Merge {
    basis: Option<Basis>,
    /// Files that the stream has not reached, sorted by their first job.
    waiting: VecDeque<(JobId, PathBuf)>,
    /// Files that the stream is reading, by their next entry.
    open: BinaryHeap<Reverse<Next>>,
    last: Option<Entry>,
    dropped: u64,
}

/// A file that the stream is reading. Files are ordered by their next entry, then by path.
#[derive(Debug)]
struct Next {
    entry: Entry,
    trace: Trace,
    rows: Rows,
    group: usize,
    run: usize,
    row: usize,
}

impl Next {
    fn order(&self) -> ((&JobId, UnixMillis), &Path) {
        (self.entry.order(), self.trace.path())
    }

    /// Moves to the next row; returns `None` at the end of the file.
    fn advance(mut self) -> Result<Option<Self>> {
        loop {
            if let Some(run) = self.rows.runs.get(self.run) {
                if self.row < run.rows.end {
                    self.entry = self.rows.entry(self.run, self.row);
                    self.row += 1;
                    return Ok(Some(self));
                }
                self.run += 1;
            } else if self.group < self.trace.groups() {
                self.rows = self.trace.group(self.group)?;
                self.group += 1;
                (self.run, self.row) = (0, 0);
            } else {
                return Ok(None);
            }
        }
    }
}

impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Next {}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Next {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl Merge {
    /// Opens each file, and reads its first job.
    ///
    /// # Errors
    /// [`Error::Basis`] if two files have a different basis; those of [`Trace::open`].
    pub fn of(paths: impl IntoIterator<Item = PathBuf>) -> Result<Self> {
        let mut basis: Option<Basis> = None;
        let mut waiting = Vec::new();
        for path in paths {
            let trace = Trace::open(&path)?;
            let expected = *basis.get_or_insert(*trace.basis());
            if *trace.basis() != expected {
                return Err(Error::Basis { path, found: trace.basis().to_string(), expected: expected.to_string() });
            }
            let firsts = (0..trace.groups()).map(|group| trace.first_job(group));
            if let Some(first) = firsts.filter_map(Result::transpose).next() {
                waiting.push((first?, path));
            }
        }
        waiting.sort();
        Ok(Self { basis, waiting: waiting.into(), open: BinaryHeap::new(), last: None, dropped: 0 })
    }

    /// Returns the basis of the histograms; `None` without files.
    #[must_use]
    pub fn basis(&self) -> Option<Basis> {
        self.basis
    }

    /// Returns the number of entries dropped so far as exact duplicates.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn next_of_all(&mut self) -> Result<Option<Entry>> {
        loop {
            // A file must be open once its first job is not after the next entry.
            while let Some((first, _)) = self.waiting.front() {
                if self.open.peek().is_some_and(|Reverse(next)| next.entry.id < *first) {
                    break;
                }
                let Some((_, path)) = self.waiting.pop_front() else { break };
                let start = Next { entry: Entry::default(), trace: Trace::open(&path)?, rows: Rows::default(), group: 0, run: 0, row: 0 };
                self.open.extend(start.advance()?.map(Reverse));
            }
            let Some(Reverse(mut next)) = self.open.pop() else { return Ok(None) };
            let entry = std::mem::take(&mut next.entry);
            self.open.extend(next.advance()?.map(Reverse));
            if self.last.as_ref() == Some(&entry) {
                self.dropped += 1;
                continue;
            }
            self.last = Some(entry.clone());
            return Ok(Some(entry));
        }
    }
}

impl Iterator for Merge {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_of_all().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Writer;
    use crate::testing::{basis, entries};

    fn write(path: &Path, thresholds: usize, entries: &[Entry]) -> PathBuf {
        let mut writer = Writer::create(path, basis(thresholds)).unwrap();
        entries.iter().for_each(|entry| writer.push(entry).unwrap());
        writer.finish().unwrap();
        path.to_owned()
    }

    #[test]
    fn files_in_any_order_merge_into_the_sorted_whole() {
        let dir = tempfile::tempdir().unwrap();
        let whole: Vec<_> = ["a", "b"].iter().flat_map(|machine| entries(machine, 4, 30, 3)).collect();
        let check = |parts: usize, twice: usize| {
            let mut paths: Vec<_> = (0..parts)
                .map(|part| {
                    let some: Vec<_> = whole.iter().enumerate().filter(|(at, _)| at * 7 % parts == part).map(|(_, e)| e.clone()).collect();
                    write(&dir.path().join(format!("{part}")), 2, &some)
                })
                .collect();
            paths.reverse();
            paths.push(write(&dir.path().join("empty"), 2, &[]));
            paths.push(write(&dir.path().join("twice"), 2, &whole[..twice]));
            let mut merge = Merge::of(paths).unwrap();
            let merged: Vec<_> = merge.by_ref().map(Result::unwrap).collect();
            assert!(merged == whole, "{parts} {twice}");
            assert_eq!(merge.dropped(), twice as u64);
        };
        check(1, 0);
        check(2, 0);
        check(5, 17);
        check(100, 240);
    }

    #[test]
    fn files_with_a_different_basis_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let paths = [2, 3].map(|thresholds| write(&dir.path().join(thresholds.to_string()), thresholds, &[]));
        let error = Merge::of(paths).unwrap_err().to_string();
        assert!(error.contains("3 thresholds from 1 to 255 scans") && error.contains("2 thresholds"), "{error}");
    }

    #[test]
    fn a_file_is_open_only_while_the_stream_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<_> =
            (0..40).map(|machine| write(&dir.path().join(format!("{machine}")), 2, &entries(&format!("m{machine:02}"), 2, 3, 3))).collect();
        let mut merge = Merge::of(paths).unwrap();
        let mut most = 0;
        while let Some(entry) = merge.next() {
            entry.unwrap();
            most = most.max(merge.open.len());
        }
        assert_eq!(most, 1);
    }
}
