//! Tests of hard protection: `memory.min` while the kernel reclaims in spite of `memory.low`.

use units::Bytes;

use super::limits::{decide, nested, nested_agent};
use super::*;

const PAGES: u64 = 60;

/// A machine whose job in `/s/t` is protected, where another cgroup has `other` pages to give.
fn protected(other: u64) -> (Machine, Agent) {
    let machine = nested();
    machine.cgroup("/hog");
    machine.set("/hog", "memory.stat", &format!("inactive_anon {}", other * page()));
    reclaim(&machine, 10, 0);
    let mut agent = nested_agent(&machine, "");
    decide(&mut agent, &machine);
    (machine, agent)
}

/// The kernel has reclaimed so many pages, and below the job's protection so many times.
fn reclaim(machine: &Machine, pages: u64, breaks: u64) {
    machine.put("proc/vmstat", &format!("pswpin 0\npswpout 0\nallocstall_normal 0\npgsteal_kswapd {pages}\npgsteal_direct 0\n"));
    machine.set("/s/t/a", "memory.events", &format!("low {breaks}\nhigh 0\nmax 0\noom 0\noom_kill 0"));
}

fn check(agent: &mut Agent) {
    let Agent { protection, jobs, context, discovery, .. } = agent;
    protection.check(jobs, context, &discovery.rules);
}

/// The kernel reclaims below the job's protection between two checks.
fn break_protection(machine: &Machine, agent: &mut Agent) {
    for (pages, breaks) in [(20, 5), (30, 6), (40, 7)] {
        reclaim(machine, pages, breaks);
        check(agent);
    }
}

fn min(machine: &Machine, cgroup: &str) -> u64 {
    machine.get(&format!("sys/fs/cgroup{cgroup}/memory.min")).parse().unwrap()
}

fn mins(machine: &Machine) -> [u64; 3] {
    ["/s/t/a", "/s/t", "/s"].map(|name| min(machine, name))
}

#[test]
fn what_the_kernel_breaks_is_hardened_until_it_rests() {
    let (machine, mut agent) = protected(200);
    machine.set("/s", "memory.min", "4096");
    for (pages, breaks) in [(10, 5), (20, 5), (30, 5)] {
        reclaim(&machine, pages, breaks);
        check(&mut agent);
        assert_eq!(mins(&machine), [0, 0, 4096], "what was reclaimed before the first check, or elsewhere, breaks nothing");
    }
    break_protection(&machine, &mut agent);
    let [job, slice, outer] = mins(&machine);
    assert_eq!(job, PAGES * page());
    assert!(slice >= job && outer >= slice, "{slice} {outer}");
    assert_eq!(machine.get("run/undo.json").matches("memory.min").count(), 3);
    let view = agent.report();
    assert!(view.jobs[0].hard_protection && view.jobs[0].protection_bytes == Bytes(PAGES * page()));
    // The kernel rests, for less than a control period and then for longer.
    check(&mut agent);
    assert_eq!(min(&machine, "/s/t/a"), PAGES * page());
    agent.context.config.agent.control_period = std::time::Duration::ZERO;
    check(&mut agent);
    assert_eq!(mins(&machine), [0, 0, 4096]);
    assert!(!agent.report().jobs[0].hard_protection);
}

#[test]
fn protection_is_not_hard_where_that_could_end_in_a_kill() {
    let (nothing, given) = ([0, 0, 0], PAGES * page());
    let hardened = |other: u64, prepare: fn(&Machine)| {
        let (machine, mut agent) = protected(other);
        prepare(&machine);
        break_protection(&machine, &mut agent);
        mins(&machine)
    };
    assert_eq!(hardened(200, |_| ())[0], given);
    assert_eq!(hardened(70, |_| ()), nothing, "another cgroup has too little to give");
    assert_eq!(hardened(200, |machine| machine.set("/hog", "memory.swap.max", "0")), nothing, "nor may it be swapped out");
    let kept = |machine: &Machine| {
        machine.set("/hog", "memory.current", &(200 * page()).to_string());
        machine.set("/hog", "memory.min", &(140 * page()).to_string());
    };
    assert_eq!(hardened(200, kept), nothing, "its operator has the kernel keep most of it");
    let shared = |machine: &Machine| {
        machine.cgroup("/pods/other");
        machine.set("/pods/other", "memory.stat", &format!("inactive_anon {}", 200 * page()));
        machine.set("/hog", "memory.stat", "inactive_anon 0");
    };
    assert_eq!(hardened(200, shared)[0], given, "a cgroup two levels down can give it");
    let limited = |machine: &Machine| {
        for name in ["/pods/one", "/pods/two"] {
            machine.cgroup(name);
            machine.set(name, "memory.stat", &format!("inactive_anon {}", 200 * page()));
        }
        machine.cgroup("/pods");
        machine.set("/pods", "memory.swap.max", &(50 * page()).to_string());
    };
    assert_eq!(hardened(0, limited), nothing, "two that share 50 pages of swap can give no more");
    let full = |machine: &Machine| {
        machine.put("proc/meminfo", "MemTotal: 1024 kB\nMemFree: 9 kB\nMemAvailable: 9 kB\nSwapTotal: 1024 kB\nSwapFree: 200 kB\n");
    };
    assert_eq!(hardened(200, full), nothing, "swap has no room for it");
    assert_eq!(hardened(200, |machine| machine.set("/s", "memory.max", "8000000")), nothing, "a slice has a limit");
    assert_eq!(hardened(200, |machine| machine.set("/s/t", "memory.high", "8000000")), nothing);
}

#[test]
fn a_hard_protection_is_taken_back_when_its_room_is_gone_and_restored_after_a_kill() {
    let (machine, mut agent) = protected(200);
    break_protection(&machine, &mut agent);
    machine.set("/hog", "memory.stat", &format!("inactive_anon {}", PAGES * page()));
    check(&mut agent);
    assert_eq!(min(&machine, "/s/t/a"), PAGES * page(), "enough for what is given");
    machine.set("/hog", "memory.stat", &format!("inactive_anon {}", (PAGES - 1) * page()));
    check(&mut agent);
    assert_eq!(mins(&machine), [0, 0, 0]);

    machine.set("/hog", "memory.stat", &format!("inactive_anon {}", 200 * page()));
    break_protection(&machine, &mut agent);
    assert!(mins(&machine).iter().all(|&bytes| bytes > 0));
    drop(agent);
    let _next = nested_agent(&machine, "");
    assert_eq!(mins(&machine), [0, 0, 0]);
}

#[test]
fn an_operator_may_do_without_hard_protection() {
    let (machine, mut agent) = protected(200);
    agent.context.config.agent.hard_protection = false;
    break_protection(&machine, &mut agent);
    assert_eq!(mins(&machine), [0, 0, 0]);
    // He decides so while one is hard.
    agent.context.config.agent.hard_protection = true;
    break_protection(&machine, &mut agent);
    reclaim(&machine, 50, 8);
    check(&mut agent);
    assert!(mins(&machine)[0] > 0);
    agent.context.config.agent.hard_protection = false;
    assert!(agent.protection.wait(&agent.context).is_some());
    check(&mut agent);
    assert_eq!((mins(&machine), agent.protection.wait(&agent.context)), ([0, 0, 0], None));
}
