//! Recorded fleets: trace files as a source of jobs.
//!
//! # Pieces
//! A job's series must not be cut, because its controller would silently start over. All entries of a job in a file are
//! in one row group; the days of a job are in one directory tree of its machine
//! (`cluster=a/date=2026-11-20/machine=m`). The files of a machine are therefore merged and form one piece. A machine
//! with one file, and a single file, are read by row groups. Several files without a machine in their paths form one
//! piece. A compacted file is read by row groups, several times as fast; it must be the only file, for the same reason.
//!
//! # Incompressible pages
//! A trace has no count of incompressible cold pages, only the compressed size of a sample. A job whose sample exceeds
//! [`SIZE_MAX`] counts as incompressible, as in the agent. Without a sample, which compacted files omit, the
//! compression of its pages in zswap is used. A job without either is assumed to compress to a third (SDFM section 6.3)
//! and counted in [`crate::tally::Base::jobs_assumed`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use store::FileError;
use trace::check::{self, Kind};
use trace::{Basis, Entry, Figures, JobId, Merge, Trace};
use units::RatioPpm;

use self::files::File;
use self::pieces::{Content, Piece};
use crate::coverage::{Part, fingerprint};
use crate::fleet::{Label, Named, Source};
use crate::series::{Compressibility, RowError, Series};

/// Compressed size above which a page is not stored: 2990 of 4096 bytes (SDFM section 5.1).
pub const SIZE_MAX: RatioPpm = RatioPpm(730_000);
/// Assumed compressed size for a job without a sample.
const ASSUMED: RatioPpm = RatioPpm(333_333);

/// Error of reading traces.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no trace file.
    #[error("no trace file below {0}; traces end in .parquet")]
    None(PathBuf),
    /// A compacted file beside other files.
    #[error("{0} is compacted, and there are other files: a job could be in several; compact all of them into one file")]
    Several(PathBuf),
    /// The row groups do not exist.
    #[error("row groups {}..{} do not exist: {}", groups.start, groups.end,
        if *of == 0 { "there are several files; name one of them".to_owned() } else { format!("the file has 0..{of}") })]
    Groups {
        /// The requested row groups.
        groups: Range<u32>,
        /// Number of row groups of the file; 0 for several files.
        of: u32,
    },
    /// A file is not a trace, is damaged, or has another basis.
    #[error(transparent)]
    Trace(#[from] trace::Error),
    /// An entry is invalid.
    #[error("{job} on {machine}, entry at {start_unix_ms} ms: {source}")]
    Row {
        /// Job of the entry.
        job: String,
        /// Machine of the job.
        machine: String,
        /// Start of the entry, in milliseconds since the epoch.
        start_unix_ms: u64,
        /// The reason.
        source: RowError,
    },
}

/// Opened trace files.
#[derive(Debug)]
pub struct Traces {
    basis: Basis,
    pieces: Vec<Piece>,
    entries: u64,
}

impl Traces {
    /// Opens the traces at these paths: files, or directories with everything below them.
    ///
    /// # Errors
    /// [`Error`] if a file cannot be read, is not a trace, or has another basis than those before it.
    pub fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        let files = files::find(paths)?;
        let several = files.len() > 1;
        let mut machines: BTreeMap<Option<String>, Vec<File>> = BTreeMap::new();
        let mut pieces = Vec::new();
        let (mut basis, mut entries) = (None, 0);
        for path in files {
            let mut file = File::open(path)?;
            let found = match check::open(&file.path)? {
                Kind::Trace(trace) => {
                    entries += trace.entries();
                    file.row_groups = trace.groups();
                    let found = *trace.basis();
                    machines.entry(files::machine(&file.path)).or_default().push(file.clone());
                    found
                }
                Kind::Compacted(_) if several => return Err(Error::Several(file.path)),
                Kind::Compacted(compacted) => {
                    entries = compacted.entries()?;
                    file.row_groups = compacted.groups();
                    pieces.extend(pieces::of_file(&file, file.fingerprint()?, true));
                    *compacted.basis()
                }
            };
            let expected = *basis.get_or_insert(found);
            if found != expected {
                let (found, expected) = (found.to_string(), expected.to_string());
                return Err(trace::Error::Basis { path: file.path, found, expected }.into());
            }
        }
        for (machine, files) in machines {
            let owner = match &machine {
                Some(machine) => fingerprint([machine.as_bytes()]),
                None => files::fingerprint_of_all(&files)?,
            };
            match files.as_slice() {
                [file] => pieces.extend(pieces::of_file(file, owner, false)),
                _ => pieces.push(pieces::of_files(&files, owner)),
            }
        }
        let basis = basis.ok_or_else(|| Error::None(paths.first().cloned().unwrap_or_default()))?;
        Ok(Self { basis, pieces, entries })
    }

    /// Opens some row groups of a single trace file. They contain complete jobs.
    ///
    /// # Errors
    /// Those of [`Traces::open`]; [`Error::Groups`] if there are several files or no such row groups.
    pub fn open_groups(paths: &[PathBuf], groups: Range<u32>) -> Result<Self, Error> {
        let mut traces = Self::open(paths)?;
        let of = traces.alone().ok_or(Error::Groups { groups: groups.clone(), of: 0 })?;
        if groups.is_empty() || groups.end > of {
            return Err(Error::Groups { groups, of });
        }
        traces.pieces = traces.pieces.into_iter().filter_map(|piece| piece.within(&groups)).collect();
        Ok(traces)
    }

    /// Returns the basis of the histograms.
    #[must_use]
    pub fn basis(&self) -> &Basis {
        &self.basis
    }

    /// Returns the number of entries according to the files' metadata.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }
}

