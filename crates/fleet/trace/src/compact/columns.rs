//! Compacts trace files as columns, on several threads.
//!
//! A unit of work is a row group of a file that is the only one of its machine, or all files of a machine: it has all entries
//! of its jobs. Threads pack units, and the calling thread appends their days in order. What cannot be read as columns is
//! merged entry by entry, with the same result.

use std::collections::HashMap;
use std::num::NonZero;

use rayon::ThreadPoolBuilder;
use rayon::prelude::*;

use super::{Basis, Compactor, Error, JobDay, JobId, Path, PathBuf, Result, VERSION, day_entries_max, numbers, stride};
use crate::calendar::DAY_MS;
use crate::direct::{Batch, Part, Wanted};
use crate::entry::Figures;
use crate::merge::Merge;
use crate::read::Trace;
use crate::write::FileSummary;
use units::{Bytes, UnixMillis};

/// The figures that compacted files have.
const FIGURES: [&str; 17] = [
    "start_unix_ms",
    "duration_ms",
    "window_ms",
    "job_age_ms",
    "periods",
    "far_periods",
    "promoted_pages",
    "memory_bytes",
    "zswap_stored_bytes",
    "zswap_pool_bytes",
    "swap_bytes",
    "slow_node_bytes",
    "memory_stall_us",
    "io_stall_us",
    "resolved_to_scans",
    "sampled_pages",
    "sampled_compressed_ppm",
];

/// Entries of a unit that are gathered in memory, at most: they take 352 bytes each.
const GATHERED_MAX: usize = 1 << 18;
/// Size of the files of such a unit.
const GATHERED_BYTES_MAX: u64 = 32 << 20;
/// Units that are packed before their days are written, for each thread.
const UNITS_PER_THREAD: usize = 8;

/// What was compacted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// The file.
    pub file: FileSummary,
    /// Entries that were in several files, dropped as exact duplicates.
    pub dropped: u64,
}

/// Entries that are packed independently of others.
enum Unit {
    Group(PathBuf, usize),
    Files(Vec<PathBuf>),
}

/// Compacts trace files into `out`. The files are given by machine: the files of one machine, and all entries of its jobs, are in one
/// of `machines`. Calls `progress` with the number of entries written so far.
///
/// # Errors
/// Those of [`Merge::of`] and [`Compactor`]. No file appears then.
pub fn compact(machines: &[Vec<PathBuf>], out: &Path, threads: NonZero<usize>, progress: &mut dyn FnMut(u64)) -> Result<Compacted> {
    let mut firsts = Vec::new();
    let mut basis: Option<Basis> = None;
    for files in machines {
        let mut first: Option<JobId> = None;
        for (index, path) in files.iter().enumerate() {
            let trace = Trace::open(path)?;
            let expected = *basis.get_or_insert(*trace.basis());
            if *trace.basis() != expected {
                return Err(Error::Basis { path: path.clone(), found: trace.basis().to_string(), expected: expected.to_string() });
            }
            // All files of a machine sort between those of two others.
            if index == 0 {
                let jobs = (0..trace.groups()).map(|group| trace.first_job(group));
                first = jobs.filter_map(Result::transpose).next().transpose()?;
            }
        }
        firsts.push((first, files));
    }
    let basis = basis.ok_or_else(|| Error::damaged(out, "there are no files to compact"))?;
    firsts.sort_by(|a, b| a.0.cmp(&b.0));
    let mut units = Vec::new();
    for (_, files) in firsts {
        match files.as_slice() {
            [file] => units.extend((0..Trace::open(file)?.groups()).map(|group| Unit::Group(file.clone(), group))),
            _ => units.push(Unit::Files(files.clone())),
        }
    }
    let mut compactor = Compactor::create(out, basis)?;
    if let Some(dropped) = in_units(&units, &basis, threads, &mut compactor, progress)? {
        return Ok(Compacted { file: compactor.finish()?, dropped });
    }
    // The jobs of two machines are mixed: start over.
    let mut merge = Merge::of(machines.iter().flatten().cloned())?;
    let mut compactor = Compactor::create(out, basis)?;
    for entry in merge.by_ref() {
        compactor.push(entry?)?;
        progress(compactor.entries());
    }
    Ok(Compacted { file: compactor.finish()?, dropped: merge.dropped() })
}

