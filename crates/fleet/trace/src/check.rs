//! Checks trace files and compacted files against their schema.

use std::path::Path;

use units::{Bytes, Millis};

use crate::calendar;
use crate::compact::{CompactedTrace, DayEntries, Number};
use crate::entry::{Basis, Entry};
use crate::error::{Error, Result};
use crate::read::Trace;

/// Problems of one file that are reported; further ones are only counted.
const PROBLEMS_MAX: usize = 20;

/// A file that was recognized by its metadata.
#[derive(Debug)]
pub enum Kind {
    /// A trace file.
    Trace(Trace),
    /// A compacted file.
    Compacted(CompactedTrace),
}

/// Opens a file of either kind.
///
/// # Errors
/// Those of [`Trace::open`] and [`CompactedTrace::open`].
pub fn open(path: &Path) -> Result<Kind> {
    match Trace::open(path) {
        // Neither kind opens a file of the other kind.
        Err(error @ Error::Damaged { .. }) => match CompactedTrace::open(path) {
            Ok(compacted) => Ok(Kind::Compacted(compacted)),
            Err(newer @ Error::Newer { .. }) => Err(newer),
            Err(_) => Err(error),
        },
        trace => trace.map(Kind::Trace),
    }
}

/// Result of checking a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Entries checked.
    pub entries: u64,
    /// Jobs checked.
    pub jobs: u64,
    /// Descriptions of the first problems, at most twenty.
    pub problems: Vec<String>,
    /// Number of all problems.
    pub problems_total: u64,
}

