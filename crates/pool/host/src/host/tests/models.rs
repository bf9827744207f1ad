//! Models that are replaced while the host runs, and models that fail.

use super::predictions::of_customer;
use super::*;
use crate::share::Why;

/// The model of the tests. Its training ended at 691,200 s, and up to 5 % of its guests may touch their pool memory.
fn model() -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../predict/testdata/untouched.onnx")).unwrap()
}

/// The same model, as if its training ended a second later.
fn next_model() -> Vec<u8> {
    let text = b"\"trained_until\": 691200";
    let mut bytes = model();
    let at = bytes.windows(text.len()).position(|found| found == text).unwrap();
    bytes[at + text.len() - 1] = b'1';
    bytes
}

/// A host whose model is in `file`, and a customer whose guests leave more than half of their memory untouched.
fn host_of(simulated: &Simulated, file: &Path) -> Host {
    host_with(simulated, Settings { local: Bytes(16 << 30), ..settings() }, Some(Models::load(file, None)))
}

fn with_history(host: &Host, simulated: &Simulated) {
    simulated.world().usage = Usage { local_touched_bytes: Bytes::mib(1800), ..Usage::default() };
    for name in ["one", "two", "three"] {
        of_customer(host, name, 5);
        host.stop(name, Duration::ZERO).unwrap();
    }
}

#[test]
fn a_model_that_has_changed_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    drop(host);
    let file = directory.path().join("untouched.onnx");
    let host = host_of(&simulated, &file);
    with_history(&host, &simulated);
    let mut number = 0;
    let mut check = |why: Why, trained_until: Option<i64>| {
        host.refresh_models();
        number += 1;
        let record = of_customer(&host, &format!("vm-{number}"), 5);
        assert_eq!((record.share.why, record.model), (why, trained_until.filter(|_| why == Why::Untouched)));
        assert_eq!(host.list().model.map(|model| model.trained_until), trained_until);
        host.stop(&record.request.name, Duration::ZERO).unwrap();
    };
    check(Why::NoPrediction, None);
    std::fs::write(&file, model()).unwrap();
    check(Why::Untouched, Some(691_200));
    // A damaged file leaves the model in use, one that is gone has been withdrawn.
    std::fs::write(&file, b"damaged").unwrap();
    check(Why::Untouched, Some(691_200));
    std::fs::remove_file(&file).unwrap();
    check(Why::NoPrediction, None);
    std::fs::write(&file, next_model()).unwrap();
    check(Why::Untouched, Some(691_201));
}

#[test]
fn a_model_whose_guests_touch_their_pool_memory_is_left_until_there_is_another() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    drop(host);
    let file = directory.path().join("untouched.onnx");
    std::fs::write(&file, model()).unwrap();
    let host = host_of(&simulated, &file);
    with_history(&host, &simulated);
    // 40 MiB of 768 MiB is more than the 5 % that are tolerated, and 30 MiB is not.
    for (name, touched, why) in [
        ("a", 30, Why::Untouched),
        ("b", 40, Why::Untouched),
        ("c", 40, Why::Untouched),
        ("d", 40, Why::Untouched),
        ("e", 40, Why::Untouched),
        ("f", 40, Why::ModelFailed),
    ] {
        let record = of_customer(&host, name, 5);
        assert_eq!(record.share.why, why, "{name}: {}", events(&host, name));
        simulated.world().usage = Usage { local_touched_bytes: Bytes::mib(1800), ..touched_and_accessed(touched, 0) };
        // The last one runs on, and is counted all the same.
        if name == "e" {
            host.watch(|| true);
        } else {
            host.stop(name, Duration::ZERO).unwrap();
        }
    }
    let shown = host.list().model.unwrap();
    assert_eq!((shown.guests, shown.guests_touched, shown.target_ppm, shown.failed), (4, 3, RatioPpm(50_000), true));
    let metrics = crate::metrics::render(&host).unwrap();
    assert!(metrics.contains("thermocline_pool_host_model_failed 1"), "{metrics}");
    // A restart changes nothing, another model does.
    host.stop("e", Duration::ZERO).unwrap();
    drop(host);
    let host = host_of(&simulated, &file);
    assert_eq!(of_customer(&host, "g", 5).share.why, Why::ModelFailed);
    std::fs::write(&file, next_model()).unwrap();
    host.refresh_models();
    assert_eq!(of_customer(&host, "h", 5).share.why, Why::Untouched);
}