/// The days of a unit; `None` if it must be merged entry by entry.
type Packed = Result<Option<Vec<JobDay>>>;

/// Packs units on several threads and appends them. Returns the number of dropped entries; `None` if units are not in the order of
/// their jobs.
fn in_units(
    units: &[Unit],
    basis: &Basis,
    threads: NonZero<usize>,
    compactor: &mut Compactor,
    progress: &mut dyn FnMut(u64),
) -> Result<Option<u64>> {
    let pool = ThreadPoolBuilder::new().num_threads(threads.get()).build()?;
    let mut dropped = 0;
    for wave in units.chunks(UNITS_PER_THREAD * threads.get()) {
        let packed: Vec<Packed> = pool.install(|| wave.par_iter().with_max_len(1).map(|unit| pack(unit, basis)).collect());
        for (unit, packed) in wave.iter().zip(packed) {
            match packed? {
                Some(days) => {
                    for day in days {
                        if !compactor.push_day(day)? {
                            return Ok(None);
                        }
                    }
                }
                None => match merge(unit, compactor, progress)? {
                    Some(more) => dropped += more,
                    None => return Ok(None),
                },
            }
            progress(compactor.entries());
        }
    }
    Ok(Some(dropped))
}

/// Appends a unit entry by entry; `None` if it is not after the one before.
fn merge(unit: &Unit, compactor: &mut Compactor, progress: &mut dyn FnMut(u64)) -> Result<Option<u64>> {
    match unit {
        Unit::Group(path, group) => {
            for entry in Trace::open(path)?.group(*group)?.entries() {
                if !compactor.follows(&entry) {
                    return Ok(None);
                }
                compactor.push(entry)?;
            }
            Ok(Some(0))
        }
        Unit::Files(files) => {
            let mut merge = Merge::of(files.iter().cloned())?;
            for entry in merge.by_ref() {
                let entry = entry?;
                if !compactor.follows(&entry) {
                    return Ok(None);
                }
                compactor.push(entry)?;
                progress(compactor.entries());
            }
            Ok(Some(merge.dropped()))
        }
    }
}

/// Packs the days of a unit. `None` if it must be merged entry by entry.
fn pack(unit: &Unit, basis: &Basis) -> Packed {
    let Some(wanted) = Wanted::new(&FIGURES) else { return Ok(None) };
    let mut gathering = Gathering::new(basis, wanted);
    let files = match unit {
        Unit::Group(path, group) => {
            let scanned = gathering.scan(&Trace::open(path)?, *group);
            return Ok(scanned.then(|| gathering.pack()).flatten());
        }
        Unit::Files(files) => files,
    };
    let sizes = files.iter().map(|file| std::fs::metadata(file).map_or(0, |metadata| metadata.len()));
    if sizes.sum::<u64>() > GATHERED_BYTES_MAX {
        return Ok(None);
    }
    for file in files {
        let trace = Trace::open(file)?;
        if trace.basis() != basis || !(0..trace.groups()).all(|group| gathering.scan(&trace, group)) {
            return Ok(None);
        }
    }
    Ok(gathering.pack())
}

/// Rows of a job that are packed together.
struct Day {
    day: u64,
    class: String,
    policy: String,
    tracker: String,
    /// Index of the first row.
    begin: usize,
}

/// A job whose entries are collected.
struct Gathered {
    id: JobId,
    days: Vec<Day>,
    /// The numbers of all rows, as [`crate::pack`] packs them.
    matrix: Vec<u32>,
    last_unix_ms: Option<u64>,
}

/// The jobs of a unit.
struct Gathering<'a> {
    basis: &'a Basis,
    wanted: Wanted,
    stride: usize,
    jobs: Vec<Gathered>,
    by_key: HashMap<i64, Vec<usize>>,
    last: usize,
    entries: usize,
}

