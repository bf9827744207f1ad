//! Division of a guest's memory by prediction.

use super::*;
use crate::share::Why;
use crate::vm::Record;

/// A request that the model of the tests predicts for, if its customer has a history.
pub(super) fn of_customer(host: &Host, name: &str, customer: u64) -> Record {
    let vm = predict::Request {
        customer: Some(customer),
        vm_type: Some("F2".to_owned()),
        guest_os: Some("linux-c".to_owned()),
        location: Some("region-e".to_owned()),
        arrival: 731_454,
        ..request(name, 4096, None).vm
    };
    host.start(Request { vm, ..request(name, 4096, None) }).unwrap()
}

#[test]
fn a_customer_without_a_history_gets_one_by_its_guests() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    drop(host);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../predict/testdata/untouched.onnx");
    let again = |least_life| {
        let settings = Settings { local: Bytes(16 << 30), least_life, ..settings() };
        host_with(&simulated, settings, Some(Models::load(&model, None)))
    };
    let host = again(Duration::ZERO);
    simulated.world().usage = Usage { local_touched_bytes: Bytes::mib(1800), ..Usage::default() };
    for number in 0..50 {
        let name = format!("vm-{number}");
        let record = of_customer(&host, &name, 5);
        if number < 3 {
            assert_eq!(record.share.why, Why::NoPrediction, "guest {number} has no predecessors that are enough");
        }
        if number % 2 == 0 {
            host.stop(&name, Duration::ZERO).unwrap();
        } else {
            // Its process exits by itself after a sample.
            host.watch(|| true);
            simulated.world().alive.clear();
            host.check_guests();
        }
    }
    let record = of_customer(&host, "vm-50", 5);
    assert!(record.share.slices > Slices(0), "{}", events(&host, "vm-50"));
    assert_eq!(of_customer(&host, "other", 6).share.why, Why::NoPrediction);
    host.stop("vm-50", Duration::ZERO).unwrap();
    drop(host);
    // The history outlives the daemon, and guests that ran for less than asked do not count.
    assert!(of_customer(&again(Duration::ZERO), "vm-51", 5).share.slices > Slices(0));
    assert_eq!(of_customer(&again(Duration::from_secs(600)), "vm-52", 5).share.why, Why::NoPrediction);
}

#[test]
fn an_import_reads_the_lives_of_a_host() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    simulated.world().usage = Usage { local_touched_bytes: Bytes::mib(256), ..Usage::default() };
    for name in ["a", "b"] {
        let vm = predict::Request { customer: Some(7), guest_os: Some("debian".to_owned()), ..request(name, 1024, None).vm };
        host.start(Request { vm, ..request(name, 1024, None) }).unwrap();
        host.stop(name, Duration::ZERO).unwrap();
    }
    // A crash has cut the last line; the next guest begins a new one.
    let lives = directory.path().join("state/lives.jsonl");
    let mut text = std::fs::read_to_string(&lives).unwrap();
    text.push_str("{\"guest_life\":1,\"host\":");
    std::fs::write(&lives, text).unwrap();
    let host = restarted(&simulated);
    host.start(request("c", 1024, None)).unwrap();
    host.stop("c", Duration::ZERO).unwrap();
    let to = directory.path().join("vms.parquet");
    let report = vmtrace::import::import(&[lives], &to, &vmtrace::import::Options::default(), &mut |_, _| {}).unwrap();
    assert_eq!((report.vms, report.bad_rows_total, report.formats), (3, 1, vec!["guests of pool hosts"]));
    let trace = vmtrace::Trace::open(&to).unwrap();
    let vms: Vec<_> = trace.vms().map(Result::unwrap).collect();
    assert_eq!(vms.iter().map(|vm| vm.customer).collect::<Vec<_>>(), [Some(7), Some(7), None]);
    assert!(vms.iter().all(|vm| vm.untouched_ratio == Some(0.75) && vm.departure.is_some()), "{vms:?}");
    assert_eq!(trace.about().names.guest_os, ["debian"]);
}

#[test]
fn pool_memory_is_predicted_unless_requested() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    drop(host);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../predict/testdata/untouched.onnx");
    let host = host_with(&simulated, Settings { local: Bytes(16 << 30), ..settings() }, Some(Models::load(&model, None)));
    let unknown = request("unknown", 4096, None).vm;
    let known = predict::Request {
        customer: Some(5),
        vm_type: Some("F2".to_owned()),
        guest_os: Some("linux-c".to_owned()),
        location: Some("region-e".to_owned()),
        arrival: 731_454,
        history: Some(vec![0.6, 0.5, 0.6, 0.4, 0.6, 0.6, 0.6, 0.6]),
        ..unknown.clone()
    };
    let check = |name: &str, vm: predict::Request, slices: u32, why: Why| {
        let record = host.start(Request { vm, ..request(name, 4096, None) }).unwrap();
        assert_eq!((record.share.slices, record.share.why), (Slices(slices), why), "{}", events(&host, name));
        assert_eq!(record.local_bytes() + Slices(slices).bytes(SLICE), Bytes::mib(4096));
        host.stop(name, Duration::ZERO).unwrap();
    };
    // 21 % of 4 GiB, in whole slices.
    check("known", known.clone(), 6, Why::Untouched);
    check("unknown", unknown, 0, Why::NoPrediction);
    simulated.world().free = 5;
    check("short", known.clone(), 0, Why::PoolShort);
    simulated.world().free = 8;
    simulated.world().manager_unreachable = true;
    let record = host.start(Request { vm: known, ..request("away", 4096, None) }).unwrap();
    assert_eq!((record.share.slices, record.share.why), (Slices(0), Why::NoManager));
    // The manager may have received the request, so the slices are returned.
    assert!(record.assigned);
    simulated.world().manager_unreachable = false;
    host.check_guests();
    assert!(!host.explain("away").unwrap().assigned);
}
