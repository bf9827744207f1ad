//! Which sampled pages a process holds: resident or swapped out.

use std::ops::Range;

use kernel::maps;
use kernel::pagemap::{Categories, Entry, Pagemap, Query};
use kernel::{Result, Roots};
use units::PageSize;

use super::blocks::{self, Space};
use crate::walk::swap_backed;

/// Blocks of one mapping that are read one by one. A larger mapping may be a sparse reservation: its ranges of pages are asked
/// of the kernel first.
const BLOCKS_MAX: u64 = 1 << 14;

/// Ranges of pages that the kernel is asked for in one mapping.
const RANGES_MAX: usize = 1 << 14;

/// A sampled page of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its address.
    pub address: u64,
    /// The space that its page number counts in.
    pub space: Space,
    /// Its page number.
    pub page: u64,
    /// Whether other processes may have the same page; `None` if that cannot be known of a swapped page.
    pub shared: Option<bool>,
    /// Whether it is swapped out.
    pub swapped: bool,
}

/// Calls `visit` for every sampled swap-backed page of a process, in the order of addresses. Returns whether all mappings were
/// read: a sparse mapping that the kernel cannot list is left out.
///
/// # Errors
/// `Gone` if the process has exited; any other error of `/proc/PID/maps` or `/proc/PID/pagemap`.
pub fn visit(roots: &Roots, pid: i32, seed: u64, level: u32, visit: &mut dyn FnMut(Held)) -> Result<bool> {
    let pagemap = Pagemap::open(roots, pid)?;
    let size = kernel::page_size();
    let mut complete = true;
    for vma in &maps::read(roots, pid)? {
        let Some(shared) = swap_backed(vma) else { continue };
        let space = if shared { Space(vma.inode.max(1)) } else { Space::PRIVATE };
        // What has to be added to an address's page number to get the number in its space.
        let first = vma.start / size.bytes();
        let base = if shared { (vma.offset / size.bytes()).wrapping_sub(first) } else { 0 };
        let pages = first..vma.end / size.bytes();
        let Some(parts) = parts(&pagemap, pages, level, size)? else {
            complete = false;
            continue;
        };
        for part in parts {
            let numbers = part.start.wrapping_add(base)..part.end.wrapping_add(base);
            for page in blocks::chosen(seed, space, level, numbers) {
                let address = page.wrapping_sub(base) * size.bytes();
                let mut entry = [Entry::default()];
                if pagemap.read(address, &mut entry)? == 1
                    && let Some(swapped) = held(entry[0], shared)
                {
                    let shared = if shared { Some(true) } else { (!swapped).then(|| !entry[0].exclusive()) };
                    visit(Held { address, space, page, shared, swapped });
                }
            }
        }
    }
    Ok(complete)
}

/// Whether a page is swapped out; `None` if there is none, or it is a file's.
fn held(entry: Entry, shared: bool) -> Option<bool> {
    ((entry.present() || entry.swapped()) && (shared || !entry.file_or_shmem())).then(|| !entry.present())
}

/// Ranges of page numbers that cover all pages of a mapping; `None` if the mapping is too large to read each block, and the
/// kernel cannot list its pages (before Linux 6.7).
fn parts(pagemap: &Pagemap, pages: Range<u64>, level: u32, size: PageSize) -> Result<Option<Vec<Range<u64>>>> {
    if (pages.end - pages.start) >> level <= BLOCKS_MAX {
        return Ok(Some(vec![pages]));
    }
    let query = Query { any: Categories::PRESENT | Categories::SWAPPED, ..Query::default() };
    match pagemap.scan(pages.start * size.bytes()..pages.end * size.bytes(), query, RANGES_MAX) {
        Ok((found, reached)) => {
            let mut parts: Vec<_> = found.iter().map(|range| range.start / size.bytes()..range.end / size.bytes()).collect();
            // Memory in more ranges than that is dense beyond them.
            if reached < pages.end * size.bytes() && (pages.end - reached / size.bytes()) >> level <= BLOCKS_MAX * 16 {
                parts.push(reached / size.bytes()..pages.end);
            }
            Ok(Some(parts))
        }
        Err(error) if error.is_unsupported() => Ok(((pages.end - pages.start) >> level <= BLOCKS_MAX * 16).then(|| vec![pages])),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_of_this_process_is_a_share_of_what_it_holds() {
        let (roots, pid) = (Roots::host(), i32::try_from(std::process::id()).unwrap());
        let size = kernel::page_size().bytes();
        // A sparse reservation of which the first 32 MiB are used.
        // Not freed: other tests of this process read its memory.
        let memory = vec![0u8; 8 << 30].leak();
        for at in (0..32 << 20).step_by(usize::try_from(size).unwrap()) {
            memory[at] = 1;
        }
        let start = memory.as_ptr().addr() as u64;
        let mut inside = Vec::new();
        let complete = visit(&roots, pid, 1, 4, &mut |held| {
            if (start..start + (8 << 30)).contains(&held.address) {
                inside.push(held);
            }
        })
        .unwrap();
        let expected = (32 << 20) / size / 16;
        if complete {
            let count = inside.len() as u64;
            // Huge pages may make up to 2 MiB more resident.
            assert!((expected * 85 / 100..=expected * 115 / 100 + 32).contains(&count), "{count} of {expected}");
        }
        assert!(inside.iter().all(|held| held.shared != Some(true) && held.space == Space::PRIVATE && held.page * size == held.address));
        assert!(visit(&roots, i32::MAX, 1, 4, &mut |_| {}).unwrap_err().is_gone());
    }
}
