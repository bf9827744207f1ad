//! Splits huge pages, so that the ages of their parts are known: those of the sample that have become idle, and those in use whose
//! parts are idle ([`super::busy`]).
//!
//! A huge page has one accessed bit. Read as it is, one access to an old huge page is an access to each of its 512 pages, and the
//! promotion rate of a job that reads a cold object now and then comes out up to 512 times too high: no threshold keeps the
//! objective, and nothing is offloaded. In far memory the same access is one fault, because the kernel swaps in single pages. Only
//! the sampled huge pages are split (as in Thermostat section 3.2), and only once they are idle. A huge page that is in use stays,
//! unless a test has shown that most of what the process has in huge pages is idle.

use std::collections::BTreeMap;
use std::ops::Range;

use kernel::madvise::PidFd;
use kernel::maps;
use kernel::page_idle::{KPF_THP, KPageFlags};
use kernel::pagemap::{Categories, Entry, Pagemap, Query};
use kernel::thp::HUGE_PAGE;
use kernel::{Result, Roots};
use units::Age;

use crate::walk::swap_backed;

/// The age from which a huge page counts as idle.
pub const IDLE: Age = Age(2);

/// Huge pages of one process that are split at most in one scan. Each takes some tenths of a millisecond.
const SPLITS_MAX: usize = 128;

/// Sampled pages that a test should have: a share of three quarters has a standard error of five percentage points then.
const TEST_POINTS: usize = 64;

/// Huge pages of one process that a test splits at most.
const TESTED_MAX: usize = 16;

/// Blocks in which a test searches for huge pages.
const CANDIDATES_MAX: usize = 64;

/// Addresses that are searched for huge pages at most in one scan. The kernel reads a page table entry for each page that is not huge.
const WALKED_MAX: u64 = 4 << 30;

/// Splits the huge pages of a process that hold the `idle` addresses, of private pages. Returns how many were split, and the blocks
/// of these addresses in which no huge page is left.
///
/// The kernel splits a huge page when a part of it is marked as cold (`madvise_cold_or_pageout_pte_range()` in `mm/madvise.c`). That
/// part is one that is not in the sample.
///
/// # Errors
/// `Gone` if the process has exited; any error of `/proc/PID/pagemap` and `process_madvise`.
pub fn split(roots: &Roots, pid: i32, idle: &[u64]) -> Result<(usize, Vec<u64>)> {
    let Found { huge, mut small } = find(roots, pid, parts(idle), SPLITS_MAX)?;
    let split = split_found(roots, pid, huge)?;
    small.extend(&split);
    Ok((split.len(), small))
}

/// Returns those of some blocks that are huge pages.
///
/// # Errors
/// As [`split`].
pub fn huge(roots: &Roots, pid: i32, blocks: &[u64]) -> Result<Vec<u64>> {
    let pagemap = Pagemap::open(roots, pid)?;
    let mut huge = Vec::new();
    for &block in blocks {
        if is_huge(roots, &pagemap, block)? {
            huge.push(block);
        }
    }
    Ok(huge)
}

/// Splits some huge pages that hold the `busy` addresses, of private pages, as a test: enough for [`TEST_POINTS`] of these, and spread
/// over all. Returns their blocks.
///
/// # Errors
/// As [`split`].
pub fn test(roots: &Roots, pid: i32, busy: &[u64]) -> Result<Vec<u64>> {
    let all: Vec<_> = parts(busy).into_iter().collect();
    let apart = all.len().div_ceil(CANDIDATES_MAX).max(1);
    let in_each = (busy.len() / all.len().max(1)).max(1);
    let most = TEST_POINTS.div_ceil(in_each).min(TESTED_MAX);
    split_found(roots, pid, find(roots, pid, all.into_iter().step_by(apart), most)?.huge)
}

