//! The scheduler and the controllers on a fake machine, at times that the test sets.

use std::sync::mpsc;

use config::Config;

use policy::cold_age::{Decision, Hold, Reason};
use policy::veto::Veto;
use units::{Age, Bytes, Millis, Pages, UnixMillis};

use super::*;
use crate::controllers::background::Background;
use crate::controllers::cold_age::ColdAge;
use crate::controllers::cold_age::record::Period;
use crate::controllers::pressure::Pressure;
use crate::controllers::seam::Slot;
use crate::journal::{self, Journal, Record};
use crate::options::Options;
use crate::replay::{self, Replay};
use crate::testing::{FRAMES, Machine};

mod background;
mod compressor;
mod followed;
mod hard;
mod limits;
mod page_cache;
mod pressure;
mod recorded;
mod reloaded;
mod scanning;
mod slowdown;
mod swap_room;
mod trials;
mod writeback;

const JOB: &str = "/a";
const LOW: &str = "sys/fs/cgroup/a/memory.low";

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A time since boot, with the wall clock's current time.
fn at(seconds: u64) -> Now {
    let unix_ms = daemon::Clock::system(Duration::ZERO).unix_ms();
    Now { since_boot: Duration::from_secs(seconds), unix_ms }
}

/// The index of a policy in the agent's list, as far as tests need it.
const PRESSURE: usize = 3;

impl Agent {
    /// One scan, to its end.
    fn scan(&mut self, now: Now) {
        self.begin_scan(now, false).unwrap();
        assert!(self.finish_scan(Duration::MAX).unwrap());
    }

    /// The journal's records so far.
    fn records(&self) -> Vec<Record> {
        journal::read(&Journal::path(&self.context.config.agent.state_dir)).unwrap()
    }

    /// The result of their replay.
    fn replayed(&self) -> Replay {
        replay::replay(&self.records())
    }

    fn job(&self, path: &str) -> &Job {
        &self.jobs[path].job
    }

    fn cold_age(&self, path: &str) -> &ColdAge {
        self.jobs[path].slots.get().unwrap()
    }

    fn pressure(&self, path: &str) -> &Pressure {
        self.jobs[path].slots.get().unwrap()
    }

    fn background(&self, path: &str) -> &Background {
        self.jobs[path].slots.get().unwrap()
    }
}

/// How many decisions of a controller were replayed.
fn replayed(replay: &Replay, controller: &str) -> usize {
    replay.controllers.get(controller).copied().unwrap_or(0)
}

