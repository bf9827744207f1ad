//! Walks the swap-backed pages of a process.

use std::ops::Range;

use kernel::maps::{self, Kind as VmaKind, Vma};
use kernel::pagemap::{Categories, Entry, Pagemap, Query};
use kernel::{Result, Roots};

/// Entries per read: 512 KiB of pagemap, for 256 MiB of addresses.
const CHUNK: usize = 1 << 16;

/// Empty pages of one mapping that are read entry by entry, where the kernel cannot find the next page: 64 GiB.
const EMPTY_MAX: u64 = 1 << 24;

/// Whether a walk continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Continue with the next page.
    Continue,
    /// End the walk.
    Stop,
}

/// Walks pages from a given address on. Owns its buffer, so that walking many processes allocates once.
#[derive(Debug)]
pub struct Walker {
    entries: Vec<Entry>,
    page_bytes: u64,
    /// Whether the kernel may be asked for the next page.
    asks: bool,
    empty_max: u64,
}

impl Default for Walker {
    fn default() -> Self {
        Self { entries: vec![Entry::default(); CHUNK], page_bytes: kernel::page_size().bytes(), asks: true, empty_max: EMPTY_MAX }
    }
}

impl Walker {
    /// Calls `visit` for every swap-backed page of `pid` at or above `from` that is resident or swapped out, in the
    /// order of addresses. Reads `most` entries at most, and a chunk more: a process may have reserved 127 TiB, which is 34 billion
    /// entries on kernels before 6.7. Returns where the next walk continues; `None` if this one reached the end, or `visit` stopped it.
    ///
    /// Before Linux 6.7, what lies behind [`EMPTY_MAX`] empty pages of a mapping is left out: reading an entry for each page of a
    /// reservation of 127 TiB would take minutes.
    ///
    /// # Errors
    /// `Gone` if the process has exited; any other error of `/proc/PID/maps` or `/proc/PID/pagemap`.
    pub fn walk(
        &mut self,
        roots: &Roots,
        pid: i32,
        from: u64,
        most: u64,
        visit: &mut dyn FnMut(u64, Entry) -> Flow,
    ) -> Result<Option<u64>> {
        let mut left = most;
        let pagemap = Pagemap::open(roots, pid)?;
        for vma in maps::read(roots, pid)?.iter().filter(|vma| vma.end > from) {
            let Some(shared_memory) = swap_backed(vma) else { continue };
            let mut address = vma.start.max(from);
            let mut empty_left = self.empty_max;
            while address < vma.end {
                if left == 0 {
                    return Ok(Some(address));
                }
                let length = usize::try_from((vma.end - address).div_ceil(self.page_bytes)).unwrap_or(CHUNK).min(CHUNK);
                let got = pagemap.read(address, &mut self.entries[..length])?;
                left = left.saturating_sub(got as u64);
                let mut empty = true;
                for entry in &self.entries[..got] {
                    if entry.present() || entry.swapped() {
                        empty = false;
                        if (shared_memory || !entry.file_or_shmem()) && visit(address, *entry) == Flow::Stop {
                            return Ok(None);
                        }
                    }
                    address += self.page_bytes;
                }
                if got < length {
                    break;
                }
                if empty {
                    empty_left = empty_left.saturating_sub(got as u64);
                    let next = if self.asks { next_held(&pagemap, address..vma.end)? } else { None };
                    address = next.unwrap_or(if empty_left > 0 { address } else { vma.end });
                }
            }
        }
        Ok(None)
    }
}

/// Returns the first page of a range that is resident or swapped out, or the end of the range; `None` before Linux 6.7.
///
/// Language runtimes reserve terabytes and use little of them, and pagemap has an entry for every reserved page: after
/// a chunk without pages, `PAGEMAP_SCAN` finds the next page.
fn next_held(pagemap: &Pagemap, range: Range<u64>) -> Result<Option<u64>> {
    let query = Query { any: Categories::PRESENT | Categories::SWAPPED, ..Query::default() };
    match pagemap.scan(range.clone(), query, 1) {
        Ok((found, _)) => Ok(Some(found.first().map_or(range.end, |next| next.start))),
        Err(error) if error.is_unsupported() => Ok(None),
        Err(error) => Err(error),
    }
}

