//! Jobs at their limits, and the protection of working sets along the hierarchy.

use super::*;
use crate::limits::Standing;

const SWAP_MAX: &str = "sys/fs/cgroup/a/memory.swap.max";

fn low(machine: &Machine, cgroup: &str) -> u64 {
    machine.get(&format!("sys/fs/cgroup{cgroup}/memory.low")).parse().unwrap()
}

/// An agent that stops at limits.
fn stopping(machine: &Machine) -> Agent {
    let text =
        format!("at_limit = \"stop\"\n[cold_age]\nwarmup = \"0s\"\npartial = false\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n");
    Agent::new(machine.roots.clone(), machine.config(&text), Options::default()).unwrap()
}

#[test]
fn a_job_whose_limit_is_full_of_page_cache_is_offloaded_as_one_without_a_limit() {
    let plan = |prepare: fn(&Machine)| {
        let machine = machine_with_job();
        machine.set(JOB, "memory.current", "4096000");
        machine.set(JOB, "memory.stat", "anon 819200\nfile 3276800\ninactive_file 3276800");
        prepare(&machine);
        let mut agent = stopping(&machine);
        round(&mut agent, &machine, 1_000, FRAMES);
        let decision = round(&mut agent, &machine, 1_120, 60).unwrap().step.decision;
        (decision, agent.job(JOB).signals.limit)
    };
    let unlimited = plan(|_| ());
    assert!(matches!(unlimited, (Decision::Offload { .. }, Standing::Below)), "{unlimited:?}");
    assert_eq!(plan(|machine| machine.set(JOB, "memory.max", "4096000")), unlimited);
    // The same amount that cannot be reclaimed.
    let vetoed = plan(|machine| {
        machine.set(JOB, "memory.max", "4096000");
        machine.set(JOB, "memory.stat", "anon 4096000");
    });
    assert_eq!(vetoed, (Decision::Hold { reason: Hold::Vetoed(Veto::AtLimit) }, Standing::Full));
}

#[test]
fn a_full_job_is_offloaded_where_its_class_wants_it() {
    let check = |class: &str, more: &str, vetoed: bool| {
        let machine = machine_with_job();
        machine.set(JOB, "memory.current", "4096000");
        machine.set(JOB, "memory.max", "4096000");
        let text = format!(
            "{more}\n[cold_age]\nwarmup = \"0s\"\npartial = false\n[class.conservative]\nwarmup = \"0s\"\n[class.aggressive]\nwarmup = \"0s\"\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"{class}\"\n"
        );
        let mut agent = Agent::new(machine.roots.clone(), machine.config(&text), Options::default()).unwrap();
        round(&mut agent, &machine, 1_000, FRAMES);
        let decision = round(&mut agent, &machine, 1_120, 60).unwrap().step.decision;
        assert_eq!(decision == Decision::Hold { reason: Hold::Vetoed(Veto::AtLimit) }, vetoed, "{class} {more}: {decision:?}");
    };
    check("conservative", "", true);
    check("standard", "", false);
    check("aggressive", "", false);
    check("conservative", "at_limit = \"offload\"", false);
    check("standard", "at_limit = \"stop\"", true);
    check("standard", "at_limit = \"fail_fast\"", true);
}

#[test]
fn swap_is_closed_to_a_job_that_must_fail_fast_except_for_our_requests() {
    let machine = machine_with_job();
    machine.set(JOB, "memory.swap.current", "163840");
    let text = format!("at_limit = \"fail_fast\"\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n");
    let mut agent = Agent::new(machine.roots.clone(), machine.config(&text), Options::default()).unwrap();
    assert_eq!(machine.get(SWAP_MAX), "max");
    for (at, used) in [(1_000, "163840"), (1_120, "81920"), (1_240, "245760")] {
        machine.set(JOB, "memory.swap.current", used);
        round(&mut agent, &machine, at, 60);
        assert_eq!(machine.get(SWAP_MAX), used);
    }
    let Agent { jobs, context, .. } = &mut agent;
    let job = &jobs[JOB].job;
    crate::swap_gate::open(job, context, Pages(10));
    assert_eq!(machine.get(SWAP_MAX), (245_760 + 10 * page()).to_string());
    crate::swap_gate::close(job, context);
    assert_eq!(machine.get(SWAP_MAX), "245760");
    agent.stop();
    assert_eq!(machine.get(SWAP_MAX), "max");
}

