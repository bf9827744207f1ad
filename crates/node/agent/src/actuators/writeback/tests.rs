use std::process::{Child, Command};

use super::*;
use crate::testing::Machine;

const PAGE: usize = 4096;
const JOB: &str = "/a";

/// Blocks of memory, and the machine's files about them: each page is swapped out, as its page map says.
struct Swapped {
    machine: Machine,
    memory: Vec<u8>,
}

impl Swapped {
    fn new(pid: i32, blocks: usize) -> Self {
        let machine = Machine::new();
        machine.put(&format!("proc/{pid}/cgroup"), "0::/a\n");
        machine.put("proc/vmstat", "zswpwb 5\n");
        let memory = vec![1_u8; (blocks + 1) * survey::PAGES * PAGE];
        let swapped = Self { machine, memory };
        let pages = blocks * survey::PAGES;
        let entries: Vec<u8> = (1..=pages as u64).flat_map(|slot| (1_u64 << 62 | slot << 5).to_ne_bytes()).collect();
        let path = swapped.machine.path(&format!("proc/{pid}/pagemap"));
        let file = std::fs::File::create(path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &entries, swapped.start(0) / PAGE as u64 * 8).unwrap();
        swapped
    }

    /// The address of a block.
    fn start(&self, block: usize) -> u64 {
        let bytes = survey::PAGES * PAGE;
        (self.memory.as_ptr().addr().next_multiple_of(bytes) + block * bytes) as u64
    }

    fn roots(&self) -> &Roots {
        &self.machine.roots
    }
}

fn own_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

#[test]
fn each_file_is_opened_once_for_all_blocks_of_a_process() {
    let (pid, blocks) = (own_pid(), 4);
    let swapped = Swapped::new(pid, blocks);
    let process = Process::pin(swapped.roots(), pid, JOB).unwrap().unwrap();
    let mut written_back = WrittenBack::open(swapped.roots()).unwrap().unwrap();
    // Whatever is opened from here on fails.
    let files = ["vmstat".to_owned(), format!("{pid}/pagemap"), format!("{pid}/cgroup")];
    for file in &files {
        std::fs::remove_file(swapped.machine.path(&format!("proc/{file}"))).unwrap();
    }
    for block in 0..blocks {
        let start = swapped.start(block);
        let known = survey::read_block(&process.pagemap, start).unwrap();
        let moved = process.move_block(&mut written_back, start, known).unwrap().unwrap();
        assert_eq!((moved.pages, moved.found, moved.spilled), (Pages(16), Some(known), false));
    }
}

#[test]
fn a_block_whose_entries_changed_is_left_alone() {
    let swapped = Swapped::new(own_pid(), 2);
    let process = Process::pin(swapped.roots(), own_pid(), JOB).unwrap().unwrap();
    let mut written_back = WrittenBack::open(swapped.roots()).unwrap().unwrap();
    let other = survey::read_block(&process.pagemap, swapped.start(1)).unwrap();
    assert_eq!(process.move_block(&mut written_back, swapped.start(0), other).unwrap(), None);
}

#[test]
fn what_the_kernel_writes_back_is_seen_with_the_block_and_once() {
    let swapped = Swapped::new(own_pid(), 2);
    let process = Process::pin(swapped.roots(), own_pid(), JOB).unwrap().unwrap();
    let mut written_back = WrittenBack::open(swapped.roots()).unwrap().unwrap();
    let known = survey::read_block(&process.pagemap, swapped.start(0)).unwrap();
    let mut spills = |vmstat: &str| {
        swapped.machine.put("proc/vmstat", vmstat);
        process.move_block(&mut written_back, swapped.start(0), known).unwrap().unwrap().spilled
    };
    assert!(!spills("zswpwb 5\n"));
    assert!(spills("zswpwb 6\n"));
    assert!(!spills("zswpwb 6\n"));
    assert!(spills("pgfault 6\n"), "without the counter nothing can be compared");
    swapped.machine.put("proc/vmstat", "pgfault 6\n");
    assert!(WrittenBack::open(swapped.roots()).unwrap().is_none());
}

/// A process that does nothing.
fn sleeper() -> Child {
    Command::new("sleep").arg("600").spawn().unwrap()
}

#[test]
fn a_process_that_exited_is_not_pinned_and_nothing_of_its_successor_is_read() {
    let mut child = sleeper();
    let pid = i32::try_from(child.id()).unwrap();
    let swapped = Swapped::new(pid, 1);
    let process = Process::pin(swapped.roots(), pid, JOB).unwrap().unwrap();
    let mut written_back = WrittenBack::open(swapped.roots()).unwrap().unwrap();
    let known = survey::read_block(&process.pagemap, swapped.start(0)).unwrap();
    child.kill().unwrap();
    // Not reaped yet: the files of its id are there, and so is the id.
    while process.pidfd.is_alive() {
        std::thread::yield_now();
    }
    assert!(Process::pin(swapped.roots(), pid, JOB).unwrap().is_none());
    assert_eq!(process.move_block(&mut written_back, swapped.start(0), known).unwrap(), None);
    child.wait().unwrap();
    assert!(Process::pin(swapped.roots(), pid, JOB).unwrap().is_none());
    assert_eq!(process.move_block(&mut written_back, swapped.start(0), known).unwrap(), None);
}

#[test]
fn a_process_of_another_job_is_not_pinned() {
    let mut child = sleeper();
    let pid = i32::try_from(child.id()).unwrap();
    let swapped = Swapped::new(pid, 1);
    assert!(Process::pin(swapped.roots(), pid, "/b").unwrap().is_none());
    assert!(Process::pin(swapped.roots(), pid, JOB).unwrap().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
}
