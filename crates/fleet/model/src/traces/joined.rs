//! Several compacted files, such as one a day, as one.
//!
//! A job has days in several of the files, and its series must not be cut. The jobs are therefore divided where the row groups of the
//! largest file begin, and a piece reads the jobs between two of these places from all files.

use std::path::PathBuf;
use std::sync::Arc;

use trace::JobId;
use trace::compact::{CompactedTrace, FILES_MAX, Jobs, Joined};

use super::error::Error;
use super::files::{File, fingerprint_of_all, listing};
use super::job::{DayReader, Job};
use super::joint::Joint;
use super::pieces::{Content, PIECES_PER_FILE, Piece};
use crate::coverage::Part;
use crate::fleet::Label;
use crate::series::Series;

/// Returns the pieces of several compacted files.
pub(super) fn pieces(files: &[File]) -> Result<Vec<Piece>, Error> {
    if files.len() > FILES_MAX {
        return Err(Error::TooMany(files.len()));
    }
    let firsts = files.iter().map(|file| CompactedTrace::open(&file.path)?.first_jobs()).collect::<Result<Vec<_>, _>>()?;
    let largest = firsts.iter().max_by_key(|firsts| firsts.len()).map_or(&[][..], Vec::as_slice);
    let step = largest.len().div_ceil(PIECES_PER_FILE).max(1);
    let places: Vec<_> = largest.iter().step_by(step).skip(1).cloned().collect();
    between(files, &firsts, &places)
}

/// Returns the pieces of several files that begin with these jobs; before them is another piece, which begins with the first job.
fn between(files: &[File], firsts: &[Vec<JobId>], places: &[JobId]) -> Result<Vec<Piece>, Error> {
    let (owner, listing) = (fingerprint_of_all(files)?, listing(files));
    let paths: Arc<[PathBuf]> = files.iter().map(|file| file.path.clone()).collect();
    let ends: Vec<_> = [None].into_iter().chain(places.iter().cloned().map(Some)).chain([None]).collect();
    let count = ends.len() - 1;
    let bytes = files.iter().map(|file| file.bytes).sum::<u64>() / count as u64;
    let of = u32::try_from(count).unwrap_or(u32::MAX);
    let piece = |(at, ends): (u32, &[Option<JobId>])| {
        let jobs = Jobs { from: ends[0].clone(), until: ends[1].clone() };
        let groups = firsts.iter().map(|firsts| jobs.groups(firsts)).collect();
        let content = Content::Joined(Joint { files: Arc::clone(&paths), groups, jobs });
        Piece { part: Part { owner, listing, groups: at..at + 1, of }, content, bytes }
    };
    Ok((0..).zip(ends.windows(2)).map(piece).collect())
}

/// Calls `each` for some jobs of several files.
pub(super) fn read(joint: &Joint, job: &mut Job, each: &mut dyn FnMut(&Label, &Series)) -> Result<(), Error> {
    let files = joint.files.iter().map(|path| CompactedTrace::open(path)).collect::<Result<Vec<_>, _>>()?;
    let mut joined = Joined::new(files.iter().zip(joint.groups.iter().cloned()), joint.jobs.clone())?;
    let mut days = DayReader::new(job, each);
    while let Some(rows) = joined.next_day()? {
        for day in rows {
            days.push(&day, |sums, numbers| joined.unpack_onto(&day, sums, numbers))?;
        }
    }
    days.finish();
    Ok(())
}

#[cfg(test)]
mod tests;
