use pool::Ns;

use super::*;
use crate::book::{Ask, Terms};
use crate::layout::Layout;

fn terms() -> Terms {
    Terms { lease: Ns(1 << 40), hosts: vec!["a".to_owned()] }
}

fn layout() -> Layout {
    Layout { directory: "/pool".into(), slice_bytes: Bytes(1 << 30) }
}

fn config() -> pool::Config {
    pool::Config { emc_slices: vec![3, 2], hosts: 1, buffer_slices: 0, answer_within: Ns(1), ask_again_after: Ns(1) }
}

fn book() -> Book {
    let host = Host { name: "a".to_owned(), ..Host::default() };
    Book::new(pool::Pool::new(config()), vec![host], BTreeMap::new(), 1, terms(), layout(), Ns(0))
}

fn restored(stored: Stored) -> Book {
    let pool = pool::Pool::restore(config(), stored.kept).unwrap();
    Book::new(pool, stored.hosts, stored.vms, stored.next_vm, terms(), layout(), Ns(0))
}

fn used(before: &Book) -> Book {
    let mut book = before.clone();
    let text = |text: &str| text.to_owned();
    let generation = book.pool().generation(SliceId { emc: EmcId(0), index: 0 }).unwrap();
    for ask in [
        Ask::Lease { host: text("a"), instance: text("one") },
        Ask::Assign { host: text("a"), epoch: 1, request: text("r1"), vm: text("first"), slices: 2 },
        Ask::Assign { host: text("a"), epoch: 1, request: text("r2"), vm: text("second"), slices: 2 },
        Ask::Return { host: text("a"), epoch: 1, request: text("r3"), vm: text("first") },
        Ask::Offlined { host: text("a"), epoch: 1, slice: SliceId { emc: EmcId(0), index: 0 }, generation: crate::files::next(generation) },
        Ask::EmcFailed(EmcId(1)),
    ] {
        book.follow(Ns(7), &ask).unwrap();
    }
    book
}

#[test]
fn what_is_written_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.redb");
    let mut ledger = Ledger::open(&path).unwrap();
    assert_eq!(ledger.load().unwrap(), None);
    let new = book();
    ledger.save(None, &new).unwrap();
    assert!(!restored(ledger.load().unwrap().unwrap()).differs(&new));
    let used = used(&new);
    ledger.save(Some(&new), &used).unwrap();
    assert!(matches!(Ledger::open(&path), Err(Error::InUse { .. })), "one manager per pool");
    drop(ledger);
    let stored = Ledger::open(&path).unwrap().load().unwrap().unwrap();
    assert_eq!(stored.hosts[0].ended, ["r1", "r3", "r2"], "the second VM ended with its EMC");
    assert!(stored.vms.is_empty() && stored.kept.works == [true, false]);
    assert!(!restored(stored).differs(&used));
}

#[test]
fn rows_that_cannot_be_are_named() {
    let check = |spoil: &dyn Fn(&mut Rows), piece: &str| {
        let row = serde_json::to_vec(&About { schema: SCHEMA, slice_bytes: Bytes(1), next_vm: 1 }).unwrap();
        let mut rows = Rows { about: row, emcs: vec![(0, b"true".to_vec())], ..Rows::default() };
        rows.stored(Path::new("ledger")).unwrap();
        spoil(&mut rows);
        let told = rows.stored(Path::new("ledger")).unwrap_err().to_string();
        assert!(told.contains(piece), "{told}");
    };
    check(&|rows| rows.about = b"{".to_vec(), "about");
    check(&|rows| rows.about = br#"{"schema":9,"slice_bytes":1,"next_vm":1}"#.to_vec(), "schema 9");
    check(&|rows| rows.emcs[0].0 = 1, "EMC 1: one before it is missing");
    check(&|rows| rows.emcs[0].1 = b"maybe".to_vec(), "EMC 0");
    let record = br#"{"state":"free","generation":0,"returned":null}"#.to_vec();
    check(&|rows| rows.slices.push((SliceId { emc: EmcId(0), index: 1 }, record.clone())), "slice 0/1: one before it is missing");
    check(&|rows| rows.slices.push((SliceId { emc: EmcId(3), index: 0 }, record.clone())), "slice 3/0");
    check(&|rows| rows.vms.push((5, b"{}".to_vec())), "VM 5");
    check(&|rows| rows.hosts.push((0, b"[]".to_vec())), "host 0");
}

#[test]
fn a_file_that_is_no_ledger_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.redb");
    std::fs::write(&path, [7; 10_000]).unwrap();
    let told = Ledger::open(&path).unwrap_err().to_string();
    assert!(told.contains("ledger.redb"), "{told}");
}
