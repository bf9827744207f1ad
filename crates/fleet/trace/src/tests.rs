//! Trace files written, read back, truncated and altered.

use std::path::Path;

use crate::schema;
use crate::testing::{basis, entries};
use crate::{Basis, Entry, FileSummary, GROUP_ENTRIES, Trace, Writer};

fn write(path: &Path, basis: Basis, entries: &[Entry]) -> FileSummary {
    let mut writer = Writer::create(path, basis).unwrap();
    for entry in entries {
        writer.push(entry).unwrap();
    }
    writer.finish().unwrap()
}

fn read(path: &Path) -> Vec<Entry> {
    let trace = Trace::open(path).unwrap();
    trace.rows().flat_map(|rows| rows.unwrap().entries().collect::<Vec<_>>()).collect()
}

#[test]
fn reading_returns_the_written_entries() {
    let dir = tempfile::tempdir().unwrap();
    let check = |thresholds: usize, jobs: usize, each: usize| {
        let path = dir.path().join(format!("below/{thresholds}-{jobs}-{each}.parquet"));
        let basis = basis(thresholds);
        let given = entries("m", jobs, each, thresholds + 1);
        let written = write(&path, basis, &given);
        assert_eq!((written.entries, written.jobs), (given.len() as u64, jobs as u64));
        assert_eq!(written.size.0, std::fs::metadata(&path).unwrap().len());
        let trace = Trace::open(&path).unwrap();
        assert_eq!((trace.basis(), trace.version(), trace.entries()), (&basis, schema::VERSION, given.len() as u64));
        assert!(read(&path) == given, "{thresholds} {jobs} {each}");
    };
    check(32, 0, 0);
    check(32, 1, 1);
    check(32, 7, 20);
    check(2, 3, 5);
    check(64, 3, 5);
    assert_eq!(std::fs::read_dir(dir.path().join("below")).unwrap().count(), 5, "no temporary file is left");
}

#[test]
fn all_entries_of_a_job_are_in_one_row_group() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let each = GROUP_ENTRIES / 2 + 1;
    let given = entries("m", 5, each, 3);
    write(&path, basis(2), &given);
    let trace = Trace::open(&path).unwrap();
    let rows: Vec<_> = trace.rows().map(|rows| rows.unwrap().len()).collect();
    assert_eq!(rows, [2 * each, 2 * each, each]);
    let firsts: Vec<_> = (0..3).map(|group| trace.first_job(group).unwrap().unwrap().job).collect();
    assert_eq!(firsts, ["/job-000", "/job-002", "/job-004"]);
    assert!(read(&path) == given);
}

#[test]
fn unsorted_entries_and_other_histograms_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let given = entries("m", 2, 3, 33);
    let check = |order: [usize; 2], change: fn(&mut Entry), piece: &str| {
        let mut writer = Writer::create(&dir.path().join("t.parquet"), basis(32)).unwrap();
        writer.push(&given[order[0]]).unwrap();
        let mut second = given[order[1]].clone();
        change(&mut second);
        let error = writer.push(&second).unwrap_err().to_string();
        assert!(error.contains(piece) && error.contains("t.parquet"), "{error}");
    };
    check([1, 0], |_| {}, "/job-000");
    check([3, 2], |_| {}, "sorted");
    check([0, 1], |entry| entry.cold_pages.truncate(32), "32 and 33 buckets; there are 33");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "an unfinished file is removed");
}

#[test]
fn a_damaged_file_is_reported_without_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    write(&path, basis(2), &entries("m", 2, 3, 3));
    let whole = std::fs::read(&path).unwrap();
    let attempt = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Trace::open(&path).and_then(|trace| trace.rows().collect::<Result<Vec<_>, _>>())
    };
    assert!(attempt(&whole).is_ok());
    for cut in (0..whole.len()).step_by(11) {
        let error = attempt(&whole[..cut]).unwrap_err().to_string();
        assert!(error.contains("t.parquet"), "cut at {cut}: {error}");
    }
    // Panics inside the library are caught; their messages would fill the test's output.
    std::panic::set_hook(Box::new(|_| {}));
    // A changed byte inside a number cannot be detected.
    let mut detected = 0;
    for at in (0..whole.len()).step_by(11) {
        let mut changed = whole.clone();
        changed[at] ^= 0x55;
        detected += u32::from(attempt(&changed).is_err());
    }
    drop(std::panic::take_hook());
    assert!(detected > 10, "{detected}");
}

#[test]
fn a_newer_version_is_rejected_with_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    write(&path, basis(2), &entries("m", 1, 1, 3));
    let bytes = std::fs::read(&path).unwrap();
    let key = b"thermocline.trace_version";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len();
    let digit = at + bytes[at..].iter().position(u8::is_ascii_digit).unwrap();
    let check = |changed: u8, pieces: &[&str]| {
        let mut bytes = bytes.clone();
        bytes[digit] = changed;
        std::fs::write(&path, bytes).unwrap();
        let error = Trace::open(&path).unwrap_err().to_string();
        for piece in pieces {
            assert!(error.contains(piece), "{error}");
        }
    };
    check(b'9', &["trace version 9", "t.parquet", "newer"]);
    check(b'x', &["trace_version is \"x\", not a number"]);
}
