//! The loop's parts over a fake machine, with times of the test's choice.

use std::sync::mpsc;

use policy::cold_age::{Decision, Hold, Reason};
use policy::veto::Veto;
use units::{Age, Pages};

use super::*;
use crate::job::ClosedPeriod;
use crate::replay;
use crate::testing::{FRAMES, Machine};

mod followed;
mod recorded;

const JOB: &str = "/a";
const LOW: &str = "sys/fs/cgroup/a/memory.low";

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn config(machine: &Machine, class: &str) -> Config {
    machine.config(&format!("[cold_age]\nwarmup = \"0s\"\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"{class}\"\n"))
}

fn agent(machine: &Machine) -> Agent {
    Agent::new(machine.roots.clone(), config(machine, "standard"), Options::default()).unwrap()
}

/// A machine whose job owns 200 frames.
fn machine_with_job() -> Machine {
    let machine = Machine::new();
    let job = machine.cgroup(JOB);
    machine.own_frames(&job, 200);
    machine
}

/// One scan after exactly the first `accessed` frames were, and a decision.
fn round(agent: &mut Agent, machine: &Machine, at: u64, accessed: usize) -> Option<ClosedPeriod> {
    machine.access_frames(accessed);
    agent.scan(seconds(at));
    agent.control(seconds(at));
    agent.plan();
    agent.act();
    agent.write_journal();
    agent.jobs.get(JOB)?.recent.back().copied()
}

fn page() -> u64 {
    kernel::page_size().bytes()
}

#[test]
fn missed_periods_are_skipped() {
    let s = seconds;
    assert_eq!(after(s(10), s(2), s(11)), s(12));
    assert_eq!(after(s(10), s(2), s(12)), s(12));
    assert_eq!(after(s(10), s(2), s(17)), s(19));
}

#[test]
fn a_job_is_learned_decided_for_and_protected_and_all_of_it_undone() {
    let machine = machine_with_job();
    let mut agent = agent(&machine);
    let first = round(&mut agent, &machine, 1_000, FRAMES).unwrap();
    assert_eq!(first.step.decision, Decision::Hold { reason: Hold::NoHistory });
    let second = round(&mut agent, &machine, 1_120, 60).unwrap();
    let expected = Decision::Offload { threshold: Age(1), pages: Pages(140), reason: Reason::Percentile };
    assert_eq!((second.step.decision, second.step.working_set), (expected, Pages(60)));
    assert_eq!(machine.get(LOW), (60 * page()).to_string());
    assert_eq!(machine.get("run/undo.json").matches("memory.low").count(), 1);
    // Old pages come back, far above the objective: the threshold rises at once.
    let third = round(&mut agent, &machine, 1_240, 180).unwrap();
    assert_eq!((third.step.best, third.step.threshold), (Some(Age(2)), Some(Age(2))));
    agent.stop();
    assert_eq!(machine.get(LOW), "0");
    assert!(!machine.has("run/undo.json"));

    let records = journal::read(&Journal::path(&agent.config.agent.state_dir)).unwrap();
    let replayed = replay::replay(&records);
    assert_eq!((replayed.periods, replayed.skipped, replayed.differing), (3, 0, vec![]));
}

#[test]
fn protection_follows_the_working_set_and_never_falls_below_the_operators() {
    let machine = machine_with_job();
    let own = 20 * page();
    machine.set(JOB, "memory.low", &own.to_string());
    let mut agent = agent(&machine);
    let rounds = [(200, 200), (100, 100), (98, 100), (60, 60), (10, 20), (12, 20), (30, 30)];
    for (at, (accessed, want)) in (10..).map(|n| n * 120).zip(rounds) {
        round(&mut agent, &machine, at, accessed).unwrap();
        assert_eq!(machine.get(LOW), (want * page()).to_string(), "{accessed} frames accessed");
        assert_eq!(machine.has("run/undo.json"), want != 20, "only what differs from the operator's value is to be undone");
    }
    agent.stop();
    assert_eq!(machine.get(LOW), own.to_string());
}

