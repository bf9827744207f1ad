//! A group of three pool managers, each a process of its own: whichever member is killed, stopped or emptied, no slice has two owners and
//! no answered request is lost.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::fs::OpenOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use manager::api::{AssignRequest, Code, Slices};
use manager::client::Client;

use crowd::Crowd;
use group::{Group, PATIENCE, SLICE_BYTES, SLICES, all_free};
use hosts::{Host, Observed};

mod crowd;
mod group;
mod hosts;

/// What a run found.
#[derive(serde::Serialize)]
struct Found {
    /// Hosts with leases, two of which assign and return slices.
    hosts: usize,
    kills: usize,
    failover_max_seconds: f64,
    failover_median_seconds: f64,
    double_owned: u64,
    requests_lost: u64,
    leaked: u64,
    overwritten: u64,
    cycles: u64,
    renewals: u64,
    renewals_failed: u64,
}

/// Stops a member, and starts it again once the others have answered.
type Stop = fn(&mut Group, usize);

/// Stops members one after the other, each time that `next` names one, while two hosts assign and return slices and `crowd` more keep
/// their leases.
fn stop_members(stops: usize, crowd: usize, next: fn(usize, usize) -> usize, stop: Stop) -> Found {
    let mut group = Group::with_crowd(crowd);
    let others = Crowd::start(&group);
    let observed = Arc::new(Observed::default());
    let device = || OpenOptions::new().read(true).write(true).open(group.device.path()).unwrap();
    let hosts = ["a", "b"].map(|name| Host { name, client: group.client(PATIENCE), device: device(), observed: Arc::clone(&observed) });
    let hosts = hosts.map(|host| thread::spawn(|| host.run()));
    let client = group.client(PATIENCE);
    let mut failovers: Vec<f64> = Vec::new();
    for number in 0..stops {
        let member = next(number, group.settled());
        thread::sleep(Duration::from_millis(fastrand::u64(300..1000)));
        let begin = Instant::now();
        stop(&mut group, member);
        client.lease("c", "again").unwrap_or_else(|error| panic!("stop {number}, of member {member}: {error}{}", group.logs()));
        failovers.push(begin.elapsed().as_secs_f64());
        group.spawn(member);
    }
    group.settled();
    observed.stop.store(true, Ordering::Relaxed);
    hosts.into_iter().for_each(|host| host.join().unwrap());
    let (renewals, renewals_failed) = others.stop();
    // What was returned is free, and nothing else is assigned.
    if !all_free(&client) {
        observed.lost.fetch_add(1, Ordering::Relaxed);
        eprintln!("slices were returned and are not free: {:?}{}", client.pool().unwrap(), group.logs());
    }
    failovers.sort_by(f64::total_cmp);
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Found {
        hosts: crowd + 2,
        kills: stops,
        failover_max_seconds: failovers.last().copied().unwrap_or_default(),
        failover_median_seconds: failovers.get(failovers.len() / 2).copied().unwrap_or_default(),
        double_owned: load(&observed.double_owned),
        requests_lost: load(&observed.lost),
        leaked: load(&observed.leaked),
        overwritten: load(&observed.overwritten),
        cycles: load(&observed.cycles),
        renewals,
        renewals_failed,
    }
}

/// Kills the leader again and again.
fn kill_leaders(kills: usize, crowd: usize) -> Found {
    stop_members(kills, crowd, |_, leader| leader, Group::kill)
}

fn check(found: &Found) {
    println!("{}", serde_json::to_string_pretty(found).unwrap());
    assert_eq!((found.double_owned, found.requests_lost, found.leaked, found.overwritten), (0, 0, 0, 0));
    assert!(found.cycles > 0, "the hosts did nothing");
    assert_eq!(found.renewals_failed, 0, "of {} renewals", found.renewals);
}

#[test]
fn a_killed_leader_is_replaced_and_no_slice_has_two_owners() {
    check(&kill_leaders(3, 8));
}

