//! Whether a file is what the schema promises.

use std::path::Path;

use crate::calendar;
use crate::compact::{Compacted, Number, Unpacked};
use crate::entry::{Basis, Entry};
use crate::error::{Error, Result};
use crate::read::Trace;

/// Problems told of one file; the others are counted.
const TOLD_MAX: usize = 20;

/// What a file turned out to be.
#[derive(Debug)]
pub enum Kind {
    /// A trace.
    Trace(Trace),
    /// A compacted one.
    Compacted(Compacted),
}

/// Opens a file of either kind.
///
/// # Errors
/// Those of [`Trace::open`] and [`Compacted::open`].
pub fn open(path: &Path) -> Result<Kind> {
    match Trace::open(path) {
        // It says so itself, or nothing at all.
        Err(error @ Error::Damaged { .. }) => match Compacted::open(path) {
            Ok(compacted) => Ok(Kind::Compacted(compacted)),
            Err(newer @ Error::Newer { .. }) => Err(newer),
            Err(_) => Err(error),
        },
        trace => trace.map(Kind::Trace),
    }
}

/// What was found in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Entries looked at.
    pub entries: u64,
    /// Jobs that they are of.
    pub jobs: u64,
    /// What is wrong, at most the first twenty.
    pub problems: Vec<String>,
    /// How many problems there are in all.
    pub problems_total: u64,
}

impl Report {
    fn tell(&mut self, what: String) {
        self.problems_total += 1;
        if self.problems.len() < TOLD_MAX {
            self.problems.push(what);
        }
    }
}

/// Reads a whole file and looks for what the schema rules out.
///
/// # Errors
/// Where it cannot be read to the end.
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
                    report.tell(format!("{}: not sorted", at()));
                } else if last.order() == entry.order() {
                    report.tell(format!("{}: twice", at()));
                }
            }
            if same_job && first_of_group {
                report.tell(format!("{}: its job straddles two row groups", at()));
            }
            for what in impossible(&entry, trace.basis()) {
                report.tell(format!("{}: {what}", at()));
            }
            first_of_group = false;
            last = Some(entry);
        }
    }
    if report.entries != trace.entries() {
        report.tell(format!("{} entries, and {} by the file's own count", report.entries, trace.entries()));
    }
    Ok(report)
}

/// What cannot be true of an entry.
fn impossible(entry: &Entry, basis: &Basis) -> Vec<&'static str> {
    let figures = &entry.figures;
    // Both are means, each rounded down.
    let working_set = entry.cold_pages.first().map_or(0, |pages| pages.saturating_mul(basis.page_bytes));
    [
        (figures.periods == 0, "it sums no control period"),
        (figures.held_periods > figures.periods, "more periods were held than there are"),
        (figures.far_periods > figures.periods, "more periods had far memory than there are"),
        (figures.window_ms == 0 && entry.promotions_pages.iter().any(|&pages| pages > 0), "promotions without the time they took"),
        (figures.working_set_bytes.abs_diff(working_set) >= basis.page_bytes.max(1), "the working set is not the youngest bucket"),
    ]
    .into_iter()
    .filter_map(|(wrong, what)| wrong.then_some(what))
    .collect()
}

fn check_compacted(compacted: &Compacted) -> Result<Report> {
    let mut report = Report::default();
    let mut unpacked = Unpacked::default();
    let mut last = None;
    for group in 0..compacted.groups() {
        let mut first_of_group = true;
        for day in compacted.group(group)? {
            let day = day?;
            let at = || format!("{} of {} on {}", day.id.job, day.id.machine, calendar::date(day.day_unix_ms));
            let same_job = last.as_ref().is_some_and(|(id, _)| *id == day.id);
            report.jobs += u64::from(!same_job);
            if last.as_ref().is_some_and(|(id, start)| (id, *start) >= (&day.id, day.day_unix_ms)) {
                report.tell(format!("{}: not sorted, or twice", at()));
            }
            if same_job && first_of_group {
                report.tell(format!("{}: its job straddles two row groups", at()));
            }
            first_of_group = false;
            if let Err(error) = day.unpack(compacted.path(), compacted.basis(), &mut unpacked) {
                report.tell(error.to_string());
            } else {
                report.entries += unpacked.len() as u64;
                let starts: Vec<_> = (0..unpacked.len()).map(|entry| unpacked.number(entry, Number::StartMs)).collect();
                if !starts.is_sorted() || starts.iter().any(|&start| u64::from(start) >= calendar::DAY_MS) {
                    report.tell(format!("{}: its entries are not sorted, or not of that day", at()));
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
    fn what_cannot_be_true_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        let check = |change: fn(&mut Vec<Entry>), want: &[&str]| {
            let mut given = entries("m", 2, 3, 3);
            change(&mut given);
            let mut writer = Writer::create(&path, basis(2)).unwrap();
            given.iter().for_each(|entry| writer.push(entry).unwrap());
            writer.finish().unwrap();
            let report = super::check(&path).unwrap();
            assert_eq!((report.entries, report.jobs), (given.len() as u64, 2));
            assert_eq!(report.problems.len(), want.len(), "{report:?}");
            for (problem, want) in report.problems.iter().zip(want) {
                assert!(problem.contains(want) && problem.contains("/job-00"), "{problem}");
            }
        };
        check(|_| (), &[]);
        check(|given| given.insert(1, given[1].clone()), &["twice"]);
        check(|given| given[2].figures.periods = 0, &["no control period", "more periods were held", "more periods had far"]);
        check(|given| given[4].figures.window_ms = 0, &["without the time"]);
        check(|given| given[5].figures.working_set_bytes += 4096, &["youngest bucket"]);
    }

    #[test]
    fn many_problems_are_counted_and_few_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        let mut writer = Writer::create(&path, basis(2)).unwrap();
        for mut entry in entries("m", 1, 100, 3) {
            entry.figures = Figures { start_unix_ms: entry.figures.start_unix_ms, periods: 1, window_ms: 1, ..Figures::default() };
            entry.cold_pages[0] = 9;
            writer.push(&entry).unwrap();
        }
        writer.finish().unwrap();
        let report = check(&path).unwrap();
        assert_eq!((report.problems.len(), report.problems_total), (TOLD_MAX, 100));
    }

    #[test]
    fn either_kind_is_known() {
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
