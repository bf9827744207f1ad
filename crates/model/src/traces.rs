//! Recorded fleets: trace files as a source of jobs.
//!
//! # Pieces
//! A job's series must not be cut: its controller would begin anew, and nothing would tell. Within a file no job
//! straddles a row group; across files, a job's days lie in one directory tree of its machine
//! (`cluster=a/date=2026-11-20/machine=m`). So the files of a machine are merged and are one piece; a machine with one
//! file, and a file that stands alone, are read by row groups; several files that name no machine are one piece together.
//! A compacted file is read by row groups, too, several times as fast; of those there may be one, and nothing beside it, for
//! the same reason.
//!
//! # What a trace does not say
//! How many of the cold pages are incompressible: only what a sample of them shrinks to. A job whose sample takes more than
//! [`SIZE_MAX`] of its size counts as incompressible, as in the agent. Without a sample, which compacted files leave out, what
//! is in zswap says it; a job without either is taken to compress to a third (000 section 6.3), and counted in
//! [`Traces::assumed`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use policy::units::RatioPpm;
use trace::check::{self, Kind};
use trace::{Basis, Entry, Figures, JobId, Merge, Trace};

use crate::fleet::{Label, Source};
use crate::series::{Facts, RowError, Series};

/// A page that takes more than this, compressed, is not stored: 2990 of 4096 bytes (000 section 5.1).
pub const SIZE_MAX: RatioPpm = RatioPpm(730_000);
/// What a job compresses to that was not sampled.
const ASSUMED: RatioPpm = RatioPpm(333_333);
/// A file is read in so many pieces at most: each opens it anew.
const PIECES_PER_FILE: usize = 64;

/// Why traces cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory cannot be listed.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is nothing to read.
    #[error("no trace file below {0}; traces end in .parquet")]
    None(PathBuf),
    /// A compacted file among others.
    #[error("{0} is compacted, and there are other files: a job could be in several; compact all of them into one")]
    Several(PathBuf),
    /// A file is no trace, a damaged one, or counts something else.
    #[error(transparent)]
    Trace(#[from] trace::Error),
    /// An entry that cannot be used.
    #[error("{job} on {machine}, entry at {start_unix_ms} ms: {source}")]
    Row {
        /// Whose.
        job: String,
        /// On which machine.
        machine: String,
        /// When it begins.
        start_unix_ms: u64,
        /// What is wrong.
        source: RowError,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    /// Row groups of a file.
    Groups(PathBuf, Range<usize>),
    /// Row groups of a compacted file.
    Compacted(PathBuf, Range<usize>),
    /// Files of which one job may be in several.
    Files(Vec<PathBuf>),
}

/// Trace files, opened.
#[derive(Debug)]
pub struct Traces {
    basis: Basis,
    pieces: Vec<Piece>,
    entries: u64,
    assumed: AtomicU64,
}

impl Traces {
    /// The traces at these paths: files, or directories with everything below them.
    ///
    /// # Errors
    /// [`Error`], where a file cannot be read, is no trace, or counts something else than those before it.
    pub fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut files = Vec::new();
        for path in paths {
            let before = files.len();
            collect(path, &mut files)?;
            if files.len() == before {
                return Err(Error::None(path.clone()));
            }
        }
        files.sort();
        files.dedup();
        let several = files.len() > 1;
        let mut machines: BTreeMap<Option<String>, Vec<PathBuf>> = BTreeMap::new();
        let mut pieces = Vec::new();
        let (mut basis, mut entries) = (None, 0);
        for path in files {
            let found = match check::open(&path)? {
                Kind::Trace(trace) => {
                    entries += trace.entries();
                    machines.entry(machine(&path)).or_default().push(path.clone());
                    *trace.basis()
                }
                Kind::Compacted(_) if several => return Err(Error::Several(path)),
                Kind::Compacted(compacted) => {
                    entries = compacted.entries()?;
                    pieces.extend(parts(compacted.groups()).map(|groups| Piece::Compacted(path.clone(), groups)));
                    *compacted.basis()
                }
            };
            let expected = *basis.get_or_insert(found);
            if found != expected {
                return Err(trace::Error::Basis { path, found: found.to_string(), expected: expected.to_string() }.into());
            }
        }
        for files in machines.into_values() {
            match <[PathBuf; 1]>::try_from(files) {
                Ok([file]) => {
                    let groups = Trace::open(&file)?.groups();
                    pieces.extend(parts(groups).map(|groups| Piece::Groups(file.clone(), groups)));
                }
                Err(files) => pieces.push(Piece::Files(files)),
            }
        }
        let basis = basis.ok_or_else(|| Error::None(paths.first().cloned().unwrap_or_default()))?;
        Ok(Self { basis, pieces, entries, assumed: AtomicU64::new(0) })
    }

    /// What their histograms stand for.
    #[must_use]
    pub fn basis(&self) -> &Basis {
        &self.basis
    }

    /// How many entries the files say that they have.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// How many of the jobs read so far had no sample of what they compress to.
    #[must_use]
    pub fn assumed(&self) -> u64 {
        self.assumed.load(Ordering::Relaxed)
    }

    fn hand_over(&self, job: &mut Job, each: &mut dyn FnMut(&Label, &Series)) {
        if job.series.is_empty() {
            return;
        }
        let sampled = job.sampled.0.checked_div(job.sampled.1).and_then(|mean| u32::try_from(mean).ok());
        let sampled = sampled.or_else(|| RatioPpm::of(job.zswap.1, job.zswap.0).map(|ratio| ratio.0));
        if sampled.is_none() {
            self.assumed.fetch_add(1, Ordering::Relaxed);
        }
        job.series.facts = facts(sampled.map_or(ASSUMED, RatioPpm));
        each(&job.label, &job.series);
    }
}

