//! Tests of hard protection: `memory.min` while the kernel reclaims in spite of `memory.low`.

use daemon::ManualClock;
use units::{Bytes, UnixMillis};

use crate::context::claims::Strength;

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
    agent.context.machine.zswap_enabled = false;
    (machine, agent)
}

/// The kernel has reclaimed so many pages, and below the job's protection so many times; of what it took there, nothing has returned.
fn reclaim(machine: &Machine, pages: u64, breaks: u64) {
    reclaim_and_return(machine, pages, breaks, 0);
}

/// The same, and so many pages of the job have returned.
fn reclaim_and_return(machine: &Machine, pages: u64, breaks: u64, refaults: u64) {
    let stat = machine.get("sys/fs/cgroup/s/t/a/memory.stat");
    let rest = stat.lines().filter(|line| !line.starts_with("workingset_refault"));
    let returned = [format!("workingset_refault_anon {}", refaults / 2), format!("workingset_refault_file {}", refaults.div_ceil(2))];
    let stat: Vec<String> = rest.map(ToOwned::to_owned).chain(returned).collect();
    machine.set("/s/t/a", "memory.stat", &stat.join("\n"));
    machine.put("proc/vmstat", &format!("pswpin 0\npswpout 0\nallocstall_normal 0\npgsteal_kswapd {pages}\npgsteal_direct 0\n"));
    machine.set("/s/t/a", "memory.events", &format!("low {breaks}\nhigh 0\nmax 0\noom 0\noom_kill 0"));
}

fn check(agent: &mut Agent) {
    let Agent { protection, jobs, context, discovery, .. } = agent;
    protection.check(jobs, context, &discovery.rules);
}

/// The kernel reclaims below the job's protection between two checks, and what it takes returns.
fn break_protection(machine: &Machine, agent: &mut Agent) {
    for (pages, breaks, refaults) in [(20, 5, 0), (30, 6, 1), (40, 7, 2)] {
        reclaim_and_return(machine, pages, breaks, refaults);
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

/// Whether 60 checks, one in two seconds, harden the protection of 65,536 pages.
fn after_checks(refaults: impl Fn(u64) -> u64, broken: bool) -> bool {
    let (machine, mut agent) = protected(200);
    agent.context.claims.insert(Strength::Soft, "/s/t/a", Bytes(64 * 1024 * page()));
    machine.set("/hog", "memory.stat", &format!("inactive_anon {}", 200 * 1024 * page()));
    machine.put("proc/meminfo", "MemTotal: 1024 kB\nMemFree: 9 kB\nMemAvailable: 9 kB\nSwapTotal: 9000000 kB\nSwapFree: 9000000 kB\n");
    let clock = ManualClock::new(seconds(2_000), UnixMillis(0));
    agent.context.clock = clock.clock();
    (0..60).any(|at| {
        clock.advance(seconds(2));
        reclaim_and_return(&machine, 20 + at, if broken { 5 + at } else { 5 }, refaults(at));
        check(&mut agent);
        min(&machine, "/s/t/a") > 0
    })
}

#[test]
fn protection_is_hard_only_where_what_the_kernel_takes_returns() {
    assert!(!after_checks(|_| 0, true), "nothing returns");
    assert!(!after_checks(|at| 2 * 128 * at, true), "128 of 65,536 pages return in a second, as is tolerated");
    assert!(after_checks(|at| 2 * 256 * at, true), "twice as many");
    assert!(!after_checks(|at| 2 * 256 * at, false), "the kernel takes nothing below the protection");
    assert!(!after_checks(|at| if at < 30 { 0 } else { 1_024 }, true), "1,024 pages at once are tolerated");
    assert!(after_checks(|at| if at < 30 { 0 } else { 1_400 }, true));
}

#[test]
fn protection_is_not_hard_for_an_hour_after_a_kill() {
    let (machine, mut agent) = protected(200);
    let clock = ManualClock::new(seconds(2_000), UnixMillis(0));
    agent.context.clock = clock.clock();
    break_protection(&machine, &mut agent);
    assert!(min(&machine, "/s/t/a") > 0);
    let kill = |machine: &Machine| {
        let stat = machine.get("proc/vmstat");
        machine.put("proc/vmstat", &format!("{stat}\noom_kill 1\n"));
    };
    kill(&machine);
    check(&mut agent);
    assert_eq!(mins(&machine), [0, 0, 0]);
    for (later, hard) in [(3_500, false), (200, true)] {
        clock.advance(seconds(later));
        for at in 0..3 {
            let count = clock.clock().now().as_secs() + at;
            reclaim_and_return(&machine, count, count, count);
            kill(&machine);
            check(&mut agent);
        }
        assert_eq!(min(&machine, "/s/t/a") > 0, hard, "{later}");
    }
}

#[test]
fn protection_is_not_hard_while_programs_grow() {
    let (machine, mut agent) = protected(200);
    let clock = ManualClock::new(seconds(2_000), UnixMillis(0));
    agent.context.clock = clock.clock();
    let mut count = 10;
    let mut is_hard_with = |anon_kib: u64| {
        count += 1;
        clock.advance(seconds(2));
        machine.put(
            "proc/meminfo",
            &format!(
                "MemTotal: 25600 kB\nMemFree: 9 kB\nMemAvailable: 9 kB\nAnonPages: {anon_kib} kB\nSwapTotal: 9000 kB\nSwapFree: 9000 kB\n"
            ),
        );
        reclaim_and_return(&machine, count, count, count);
        check(&mut agent);
        min(&machine, "/s/t/a") > 0
    };
    // 100 kB in two seconds are no growth, and more are. After it two checks pass.
    let found = [0, 100, 200, 301, 402, 502, 602, 702, 803, 803, 903].map(&mut is_hard_with);
    assert_eq!(found, [false, true, true, false, false, false, true, true, false, false, true]);
}

#[test]
fn what_stays_in_zswap_is_no_room() {
    let hardened = |other: u64, stored: u64, pool: u64| {
        let (machine, mut agent) = protected(other);
        agent.context.machine.zswap_enabled = true;
        agent.context.machine.stored_bytes = Bytes(stored);
        agent.context.machine.pool_bytes = Bytes(pool);
        break_protection(&machine, &mut agent);
        mins(&machine)[0] > 0
    };
    // 60 pages are protected, and a quarter more is needed to begin.
    assert!(hardened(150, 0, 0) && !hardened(149, 0, 0), "of an empty pool, half is expected");
    assert!(hardened(100, 100, 25) && !hardened(99, 100, 25));
    assert!(!hardened(250, 100, 100), "nothing is freed");
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
