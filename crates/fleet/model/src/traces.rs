//! Recorded fleets: trace files as a source of jobs.
//!
//! # Pieces
//! A job's series must not be cut, because its controller would silently start over. All entries of a job in a file are
//! in one row group; the days of a job are in one directory tree of its machine
//! (`cluster=a/date=2026-11-20/machine=m`). The files of a machine are therefore merged and form one piece. A machine
//! with one file, and a single file, are read by row groups. Several files without a machine in their paths form one
//! piece. A compacted file is read by row groups, several times as fast. Several of them, such as one a day, are joined
//! (`joined`); beside trace files there can be none, for the same reason.
//!
//! # Incompressible pages
//! A trace has no count of incompressible cold pages, only the compressed size of a sample. A job whose sample exceeds
//! [`SIZE_MAX`] counts as incompressible, as in the agent. Without a sample, which compacted files omit, the
//! compression of its pages in zswap is used. A job without either is assumed to compress to a third (SDFM section 6.3)
//! and counted in [`crate::tally::Base::jobs_assumed`].

use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::Range;
use std::path::PathBuf;

use trace::check::{self, Kind};
use trace::{Basis, Trace};

use self::files::File;
use self::job::Job;
use self::pieces::{Content, Piece};
use crate::coverage::{Part, fingerprint};
use crate::fleet::{Label, Named, Source};
use crate::series::Series;

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
        let mut machines: BTreeMap<Option<String>, Vec<File>> = BTreeMap::new();
        let (mut pieces, mut compacted_files) = (Vec::new(), Vec::new());
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
                Kind::Compacted(compacted) => {
                    entries += compacted.entries()?;
                    file.row_groups = compacted.groups();
                    compacted_files.push(file.clone());
                    *compacted.basis()
                }
            };
            let expected = *basis.get_or_insert(found);
            if found != expected {
                let (found, expected) = (found.to_string(), expected.to_string());
                return Err(trace::Error::Basis { path: file.path, found, expected }.into());
            }
        }
        if let (Some(compacted), Some(trace)) = (compacted_files.first(), machines.values().flatten().next()) {
            return Err(Error::Several { compacted: compacted.path.clone(), trace: trace.path.clone() });
        }
        match compacted_files.as_slice() {
            [] => {}
            [file] => pieces.extend(pieces::of_file(file, file.fingerprint()?, true)),
            files => pieces.extend(joined::pieces(files)?),
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
        let of = pieces::groups_of_only_file(&traces.pieces).ok_or(Error::Groups { groups: groups.clone(), of: 0 })?;
        if groups.is_empty() || groups.end > of {
            return Err(Error::Groups { groups, of });
        }
        traces.pieces = traces.pieces.into_iter().filter_map(|piece| piece.within(&groups)).collect();
        Ok(traces)
    }

    /// Splits the traces into at most `workers` shares of about the same size. The files of a machine stay together, and
    /// a single file is split between row groups: a share contains complete jobs.
    #[must_use]
    pub fn shares(&self, workers: NonZero<usize>) -> Vec<Share> {
        pieces::shares(&self.pieces, workers)
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

impl Source for Traces {
    type Error = Error;

    fn pieces(&self) -> usize {
        self.pieces.len()
    }

    fn bytes(&self, piece: usize) -> u64 {
        self.pieces[piece].bytes
    }

    fn read(&self, piece: usize, each: &mut dyn FnMut(&Label, &Series)) -> Result<(), Error> {
        let mut job = Job::new(&self.basis);
        match &self.pieces[piece].content {
            Content::Groups(file, groups) => {
                let trace = Trace::open(file)?;
                groups.clone().try_for_each(|group| columns::group(&trace, group, &mut job, each))
            }
            Content::Compacted(file, groups) => compacted::read(file, groups.clone(), &mut job, each),
            Content::Joined(joint) => joined::read(joint, &mut job, each),
            Content::Files(files) => columns::files((files, self.pieces[piece].bytes), &self.basis, &mut job, each),
        }
    }
}

impl Named for Traces {
    fn part(&self, piece: usize) -> Part {
        self.pieces[piece].part.clone()
    }
}

mod columns;
mod compacted;
mod error;
mod files;
mod job;
mod joined;
mod joint;
mod pieces;

pub use error::Error;
pub use job::SIZE_MAX;
pub use pieces::Share;

#[cfg(test)]
mod tests;
