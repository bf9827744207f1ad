use proptest::prelude::*;

use pool::{Config, EmcId, Slices};

use super::*;

const SECOND: u64 = 1_000_000_000;

fn at(second: u64) -> Ns {
    Ns(second * SECOND)
}

/// Two EMCs of four slices, hosts a and b, leases of ten seconds.
fn ledger() -> Ledger {
    let config = Config {
        emc_slices: vec![Slices(4), Slices(4)],
        hosts: 2,
        buffer_slices: Slices::ZERO,
        answer_within: at(5),
        ask_again_after: at(20),
    };
    let hosts = ["a", "b"].map(|name| Host { name: name.to_owned(), ..Host::default() });
    let terms = Terms { lease: at(10), hosts: vec!["a".to_owned(), "b".to_owned()], host_slices: None };
    let layout = Layout { directory: "/pool".into(), slice_bytes: units::Bytes(1 << 30), devices: Vec::new() };
    Ledger::new(Pool::new(config), hosts.to_vec(), BTreeMap::new(), 1, terms, layout, Ns(0))
}

fn lease(host: &str) -> Request {
    Request::Lease { host: host.to_owned(), instance: "test".to_owned() }
}

fn assign(host: &str, epoch: u64, request: &str, vm: &str, slices: u32) -> Request {
    Request::Assign { host: host.to_owned(), epoch, request: request.to_owned(), vm: vm.to_owned(), slices: Slices(slices) }
}

fn give_back(host: &str, epoch: u64, request: &str, vm: &str) -> Request {
    Request::Return { host: host.to_owned(), epoch, request: request.to_owned(), vm: vm.to_owned() }
}

fn slice(emc: u16, index: u32) -> SliceId {
    SliceId { emc: EmcId(emc), index }
}

fn code(outcome: Result<Response, ErrorResponse>) -> Code {
    outcome.unwrap_err().error
}

#[test]
fn the_epoch_of_an_expired_lease_is_void() {
    let mut ledger = ledger();
    let renew = |epoch| Request::Renew { host: "a".to_owned(), epoch };
    assert_eq!(code(ledger.apply(at(0), &renew(0))), Code::Fenced);
    ledger.apply(at(0), &lease("a")).unwrap();
    ledger.apply(at(9), &renew(1)).unwrap();
    ledger.apply(at(18), &assign("a", 1, "r", "vm", 1)).unwrap();
    assert_eq!(code(ledger.apply(at(19), &renew(1))), Code::Fenced, "also before the next tick");
    ledger.apply(at(19), &lease("a")).unwrap();
    assert_eq!(code(ledger.apply(at(19), &renew(1))), Code::Fenced);
    ledger.apply(at(20), &Request::Tick).unwrap();
    ledger.apply(at(20), &renew(2)).unwrap();
    ledger.apply(at(30), &Request::Tick).unwrap();
    assert!(!ledger.hosts[0].leased);
    assert_eq!(code(ledger.apply(at(30), &renew(2))), Code::Fenced);
}

#[test]
fn a_device_is_repaired_while_no_machine_may_have_it_online() {
    let mut ledger = ledger();
    ledger.layout = Arc::new(Layout { devices: vec![Some("/dev/dax0.0".into())], ..ledger.layout().clone() });
    ledger.apply(at(0), &lease("a")).unwrap();
    ledger.apply(at(0), &assign("a", 1, "r", "vm", 4)).unwrap();
    for emc in [0, 1] {
        ledger.apply(at(1), &Request::EmcFailed(EmcId(emc))).unwrap();
    }
    // Slices in files have locks, which say who uses them.
    ledger.apply(at(1), &Request::EmcRepaired(EmcId(1))).unwrap();
    let refused = ledger.apply(at(1), &Request::EmcRepaired(EmcId(0))).unwrap_err();
    assert!(refused.error == Code::Conflict && refused.message.contains("a has a lease"), "{}", refused.message);
    ledger.apply(at(100), &Request::EmcRepaired(EmcId(0))).unwrap();
}

