use pool::{Ns, SliceId, Slices};

use super::rows::Rows;
use super::*;
use crate::layout::Layout;
use crate::ledger::{Request, Terms};

fn terms() -> Terms {
    Terms { lease: Ns(1 << 40), hosts: vec!["a".to_owned()], host_slices: None }
}

fn layout() -> Layout {
    Layout { directory: "/pool".into(), slice_bytes: Bytes(1 << 30), devices: Vec::new() }
}

fn config() -> pool::Config {
    pool::Config {
        emc_slices: vec![Slices(3), Slices(2)],
        hosts: 1,
        buffer_slices: Slices::ZERO,
        answer_within: Ns(1),
        ask_again_after: Ns(1),
    }
}

fn ledger() -> Ledger {
    let host = Host { name: "a".to_owned(), ..Host::default() };
    Ledger::new(pool::Pool::new(config()), vec![host], BTreeMap::new(), 1, terms(), layout(), Ns(0))
}

fn restored(stored: Stored) -> Ledger {
    let pool = pool::Pool::restore(config(), stored.kept).unwrap();
    Ledger::new(pool, stored.hosts, stored.vms, stored.next_vm, terms(), layout(), Ns(0))
}

fn used(before: &Ledger) -> Ledger {
    let mut ledger = before.clone();
    let text = |text: &str| text.to_owned();
    let generation = ledger.pool().generation(SliceId { emc: EmcId(0), index: 0 }).unwrap();
    for request in [
        Request::Lease { host: text("a"), instance: text("one") },
        Request::Assign { host: text("a"), epoch: 1, request: text("r1"), vm: text("first"), slices: Slices(2) },
        Request::Assign { host: text("a"), epoch: 1, request: text("r2"), vm: text("second"), slices: Slices(2) },
        Request::Return { host: text("a"), epoch: 1, request: text("r3"), vm: text("first") },
        Request::Offlined {
            host: text("a"),
            epoch: 1,
            slice: SliceId { emc: EmcId(0), index: 0 },
            generation: crate::files::next(generation),
        },
        Request::EmcFailed(EmcId(1)),
    ] {
        ledger.apply(Ns(7), &request).unwrap();
    }
    ledger
}

#[test]
fn saved_ledgers_are_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("storage.redb");
    let mut storage = Storage::open(&path, directory.path()).unwrap();
    assert_eq!(storage.load(false).unwrap(), None);
    let new = ledger();
    storage.save(None, &new).unwrap();
    assert!(!restored(storage.load(false).unwrap().unwrap()).differs(&new));
    let used = used(&new);
    storage.save(Some(&new), &used).unwrap();
    assert!(matches!(Storage::open(&path, directory.path()), Err(Error::Mark(mark::Error::InUse { .. }))), "one manager per directory");
    let elsewhere = tempfile::tempdir().unwrap();
    assert!(matches!(Storage::open(&path, elsewhere.path()), Err(Error::InUse { .. })), "one manager per pool");
    drop(storage);
    let stored = Storage::open(&path, directory.path()).unwrap().load(false).unwrap().unwrap();
    assert_eq!(stored.hosts[0].ended, ["r1", "r3", "r2"], "the second VM ended with its EMC");
    assert!(stored.vms.is_empty() && stored.kept.works == [true, false]);
    assert!(!restored(stored).differs(&used));
}