impl<'a> Gathering<'a> {
    fn new(basis: &'a Basis, wanted: Wanted) -> Self {
        let stride = stride(basis.buckets(), VERSION);
        Self { basis, wanted, stride, jobs: Vec::new(), by_key: HashMap::new(), last: 0, entries: 0 }
    }

    /// Appends a row group; returns whether that was possible.
    fn scan(&mut self, trace: &Trace, group: usize) -> bool {
        let wanted = self.wanted.clone();
        trace.scan(group, &wanted, &mut |batch, part| self.push(batch, part).ok_or(())) == Ok(true)
    }

    /// Finds the job of a part. Files mostly have the same jobs in the same order.
    fn find(&mut self, part: &Part<'_>) -> usize {
        let is = |at: usize| self.jobs.get(at).is_some_and(|job| part.is_of(&job.id));
        let expected = [self.last, self.last + 1, 0].into_iter().find(|&at| is(at));
        let known = || self.by_key.get(&part.job_key)?.iter().copied().find(|&at| is(at));
        if let Some(at) = expected.or_else(known) {
            return at;
        }
        self.by_key.entry(part.job_key).or_default().push(self.jobs.len());
        self.jobs.push(Gathered { id: part.id(), days: Vec::new(), matrix: Vec::new(), last_unix_ms: None });
        self.jobs.len() - 1
    }

    /// Appends the rows of a part. `None` if they are not after those before, or too large for a packed row.
    fn push(&mut self, batch: &Batch, part: &Part<'_>) -> Option<()> {
        self.entries += part.rows.len();
        if self.entries > GATHERED_MAX {
            return None;
        }
        self.last = self.find(part);
        let page = self.basis.page_bytes.0.max(1);
        let (stride, sums) = (self.stride, 2 * self.basis.buckets());
        let job = self.jobs.get_mut(self.last)?;
        let begin = job.matrix.len() / stride;
        batch.append_rows(part.rows.clone(), stride, &mut job.matrix);
        let rows = job.matrix[begin * stride..].chunks_exact_mut(stride);
        for ((row, at), slots) in part.rows.clone().zip(begin..).zip(rows) {
            let figures: Figures = batch.figures(row, &self.wanted);
            let start = figures.start_unix_ms.0;
            if job.last_unix_ms.is_some_and(|last| start <= last) {
                return None;
            }
            job.last_unix_ms = Some(start);
            let Figures { memory_bytes, swap_bytes, slow_node_bytes, promoted_pages, .. } = figures;
            let Bytes(bytes) = memory_bytes.max(swap_bytes).max(slow_node_bytes);
            if (bytes / page).max(promoted_pages.0) > u64::from(u32::MAX) {
                return None;
            }
            let day = start / DAY_MS;
            let same = job.days.last().is_some_and(|last| last.day == day && last.tracker == part.tracker);
            if !same {
                let [class, policy, tracker] = [part.class, part.policy, part.tracker].map(ToOwned::to_owned);
                job.days.push(Day { day, class, policy, tracker, begin: at });
            }
            slots[sums..].iter_mut().zip(numbers(&figures, UnixMillis(day * DAY_MS), page, 0)).for_each(|(slot, number)| *slot = number);
        }
        Some(())
    }

    /// Packs all days in the order of a compacted file.
    fn pack(mut self) -> Option<Vec<JobDay>> {
        self.jobs.sort_by(|a, b| a.id.cmp(&b.id));
        let most = day_entries_max(self.basis.buckets(), VERSION);
        let mut packed = Vec::new();
        for Gathered { id, days, matrix, .. } in self.jobs {
            let ends = days.iter().skip(1).map(|day| day.begin).chain([matrix.len() / self.stride]);
            let ends: Vec<_> = ends.collect();
            for (day, end) in days.into_iter().zip(ends) {
                let rows = matrix.get(day.begin * self.stride..end * self.stride)?;
                if end - day.begin > most {
                    return None;
                }
                let Day { day, class, policy, tracker, .. } = day;
                packed.push(JobDay::of_rows(id.clone(), [class, policy, tracker], UnixMillis(day * DAY_MS), rows, self.stride));
            }
        }
        Some(packed)
    }
}