#[test]
fn what_forbids_offloading_is_the_reason_to_hold() {
    let check = |class: &str, dry_run: bool, prepare: fn(&Machine), veto: Veto| {
        let machine = machine_with_job();
        prepare(&machine);
        let options = Options { dry_run, ephemeral: true };
        let mut agent = Agent::new(machine.roots.clone(), config(&machine, class), options).unwrap();
        round(&mut agent, &machine, 1_000, FRAMES);
        let period = round(&mut agent, &machine, 1_120, 60).unwrap();
        assert_eq!(period.step.decision, Decision::Hold { reason: Hold::Vetoed(veto) }, "{class} {dry_run}");
        assert_eq!(period.step.threshold, Some(Age(1)), "known all the same");
        assert!(agent.jobs[JOB].plan.is_none());
        assert_eq!(machine.get(LOW) != "0", veto != Veto::ObserveOnly, "who only looks sets nothing");
        assert!(!machine.has("state"), "an ephemeral agent leaves no state");
    };
    check("observe", false, |_| (), Veto::ObserveOnly);
    check("standard", true, |_| (), Veto::ObserveOnly);
    check("standard", false, |machine| machine.put("proc/swaps", "Filename Type Size Used Priority\n"), Veto::NoFarMemory);
    let full = |machine: &Machine| machine.put("proc/swaps", "Filename Type Size Used Priority\n/dev/vdb partition 1024 1000 -2\n");
    check("standard", false, full, Veto::NoFarMemory);
    let off = |machine: &Machine| machine.put("sys/module/zswap/parameters/enabled", "N\n");
    check("standard", false, off, Veto::NoFarMemory);
    let at_limit = |machine: &Machine| {
        machine.set(JOB, "memory.current", "4096000");
        machine.set(JOB, "memory.max", "4096000");
    };
    check("standard", false, at_limit, Veto::AtLimit);
}

#[test]
fn a_job_that_shall_fail_fast_cannot_swap_on_while_it_is_at_its_limit() {
    const SWAP_MAX: &str = "sys/fs/cgroup/a/memory.swap.max";
    let machine = machine_with_job();
    let text = format!("at_limit = \"fail_fast\"\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n");
    let mut agent = Agent::new(machine.roots.clone(), machine.config(&text), Options::default()).unwrap();
    machine.set(JOB, "memory.max", "4096000");
    machine.set(JOB, "memory.swap.current", "163840");
    for (at, current, want) in
        [(1_000, 1_000_000, "max"), (1_120, 4_090_000, "163840"), (1_240, 4_096_000, "163840"), (1_360, 900_000, "max")]
    {
        machine.set(JOB, "memory.current", &current.to_string());
        round(&mut agent, &machine, at, 60);
        assert_eq!(machine.get(SWAP_MAX), want, "{current} bytes charged");
    }
    machine.set(JOB, "memory.current", "4096000");
    round(&mut agent, &machine, 1_480, 60);
    assert_eq!(machine.get(SWAP_MAX), "163840");
    agent.stop();
    assert_eq!(machine.get(SWAP_MAX), "max");
}

#[test]
fn the_next_start_puts_back_what_a_killed_agent_left_and_goes_on_with_its_history() {
    let machine = machine_with_job();
    let mut killed = agent(&machine);
    for (at, accessed) in [(1_000, FRAMES), (1_120, 60), (1_240, 60)] {
        round(&mut killed, &machine, at, accessed);
    }
    machine.set(JOB, "memory.swap.current", &(40 * page()).to_string());
    round(&mut killed, &machine, 1_360, 60);
    let (state, seen_at, far) = (killed.jobs[JOB].state, killed.jobs[JOB].seen_at, killed.jobs[JOB].far.clone());
    assert_eq!(far.counts().at(Age(1)), Pages(40), "swapped out by others: it has no age yet");
    let refused = Agent::new(machine.roots.clone(), config(&machine, "standard"), Options::default()).unwrap_err();
    assert!(refused.to_string().contains("agent.pid"), "a second agent: {refused}");
    drop(killed);
    assert_eq!(machine.get(LOW), (60 * page()).to_string(), "nobody has put it back");

    let mut next = agent(&machine);
    assert_eq!(machine.get(LOW), "0");
    machine.access_frames(60);
    next.scan(seconds(1_400));
    assert_eq!((next.jobs[JOB].state, next.jobs[JOB].seen_at), (state, seen_at));
    assert_ne!(state, policy::cold_age::State::default());
    assert_eq!(next.jobs[JOB].far.counts().at(Age(2)), Pages(40), "and one scan older now");
    round(&mut next, &machine, 1_520, 60);
    next.stop();
    let replayed = replay::replay(&journal::read(&Journal::path(&next.config.agent.state_dir)).unwrap());
    assert_eq!((replayed.periods, replayed.skipped, replayed.differing), (5, 0, vec![]));
}

