//! Jobs at their limits.

use super::*;
use crate::limits::Standing;

const SWAP_MAX: &str = "sys/fs/cgroup/a/memory.swap.max";

/// An agent that stops at limits.
fn stopping(machine: &Machine) -> Agent {
    let text = format!("at_limit = \"stop\"\n[cold_age]\nwarmup = \"0s\"\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n");
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
            "{more}\n[cold_age]\nwarmup = \"0s\"\n[class.conservative]\nwarmup = \"0s\"\n[class.aggressive]\nwarmup = \"0s\"\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"{class}\"\n"
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
