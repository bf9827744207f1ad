//! Work that goes on after a break: what has been counted is kept in files, and not counted again.
//!
//! # How
//! Each thread keeps two accounts: of all its pieces, and of those since it last wrote. Now and then it writes the second
//! into a directory, as a [`Partial`], and begins it anew. The next start reads what is there and leaves those pieces out. A
//! worker that dies loses what it did since it last wrote; the sums of a run with breaks are those of one without, to the
//! bit.
//!
//! # What has changed in between
//! A piece is known by all files of its machine. Where one has come, or grown, the piece is another one; the file that
//! holds the old one holds sums that cannot be taken apart, and is left aside.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::coverage::{Coverage, Part};
use crate::fleet::{Account, Label, Model, Named};
use crate::partial::{EXTENSION, Error, MergeError, Partial, Setting};
use crate::series::Series;
use crate::survey::Survey;
use store::FileError;

/// What a directory holds of a source.
#[derive(Debug)]
pub struct Found {
    /// What need not be counted again.
    pub partial: Partial,
    /// The pieces that are left.
    pub pieces: Vec<usize>,
    /// Files that are of pieces as they are no longer.
    pub stale: Vec<PathBuf>,
}

/// Reads what is in `directory`, which is made where it is not there, of a source replayed under `setting`.
///
/// # Errors
/// [`Error`], for a file that cannot be read or is of other parameters.
pub fn find(directory: &Path, source: &impl Named, setting: &Setting) -> Result<Found, Error> {
    let list = || FileError::at(directory, "list");
    std::fs::create_dir_all(directory).map_err(FileError::at(directory, "create"))?;
    let entries = std::fs::read_dir(directory).map_err(list())?.collect::<Result<Vec<_>, _>>().map_err(list())?;
    let mut files: Vec<_> = entries.into_iter().map(|entry| entry.path()).filter(|path| is_tally(path)).collect();
    files.sort();
    let mut wanted = Coverage::default();
    for piece in 0..source.pieces() {
        wanted.add(&source.part(piece)).map_err(|conflict| Error::Merge { path: directory.to_owned(), source: conflict.into() })?;
    }
    let mut found = Found { partial: Partial::empty(setting.clone()), pieces: Vec::new(), stale: Vec::new() };
    for path in files {
        let partial = Partial::read(&path)?;
        if let Some(difference) = setting.difference(&partial.setting) {
            return Err(Error::Merge { path, source: MergeError::Setting(difference) });
        }
        let usable = partial.coverage.parts().all(|part| wanted.holds(&part) && !found.partial.coverage.holds(&part));
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

/// Where threads write what they have counted, and how often.
#[derive(Debug)]
pub struct Keeper<'a> {
    /// The directory.
    pub directory: &'a Path,
    /// The setting of the replay.
    pub setting: &'a Setting,
    /// What each piece is.
    pub parts: Vec<Part>,
    /// How long a thread may count before it writes.
    pub every: Duration,
}

/// What one thread counts.
pub type Counted<'a> = (Option<Survey>, Model<'a>);

/// An account that is written now and then.
#[derive(Debug)]
pub struct Kept<'k, 'a, O> {
    keeper: &'k Keeper<'k>,
    open: O,
    /// Of all pieces that have been written.
    written: Counted<'a>,
    /// Of the others.
    since: Counted<'a>,
    pieces: Vec<usize>,
    last: Instant,
    /// Why nothing is written any more.
    failed: Option<Error>,
}

impl<'k, 'a, O: Fn() -> Counted<'a>> Kept<'k, 'a, O> {
    /// An empty account; `open` makes those that it is made of.
    pub fn new(keeper: &'k Keeper<'k>, open: O) -> Self {
        Self { keeper, written: open(), since: open(), open, pieces: Vec::new(), last: Instant::now(), failed: None }
    }

    fn save(&mut self) {
        let since = std::mem::replace(&mut self.since, (self.open)());
        if self.failed.is_none() && !self.pieces.is_empty() && !since.1.too_many_groups {
            self.failed = self.write(since.clone()).err();
        }
        self.pieces.clear();
        self.written.merge(since);
        self.last = Instant::now();
    }

    fn write(&self, (survey, model): Counted<'a>) -> Result<(), Error> {
        let mut coverage = Coverage::default();
        let mut parts: Vec<&Part> = self.pieces.iter().filter_map(|&piece| self.keeper.parts.get(piece)).collect();
        parts.sort_by_key(|part| (part.owner, part.groups.start));
        let path = self.keeper.directory.join(format!("{:016x}.{EXTENSION}", name(&parts)));
        let clash = |source: crate::coverage::Conflict| Error::Merge { path: path.clone(), source: source.into() };
        parts.iter().try_for_each(|part| coverage.add(part)).map_err(clash)?;
        Partial::of(self.keeper.setting.clone(), coverage, survey, model).write(&path)
    }

    /// Everything that was counted, and why some of it could not be written, if so.
    #[must_use]
    pub fn finish(mut self) -> (Counted<'a>, Option<Error>) {
        self.save();
        (self.written, self.failed)
    }
}

/// The same pieces always have the same name.
fn name(parts: &[&Part]) -> u64 {
    let numbers: Vec<_> = parts.iter().map(|part| [part.owner, part.listing, u64::from(part.groups.start)].map(u64::to_le_bytes)).collect();
    crate::coverage::fingerprint(numbers.as_flattened().iter().map(<[u8; 8]>::as_slice))
}

impl<'a, O: Fn() -> Counted<'a> + Send> Account for Kept<'_, 'a, O> {
    fn job(&mut self, label: &Label, series: &Series) {
        self.since.job(label, series);
    }

    fn merge(&mut self, other: Self) {
        self.written.merge(other.written);
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