#[test]
fn a_host_gets_no_more_than_it_may_have() {
    let mut ledger = ledger();
    ledger.terms = Arc::new(Terms { host_slices: Some(Slices(3)), ..(*ledger.terms).clone() });
    for host in ["a", "b"] {
        ledger.apply(at(0), &lease(host)).unwrap();
    }
    ledger.apply(at(0), &assign("a", 1, "r", "one", 2)).unwrap();
    let refused = ledger.apply(at(0), &assign("a", 1, "s", "two", 2)).unwrap_err();
    assert!(refused.error == Code::Short && refused.message.contains("a has 2 slices and may have 3"), "{}", refused.message);
    ledger.apply(at(0), &assign("a", 1, "s", "two", 1)).unwrap();
    ledger.apply(at(0), &assign("b", 1, "r", "one", 3)).unwrap();
    // The same request again has the same answer; what is going offline still counts.
    ledger.apply(at(1), &assign("a", 1, "r", "one", 2)).unwrap();
    ledger.apply(at(1), &give_back("a", 1, "t", "one")).unwrap();
    assert_eq!(code(ledger.apply(at(1), &assign("a", 1, "u", "three", 1))), Code::Short);
    let offlined = Request::Offlined { host: "a".to_owned(), epoch: 1, slice: slice(0, 0), generation: Generation(1) };
    ledger.apply(at(1), &offlined).unwrap();
    ledger.apply(at(1), &assign("a", 1, "u", "three", 1)).unwrap();
}

#[test]
fn slices_of_devices_are_reclaimed_by_the_word_of_an_operator_alone() {
    let mut ledger = ledger();
    let layout = Layout { devices: vec![Some("/dev/dax0.0".into())], ..ledger.layout().clone() };
    ledger.layout = Arc::new(layout);
    let fenced = |host: &str| Request::HostFenced(host.to_owned());
    ledger.apply(at(0), &lease("a")).unwrap();
    // EMC 0 is a device; the other one has files.
    ledger.apply(at(0), &assign("a", 1, "r", "vm", 4)).unwrap();
    ledger.apply(at(0), &assign("a", 1, "s", "other", 2)).unwrap();
    let owned = |ledger: &Ledger| ledger.pool().slices().filter(|(_, record)| record.state.owner().is_some()).count();
    assert_eq!((owned(&ledger), code(ledger.apply(at(9), &fenced("a")))), (6, Code::Conflict));
    assert_eq!(code(ledger.apply(at(9), &fenced("c"))), Code::NotFound);
    let unguarded: Vec<_> = ledger.unguarded(at(100)).map(|(slice, _)| slice.emc).collect();
    assert_eq!(unguarded, [EmcId(1), EmcId(1)], "a lock shows nothing about a device");
    ledger.apply(at(100), &fenced("a")).unwrap();
    assert_eq!((owned(&ledger), ledger.to_scrub().count()), (2, 4));
    assert_eq!(ledger.to_scrub().next().unwrap().0.emc, EmcId(0));
    // Again, or of a host that has none: nothing to do.
    ledger.apply(at(100), &fenced("a")).unwrap();
    ledger.apply(at(100), &fenced("b")).unwrap();
    let Response::Lease(back) = ledger.apply(at(101), &lease("a")).unwrap() else { panic!("no lease") };
    assert!(back.assignments.iter().all(|assignment| assignment.slices.iter().all(|slice| slice.emc == 1)));
}

#[test]
fn only_slices_of_hosts_without_a_lease_are_reclaimed() {
    let mut ledger = ledger();
    let abandoned = |index| Request::Abandoned { slice: slice(0, index), generation: Generation(1) };
    ledger.apply(at(0), &lease("a")).unwrap();
    ledger.apply(at(0), &assign("a", 1, "r", "vm", 2)).unwrap();
    assert_eq!(ledger.unguarded(at(9)).count(), 0);
    assert_eq!(code(ledger.apply(at(9), &abandoned(0))), Code::Stale);
    assert_eq!(ledger.unguarded(at(10)).count(), 2, "also before the next tick");
    ledger.apply(at(10), &abandoned(0)).unwrap();
    // The host has a new lease: the remaining slices are its own, and the assignment reports the one that is missing.
    let Response::Lease(back) = ledger.apply(at(11), &lease("a")).unwrap() else { panic!() };
    assert_eq!((back.assignments[0].asked, back.assignments[0].slices.len()), (Slices(2), 1));
    assert_eq!(code(ledger.apply(at(11), &abandoned(1))), Code::Stale);
    assert_eq!(code(ledger.apply(at(11), &assign("a", 2, "r", "vm", 2))), Code::Over);
}