#[test]
fn jobs_come_and_go() {
    let machine = Machine::new();
    let mut agent = agent(&machine);
    agent.scan(seconds(1_000));
    assert!(agent.jobs.is_empty());
    let job = machine.cgroup(JOB);
    machine.own_frames(&job, 200);
    machine.cgroup("/a/below");
    machine.cgroup("/b");
    round(&mut agent, &machine, 1_120, FRAMES);
    round(&mut agent, &machine, 1_240, 60);
    assert_eq!(agent.jobs.keys().collect::<Vec<_>>(), [JOB]);
    assert_eq!(agent.jobs[JOB].members.len(), 2);
    assert!(machine.has("run/undo.json"));
    machine.remove(JOB);
    assert!(round(&mut agent, &machine, 1_360, 60).is_none());
    assert!(!machine.has("run/undo.json"), "what was set for it is gone with it");
    let what = journal::read(&Journal::path(&agent.config.agent.state_dir)).unwrap().pop();
    assert!(matches!(what, Some(Record::Event { job: Some(job), what, .. }) if job == JOB && what == "job ended"));
}

#[test]
fn a_job_that_cannot_be_watched_is_told_once() {
    let machine = machine_with_job();
    let text = format!("[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\ntracker = \"lru_gen\"\n");
    let mut agent = Agent::new(machine.roots.clone(), machine.config(&text), Options::default()).unwrap();
    for at in [1_000, 1_120, 1_240] {
        assert!(round(&mut agent, &machine, at, FRAMES).is_none());
    }
    let records = journal::read(&Journal::path(&agent.config.agent.state_dir)).unwrap();
    let told = records.iter().filter(|r| matches!(r, Record::Event { what, .. } if what.starts_with("not watched: ")));
    assert_eq!(told.count(), 1);
}

#[test]
fn a_damaged_kernel_file_costs_one_job_its_period_and_is_told() {
    let machine = machine_with_job();
    machine.cgroup("/b");
    let text = "[cold_age]\nwarmup = \"0s\"\n[[job]]\ncgroup = \"/*\"\nclass = \"standard\"\n";
    let mut agent = Agent::new(machine.roots.clone(), machine.config(text), Options::default()).unwrap();
    round(&mut agent, &machine, 1_000, FRAMES);
    machine.set(JOB, "memory.stat", "anon what");
    round(&mut agent, &machine, 1_120, 60);
    assert_eq!((agent.jobs[JOB].recent.len(), agent.jobs["/b"].recent.len()), (1, 2));
    assert!(agent.jobs[JOB].plan.is_none());
    let records = journal::read(&Journal::path(&agent.config.agent.state_dir)).unwrap();
    let told = records.iter().filter(|r| matches!(r, Record::Event { job: Some(j), what, .. } if j == JOB && what.contains("memory.stat")));
    assert!(told.count() > 0);
    machine.set(JOB, "memory.stat", "anon 0");
    round(&mut agent, &machine, 1_240, 60);
    assert_eq!(agent.jobs[JOB].recent.len(), 2);
}

#[test]
fn a_full_disk_costs_records_and_never_the_replay() {
    let machine = machine_with_job();
    let mut agent = agent(&machine);
    round(&mut agent, &machine, 1_000, FRAMES);
    round(&mut agent, &machine, 1_120, 60);
    let good = agent.journal.take();
    let full = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/full", full.path().join("journal")).unwrap();
    agent.journal = Some(Journal::open(full.path(), Bytes::mib(1), 1).unwrap());
    for (at, accessed) in [(1_240, 120), (1_360, 30)] {
        round(&mut agent, &machine, at, accessed);
        assert!(matches!(agent.pending[..], [Record::Agent(_), Record::Job(_)]), "only a beginning waits: {:?}", agent.pending);
    }
    agent.journal = good;
    round(&mut agent, &machine, 1_480, 60);
    round(&mut agent, &machine, 1_600, 60);
    let replayed = replay::replay(&journal::read(&Journal::path(&agent.config.agent.state_dir)).unwrap());
    assert_eq!((replayed.periods, replayed.skipped, replayed.differing), (4, 0, vec![]));
}

#[test]
fn the_loop_ends_when_told_and_at_its_time() {
    let machine = machine_with_job();
    let mut agent = agent(&machine);
    let (sender, receiver) = mpsc::channel();
    sender.send(Message::Stop).unwrap();
    let mut rounds = 0;
    agent.run(&receiver, None, &mut |_, view| rounds += u32::from(view.costs.scans == 1 && view.jobs.len() == 1)).unwrap();
    assert_eq!(rounds, 1);
    agent.run(&receiver, Some(Duration::ZERO), &mut |_, _| rounds += 1).unwrap();
    drop(sender);
    agent.run(&receiver, None, &mut |_, _| rounds += 1).unwrap();
    assert_eq!(rounds, 2, "nobody is left to tell it: one round, and the end");
}
