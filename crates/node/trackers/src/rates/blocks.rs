//! Blocks: the memory of processes that a slow node may hold, in pieces of up to 2 MiB.
//!
//! Blocks consist of anonymous or shared memory (memfd, shm). Other memory is skipped and counted ([`Skipped`]): files, whose
//! pages belong to every process that reads them; the kernel's own mappings and hugetlbfs; locked memory, because a program that
//! locks memory requires it to be fast; and memory that other processes map too, because it can only be moved for all of
//! them, and DAMON would see the accesses of only one. A block's first page is assumed to represent all of it.
//!
//! # Cost
//! A walk of the page tables in the kernel (`PAGEMAP_SCAN`; before Linux 6.7, 8 bytes read per page of address space), then two
//! reads of 8 bytes per block, and one `move_pages(2)` for the nodes of some thousand blocks. That call needs one address per
//! block and is exact; the spans of nodes in `/proc/zoneinfo` may overlap, and finding frames in them would not be cheaper. A
//! block of base pages on several nodes counts as on the node of its first page.

use std::ops::Range;

use kernel::maps::{self, Kind as VmaKind, Vma};
use kernel::move_pages::{self, Located};
use kernel::page_idle::{KPF_COMPOUND_HEAD, KPF_HUGE, KPF_HWPOISON, KPF_MLOCKED, KPF_THP, KPF_UNEVICTABLE, KPF_ZERO_PAGE, KPageFlags};
use kernel::pagemap::{Categories, Entry, PageRange, Pagemap, Query};
use kernel::{Result, Roots};
use serde::Serialize;
use units::Bytes;

/// Pieces of 2 MiB without a page that are read of one process, where the kernel cannot list its pages (before Linux 6.7): 64 GiB.
const EMPTY_MAX: u32 = 1 << 15;

/// A part of a search ends after so many blocks, or calls for ranges of present pages: some milliseconds.
const PART_BLOCKS: usize = 1 << 10;
const PART_CALLS: u32 = 32;

/// Size and alignment of a whole block: a huge page of x86-64 and of arm64 with 4 KiB pages.
pub const BLOCK_BYTES: u64 = 2 << 20;

/// Upper limit of the ranges of present pages returned by one call.
const RANGES_MAX: usize = 4096;

/// Part of one mapping of one process, within one aligned 2 MiB of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Block {
    /// The process.
    pub pid: i32,
    /// Address of the first byte: a multiple of 2 MiB, unless the mapping starts later.
    pub start: u64,
    /// Address past the last byte.
    pub end: u64,
    /// Address of the first present page, which represents the block.
    pub first: u64,
    /// Present memory of the block.
    pub bytes: Bytes,
    /// Whether the block is one huge page.
    pub huge: bool,
    /// NUMA node of the first present page.
    pub node: u32,
}

impl Block {
    /// The block's addresses.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// The result of [`find`].
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The blocks, by process in the order given, then by address.
    pub blocks: Vec<Block>,
    /// Memory that was skipped.
    pub skipped: Skipped,
}

/// Memory that cannot be placed, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Mappings of files.
    pub file_bytes: Bytes,
    /// The kernel's own mappings, and hugetlbfs.
    pub special_bytes: Bytes,
    /// Locked by `mlock(2)`, or unevictable for another reason.
    pub locked_bytes: Bytes,
    /// Mapped by other processes as well.
    pub shared_bytes: Bytes,
    /// Reserved address space that is too sparse to search before Linux 6.7.
    pub sparse_bytes: Bytes,
    /// Number of blocks that vanished during the search.
    pub vanished: u32,
    /// Number of processes that exited.
    pub gone: u32,
    /// Whether there are more blocks than `blocks_max`.
    pub over_limit: bool,
}

/// Finds the blocks of processes, at most `blocks_max`.
///
/// # Errors
/// If page frame numbers are hidden from this process; any error of the kernel's files, except that a process has exited.
pub fn find(roots: &Roots, pids: &[i32], blocks_max: usize) -> Result<Found> {
    let mut search = Search::new(pids.to_vec());
    while !search.step(roots, blocks_max)? {}
    Ok(search.found)
}

/// A search of processes in parts: a process of a tebibyte has half a million blocks.
#[derive(Debug, Default)]
pub struct Search {
    pids: Vec<i32>,
    /// The process that is searched, by its index.
    next: usize,
    at: Position,
    /// Blocks of the processes before it.
    kept: usize,
    /// What was found so far.
    pub found: Found,
}

/// The position in a process.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    /// Everything below is searched.
    address: u64,
    /// Calls that found no page.
    empty: u32,
}

impl Search {
    /// Before the first process.
    #[must_use]
    pub fn new(pids: Vec<i32>) -> Self {
        Self { pids, ..Self::default() }
    }

    /// The processes.
    #[must_use]
    pub fn pids(&self) -> &[i32] {
        &self.pids
    }

