//! Walks the swap-backed pages of a process.

use std::ops::Range;

use kernel::maps::{self, Kind as VmaKind, Vma};
use kernel::pagemap::{Categories, Entry, Pagemap, Query};
use kernel::{Result, Roots};

/// Entries per read: 512 KiB of pagemap for 256 MiB of addresses.
const CHUNK: usize = 1 << 16;

/// Ranges of pages per `PAGEMAP_SCAN`: 96 KiB of them.
const RANGES: usize = 1 << 12;

/// Empty pages that are read along with their neighbours rather than cost a read of their own: 4 KiB of pagemap.
const GAP_PAGES: u64 = 512;

/// Where a walk goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// To the next page.
    Continue,
    /// Nowhere: enough was seen.
    Stop,
}

/// Walks pages from a given address on. Holds its buffer, so that walking many processes allocates once.
#[derive(Debug)]
pub struct Walker {
    entries: Vec<Entry>,
    page_bytes: u64,
}

impl Default for Walker {
    fn default() -> Self {
        Self { entries: vec![Entry::default(); CHUNK], page_bytes: kernel::page_size().bytes() }
    }
}

impl Walker {
    /// Calls `visit` for every page of `pid` at or above `from` that is resident or swapped and that swap can hold,
    /// in the order of their addresses.
    ///
    /// # Errors
    /// `Gone` when the process has ended; any other error of `/proc/PID/maps` or `/proc/PID/pagemap`.
    pub fn walk(&mut self, roots: &Roots, pid: i32, from: u64, visit: &mut dyn FnMut(u64, Entry) -> Flow) -> Result<()> {
        let pagemap = Pagemap::open(roots, pid)?;
        for vma in maps::read(roots, pid)?.iter().filter(|vma| vma.end > from) {
            let Some(shared_memory) = swap_backed(vma) else { continue };
            for part in self.populated(&pagemap, vma.start.max(from)..vma.end)? {
                let seen = self.walk_part(&pagemap, part, &mut |address, entry| {
                    let held = (entry.present() || entry.swapped()) && (shared_memory || !entry.file_or_shmem());
                    if held { visit(address, entry) } else { Flow::Continue }
                });
                if seen? == Flow::Stop {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn walk_part(&mut self, pagemap: &Pagemap, part: Range<u64>, visit: &mut dyn FnMut(u64, Entry) -> Flow) -> Result<Flow> {
        let mut address = part.start;
        while address < part.end {
            let wanted = usize::try_from((part.end - address).div_ceil(self.page_bytes)).unwrap_or(CHUNK).min(CHUNK);
            let got = pagemap.read(address, &mut self.entries[..wanted])?;
            for entry in &self.entries[..got] {
                if visit(address, *entry) == Flow::Stop {
                    return Ok(Flow::Stop);
                }
                address += self.page_bytes;
            }
            if got < wanted {
                break;
            }
        }
        Ok(Flow::Continue)
    }

    /// The parts of a mapping that may hold pages.
    ///
    /// Runtimes reserve terabytes and fill little of them; pagemap has an entry for every page of that. Where a mapping
    /// is larger than a chunk, the kernel is asked first (Linux 6.7 and up); without an answer all of it is read.
    fn populated(&self, pagemap: &Pagemap, mapping: Range<u64>) -> Result<Vec<Range<u64>>> {
        if (mapping.end - mapping.start) / self.page_bytes <= CHUNK as u64 {
            return Ok(vec![mapping]);
        }
        let query = Query { any: Categories::PRESENT | Categories::SWAPPED, ..Query::default() };
        let mut parts: Vec<Range<u64>> = Vec::new();
        let mut from = mapping.start;
        while from < mapping.end {
            let (found, reached) = match pagemap.scan(from..mapping.end, query, RANGES) {
                Err(error) if error.is_unsupported() => return Ok(vec![mapping]),
                answer => answer?,
            };
            for next in found {
                match parts.last_mut() {
                    Some(last) if next.start - last.end <= GAP_PAGES * self.page_bytes => last.end = next.end,
                    _ => parts.push(next.start..next.end),
                }
            }
            if reached <= from {
                break;
            }
            from = reached;
        }
        Ok(parts)
    }
}

/// Whether a mapping may hold pages that go to swap; then, whether all of its pages do.
///
/// A private file mapping holds both: its untouched pages are the file's, its written ones anonymous. The page's own
/// bit tells them apart. In shared memory every page has that bit, and yet lives in swap.
fn swap_backed(vma: &Vma) -> Option<bool> {
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

    /// Far more than a chunk, hardly any of it filled.
    const RESERVED: usize = 1 << 30;

    #[test]
    fn a_sparse_reservation_is_walked_where_it_is_filled() {
        let mut memory = vec![0u8; RESERVED];
        // The two in the middle are read together, for what lies between is less than a read of its own.
        let touched = [0, RESERVED / 2, RESERVED / 2 + (1 << 18), RESERVED - 1];
        for at in touched {
            memory[at] = 1;
        }
        let (roots, pid) = (Roots::host(), i32::try_from(std::process::id()).unwrap());
        let mut walker = Walker::default();
        let page = walker.page_bytes;
        let start = memory.as_ptr().addr() as u64;
        let range = start - start % page..start + RESERVED as u64;

        let pagemap = Pagemap::open(&roots, pid).unwrap();
        let parts = walker.populated(&pagemap, range.clone()).unwrap();
        let (read, all) = (parts.iter().map(|part| part.end - part.start).sum::<u64>(), range.end - range.start);
        if pagemap.can_scan().unwrap() {
            // A touch may have filled a huge page.
            assert!((1..=3).contains(&parts.len()) && read <= 3 * (4 << 20), "{parts:?}");
        } else {
            assert_eq!(read, all);
        }

        let mut seen = Vec::new();
        walker
            .walk(&roots, pid, 0, &mut |address, _| {
                seen.extend(range.contains(&address).then_some(address));
                Flow::Continue
            })
            .unwrap();
        assert!(seen.is_sorted() && seen.len() <= 3 * 1024);
        for at in touched {
            let address = start + at as u64;
            assert!(seen.contains(&(address - address % page)), "{address:#x} of {range:#x?}");
        }
    }

    #[test]
    fn a_walk_stops_and_goes_on_where_it_is_told() {
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
            walker.walk(&roots, pid, from, visit).unwrap();
            first
        };
        let middle = (start + (1 << 19)).next_multiple_of(kernel::page_size().bytes());
        assert_eq!(first_at_or_above(middle), Some(middle));
        assert!(first_at_or_above(0) < Some(middle));
        assert!(walker.walk(&roots, i32::MAX, 0, &mut |_, _| Flow::Continue).unwrap_err().is_gone());
    }
}
