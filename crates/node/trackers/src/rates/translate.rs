//! Translates points to the page table entries at their addresses.

use kernel::pagemap::{Entry, Pagemap};
use kernel::{Result, Roots};

use super::blocks::BLOCK_BYTES;
use super::point::Point;

/// Returns the pagemap entry of each point; the entry of an absent page if the process has exited or the page is not mapped.
///
/// Consecutive points within one 2 MiB are read together: one system call for the parts of a block.
///
/// # Errors
/// Any error of `/proc/PID/pagemap`, except that the process has exited.
pub(super) fn entries(roots: &Roots, points: &[Point]) -> Result<Vec<Entry>> {
    let page_bytes = kernel::page_size().bytes();
    let mut found = Vec::with_capacity(points.len());
    let mut open: Option<(i32, Option<Pagemap>)> = None;
    let mut buffer = Vec::new();
    for group in points.chunk_by(|one, next| one.pid == next.pid && one.address < next.address && same_block(one.address, next.address)) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        if open.as_ref().is_none_or(|(pid, _)| *pid != first.pid) {
            open = Some((first.pid, unless_gone(Pagemap::open(roots, first.pid))?));
        }
        buffer.clear();
        buffer.resize(usize::try_from((last.address - first.address) / page_bytes + 1).unwrap_or(1), Entry::default());
        if let Some((_, Some(pagemap))) = &open {
            // Entries that were not read stay absent.
            unless_gone(pagemap.read(first.address, &mut buffer))?;
        }
        let index = |point: &Point| usize::try_from((point.address - first.address) / page_bytes).unwrap_or(usize::MAX);
        found.extend(group.iter().map(|point| buffer.get(index(point)).copied().unwrap_or_default()));
    }
    Ok(found)
}

fn same_block(one: u64, other: u64) -> bool {
    one / BLOCK_BYTES == other / BLOCK_BYTES
}

fn unless_gone<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.is_gone() => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process of 3 blocks whose pagemap has entry `n` for page `n`.
    fn machine() -> (tempfile::TempDir, Roots) {
        let directory = tempfile::tempdir().unwrap();
        let pages = 3 * BLOCK_BYTES / kernel::page_size().bytes();
        std::fs::create_dir_all(directory.path().join("proc/7")).unwrap();
        std::fs::write(directory.path().join("proc/7/pagemap"), (0..pages).flat_map(u64::to_ne_bytes).collect::<Vec<_>>()).unwrap();
        let roots = Roots::under(directory.path());
        (directory, roots)
    }

    #[test]
    fn every_point_gets_its_own_entry() {
        let (_keep, roots) = machine();
        let point = |pid, page: u64| Point { pid, address: page * kernel::page_size().bytes() };
        let check = |points: &[(i32, u64)]| {
            let points: Vec<_> = points.iter().map(|&(pid, page)| point(pid, page)).collect();
            let want: Vec<_> = points.iter().map(|p| Entry(if p.pid == 7 { p.address / kernel::page_size().bytes() } else { 0 })).collect();
            assert_eq!(entries(&roots, &points).unwrap(), want);
        };
        check(&[]);
        check(&[(7, 1), (7, 2), (7, 511), (7, 512), (7, 1000)]);
        check(&[(7, 9), (7, 3), (7, 3), (7, 1535)]);
        check(&[(8, 1), (7, 1), (8, 2), (7, 2)]);
    }
}
