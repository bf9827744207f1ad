//! Jobs in the background, over a fake machine.

use config::Config;
use policy::background::Decision::{self, Compact, Prefetch};
use policy::background::Reason;

use super::*;
use crate::context::pace::ByteRate;

/// The index of the policy in the agent's list.
const BACKGROUND: usize = 2;

const MEMINFO: &str = "MemTotal: 1024 kB\nMemFree: 512 kB\nMemAvailable: 512 kB\nSwapTotal: 1024 kB\nSwapFree: 1024 kB\n";

/// A machine whose job is this process, which has no memory there.
fn machine() -> Machine {
    let machine = Machine::new();
    machine.cgroup(JOB);
    let pid = std::process::id();
    machine.set(JOB, "cgroup.procs", &pid.to_string());
    machine.put(&format!("proc/{pid}/maps"), "");
    machine.put(&format!("proc/{pid}/pagemap"), "");
    thaw(&machine);
    use_cpu(&machine, 10);
    calm(&machine);
    machine
}

fn config(machine: &Machine, more: &str) -> Config {
    let job = "[[job]]\ncgroup = \"/*\"\nclass = \"standard\"\npolicy = \"background\"\n";
    machine.config(&format!("[background]\nsettle = \"5s\"\n{more}\n{job}"))
}

fn start(machine: &Machine, more: &str, options: Options) -> Agent {
    let mut agent = Agent::new(machine.roots.clone(), config(machine, more), options).unwrap();
    // A bucket that has filled for as long as the machine is up.
    agent.context.pacing.rate = ByteRate::new(Bytes::mib(64), Duration::ZERO);
    machine.access_frames(0);
    agent.scan(at(1_000));
    agent
}

fn freeze(machine: &Machine) {
    machine.set(JOB, "cgroup.events", "populated 1\nfrozen 1");
}

fn thaw(machine: &Machine) {
    machine.set(JOB, "cgroup.events", "populated 1\nfrozen 0");
}

fn use_cpu(machine: &Machine, usage_us: u64) {
    machine.set(JOB, "cpu.stat", &format!("usage_usec {usage_us}\nuser_usec 0\nsystem_usec 0"));
}

fn pressure(machine: &Machine, avg10: &str) {
    let line = |kind| format!("{kind} avg10={avg10} avg60=0.00 avg300=0.00 total=0\n");
    machine.put("proc/pressure/memory", &(line("some") + &line("full")));
}

fn calm(machine: &Machine) {
    pressure(machine, "0.00");
    machine.put("proc/meminfo", MEMINFO);
}

fn nothing(reason: Reason) -> Decision {
    Decision::Nothing { reason }
}

fn last(agent: &Agent) -> Decision {
    agent.background(JOB).last.unwrap().decision
}

/// The decision of a control period at `at` seconds.
fn decide(agent: &mut Agent, seconds: u64) -> Decision {
    agent.control(at(seconds));
    last(agent)
}

/// One step of a compaction or a prefetch.
fn compact(agent: &mut Agent) -> Option<Duration> {
    let Agent { policies, jobs, context, .. } = agent;
    policies[BACKGROUND].policy.act(jobs, context)
}

/// Carries out the plan.
fn carry_out(agent: &mut Agent) {
    while compact(agent).is_some() {}
    agent.write_journal();
}

/// The job's events, except those of its start and of its tier.
fn events(agent: &Agent) -> Vec<String> {
    let records = agent.records();
    let events = records.into_iter().filter_map(|record| match record {
        Record::Event { job: Some(_), what, .. } if !what.starts_with("job ") && !what.starts_with("tier ") => Some(what),
        _ => None,
    });
    events.collect()
}

#[test]
fn a_frozen_job_is_compacted_once_and_prefetched_on_its_return() {
    let machine = machine();
    let mut agent = start(&machine, "prefetch = true", Options::default());
    assert_eq!(decide(&mut agent, 1_010), nothing(Reason::Foreground));
    freeze(&machine);
    assert_eq!(decide(&mut agent, 1_020), nothing(Reason::Settling));
    assert_eq!(decide(&mut agent, 1_030), Compact);
    carry_out(&mut agent);
    assert_eq!(decide(&mut agent, 1_040), nothing(Reason::Done));
    thaw(&machine);
    assert_eq!(decide(&mut agent, 1_050), Prefetch);
    carry_out(&mut agent);
    assert_eq!(decide(&mut agent, 1_060), nothing(Reason::Foreground));
    let want = [
        "not compacted yet: it has just gone to the background",
        "compact: it has settled in the background",
        "compacted: 0 B of 0 B left DRAM, 0 B of file mappings deactivated",
        "prefetch: it is back in the foreground",
        "prefetched: 0 B requested",
        "not compacted: it is in the foreground",
    ];
    assert_eq!(events(&agent), want);
    let replay = agent.replayed();
    assert_eq!((replayed(&replay, "cold_age"), replayed(&replay, "background"), replayed(&replay, "tiering")), (6, 6, 6));
    assert_eq!((replay.skipped, replay.differing), (0, vec![]));
}

#[test]
fn an_idle_job_is_in_the_background_if_configured() {
    let machine = machine();
    let mut agent = start(&machine, "idle = \"60s\"", Options::default());
    assert_eq!(decide(&mut agent, 1_010), nothing(Reason::Foreground));
    use_cpu(&machine, 11);
    assert_eq!(decide(&mut agent, 1_040), nothing(Reason::Foreground));
    assert_eq!(decide(&mut agent, 1_099), nothing(Reason::Foreground));
    assert_eq!(decide(&mut agent, 1_100), nothing(Reason::Settling));
    assert_eq!(decide(&mut agent, 1_105), Compact);
}

