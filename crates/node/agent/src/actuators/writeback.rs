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
use kernel::pagemap::Pagemap;
use kernel::vmstat::VmStatFile;
use kernel::{Result, Roots, process, remote};
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

/// What the kernel has written back from zswap since this was opened, on the whole machine.
#[derive(Debug)]
pub struct WrittenBack {
    file: VmStatFile,
    last: u64,
}

impl WrittenBack {
    /// Opens the kernel's counter; `None` if it has none.
    ///
    /// # Errors
    /// Any error of `/proc/vmstat`.
    pub fn open(roots: &Roots) -> Result<Option<Self>> {
        let file = VmStatFile::open(roots)?;
        let count = file.read()?.zswpwb;
        Ok(count.map(|last| Self { file, last }))
    }

    /// Whether it has risen since it was opened or last compared. One without a value counts as risen.
    fn has_risen(&mut self) -> Result<bool> {
        let before = self.last;
        let now = self.file.read()?.zswpwb;
        self.last = now.unwrap_or(before);
        Ok(now.is_none_or(|now| now > before))
    }
}

/// A process of the job and its page map, opened once for all its blocks of a batch.
///
/// It is of the job when it is pinned. If it moves to another cgroup during the batch, its memory remains charged to the job
/// (`Documentation/admin-guide/cgroup-v2.rst`, "Memory Ownership").
#[derive(Debug)]
pub struct Process {
    pidfd: PidFd,
    pagemap: Pagemap,
}

impl Process {
    /// Pins a process of the job; `None` if it has exited or left the job.
    ///
    /// # Errors
    /// Any other error.
    pub fn pin(roots: &Roots, pid: i32, job: &str) -> Result<Option<Self>> {
        match Self::try_pin(roots, pid, job) {
            Err(error) if error.is_gone() => Ok(None),
            other => other,
        }
    }

    /// A process id may be reused. The pidfd refers to one process; if that is alive after the files of this id were opened, the id
    /// was its own meanwhile, and so are the files. An open page map stays with the address space that it was opened for.
    fn try_pin(roots: &Roots, pid: i32, job: &str) -> Result<Option<Self>> {
        let pidfd = PidFd::open(pid)?;
        process::check_cgroup(roots, pid, job)?;
        let pagemap = Pagemap::open(roots, pid)?;
        Ok(pidfd.is_alive().then_some(Self { pidfd, pagemap }))
    }

    /// Reads the swapped pages of the block at `start`, and pages them out again, if its swap entries are still `known`.
    ///
    /// # Errors
    /// Any error except the end of the process, which moves nothing.
    pub fn move_block(&self, written_back: &mut WrittenBack, start: u64, known: Found) -> Result<Option<Moved>> {
        match self.try_block(written_back, start, known) {
            Err(error) if error.is_gone() => Ok(None),
            other => other,
        }
    }

    fn try_block(&self, written_back: &mut WrittenBack, start: u64, known: Found) -> Result<Option<Moved>> {
        // `process_vm_readv()` takes the id and no pidfd. Between this check and the call the process would have to be reaped and all
        // other ids be used before its own is. A byte of some pages of another process would be read and dropped then; nothing of it
        // is paged out, since the pidfd refers to no process any more.
        if survey::read_block(&self.pagemap, start)? != known || !self.pidfd.is_alive() {
            return Ok(None);
        }
        let addresses = known.addresses(start);
        let read = remote::touch(self.pidfd.pid(), &addresses)?;
        let page = kernel::page_size().bytes();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        addresses[..read].iter().for_each(|address| push(&mut ranges, *address..address + page));
        self.pidfd.advise_pageout(&ranges)?;
        let spilled = written_back.has_risen()?;
        let found = survey::read_block(&self.pagemap, start).ok();
        Ok(Some(Moved { pages: Pages(read as u64), found, spilled }))
    }
}

#[cfg(test)]
mod tests;