fn finish_job(job: &mut Job, each: &mut dyn FnMut(&Label, &Series)) {
    if job.series.is_empty() {
        return;
    }
    let sampled = job.sampled.0.checked_div(job.sampled.1).and_then(|mean| u32::try_from(mean).ok());
    let sampled = sampled.or_else(|| RatioPpm::of(job.zswap.1, job.zswap.0).map(|ratio| ratio.0));
    job.series.assumed = sampled.is_none();
    job.series.compressibility = compressibility(sampled.map_or(ASSUMED, RatioPpm));
    each(&job.label, &job.series);
}

/// Returns the compressibility of a job with this compressed size of its sample.
fn compressibility(sampled: RatioPpm) -> Compressibility {
    Compressibility { compressible: if sampled > SIZE_MAX { RatioPpm(0) } else { RatioPpm::ONE }, compressed: sampled.min(RatioPpm::ONE) }
}

/// The job that is being read.
struct Job {
    label: Label,
    series: Series,
    /// Sum and number of the compressed sizes of its samples.
    sampled: (u64, u64),
    /// Pages stored in zswap and pages of its pool, each summed over the entries.
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

    fn add_zswap(&mut self, stored: u64, pool: u64) {
        self.zswap = (self.zswap.0.saturating_add(stored), self.zswap.1.saturating_add(pool));
    }

    fn push(&mut self, id: &JobId, figures: &Figures, promotions: &[u64], cold: &[u64]) -> Result<(), Error> {
        if figures.sampled_compressed_ppm > 0 {
            self.sampled = (self.sampled.0.saturating_add(figures.sampled_compressed_ppm), self.sampled.1 + 1);
        }
        self.add_zswap(figures.zswap_stored_bytes, figures.zswap_pool_bytes);
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
        match &self.pieces[piece].content {
            Content::Groups(file, groups) => {
                let trace = Trace::open(file)?;
                for group in groups.clone() {
                    let rows = trace.group(group)?;
                    for run in &rows.runs {
                        job.begin(&run.id, rows.labels(run.rows.start).class, rows.figures(run.rows.start).start_unix_ms);
                        for row in run.rows.clone() {
                            job.push(&run.id, &rows.figures(row), rows.promotions(row), rows.cold(row))?;
                        }
                        finish_job(&mut job, each);
                    }
                }
            }
            Content::Compacted(file, groups) => compacted::read(file, groups.clone(), &mut job, each)?,
            Content::Files(files) => {
                let mut last = None;
                for entry in Merge::of(files.iter().cloned())? {
                    let Entry { id, labels, figures, cold_pages, promotions_pages } = entry?;
                    if last.as_ref() != Some(&id) {
                        finish_job(&mut job, each);
                        job.begin(&id, labels.class, figures.start_unix_ms);
                    }
                    job.push(&id, &figures, &promotions_pages, &cold_pages)?;
                    last = Some(id);
                }
                finish_job(&mut job, each);
            }
        }
        Ok(())
    }
}

impl Named for Traces {
    fn part(&self, piece: usize) -> Part {
        self.pieces[piece].part.clone()
    }
}

mod compacted;
mod files;
mod pieces;

pub use pieces::Share;

#[cfg(test)]
mod tests;
