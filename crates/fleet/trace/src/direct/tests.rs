use std::path::Path;

use super::*;
use crate::schema;
use crate::testing::{basis, entries};
use crate::{Entry, FIGURES, Figures, JobId, Labels, Trace, Writer};

fn sums(counts: &[u64]) -> Vec<u64> {
    (0..counts.len()).map(|from| counts[from..].iter().sum()).collect()
}

/// What batches have of an entry: no decision, and sums in place of counts.
fn without_decision(mut entry: Entry) -> Entry {
    entry.labels.decision.clear();
    (entry.cold_pages, entry.promotions_pages) = (sums(&entry.cold_pages), sums(&entry.promotions_pages));
    entry
}

/// Reads a file as batches: `None` if it is left to the library.
fn scanned(trace: &Trace) -> Option<Vec<Entry>> {
    let names: Vec<_> = FIGURES.iter().map(|figure| figure.name).collect();
    let wanted = Wanted::new(&names).unwrap();
    let mut found: Vec<Entry> = Vec::new();
    for group in 0..trace.groups() {
        let read = trace.scan(group, &wanted, &mut |batch, part| {
            let [cluster, machine, job, class, policy, tracker] =
                [part.cluster, part.machine, part.job, part.class, part.policy, part.tracker].map(ToOwned::to_owned);
            let id = JobId { cluster, machine, job, job_key: part.job_key };
            assert_eq!(part.begins, found.last().is_none_or(|last| last.id != id));
            let mut sums = Vec::new();
            batch.append_sums(part.rows.clone(), &mut sums);
            let buckets = trace.basis().buckets();
            for (row, sums) in part.rows.clone().zip(sums.chunks_exact(2 * buckets)) {
                let (cold, promotions) = sums.split_at(buckets);
                let [cold_pages, promotions_pages] = [cold, promotions].map(|sums| sums.iter().map(|&sum| u64::from(sum)).collect());
                let labels = Labels { class: class.clone(), policy: policy.clone(), tracker: tracker.clone(), decision: String::new() };
                let figures = Figures::from_array(std::array::from_fn(|figure| batch.figures[figure][row]));
                found.push(Entry { id: id.clone(), labels, figures, cold_pages, promotions_pages });
            }
            Ok::<(), ()>(())
        });
        if read != Ok(true) {
            return None;
        }
    }
    Some(found)
}

fn by_library(trace: &Trace) -> crate::Result<Vec<Entry>> {
    let mut found = Vec::new();
    for rows in trace.rows() {
        found.extend(rows?.entries().map(without_decision));
    }
    Ok(found)
}

fn write(path: &Path, thresholds: usize, entries: &[Entry]) {
    let mut writer = Writer::create(path, basis(thresholds)).unwrap();
    entries.iter().for_each(|entry| writer.push(entry).unwrap());
    writer.finish().unwrap();
}

#[test]
fn batches_have_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let check = |thresholds: usize, given: &[Entry]| {
        write(&path, thresholds, given);
        let found = scanned(&Trace::open(&path).unwrap()).unwrap();
        let expected: Vec<_> = given.iter().cloned().map(without_decision).collect();
        assert!(found == expected, "{thresholds} thresholds, {} entries", given.len());
    };
    for (jobs, each) in [(0, 0), (1, 1), (3, 5), (12, 12), (2, 64), (2, 65), (1, 255), (1, 256), (1, 257), (7, 300)] {
        for thresholds in [2, 32] {
            check(thresholds, &entries("m", jobs, each, thresholds + 1));
        }
    }
    // Pages of a column end after 20,000 rows, and row groups after 8,192 where a job ends.
    check(2, &entries("m", 9, 5_000, 3));
    check(2, &entries("m", 1, 21_000, 3));
    // Labels that change within a job.
    let mut changing = entries("m", 3, 300, 3);
    for (at, entry) in changing.iter_mut().enumerate() {
        entry.labels.tracker = ["idle_page", "lru_gen", "damon"][at / 7 % 3].to_owned();
        entry.labels.class = format!("class {}", at / 40);
    }
    check(2, &changing);
    // Numbers of every width.
    let mut random = fastrand::Rng::with_seed(1);
    let mut wide = entries("m", 2, 600, 3);
    for (at, entry) in wide.iter_mut().enumerate() {
        let array = entry.figures.to_array();
        let ppm = FIGURES.iter().position(|figure| figure.name == "sampled_compressed_ppm");
        let new = |figure: usize| if figure == 0 || Some(figure) == ppm { array[figure] } else { random.u64(..) >> (1 + at / 9 % 63) };
        entry.figures = Figures::from_array(std::array::from_fn(new));
    }
    check(2, &wide);
}

#[test]
fn what_batches_do_not_hold_is_left_to_the_library() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let check = |change: fn(&mut Entry), left: bool| {
        let mut given = entries("m", 2, 300, 3);
        change(&mut given[400]);
        write(&path, 2, &given);
        let trace = Trace::open(&path).unwrap();
        assert_eq!(scanned(&trace).is_none(), left);
        assert!(by_library(&trace).unwrap() == given.into_iter().map(without_decision).collect::<Vec<_>>());
    };
    check(|entry| entry.cold_pages = vec![(1 << 31) - 3, 1, 1], false);
    check(|entry| entry.cold_pages = vec![(1 << 31) - 3, 1, 2], true);
    check(|entry| entry.promotions_pages = vec![0, 0, 1 << 31], true);
    check(|entry| entry.promotions_pages = vec![0, 0, 1 << 40], true);
}

#[test]
fn older_versions_are_read_alike() {
    for version in 1..=schema::VERSION {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/trace-v{version}.parquet"));
        let trace = Trace::open(&path).unwrap();
        let found = scanned(&trace).unwrap_or_else(|| panic!("version {version} is left to the library"));
        assert!(!found.is_empty() && found == by_library(&trace).unwrap(), "version {version}");
    }
}

#[test]
fn damaged_files_are_read_as_by_the_library_or_left_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    write(&path, 2, &entries("m", 3, 50, 3));
    let whole = std::fs::read(&path).unwrap();
    let (mut read, mut left, mut differing) = (0, 0, Vec::new());
    let mut attempt = |bytes: &[u8], what: String| {
        std::fs::write(&path, bytes).unwrap();
        let Ok(trace) = Trace::open(&path) else { return };
        let Some(found) = scanned(&trace) else {
            left += 1;
            return;
        };
        read += 1;
        if by_library(&trace).is_ok_and(|expected| expected != found) {
            differing.push(what);
        }
    };
    // Panics inside the library are caught; their messages would fill the test's output.
    std::panic::set_hook(Box::new(|_| {}));
    for cut in (0..whole.len()).step_by(23) {
        attempt(&whole[..cut], format!("cut at {cut}"));
    }
    let mut random = fastrand::Rng::with_seed(11);
    for at in (0..whole.len()).step_by(5) {
        let mut changed = whole.clone();
        changed[at] ^= 1 << random.u32(..8);
        attempt(&changed, format!("byte {at}"));
    }
    for round in 0..500 {
        let mut changed = whole.clone();
        for _ in 0..random.usize(2..9) {
            let at = random.usize(..changed.len());
            changed[at] = random.u8(..);
        }
        attempt(&changed, format!("round {round}"));
    }
    drop(std::panic::take_hook());
    assert!(read > 100 && left > 300, "{read} read, {left} left to the library");
    assert!(differing.is_empty(), "{differing:?}");
}
