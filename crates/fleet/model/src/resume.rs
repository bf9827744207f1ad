//! Resumes a replay: counted pieces are stored in files and not counted again.
//!
//! # Method
//! Each thread keeps two accounts: one of all its pieces, and one of the pieces since it last saved. At intervals it
//! writes the second into a directory, as a [`Partial`], and starts a new one. The next run reads the directory and
//! skips those pieces. A worker that dies loses the pieces since it last saved; the sums of an interrupted run are the
//! same bits as those of an uninterrupted one.
//!
//! # Changed traces
//! A piece is identified by all files of its machine. If a file was added or has grown, the piece is a different one; a
//! tally that contains the old piece cannot be separated and is left out.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use store::FileError;

use crate::coverage::{Coverage, Part};
use crate::fleet::{Account, Label, Model, Named};
use crate::partial::{EXTENSION, Error, MergeError, Partial, Setting};
use crate::series::Series;
use crate::survey::Survey;

/// Contents of a directory for a source.
#[derive(Debug)]
pub struct ResumeState {
    /// The sums that need not be counted again.
    pub partial: Partial,
    /// The pieces that are missing.
    pub pieces: Vec<usize>,
    /// Files that contain pieces that have changed.
    pub stale: Vec<PathBuf>,
}

/// Reads the tallies in `directory`, which is created if missing, for a source replayed under `setting`.
///
/// # Errors
/// [`Error`] for a file that cannot be read or has other parameters.
pub fn find(directory: &Path, source: &impl Named, setting: &Setting) -> Result<ResumeState, Error> {
    let list = || FileError::at(directory, "list");
    std::fs::create_dir_all(directory).map_err(FileError::at(directory, "create"))?;
    let entries = std::fs::read_dir(directory).map_err(list())?.collect::<Result<Vec<_>, _>>().map_err(list())?;
    let mut files: Vec<_> = entries.into_iter().map(|entry| entry.path()).filter(|path| is_tally(path)).collect();
    files.sort();
    let mut current = Coverage::default();
    for piece in 0..source.pieces() {
        current.add(&source.part(piece)).map_err(|conflict| Error::Merge { path: directory.to_owned(), source: conflict.into() })?;
    }
    let mut found = ResumeState { partial: Partial::empty(setting.clone()), pieces: Vec::new(), stale: Vec::new() };
    for path in files {
        let partial = Partial::read(&path)?;
        if let Some(difference) = setting.difference(&partial.setting) {
            return Err(Error::Merge { path, source: MergeError::Setting(difference) });
        }
        let usable = partial.coverage.parts().all(|part| current.holds(&part) && !found.partial.coverage.holds(&part));
        if usable {
            found.partial.merge(partial).map_err(|source| Error::Merge { path, source })?;
        } else {
            found.stale.push(path);
        }
    }
    found.pieces = (0..source.pieces()).filter(|&piece| !found.partial.coverage.holds(&source.part(piece))).collect();
    Ok(found)
}

fn is_tally(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

/// Takes the sums of some pieces, for an answer before the end.
pub type Publish<'a> = dyn Fn(&Counts<'_>, &[usize]) + Sync + 'a;

/// Where and how often threads save their sums.
pub struct Keeper<'a> {
    /// The directory to write them into, if any.
    pub directory: Option<&'a Path>,
    /// Who else gets them.
    pub publish: Option<&'a Publish<'a>>,
    /// The setting of the replay.
    pub setting: &'a Setting,
    /// Identity of each piece.
    pub parts: Vec<Part>,
    /// Interval between two saves of a thread.
    pub every: Duration,
}

impl std::fmt::Debug for Keeper<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("directory", &self.directory).field("every", &self.every).finish_non_exhaustive()
    }
}

/// The sums of one thread.
pub type Counts<'a> = (Option<Survey>, Model<'a>);

/// An account that is saved at intervals.
#[derive(Debug)]
pub struct SavedAccount<'k, 'a, O> {
    keeper: &'k Keeper<'k>,
    open: O,
    /// Sums of the saved pieces.
    saved: Counts<'a>,
    /// Sums of the other pieces.
    since: Counts<'a>,
    pieces: Vec<usize>,
    last: Instant,
    /// The first error; nothing is saved after it.
    failed: Option<Error>,
}

impl<'k, 'a, O: Fn() -> Counts<'a>> SavedAccount<'k, 'a, O> {
    /// Creates an empty account; `open` creates its parts.
    pub fn new(keeper: &'k Keeper<'k>, open: O) -> Self {
        Self { keeper, saved: open(), since: open(), open, pieces: Vec::new(), last: Instant::now(), failed: None }
    }

    fn save(&mut self) {
        let since = std::mem::replace(&mut self.since, (self.open)());
        if !self.pieces.is_empty() && !since.1.too_many_groups {
            if let Some(directory) = self.keeper.directory.filter(|_| self.failed.is_none()) {
                self.failed = self.write(directory, since.clone()).err();
            }
            if let Some(publish) = self.keeper.publish {
                publish(&since, &self.pieces);
            }
        }
        self.pieces.clear();
        self.saved.merge(since);
        self.last = Instant::now();
    }

    fn write(&self, directory: &Path, (survey, model): Counts<'a>) -> Result<(), Error> {
        let mut coverage = Coverage::default();
        let mut parts: Vec<&Part> = self.pieces.iter().filter_map(|&piece| self.keeper.parts.get(piece)).collect();
        parts.sort_by_key(|part| (part.owner, part.groups.start));
        let path = directory.join(format!("{:016x}.{EXTENSION}", name(&parts)));
        let clash = |source: crate::coverage::Conflict| Error::Merge { path: path.clone(), source: source.into() };
        parts.iter().try_for_each(|part| coverage.add(part)).map_err(clash)?;
        Partial::of(self.keeper.setting.clone(), coverage, survey, model).write(&path)
    }

    /// Returns all sums, and the error that prevented saving some of them.
    #[must_use]
    pub fn finish(mut self) -> (Counts<'a>, Option<Error>) {
        self.save();
        (self.saved, self.failed)
    }
}

/// Returns the name of a file: the same pieces always have the same name.
fn name(parts: &[&Part]) -> u64 {
    let numbers: Vec<_> = parts.iter().map(|part| [part.owner, part.listing, u64::from(part.groups.start)].map(u64::to_le_bytes)).collect();
    crate::coverage::fingerprint(numbers.as_flattened().iter().map(<[u8; 8]>::as_slice))
}

impl<'a, O: Fn() -> Counts<'a> + Send> Account for SavedAccount<'_, 'a, O> {
    fn job(&mut self, label: &Label, series: &Series) {
        self.since.job(label, series);
    }

    fn merge(&mut self, other: Self) {
        self.saved.merge(other.saved);
        self.since.merge(other.since);
        self.pieces.extend(other.pieces);
        self.failed = self.failed.take().or(other.failed);
    }

    fn piece_done(&mut self, piece: usize) {
        self.pieces.push(piece);
        if self.last.elapsed() >= self.keeper.every {
            self.save();
        }
    }
}
