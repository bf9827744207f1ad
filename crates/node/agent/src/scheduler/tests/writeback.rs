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
const PAGE: usize = 4096;
const PAGES: usize = 64;

/// A machine with a swap device, and a job of 64 pages that are swapped out by their page map.
struct Swapped {
    machine: Machine,
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
        let mut pagemap = std::fs::File::create(machine.path(&format!("proc/{pid}/pagemap"))).unwrap();
        pagemap.seek(SeekFrom::Start((start / PAGE * 8) as u64)).unwrap();
        let entries: Vec<u8> = (1..=PAGES as u64).flat_map(|slot| (1_u64 << 62 | slot << 5).to_ne_bytes()).collect();
        pagemap.write_all(&entries).unwrap();
        Self { machine, _memory: memory }
    }

    fn start(&self, more: &str) -> Agent {
        let rule = format!("[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\npolicy = \"auto\"\n");
        let config = format!("[pressure]\nstall_target = \"50%\"\n[writeback]\nenabled = true\nafter_min = \"60s\"\n{more}\n{rule}");
        let mut agent = Agent::new(self.machine.roots.clone(), self.machine.config(&config), Options::default()).unwrap();
        agent.context.pacing.rate = ByteRate::new(Bytes::mib(64), Duration::ZERO);
        self.machine.access_frames(0);
        agent.scan(at(1_000));
        agent
    }
}

/// The decision at a time. Other controllers report a threshold of one scan, and a stall target.
fn decide(agent: &mut Agent, seconds: u64) -> Moved {
    let signals = &mut agent.jobs.get_mut(JOB).unwrap().job.signals;
    signals.threshold = Some(Age(1));
    signals.stall =
        Some(crate::job::Stall { target: units::RatioPpm(500_000), page_cache: units::RatioPpm(0), observed_cost_us: 0, at_target: false });
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
    let mut agent = swapped.start("");
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
    let mut agent = swapped.start("");
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
        let mut agent = swapped.start("");
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
fn other_memory_written_ends_the_plan() {
    let swapped = Swapped::new();
    let mut agent = swapped.start("");
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
    let mut agent = swapped.start("");
    decide(&mut agent, 1_010);
    assert!(matches!(decide(&mut agent, 40_000), Moved::Write { .. }));
    swapped.machine.put(&format!("proc/{}/cgroup", std::process::id()), "0::/b\n");
    carry_out(&mut agent);
    assert_eq!(moved(&agent), Bytes::ZERO);
}