#[test]
fn a_killed_agent_leaves_no_swap_closed_and_the_operators_limit_holds() {
    let machine = machine_with_job();
    machine.set(JOB, "memory.swap.max", "200000");
    machine.set(JOB, "memory.swap.current", "163840");
    let text = format!("at_limit = \"fail_fast\"\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n");
    let mut killed = Agent::new(machine.roots.clone(), machine.config(&text), Options::default()).unwrap();
    round(&mut killed, &machine, 1_000, 60);
    assert_eq!(machine.get(SWAP_MAX), "163840");
    let Agent { jobs, context, .. } = &mut killed;
    crate::swap_gate::open(&jobs[JOB].job, context, Pages(1_000));
    assert_eq!(machine.get(SWAP_MAX), "200000");
    drop(killed);
    let _next = agent(&machine);
    assert_eq!(machine.get(SWAP_MAX), "200000");
}

/// A machine with a job two levels below the root that owns 200 frames, and a sibling that claims 40 KiB.
pub(super) fn nested() -> Machine {
    let machine = Machine::new();
    for name in ["/s", "/s/t", "/s/t/other"] {
        machine.cgroup(name);
    }
    let job = machine.cgroup("/s/t/a");
    machine.own_frames(&job, 200);
    for (name, bytes) in [("/s", 4_000_000), ("/s/t", 4_000_000), ("/s/t/a", 819_200), ("/s/t/other", 1_000_000)] {
        machine.set(name, "memory.current", &bytes.to_string());
    }
    machine.set("/s/t/other", "memory.low", "40960");
    machine
}

pub(super) fn nested_agent(machine: &Machine, rules: &str) -> Agent {
    let text = format!("[cold_age]\nwarmup = \"0s\"\npartial = false\n{rules}[[job]]\ncgroup = \"/s/t/a\"\nclass = \"standard\"\n");
    Agent::new(machine.roots.clone(), machine.config(&text), Options::default()).unwrap()
}

/// Scans and decides twice; 60 pages are in use.
pub(super) fn decide(agent: &mut Agent, machine: &Machine) {
    for (seconds, accessed) in [(1_000, FRAMES), (1_120, 60)] {
        machine.access_frames(accessed);
        agent.scan(at(seconds));
        agent.control(at(seconds));
    }
}

#[test]
fn ancestors_are_given_what_their_children_claim_and_restored() {
    let machine = nested();
    let mut agent = nested_agent(&machine, "");
    decide(&mut agent, &machine);
    let working_set = 60 * page();
    assert_eq!(low(&machine, "/s/t/a"), working_set);
    assert_eq!(low(&machine, "/s/t/other"), 40_960, "another's own setting is not touched");
    assert!(low(&machine, "/s/t") >= working_set + 40_960, "{}", low(&machine, "/s/t"));
    assert!(low(&machine, "/s") >= low(&machine, "/s/t"), "{}", low(&machine, "/s"));
    assert!(["/s", "/s/t"].iter().all(|name| low(&machine, name).is_multiple_of(page())), "the kernel keeps whole pages");
    assert_eq!(agent.job("/s/t/a").protection.effective, Bytes(working_set));
    let view = agent.report();
    assert_eq!((view.jobs[0].protection_claimed_bytes, view.jobs[0].protection_bytes), (Bytes(working_set), Bytes(working_set)));
    // The job ends: its ancestors are restored with the next decision.
    machine.remove("/s/t/a");
    agent.scan(at(1_240));
    agent.control(at(1_240));
    assert_eq!((low(&machine, "/s/t"), low(&machine, "/s")), (0, 0));
}

#[test]
fn a_killed_agents_ancestors_are_restored_and_the_operators_values_kept() {
    let machine = nested();
    machine.set("/s", "memory.low", "1000000");
    machine.set("/s/t", "memory.low", "50000");
    let mut killed = nested_agent(&machine, "");
    decide(&mut killed, &machine);
    assert_eq!(low(&machine, "/s"), 1_000_000, "enough already");
    assert!(low(&machine, "/s/t") > 50_000);
    drop(killed);
    let _next = nested_agent(&machine, "");
    assert_eq!((low(&machine, "/s/t/a"), low(&machine, "/s/t"), low(&machine, "/s")), (0, 50_000, 1_000_000));
}

