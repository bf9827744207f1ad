//! Moving memory from zswap to the device, over a fake machine whose job is a part of this process.

use std::io::{Seek, SeekFrom, Write};

use policy::writeback::{Decision as Moved, Hold as Kept, Obstacle};

use super::*;
use crate::context::pace::ByteRate;
use crate::controllers::slots::Entry;
use crate::controllers::writeback::Writeback;

/// The index of the policy in the agent's list.
const WRITEBACK: usize = 6;

const ZSWAP_MAX: &str = "sys/fs/cgroup/a/memory.zswap.max";
const ON: &str = "enabled = true\nafter_min = \"60s\"";
const PAGE: usize = 4096;
const PAGES: usize = 64;

/// A machine with a swap device, and a job of 64 pages that are swapped out by their page map.
struct Swapped {
    machine: Machine,
    start: usize,
    _memory: Vec<u8>,
}

impl Swapped {
    fn new() -> Self {
        let machine = Machine::new();
        machine.cgroup(JOB);
        let pid = std::process::id();
        machine.set(JOB, "cgroup.procs", &pid.to_string());
        machine.set(JOB, "memory.zswap.max", "max");
        machine.set(JOB, "memory.zswap.writeback", "1");
        machine.set(JOB, "memory.stat", "anon 0\nzswap 80000\nzswapped 262144\nzswpin 0\nzswpout 64\nzswpwb 0\npswpout 0");
        machine.set(JOB, "memory.swap.current", "262144");
        machine.put(&format!("proc/{pid}/cgroup"), "0::/a\n");
        machine.put("sys/class/block/vdb/stat", "0 0 0 0 0 0 0 0\n");
        machine.put("proc/vmstat", "zswpwb 0\npswpout 0\n");
        let memory = vec![1_u8; (PAGES + 32) * PAGE];
        let start = (memory.as_ptr().addr()).next_multiple_of(16 * PAGE);
        let end = start + PAGES * PAGE;
        machine.put(&format!("proc/{pid}/maps"), &format!("{start:x}-{end:x} rw-p 00000000 00:00 0 \n"));
        let swapped = Self { machine, start, _memory: memory };
        swapped.put_pages(0);
        swapped
    }

    /// Writes the page map: all pages but the first ones are swapped out.
    fn put_pages(&self, present: usize) {
        let entry = |page: usize| if page < present { 1_u64 << 63 | 1 << 56 | 1 } else { 1 << 62 | (page as u64 + 1) << 5 };
        let entries: Vec<u8> = (0..PAGES).flat_map(|page| entry(page).to_ne_bytes()).collect();
        let mut pagemap = std::fs::File::create(self.machine.path(&format!("proc/{}/pagemap", std::process::id()))).unwrap();
        pagemap.seek(SeekFrom::Start((self.start / PAGE * 8) as u64)).unwrap();
        pagemap.write_all(&entries).unwrap();
    }

    /// A configuration with these settings in `[writeback]`.
    fn config(&self, writeback: &str) -> Config {
        let rule = format!("[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\npolicy = \"auto\"\n");
        self.machine.config(&format!("[pressure]\nstall_target = \"50%\"\n[writeback]\n{writeback}\n{rule}"))
    }

    fn start(&self) -> Agent {
        self.start_with(self.config(ON))
    }

    fn start_with(&self, config: Config) -> Agent {
        let mut agent = Agent::new(self.machine.roots.clone(), config, Options::default()).unwrap();
        agent.context.pacing.rate = ByteRate::new(Bytes::mib(64), Duration::ZERO);
        self.machine.access_frames(0);
        agent.scan(at(1_000));
        agent
    }
}

/// The decision at a time. Other controllers report a threshold of one scan, and a stall target.
fn decide(agent: &mut Agent, seconds: u64) -> Moved {
    decide_with(agent, seconds, Some(Age(1)), units::RatioPpm(500_000))
}