#[test]
#[ignore = "minutes; make test-pool-group"]
fn the_leader_is_killed_fifty_times() {
    let found = kill_leaders(50, 998);
    if let Some(path) = std::env::var_os("POOL_GROUP_RESULT") {
        std::fs::write(path, serde_json::to_string_pretty(&found).unwrap() + "\n").unwrap();
    }
    check(&found);
    assert!(found.failover_max_seconds < 2.0, "a failover took {} s", found.failover_max_seconds);
}

/// As an operator does who installs another version.
#[test]
fn members_are_restarted_one_after_the_other() {
    check(&stop_members(3, 8, |number, _| number, Group::end));
}

#[test]
fn a_leader_that_was_stopped_does_not_answer_as_one() {
    let group = Group::start();
    let leader = group.settled();
    let client = group.client(PATIENCE);
    let old = client.lease("a", "before").unwrap();
    group.signal(leader, "-STOP");
    // It gets requests while it is stopped, and answers them when it continues.
    let asked: Vec<_> = (0..4)
        .map(|_| {
            let (stopped, epoch) = (group.client_of(leader, PATIENCE), old.epoch);
            thread::spawn(move || (stopped.renew("a", epoch).map(drop), stopped.slices().map(drop)))
        })
        .collect();
    let new = client.lease("a", "after").unwrap();
    assert!(new.epoch > old.epoch);
    thread::sleep(Duration::from_secs(2));
    group.signal(leader, "-CONT");
    for asked in asked {
        let (renewed, listed) = asked.join().unwrap();
        assert!(matches!(renewed.unwrap_err().code(), Some(Code::NotLeader)), "a deposed leader renewed a lease");
        assert!(listed.is_err_and(|error| error.code() == Some(Code::NotLeader)), "a deposed leader listed slices");
    }
    client.renew("a", new.epoch).unwrap();
    assert_ne!(group.settled(), leader);
}

/// Assigns slices to host `a`, and returns them, so that they are to be zeroed.
fn release(client: &Client, epoch: u64, vm: &str, slices: u32) {
    let request = AssignRequest { epoch, request: format!("a-{vm}"), vm: vm.to_owned(), slices: Slices(slices) };
    let assigned = client.assign("a", &request).unwrap();
    client.give_back("a", epoch, &format!("r-{vm}"), vm).unwrap();
    assigned.slices.iter().for_each(|slice| client.offlined("a", epoch, slice).unwrap());
}

#[test]
fn slices_of_an_earlier_leader_wait_for_it() {
    let group = Group::start();
    let leader = group.settled();
    let client = group.client(PATIENCE);
    let epoch = client.lease("a", "a-1").unwrap().epoch;
    // Without its memory, the device cannot be zeroed.
    group.device.as_file().set_len(0).unwrap();
    release(&client, epoch, "first", 2);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(client.pool().unwrap().slices.scrubbing, 2);
    // This leader may be in the middle of it when another one follows.
    group.signal(leader, "-STOP");
    client.lease("c", "after").unwrap();
    group.device.as_file().set_len(u64::from(SLICES) * SLICE_BYTES).unwrap();
    release(&client, epoch, "second", 1);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        let slices = client.pool().unwrap().slices;
        assert!(slices.scrubbing >= 2, "zeroed while an earlier leader may go on with it: {slices:?}");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.pool().unwrap().slices.free, SLICES - 2, "a slice that was returned later does not wait");
    group.signal(leader, "-CONT");
    assert!(all_free(&client), "they wait for a member that answers: {}", group.logs());
}

#[test]
#[ignore = "minutes; make test-pool-group"]
fn a_member_that_lacks_removed_entries_gets_a_copy_of_the_ledger() {
    let mut group = Group::start();
    let member = (group.settled() + 1) % 3;
    let client = group.client(PATIENCE);
    group.kill(member);
    let mut epoch = 0;
    // More entries than the log keeps.
    for number in 0..4600 {
        epoch = client.lease("a", &format!("run {number}")).unwrap().epoch;
    }
    group.spawn(member);
    let leader = group.settled();
    let other = 3 - leader - member;
    assert_ne!(leader, member);
    assert!(group.logs().contains("got a copy of the ledger"), "it has all entries: {}", group.logs());
    // The one that has the copy is needed for a majority, and leads in its turn.
    group.kill(leader);
    client.renew("a", epoch).unwrap();
    group.spawn(leader);
    group.settled();
    group.kill(other);
    client.renew("a", epoch).unwrap();
    assert!(client.lease("a", "after").unwrap().epoch > epoch);
}

