//! Joins compacted files: several files of different days become one, or are read as one.
//!
//! The rows of a compacted file are sorted by job, then by day, and hold packed bytes. Joining files is therefore a merge of sorted
//! rows, which neither unpacks nor packs: a file that was extended by days has the bytes of the one that would have been compacted
//! from all traces at once (a test).
//!
//! # Days are whole
//! A day of a job is compacted from all of its entries, or its rows would have to be packed again. Two files that have other entries
//! of one day of a job are refused. If they have the same rows, as after an extension that was repeated, they count once.

use std::num::NonZero;
use std::ops::Range;

use super::columns::{Compacted, compact};
use super::read::Days;
use super::{Basis, CompactedTrace, Compactor, DayNumbers, Error, JobDay, JobId, Path, PathBuf, Result, VERSION};
use store::file::temporary_for;

/// Files that are joined, at most: each has a row group's small columns and a page in memory, and an open file.
pub const FILES_MAX: usize = 400;

/// Row groups of a file whose jobs are wanted.
type Groups = Range<usize>;

/// The jobs from one, until another: all of them if there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jobs {
    /// The first job.
    pub from: Option<JobId>,
    /// The job after the last.
    pub until: Option<JobId>,
}

impl Jobs {
    fn contain(&self, id: &JobId) -> bool {
        self.from.as_ref().is_none_or(|from| id >= from) && self.until.as_ref().is_none_or(|until| id < until)
    }

    /// Returns the row groups that may have such jobs, of a file whose groups begin with `firsts`.
    #[must_use]
    pub fn groups(&self, firsts: &[JobId]) -> Range<usize> {
        // The group before the first one that begins later may have the job.
        let from = self.from.as_ref().map_or(0, |from| firsts.partition_point(|first| first <= from).saturating_sub(1));
        let until = self.until.as_ref().map_or(firsts.len(), |until| firsts.partition_point(|first| first < until));
        from.min(until)..until
    }
}

/// The rows of a file that is being joined.
struct Head<'a> {
    file: &'a CompactedTrace,
    groups: Groups,
    days: Option<Days<'a>>,
    /// The row that comes next. `None` at the end.
    next: Option<JobDay>,
}

impl Head<'_> {
    /// Reads the next row of the wanted jobs.
    fn advance(&mut self, jobs: &Jobs) -> Result<Option<JobDay>> {
        let last = self.next.take();
        loop {
            let Some(days) = &mut self.days else {
                let Some(group) = self.groups.next() else { return Ok(last) };
                self.days = Some(self.file.group(group)?);
                continue;
            };
            let Some(day) = days.next().transpose()? else {
                self.days = None;
                continue;
            };
            if last.as_ref().is_some_and(|last| (&last.id, last.day_unix_ms) > (&day.id, day.day_unix_ms)) {
                return Err(Error::damaged(self.file.path(), format!("{} is not sorted by job and day", day.id.job)));
            }
            if jobs.contain(&day.id) {
                day.check(self.file.path())?;
                self.next = Some(day);
                return Ok(last);
            }
        }
    }

    /// Reads all rows of the next row's job and day.
    fn day(&mut self, jobs: &Jobs) -> Result<Vec<JobDay>> {
        let mut rows: Vec<JobDay> = Vec::new();
        while self.next.as_ref().is_some_and(|next| rows.last().is_none_or(|last| last.is_day_of(next))) {
            rows.extend(self.advance(jobs)?);
        }
        Ok(rows)
    }
}

/// The rows of several compacted files, sorted by job, then by day.
pub struct Joined<'a> {
    heads: Vec<Head<'a>>,
    jobs: Jobs,
    /// Entries that were in several files, dropped as exact duplicates.
    dropped: u64,
}

impl std::fmt::Debug for Joined<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Joined").field("files", &self.heads.len()).field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