fn decide_with(agent: &mut Agent, seconds: u64, threshold: Option<Age>, target: units::RatioPpm) -> Moved {
    let signals = &mut agent.jobs.get_mut(JOB).unwrap().job.signals;
    signals.threshold = threshold;
    signals.stall = Some(crate::job::Stall { target, page_cache: units::RatioPpm(0), observed_cost_us: 0, at_target: false });
    agent.decide_now(WRITEBACK, at(seconds));
    last(agent)
}

fn last(agent: &Agent) -> Moved {
    agent.jobs[JOB].slots.get::<Writeback>().unwrap().last.unwrap().1.decision
}

fn carry_out(agent: &mut Agent) {
    let Agent { policies, jobs, context, .. } = agent;
    for _ in 0..1_000 {
        if policies[WRITEBACK].policy.act(jobs, context).is_none() {
            return;
        }
    }
    panic!("the plan does not end");
}

fn moved(agent: &Agent) -> Bytes {
    let mut view = crate::view::JobView::default();
    agent.jobs[JOB].slots.get::<Writeback>().unwrap().report(agent.job(JOB), &mut view);
    view.moved_to_device_bytes
}

#[test]
fn what_stays_far_is_moved_once_and_the_settings_are_restored() {
    let swapped = Swapped::new();
    let mut agent = swapped.start();
    assert_eq!(decide(&mut agent, 1_010), Moved::Hold { reason: Kept::NothingOld });
    assert!(matches!(decide(&mut agent, 40_000), Moved::Write { .. }));
    carry_out(&mut agent);
    assert_eq!(moved(&agent), Bytes((PAGES * PAGE) as u64));
    assert_eq!((swapped.machine.get(ZSWAP_MAX).as_str(), agent.context.undo.original(&swapped.machine.path(ZSWAP_MAX))), ("max", None));
    assert_eq!(decide(&mut agent, 80_000), Moved::Hold { reason: Kept::NothingOld }, "they are not moved twice");
    agent.stop();
    let replay = agent.replayed();
    assert_eq!((replayed(&replay, "writeback"), replay.skipped, replay.differing), (3, 0, vec![]));
}

#[test]
fn reads_of_the_agent_are_no_promotions() {
    let swapped = Swapped::new();
    let mut agent = swapped.start();
    decide(&mut agent, 1_010);
    decide(&mut agent, 40_000);
    carry_out(&mut agent);
    let stat = |zswpin: u64| format!("anon 0\nzswap 80000\nzswapped 262144\nzswpin {zswpin}\nzswpout 64\nzswpwb 0\npswpout 0\npswpin 0");
    // The counters come late.
    let Entry { job, .. } = agent.jobs.get_mut(JOB).unwrap();
    let mut promoted = |zswpin: u64| {
        swapped.machine.set(JOB, "memory.stat", &stat(zswpin));
        job.observe(&crate::ram_disks::RamDisks::default()).unwrap()
    };
    assert_eq!(promoted(60), Pages(0));
    assert_eq!(promoted(70), Pages(6));
    assert_eq!(promoted(75), Pages(5));
}

#[test]
fn an_operators_settings_and_unsuitable_devices_forbid_it() {
    let check = |what: &dyn Fn(&Machine), expected: Obstacle| {
        let swapped = Swapped::new();
        let mut agent = swapped.start();
        decide(&mut agent, 1_010);
        what(&swapped.machine);
        assert_eq!(decide(&mut agent, 40_000), Moved::Hold { reason: Kept::Obstacle(expected) });
        carry_out(&mut agent);
        assert_eq!(moved(&agent), Bytes::ZERO);
    };
    check(&|machine| machine.set(JOB, "memory.zswap.max", "1048576"), Obstacle::OperatorsLimit);
    check(&|machine| machine.set(JOB, "memory.zswap.writeback", "0"), Obstacle::NoWriteback);
    check(&|machine| machine.set(JOB, "memory.max", "1048576"), Obstacle::ShortOfMemory);
    check(&|machine| machine.put("sys/module/zswap/parameters/enabled", "N\n"), Obstacle::NoZswap);
    check(&|machine| machine.put("proc/swaps", "Filename Type Size Used Priority\n"), Obstacle::NoDevice);
    let ram = |machine: &Machine| {
        machine.put("sys/class/block/ram0/stat", "0 0 0 0 0 0 0 0\n");
        machine.put("proc/swaps", "Filename Type Size Used Priority\n/dev/ram0 partition 1024 0 -2\n");
    };
    check(&ram, Obstacle::NoDevice);
}