impl Report {
    fn add(&mut self, problem: String) {
        self.problems_total += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

/// Reads a whole file and reports everything that the schema forbids.
///
/// # Errors
/// If the file cannot be read to its end.
pub fn check(path: &Path) -> Result<Report> {
    match open(path)? {
        Kind::Trace(trace) => check_trace(&trace),
        Kind::Compacted(compacted) => check_compacted(&compacted),
    }
}

fn check_trace(trace: &Trace) -> Result<Report> {
    let mut report = Report::default();
    let mut last: Option<Entry> = None;
    for rows in trace.rows() {
        let mut first_of_group = true;
        for entry in rows?.entries() {
            report.entries += 1;
            let same_job = last.as_ref().is_some_and(|last| last.id == entry.id);
            report.jobs += u64::from(!same_job);
            let at = || format!("{} of {} at {}", entry.id.job, entry.id.machine, calendar::time(entry.figures.start_unix_ms));
            if let Some(last) = &last {
                if last.order() > entry.order() {
                    report.add(format!("{}: not sorted", at()));
                } else if last.order() == entry.order() {
                    report.add(format!("{}: stored twice", at()));
                }
            }
            if same_job && first_of_group {
                report.add(format!("{}: the job is in two row groups", at()));
            }
            for problem in inconsistencies(&entry, trace.basis()) {
                report.add(format!("{}: {problem}", at()));
            }
            first_of_group = false;
            last = Some(entry);
        }
    }
    if report.entries != trace.entries() {
        report.add(format!("{} entries; the file's metadata has {}", report.entries, trace.entries()));
    }
    Ok(report)
}

/// Returns the inconsistencies between the numbers of an entry.
fn inconsistencies(entry: &Entry, basis: &Basis) -> Vec<&'static str> {
    let figures = &entry.figures;
    // Both are means, each rounded down: they differ by less than a page.
    let working_set = entry.cold_pages.first().map_or(Bytes::ZERO, |pages| basis.page_bytes.saturating_mul(*pages));
    [
        (figures.periods == 0, "the entry covers no control period"),
        (figures.held_periods > figures.periods, "held_periods is above periods"),
        (figures.far_periods > figures.periods, "far_periods is above periods"),
        (figures.window_ms == Millis::ZERO && entry.promotions_pages.iter().any(|&pages| pages > 0), "promotions, and window_ms is 0"),
        (
            figures.working_set_bytes.0.abs_diff(working_set.0) >= basis.page_bytes.0.max(1),
            "the working set differs from the youngest bucket",
        ),
    ]
    .into_iter()
    .filter_map(|(found, problem)| found.then_some(problem))
    .collect()
}

fn check_compacted(compacted: &CompactedTrace) -> Result<Report> {
    let mut report = Report::default();
    let mut unpacked = DayEntries::default();
    let (mut last, mut last_start) = (None, None);
    for group in 0..compacted.groups() {
        let mut first_of_group = true;
        for day in compacted.group(group)? {
            let day = day?;
            let at = || format!("{} of {} on {}", day.id.job, day.id.machine, calendar::date(day.day_unix_ms));
            let same_job = last.as_ref().is_some_and(|(id, _)| *id == day.id);
            report.jobs += u64::from(!same_job);
            // Rows of one day differ in their tracker.
            let same_day = last.as_ref().is_some_and(|(id, start)| (id, *start) == (&day.id, day.day_unix_ms));
            if last.as_ref().is_some_and(|(id, start)| (id, *start) > (&day.id, day.day_unix_ms)) {
                report.add(format!("{}: not sorted", at()));
            }
            if same_job && first_of_group {
                report.add(format!("{}: the job is in two row groups", at()));
            }
            first_of_group = false;
            if let Err(error) = day.unpack(compacted.path(), compacted.basis(), &mut unpacked) {
                report.add(error.to_string());
            } else {
                report.entries += unpacked.len() as u64;
                let starts: Vec<_> = (0..unpacked.len()).map(|entry| unpacked.number(entry, Number::StartMs)).collect();
                if same_day && starts.first() <= last_start.as_ref() {
                    report.add(format!("{}: not sorted, or stored twice", at()));
                }
                last_start = starts.last().copied();
                if !starts.is_sorted() || starts.iter().any(|&start| u64::from(start) >= calendar::DAY_MS) {
                    report.add(format!("{}: its entries are not sorted, or not of that day", at()));
                }
            }
            last = Some((day.id.clone(), day.day_unix_ms));
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::Compactor;
    use crate::testing::{basis, entries};
    use crate::{Figures, Writer};

    #[test]
    fn inconsistent_entries_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        let check = |change: fn(&mut Vec<Entry>), expected: &[&str]| {
            let mut given = entries("m", 2, 3, 3);
            change(&mut given);
            let mut writer = Writer::create(&path, basis(2)).unwrap();
            given.iter().for_each(|entry| writer.push(entry).unwrap());
            writer.finish().unwrap();
            let report = super::check(&path).unwrap();
            assert_eq!((report.entries, report.jobs), (given.len() as u64, 2));
            assert_eq!(report.problems.len(), expected.len(), "{report:?}");
            for (problem, expected) in report.problems.iter().zip(expected) {
                assert!(problem.contains(expected) && problem.contains("/job-00"), "{problem}");
            }
        };
        check(|_| (), &[]);
        check(|given| given.insert(1, given[1].clone()), &["twice"]);
        check(|given| given[2].figures.periods = 0, &["no control period", "held_periods is above", "far_periods is above"]);
        check(|given| given[4].figures.window_ms = Millis::ZERO, &["window_ms is 0"]);
        check(|given| given[5].figures.working_set_bytes += Bytes(4096), &["youngest bucket"]);
    }

    #[test]
    fn all_problems_are_counted_and_the_first_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        let mut writer = Writer::create(&path, basis(2)).unwrap();
        for mut entry in entries("m", 1, 100, 3) {
            entry.figures = Figures { start_unix_ms: entry.figures.start_unix_ms, periods: 1, window_ms: Millis(1), ..Figures::default() };
            entry.cold_pages[0] = 9;
            writer.push(&entry).unwrap();
        }
        writer.finish().unwrap();
        let report = check(&path).unwrap();
        assert_eq!((report.problems.len(), report.problems_total), (PROBLEMS_MAX, 100));
    }

    #[test]
    fn both_kinds_of_file_are_recognized() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.parquet");
        let mut compactor = Compactor::create(&path, basis(2)).unwrap();
        entries("m", 2, 300, 3).into_iter().for_each(|entry| compactor.push(entry).unwrap());
        compactor.finish().unwrap();
        assert_eq!(check(&path).unwrap(), Report { entries: 600, jobs: 2, ..Report::default() });
        std::fs::write(&path, "rubbish").unwrap();
        assert!(check(&path).unwrap_err().to_string().contains("c.parquet"));
    }
}