/// Splits huge pages of the private memory of a process from an address on, [`SPLITS_MAX`] and [`WALKED_MAX`] at most. Returns how many
/// were split, and the address to continue from; `None` at the end. Before Linux 6.7, which cannot list huge pages, only those that hold
/// the `busy` addresses are split.
///
/// # Errors
/// As [`split`], and any error of `/proc/PID/maps`.
pub fn all(roots: &Roots, pid: i32, from: u64, busy: &[u64]) -> Result<(usize, Option<u64>)> {
    let pagemap = Pagemap::open(roots, pid)?;
    if !pagemap.can_scan()? {
        return split(roots, pid, busy).map(|(count, _)| (count, None));
    }
    let (mut left, mut blocks, mut next) = (WALKED_MAX, Vec::new(), None);
    for vma in maps::read(roots, pid)?.iter().filter(|vma| vma.end > from && swap_backed(vma) == Some(false)) {
        let start = vma.start.max(from);
        let range = start..vma.end.min(start.saturating_add(left));
        left -= range.end - range.start;
        let end = range.end;
        next = huge_blocks(&pagemap, range, &mut blocks)?.or((left == 0).then_some(end));
        if next.is_some() {
            break;
        }
    }
    let found = find(roots, pid, blocks.into_iter().map(|block| (block, block)), SPLITS_MAX)?;
    split_found(roots, pid, found.huge).map(|split| (split.len(), next))
}

/// Adds the blocks of a range that are huge pages, up to [`SPLITS_MAX`] in all. Returns the address to continue from, if that is before
/// the end of the range.
fn huge_blocks(pagemap: &Pagemap, range: Range<u64>, blocks: &mut Vec<u64>) -> Result<Option<u64>> {
    let query = Query { all: Categories::HUGE | Categories::PRESENT, ..Query::default() };
    let (found, reached) = pagemap.scan(range.clone(), query, SPLITS_MAX)?;
    for huge in found {
        let mut block = huge.start - huge.start % HUGE_PAGE;
        while block < huge.end {
            if blocks.len() == SPLITS_MAX {
                return Ok(Some(block));
            }
            blocks.push(block);
            block += HUGE_PAGE;
        }
    }
    Ok((reached < range.end).then_some(reached))
}

/// Collapses what a test has split.
///
/// # Errors
/// As [`split`]. What the kernel cannot collapse stays split.
pub fn collapse(pid: i32, blocks: &[u64]) -> Result<()> {
    let ranges: Vec<_> = blocks.iter().map(|&block| block..block + HUGE_PAGE).collect();
    PidFd::open(pid)?.advise_collapse(&ranges).map(drop)
}

/// Blocks of a process.
#[derive(Default)]
struct Found {
    /// Huge pages, with a page of each.
    huge: Vec<(u64, Range<u64>)>,
    /// Blocks that are none.
    small: Vec<u64>,
}

/// Finds huge pages, `most` at most, among blocks with a page of each.
fn find(roots: &Roots, pid: i32, parts: impl IntoIterator<Item = (u64, u64)>, most: usize) -> Result<Found> {
    let pagemap = Pagemap::open(roots, pid)?;
    let mut found = Found::default();
    for (block, part) in parts {
        if found.huge.len() == most {
            break;
        }
        if is_huge(roots, &pagemap, block)? {
            found.huge.push((block, part..part + kernel::page_size().bytes()));
        } else {
            found.small.push(block);
        }
    }
    Ok(found)
}

/// Splits huge pages by marking the page of each as cold. Returns the blocks that are split.
fn split_found(roots: &Roots, pid: i32, huge: Vec<(u64, Range<u64>)>) -> Result<Vec<u64>> {
    if huge.is_empty() {
        return Ok(Vec::new());
    }
    let pagemap = Pagemap::open(roots, pid)?;
    let ranges: Vec<_> = huge.iter().map(|(_, range)| range.clone()).collect();
    PidFd::open(pid)?.advise_cold(&ranges)?;
    let mut split = Vec::new();
    for (block, _) in huge {
        if !is_huge(roots, &pagemap, block)? {
            split.push(block);
        }
    }
    Ok(split)
}

/// The blocks that hold `addresses`, and in each the first page that is not one of them.
fn parts(addresses: &[u64]) -> BTreeMap<u64, u64> {
    let page = kernel::page_size().bytes();
    let mut parts = BTreeMap::new();
    for &address in addresses {
        let block = address - address % HUGE_PAGE;
        let free = (block..block + HUGE_PAGE).step_by(usize::try_from(page).unwrap_or(usize::MAX));
        parts.entry(block).or_insert_with(|| free.into_iter().find(|page| addresses.binary_search(page).is_err()));
    }
    parts.into_iter().filter_map(|(block, part)| Some((block, part?))).collect()
}

