//! Guests of which the processor counts what they do.

use super::*;

/// The host's next run, where something counts: what `perf` would tell of a workload of which the model is as sure as that.
fn with_counters(paper: &Paper, score: std::ops::RangeInclusive<f64>) -> Host {
    #[derive(serde::Deserialize)]
    struct Workload {
        counters: BTreeMap<String, f64>,
        score: Option<f64>,
    }
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../predict/testdata");
    let text = std::fs::read_to_string(testdata.join("insensitive.jsonl")).unwrap();
    let mut workloads = text.lines().map(|line| serde_json::from_str::<Workload>(line).unwrap());
    let workload = workloads.find(|workload| workload.score.is_some_and(|found| score.contains(&found))).unwrap();
    let told: Vec<_> = workload
        .counters
        .iter()
        .map(|(name, value)| format!("{{\"metric-value\" : \"{value}\", \"metric-unit\" : \"tma_{name}\"}}"))
        .collect();
    let perf = paper.1.join("perf");
    let script = format!("#!/bin/sh\n[ $1 = list ] && exec echo TopdownL1\ncat > \"$6\" <<'EOF'\n{}\nEOF\n", told.join("\n"));
    std::fs::write(&perf, script).unwrap();
    std::fs::set_permissions(&perf, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let roots = kernel::Roots::under(&paper.1);
    std::fs::create_dir_all(roots.sys.join("bus/event_source/devices/cpu")).unwrap();
    let predictor = Predictor::load(&testdata.join("untouched.onnx"), Some(&testdata.join("insensitive.onnx")));
    with(paper, settings(), Some(predictor)).with_counters(Perf::find(&roots, &perf).unwrap(), Duration::from_millis(100))
}

#[test]
fn counters_say_whether_a_guest_notices_the_pool() {
    let directory = tempfile::tempdir().unwrap();
    let (host, paper) = bench(directory.path());
    host.start(asks("a", 1024, Some(256))).unwrap();
    drop(host);
    let host = with_counters(&paper, 0.99..=1.0);
    host.watch(|| true);
    host.watch(|| true);
    assert_eq!(host.explain("a").unwrap().counted, None, "nobody counts what is at ease");
    paper.world().usage = Usage { pool_touched_bytes: 100 * MIB, pool_accessed_bytes: 50 * MIB, ..Usage::default() };
    host.watch(|| true);
    host.watch(|| false);
    let record = host.explain("a").unwrap();
    assert_eq!(record.looks.count, 2, "nobody looks once it is to end");
    assert_eq!(record.verdict, Some(Verdict::Insensitive), "{}", told(&host, "a"));
    assert!(record.counted.is_some_and(|counted| counted.insensitive && counted.counters.contains_key("DRAM_Bound")));
    assert!(
        told(&host, "a").contains("; by its counters, insensitive with probability 0.99") || told(&host, "a").contains("probability 1.00")
    );
    let text = crate::metrics::render(&host).unwrap();
    assert!(text.contains("counters_total{outcome=\"insensitive\"} 1"), "{text}");
    paper.world().usage.pool_accessed_bytes = 0;
    host.watch(|| true);
    let last = host.explain("a").unwrap().events.back().unwrap().what.clone();
    assert!(last.starts_with("TouchedOnce") && !last.contains("by its counters"), "{last}");
    paper.world().usage.pool_accessed_bytes = 50 * MIB;
    drop(host);
    // One that was given pool memory because it would not notice, and does.
    let host = with_counters(&paper, 0.0..=0.1);
    let mut held = host.hold("a", "being told").unwrap();
    held.share.insensitive = true;
    held.save().unwrap();
    drop(held);
    host.watch(|| true);
    assert!(host.explain("a").unwrap().repaired, "{}", told(&host, "a"));
}
