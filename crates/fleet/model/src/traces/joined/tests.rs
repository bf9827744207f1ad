use std::path::Path;

use policy::thresholds::Thresholds;
use trace::compact::Compactor;
use trace::{Entry, Merge};

use super::super::{Error, Traces, files};
use super::*;
use crate::generate::Fleet;

/// What a piece has: the name and the length of each job, in order.
fn jobs(piece: &Piece, basis: &trace::Basis) -> Vec<(Label, usize, u64)> {
    let Content::Joined(joint) = &piece.content else { panic!("{piece:?}") };
    let mut found = Vec::new();
    let mut each = |label: &Label, series: &Series| found.push((label.clone(), series.len(), series.start_unix_ms.0));
    read(joint, &mut Job::new(basis), &mut each).unwrap();
    found
}

/// Writes a generated fleet as one compacted file a day.
fn daily(directory: &Path) -> (Vec<Entry>, trace::Basis) {
    let fleet = Fleet::new(5, 40, 3, Thresholds::log_spaced(32).unwrap());
    let recorded = tempfile::tempdir().unwrap();
    for machine in 0..fleet.machines() {
        fleet.record(machine, recorded.path()).unwrap();
    }
    let mut found = Vec::new();
    files::collect(recorded.path(), &mut found).unwrap();
    let entries: Vec<Entry> = Merge::of(found).unwrap().map(Result::unwrap).collect();
    let mut days: std::collections::BTreeMap<u64, Vec<&Entry>> = std::collections::BTreeMap::new();
    entries.iter().for_each(|entry| days.entry(entry.figures.start_unix_ms.0 / trace::calendar::DAY_MS).or_default().push(entry));
    assert!(days.len() >= 3);
    for (day, entries) in days {
        let mut compactor = Compactor::create(&directory.join(format!("{day}.parquet")), fleet.basis()).unwrap();
        entries.into_iter().for_each(|entry| compactor.push(entry.clone()).unwrap());
        compactor.finish().unwrap();
    }
    (entries, fleet.basis())
}

#[test]
fn pieces_of_several_files_have_each_job_whole_and_once() {
    let directory = tempfile::tempdir().unwrap();
    let (entries, basis) = daily(directory.path());
    let files: Vec<_> = files::find(&[directory.path().to_owned()]).unwrap().into_iter().map(|path| File::open(path).unwrap()).collect();
    let firsts: Vec<_> = files.iter().map(|file| CompactedTrace::open(&file.path).unwrap().first_jobs().unwrap()).collect();
    let whole = between(&files, &firsts, &[]).unwrap();
    assert_eq!((whole.len(), pieces(&files).unwrap()), (1, whole.clone()));
    let expected = jobs(&whole[0], &basis);
    assert_eq!(expected.iter().map(|(_, entries, _)| entries).sum::<usize>(), entries.len());
    // Cut at jobs of the traces, and at one that is in no file.
    let mut places: Vec<JobId> = [7, 3, 5].iter().map(|part| entries[entries.len() * part / 8].id.clone()).collect();
    places.push(JobId { job: "/zzz".to_owned(), ..places[0].clone() });
    places.sort();
    let cut = between(&files, &firsts, &places).unwrap();
    assert_eq!(cut.len(), 5);
    assert_eq!(cut.iter().flat_map(|piece| jobs(piece, &basis)).collect::<Vec<_>>(), expected);
}

#[test]
fn a_job_that_is_in_two_files_of_a_day_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (entries, basis) = daily(directory.path());
    let again = directory.path().join("again.parquet");
    let mut compactor = Compactor::create(&again, basis).unwrap();
    entries.iter().take(3).for_each(|entry| compactor.push(entry.clone()).unwrap());
    compactor.finish().unwrap();
    let traces = Traces::open(&[directory.path().to_owned()]).unwrap();
    let error = crate::fleet::Source::read(&traces, 0, &mut |_, _| ()).unwrap_err();
    assert!(matches!(error, Error::Trace(trace::Error::Overlap { .. })), "{error}");
}
