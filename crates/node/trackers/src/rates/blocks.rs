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

use std::cell::Cell;
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
    let flags = KPageFlags::open(roots)?;
    let mut found = Found::default();
    for &pid in pids {
        let kept = found.blocks.len();
        let result = Process::open(roots, &flags, pid).and_then(|process| process.find(blocks_max, &mut found));
        let result = result.and_then(|()| set_nodes(pid, &mut found, kept));
        match result {
            Ok(()) => {}
            Err(error) if error.is_gone() => {
                found.blocks.truncate(kept);
                found.skipped.gone += 1;
            }
            Err(error) => return Err(error),
        }
        if found.skipped.over_limit {
            break;
        }
    }
    Ok(found)
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
    /// Calls that found no page.
    empty: Cell<u32>,
}

impl<'a> Process<'a> {
    fn open(roots: &'a Roots, flags: &'a KPageFlags, pid: i32) -> Result<Self> {
        Ok(Self { roots, pid, pagemap: Pagemap::open(roots, pid)?, flags, empty: Cell::new(0) })
    }

    fn find(&self, blocks_max: usize, found: &mut Found) -> Result<()> {
        for vma in maps::read(self.roots, self.pid)? {
            let bytes = Bytes(vma.len());
            match vma.kind {
                VmaKind::Anon | VmaKind::Heap | VmaKind::Stack | VmaKind::Shared => self.find_in(&vma, blocks_max, found)?,
                VmaKind::File => found.skipped.file_bytes += bytes,
                VmaKind::Special => found.skipped.special_bytes += bytes,
            }
            if found.skipped.over_limit {
                break;
            }
        }
        Ok(())
    }

    fn find_in(&self, vma: &Vma, blocks_max: usize, found: &mut Found) -> Result<()> {
        let mut from = vma.start;
        // The ranges of a block may be split between two calls: the second call completes it.
        let mut last: Option<Block> = None;
        while from < vma.end {
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
                    return Ok(());
                }
                last = Some(block);
            }
            if reached <= from {
                break;
            }
            from = reached;
            self.empty.set(self.empty.get() + u32::from(ranges.is_empty()));
            if self.empty.get() > EMPTY_MAX {
                found.skipped.sparse_bytes += Bytes(vma.end - from);
                break;
            }
        }
        last.map_or(Ok(()), |block| self.keep(block, found))
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
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn vma(range: Range<u64>) -> Vma {
        let text = format!("{:x}-{:x} rw-p 00000000 00:00 0\n", range.start, range.end);
        maps::parse(&text).unwrap().remove(0)
    }

    /// Cuts ranges of present memory, `true` for huge ones; blocks are (start, end, first, bytes, huge).
    fn check(mapped: Range<u64>, present: &[(Range<u64>, bool)], want: &[(u64, u64, u64, u64, bool)]) {
        let categories = |huge| if huge { Categories::HUGE } else { Categories::NONE };
        let ranges: Vec<_> =
            present.iter().map(|(range, huge)| PageRange { start: range.start, end: range.end, categories: categories(*huge) }).collect();
        let got: Vec<_> =
            cut(7, &vma(mapped), &ranges).iter().map(|block| (block.start, block.end, block.first, block.bytes.0, block.huge)).collect();
        assert_eq!(got, want, "{present:?}");
    }

    /// A process of files: the kernel cannot list what its mapping holds.
    #[test]
    fn the_search_of_reserved_memory_ends() {
        let directory = tempfile::tempdir().unwrap();
        let roots = Roots::under(directory.path());
        let process = roots.proc.join("7");
        std::fs::create_dir_all(&process).unwrap();
        let (start, length) = (1 << 28, 127_u64 << 40);
        std::fs::write(process.join("maps"), format!("{start:x}-{:x} rw-p 00000000 00:00 0\n", start + length)).unwrap();
        std::fs::write(roots.proc.join("kpageflags"), []).unwrap();
        std::fs::File::create(process.join("pagemap")).unwrap().set_len((start + length) / kernel::page_size().bytes() * 8).unwrap();
        let flags = KPageFlags::open(&roots).unwrap();
        let mut found = Found::default();
        Process::open(&roots, &flags, 7).unwrap().find(100, &mut found).unwrap();
        assert_eq!(found.skipped.sparse_bytes, Bytes(length - u64::from(EMPTY_MAX + 1) * BLOCK_BYTES));
    }

    #[test]
    fn memory_is_cut_where_huge_pages_begin() {
        check(0..8 * MIB, &[], &[]);
        check(
            0..8 * MIB,
            &[(0..4 * MIB, true), (4 * MIB..5 * MIB, false)],
            &[(0, 2 * MIB, 0, 2 * MIB, true), (2 * MIB, 4 * MIB, 2 * MIB, 2 * MIB, true), (4 * MIB, 6 * MIB, 4 * MIB, MIB, false)],
        );
        // A mapping that begins and ends in the middle, with a hole.
        check(
            MIB..5 * MIB,
            &[(MIB + 4096..MIB + 8192, false), (2 * MIB - 4096..2 * MIB + 4096, false), (5 * MIB - 4096..5 * MIB, false)],
            &[
                (MIB, 2 * MIB, MIB + 4096, 8192, false),
                (2 * MIB, 4 * MIB, 2 * MIB, 4096, false),
                (4 * MIB, 5 * MIB, 5 * MIB - 4096, 4096, false),
            ],
        );
    }

    /// This process, unless page frame numbers are hidden from it.
    fn this_process() -> Option<(Roots, KPageFlags, i32)> {
        let roots = Roots::host();
        let flags = KPageFlags::open(&roots).inspect_err(|error| println!("skipped: {error}")).ok()?;
        Some((roots, flags, i32::try_from(std::process::id()).unwrap()))
    }

    #[test]
    fn blocks_of_this_process_agree_with_its_pagemap() {
        let Some((roots, flags, pid)) = this_process() else { return };
        let memory = vec![1u8; usize::try_from(9 * MIB).unwrap()];
        let start = memory.as_ptr().addr() as u64;
        let found = find(&roots, &[pid, i32::MAX], 100_000).unwrap();
        assert_eq!((found.skipped.gone, found.skipped.over_limit), (1, false));
        assert!(found.skipped.file_bytes > Bytes::ZERO && found.skipped.special_bytes > Bytes::ZERO, "{:?}", found.skipped);
        let ours: Vec<_> = found.blocks.iter().filter(|block| block.start < start + 9 * MIB && block.end > start).collect();
        assert!(ours.iter().map(|block| block.bytes.0).sum::<u64>() >= 9 * MIB, "{ours:?}");
        assert!(found.blocks.is_sorted_by(|one, next| one.end <= next.start), "blocks do not overlap");

        let process = Process::open(&roots, &flags, pid).unwrap();
        for block in ours.iter().filter(|block| block.start >= start && block.end <= start + 9 * MIB) {
            let pages = present(&roots, block).unwrap();
            assert_eq!((pages[0], pages.len() as u64 * 4096), (block.first, block.bytes.0));
            let by_entries = process.present_by_entries(block.range()).unwrap().0;
            let bytes: u64 = by_entries.iter().map(|range| range.end - range.start).sum();
            assert_eq!((by_entries[0].start, bytes), (block.first, block.bytes.0));
            assert_eq!(by_entries[0].categories.contains(Categories::HUGE), block.huge);
            assert_eq!(is_huge(&roots, block).unwrap(), block.huge);
        }
        let few = find(&roots, &[pid], 2).unwrap();
        assert!(few.skipped.over_limit && few.blocks.len() <= 2);
    }
}
