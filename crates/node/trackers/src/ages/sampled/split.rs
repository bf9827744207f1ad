//! Splits huge pages of the sample that have become idle, so that the ages of their parts are known.
//!
//! A huge page has one accessed bit. Read as it is, one access to an old huge page is an access to each of its 512 pages, and the
//! promotion rate of a job that reads a cold object now and then comes out up to 512 times too high: no threshold keeps the
//! objective, and nothing is offloaded. In far memory the same access is one fault, because the kernel swaps in single pages. Only
//! the sampled huge pages are split (as in Thermostat section 3.2), and only once they are idle: a huge page that is in use stays.

use std::collections::BTreeMap;

use kernel::madvise::PidFd;
use kernel::page_idle::{KPF_THP, KPageFlags};
use kernel::pagemap::{Categories, Entry, Pagemap, Query};
use kernel::thp::HUGE_PAGE;
use kernel::{Result, Roots};
use units::Age;

/// The age from which a huge page counts as idle.
pub const IDLE: Age = Age(2);

/// Huge pages of one process that are split at most in one scan. Each takes some tenths of a millisecond.
const SPLITS_MAX: usize = 128;

/// Splits the huge pages of a process that hold the `idle` addresses, of private pages. Returns how many were split.
///
/// The kernel splits a huge page when a part of it is marked as cold (`madvise_cold_or_pageout_pte_range()` in `mm/madvise.c`). That
/// part is one that is not in the sample.
///
/// # Errors
/// `Gone` if the process has exited; any error of `/proc/PID/pagemap` and `process_madvise`.
pub fn split(roots: &Roots, pid: i32, idle: &[u64]) -> Result<usize> {
    let pagemap = Pagemap::open(roots, pid)?;
    let mut huge = Vec::new();
    for (block, part) in parts(idle) {
        if is_huge(roots, &pagemap, block)? {
            huge.push((block, part..part + kernel::page_size().bytes()));
        }
        if huge.len() == SPLITS_MAX {
            break;
        }
    }
    if huge.is_empty() {
        return Ok(0);
    }
    let ranges: Vec<_> = huge.iter().map(|(_, range)| range.clone()).collect();
    PidFd::open(pid)?.advise_cold(&ranges)?;
    let mut split = 0;
    for (block, _) in huge {
        split += usize::from(!is_huge(roots, &pagemap, block)?);
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
        assert_eq!(split(&roots, pid, &[start + 8192]).unwrap(), 1);
        assert!(!is_huge(&roots, &pagemap, start).unwrap());
        assert_eq!(split(&roots, pid, &[start + 8192]).unwrap(), 0, "nothing is left to split");
        assert!(memory.iter().all(|&byte| byte == 1), "the content is untouched");
        assert!(split(&roots, i32::MAX, &[start]).unwrap_err().is_gone());
    }
}
