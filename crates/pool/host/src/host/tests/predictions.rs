//! Division of a guest's memory by prediction.

use super::*;
use crate::share::Why;

#[test]
fn pool_memory_is_predicted_unless_requested() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    drop(host);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../predict/testdata/untouched.onnx");
    let host = host_with(&simulated, Settings { local: Bytes(16 << 30), ..settings() }, Some(Predictor::load(&model, None)));
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