#[test]
fn invalid_rows_are_reported() {
    let check = |spoil: &dyn Fn(&mut Rows), piece: &str| {
        let row =
            serde_json::to_string(&About { schema: SCHEMA, slice_bytes: Bytes(1), next_vm: 1, position: None, chain: Chain::default() })
                .unwrap();
        let mut rows = Rows { about: row, emcs: vec![(0, "true".to_owned())], ..Rows::default() };
        rows.stored(Path::new("storage")).unwrap();
        spoil(&mut rows);
        let error = rows.stored(Path::new("storage")).unwrap_err().to_string();
        assert!(error.contains(piece), "{error}");
    };
    check(&|rows| rows.about = "{".to_owned(), "about");
    check(&|rows| rows.about = r#"{"schema":9,"slice_bytes":1,"next_vm":1}"#.to_owned(), "schema 9");
    check(&|rows| rows.emcs[0].0 = 1, "EMC 1: a row before it is missing");
    check(&|rows| rows.emcs[0].1 = "maybe".to_owned(), "EMC 0");
    let record = r#"{"state":"free","generation":0,"returned":null}"#.to_owned();
    check(&|rows| rows.slices.push((SliceId { emc: EmcId(0), index: 1 }, record.clone())), "slice 0/1: a row before it is missing");
    check(&|rows| rows.slices.push((SliceId { emc: EmcId(3), index: 0 }, record.clone())), "slice 3/0");
    check(&|rows| rows.vms.push((5, "{}".to_owned())), "VM 5");
    check(&|rows| rows.hosts.push((0, "[]".to_owned())), "host 0");
}

#[test]
fn other_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("storage.redb");
    std::fs::write(&path, [7; 10_000]).unwrap();
    let error = Storage::open(&path, directory.path()).unwrap_err().to_string();
    assert!(error.contains("storage.redb"), "{error}");
}

/// A saved ledger, and the file as it was before the last transaction.
fn two_states(directory: &Path) -> (PathBuf, Vec<u8>) {
    let path = directory.join("storage.redb");
    let new = ledger();
    Storage::open(&path, directory).unwrap().save(None, &new).unwrap();
    let before = std::fs::read(&path).unwrap();
    let mut storage = Storage::open(&path, directory).unwrap();
    storage.load(true).unwrap();
    storage.save(Some(&new), &used(&new)).unwrap();
    (path, before)
}

#[test]
fn an_earlier_state_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (path, before) = two_states(directory.path());
    std::fs::write(&path, before).unwrap();
    let error = Storage::open(&path, directory.path()).unwrap().load(true).unwrap_err().to_string();
    assert!(error.contains("earlier state") && error.contains("pool manager recover"), "{error}");
}

#[test]
fn a_new_ledger_beside_files_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = two_states(directory.path());
    std::fs::remove_file(&path).unwrap();
    let error = Storage::open(&path, directory.path()).unwrap().load(true).unwrap_err().to_string();
    assert!(error.contains("it is new"), "{error}");
    std::fs::remove_file(directory.path().join(mark::NAME)).unwrap();
    assert!(Storage::open(&path, directory.path()).unwrap().load(true).is_err(), "files without a mark");
    assert_eq!(Storage::open(&path, directory.path()).unwrap().load(false).unwrap(), None, "an empty directory");
}

#[test]
fn files_without_a_mark_are_refused_once_there_was_one() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = two_states(directory.path());
    std::fs::remove_file(directory.path().join(mark::NAME)).unwrap();
    assert!(Storage::open(&path, directory.path()).unwrap().load(true).is_err());
    assert!(Storage::open(&path, directory.path()).unwrap().load(false).unwrap().is_some(), "after a reboot there are no files either");
}

#[test]
fn nothing_is_written_if_nothing_has_changed() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = two_states(directory.path());
    let mut storage = Storage::open(&path, directory.path()).unwrap();
    let stored = storage.load(true).unwrap().unwrap();
    let chain = storage.chain;
    storage.save(None, &restored(stored)).unwrap();
    assert_eq!(storage.chain, chain);
}

#[test]
fn a_ledger_of_an_earlier_version_gets_a_chain() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = two_states(directory.path());
    let mut storage = Storage::open(&path, directory.path()).unwrap();
    let stored = storage.load(true).unwrap().unwrap();
    let transaction = storage.database().unwrap().begin_write().unwrap();
    let about = format!("{{\"schema\":1,\"slice_bytes\":{},\"next_vm\":{}}}", stored.slice_bytes.0, stored.next_vm);
    transaction.open_table(ABOUT).unwrap().insert("pool", about.as_bytes()).unwrap();
    transaction.commit().unwrap();
    drop(storage);
    std::fs::remove_file(directory.path().join(mark::NAME)).unwrap();
    let mut storage = Storage::open(&path, directory.path()).unwrap();
    assert_eq!(storage.load(true).unwrap().unwrap(), stored);
    storage.save(None, &restored(stored.clone())).unwrap();
    assert_eq!(storage.chain.sequence, 1);
    drop(storage);
    assert_eq!(Storage::open(&path, directory.path()).unwrap().load(true).unwrap().unwrap(), stored);
}