/// What a job with such a sample would keep in far memory.
fn facts(sampled: RatioPpm) -> Facts {
    Facts { compressible: if sampled > SIZE_MAX { RatioPpm(0) } else { RatioPpm::ONE }, compressed: sampled.min(RatioPpm::ONE) }
}

/// Ranges of a file's row groups that are read together.
fn parts(groups: usize) -> impl Iterator<Item = Range<usize>> {
    let step = groups.div_ceil(PIECES_PER_FILE).max(1);
    (0..groups).step_by(step).map(move |first| first..groups.min(first + step))
}

/// The machine that a path names, with its cluster.
fn machine(path: &Path) -> Option<String> {
    let named = |key: &str| {
        path.components().filter_map(|part| part.as_os_str().to_str()).find(|part| part.starts_with(key)).map(ToOwned::to_owned)
    };
    Some(named("cluster=").unwrap_or_default() + "/" + &named("machine=")?)
}

/// Every trace file at or below a path.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    let failed = |source| Error::Io { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(failed)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (below, kind) = (entry.path(), entry.file_type().map_err(failed)?);
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if kind.is_dir() {
            collect(&below, files)?;
        } else if !hidden && below.extension().is_some_and(|extension| extension == "parquet") {
            files.push(below);
        }
    }
    Ok(())
}

/// A job that is being read.
struct Job {
    label: Label,
    series: Series,
    /// The sum of what its samples compressed to, and how many there were.
    sampled: (u64, u64),
    /// What was in zswap, summed over its entries, and what it took there.
    zswap: (u64, u64),
}

impl Job {
    fn new(basis: &Basis) -> Self {
        Self { label: Label::default(), series: Series::new(&basis.thresholds), sampled: (0, 0), zswap: (0, 0) }
    }

    fn begin(&mut self, id: &JobId, class: String, start_unix_ms: u64) {
        self.series.clear();
        self.series.start_unix_ms = start_unix_ms;
        self.label = Label { cluster: id.cluster.clone(), machine: id.machine.clone(), class };
        self.sampled = (0, 0);
        self.zswap = (0, 0);
    }

    fn in_zswap(&mut self, stored: u64, pool: u64) {
        self.zswap = (self.zswap.0.saturating_add(stored), self.zswap.1.saturating_add(pool));
    }

    fn push(&mut self, id: &JobId, figures: &Figures, promotions: &[u64], cold: &[u64]) -> Result<(), Error> {
        if figures.sampled_compressed_ppm > 0 {
            self.sampled = (self.sampled.0.saturating_add(figures.sampled_compressed_ppm), self.sampled.1 + 1);
        }
        self.in_zswap(figures.zswap_stored_bytes, figures.zswap_pool_bytes);
        // A window of more than seven weeks is none of an entry; the longest that can be held stands for it.
        let window_ms = u32::try_from(figures.window_ms).unwrap_or(u32::MAX);
        let pushed = self.series.push(figures.job_age_ms, window_ms, promotions, cold);
        let (job, machine, start_unix_ms) = (&id.job, &id.machine, figures.start_unix_ms);
        pushed.map_err(|source| Error::Row { job: job.clone(), machine: machine.clone(), start_unix_ms, source })
    }
}

impl Source for Traces {
    type Error = Error;

    fn pieces(&self) -> usize {
        self.pieces.len()
    }

    fn read(&self, piece: usize, each: &mut dyn FnMut(&Label, &Series)) -> Result<(), Error> {
        let mut job = Job::new(&self.basis);
        match &self.pieces[piece] {
            Piece::Groups(file, groups) => {
                let trace = Trace::open(file)?;
                for group in groups.clone() {
                    let rows = trace.group(group)?;
                    for run in &rows.runs {
                        job.begin(&run.id, rows.labels(run.rows.start).class, rows.figures(run.rows.start).start_unix_ms);
                        for row in run.rows.clone() {
                            job.push(&run.id, &rows.figures(row), rows.promotions(row), rows.cold(row))?;
                        }
                        self.hand_over(&mut job, each);
                    }
                }
            }
            Piece::Compacted(file, groups) => compacted::read(self, file, groups.clone(), &mut job, each)?,
            Piece::Files(files) => {
                let mut last = None;
                for entry in Merge::of(files.iter().cloned())? {
                    let Entry { id, labels, figures, cold_pages, promotions_pages } = entry?;
                    if last.as_ref() != Some(&id) {
                        self.hand_over(&mut job, each);
                        job.begin(&id, labels.class, figures.start_unix_ms);
                    }
                    job.push(&id, &figures, &promotions_pages, &cold_pages)?;
                    last = Some(id);
                }
                self.hand_over(&mut job, each);
            }
        }
        Ok(())
    }
}

mod compacted;

#[cfg(test)]
mod tests;
