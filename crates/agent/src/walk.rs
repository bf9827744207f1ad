//! Walks the swap-backed pages of a process.

use kernel::maps::{self, Kind as VmaKind, Vma};
use kernel::pagemap::{Entry, Pagemap};
use kernel::{Result, Roots};

/// Entries per read: 512 KiB of pagemap for 256 MiB of addresses.
const CHUNK: usize = 1 << 16;

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
            let mut address = vma.start.max(from);
            while address < vma.end {
                let wanted = usize::try_from((vma.end - address).div_ceil(self.page_bytes)).unwrap_or(CHUNK).min(CHUNK);
                let got = pagemap.read(address, &mut self.entries[..wanted])?;
                for entry in &self.entries[..got] {
                    let held = (entry.present() || entry.swapped()) && (shared_memory || !entry.file_or_shmem());
                    if held && visit(address, *entry) == Flow::Stop {
                        return Ok(());
                    }
                    address += self.page_bytes;
                }
                if got < wanted {
                    break;
                }
            }
        }
        Ok(())
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