/// Whether a block of a process is mapped as one huge page.
fn is_huge(roots: &Roots, pagemap: &Pagemap, block: u64) -> Result<bool> {
    let query = Query { all: Categories::HUGE | Categories::PRESENT, ..Query::default() };
    match pagemap.scan(block..block + kernel::page_size().bytes(), query, 1) {
        Ok((found, _)) => Ok(!found.is_empty()),
        // Before Linux 6.7, when every transparent huge page was as large.
        Err(error) if error.is_unsupported() => {
            let (mut entry, mut flags) = ([Entry::default()], [0]);
            pagemap.read(block, &mut entry)?;
            let Some(frame) = entry[0].pfn() else { return Ok(false) };
            Ok(KPageFlags::open(roots)?.read_chunk(frame, &mut flags)? == 1 && flags[0] & KPF_THP != 0)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_split_once_at_a_page_that_is_not_sampled() {
        let page = kernel::page_size().bytes();
        let at = |block: u64, index: u64| block * HUGE_PAGE + index * page;
        let found = parts(&[at(3, 0), at(3, 1), at(3, 300), at(7, 5)]);
        assert_eq!(found, BTreeMap::from([(at(3, 0), at(3, 2)), (at(7, 0), at(7, 0))]));
        assert!(parts(&[]).is_empty());
    }

    #[test]
    fn an_idle_huge_page_of_this_process_is_split() {
        let block = usize::try_from(HUGE_PAGE).unwrap();
        let memory = vec![1u8; 4 * block].leak();
        let start = (memory.as_ptr().addr() as u64).next_multiple_of(HUGE_PAGE);
        let (roots, pid) = (Roots::host(), i32::try_from(std::process::id()).unwrap());
        let range = start..start + HUGE_PAGE;
        let collapsed = PidFd::open(pid).and_then(|process| process.advise_collapse(std::slice::from_ref(&range)));
        let pagemap = Pagemap::open(&roots, pid).unwrap();
        match (collapsed, is_huge(&roots, &pagemap, start)) {
            (Ok(_), Ok(true)) => {}
            (collapsed, huge) => return println!("skipped: no huge page here: {collapsed:?}, {huge:?}"),
        }
        assert_eq!(huge(&roots, pid, &[start, start + HUGE_PAGE]).unwrap(), [start]);
        assert_eq!(split(&roots, pid, &[start + 8192]).unwrap(), (1, vec![start]));
        assert!(!is_huge(&roots, &pagemap, start).unwrap());
        assert_eq!(split(&roots, pid, &[start + 8192]).unwrap(), (0, vec![start]), "nothing is left to split");
        assert!(huge(&roots, pid, &[start]).unwrap().is_empty());
        assert!(memory.iter().all(|&byte| byte == 1), "the content is untouched");
        assert!(split(&roots, i32::MAX, &[start]).unwrap_err().is_gone());
    }

    #[test]
    fn huge_pages_in_use_are_split_as_a_test_collapsed_and_split_in_steps() {
        let block = usize::try_from(HUGE_PAGE).unwrap();
        let memory = vec![1u8; 8 * block].leak();
        let start = (memory.as_ptr().addr() as u64).next_multiple_of(HUGE_PAGE);
        let blocks: Vec<u64> = (0..6).map(|index| start + index * HUGE_PAGE).collect();
        let (roots, pid) = (Roots::host(), i32::try_from(std::process::id()).unwrap());
        let pagemap = Pagemap::open(&roots, pid).unwrap();
        let huge = || blocks.iter().filter(|&&block| is_huge(&roots, &pagemap, block).unwrap()).count();
        match collapse(pid, &blocks) {
            Ok(()) if huge() == 6 && pagemap.can_scan().unwrap() => {}
            outcome => return println!("skipped: no huge pages here: {outcome:?}, {}", huge()),
        }
        // 20 sampled pages in each: four huge pages are enough.
        let busy: Vec<u64> = blocks.iter().flat_map(|block| (0..20).map(move |index| block + index * 8 * 4096)).collect();
        let tested = test(&roots, pid, &busy).unwrap();
        assert_eq!((tested.len(), huge()), (4, 2));
        collapse(pid, &tested).unwrap();
        assert_eq!(huge(), 6);
        let (mut from, mut turns) = (start, 0);
        while huge() > 0 && turns < 1_000 {
            (from, turns) = (all(&roots, pid, from, &busy).unwrap().1.unwrap_or(start), turns + 1);
        }
        assert!(huge() == 0 && memory.iter().all(|&byte| byte == 1), "{turns} turns; the content is untouched");
    }
}
