//! Sampling of performance counters.

use super::*;
use crate::counters::Perf;

/// The host after a restart, with a stand-in for `perf` that reports a training workload whose predicted score is in
/// this range.
fn with_counters(simulated: &Simulated, score: std::ops::RangeInclusive<f64>) -> Host {
    #[derive(serde::Deserialize)]
    struct Workload {
        counters: BTreeMap<String, f64>,
        score: Option<f64>,
    }
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../predict/testdata");
    let text = std::fs::read_to_string(testdata.join("insensitive.jsonl")).unwrap();
    let mut workloads = text.lines().map(|line| serde_json::from_str::<Workload>(line).unwrap());
    let workload = workloads.find(|workload| workload.score.is_some_and(|found| score.contains(&found))).unwrap();
    let lines: Vec<_> = workload
        .counters
        .iter()
        .map(|(name, value)| format!("{{\"metric-value\" : \"{value}\", \"metric-unit\" : \"tma_{name}\"}}"))
        .collect();
    let script = format!("[ $1 = list ] && exec echo TopdownL1\ncat > \"$6\" <<'EOF'\n{}\nEOF", lines.join("\n"));
    let perf = crate::testing::script(&simulated.1, "perf", &script);
    let roots = kernel::Roots::under(&simulated.1);
    std::fs::create_dir_all(roots.sys.join("bus/event_source/devices/cpu")).unwrap();
    let predictor = Models::load(&testdata.join("untouched.onnx"), Some(&testdata.join("insensitive.onnx")));
    host_with(simulated, settings(), Some(predictor)).with_counters(Perf::find(&roots, &perf).unwrap(), Duration::from_millis(100))
}

#[test]
fn guests_of_a_workload_decide_about_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    drop(host);
    let host = with_counters(&simulated, 0.99..=1.0);
    let start = |host: &Host, name: &str, vm_type: &str| {
        let vm = predict::Request { customer: Some(5), vm_type: Some(vm_type.to_owned()), ..request(name, 512, None).vm };
        host.start(Request { vm, ..request(name, 512, None) }).unwrap().share.insensitive
    };
    for number in 0..5 {
        let name = format!("vm-{number}");
        assert!(!start(&host, &name, "F2"), "after {number} of them");
        host.watch(|| true);
        host.watch(|| true);
        assert!(host.explain(&name).unwrap().counted.is_some_and(|counted| counted.insensitive), "{}", events(&host, &name));
        if number > 0 {
            host.stop(&name, Duration::ZERO).unwrap();
        }
    }
    assert!(!start(&host, "other", "D4"), "another workload");
    host.stop("other", Duration::ZERO).unwrap();
    assert!(start(&host, "sixth", "F2"));
    host.stop("sixth", Duration::ZERO).unwrap();
    drop(host);
    // Guests that run and guests that have ended count after a restart. One that is sensitive is enough for the next one.
    let host = with_counters(&simulated, 0.0..=0.1);
    assert!(start(&host, "seventh", "F2"));
    host.watch(|| true);
    assert!(!start(&host, "eighth", "F2"));
}

#[test]
fn a_sample_that_fails_does_not_let_a_guest_speak_twice() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    drop(host);
    let host = with_counters(&simulated, 0.99..=1.0);
    let vm = predict::Request { customer: Some(5), ..request("a", 1024, None).vm };
    host.start(Request { vm, ..request("a", 1024, Some(256)) }).unwrap();
    host.watch(|| true);
    let sampled = host.explain("a").unwrap().counted;
    assert!(sampled.is_some());
    std::fs::write(simulated.1.join("perf"), "#!/bin/sh\nexit 1\n").unwrap();
    simulated.world().usage = touched_and_accessed(100, 50);
    host.watch(|| true);
    let record = host.explain("a").unwrap();
    assert_eq!(record.counted, sampled, "{}", events(&host, "a"));
    let text = crate::metrics::render(&host).unwrap();
    assert!(text.contains("counters_total{outcome=\"failed\"} 1"), "{text}");
}

#[test]
fn counters_decide_whether_a_guest_is_insensitive() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 1024, Some(256))).unwrap();
    drop(host);
    let host = with_counters(&simulated, 0.99..=1.0);
    host.watch(|| true);
    host.watch(|| true);
    assert_eq!(host.explain("a").unwrap().counted, None, "a guest within the tolerance is not sampled");
    simulated.world().usage = touched_and_accessed(100, 50);
    host.watch(|| true);
    host.watch(|| false);
    let record = host.explain("a").unwrap();
    assert_eq!(record.samples.count, 2, "no guest is sampled once the daemon must stop");
    assert_eq!(record.verdict, Some(Verdict::Insensitive), "{}", events(&host, "a"));
    assert!(record.counted.is_some_and(|counted| counted.insensitive && counted.counters.contains_key("DRAM_Bound")));
    assert!(
        events(&host, "a").contains("; by its counters, insensitive with probability 0.99")
            || events(&host, "a").contains("probability 1.00")
    );
    let text = crate::metrics::render(&host).unwrap();
    assert!(text.contains("counters_total{outcome=\"insensitive\"} 1"), "{text}");
    simulated.world().usage.pool_accessed_bytes = Bytes::ZERO;
    host.watch(|| true);
    let last = host.explain("a").unwrap().events.back().unwrap().what.clone();
    assert!(last.starts_with("TouchedOnce") && !last.contains("by its counters"), "{last}");
    simulated.world().usage.pool_accessed_bytes = Bytes::mib(50);
    drop(host);
    // A guest that was predicted to be insensitive, and is sensitive.
    let host = with_counters(&simulated, 0.0..=0.1);
    let mut guest = host.claim("a", "being tested").unwrap();
    guest.share.insensitive = true;
    guest.save().unwrap();
    drop(guest);
    host.watch(|| true);
    assert!(host.explain("a").unwrap().mitigated, "{}", events(&host, "a"));
}