#[test]
fn a_member_of_an_earlier_group_is_not_heard() {
    let mut group = Group::start();
    let client = group.client(PATIENCE);
    let old = client.lease("a", "before").unwrap();
    for number in 0..20 {
        client.lease("c", &format!("more entries {number}")).unwrap();
    }
    group.settled();
    (0..3).for_each(|member| group.kill(member));
    let refused = group.command(0, &["recover"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("--hosts-are-off"), "{refused:?}");
    // The third member is forgotten: its log is longer, and it must not lead the new group.
    for member in 0..2 {
        let made = group.command(member, &["recover", "--hosts-are-off"]);
        assert!(made.status.success(), "{made:?}");
    }
    (0..3).for_each(|member| group.spawn(member));
    let new = client.lease("a", "after").unwrap();
    assert!(new.epoch > old.epoch, "leases of the earlier group are void");
    thread::sleep(Duration::from_secs(3));
    client.renew("a", new.epoch).unwrap();
    assert_ne!(group.status(0).unwrap().leader, Some(3));
    assert_eq!(group.status(2).and_then(|status| status.leader), None, "it follows no leader");
}

#[test]
fn a_member_without_its_files_is_refused_and_joins_again() {
    let mut group = Group::start();
    let member = (group.settled() + 1) % 3;
    let client = group.client(PATIENCE);
    group.empty(member);
    let lease = client.lease("a", "meanwhile").unwrap();
    let refused = group.command(member, &["--insecure-loopback"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("init --join"), "{error}");
    let made = group.command(member, &["init", "--join"]);
    assert!(made.status.success(), "{made:?}");
    group.spawn(member);
    group.settled();
    assert!(group.status(member).unwrap().joining, "it voted at once");
    let begin = Instant::now();
    while group.status(member).unwrap().joining {
        assert!(begin.elapsed() < PATIENCE, "it never joins: {}", group.logs());
        thread::sleep(Duration::from_millis(50));
    }
    // It counts: without it, the group had no majority now.
    let leader = group.settled();
    let other = 3 - leader - member;
    group.kill(if leader == member { (member + 1) % 3 } else { other });
    client.renew("a", lease.epoch).unwrap();
    client.lease("b", "after").unwrap();
}

#[test]
fn a_member_that_was_initialized_as_a_new_one_does_not_count() {
    let mut group = Group::start();
    let leader = group.settled();
    // The first member would draw the identity of another group.
    let member = if leader == 0 { 1 } else { 3 - leader };
    let other = 3 - leader - member;
    group.wait_for_log(other, &format!("the files of member {} are known", member + 1));
    let client = group.client(PATIENCE);
    group.empty(member);
    let made = group.command(member, &["init"]);
    assert!(made.status.success(), "{made:?}");
    group.spawn(member);
    let lease = client.lease("a", "two members").unwrap();
    group.wait_for_log(leader, &format!("member {} was initialized again without --join", member + 1));
    // With its vote, the group had a leader.
    group.kill(leader);
    thread::sleep(Duration::from_secs(4));
    let status = group.status(other).unwrap();
    assert_eq!(status.leader, None, "a vote of a member that has forgotten how it voted: {}", group.logs());
    assert!(group.client_of(other, Duration::from_secs(2)).renew("a", lease.epoch).is_err());
    // What the message says.
    group.spawn(leader);
    group.empty(member);
    let made = group.command(member, &["init", "--join"]);
    assert!(made.status.success(), "{made:?}");
    group.spawn(member);
    group.settled();
    client.renew("a", lease.epoch).unwrap();
}
