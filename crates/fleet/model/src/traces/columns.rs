//! Reads trace files: as columns where their layout allows it, and if not entry by entry.

use std::collections::HashMap;
use std::path::PathBuf;

use trace::{Basis, Batch, Entry, JobId, Merge, Part, Trace, Wanted};

use super::error::Error;
use super::job::{FIGURES, Job, finish_job};
use crate::fleet::Label;
use crate::series::Series;

/// Size of files that are gathered in memory, at most: a month of a machine with 40 jobs. More files are merged, which takes
/// memory for a row group of each.
const GATHERED_BYTES_MAX: u64 = 64 << 20;
/// Entries that are gathered in memory, at most: they take 288 bytes each.
const GATHERED_MAX: usize = 1 << 20;

/// Calls `each` for the jobs of a row group.
pub(super) fn group(trace: &Trace, group: usize, job: &mut Job, each: &mut dyn FnMut(&Label, &Series)) -> Result<(), Error> {
    let mut finished = 0;
    let mut push = |batch: &Batch, part: &Part<'_>| {
        if part.begins {
            finished += usize::from(finish_job(job, each));
            job.begin_part(batch, part);
        }
        job.push_part(batch, part)
    };
    let scanned = match Wanted::new(&FIGURES) {
        Some(wanted) => trace.scan(group, &wanted, &mut push)?,
        None => false,
    };
    if scanned {
        finish_job(job, each);
        job.series.clear();
        return Ok(());
    }
    job.series.clear();
    let rows = trace.group(group)?;
    // The first jobs may have been read as columns.
    for run in rows.runs.iter().skip(finished) {
        let labels = rows.labels(run.rows.start);
        job.begin([&run.id.cluster, &run.id.machine, &labels.class], rows.figures(run.rows.start).start_unix_ms);
        for row in run.rows.clone() {
            job.push(&run.id, rows.tracker(row), &rows.figures(row), rows.promotions(row), rows.cold(row))?;
        }
        finish_job(job, each);
    }
    job.series.clear();
    Ok(())
}

/// Calls `each` for the jobs of several files of this size together; a job may be in many of them.
pub(super) fn files(
    (files, bytes): (&[PathBuf], u64),
    basis: &Basis,
    job: &mut Job,
    each: &mut dyn FnMut(&Label, &Series),
) -> Result<(), Error> {
    if let Some(jobs) = gather((files, bytes), basis)? {
        for mut gathered in jobs {
            finish_job(&mut gathered.job, each);
        }
        return Ok(());
    }
    let mut last = None;
    for entry in Merge::of(files.iter().cloned())? {
        let Entry { id, labels, figures, cold_pages, promotions_pages } = entry?;
        if last.as_ref() != Some(&id) {
            finish_job(job, each);
            job.begin([&id.cluster, &id.machine, &labels.class], figures.start_unix_ms);
        }
        job.push(&id, &labels.tracker, &figures, &promotions_pages, &cold_pages)?;
        last = Some(id);
    }
    finish_job(job, each);
    job.series.clear();
    Ok(())
}

/// A job whose entries are collected from several files.
struct Gathered {
    id: JobId,
    job: Job,
    /// Start of its last entry.
    last_unix_ms: Option<u64>,
}

/// Jobs in the order in which they were found.
#[derive(Default)]
struct Gathering {
    jobs: Vec<Gathered>,
    by_key: HashMap<i64, Vec<usize>>,
    last: usize,
    entries: usize,
}

impl Gathering {
    /// Finds the job of a part. Files mostly have the same jobs in the same order.
    fn find(&mut self, batch: &Batch, part: &Part<'_>, basis: &Basis) -> usize {
        let expected = [self.last, self.last + 1, 0].into_iter().find(|&at| self.jobs.get(at).is_some_and(|job| part.is_of(&job.id)));
        let known = || self.by_key.get(&part.job_key)?.iter().copied().find(|&at| part.is_of(&self.jobs[at].id));
        if let Some(at) = expected.or_else(known) {
            return at;
        }
        let mut job = Job::new(basis);
        job.begin_part(batch, part);
        self.by_key.entry(part.job_key).or_default().push(self.jobs.len());
        self.jobs.push(Gathered { id: part.id(), job, last_unix_ms: None });
        self.jobs.len() - 1
    }

    /// Appends the rows of a part to its job. `None` if they are not after those before, or invalid.
    fn push(&mut self, batch: &Batch, part: &Part<'_>, basis: &Basis) -> Option<()> {
        self.last = self.find(batch, part, basis);
        self.entries += part.rows.len();
        let gathered = &mut self.jobs[self.last];
        for row in part.rows.clone() {
            let start_unix_ms = batch.figure::<0>(row);
            if gathered.last_unix_ms.is_some_and(|last| start_unix_ms <= last) || self.entries > GATHERED_MAX {
                return None;
            }
            gathered.last_unix_ms = Some(start_unix_ms);
        }
        gathered.job.push_part(batch, part).ok()
    }
}

/// Collects the jobs of several files, sorted. `None` if they must be merged entry by entry: a file has another layout, entries
/// of a job are not in the order of the files, as after an upload that was repeated, one is invalid, or there are too many.
fn gather((files, bytes): (&[PathBuf], u64), basis: &Basis) -> Result<Option<Vec<Gathered>>, Error> {
    let Some(wanted) = Wanted::new(&FIGURES).filter(|_| bytes <= GATHERED_BYTES_MAX) else { return Ok(None) };
    let mut gathering = Gathering::default();
    for file in files {
        let trace = Trace::open(file)?;
        if trace.basis() != basis {
            return Ok(None);
        }
        for group in 0..trace.groups() {
            let scanned = trace.scan(group, &wanted, &mut |batch, part| gathering.push(batch, part, basis).ok_or(()));
            if scanned != Ok(true) {
                return Ok(None);
            }
        }
    }
    let mut jobs = gathering.jobs;
    jobs.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(Some(jobs))
}