    /// Searches the next part, within one process. Returns whether the search is over.
    ///
    /// # Errors
    /// As [`find`].
    pub fn step(&mut self, roots: &Roots, blocks_max: usize) -> Result<bool> {
        let Some(&pid) = self.pids.get(self.next) else { return Ok(true) };
        let over = match self.search(roots, pid, blocks_max) {
            Ok(over) => over,
            Err(error) if error.is_gone() => {
                self.found.blocks.truncate(self.kept);
                self.found.skipped.gone += 1;
                true
            }
            Err(error) => return Err(error),
        };
        if over {
            (self.next, self.at, self.kept) = (self.next + 1, Position::default(), self.found.blocks.len());
        }
        Ok(self.found.skipped.over_limit || self.next == self.pids.len())
    }

    /// Searches the next part of a process. Returns whether it was the last.
    fn search(&mut self, roots: &Roots, pid: i32, blocks_max: usize) -> Result<bool> {
        let flags = KPageFlags::open(roots)?;
        let from = self.found.blocks.len();
        let over = Process::open(roots, &flags, pid)?.find(&mut self.at, blocks_max, &mut self.found)?;
        set_nodes(pid, &mut self.found, from)?;
        Ok(over)
    }
}

/// Returns the addresses of the block's pages that are present now.
///
/// # Errors
/// `Gone` if the process has exited; any other error of the kernel's files.
pub fn present(roots: &Roots, block: &Block) -> Result<Vec<u64>> {
    let flags = KPageFlags::open(roots)?;
    let ranges = Process::open(roots, &flags, block.pid)?.present(block.range())?.0;
    let page_bytes = kernel::page_size().bytes();
    Ok(ranges.iter().flat_map(|range| (range.start..range.end).step_by(usize::try_from(page_bytes).unwrap_or(usize::MAX))).collect())
}

/// Returns whether the block is one huge page now.
///
/// # Errors
/// As [`present`].
pub fn is_huge(roots: &Roots, block: &Block) -> Result<bool> {
    let flags = KPageFlags::open(roots)?;
    let ranges = Process::open(roots, &flags, block.pid)?.present(block.range())?.0;
    Ok(ranges.iter().any(|range| range.categories.contains(Categories::HUGE)))
}

/// Sets the nodes of the blocks from index `from` on, which all belong to process `pid`.
fn set_nodes(pid: i32, found: &mut Found, from: usize) -> Result<()> {
    let firsts: Vec<u64> = found.blocks[from..].iter().map(|block| block.first).collect();
    let mut nodes = move_pages::locate(pid, &firsts)?.into_iter();
    let mut kept = Vec::with_capacity(firsts.len());
    for mut block in found.blocks.drain(from..) {
        match nodes.next() {
            Some(Located::Node(node)) => {
                block.node = node;
                kept.push(block);
            }
            _ => found.skipped.vanished += 1,
        }
    }
    found.blocks.extend(kept);
    Ok(())
}

/// A process whose memory is searched.
struct Process<'a> {
    roots: &'a Roots,
    pid: i32,
    pagemap: Pagemap,
    flags: &'a KPageFlags,
}

/// What is left of a part of a search.
#[derive(Clone, Copy, Debug)]
struct Left {
    calls: u32,
    /// It ends when so many blocks are found in all.
    blocks: usize,
}

impl<'a> Process<'a> {
    fn open(roots: &'a Roots, flags: &'a KPageFlags, pid: i32) -> Result<Self> {
        Ok(Self { roots, pid, pagemap: Pagemap::open(roots, pid)?, flags })
    }

    /// Searches a part of the process, from `at` on. Returns whether it was the last.
    fn find(&self, at: &mut Position, blocks_max: usize, found: &mut Found) -> Result<bool> {
        let mut left = Left { calls: PART_CALLS, blocks: found.blocks.len() + PART_BLOCKS };
        for vma in maps::read(self.roots, self.pid)? {
            if vma.end <= at.address {
                continue;
            }
            let bytes = Bytes(vma.len());
            match vma.kind {
                VmaKind::Anon | VmaKind::Heap | VmaKind::Stack | VmaKind::Shared => {
                    if !self.find_in(&vma, at, &mut left, blocks_max, found)? {
                        return Ok(false);
                    }
                }
                VmaKind::File => found.skipped.file_bytes += bytes,
                VmaKind::Special => found.skipped.special_bytes += bytes,
            }
            at.address = vma.end;
            if found.skipped.over_limit {
                break;
            }
        }
        Ok(true)
    }

    /// Searches a mapping from `at` on, until it or the part ends. Returns whether the mapping did.
    fn find_in(&self, vma: &Vma, at: &mut Position, left: &mut Left, blocks_max: usize, found: &mut Found) -> Result<bool> {
        let mut from = vma.start.max(at.address);
        // The ranges of a block may be split between two calls: the second call completes it.
        let mut last: Option<Block> = None;
        while from < vma.end {
            if left.calls == 0 || found.blocks.len() >= left.blocks {
                // The next part completes the last block.
                at.address = last.map_or(from, |block| block.start);
                return Ok(false);
            }
            left.calls -= 1;
            let (ranges, reached) = self.present(from..vma.end)?;
            for mut block in cut(self.pid, vma, &ranges) {
                match last.take() {
                    Some(before) if before.start == block.start => {
                        block = Block { first: before.first, bytes: before.bytes + block.bytes, huge: false, ..block };
                    }
                    Some(before) => self.keep(before, found)?,
                    None => {}
                }
                if found.blocks.len() >= blocks_max {
                    found.skipped.over_limit = true;
                    return Ok(true);
                }
                last = Some(block);
            }
            if reached <= from {
                break;
            }
            from = reached;
            at.empty += u32::from(ranges.is_empty());
            if at.empty > EMPTY_MAX {
                found.skipped.sparse_bytes += Bytes(vma.end - from);
                break;
            }
        }
        last.map_or(Ok(()), |block| self.keep(block, found))?;
        Ok(true)
    }

