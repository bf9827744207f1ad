//! Moves pages of one process from zswap on to the swap device.
//!
//! With `memory.zswap.max` at 0 the kernel stores nothing of the job in zswap (`zswap_store()` in `mm/zswap.c`): a page that was read
//! and is paged out again is written to its slot on the device. A limit below what the job has in zswap, without the reads, does not
//! write back what is there: each store then asks `shrink_memcg()` for one entry, which has a second chance first, and the new page
//! goes to the device in its place.
//!
//! The same request is made for each store at a limit of 0. Once the job's oldest entry has lost its second chance, the kernel writes
//! that one to the device, and stores the page that was to go there. So pages go in groups of a block, and after each the kernel's
//! counters are compared: `zswpwb` rises with the first page for which that happens.

use std::ops::Range;

use kernel::madvise::PidFd;
use kernel::{Result, Roots, process, remote, vmstat};
use units::Pages;

use super::push;
use crate::controllers::writeback::survey::{self, Found};

/// What became of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Pages that were read and paged out.
    pub pages: Pages,
    /// The block's swap entries now; `None` if it could not be read.
    pub found: Option<Found>,
    /// Whether the kernel wrote back other memory meanwhile.
    pub spilled: bool,
}

/// Pins a process of the job; `None` if it has exited or left the job.
///
/// # Errors
/// Any other error.
pub fn pin(roots: &Roots, pid: i32, job: &str) -> Result<Option<PidFd>> {
    // A process id may be reused: the pidfd is opened first, so that it refers to the process that is checked, or to none.
    let pinned = PidFd::open(pid).and_then(|pinned| process::check_cgroup(roots, pid, job).map(|()| pinned));
    match pinned {
        Ok(pinned) => Ok(Some(pinned)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the swapped pages of the block at `start`, and pages them out again, if its swap entries are still `known`.
///
/// # Errors
/// Any error except the end of the process, which moves nothing.
pub fn move_block(roots: &Roots, pinned: &PidFd, start: u64, known: Found) -> Result<Option<Moved>> {
    let moved = try_block(roots, pinned, start, known);
    match moved {
        Err(error) if error.is_gone() => Ok(None),
        other => other,
    }
}

fn try_block(roots: &Roots, pinned: &PidFd, start: u64, known: Found) -> Result<Option<Moved>> {
    let pid = pinned.pid();
    if survey::read_block(roots, pid, start)? != known {
        return Ok(None);
    }
    let before = vmstat::read(roots)?.zswpwb;
    let addresses = known.addresses(start);
    let read = remote::touch(pid, &addresses)?;
    let page = kernel::page_size().bytes();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    addresses[..read].iter().for_each(|address| push(&mut ranges, *address..address + page));
    pinned.advise_pageout(&ranges)?;
    let after = vmstat::read(roots)?.zswpwb;
    let found = survey::read_block(roots, pid, start).ok();
    Ok(Some(Moved { pages: Pages(read as u64), found, spilled: after > before }))
}