#[test]
fn where_protection_is_recursive_no_sibling_loses_its_part() {
    let machine = nested();
    machine.put("proc/self/mountinfo", "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,memory_recursiveprot\n");
    machine.set("/s/t", "memory.low", "500000");
    let mut agent = nested_agent(&machine, "");
    decide(&mut agent, &machine);
    assert!(low(&machine, "/s/t") >= 500_000 + 60 * page(), "{}", low(&machine, "/s/t"));
    assert!(agent.job("/s/t/a").protection.effective >= Bytes(60 * page()));
}

#[test]
fn an_ancestor_that_the_operator_excluded_is_left_alone_and_the_effective_protection_shows_it() {
    let machine = nested();
    let mut agent = nested_agent(&machine, "[[job]]\ncgroup = \"/s\"\nclass = \"off\"\n");
    decide(&mut agent, &machine);
    assert_eq!(low(&machine, "/s"), 0);
    let protection = agent.job("/s/t/a").protection;
    assert_eq!((protection.claimed, protection.effective), (Bytes(60 * page()), Bytes::ZERO));
}

#[test]
fn what_an_operator_sets_while_the_agent_protects_is_kept() {
    let machine = nested();
    let mut agent = nested_agent(&machine, "");
    decide(&mut agent, &machine);
    let given = 4 * low(&machine, "/s/t/a");
    for cgroup in ["/s/t/a", "/s"] {
        machine.set(cgroup, "memory.low", &given.to_string());
    }
    decide(&mut agent, &machine);
    assert_eq!(low(&machine, "/s/t/a"), given);
    assert!(low(&machine, "/s") > given, "its children claim more");
    agent.stop();
    assert_eq!((low(&machine, "/s/t/a"), low(&machine, "/s"), low(&machine, "/s/t")), (given, given, 0));
}

#[test]
fn page_cache_in_use_and_kernel_memory_are_protected_as_well() {
    let machine = machine_with_job();
    machine.set(JOB, "memory.stat", "anon 819200\nfile 500000\nactive_file 300000\nkernel 40000\nsock 1000");
    let mut agent = agent(&machine);
    round(&mut agent, &machine, 1_000, FRAMES);
    round(&mut agent, &machine, 1_120, 60);
    assert_eq!(low(&machine, JOB), 60 * page() + 41_000u64.next_multiple_of(page()), "the tracker saw no page cache in use");
    agent.jobs.get_mut(JOB).unwrap().job.tracker.0 = ages::Kind::Sampled;
    round(&mut agent, &machine, 1_240, 60);
    assert_eq!(low(&machine, JOB), 60 * page() + 341_000u64.next_multiple_of(page()), "the kernel's active list");

    machine.set(JOB, "memory.stat", "anon 819200\nfile 500000\nactive_file 0\nkernel 40000\nsock 1000");
    round(&mut agent, &machine, 1_360, 60);
    assert_eq!(low(&machine, JOB), 60 * page() + 341_000u64.next_multiple_of(page()), "it was in use two minutes before");
}

#[test]
fn where_swap_has_no_room_page_cache_is_not_taken_in_its_place() {
    let decide = |prepare: fn(&Machine)| {
        let machine = machine_with_job();
        prepare(&machine);
        let mut agent = stopping(&machine);
        round(&mut agent, &machine, 1_000, FRAMES);
        let planned = round(&mut agent, &machine, 1_120, 60).unwrap().step.decision;
        let asked = agent.job(JOB).tiering.refused.holds(agent.context.clock.now());
        (matches!(planned, Decision::Offload { .. }), asked)
    };
    assert_eq!(decide(|_| ()), (true, false));
    let own = |machine: &Machine| {
        machine.set(JOB, "memory.swap.max", "8388608");
        machine.set(JOB, "memory.swap.current", "8380416");
    };
    assert_eq!(decide(own), (true, true), "the job's own limit of swap is reached");
    let devices = |machine: &Machine| {
        machine.put("proc/meminfo", "MemTotal: 1024 kB\nMemFree: 512 kB\nMemAvailable: 512 kB\nSwapTotal: 4096 kB\nSwapFree: 512 kB\n");
    };
    assert_eq!(decide(devices), (true, true), "the swap devices are full");
}
