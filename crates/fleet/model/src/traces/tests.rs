use std::num::NonZero;
use std::path::Path;

use policy::thresholds::Thresholds;
use trace::{Entry, JobId, Merge, Writer};
use units::{Millis, RatioPpm};

use super::*;
use crate::fleet::{By, Model, all, run};
use crate::generate::Fleet;
use crate::grid::{Grid, Setup};
use crate::series::Compressibility;
use crate::tally::Tally;
use crate::traces::files::collect;
use crate::traces::job::compressibility;

const SETUPS: [Setup; 1] = [Setup::new(RatioPpm(2_000))];

fn grid() -> Grid {
    Grid::new(vec![RatioPpm(900_000), RatioPpm(990_000)], vec![Millis::ZERO, Millis(3_600_000)]).unwrap()
}

fn totals(source: &impl Source<Error: std::fmt::Debug>, threads: usize, thresholds: &Thresholds) -> Tally {
    let grid = grid();
    let open = || Model::new(&grid, &SETUPS, thresholds, By::Fleet).unwrap();
    run(source, &all(source), NonZero::new(threads).unwrap(), open, |_| {}).unwrap().whole().remove(0)
}

/// Returns a generated fleet of four machines, and the traces that were written from it.
fn recorded(directory: &Path) -> (Fleet, Traces) {
    let fleet = Fleet::new(3, 40, 1, Thresholds::log_spaced(32).unwrap());
    for machine in 0..fleet.machines() {
        fleet.record(machine, directory).unwrap();
    }
    (fleet, Traces::open(&[directory.to_owned()]).unwrap())
}

#[test]
fn a_recorded_fleet_has_the_totals_of_its_source() {
    let directory = tempfile::tempdir().unwrap();
    let (fleet, traces) = recorded(directory.path());
    assert_eq!(traces.pieces(), 4);
    let thresholds = *fleet.thresholds();
    let (as_recorded, read) = (totals(&Unsplit(&fleet), 1, &thresholds), totals(&traces, 2, &thresholds));
    assert_eq!(read, as_recorded);
    assert_eq!((read.base, traces.entries()), (totals(&fleet, 1, &thresholds).base, read.base.entries));
    assert_eq!(read.base.jobs_assumed, 0);
}

/// The fleet as its trace describes it: with the compressed size of samples, without the incompressible share.
struct Unsplit<'a>(&'a Fleet);

impl Source for Unsplit<'_> {
    type Error = std::convert::Infallible;

    fn pieces(&self) -> usize {
        self.0.pieces()
    }

    fn read(&self, piece: usize, each: &mut dyn FnMut(&Label, &Series)) -> Result<(), Self::Error> {
        self.0.read(piece, &mut |label, series| {
            let mut series = series.clone();
            let (compressible, compressed) = (series.compressibility.compressible.as_f64(), series.compressibility.compressed.as_f64());
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share in millionths")]
            let sampled = ((compressible * compressed + 1.0 - compressible) * 1e6) as u32;
            series.compressibility = compressibility(RatioPpm(sampled));
            each(label, &series);
        })
    }
}

#[test]
fn the_days_of_a_job_form_one_series() {
    let whole = tempfile::tempdir().unwrap();
    let (fleet, traces) = recorded(whole.path());
    let thresholds = *fleet.thresholds();
    let expected = totals(&traces, 1, &thresholds);
    // The same entries in two files each, split at noon: by machine, and all in one directory.
    let check = |name: fn(&JobId, bool) -> String| {
        let split = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        collect(whole.path(), &mut files).unwrap();
        for file in files {
            let trace = Trace::open(&file).unwrap();
            let entries: Vec<Entry> = trace.rows().flat_map(|rows| rows.unwrap().entries().collect::<Vec<_>>()).collect();
            for late in [false, true] {
                let noon = |entry: &&Entry| (entry.figures.start_unix_ms.0 % 86_400_000 >= 43_200_000) == late;
                let mut writer = Writer::create(&split.path().join(name(&entries[0].id, late)), fleet.basis()).unwrap();
                entries.iter().filter(noon).for_each(|entry| writer.push(entry).unwrap());
                writer.finish().unwrap();
            }
        }
        let traces = Traces::open(&[split.path().to_owned()]).unwrap();
        assert_eq!(totals(&traces, 2, &thresholds), expected);
        traces.pieces()
    };
    let by_machine = check(|id, late| format!("cluster={}/date={late}/machine={}/x.parquet", id.cluster, id.machine));
    let by_nothing = check(|id, late| format!("{}-{late}.parquet", id.machine));
    assert_eq!((by_machine, by_nothing), (4, 1));
}