/// `None` for a mapping without swap-backed pages; otherwise whether all of its pages are swap-backed.
///
/// A private file mapping holds both: unmodified pages belong to the file, written ones are anonymous, and the
/// pagemap's file-or-shmem bit distinguishes them. In shared memory every page has that bit and is swap-backed all the
/// same.
pub(crate) fn swap_backed(vma: &Vma) -> Option<bool> {
    match vma.kind {
        VmaKind::Anon | VmaKind::Heap | VmaKind::Stack => Some(false),
        VmaKind::Shared => Some(true),
        VmaKind::File => vma.private().then_some(false),
        VmaKind::Special => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Much more than a chunk.
    const RESERVED: usize = 2 << 30;

    /// Upper limit of the memory that one access makes resident: a huge page.
    const HUGE: u64 = 2 << 20;

    #[test]
    fn a_sparse_reservation_is_walked_only_where_pages_exist() {
        let mut memory = vec![0u8; RESERVED];
        let touched = [0, RESERVED / 2, RESERVED / 2 + (1 << 18), RESERVED - 1];
        for at in touched {
            memory[at] = 1;
        }
        let (roots, pid) = (Roots::host(), i32::try_from(std::process::id()).unwrap());
        let page = kernel::page_size().bytes();
        let start = memory.as_ptr().addr() as u64;
        let page_of = |at: usize| (start + at as u64) / page * page;
        let range = page_of(0)..page_of(RESERVED - 1) + page;

        let mut visited = Vec::new();
        Walker::default()
            .walk(&roots, pid, 0, u64::MAX, &mut |address, _| {
                visited.extend(range.contains(&address).then_some(address));
                Flow::Continue
            })
            .unwrap();
        assert!(visited.is_sorted() && visited.len() as u64 <= touched.len() as u64 * HUGE / page);
        for at in touched {
            assert!(visited.contains(&page_of(at)), "{at:#x} of {range:#x?}");
        }

        let pagemap = Pagemap::open(&roots, pid).unwrap();
        let from = range.start + HUGE;
        let next = next_held(&pagemap, from..range.end).unwrap();
        if pagemap.can_scan().unwrap() {
            let next = next.unwrap();
            assert!((page_of(RESERVED / 2) - HUGE..=page_of(RESERVED / 2)).contains(&next), "{next:#x} of {range:#x?}");
            let middle = from..page_of(RESERVED / 2) - HUGE;
            assert_eq!(next_held(&pagemap, middle.clone()).unwrap(), Some(middle.end), "no page there");
        } else {
            assert_eq!(next, None);
        }
    }

    /// A process of files, which has reserved 127 TiB of which no page is present. The kernel cannot list what a mapping holds.
    #[test]
    fn a_walk_through_reserved_memory_ends_and_continues() {
        let directory = tempfile::tempdir().unwrap();
        let roots = Roots::under(directory.path());
        let process = roots.proc.join("7");
        std::fs::create_dir_all(&process).unwrap();
        let (start, length) = (0x1000_0000_u64, 127_u64 << 40);
        std::fs::write(process.join("maps"), format!("{start:x}-{:x} rw-p 00000000 00:00 0\n", start + length)).unwrap();
        let page = kernel::page_size().bytes();
        std::fs::File::create(process.join("pagemap")).unwrap().set_len((start + length) / page * 8).unwrap();
        let mut walker = Walker::default();
        let mut walk = |from, most| walker.walk(&roots, 7, from, most, &mut |_, _| Flow::Continue).unwrap();
        let reached = walk(0, 3 * CHUNK as u64 - 1).unwrap();
        assert_eq!(reached, start + 3 * CHUNK as u64 * page);
        assert_eq!(walk(reached, 1), Some(reached + CHUNK as u64 * page));
        assert_eq!(walk(start + length - page, 1), None);
    }

    /// A kernel before 6.7: holes are read up to a limit, and what is behind a longer one is left out.
    #[test]
    fn a_walk_without_the_kernels_help_is_bounded() {
        let mut memory = vec![0u8; RESERVED];
        let touched = [0, RESERVED / 4, RESERVED - 1];
        for at in touched {
            memory[at] = 1;
        }
        let (roots, pid) = (Roots::host(), i32::try_from(std::process::id()).unwrap());
        let page = kernel::page_size().bytes();
        let (start, end) = (memory.as_ptr().addr() as u64, memory.as_ptr().addr() as u64 + RESERVED as u64);
        let visited = |empty_max| {
            let mut visited = Vec::new();
            Walker { asks: false, empty_max, ..Walker::default() }
                .walk(&roots, pid, start / page * page, u64::MAX, &mut |address, _| {
                    if address >= end {
                        return Flow::Stop;
                    }
                    visited.push(address);
                    Flow::Continue
                })
                .unwrap();
            touched.map(|at| visited.contains(&((start + at as u64) / page * page)))
        };
        assert_eq!(visited(EMPTY_MAX), [true, true, true]);
        // A gigabyte of empty pages lies between the second and the third.
        assert_eq!(visited((RESERVED as u64 / page) * 3 / 5), [true, true, false]);
    }

    #[test]
    fn a_walk_starts_at_an_address_and_stops_on_request() {
        let (roots, pid) = (Roots::host(), i32::try_from(std::process::id()).unwrap());
        let memory = vec![1u8; 1 << 20];
        let start = memory.as_ptr().addr() as u64;
        let mut walker = Walker::default();
        let mut first_at_or_above = |from: u64| {
            let mut first = None;
            let visit = &mut |address, _| {
                first = Some(address);
                Flow::Stop
            };
            walker.walk(&roots, pid, from, u64::MAX, visit).unwrap();
            first
        };
        let middle = (start + (1 << 19)).next_multiple_of(kernel::page_size().bytes());
        assert_eq!(first_at_or_above(middle), Some(middle));
        assert!(first_at_or_above(0).is_some_and(|first| first < middle));
        assert!(walker.walk(&roots, i32::MAX, 0, u64::MAX, &mut |_, _| Flow::Continue).unwrap_err().is_gone());
    }
}
