use pool::{EmcId, Generation, SliceId};

use super::*;
use crate::api::{Code, ErrorResponse};

const LARGE: Bytes = Bytes::mib(1);

fn offlined(index: u32) -> Request {
    let slice = SliceId { emc: EmcId(0), index };
    Request::Offlined { host: "host-a".to_owned(), epoch: 1, slice, generation: Generation(4) }
}

fn write(audit: &mut Audit, count: u32) {
    for index in 0..count {
        audit.record(1_000, [("host-a", &offlined(index), &Ok(Response::Done))].into_iter());
    }
}

/// A log of five entries.
fn log() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.audit");
    write(&mut Audit::open(path.clone(), LARGE), 5);
    (directory, path)
}

fn change(path: &Path, with: impl Fn(Vec<String>) -> Vec<String>) {
    let lines = std::fs::read_to_string(path).unwrap().lines().map(ToOwned::to_owned).collect();
    std::fs::write(path, with(lines).join("\n") + "\n").unwrap();
}

#[test]
fn an_entry_has_who_what_which_slice_why_and_outcome() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.audit");
    let mut audit = Audit::open(path.clone(), LARGE);
    let failed = Request::OfflineFailed {
        host: "host-a".to_owned(),
        epoch: 1,
        slice: SliceId { emc: EmcId(1), index: 7 },
        generation: Generation(3),
        why: "the guest refuses".to_owned(),
    };
    let stale = Err(ErrorResponse { error: Code::Stale, message: "no such report is expected".to_owned() });
    let renewed = Request::Renew { host: "host-a".to_owned(), epoch: 1 };
    let failed_emc = Request::EmcFailed(EmcId(2));
    let ok = Ok(Response::Done);
    audit.record(5, [("host-a", &failed, &stale), ("host-a", &renewed, &ok), ("operator", &failed_emc, &ok)].into_iter());
    let mut entries = Vec::new();
    read(&path, |entry| entries.push(entry.clone())).unwrap();
    assert_eq!(entries.len(), 2, "a renewal is not recorded");
    let first = &entries[0];
    assert_eq!((first.who.as_str(), first.what.as_str(), first.time_ms), ("host-a", "offline_failed", 5));
    assert_eq!(first.slices, [SliceOf { emc: 1, index: 7, generation: 3 }]);
    assert_eq!((first.why.as_deref(), first.outcome.as_str()), (Some("the guest refuses"), "no such report is expected"));
    assert_eq!((entries[1].who.as_str(), entries[1].what.as_str(), entries[1].outcome.as_str()), ("operator", "emc_failed", "ok"));
    assert_eq!(entries[1].why.as_deref(), Some("EMC 2"));
}

#[test]
fn a_log_continues_after_a_restart() {
    let (_directory, path) = log();
    write(&mut Audit::open(path.clone(), LARGE), 2);
    let verified = verify(&path, None).unwrap();
    assert_eq!((verified.entries, verified.first, verified.last, verified.lost), (7, 1, 7, 0));
}

#[test]
fn changed_removed_and_inserted_entries_are_found() {
    let check = |with: &dyn Fn(Vec<String>) -> Vec<String>, line: usize, why: &str| {
        let (_directory, path) = log();
        change(&path, with);
        let error = verify(&path, None).unwrap_err();
        assert!(matches!(&error, Error::Broken { line: found, .. } if *found == line), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    };
    let replaced = |mut lines: Vec<String>, from: &str, to: &str| {
        lines[2] = lines[2].replace(from, to);
        lines
    };
    check(&|lines| replaced(lines, "host-a", "host-b"), 3, "entry 3 was changed");
    check(&|lines| replaced(lines, "\"index\":2", "\"index\":4"), 3, "entry 3 was changed");
    check(&|lines| lines.iter().enumerate().filter(|(at, _)| *at != 2).map(|(_, line)| line.clone()).collect(), 3, "removed");
    check(&|lines| lines[1..].to_vec(), 1, "not the first");
    check(&|lines| [&lines[..2], &lines[1..]].concat(), 3, "inserted");
    check(&|lines| [&lines[..4], &["{}".to_owned()], &lines[4..]].concat(), 5, "not an entry");
}

#[test]
fn a_removed_end_is_found_by_a_link_that_was_noted() {
    let (_directory, path) = log();
    let link = verify(&path, None).unwrap().link;
    assert!(verify(&path, Some(&link)).is_ok());
    change(&path, |lines| lines[..3].to_vec());
    assert_eq!(verify(&path, None).unwrap().entries, 3);
    assert!(matches!(verify(&path, Some(&link)), Err(Error::Missing { .. })));
}

#[test]
fn the_size_is_limited_by_rotation() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.audit");
    let limit = Bytes(2_000);
    let mut audit = Audit::open(path.clone(), limit);
    write(&mut audit, 50);
    for file in paths(&path) {
        let size = std::fs::metadata(&file).unwrap().len();
        assert!((1_000..=limit.0).contains(&size), "{} has {size} bytes", file.display());
    }
    let verified = verify(&path, None).unwrap();
    assert!(verified.first > 1 && verified.last == 50, "{verified:?}");
    // A restart right after a rotation continues the earlier file's chain.
    std::fs::remove_file(&path).unwrap();
    write(&mut Audit::open(path.clone(), limit), 1);
    assert!(verify(&path, None).is_ok());
}

#[test]
fn a_full_disk_loses_entries_and_counts_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.audit");
    let mut audit = Audit::open(path.clone(), LARGE);
    let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
    audit.file = Some(full);
    write(&mut audit, 1);
    assert_eq!(audit.lost, 1);
    // It cannot be opened again either.
    audit.path = "/nowhere/ledger.audit".into();
    write(&mut audit, 2);
    assert_eq!(audit.lost, 3);
    audit.path = path.clone();
    write(&mut audit, 2);
    let verified = verify(&path, None).unwrap();
    assert_eq!((verified.entries, verified.lost, audit.lost), (2, 3, 0));
}

#[test]
fn a_line_that_a_crash_cut_is_reported() {
    let (_directory, path) = log();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 20).unwrap();
    write(&mut Audit::open(path.clone(), LARGE), 1);
    assert!(matches!(verify(&path, None), Err(Error::Broken { line: 5, .. })));
}