#[test]
fn a_kernel_that_does_not_count_what_it_writes_back_forbids_it() {
    let without = |text: &str, counter: &str| text.lines().filter(|line| !line.starts_with(counter)).collect::<Vec<_>>().join("\n");
    let check = |file: &str, counter: &str| {
        let swapped = Swapped::new();
        let mut agent = swapped.start();
        decide(&mut agent, 1_010);
        assert_eq!(decide(&mut agent, 1_060), Moved::Hold { reason: Kept::NothingOld });
        swapped.machine.put(file, &without(&swapped.machine.get(file), counter));
        assert_eq!(decide(&mut agent, 40_000), Moved::Hold { reason: Kept::Obstacle(Obstacle::NoCounters) }, "{file}: {counter}");
        carry_out(&mut agent);
        assert_eq!(moved(&agent), Bytes::ZERO);
        let slot = agent.jobs[JOB].slots.get::<Writeback>().unwrap();
        let said = slot.explain(&agent.jobs[JOB].job).unwrap();
        assert!(said.contains("zswpwb") && said.contains("6.8"), "{said}");
    };
    check("sys/fs/cgroup/a/memory.stat", "zswpwb");
    check("sys/fs/cgroup/a/memory.stat", "zswpout");
    check("proc/vmstat", "zswpwb");
}

#[test]
fn counters_that_are_lost_between_decision_and_batch_move_nothing() {
    let swapped = Swapped::new();
    let mut agent = swapped.start();
    decide(&mut agent, 1_010);
    assert!(matches!(decide(&mut agent, 40_000), Moved::Write { .. }));
    swapped.machine.put("proc/vmstat", "pswpout 0\n");
    carry_out(&mut agent);
    assert_eq!(moved(&agent), Bytes::ZERO);
}

#[test]
fn other_memory_written_ends_the_plan() {
    let swapped = Swapped::new();
    let mut agent = swapped.start();
    decide(&mut agent, 1_010);
    assert!(matches!(decide(&mut agent, 40_000), Moved::Write { .. }));
    // The last reading before the batch is that of a kernel that has written something back since.
    agent.jobs.get_mut(JOB).unwrap().slots.get_mut::<Writeback>().unwrap().pretend_spill();
    assert_eq!(decide(&mut agent, 40_060), Moved::Hold { reason: Kept::OthersWritten });
    carry_out(&mut agent);
    assert_eq!(moved(&agent), Bytes::ZERO);
    assert!(matches!(decide(&mut agent, 40_120), Moved::Write { .. }));
}

#[test]
fn a_process_that_left_the_job_is_not_touched() {
    let swapped = Swapped::new();
    let mut agent = swapped.start();
    decide(&mut agent, 1_010);
    assert!(matches!(decide(&mut agent, 40_000), Moved::Write { .. }));
    swapped.machine.put(&format!("proc/{}/cgroup", std::process::id()), "0::/b\n");
    carry_out(&mut agent);
    assert_eq!(moved(&agent), Bytes::ZERO);
}

