//! Round trips of files, damaged files, and files of other versions.

use std::path::Path;

use parquet::file::metadata::KeyValue;
use proptest::prelude::*;
use units::Bytes;

use crate::{About, CategoryNames, Error, Recorded, Sorter, Trace, Vm, Writer};

fn about() -> About {
    let names = CategoryNames { vm_types: vec!["small".to_owned()], ..CategoryNames::default() };
    About { origin: "test".to_owned(), ends: 9_000, names, ..About::default() }
}

fn vm(id: u64, arrival: i64) -> Vm {
    Vm { id, arrival, departure: Some(arrival + 60), cores: 2, memory_bytes: Bytes(7 << 29), ..Vm::default() }
}

fn full(id: u64, arrival: i64) -> Vm {
    Vm {
        departure: None,
        cluster: 7,
        customer: Some(1 << 62),
        vm_type: Some(0),
        guest_os: Some(1),
        location: Some(u16::MAX),
        untouched_ratio: Some(0.5),
        slowdown_64ns: Some(-0.01),
        slowdown_140ns: Some(1.25),
        recorded: Some(Box::new(Recorded {
            pool_bytes: Bytes::gib(1),
            requested_bytes: Bytes::gib(3),
            arrival_event: 7,
            departure_event: None,
        })),
        ..vm(id, arrival)
    }
}

fn write(path: &Path, vms: &[Vm]) {
    let mut writer = Writer::create(path).unwrap();
    vms.iter().for_each(|vm| writer.push(vm).unwrap());
    writer.finish(&about()).unwrap();
}

fn read(path: &Path) -> crate::Result<Vec<Vm>> {
    Trace::open(path)?.vms().collect()
}

#[test]
fn a_file_reads_back_as_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/t.parquet");
    let given = [vm(3, -5), full(1, 0), vm(2, 0), full(9, 70)];
    write(&path, &given);
    let trace = Trace::open(&path).unwrap();
    assert_eq!((trace.len(), trace.version(), trace.about()), (4, crate::schema::VERSION, &about()));
    assert_eq!(read(&path).unwrap(), given);
    write(&path, &[]);
    assert!(Trace::open(&path).unwrap().is_empty() && read(&path).unwrap().is_empty());
}

#[test]
fn the_writer_refuses_invalid_and_unordered_vms() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let mut writer = Writer::create(&path).unwrap();
    writer.push(&vm(2, 10)).unwrap();
    assert!(matches!(writer.push(&vm(1, 9)), Err(Error::Order { id: 1, arrival: 9, .. })));
    assert!(matches!(writer.push(&vm(2, 10)), Err(Error::Order { .. })), "a duplicate");
    let error = writer.push(&Vm { cores: 0, ..vm(3, 11) }).unwrap_err().to_string();
    assert!(error.contains("VM 3: cores is 0"), "{error}");
    drop(writer);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "an unfinished file leaves nothing behind");
}

#[test]
fn damaged_files_are_errors_and_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let given = [vm(1, 0), full(2, 5)];
    write(&path, &given);
    let whole = std::fs::read(&path).unwrap();
    for cut in 0..whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        assert!(read(&path).is_err(), "cut at {cut}");
    }
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        std::fs::write(&path, &damaged).unwrap();
        // Some bytes only change a value, and a few are unused; none may cause a panic.
        let _ = read(&path);
    }
}

#[test]
fn other_versions_and_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let about = serde_json::to_string(&about()).unwrap();
    let pair = |key: &str, value: &str| KeyValue::new(format!("thermocline.vmtrace_{key}"), value.to_owned());
    let check = |pairs: &[KeyValue], want: &str| {
        let error = crate::schema::parse_metadata(&path, Some(&pairs.to_vec())).unwrap_err().to_string();
        assert!(error.contains(want) && error.contains("t.parquet"), "{error}");
    };
    check(&[], "not a VM trace of thermocline");
    check(&[pair("version", "2"), pair("about", &about)], "has VM trace version 2; this program reads up to 1");
    check(&[pair("version", "one"), pair("about", &about)], "\"one\", which is not a number");
    check(&[pair("version", "1")], "vmtrace_about");
    check(&[pair("version", "1"), pair("about", "{")], "cannot be read");
}

#[test]
fn invalid_rows_are_named_in_the_error() {
    let check = |column: usize, number: i64, want: &str| {
        let mut row = crate::schema::row(&full(1, 0));
        row[column] = number;
        let error = crate::schema::vm(&row).unwrap_err();
        assert!(error.contains(want), "{error}");
    };
    check(0, -1, "id is -1");
    check(2, i64::MAX, "departure");
    check(2, -2, "departure");
    check(3, -1, "cores is -1");
    check(5, 1 << 40, "cluster");
    check(6, -2, "customer is -2");
    check(7, 65_536, "vm_type is 65536");
    check(10, 1_000_001, "untouched_ratio is 1.000001");
    check(12, i64::MIN, "slowdown_140ns");
    check(13, 1 << 33, "pool_bytes is 8589934592; it must be at most the pool memory");
    check(14, -1, "pool_requested_bytes is -1");
    check(15, -1, "arrival_event is -1");
    check(16, 9, "departure_event is 9");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// For any number of runs, the output is the sorted input.
    #[test]
    fn a_sorter_loses_nothing(arrivals in prop::collection::vec(-20_i64..20, 0..40), run_vms in 1_usize..12) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        let mut sorter = Sorter::with_runs(&path, run_vms);
        let mut given: Vec<_> = (0..).zip(&arrivals).map(|(id, &arrival)| if id % 3 == 0 { full(id, arrival) } else { vm(id, arrival) }).collect();
        for vm in &given {
            sorter.push(vm.clone()).unwrap();
        }
        prop_assert_eq!(sorter.finish(&about()).unwrap().vms, given.len() as u64);
        given.sort_by_key(Vm::order);
        prop_assert_eq!(read(&path).unwrap(), given);
        prop_assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "all runs are removed");
    }
}
