use placement::{Mode, Shape};
use proptest::prelude::*;

use super::*;
use crate::api::Together;
use crate::event::{Domain, PoolOfHosts};

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
        domains: Vec::new(),
    }
}

fn request(vm: &str, cores: u32, gib: u64, pool: u64) -> VmRequest {
    VmRequest { vm: vm.to_owned(), cores, memory_bytes: Bytes::gib(gib), pool_bytes: Bytes::gib(pool), spread: None }
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

/// Four pools of two hosts with two slices each; hosts of the first two pools are in one rack.
fn racks() -> Topology {
    let pool = |number: u32| PoolOfHosts {
        name: format!("p{number}"),
        slices: Slices(2),
        managed: false,
        hosts: (0..2).map(|host| format!("h{}", 2 * number + host)).collect(),
    };
    let rack = Domain { name: "rack".to_owned(), hosts: (0..4).map(|host| format!("h{host}")).collect() };
    Topology { pools: (0..4).map(pool).collect(), domains: vec![rack], ..topology() }
}

fn spread(vm: &str, pool: u64, limit: u32, mode: Mode) -> VmRequest {
    VmRequest { spread: Some(Spread { group: "web".to_owned(), limit, mode }), ..request(vm, 1, 2, pool) }
}

#[test]
fn vms_of_a_group_are_spread_over_domains_and_local_memory_does_not_fail_with_a_pool() {
    let mut state = State::new(racks()).unwrap();
    assert_eq!(decide(&mut state, &spread("one", 1, 1, Mode::Soft)), on("h0", 1));
    assert_eq!(decide(&mut state, &spread("two", 1, 1, Mode::Soft)), on("h4", 1), "h0 to h3 are of one rack");
    assert_eq!(decide(&mut state, &spread("three", 1, 1, Mode::Soft)), on("h6", 1));
    // Each pool has one of the group, and h5 fails with none of its hosts.
    assert_eq!(decide(&mut state, &spread("four", 1, 1, Mode::Soft)), on("h5", 0));
    let reason = state.vm("four").unwrap().reason;
    assert!(reason.contains("could give 1 slices within the limit of its group"), "{reason}");
    assert!(reason.contains("of web 1 VMs fail with h5 now, and at most 1 should"), "{reason}");
    decide(&mut state, &spread("five", 1, 1, Mode::Soft));
    // Every domain has one: the least that a soft limit is exceeded by.
    assert_eq!(decide(&mut state, &spread("six", 1, 1, Mode::Soft)), on("h5", 1), "of the hosts at which two fail, the fullest");
    let six = state.vm("six").unwrap();
    let together = six.spread.unwrap();
    assert_eq!((together.domain.as_str(), together.with_domain, together.with_pool, together.is_over()), ("h5", 2, 2, true));
    assert!(six.reason.contains("of web 2 VMs fail with h5 and 2 with p2 now, and at most 1 should"), "{}", six.reason);
    let status = state.status(None);
    assert_eq!((status.groups, status.over_limit, status.hosts[3].domain.as_str()), (1, 3, "rack"));
    assert_eq!(state.list().vms.iter().filter(|vm| vm.spread.as_ref().is_some_and(Together::is_over)).count(), 3);
    // A VM without a group does not count, and may be where two of web are.
    assert_eq!(decide(&mut state, &request("other", 1, 2, 0)), on("h5", 0));
}

#[test]
fn a_hard_limit_refuses_and_holds_for_later_vms_as_well() {
    let mut state = State::new(racks()).unwrap();
    for (vm, host) in [("one", "h0"), ("two", "h4"), ("three", "h5"), ("four", "h6"), ("five", "h7")] {
        assert_eq!(decide(&mut state, &spread(vm, 0, 1, Mode::Hard)), on(host, 0));
    }
    state.apply(&Event::Drained { host: "h7".to_owned(), drained: true }).unwrap();
    // Their own limits are soft or higher: those of running VMs count.
    for late in [spread("late", 0, 9, Mode::Hard), spread("late", 0, 1, Mode::Soft), spread("late", 1, 1, Mode::Hard)] {
        assert_eq!(decide(&mut state, &late), None);
        assert_eq!(
            state.full(&late).message,
            "no host can hold late: 7 hosts are in domains where one more VM of web would exceed a hard limit, 1 are drained; end other VMs, \
             add hosts or domains, or raise the limit"
        );
    }
    state.apply(&Event::Ended { vm: "three".to_owned() }).unwrap();
    assert_eq!(decide(&mut state, &spread("late", 0, 1, Mode::Soft)), on("h5", 0));
    for bad in [Spread { group: String::new(), limit: 1, mode: Mode::Soft }, Spread { group: "web".to_owned(), limit: 0, mode: Mode::Soft }]
    {
        assert_eq!(state.decide(&VmRequest { spread: Some(bad), ..request("x", 1, 1, 0) }).unwrap_err().error, Code::BadRequest);
    }
}

#[test]
fn requests_and_topologies_of_earlier_versions_are_read_and_written_unchanged() {
    let earlier = r#"{"vm":"one","cores":2,"memory_bytes":1073741824,"pool_bytes":0}"#;
    let parsed: VmRequest = serde_json::from_str(earlier).unwrap();
    assert_eq!((parsed.spread.is_none(), serde_json::to_string(&parsed).unwrap()), (true, earlier.to_owned()));
    let short = r#"{"vm":"one","cores":2,"memory_bytes":1073741824,"spread":{"group":"web"}}"#;
    let parsed: VmRequest = serde_json::from_str(short).unwrap();
    assert_eq!(parsed.spread, Some(Spread { group: "web".to_owned(), limit: 1, mode: Mode::Soft }));
    assert!(!serde_json::to_string(&topology()).unwrap().contains("domains"));
    let in_two = Domain { name: "other".to_owned(), hosts: vec!["h0".to_owned()] };
    let why = |domain: Domain| State::new(Topology { domains: vec![racks().domains.remove(0), domain], ..racks() }).unwrap_err().0;
    assert!(why(in_two).contains("h0 is in two domains"));
    assert!(why(Domain { name: "other".to_owned(), hosts: vec!["z".to_owned()] }).contains("has the host z, which is in no pool"));
}

/// VMs of each group by what fails together, and the least hard limit there, counted apart from the state.
fn counted(state: &State, group: &str) -> BTreeMap<String, (u32, u32)> {
    let mut counts = BTreeMap::new();
    for placed in state.list().vms {
        let Some(together) = placed.spread.filter(|together| together.group == group) else { continue };
        let host: u32 = placed.host[1..].parse().unwrap();
        let domain = if host < 4 { "rack".to_owned() } else { placed.host.clone() };
        let pool = (placed.pool_slices > Slices::ZERO).then(|| format!("p{}", host / 2));
        let hard = if together.mode == Mode::Hard { together.limit } else { u32::MAX };
        for domain in pool.into_iter().chain([domain]) {
            let (vms, least) = counts.entry(domain).or_insert((0, u32::MAX));
            (*vms, *least) = (*vms + 1, hard.min(*least));
        }
    }
    counts
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
                    let spread = Spread { group: format!("g{gib}"), limit: 1, mode: if pool == 0 { Mode::Hard } else { Mode::Soft } };
                    let request = VmRequest { spread: Some(spread).filter(|_| cores % 2 == 0), ..request(&vm, cores, gib, pool.min(gib)) };
                    if let Ok(event) = state.decide(&request) {
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

    /// Whatever arrives, leaves and is drained, no hard limit is exceeded, a soft one only if no host was within it, and a refusal has no
    /// host that could hold the VM.
    #[test]
    fn no_failure_takes_more_of_a_group_along_than_its_limits_permit(
        commands in prop::collection::vec((0u8..10, 0u32..40, 0u32..2, 0u64..3, 1u32..4, any::<bool>()), 1..150),
    ) {
        let mut state = State::new(racks()).unwrap();
        for (kind, number, group, pool, limit, is_hard) in commands {
            let vm = format!("vm-{number}");
            if kind < 6 {
                let mode = if is_hard { Mode::Hard } else { Mode::Soft };
                let group = format!("g{group}");
                let spread = Some(Spread { group: group.clone(), limit, mode });
                let request = VmRequest { spread, ..request(&vm, 1 + number % 4, 2 + u64::from(number % 3), pool) };
                let Ok(event) = state.decide(&request) else { continue };
                let counts = counted(&state, &group);
                let admitted = |host: u32, most: u32| {
                    let domain = if host < 4 { "rack".to_owned() } else { format!("h{host}") };
                    counts.get(&domain).is_none_or(|&(vms, least)| vms < most.min(least))
                };
                let fits = |host: u32| state.fleet.fit_on(state.numbers[&format!("h{host}")], &state.dimensions(0, &request, Slices::ZERO)).is_some();
                let within = |most: u32| (0..8).any(|host| fits(host) && admitted(host, most));
                let Event::Decided { on, .. } = &event else { unreachable!() };
                prop_assert!(on.is_some() || !within(if is_hard { limit } else { u32::MAX }), "refused although a host is within the limit");
                let over = on.as_ref().is_some_and(|on| state.is_over(&request, on));
                prop_assert!(!over || !(is_hard || within(limit)), "over the limit although a host is within it: {on:?}");
                state.apply(&event).unwrap();
                prop_assert_eq!(over, state.known(&request).is_some_and(|vm| state.placed(vm).spread.unwrap().is_over()));
                for (domain, (vms, least)) in counted(&state, &group) {
                    prop_assert!(vms <= least, "{vms} VMs of {group} fail with {domain}");
                }
            } else if kind < 9 {
                if state.vm(&vm).is_ok() {
                    state.apply(&Event::Ended { vm }).unwrap();
                }
            } else {
                state.apply(&Event::Drained { host: format!("h{}", number % 8), drained: is_hard }).unwrap();
            }
        }
    }
}
