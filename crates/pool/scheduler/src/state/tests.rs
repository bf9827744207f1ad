use placement::Shape;
use proptest::prelude::*;

use super::*;
use crate::event::PoolOfHosts;

fn topology() -> Topology {
    let pool = |name: &str, hosts: &[&str]| PoolOfHosts {
        name: name.to_owned(),
        slices: Slices(4),
        managed: name == "managed",
        hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
    };
    Topology {
        shape: Shape { nodes: 2, node_cores: 4, node_mib: 8 << 10 },
        slice_bytes: Bytes::gib(1),
        strategy: placement::Strategy::BestFit,
        pools: vec![pool("counted", &["a", "b"]), pool("managed", &["c"])],
    }
}

fn request(vm: &str, cores: u32, gib: u64, pool: u64) -> VmRequest {
    VmRequest { vm: vm.to_owned(), cores, memory_bytes: Bytes::gib(gib), pool_bytes: Bytes::gib(pool) }
}

/// Decides and applies; returns the host and its slices.
fn decide(state: &mut State, request: &VmRequest) -> Option<(String, u32)> {
    let event = state.decide(request).unwrap();
    state.apply(&event).unwrap();
    let Event::Decided { on, .. } = event else { unreachable!() };
    on.map(|on| (on.host, on.slices.0))
}

fn on(host: &str, slices: u32) -> Option<(String, u32)> {
    Some((host.to_owned(), slices))
}

#[test]
fn a_vm_gets_slices_where_a_pool_has_them_and_local_memory_elsewhere() {
    let mut state = State::new(topology()).unwrap();
    assert_eq!(decide(&mut state, &request("one", 2, 6, 3)), on("a", 3));
    // Only one slice is left, and the manager of the other pool does not answer.
    let second = request("two", 2, 6, 3);
    assert_eq!(decide(&mut state, &second), on("a", 0));
    assert!(state.vm("two").unwrap().reason.contains("no host that could hold it had a pool that could give 3 slices"));
    state.apply(&Event::Grantable { pool: "managed".to_owned(), slices: Some(Slices(3)) }).unwrap();
    assert_eq!(decide(&mut state, &request("three", 2, 6, 3)), on("c", 3));
    // Less than what is counted: slices in release.
    state.apply(&Event::Grantable { pool: "managed".to_owned(), slices: Some(Slices(0)) }).unwrap();
    assert_eq!(decide(&mut state, &request("four", 1, 4, 1)), on("a", 1));
    assert_eq!(decide(&mut state, &request("five", 1, 4, 1)), on("c", 0), "on one NUMA node, which is not left on a");
    state.apply(&Event::Ended { vm: "one".to_owned() }).unwrap();
    let pools = state.status(None).pools;
    assert_eq!(pools.iter().map(|pool| (pool.used.0, pool.grantable.0, pool.answers)).collect::<Vec<_>>(), [(1, 3, true), (3, 0, true)]);
}

#[test]
fn requests_that_cannot_be_are_refused_with_the_reason() {
    let mut state = State::new(topology()).unwrap();
    let code = |state: &State, request: &VmRequest| state.decide(request).map(drop).map_err(|refused| refused.error);
    for bad in [
        request("", 1, 1, 0),
        request("x\u{1b}", 1, 1, 0),
        request("x", 0, 1, 0),
        request("x", 9, 1, 0),
        request("x", 1, 0, 0),
        request("x", 1, 1, 2),
    ] {
        assert_eq!(code(&state, &bad), Err(Code::BadRequest), "{bad:?}");
    }
    decide(&mut state, &request("x", 8, 16, 0));
    assert!(state.known(&request("x", 8, 16, 0)).is_some());
    assert_eq!(code(&state, &request("x", 8, 15, 0)), Err(Code::Conflict));
    state.apply(&Event::Drained { host: "b".to_owned(), drained: true }).unwrap();
    decide(&mut state, &request("y", 1, 15, 0));
    let big = request("z", 1, 15, 0);
    assert_eq!(decide(&mut state, &big), None);
    assert_eq!(
        state.full(&big).message,
        "no host can hold z: 1 hosts have not enough free cores, 1 hosts have not enough free local memory, 1 are drained; end other VMs, or add hosts"
    );
    assert_eq!(state.status(None).refused, 1);
    state.apply(&Event::Drained { host: "b".to_owned(), drained: false }).unwrap();
    assert_eq!(decide(&mut state, &big), on("b", 0));
    assert!(state.apply(&Event::Ended { vm: "nothing".to_owned() }).is_err());
}

#[test]
fn vms_keep_their_hosts_when_the_configuration_changes() {
    let mut state = State::new(topology()).unwrap();
    decide(&mut state, &request("one", 2, 6, 3));
    decide(&mut state, &request("two", 8, 16, 0));
    let mut larger = topology();
    larger.pools.insert(0, PoolOfHosts { name: "new".to_owned(), slices: Slices(1), managed: false, hosts: vec!["d".to_owned()] });
    larger.pools[1].hosts.reverse();
    let before = state.vm("one").unwrap();
    state.apply(&Event::Topology(larger)).unwrap();
    assert_eq!(state.vm("one").unwrap(), before);
    assert_eq!(state.host("b").unwrap().free_cores, 0);
    let mut without = topology();
    without.pools[0].hosts.remove(0);
    assert!(state.apply(&Event::Topology(without)).unwrap_err().0.contains("there is no host a"));
    let mut smaller = topology();
    smaller.shape.node_cores = 2;
    assert!(state.apply(&Event::Topology(smaller)).unwrap_err().0.contains("does not fit"));
}

proptest! {
    /// Whatever is requested, no host or pool is oversubscribed, and the events of a state make it again.
    #[test]
    fn events_make_the_same_state_again(commands in prop::collection::vec((0u8..8, 0u32..12, 1u32..5, 1u64..9, 0u64..5), 0..120)) {
        let mut state = State::new(topology()).unwrap();
        for (kind, vm, cores, gib, pool) in commands {
            let vm = format!("vm-{vm}");
            match kind {
                0..4 => {
                    if let Ok(event) = state.decide(&request(&vm, cores, gib, pool.min(gib))) {
                        state.apply(&event).unwrap();
                    }
                }
                4..6 => {
                    if state.vm(&vm).is_ok() {
                        state.apply(&Event::Ended { vm }).unwrap();
                    }
                }
                6 => state.apply(&Event::Drained { host: ["a", "b", "c"][cores as usize % 3].to_owned(), drained: pool % 2 == 0 }).unwrap(),
                _ => {
                    let slices = Some(Slices(cores)).filter(|_| pool > 0);
                    state.apply(&Event::Grantable { pool: "managed".to_owned(), slices }).unwrap();
                }
            }
            let used = state.vms.values().filter(|vm| state.fleet.pool_of(vm.placement.server).0 == 0).map(|vm| vm.slices.0).sum::<u32>();
            prop_assert!(used <= 4 && used == state.status(None).pools[0].used.0);
        }
        let mut again = None;
        for event in state.events() {
            crate::log_file::follow(&mut again, &event).unwrap();
        }
        let mut again = again.unwrap();
        (again.refused, again.requests) = (state.refused, state.requests);
        prop_assert_eq!(again, state);
    }
}