#[test]
fn a_compacted_fleet_has_the_same_totals() {
    let directory = tempfile::tempdir().unwrap();
    // Two days, so that jobs have two rows each.
    let fleet = Fleet::new(5, 40, 2, Thresholds::log_spaced(32).unwrap());
    for machine in 0..fleet.machines() {
        fleet.record(machine, directory.path()).unwrap();
    }
    let traces = Traces::open(&[directory.path().to_owned()]).unwrap();
    let packed = tempfile::tempdir().unwrap();
    let path = packed.path().join("week.parquet");
    let mut files = Vec::new();
    collect(directory.path(), &mut files).unwrap();
    let mut compactor = trace::compact::Compactor::create(&path, fleet.basis()).unwrap();
    Merge::of(files).unwrap().for_each(|entry| compactor.push(entry.unwrap()).unwrap());
    compactor.finish().unwrap();
    let compacted = Traces::open(&[packed.path().to_owned()]).unwrap();
    let thresholds = *fleet.thresholds();
    let (found, expected) = (totals(&compacted, 2, &thresholds), totals(&traces, 1, &thresholds));
    assert_eq!(found, expected);
    assert_eq!((compacted.entries(), found.base.jobs_assumed), (traces.entries(), 0));
    let error = Traces::open(&[packed.path().to_owned(), directory.path().to_owned()]).unwrap_err().to_string();
    assert!(error.contains("week.parquet is compacted"), "{error}");
}

#[test]
fn what_is_read_by_the_library_continues_what_was_read_as_columns() {
    let whole = tempfile::tempdir().unwrap();
    let (fleet, traces) = recorded(whole.path());
    let thresholds = *fleet.thresholds();
    let mut files = Vec::new();
    collect(whole.path(), &mut files).unwrap();
    let entries: Vec<Entry> = Merge::of([files.swap_remove(0)]).unwrap().map(Result::unwrap).collect();
    // A job in the middle has more pages than batches hold.
    let middle = entries[entries.len() / 2].id.clone();
    let check = |pages: u64, parts: &[fn(usize) -> bool]| {
        let directory = tempfile::tempdir().unwrap();
        for (part, has) in parts.iter().enumerate() {
            let path = directory.path().join(format!("cluster=c/machine=m/{part}.parquet"));
            let mut writer = Writer::create(&path, *traces.basis()).unwrap();
            for (_, entry) in entries.iter().enumerate().filter(|(at, _)| has(*at)) {
                let mut entry = entry.clone();
                if entry.id == middle {
                    entry.cold_pages[32] = pages;
                }
                writer.push(&entry).unwrap();
            }
            writer.finish().unwrap();
        }
        totals(&Traces::open(&[directory.path().to_owned()]).unwrap(), 1, &thresholds)
    };
    for pages in [9, 1 << 31] {
        let expected = check(pages, &[|_| true]);
        assert!(expected.base.jobs > 3 && expected.base.entries == entries.len() as u64);
        // Later entries in the first file, and entries in two files.
        assert_eq!(check(pages, &[|at| at % 2 == 1, |at| at % 2 == 0]), expected, "{pages}");
        assert_eq!(check(pages, &[|at| at % 3 > 0, |_| true]), expected, "{pages}");
    }
}

#[test]
fn paths_without_a_trace_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let check = |path: PathBuf, piece: &str| {
        let error = Traces::open(&[path]).unwrap_err().to_string();
        assert!(error.contains(piece), "{error}");
    };
    check(directory.path().join("missing"), "missing");
    check(directory.path().to_owned(), "no trace file below");
    let text = directory.path().join("text.parquet");
    std::fs::write(&text, "no trace").unwrap();
    check(text, "text.parquet");
}

#[test]
fn a_sample_above_the_limit_makes_a_job_incompressible() {
    let check = |sampled, compressible, compressed| {
        assert_eq!(
            compressibility(RatioPpm(sampled)),
            Compressibility { compressible: RatioPpm(compressible), compressed: RatioPpm(compressed) }
        );
    };
    check(333_333, 1_000_000, 333_333);
    check(730_000, 1_000_000, 730_000);
    check(730_001, 0, 730_001);
    check(1_200_000, 0, 1_000_000);
}