impl<'a> Joined<'a> {
    /// Starts to join the jobs of files, each with the row groups that may have them ([`Jobs::groups`]).
    ///
    /// # Errors
    /// [`Error::Basis`] if two files have a different basis; [`Error::Older`] for a file of an earlier version, whose rows are
    /// packed differently; [`Error::Damaged`] for more than [`FILES_MAX`] files; those of reading.
    pub fn new(files: impl IntoIterator<Item = (&'a CompactedTrace, Groups)>, jobs: Jobs) -> Result<Self> {
        let mut heads: Vec<Head<'_>> = Vec::new();
        for (file, groups) in files {
            fits(file, heads.first().map(|head| head.file.basis()))?;
            if heads.len() == FILES_MAX {
                let what = format!("there are more than {FILES_MAX} compacted files; make one of several with `thermocline trace compact`");
                return Err(Error::damaged(file.path(), what));
            }
            let mut head = Head { file, groups, days: None, next: None };
            head.advance(&jobs)?;
            heads.push(head);
        }
        Ok(Self { heads, jobs, dropped: 0 })
    }

    /// Returns the rows of the next job and day; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Overlap`] if two files have other entries of that day; those of reading.
    pub fn next_day(&mut self) -> Result<Option<Vec<JobDay>>> {
        // Files are few: one a day. The first of those that have the least row.
        let key = |head: &Head<'a>| head.next.as_ref().map(|day| (day.id.clone(), day.day_unix_ms));
        let least = (0..self.heads.len()).filter(|&at| self.heads[at].next.is_some());
        let least = least.reduce(|a, b| if self.heads[b].next_order() < self.heads[a].next_order() { b } else { a });
        let Some(first) = least else { return Ok(None) };
        let of = key(&self.heads[first]);
        let (before, others) = self.heads.split_at_mut(first + 1);
        let Some(head) = before.last_mut() else { return Ok(None) };
        let rows = head.day(&self.jobs)?;
        for other in others.iter_mut().filter(|other| key(other) == of) {
            let again = other.day(&self.jobs)?;
            if again != rows {
                return Err(overlap(other.file.path(), head.file.path(), &rows));
            }
            self.dropped += again.iter().map(|row| row.entries as u64).sum::<u64>();
        }
        Ok(Some(rows))
    }

    /// Unpacks a row of these files, as [`JobDay::unpack_onto`].
    ///
    /// # Errors
    /// Those of [`JobDay::unpack_onto`].
    pub fn unpack_onto(&self, day: &JobDay, sums: &mut Vec<u32>, numbers: &mut DayNumbers) -> Result<()> {
        let Some(head) = self.heads.first() else { return Ok(()) };
        day.unpack_onto(head.file.path(), head.file.basis(), sums, numbers)
    }

    /// Returns the number of entries dropped so far as exact duplicates.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl Head<'_> {
    fn next_order(&self) -> Option<(&JobId, units::UnixMillis)> {
        self.next.as_ref().map(|day| (&day.id, day.day_unix_ms))
    }
}

/// Returns an error if a file cannot be joined with files of this basis.
fn fits(file: &CompactedTrace, expected: Option<&Basis>) -> Result<()> {
    if file.version() != VERSION {
        return Err(Error::Older { path: file.path().to_owned(), found: file.version(), needed: VERSION });
    }
    match expected.filter(|&expected| expected != file.basis()) {
        None => Ok(()),
        Some(expected) => {
            let (found, expected) = (file.basis().to_string(), expected.to_string());
            Err(Error::Basis { path: file.path().to_owned(), found, expected })
        }
    }
}

fn overlap(path: &Path, other: &Path, rows: &[JobDay]) -> Error {
    let (path, other) = (path.to_owned(), other.to_owned());
    let (job, machine, day_unix_ms) =
        rows.first().map(|day| (day.id.job.clone(), day.id.machine.clone(), day.day_unix_ms)).unwrap_or_default();
    Error::Overlap { path, other, job, machine, day_unix_ms }
}

/// Compacts trace files and joins them with files that are compacted already into `out`, which may be one of these. The trace files are
/// given by machine, as for [`compact`]. Calls `progress` with the number of entries written so far.
///
/// # Errors
/// Those of [`compact`] and [`Joined`]. `out` is unchanged then.
pub fn extend(
    compacted: &[PathBuf],
    machines: &[Vec<PathBuf>],
    out: &Path,
    threads: NonZero<usize>,
    progress: &mut dyn FnMut(u64),
) -> Result<Compacted> {
    let mut files = compacted.iter().map(|path| CompactedTrace::open(path)).collect::<Result<Vec<_>>>()?;
    let mut basis: Option<Basis> = None;
    for file in &files {
        fits(file, basis.as_ref())?;
        basis = Some(*file.basis());
    }
    let mut dropped = 0;
    // Removed when it is dropped.
    let added = temporary_for(out)?;
    if !machines.is_empty() {
        dropped = compact(machines, added.path(), threads, progress)?.dropped;
        files.push(CompactedTrace::open(added.path())?);
    }
    let basis = *files.first().ok_or_else(|| Error::damaged(out, "there are no files to compact"))?.basis();
    let mut joined = Joined::new(files.iter().map(|file| (file, 0..file.groups())), Jobs::default())?;
    let mut compactor = Compactor::create(out, basis)?;
    while let Some(rows) = joined.next_day()? {
        for row in rows {
            if !compactor.push_day(row)? {
                return Err(Error::damaged(out, "the rows of the files to join are not sorted"));
            }
        }
        progress(compactor.entries());
    }
    Ok(Compacted { file: compactor.finish()?, dropped: dropped + joined.dropped() })
}

#[cfg(test)]
mod tests;
