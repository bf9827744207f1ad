//! Metrics of a host.

use super::*;

#[test]
fn metrics_report_state_and_events() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 1024, Some(256))).unwrap();
    assert!(host.start(request("b", 1024, Some(100))).is_err());
    simulated.world().usage = Usage { local_touched_bytes: Bytes::mib(760), ..touched_and_accessed(100, 0) };
    assert!(host.release("a").is_err());
    host.watch(|| true);
    let check = |lines: &[&str]| {
        let text = crate::metrics::render(&host).unwrap();
        for line in lines {
            assert!(text.lines().any(|found| found == format!("thermocline_pool_host_{line}")), "{line}: {text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    };
    check(&[
        "guests{state=\"running\"} 1",
        "starts_total{outcome=\"ok\"} 1",
        "starts_total{outcome=\"refused\"} 1",
        "releases_total{outcome=\"no_free_memory\"} 1",
        "verdicts_total{outcome=\"as_predicted\"} 1",
        "pool_bytes 268435456",
        "pool_touched_bytes 104857600",
        "local_bytes 2147483648",
        "local_used_bytes 805306368",
        "mitigations_left 1",
        "guests_mispredicted 0",
        "manager_unavailable 0",
    ]);
    let cpu = |of: &Host| of.counts().observation_cpu.get();
    simulated.world().usage.kernel_cpu = Duration::from_secs(3);
    let before = cpu(&host);
    host.watch(|| true);
    let observed = cpu(&host) - before;
    assert!((3.0..3.5).contains(&observed), "what a kernel thread used: {observed} s");
    assert!(crate::metrics::render(&host).unwrap().contains("\nthermocline_pool_host_observation_cpu_seconds_total 3."));
    simulated.world().usage.pool_accessed_bytes = Bytes::mib(100);
    simulated.world().move_fails = true;
    host.watch(|| true);
    check(&["mitigations_total{outcome=\"failed\"} 1", "guests_mispredicted 1", "verdicts_total{outcome=\"mitigate\"} 1"]);
    simulated.world().move_fails = false;
    host.watch(|| true);
    check(&[
        "mitigations_total{outcome=\"ok\"} 1",
        "guests_mitigated_total 1",
        "guests_started_total 1",
        "mitigations_left 0",
        "mitigation_pause_seconds_count 1",
        "pool_bytes 0",
        "guests_mispredicted 0",
    ]);
}