#[test]
fn a_hint_takes_effect_at_once_and_survives_a_restart() {
    let machine = machine();
    let mut agent = start(&machine, "", Options::default());
    agent.take_hint(JOB, Some(Hint::Background));
    assert_eq!(last(&agent), nothing(Reason::Settling));
    assert_eq!(decide(&mut agent, 1_010), Compact);
    agent.take_hint(JOB, Some(Hint::Foreground));
    assert_eq!(last(&agent), nothing(Reason::Foreground));
    assert!(agent.background(JOB).plan.is_none(), "the compaction ends");
    agent.take_hint(JOB, Some(Hint::Background));
    agent.take_hint("/z", None);
    agent.control(at(1_020));
    assert!(events(&agent).iter().any(|what| what.contains("came too late")));
    drop(agent);
    let mut next = start(&machine, "", Options::default());
    assert_eq!(next.background(JOB).hint, Some(Hint::Background));
    freeze(&machine);
    next.take_hint(JOB, None);
    assert_eq!(last(&next), nothing(Reason::Settling), "the job is frozen");
}

#[test]
fn nothing_is_compacted_while_the_machine_is_short_of_memory() {
    let check = |shorten: fn(&Machine), put_off: bool| {
        let machine = machine();
        let mut agent = start(&machine, "pressure_max = \"2%\"", Options::default());
        freeze(&machine);
        decide(&mut agent, 1_010);
        shorten(&machine);
        let found = decide(&mut agent, 1_020);
        assert_eq!(found, if put_off { nothing(Reason::MachineUnderPressure) } else { Compact });
        calm(&machine);
        if put_off {
            assert_eq!(decide(&mut agent, 1_030), Compact);
        }
        // And in the middle of it.
        shorten(&machine);
        carry_out(&mut agent);
        let waits = |agent: &Agent| agent.background(JOB).plan.as_ref().map(|plan| plan.paused);
        assert_eq!(waits(&agent), put_off.then_some(true));
        assert_eq!(compact(&mut agent), None, "until the next period");
        agent.publish();
        assert_eq!(agent.view().get().jobs[0].explanation == "compaction waits after 0 B", put_off);
        decide(&mut agent, 1_040);
        assert_eq!(waits(&agent), put_off.then_some(true));
        calm(&machine);
        decide(&mut agent, 1_050);
        assert_eq!(waits(&agent), put_off.then_some(false));
        carry_out(&mut agent);
        assert_eq!(waits(&agent), None);
        let waited = events(&agent).iter().filter(|what| what.starts_with("compaction waits")).count();
        assert_eq!(waited, usize::from(put_off));
    };
    check(|machine| pressure(machine, "2.00"), true);
    check(|machine| pressure(machine, "1.99"), false);
    check(|machine| machine.put("proc/meminfo", &MEMINFO.replace("MemAvailable: 512", "MemAvailable: 51")), true);
    check(|machine| machine.put("proc/meminfo", &MEMINFO.replace("MemAvailable: 512", "MemAvailable: 52")), false);
}

#[test]
fn an_observed_job_is_decided_for_and_not_compacted() {
    let check = |class: &str, dry_run: bool| {
        let machine = machine();
        freeze(&machine);
        let job = format!("[background]\nsettle = \"0s\"\n[[job]]\ncgroup = \"{JOB}\"\npolicy = \"background\"\nclass = \"{class}\"\n");
        let mut agent =
            Agent::new(machine.roots.clone(), machine.config(&job), Options { dry_run, ephemeral: true, ..Options::default() }).unwrap();
        agent.scan(at(1_000));
        assert_eq!(decide(&mut agent, 1_010), nothing(Reason::Vetoed(Veto::ObserveOnly)));
        assert_eq!(compact(&mut agent), None);
    };
    check("observe", false);
    check("standard", true);
}

#[test]
fn an_unreadable_kernel_file_costs_a_period_and_is_reported_once() {
    let machine = machine();
    let mut agent = start(&machine, "", Options::default());
    freeze(&machine);
    decide(&mut agent, 1_010);
    pressure(&machine, "much");
    for at in [1_020, 1_030] {
        assert_eq!(decide(&mut agent, at), nothing(Reason::Settling), "the last decision is kept");
    }
    calm(&machine);
    assert_eq!(decide(&mut agent, 1_040), Compact);
    agent.write_journal();
    assert_eq!(events(&agent).iter().filter(|what| what.contains("proc/pressure/memory")).count(), 1);
}

#[test]
fn compaction_waits_for_the_device() {
    let check = |device_takes_it: bool, last_words: &str| {
        let machine = machine();
        let mut agent = start(&machine, "", Options::default());
        freeze(&machine);
        decide(&mut agent, 1_010);
        assert_eq!(decide(&mut agent, 1_020), Compact);
        agent.context.tiers.offer.device = true;
        machine.set(JOB, "memory.stat", "anon 0\nswapcached 1048576\nfile_writeback 1048576");
        for _ in 0..10 {
            assert!(compact(&mut agent).is_some() && agent.background(JOB).is_due());
        }
        if device_takes_it {
            machine.set(JOB, "memory.stat", "anon 0\nswapcached 0\nfile_writeback 0");
        }
        carry_out(&mut agent);
        let events = events(&agent);
        assert!(events.last().unwrap().ends_with(last_words), "{events:?}");
    };
    check(true, "deactivated");
    check(false, "the swap device takes no more");
}
