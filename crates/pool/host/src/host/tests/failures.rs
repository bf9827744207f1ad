//! Failed starts, an unreachable manager, exits of guests, and restarts of the daemon.

use super::*;

#[test]
fn a_failed_start_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    let check = |request: Request, why: &str| {
        let found = host.start(request).unwrap_err().0;
        assert!(found.contains(why), "{found}");
        assert_eq!((simulated.world().free, host.list().guests.len(), host.list().local_used_bytes), (8, 0, Bytes::ZERO), "{why}");
    };
    check(request("a", 1024, Some(100)), "a multiple of the slice size");
    check(request("a", 1024, Some(896)), "at least 268435456 local");
    check(request("a", 4096, None), "bytes of local memory; 0 of");
    check(request("a", 2048 + 256, Some(9 * 128)), "Short");
    simulated.world().start_fails = true;
    check(request("a", 1024, Some(256)), "no KVM");
    simulated.world().start_fails = false;
    // Data of an earlier owner.
    std::fs::write(simulated.path(1), b"secret").unwrap();
    File::options().write(true).open(simulated.path(1)).unwrap().set_len(SLICE.0).unwrap();
    check(request("a", 1024, Some(256)), "was not scrubbed");
    // The lock of another process.
    let lock = File::open(simulated.path(0)).unwrap();
    lock.try_lock().unwrap();
    check(request("a", 1024, Some(128)), "in use");
}

#[test]
fn guests_run_and_stop_while_the_manager_is_unreachable() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 1024, Some(256))).unwrap();
    simulated.world().manager_unreachable = true;
    assert!(host.start(request("b", 512, Some(128))).unwrap_err().0.contains("no pool manager answers"));
    host.stop("a", Duration::ZERO).unwrap();
    assert_eq!(simulated.world().free, 6, "the manager is not informed yet");
    simulated.world().manager_unreachable = false;
    host.check_guests();
    assert_eq!((simulated.world().free, host.list().guests.len()), (8, 0));
}

#[test]
fn guests_are_adopted_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    for name in ["a", "b", "c"] {
        host.start(request(name, 512, Some(128))).unwrap();
    }
    let pid = |name: &str| host.explain(name).unwrap().process.unwrap().pid;
    simulated.world().alive.remove(&pid("b"));
    // The daemon was killed while it stopped this guest.
    let mut guest = host.claim("c", "stopping").unwrap();
    guest.state = State::Stopping;
    guest.save().unwrap();
    drop(guest);
    drop(host);
    let host = restarted(&simulated);
    host.check_guests();
    let names: Vec<_> = host.list().guests.into_iter().map(|line| (line.name, line.state)).collect();
    assert_eq!(names, [("a".to_owned(), State::Running)]);
    assert_eq!((simulated.world().free, host.list().totals.started), (7, 3));
    assert_eq!(simulated.world().alive.len(), 1);
}

#[test]
fn a_move_that_was_not_saved_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 1024, Some(256))).unwrap();
    drop(host);
    simulated.world().moved_unsaved = true;
    for _ in 0..2 {
        let host = restarted(&simulated);
        host.check_guests();
        let record = host.explain("a").unwrap();
        assert_eq!((record.mitigated, record.pool_bytes(), record.local_bytes()), (true, Bytes::ZERO, Bytes::mib(1024)));
        assert_eq!((simulated.world().free, host.list().totals.mitigated), (8, 1));
    }
}

#[test]
fn the_slices_of_a_guest_that_exits_are_returned() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 512, Some(128))).unwrap();
    simulated.world().alive.clear();
    host.check_guests();
    assert_eq!((simulated.world().free, host.list().guests.len()), (8, 0));
}

#[test]
fn slices_assigned_to_unknown_guests_are_returned() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 512, Some(128))).unwrap();
    simulated.assign("", "ghost", Slices(2)).unwrap();
    let assignments: Vec<_> = simulated
        .world()
        .assigned
        .iter()
        .map(|(vm, slices)| manager::api::Assignment { vm: vm.clone(), asked: manager::api::Slices(1), slices: slices.clone() })
        .collect();
    host.reconcile(&assignments);
    assert_eq!(simulated.world().free, 7);
    assert_eq!(simulated.world().assigned.len(), 1);
}

#[test]
fn a_damaged_state_file_costs_no_other_guest_its_host() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    for name in ["a", "b"] {
        host.start(request(name, 512, Some(128))).unwrap();
    }
    drop(host);
    let path = directory.path().join("state/a.guest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    for damaged in [&text[..text.len() / 2], "", &text.replace("\"a\"", "\"b\"")] {
        std::fs::write(&path, damaged).unwrap();
        let host = restarted(&simulated);
        let list = host.list();
        assert_eq!(list.guests.iter().map(|guest| guest.name.as_str()).collect::<Vec<_>>(), ["b"], "{damaged}");
        assert!(list.damaged["a"].contains("a.guest.json"), "{:?}", list.damaged);
        assert!(host.explain("b").unwrap().process.is_some(), "it is adopted");
        // Its memory is not known, and its slices are in use.
        for name in ["a", "c"] {
            assert!(host.start(request(name, 512, None)).unwrap_err().0.contains("stop its process, then move the file"));
        }
        host.reconcile(&assignments(&simulated));
        host.check_guests();
        assert_eq!(simulated.world().free, 6, "{damaged}");
        assert_eq!(simulated.world().assigned.len(), 2, "{damaged}");
    }
    // The operator has stopped the process and moved the file.
    let host = restarted(&simulated);
    std::fs::rename(&path, directory.path().join("a.guest.json")).unwrap();
    host.reconcile(&assignments(&simulated));
    assert_eq!(simulated.world().free, 7);
    host.start(request("c", 512, Some(128))).unwrap();
    assert!(host.list().damaged.is_empty());
}

#[test]
fn damaged_totals_start_at_zero_and_are_kept_beside() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 512, Some(128))).unwrap();
    drop(host);
    let path = directory.path().join("state/host.json");
    std::fs::write(&path, "{\"started\":").unwrap();
    let host = restarted(&simulated);
    assert_eq!((host.list().totals.started, host.list().guests.len()), (0, 1));
    assert!(path.with_extension("json.damaged").exists());
}

/// What the manager would answer.
fn assignments(simulated: &Simulated) -> Vec<manager::api::Assignment> {
    let world = simulated.world();
    let slices = |slices: &Vec<_>| manager::api::Slices(u32::try_from(slices.len()).unwrap());
    let of = |(vm, held): (&String, &Vec<_>)| manager::api::Assignment { vm: vm.clone(), asked: slices(held), slices: held.clone() };
    world.assigned.iter().map(of).collect()
}
