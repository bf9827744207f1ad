//! `thermocline trace anonymise`.

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use trace::anonymise::{Anonymiser, COLUMNS, Counted};
use trace::{Basis, Entry, FileSummary, Merge, Writer};
use units::Bytes;

use super::inputs::{self, Inputs};
use super::{Anonymise, Stream};
use crate::options::Format;
use crate::output::print;
use crate::table::Table;

/// Entries that are sorted in memory at once; about 100 MB.
const SORTED_AT_ONCE: usize = 100_000;

/// What was written, and what remains of each column.
#[derive(Debug, Serialize)]
struct Anonymised {
    file: String,
    entries: u64,
    jobs: u64,
    bytes: Bytes,
    /// Entries that were read again and whose words were found to name nothing.
    checked_entries: u64,
    classes_kept: Vec<String>,
    weeks_subtracted: u64,
    columns: Vec<(&'static str, &'static str)>,
}

pub(super) fn anonymise(inputs: &Inputs, arguments: &Anonymise, format: Format) -> Result<()> {
    let mut counted = Counted::default();
    let mut stream = Stream::open(inputs, None)?;
    while let Some(entry) = stream.next()? {
        counted.count(&entry);
    }
    drop(stream);
    // A keyed hash of a counter; the key is random and is not kept.
    let (key, mut drawn) = (RandomState::new(), 0u64);
    let mut anonymiser = Anonymiser::new(&counted, arguments.jobs_min, || {
        drawn += 1;
        key.hash_one(drawn)
    });
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mut stream = Stream::open(inputs, None)?;
    let basis = stream.basis;
    let sorted = sort(&mut stream, &mut |entry| anonymiser.entry(entry), basis, directory.path())?;
    let (FileSummary { entries, jobs, size }, checked_entries) = inputs::put(&arguments.to, |path| {
        let written = merge(sorted, path, basis)?;
        match check(path, &|entry| anonymiser.check(entry)) {
            Ok(checked) => Ok((written, checked)),
            Err(error) => {
                std::fs::remove_file(path).with_context(|| format!("{error:#}; cannot remove {}", path.display()))?;
                Err(error)
            }
        }
    })?;
    let classes_kept = anonymiser.classes().map(ToOwned::to_owned).collect();
    let weeks_subtracted = anonymiser.weeks_back();
    let made = Anonymised {
        file: arguments.to.clone(),
        entries,
        jobs,
        bytes: size,
        checked_entries,
        classes_kept,
        weeks_subtracted,
        columns: COLUMNS.to_vec(),
    };
    print(format, &made, || text(&made))
}

/// Writes sorted files of the anonymous entries: random names have another order.
fn sort(stream: &mut Stream, anonymous: &mut impl FnMut(Entry) -> Entry, basis: Basis, directory: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, mut held) = (Vec::new(), Vec::new());
    loop {
        let next = stream.next()?;
        let ends = next.is_none();
        held.extend(next.map(&mut *anonymous));
        if held.len() >= SORTED_AT_ONCE || (ends && !held.is_empty()) {
            held.sort_by(|one: &Entry, other| one.order().cmp(&other.order()));
            let path = directory.join(format!("{:06}.parquet", files.len()));
            let mut writer = Writer::create(&path, basis)?;
            for entry in held.drain(..) {
                writer.push(&entry)?;
            }
            writer.finish()?;
            files.push(path);
        }
        if ends {
            return Ok(files);
        }
    }
}

fn merge(sorted: Vec<PathBuf>, path: &Path, basis: Basis) -> Result<FileSummary> {
    let mut writer = Writer::create(path, basis)?;
    for entry in Merge::of(sorted)? {
        writer.push(&entry?)?;
    }
    Ok(writer.finish()?)
}

/// Reads the file again and returns its entries.
fn check(path: &Path, problem: &impl Fn(&Entry) -> Option<String>) -> Result<u64> {
    let mut checked = 0;
    for entry in Merge::of([path.to_owned()])? {
        if let Some(problem) = problem(&entry?) {
            bail!("{}: {problem}; the file was removed", path.display());
        }
        checked += 1;
    }
    Ok(checked)
}

fn text(made: &Anonymised) -> String {
    let Anonymised { file, entries, jobs, bytes, checked_entries, classes_kept, weeks_subtracted, columns } = made;
    let mut text = format!("{file}: {entries} entries of {jobs} jobs, {bytes}; {checked_entries} read again, none names anything\n");
    let _ = writeln!(text, "classes kept: {}; weeks subtracted: {weeks_subtracted}\n", classes_kept.join(", "));
    let mut table = Table::new(&["<", "<"]);
    for (column, remains) in columns {
        table.row(&[column, remains]);
    }
    text + &table.to_string()
}