#[test]
fn late_requests_change_nothing() {
    let mut ledger = ledger();
    ledger.apply(at(0), &lease("a")).unwrap();
    let first = assign("a", 1, "r1", "vm", 1);
    ledger.apply(at(0), &first).unwrap();
    let back = give_back("a", 1, "r2", "vm");
    ledger.apply(at(1), &back).unwrap();
    assert_eq!(code(ledger.apply(at(1), &first)), Code::Over);
    ledger.apply(at(1), &assign("a", 1, "r3", "vm", 1)).unwrap();
    ledger.apply(at(2), &back).unwrap();
    assert_eq!(ledger.pool().counts().online, 1, "the repeated first return does not return the second assignment");
    // A new epoch voids them, so they are no longer kept.
    ledger.apply(at(3), &lease("a")).unwrap();
    assert!(ledger.hosts[0].ended.is_empty());
    assert_eq!(code(ledger.apply(at(3), &back)), Code::Fenced);
}

#[test]
fn completed_requests_are_limited() {
    let mut ledger = ledger();
    ledger.apply(at(0), &lease("a")).unwrap();
    for round in 0..ENDED_MAX as u64 {
        ledger.apply(at(0), &assign("a", 1, &format!("r{round}"), "vm", 1)).unwrap();
        ledger.apply(at(0), &give_back("a", 1, &format!("d{round}"), "vm")).unwrap();
        let (slice, generation) =
            ledger.pool().slices().find(|(_, record)| record.state.owner().is_some()).map(|(id, of)| (id, of.generation)).unwrap();
        ledger.apply(at(0), &Request::Offlined { host: "a".to_owned(), epoch: 1, slice, generation }).unwrap();
        ledger.apply(at(0), &Request::Scrubbed { slice, generation }).unwrap();
    }
    assert_eq!(ledger.hosts[0].ended.len(), ENDED_MAX);
    assert_eq!((ledger.pool().counts().free, ledger.vms.len()), (8, 0));
}

/// Any request of two hosts, an operator and the maintenance, in any order.
fn any_request() -> impl Strategy<Value = Request> {
    let host = || prop_oneof![Just("a"), Just("b"), Just("z")];
    let name = || (0u32..4).prop_map(|name| format!("n{name}"));
    let place = || (0u16..3, 0u32..5, 0u32..4).prop_map(|(emc, index, generation)| (slice(emc, index), Generation(generation)));
    prop_oneof![
        2 => host().prop_map(lease),
        2 => (host(), 0u64..4).prop_map(|(host, epoch)| Request::Renew { host: host.to_owned(), epoch }),
        6 => (host(), 0u64..4, name(), name(), 0u32..4).prop_map(|(host, epoch, r, vm, n)| assign(host, epoch, &r, &vm, n)),
        4 => (host(), 0u64..4, name(), name()).prop_map(|(host, epoch, r, vm)| give_back(host, epoch, &r, &vm)),
        4 => (host(), 0u64..4, place()).prop_map(|(host, epoch, (slice, generation))| Request::Offlined { host: host.to_owned(), epoch, slice, generation }),
        2 => (host(), 0u64..4, place()).prop_map(|(host, epoch, (slice, generation))| {
            Request::OfflineFailed { host: host.to_owned(), epoch, slice, generation, why: "because".to_owned() }
        }),
        4 => place().prop_map(|(slice, generation)| Request::Scrubbed { slice, generation }),
        2 => place().prop_map(|(slice, generation)| Request::Abandoned { slice, generation }),
        2 => Just(Request::Tick),
        1 => (0u16..3).prop_map(|emc| Request::EmcFailed(EmcId(emc))),
        1 => (0u16..3).prop_map(|emc| Request::EmcRepaired(EmcId(emc))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_ledger_is_consistent_after_any_requests(requests in proptest::collection::vec((any_request(), 0u64..4), 0..80)) {
        let mut ledger = ledger();
        let mut now = 0;
        for (request, pause) in requests {
            now += pause;
            let before = ledger.clone();
            let outcome = ledger.apply(at(now), &request);
            prop_assert!(outcome.is_ok() || ledger == before, "a refusal changes nothing: {request:?}");
            prop_assert_eq!(ledger.pool().audit(), Ok(()));
            // The ledger has the same VMs as the state machine.
            prop_assert!(ledger.vms.keys().eq(ledger.pool().leases().keys()));
            // A repeated request has the same response, and changes nothing.
            if matches!(request, Request::Assign { .. } | Request::Return { .. }) && outcome.is_ok() {
                let after = ledger.clone();
                prop_assert_eq!(ledger.apply(at(now), &request), outcome);
                prop_assert_eq!(&ledger, &after);
            }
            prop_assert!(before.pool().leases().iter().all(|(vm, _)| vm.0 < ledger.next_vm));
        }
    }
}