#[test]
fn a_reload_changes_its_parameters_and_turns_it_off_and_on() {
    let swapped = Swapped::new();
    let mut agent = swapped.start();
    decide(&mut agent, 1_010);
    let reload = |agent: &mut Agent, writeback: &str| agent.receive(Message::Reload(Box::new(Ok(swapped.config(writeback)))));
    reload(&mut agent, "enabled = true\nafter_min = \"24h\"\nperiod_max = \"1MiB\"");
    let params = agent.jobs[JOB].slots.get::<Writeback>().unwrap().start.params;
    assert_eq!((params.after_min_ms, params.pages_max), (Millis(86_400_000), Pages(256)));
    assert_eq!(decide(&mut agent, 40_000), Moved::Hold { reason: Kept::NothingOld });
    reload(&mut agent, ON);
    assert!(matches!(decide(&mut agent, 40_060), Moved::Write { .. }), "the ages are kept");
    reload(&mut agent, "enabled = false");
    assert!(agent.jobs[JOB].slots.get::<Writeback>().is_none());
    carry_out(&mut agent);
    assert_eq!((swapped.machine.get(ZSWAP_MAX).as_str(), agent.context.undo.original(&swapped.machine.path(ZSWAP_MAX))), ("max", None));
    reload(&mut agent, ON);
    assert_eq!(decide(&mut agent, 40_120), Moved::Hold { reason: Kept::NothingOld }, "ages begin again");
    assert!(matches!(decide(&mut agent, 80_000), Moved::Write { .. }));
    carry_out(&mut agent);
    assert_eq!(moved(&agent), Bytes((PAGES * PAGE) as u64));
    agent.stop();
    let replay = agent.replayed();
    assert_eq!((replayed(&replay, "writeback"), replay.skipped, replay.differing), (5, 0, vec![]));
}

/// Decisions of each kind. With `UPDATE_JOURNAL=1` their journal becomes the golden one of `tests/golden_controllers.rs`.
#[test]
fn decisions_of_each_kind_are_recorded_and_replay() {
    let hold = |reason| Moved::Hold { reason };
    let swapped = Swapped::new();
    let config = swapped.config("enabled = true\nafter_min = \"10h\"");
    let mut agent = swapped.start_with(config);
    assert_eq!(decide(&mut agent, 1_010), hold(Kept::NothingOld));
    assert_eq!(decide(&mut agent, 30_000), hold(Kept::NothingOld), "after 8 h");
    assert!(matches!(decide(&mut agent, 40_000), Moved::Write { .. }));
    carry_out(&mut agent);
    // Three pages of a block return from the device; the others are as if they had just gone out.
    swapped.put_pages(3);
    assert_eq!(decide(&mut agent, 40_060), hold(Kept::NothingOld));
    assert_eq!(agent.jobs[JOB].slots.get::<Writeback>().unwrap().last.unwrap().0.returned, Pages(3));
    agent.jobs.get_mut(JOB).unwrap().slots.get_mut::<Writeback>().unwrap().pretend_spill();
    assert_eq!(decide(&mut agent, 40_120), hold(Kept::OthersWritten));
    assert_eq!(decide_with(&mut agent, 40_180, None, units::RatioPpm(500_000)), hold(Kept::NoThreshold));
    swapped.machine.set(JOB, "memory.zswap.writeback", "0");
    assert_eq!(decide(&mut agent, 120_000), hold(Kept::Obstacle(Obstacle::NoWriteback)));
    swapped.machine.set(JOB, "memory.zswap.writeback", "1");
    assert_eq!(decide_with(&mut agent, 120_060, Some(Age(1)), units::RatioPpm(0)), hold(Kept::StallTarget));
    assert!(matches!(decide(&mut agent, 200_000), Moved::Write { .. }));
    carry_out(&mut agent);
    assert_eq!(moved(&agent), Bytes(((PAGES + 13) * PAGE) as u64));
    agent.stop();
    let replay = agent.replayed();
    assert_eq!((replayed(&replay, "writeback"), replay.skipped, replay.differing), (9, 0, vec![]));
    if std::env::var_os("UPDATE_JOURNAL").is_some() {
        let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journal-v8-writeback.jsonl");
        std::fs::copy(Journal::path(&agent.context.config.agent.state_dir), golden).unwrap();
    }
}
