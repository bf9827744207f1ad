//! Compaction and prefetch (LPC talk, proactive reclaim by process state). Compaction pages out all swap-backed memory of a process
//! and deactivates its file pages, which stay; a prefetch swaps everything in.
//!
//! Only advice that cannot change the content of memory is given, on a pidfd of the process. If a mapping changes between reading it
//! and the advice, at worst a wrong page is paged out, and swapped in at its next access. The process need not run: a frozen one is
//! compacted like any other.

use std::ops::Range;

use kernel::cgroup::Cgroup;
use kernel::madvise::PidFd;
use kernel::maps::{self, Kind, Vma};
use kernel::{Result, Roots};
use units::{Bytes, Pages};

use super::{STEP_ENTRIES, push};
use trackers::walk::{Flow, Walker};

/// Addresses of file mappings that one step deactivates: the kernel walks them and moves nothing.
const DEACTIVATE_STEP: Bytes = Bytes::mib(64);

/// What is done to all memory of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Its swap-backed memory is paged out; its file pages become the first to be reclaimed.
    Compact,
    /// Its swapped memory is swapped in, without waiting for devices.
    Prefetch,
}

/// The position in a job's memory.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    pids: Vec<i32>,
    /// The number of processes left in this part.
    left: usize,
    part: Part,
    address: u64,
}

/// The two passes over a job's processes. File pages are deactivated after all pages are paged out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    /// The pages in its page tables.
    #[default]
    Pages,
    /// Whole mappings: file mappings to deactivate, or shared memory, whose swapped pages are in no page table.
    Mappings,
}

/// What one step has requested from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advised {
    /// Bytes to page out, or to swap in.
    pub moved: Bytes,
    /// Addresses of file mappings to deactivate.
    pub deactivated: Bytes,
    /// Whether the task is finished.
    pub finished: bool,
}

/// Ranges of one process, in the order of their addresses.
#[derive(Debug, Default)]
struct Batch {
    ranges: Vec<Range<u64>>,
    /// Where to continue; `None` at the end.
    stopped_at: Option<u64>,
}

impl Cursor {
    /// The position before the first page of `pids`.
    #[must_use]
    pub fn new(pids: &[i32]) -> Self {
        Self { pids: pids.to_vec(), left: pids.len(), ..Self::default() }
    }

    /// Whether all pages are processed, and only mappings are left.
    #[must_use]
    pub fn pages_done(&self) -> bool {
        self.part == Part::Mappings
    }

    fn advance(&mut self, stopped_at: Option<u64>, ended: bool) {
        self.address = stopped_at.unwrap_or(0);
        if stopped_at.is_some() {
            return;
        }
        self.left -= 1;
        if ended {
            self.pids.remove(self.left);
        }
        if self.left == 0 && self.part == Part::Pages {
            (self.part, self.left) = (Part::Mappings, self.pids.len());
        }
    }
}

/// Processes up to `limit` pages of a job and advances the cursor.
///
/// # Errors
/// Any error except the end of a process, which ends its part of the task.
pub fn step(roots: &Roots, walker: &mut Walker, cgroup: &Cgroup, task: Task, cursor: &mut Cursor, limit: Pages) -> Result<Advised> {
    let Some(&pid) = cursor.pids[..cursor.left].last() else { return Ok(Advised { finished: true, ..Advised::default() }) };
    let mut advised = Advised::default();
    let mut stopped_at = None;
    let mut ended = false;
    let done = PidFd::open(pid).and_then(|process| {
        // The process id may have been reused since it was listed. The pidfd then refers to another process, which is not in this
        // cgroup, or to one that has exited, which accepts no advice.
        if !cgroup.procs(crate::PROCESSES_MAX)?.contains(&pid) {
            ended = true;
            return Ok(());
        }
        let batch = match cursor.part {
            Part::Pages => pages(roots, walker, task, pid, cursor.address, limit)?,
            Part::Mappings => mappings(&maps::read(roots, pid)?, task, cursor.address, limit),
        };
        stopped_at = batch.stopped_at;
        match (task, cursor.part) {
            (Task::Compact, Part::Pages) => advised.moved = process.advise_pageout(&batch.ranges)?,
            (Task::Compact, Part::Mappings) => advised.deactivated = process.advise_cold(&batch.ranges)?,
            (Task::Prefetch, _) => advised.moved = process.advise_willneed(&batch.ranges)?,
        }
        Ok(())
    });
    ended |= done.is_err();
    cursor.advance(stopped_at.filter(|_| !ended), ended);
    advised.finished = cursor.left == 0;
    match done {
        Err(error) if !error.is_gone() => Err(error),
        _ => Ok(advised),
    }
}

/// The next pages of a process that a task applies to.
///
/// Paging out: swap-backed pages that only this process maps; the kernel would not reclaim pages that others map as well. Swapping
/// in: anonymous memory; for a file mapping the kernel would read the file.
fn pages(roots: &Roots, walker: &mut Walker, task: Task, pid: i32, from: u64, limit: Pages) -> Result<Batch> {
    let page = kernel::page_size().bytes();
    let of_files = match task {
        Task::Compact => Vec::new(),
        Task::Prefetch => maps::read(roots, pid)?.into_iter().filter(|vma| vma.kind == Kind::File).collect(),
    };
    let mut batch = Batch::default();
    let mut found = 0;
    let reached = walker.walk(roots, pid, from, STEP_ENTRIES, &mut |address, entry| {
        let applies = match task {
            Task::Compact => entry.present() && entry.exclusive(),
            Task::Prefetch => entry.swapped() && !contain(&of_files, address),
        };
        if !applies {
            return Flow::Continue;
        }
        if found >= limit.0 {
            batch.stopped_at = Some(address);
            return Flow::Stop;
        }
        found += 1;
        push(&mut batch.ranges, address..address + page);
        Flow::Continue
    })?;
    batch.stopped_at = batch.stopped_at.or(reached);
    Ok(batch)
}

