//! Seeds that are run by every `cargo test`, and what the checks must notice.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::collections::BTreeSet;

use fastrand::Rng;
use sim::group::{PROTECTIONS, Role, SETTINGS};
use sim::machine::{Machine, Request};
use sim::plan::{Kind, Plan};
use sim::promises::{self, Allowed};
use sim::run::run;

/// Seeds that once broke a promise, and what they found: an error of the simulation, except where it is said.
const FOUND: [(u64, &str); 8] = [
    (12, "an operator's memory.low of a slice was noted for the job below it"),
    (19, "the same for memory.swap.max"),
    (24, "the same, with a stop in between"),
    (103, "a scan was forgotten whose agent was killed in the same turn"),
    (121, "a cgroup that was made again within a turn had no size by which requests to it could be judged"),
    (146, "a slow scan's bound was taken after the requests that it is to bound"),
    (383, "an error of the agent: memory.low that an operator set while the agent had set it was ignored, and lowered"),
    (245, "a write of the value that the agent has set already cannot be distinguished from the agent's"),
];

#[test]
fn seeds_that_found_something_keep_all_promises() {
    for (seed, what) in FOUND {
        let outcome = run(&Plan::of(seed)).unwrap();
        assert!(outcome.violations.is_empty(), "seed {seed} ({what}): {:?}", outcome.violations);
        assert!(outcome.turns > 0 && outcome.replayed > 0, "seed {seed} runs nothing: {outcome:?}");
    }
}

#[test]
fn a_seed_gives_the_same_run_again_and_another_gives_another() {
    let digest = |seed| run(&Plan::of(seed)).unwrap().digest;
    assert_eq!(digest(5), digest(5));
    assert_ne!(digest(5), digest(6));
}

#[test]
fn every_kind_of_fault_is_drawn() {
    let drawn: BTreeSet<_> = (0..500).flat_map(|seed| Plan::of(seed).faults).map(|fault| fault.kind.name()).collect();
    assert_eq!(drawn, BTreeSet::from(Kind::NAMES));
}

/// The machine of a plan.
fn machine(directory: &tempfile::TempDir) -> Machine {
    let plan = Plan::of(1);
    let mut machine = Machine::new(directory.path().to_owned(), 1_000, Rng::with_seed(1)).unwrap();
    machine.groups = plan.groups.iter().map(|(group, _)| group.clone()).collect();
    (0..plan.groups.len()).for_each(|at| machine.make(at, 200).unwrap());
    machine.advance(1_100.0).unwrap();
    machine
}

#[test]
fn a_setting_that_the_agent_may_not_make_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let machine = machine(&directory);
    let check_value = |role: Role, setting: usize, all: bool, value: &str| {
        let group = machine.groups.iter().find(|group| group.role == role).unwrap();
        let name = format!("sys/fs/cgroup{}/{}", group.path, SETTINGS[setting]);
        let before = machine.setting(&name).unwrap();
        std::fs::write(directory.path().join(&name), value).unwrap();
        let broken = promises::settings(&machine, &machine.settings(), all);
        std::fs::write(directory.path().join(&name), before).unwrap();
        broken.len()
    };
    let check = |role, setting, all| check_value(role, setting, all, "4096000000\n");
    let job = machine.groups.iter().find(|group| group.role == Role::Job).unwrap();
    assert_ne!(job.own[0], "0");
    assert_eq!(check_value(Role::Job, 0, false, "0\n"), 1, "below the operator's protection");
    for setting in 0..SETTINGS.len() {
        assert_eq!((check(Role::Stranger, setting, false), check(Role::Spared, setting, false)), (1, 1));
        assert_eq!((check(Role::Job, setting, false), check(Role::Job, setting, true)), (0, 1));
        assert_eq!(check(Role::Ancestor, setting, false), usize::from(!PROTECTIONS.contains(&setting)));
    }
}

#[test]
fn a_request_that_the_agent_may_not_make_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let mut machine = machine(&directory);
    let mut check = |role: Role, policy: &'static str, pages: u64, swappiness: u8, swap_free: u64| {
        let group = machine.groups.iter_mut().find(|group| group.role == role).unwrap();
        (group.policy, group.idle_before) = (policy, 40);
        machine.requests = vec![Request { path: group.path.clone(), pages, swappiness, swap_free }];
        promises::requests(&mut machine, Allowed { acts: true, steady: true, scanned: true, slow_scans: false }).len()
    };
    assert_eq!(check(Role::Job, "cold_age", 40, 200, 500), 0);
    assert_eq!(check(Role::Job, "cold_age", 41, 200, 500), 1, "more than was idle");
    assert_eq!(check(Role::Job, "cold_age", 40, 200, 99), 1, "a tenth of swap stays free");
    assert_eq!(check(Role::Job, "cold_age", 41, 0, 99), 0, "page cache");
    assert_eq!(check(Role::Job, "pressure", 10, 0, 500), 0);
    assert_eq!(check(Role::Job, "pressure", 190, 0, 500), 1, "below the floor");
    assert_eq!(check(Role::Stranger, "cold_age", 1, 0, 500), 1);
    assert_eq!(check(Role::Spared, "cold_age", 1, 0, 500), 1);
}