    /// Adds a block, or counts it as skipped.
    fn keep(&self, block: Block, found: &mut Found) -> Result<()> {
        let mut entry = [Entry::default()];
        self.pagemap.read(block.first, &mut entry)?;
        let mut flags = [0];
        match entry[0].pfn() {
            Some(pfn) => drop(self.flags.read_chunk(pfn, &mut flags)?),
            None => {
                found.skipped.vanished += 1;
                return Ok(());
            }
        }
        let skipped = &mut found.skipped;
        match flags[0] {
            flags if flags & (KPF_HUGE | KPF_HWPOISON) != 0 => skipped.special_bytes += block.bytes,
            flags if flags & (KPF_MLOCKED | KPF_UNEVICTABLE) != 0 => skipped.locked_bytes += block.bytes,
            _ if !entry[0].exclusive() => skipped.shared_bytes += block.bytes,
            _ => found.blocks.push(block),
        }
        Ok(())
    }

    /// Returns ranges of present pages, separate for huge and base pages, without the shared zero page, and the address up to
    /// which they are complete.
    fn present(&self, range: Range<u64>) -> Result<(Vec<PageRange>, u64)> {
        let query = Query { all: Categories::PRESENT, none: Categories::PFNZERO, report: Categories::HUGE, ..Query::default() };
        match self.pagemap.scan(range.clone(), query, RANGES_MAX) {
            Err(error) if error.is_unsupported() => self.present_by_entries(range),
            other => other,
        }
    }

    /// The same for Linux before 6.7, from the pagemap entries of the first 2 MiB of addresses.
    fn present_by_entries(&self, range: Range<u64>) -> Result<(Vec<PageRange>, u64)> {
        let page_bytes = kernel::page_size().bytes();
        let end = range.end.min(aligned(range.start).saturating_add(BLOCK_BYTES));
        let mut entries = vec![Entry::default(); usize::try_from((end - range.start) / page_bytes).unwrap_or(0)];
        let count = self.pagemap.read(range.start, &mut entries)?;
        let mut ranges: Vec<PageRange> = Vec::new();
        for (entry, start) in entries[..count].iter().zip((range.start..).step_by(usize::try_from(page_bytes).unwrap_or(usize::MAX))) {
            let Some(pfn) = entry.pfn() else { continue };
            let mut flags = [0];
            self.flags.read_chunk(pfn, &mut flags)?;
            if flags[0] & KPF_ZERO_PAGE != 0 {
                continue;
            }
            if start == aligned(start) && flags[0] & KPF_THP != 0 && flags[0] & KPF_COMPOUND_HEAD != 0 && is_contiguous(&entries[..count]) {
                return Ok((vec![PageRange { start, end, categories: Categories::HUGE }], end));
            }
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end += page_bytes,
                _ => ranges.push(PageRange { start, end: start + page_bytes, categories: Categories::NONE }),
            }
        }
        Ok((ranges, end))
    }
}

/// Whether these entries map 2 MiB of adjacent page frames.
fn is_contiguous(entries: &[Entry]) -> bool {
    let whole = entries.len() as u64 == BLOCK_BYTES / kernel::page_size().bytes();
    whole && entries.windows(2).all(|pair| pair[0].pfn().is_some_and(|pfn| pair[1].pfn() == Some(pfn + 1)))
}

/// The start of the aligned 2 MiB that contains an address.
fn aligned(address: u64) -> u64 {
    address - address % BLOCK_BYTES
}

/// Cuts sorted ranges of present pages of one mapping into blocks. Their nodes are set later.
fn cut(pid: i32, vma: &Vma, ranges: &[PageRange]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for range in ranges {
        let huge = range.categories.contains(Categories::HUGE);
        let mut from = range.start;
        while from < range.end {
            let boundary = aligned(from).saturating_add(BLOCK_BYTES);
            let bytes = Bytes(range.end.min(boundary) - from);
            let start = aligned(from).max(vma.start);
            match blocks.last_mut() {
                Some(last) if last.start == start => {
                    last.bytes += bytes;
                    last.huge = false;
                }
                _ => blocks.push(Block {
                    pid,
                    start,
                    end: boundary.min(vma.end),
                    first: from,
                    bytes,
                    huge: huge && bytes.0 == BLOCK_BYTES,
                    node: 0,
                }),
            }
            from = boundary;
        }
    }
    blocks
}

#[cfg(test)]
mod tests;
