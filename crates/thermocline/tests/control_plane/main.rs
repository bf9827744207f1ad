//! A scheduler with a standby and the managers of its pools as processes: VMs of a trace are placed live as they are simulated,
//! while the scheduler that serves is killed again and again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

mod cluster;
mod drive;
mod simulated;

use serde_json::json;

/// The size of a test.
#[derive(Clone, Copy)]
struct Size {
    hosts: u32,
    /// Hosts that share a pool.
    per_pool: u32,
    vms: u64,
    kills: u32,
    /// Longest time from a kill of the scheduler to the next answer, in seconds; `None` where other work may delay it.
    failover_max: Option<f64>,
}

fn run(size: Size) {
    let plan = simulated::plan(&size);
    let cluster = cluster::Cluster::start(&size);
    let outcome = drive::drive(&plan, cluster, &size);
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    let ratio = outcome.as_simulated as f64 / size.vms as f64;
    let result = json!({
        "hosts": size.hosts,
        "vms": size.vms,
        "pools": size.hosts.div_ceil(size.per_pool),
        "placed_as_simulated_ratio": ratio,
        "refused": outcome.refused,
        "all_local": plan.iter().filter(|vm| vm.fell_back()).count(),
        "failovers": outcome.failovers.len(),
        "failover_seconds_max": outcome.failovers.iter().copied().fold(0.0, f64::max),
        "double_owned": outcome.double_owned,
        "requests_lost": outcome.lost.len(),
        "replay_differs": outcome.replay_differs,
        "simulation_differs": outcome.simulation_differs,
    });
    println!("{result:#}");
    if let Some(path) = std::env::var_os("CONTROL_PLANE_RESULT") {
        std::fs::write(path, format!("{result:#}\n")).unwrap();
    }
    assert!(outcome.lost.is_empty(), "{:?}", outcome.lost);
    assert_eq!((outcome.as_simulated, outcome.double_owned), (size.vms, 0));
    assert_eq!((outcome.replay_differs, outcome.simulation_differs), (0, 0));
    assert_eq!(outcome.failovers.len(), size.kills as usize);
    let within = |seconds: &f64| size.failover_max.is_none_or(|most| *seconds < most);
    assert!(outcome.failovers.iter().all(within), "{:?}", outcome.failovers);
    // The test is of a cluster that is short: some VMs fit nowhere, and some get no slices.
    assert!(outcome.refused > 0 && plan.iter().any(simulated::Planned::fell_back), "the cluster is not short of anything");
}

#[test]
fn vms_are_placed_as_simulated_while_the_scheduler_is_killed() {
    run(Size { hosts: 24, per_pool: 16, vms: 300, kills: 3, failover_max: None });
}

/// `make test-control-plane`.
#[test]
#[ignore = "takes minutes"]
fn a_thousand_hosts_and_ten_thousand_vms() {
    run(Size { hosts: 1_000, per_pool: 32, vms: 10_000, kills: 50, failover_max: Some(2.0) });
}