fn config(machine: &Machine, class: &str) -> Config {
    // Without parts, the first observation of a threshold counts.
    let young = "[cold_age]\nwarmup = \"0s\"\npartial = false\n[class.conservative]\nwarmup = \"0s\"";
    machine.config(&format!("{young}\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"{class}\"\n"))
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

/// One scan after exactly the first `accessed` frames were accessed, and a decision.
fn round(agent: &mut Agent, machine: &Machine, seconds: u64, accessed: usize) -> Option<Period> {
    machine.access_frames(accessed);
    agent.scan(at(seconds));
    agent.control(at(seconds));
    agent.plan();
    agent.offload();
    agent.write_journal();
    agent.jobs.get(JOB)?.slots.get::<ColdAge>()?.last
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
fn a_job_is_observed_offloaded_and_protected_and_everything_is_restored() {
    let machine = machine_with_job();
    let mut agent = agent(&machine);
    let first = round(&mut agent, &machine, 1_000, FRAMES).unwrap();
    assert_eq!(first.step.decision, Decision::Hold { reason: Hold::NoHistory });
    let second = round(&mut agent, &machine, 1_120, 60).unwrap();
    let expected = Decision::Offload { threshold: Age(1), pages: Pages(140), reason: Reason::Percentile };
    assert_eq!((second.step.decision, second.step.working_set), (expected, Pages(60)));
    assert_eq!(machine.get(LOW), (60 * page()).to_string());
    assert_eq!(machine.get("run/undo.json").matches("memory.low").count(), 1);
    // Old pages are accessed far above the objective: the threshold rises at once.
    let third = round(&mut agent, &machine, 1_240, 180).unwrap();
    assert_eq!((third.step.best, third.step.threshold), (Some(Age(2)), Some(Age(2))));
    agent.stop();
    assert_eq!(machine.get(LOW), "0");
    assert!(!machine.has("run/undo.json"));

    let replay = agent.replayed();
    assert_eq!((replayed(&replay, "cold_age"), replayed(&replay, "endurance"), replay.skipped), (3, 3, 0));
    assert_eq!(replay.differing, [0; 0]);
}

#[test]
fn protection_follows_the_working_set_and_never_falls_below_the_operators() {
    let machine = machine_with_job();
    let own = 20 * page();
    machine.set(JOB, "memory.low", &own.to_string());
    let mut agent = agent(&machine);
    let rounds = [(200, 200), (100, 100), (98, 100), (101, 100), (104, 104), (60, 60), (10, 20), (12, 20), (30, 30)];
    for (at, (accessed, want)) in (10..).map(|n| n * 120).zip(rounds) {
        round(&mut agent, &machine, at, accessed).unwrap();
        assert_eq!(machine.get(LOW), (want * page()).to_string(), "{accessed} frames accessed");
        assert_eq!(machine.has("run/undo.json"), want != 20, "only what differs from the operator's value is to be undone");
    }
    agent.stop();
    assert_eq!(machine.get(LOW), own.to_string());
}

#[test]
fn protection_does_not_fall_with_what_is_reclaimed_while_the_machine_is_short() {
    let machine = machine_with_job();
    let mut agent = agent(&machine);
    let available =
        |kib: u64| format!("MemTotal: 102400 kB\nMemFree: 9 kB\nMemAvailable: {kib} kB\nSwapTotal: 9000 kB\nSwapFree: 9000 kB\n");
    // While the machine is short, the claim falls by a page in each period, and the file is not written for that.
    for (at, kib, accessed, want) in [(10, 90_000, 200, 200), (11, 9_000, 90, 200), (12, 9_000, 90, 200), (13, 90_000, 90, 90)] {
        machine.put("proc/meminfo", &available(kib));
        round(&mut agent, &machine, at * 120, accessed).unwrap();
        assert_eq!(machine.get(LOW), (want * page()).to_string(), "{accessed} frames accessed, {kib} KiB available");
    }
}

#[test]
fn the_agent_is_charged_for_moving_memory_out() {
    let machine = machine_with_job();
    let mut agent = agent(&machine);
    round(&mut agent, &machine, 1_000, FRAMES);
    assert_eq!(agent.job(JOB).waits.view().offload_cpu_seconds, 0.0, "nothing was planned");
    // A step on the fake machine may take less than the clock's resolution.
    for turn in 1..200 {
        round(&mut agent, &machine, 1_000 + 120 * turn, 60);
        if agent.costs.offload_cpu_seconds > 0.0 {
            break;
        }
    }
    let charged = agent.job(JOB).waits.view().offload_cpu_seconds;
    assert!(charged > 0.0 && charged == agent.costs.offload_cpu_seconds, "{charged} {:?}", agent.costs);
}

#[test]
fn a_veto_is_the_reason_to_hold() {
    let check = |class: &str, dry_run: bool, prepare: fn(&Machine), veto: Veto| {
        let machine = machine_with_job();
        prepare(&machine);
        let options = Options { dry_run, ephemeral: true, ..Options::default() };
        let mut agent = Agent::new(machine.roots.clone(), config(&machine, class), options).unwrap();
        round(&mut agent, &machine, 1_000, FRAMES);
        let period = round(&mut agent, &machine, 1_120, 60).unwrap();
        assert_eq!(period.step.decision, Decision::Hold { reason: Hold::Vetoed(veto) }, "{class} {dry_run}");
        assert_eq!(period.step.threshold, Some(Age(1)), "the threshold is known");
        assert!(agent.cold_age(JOB).plan.is_none());
        assert_eq!(machine.get(LOW) != "0", veto != Veto::ObserveOnly, "an observer sets nothing");
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
    check("conservative", false, at_limit, Veto::AtLimit);
}

#[test]
fn the_next_start_restores_settings_and_history_of_a_killed_agent() {
    let machine = machine_with_job();
    let mut killed = agent(&machine);
    for (at, accessed) in [(1_000, FRAMES), (1_120, 60), (1_240, 60)] {
        round(&mut killed, &machine, at, accessed);
    }
    machine.set(JOB, "memory.swap.current", &(40 * page()).to_string());
    round(&mut killed, &machine, 1_360, 60);
    let (state, seen_at) = (killed.cold_age(JOB).state, killed.job(JOB).seen_at);
    let far = killed.job(JOB).far.clone();
    assert_eq!(far.counts().at(Age(1)), Pages(40), "swapped out by the kernel: it has no age yet");
    let refused = Agent::new(machine.roots.clone(), config(&machine, "standard"), Options::default()).unwrap_err();
    assert!(refused.to_string().contains("agent.pid"), "a second agent: {refused}");
    drop(killed);
    assert_eq!(machine.get(LOW), (60 * page()).to_string(), "not restored yet");

    let mut next = agent(&machine);
    assert_eq!(machine.get(LOW), "0");
    machine.access_frames(60);
    next.scan(at(1_400));
    assert_eq!((next.cold_age(JOB).state, next.job(JOB).seen_at), (state, seen_at));
    assert_ne!(state, policy::cold_age::State::default());
    assert_eq!(next.job(JOB).far.counts().at(Age(2)), Pages(40), "and one scan older now");
    round(&mut next, &machine, 1_520, 60);
    next.stop();
    let replay = next.replayed();
    assert_eq!((replayed(&replay, "cold_age"), replay.skipped, replay.differing), (5, 0, vec![]));
}

#[test]
fn jobs_come_and_go() {
    let machine = Machine::new();
    let mut agent = agent(&machine);
    agent.scan(at(1_000));
    assert!(agent.jobs.is_empty());
    let job = machine.cgroup(JOB);
    machine.own_frames(&job, 200);
    machine.cgroup("/a/below");
    machine.cgroup("/b");
    round(&mut agent, &machine, 1_120, FRAMES);
    round(&mut agent, &machine, 1_240, 60);
    assert_eq!(agent.jobs.keys().collect::<Vec<_>>(), [JOB]);
    assert_eq!(agent.job(JOB).members.len(), 2);
    assert!(machine.has("run/undo.json"));
    machine.remove(JOB);
    assert!(round(&mut agent, &machine, 1_360, 60).is_none());
    assert!(!machine.has("run/undo.json"), "settings are gone with their cgroup");
    let ended = |record: &Record| matches!(record, Record::Event { job: Some(job), what, .. } if job == JOB && what == "job ended");
    assert_eq!(agent.records().iter().filter(|record| ended(record)).count(), 1);
}

#[test]
fn a_job_that_cannot_be_observed_is_reported_once() {
    let machine = machine_with_job();
    let text = format!("[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\ntracker = \"lru_gen\"\n");
    let mut agent = Agent::new(machine.roots.clone(), machine.config(&text), Options::default()).unwrap();
    for at in [1_000, 1_120, 1_240] {
        assert!(round(&mut agent, &machine, at, FRAMES).is_none());
    }
    let records = agent.records();
    let reported = records.iter().filter(|r| matches!(r, Record::Event { what, .. } if what.starts_with("not watched: ")));
    assert_eq!(reported.count(), 1);
}

#[test]
fn a_damaged_kernel_file_costs_one_job_its_period_and_is_reported() {
    let machine = machine_with_job();
    machine.cgroup("/b");
    let text = "[cold_age]\nwarmup = \"0s\"\npartial = false\n[[job]]\ncgroup = \"/*\"\nclass = \"standard\"\n";
    let mut agent = Agent::new(machine.roots.clone(), machine.config(text), Options::default()).unwrap();
    round(&mut agent, &machine, 1_000, FRAMES);
    machine.set(JOB, "memory.stat", "anon what");
    round(&mut agent, &machine, 1_120, 60);
    let periods = |agent: &Agent, job: &str| agent.cold_age(job).recent().unwrap().len();
    assert_eq!((periods(&agent, JOB), periods(&agent, "/b")), (1, 2));
    assert!(agent.cold_age(JOB).plan.is_none());
    let records = agent.records();
    let reported =
        records.iter().filter(|r| matches!(r, Record::Event { job: Some(j), what, .. } if j == JOB && what.contains("memory.stat")));
    assert!(reported.count() > 0);
    machine.set(JOB, "memory.stat", "anon 0");
    round(&mut agent, &machine, 1_240, 60);
    assert_eq!(periods(&agent, JOB), 2);
}

#[test]
fn a_full_disk_costs_records_and_the_rest_replays() {
    let machine = machine_with_job();
    let mut agent = agent(&machine);
    round(&mut agent, &machine, 1_000, FRAMES);
    round(&mut agent, &machine, 1_120, 60);
    let good = agent.context.log.replace_journal(None);
    let full = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/full", full.path().join("journal")).unwrap();
    agent.context.log.replace_journal(Some(Journal::open(full.path(), Bytes::mib(1), 1).unwrap()));
    for (at, accessed) in [(1_240, 120), (1_360, 30)] {
        round(&mut agent, &machine, at, accessed);
        assert!(
            matches!(agent.context.log.pending(), [Record::Agent(_), Record::Job(_)]),
            "only a beginning: {:?}",
            agent.context.log.pending()
        );
    }
    agent.context.log.replace_journal(good);
    round(&mut agent, &machine, 1_480, 60);
    round(&mut agent, &machine, 1_600, 60);
    let replay = agent.replayed();
    assert_eq!((replayed(&replay, "cold_age"), replay.skipped, replay.differing), (4, 0, vec![]));
}

#[test]
fn the_loop_ends_by_a_message_and_at_its_time() {
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
    assert_eq!(rounds, 2, "without a sender: one round, and the end");
}

#[test]
fn savings_are_summed_by_kind() {
    let machine = Machine::new();
    let jobs =
        [("/app", "application", 400), ("/log", "datacenter_tax", 80), ("/proxy", "application_tax", 40), ("/mesh", "application_tax", 20)];
    let mut text = String::new();
    for (job, kind, kib) in jobs {
        machine.cgroup(job);
        machine.set(job, "memory.current", &(kib * 1024).to_string());
        text += &format!("[[job]]\ncgroup = \"{job}\"\nkind = \"{kind}\"\n");
    }
    machine.set("/log", "memory.swap.current", "30720");
    machine.set("/log", "memory.stat", "anon 0\nzswap 10240");
    let options = Options { ephemeral: true, ..Options::default() };
    let mut agent = Agent::new(machine.roots.clone(), machine.config(&text), options).unwrap();
    let (sender, messages) = std::sync::mpsc::sync_channel(1);
    sender.send(Message::Stop).unwrap();
    agent.run(&messages, None, &mut |_, _| ()).unwrap();
    let view = agent.view().get();
    let totals = view.totals_by_kind.map(|kind| (kind.kind, kind.jobs, kind.memory_bytes.0 / 1024, kind.saved_bytes.0 / 1024));
    assert_eq!(totals, [("application", 1, 400, 0), ("datacenter_tax", 1, 80, 20), ("application_tax", 2, 60, 0)]);
    assert_eq!(view.totals_by_kind.map(|kind| kind.memory_ratio), [0.390_625, 0.078_125, 0.058_593]);
    let metrics = crate::metrics::render(&view).unwrap();
    assert!(
        metrics.contains("thermocline_job_saved_bytes{cgroup=\"/log\",class=\"aggressive\",kind=\"datacenter_tax\"} 20480"),
        "{metrics}"
    );
}