/// Whether one of the sorted mappings contains an address.
fn contain(vmas: &[Vma], address: u64) -> bool {
    let after = vmas.partition_point(|vma| vma.end <= address);
    vmas.get(after).is_some_and(|vma| vma.start <= address)
}

/// The next mappings that a task processes as a whole.
fn mappings(vmas: &[Vma], task: Task, from: u64, limit: Pages) -> Batch {
    let (kind, mut left) = match task {
        Task::Compact => (Kind::File, DEACTIVATE_STEP.0),
        Task::Prefetch => (Kind::Shared, limit.to_bytes(kernel::page_size()).0),
    };
    let mut batch = Batch::default();
    for vma in vmas.iter().filter(|vma| vma.kind == kind && vma.end > from) {
        let start = vma.start.max(from);
        if left == 0 {
            batch.stopped_at = Some(start);
            break;
        }
        let end = vma.end.min(start.saturating_add(left));
        left -= end - start;
        batch.ranges.push(start..end);
        if end < vma.end {
            batch.stopped_at = Some(end);
            break;
        }
    }
    batch
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one range is what is meant")]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn vma(start: u64, end: u64, kind: Kind) -> Vma {
        let perms = maps::Perms { read: true, write: true, execute: false, shared: kind == Kind::Shared };
        Vma { start, end, perms, offset: 0, inode: 0, path: String::new(), kind }
    }

    #[test]
    fn mappings_are_gone_through_in_bounded_steps_of_their_kind() {
        let step = DEACTIVATE_STEP.0;
        let vmas = [
            vma(0, PAGE, Kind::Anon),
            vma(PAGE, 3 * PAGE, Kind::File),
            vma(3 * PAGE, 9 * PAGE, Kind::Shared),
            vma(step, 3 * step, Kind::File),
            vma(4 * step, 5 * step, Kind::Heap),
        ];
        let check = |task, limit, want: &[&[Range<u64>]]| {
            let mut from = 0;
            for (at, want) in want.iter().enumerate() {
                let batch = mappings(&vmas, task, from, Pages(limit));
                assert_eq!(batch.ranges, *want, "{task:?}, step {at}");
                from = batch.stopped_at.unwrap_or(u64::MAX);
            }
            assert_eq!(from, u64::MAX, "all mappings");
        };
        let second = 2 * step - 2 * PAGE;
        check(Task::Compact, 1, &[&[PAGE..3 * PAGE, step..second], &[second..3 * step - 2 * PAGE], &[3 * step - 2 * PAGE..3 * step]]);
        check(Task::Prefetch, 4, &[&[3 * PAGE..7 * PAGE], &[7 * PAGE..9 * PAGE]]);
        check(Task::Prefetch, 6, &[&[3 * PAGE..9 * PAGE]]);
    }

    #[test]
    fn the_mapping_of_an_address_is_found() {
        let vmas = [vma(PAGE, 2 * PAGE, Kind::File), vma(4 * PAGE, 5 * PAGE, Kind::File)];
        let found: Vec<_> = (0..6).filter(|page| contain(&vmas, page * PAGE)).collect();
        assert_eq!(found, [1, 4]);
    }

    #[test]
    fn anonymous_pages_of_this_process_are_found_and_file_pages_are_not() {
        let (roots, pid) = (Roots::host(), i32::try_from(std::process::id()).unwrap());
        let page = kernel::page_size().bytes();
        let memory = vec![1u8; 1 << 20];
        let start = memory.as_ptr().addr() as u64;
        let middle = (start + (1 << 19)).next_multiple_of(page);
        let batch = pages(&roots, &mut Walker::default(), Task::Compact, pid, middle, Pages(16)).unwrap();
        assert_eq!(batch.ranges[0].start, middle, "from the cursor on");
        assert_eq!(batch.ranges.iter().map(|range| range.end - range.start).sum::<u64>(), 16 * page);
        assert_eq!(batch.stopped_at, Some(middle + 16 * page));

        let vmas = maps::read(&roots, pid).unwrap();
        let all = pages(&roots, &mut Walker::default(), Task::Compact, pid, 0, Pages(u64::MAX)).unwrap();
        let executable = |address| vmas.iter().any(|vma| vma.range().contains(&address) && vma.kind == Kind::File && vma.perms.execute);
        assert!(all.stopped_at.is_none() && !all.ranges.iter().any(|range| executable(range.start)), "code is in file pages");
        assert!(all.ranges.iter().any(|range| range.contains(&middle)));
    }

    #[test]
    fn a_process_that_exited_or_left_the_cgroup_is_skipped() {
        let machine = crate::testing::Machine::new();
        let cgroup = machine.cgroup("/a");
        let mut walker = Walker::default();
        // This process runs, but not in the cgroup; the other id is of no process.
        let mut cursor = Cursor::new(&[i32::MAX, i32::try_from(std::process::id()).unwrap()]);
        for finished in [false, true, true] {
            let advised = step(&machine.roots, &mut walker, &cgroup, Task::Compact, &mut cursor, Pages(8)).unwrap();
            assert_eq!(advised, Advised { finished, ..Advised::default() });
        }
    }
}
