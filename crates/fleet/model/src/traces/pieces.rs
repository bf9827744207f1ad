//! Splits trace files: into pieces for threads, and into shares for workers on other machines.

use std::num::NonZero;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::files::{File, listing};
use super::joint::Joint;
use crate::coverage::Part;

/// Maximum pieces of a file: each piece opens the file again.
pub(super) const PIECES_PER_FILE: usize = 256;

/// A piece of work: the smallest unit that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) part: Part,
    pub(super) content: Content,
    /// Approximate size.
    pub(super) bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Row groups of a file.
    Groups(PathBuf, Range<usize>),
    /// Row groups of a compacted file.
    Compacted(PathBuf, Range<usize>),
    /// Some jobs of several compacted files.
    Joined(Joint),
    /// Files that are merged, because a job may be in several of them.
    Files(Vec<PathBuf>),
}

/// Returns the pieces of a file that is the only one of its owner.
pub(super) fn of_file(file: &File, owner: u64, compacted: bool) -> impl Iterator<Item = Piece> {
    let count = |groups: usize| u32::try_from(groups).unwrap_or(u32::MAX);
    let (all, listing) = (file.row_groups, listing(std::slice::from_ref(file)));
    let step = all.div_ceil(PIECES_PER_FILE).max(1);
    (0..all).step_by(step).map(move |first| {
        let groups = first..all.min(first + step);
        let part = Part { owner, listing, groups: count(groups.start)..count(groups.end), of: count(all) };
        let bytes = file.bytes / all.max(1) as u64 * groups.len() as u64;
        let path = file.path.clone();
        Piece { part, content: if compacted { Content::Compacted(path, groups) } else { Content::Groups(path, groups) }, bytes }
    })
}

/// Returns the single piece of an owner with several files.
pub(super) fn of_files(files: &[File], owner: u64) -> Piece {
    let part = Part { owner, listing: listing(files), groups: 0..1, of: 1 };
    let paths = files.iter().map(|file| file.path.clone()).collect();
    Piece { part, content: Content::Files(paths), bytes: files.iter().map(|file| file.bytes).sum() }
}

impl Piece {
    /// Returns the part of the piece within a range of row groups, if any.
    pub(super) fn within(mut self, groups: &Range<u32>) -> Option<Self> {
        let (start, end) = (self.part.groups.start.max(groups.start), self.part.groups.end.min(groups.end));
        if start >= end {
            return None;
        }
        self.part.groups = start..end;
        if let Content::Groups(_, range) | Content::Compacted(_, range) = &mut self.content {
            *range = start as usize..end as usize;
        }
        Some(self)
    }

    fn files(&self) -> &[PathBuf] {
        match &self.content {
            Content::Groups(file, _) | Content::Compacted(file, _) => std::slice::from_ref(file),
            Content::Files(files) => files,
            Content::Joined(joint) => &joint.files,
        }
    }
}

/// The files and row groups that one of several workers replays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The files.
    pub files: Vec<PathBuf>,
    /// Row groups of the only file; `None` for whole files.
    pub groups: Option<Range<u32>>,
}

/// Returns the number of row groups of the only file; `None` if there are several files.
pub(super) fn groups_of_only_file(pieces: &[Piece]) -> Option<u32> {
    let first = pieces.first()?;
    let same = pieces.iter().all(|piece| piece.files() == first.files());
    (same && first.files().len() == 1).then_some(first.part.of)
}

/// Splits pieces into at most `workers` shares of about the same size.
pub(super) fn shares(pieces: &[Piece], workers: NonZero<usize>) -> Vec<Share> {
    if let (Some(of), Some(file)) = (groups_of_only_file(pieces), pieces.first().and_then(|piece| piece.files().first())) {
        return cut(file, of, workers);
    }
    let whole: u64 = pieces.iter().map(|piece| piece.bytes).sum();
    let mut shares: Vec<Share> = Vec::new();
    let (mut before, mut last) = (0u64, None);
    for piece in pieces {
        // The share in which the middle of the piece falls, if the whole is divided into equal parts.
        let middle = u128::from(before + piece.bytes / 2) * workers.get() as u128 / u128::from(whole.max(1));
        let continues = shares.last().is_some_and(|share| share.files.last() == piece.files().last());
        if !continues && last != Some(middle) {
            shares.push(Share { files: Vec::new(), groups: None });
            last = Some(middle);
        }
        if let Some(share) = shares.last_mut().filter(|_| !continues) {
            share.files.extend_from_slice(piece.files());
        }
        before += piece.bytes;
    }
    shares
}

/// Splits the row groups of a file.
fn cut(file: &Path, of: u32, workers: NonZero<usize>) -> Vec<Share> {
    let workers = u32::try_from(workers.get()).unwrap_or(u32::MAX).min(of.max(1));
    let at = |worker: u32| u32::try_from(u64::from(of) * u64::from(worker) / u64::from(workers)).unwrap_or(of);
    (0..workers).map(|worker| Share { files: vec![file.to_owned()], groups: Some(at(worker)..at(worker + 1)) }).collect()
}
