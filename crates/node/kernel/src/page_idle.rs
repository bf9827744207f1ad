//! Idle page tracking and the per-page files that belong to it: `/sys/kernel/mm/page_idle/bitmap`
//! (`Documentation/admin-guide/mm/idle_page_tracking.rst`), `/proc/kpageflags`, `/proc/kpagecgroup` and
//! `/proc/kpagecount` (`Documentation/admin-guide/mm/pagemap.rst`).
//!
//! All files consist of 64-bit words in native byte order, are indexed by page frame number (pfn), and are read in bulk. A chunk
//! that is shorter than requested ends at the last page frame of the machine.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;

use crate::{Error, Result, Roots, file, zoneinfo};

/// Page frames per word of the idle bitmap; the lowest bit is the lowest frame.
pub const PFNS_PER_WORD: u64 = 64;

/// The page is locked for I/O.
pub const KPF_LOCKED: u64 = 1 << 0;
/// Referenced, as recorded by reclaim.
pub const KPF_REFERENCED: u64 = 1 << 2;
/// Dirty.
pub const KPF_DIRTY: u64 = 1 << 4;
/// On an LRU list: the pages that can be reclaimed.
pub const KPF_LRU: u64 = 1 << 5;
/// On the active list.
pub const KPF_ACTIVE: u64 = 1 << 6;
/// Memory of the slab allocator.
pub const KPF_SLAB: u64 = 1 << 7;
/// Under writeback.
pub const KPF_WRITEBACK: u64 = 1 << 8;
/// Free.
pub const KPF_BUDDY: u64 = 1 << 10;
/// Mapped into a process.
pub const KPF_MMAP: u64 = 1 << 11;
/// Anonymous.
pub const KPF_ANON: u64 = 1 << 12;
/// In the swap cache.
pub const KPF_SWAPCACHE: u64 = 1 << 13;
/// Backed by swap: anonymous or shared memory.
pub const KPF_SWAPBACKED: u64 = 1 << 14;
/// Head page of a compound page.
pub const KPF_COMPOUND_HEAD: u64 = 1 << 15;
/// Tail page of a compound page.
pub const KPF_COMPOUND_TAIL: u64 = 1 << 16;
/// hugetlbfs.
pub const KPF_HUGE: u64 = 1 << 17;
/// Cannot be reclaimed.
pub const KPF_UNEVICTABLE: u64 = 1 << 18;
/// Poisoned by a hardware error.
pub const KPF_HWPOISON: u64 = 1 << 19;
/// No page frame here.
pub const KPF_NOPAGE: u64 = 1 << 20;
/// Merged by KSM.
pub const KPF_KSM: u64 = 1 << 21;
/// Transparent huge page.
pub const KPF_THP: u64 = 1 << 22;
/// Logically offline, such as in a balloon.
pub const KPF_OFFLINE: u64 = 1 << 23;
/// The zero page.
pub const KPF_ZERO_PAGE: u64 = 1 << 24;
/// Not accessed since it was marked idle. May be stale: reading the bitmap checks the page tables, this flag does not.
pub const KPF_IDLE: u64 = 1 << 25;
/// A page table.
pub const KPF_PGTABLE: u64 = 1 << 26;
/// Locked by `mlock(2)`; visible to root since Linux 2.6.31.
pub const KPF_MLOCKED: u64 = 1 << 33;

/// A kernel file of 64-bit words.
#[derive(Debug)]
struct Words {
    file: File,
    path: PathBuf,
}

impl Words {
    fn open(path: PathBuf, writing: bool, what: &str, remedy: &str) -> Result<Self> {
        match OpenOptions::new().read(true).write(writing).open(&path) {
            Ok(file) => Ok(Self { file, path }),
            Err(source) if file::is_absent(&source) => Err(Error::unsupported(what, remedy)),
            Err(source) => Err(Error::from_io(&path, "open", source)),
        }
    }

    fn read(&self, first_word: u64, words: &mut [u64]) -> Result<usize> {
        file::read_words_at(&self.file, first_word.saturating_mul(8), words).map_err(|source| self.fail("read", source))
    }

    fn write(&self, first_word: u64, words: &[u64]) -> Result<usize> {
        file::write_words_at(&self.file, first_word.saturating_mul(8), words).map_err(|source| self.fail("write", source))
    }

    fn fail(&self, op: &'static str, source: std::io::Error) -> Error {
        Error::Io { path: self.path.clone(), op, source }
    }
}

/// `/sys/kernel/mm/page_idle/bitmap`: one bit per page frame, set while the page is idle. Pages that are not on an LRU list read
/// as 0 and ignore writes. Reading a bit checks every page table that maps the page, so that a shared page is not idle if any
/// process has accessed it.
#[derive(Debug)]
pub struct IdleBitmap(Words);

impl IdleBitmap {
    /// Opens the bitmap for reading and writing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on kernels built without it, such as Debian's; [`Error::Io`].
    pub fn open(roots: &Roots) -> Result<Self> {
        let path = roots.sys.join("kernel/mm/page_idle/bitmap");
        let remedy = "boot a kernel with CONFIG_IDLE_PAGE_TRACKING=y, or use the lru_gen or damon tracker";
        Words::open(path, true, "this kernel has no idle page tracking", remedy).map(Self)
    }

    /// Reads the bits of the page frames from `first_pfn` on, 64 per word. `first_pfn` must be a multiple of 64.
    ///
    /// Returns the number of words read: fewer than requested at the end of memory. The kernel does not count a partial last word.
    ///
    /// # Errors
    /// [`Error::Io`], `EINVAL` where `first_pfn` is not a multiple of 64.
    pub fn read_chunk(&self, first_pfn: u64, words: &mut [u64]) -> Result<usize> {
        self.0.read(self.word_of(first_pfn)?, words)
    }

    /// Marks the page frames from `first_pfn` on as idle whose bits are set; other pages are unchanged.
    ///
    /// Returns the number of words written: fewer than given at the end of memory.
    ///
    /// # Errors
    /// As [`IdleBitmap::read_chunk`]; also `ENXIO` where `first_pfn` lies past the end of memory.
    pub fn write_chunk(&self, first_pfn: u64, words: &[u64]) -> Result<usize> {
        self.0.write(self.word_of(first_pfn)?, words)
    }

    fn word_of(&self, pfn: u64) -> Result<u64> {
        if pfn.is_multiple_of(PFNS_PER_WORD) {
            return Ok(pfn / PFNS_PER_WORD);
        }
        Err(self.0.fail("address a part of a word of", std::io::Error::from_raw_os_error(libc::EINVAL)))
    }
}

macro_rules! per_page_file {
    ($(#[$doc:meta])* $name:ident, $file:literal, $remedy:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Words);

        impl $name {
            /// Opens the file.
            ///
            /// # Errors
            /// [`Error::Unsupported`] on kernels built without it; [`Error::Io`], `EPERM` without root.
            pub fn open(roots: &Roots) -> Result<Self> {
                let what = concat!("this kernel has no /proc/", $file);
                Words::open(roots.proc.join($file), false, what, $remedy).map(Self)
            }

            /// Reads one word per page frame from `first_pfn` on. Returns the number of words read: fewer than
            /// requested at the end of memory.
            ///
            /// # Errors
            /// [`Error::Io`].
            pub fn read_chunk(&self, first_pfn: u64, words: &mut [u64]) -> Result<usize> {
                self.0.read(first_pfn, words)
            }
        }
    };
}

per_page_file! {
    /// `/proc/kpageflags`: the `KPF_` flags of every page frame.
    KPageFlags, "kpageflags", "boot a kernel with CONFIG_PROC_PAGE_MONITOR=y"
}
per_page_file! {
    /// `/proc/kpagecgroup`: the id of the cgroup that every page frame is charged to ([`crate::cgroup::Cgroup::id`]);
    /// 0 if it is not charged.
    KPageCgroup, "kpagecgroup", "boot a kernel with CONFIG_PROC_PAGE_MONITOR=y and CONFIG_MEMCG=y"
}
per_page_file! {
    /// `/proc/kpagecount`: how many times every page frame is mapped.
    KPageCount, "kpagecount", "boot a kernel with CONFIG_PROC_PAGE_MONITOR=y"
}

/// Page frames of the largest compound page on an LRU list: a transparent huge page of 2 MiB.
const COMPOUND_MAX: usize = 512;

impl KPageFlags {
    /// Returns the page frame whose idle bit covers the frame `pfn`, which has these flags: the first of its compound page. `None` if
    /// it is on no LRU list, and so has no bit (`page_idle_get_folio()` in `mm/page_idle.c`).
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn idle_head(&self, pfn: u64, flags: u64) -> Result<Option<u64>> {
        if flags & KPF_COMPOUND_TAIL == 0 {
            return Ok((flags & KPF_LRU != 0).then_some(pfn));
        }
        let mut words = [0; COMPOUND_MAX];
        let first = pfn - pfn % COMPOUND_MAX as u64;
        let count = self.read_chunk(first, &mut words)?.min(usize::try_from(pfn - first).unwrap_or(0));
        let head = words[..count].iter().rposition(|flags| flags & KPF_COMPOUND_TAIL == 0);
        Ok(head.filter(|&head| words[head] & KPF_LRU != 0).map(|head| first + head as u64))
    }
}

/// The first page frame number after the end of memory (`/proc/zoneinfo`).
///
/// # Errors
/// [`Error::Parse`], also where no zone has memory; [`Error::Io`].
pub fn max_pfn(roots: &Roots) -> Result<u64> {
    let ranges = zoneinfo::pfn_ranges(roots)?;
    let path = roots.proc.join("zoneinfo");
    let missing = || crate::Malformed::new(0, "end of file", "a zone with spanned pages and start_pfn");
    ranges.last().map(|range| range.end).ok_or_else(|| missing().at(&path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tree;

    /// A machine of `words` words of 64 page frames, each file counting up from 0.
    fn machine(words: u64) -> (tempfile::TempDir, Roots) {
        let (keep, roots) = tree(&[("proc/zoneinfo", include_str!("testdata/zoneinfo")), ("sys/kernel/mm/page_idle/x", "")]);
        let bytes: Vec<u8> = (0..words).flat_map(u64::to_ne_bytes).collect();
        for path in ["sys/kernel/mm/page_idle/bitmap", "proc/kpageflags", "proc/kpagecgroup", "proc/kpagecount"] {
            std::fs::write(keep.path().join(path), &bytes).unwrap();
        }
        (keep, roots)
    }

    #[test]
    fn chunks_are_indexed_by_page_frame_and_end_with_memory() {
        let (_keep, roots) = machine(100);
        let (idle, flags) = (IdleBitmap::open(&roots).unwrap(), KPageFlags::open(&roots).unwrap());
        let check = |first: u64, asked: usize, bitmap: &[u64], per_page: &[u64]| {
            let mut words = vec![0; asked];
            let count = idle.read_chunk(first * PFNS_PER_WORD, &mut words).unwrap();
            assert_eq!(&words[..count], bitmap);
            let count = flags.read_chunk(first, &mut words).unwrap();
            assert_eq!(&words[..count], per_page);
        };
        check(0, 3, &[0, 1, 2], &[0, 1, 2]);
        check(98, 5, &[98, 99], &[98, 99]);
        check(100, 5, &[], &[]);
        check(5, 0, &[], &[]);
        let mut word = [0];
        assert_eq!(KPageCgroup::open(&roots).unwrap().read_chunk(7, &mut word).unwrap(), 1);
        assert_eq!(KPageCount::open(&roots).unwrap().read_chunk(7, &mut word).unwrap(), 1);
        assert_eq!(word, [7]);
        assert_eq!(idle.read_chunk(63, &mut word).unwrap_err().errno(), Some(libc::EINVAL));
    }

    #[test]
    fn parts_of_a_compound_page_have_the_bit_of_its_first() {
        let (keep, roots) = machine(0);
        let flags = |pfn| if pfn == 512 { KPF_LRU | KPF_COMPOUND_HEAD } else { KPF_COMPOUND_TAIL };
        let bytes: Vec<u8> = (0..1_024).map(flags).flat_map(u64::to_ne_bytes).collect();
        std::fs::write(keep.path().join("proc/kpageflags"), bytes).unwrap();
        let frames = KPageFlags::open(&roots).unwrap();
        let check = |pfn, flags, expected| assert_eq!(frames.idle_head(pfn, flags).unwrap(), expected, "{pfn}");
        check(512, flags(512), Some(512));
        check(700, flags(700), Some(512));
        check(100, flags(100), None);
        check(7, KPF_LRU, Some(7));
        check(7, 0, None);
    }

    #[test]
    fn idle_bits_are_written_in_place() {
        let (_keep, roots) = machine(4);
        let idle = IdleBitmap::open(&roots).unwrap();
        assert_eq!(idle.write_chunk(PFNS_PER_WORD, &[u64::MAX, 1 << 63]).unwrap(), 2);
        let mut words = [9; 4];
        assert_eq!(idle.read_chunk(0, &mut words).unwrap(), 4);
        assert_eq!(words, [0, u64::MAX, 1 << 63, 3]);
        assert_eq!(idle.write_chunk(PFNS_PER_WORD + 1, &[1]).unwrap_err().errno(), Some(libc::EINVAL));
    }

    #[test]
    fn a_partial_last_word_is_dropped() {
        let (keep, roots) = machine(0);
        for (bytes, whole) in [(0, 0), (7, 0), (8, 1), (15, 1), (16, 2)] {
            std::fs::write(keep.path().join("proc/kpageflags"), vec![0xff; bytes]).unwrap();
            let mut words = [0; 4];
            assert_eq!(KPageFlags::open(&roots).unwrap().read_chunk(0, &mut words).unwrap(), whole, "{bytes} bytes");
        }
    }

    #[test]
    fn memory_ends_where_the_last_zone_does() {
        let (_keep, roots) = machine(0);
        assert_eq!(max_pfn(&roots).unwrap(), (1 << 20) + 5_505_024);
        let (_keep, roots) = tree(&[("proc/zoneinfo", "")]);
        assert!(matches!(max_pfn(&roots), Err(Error::Parse { line: 0, .. })));
    }

    #[test]
    fn a_kernel_without_idle_tracking_is_unsupported() {
        let (_keep, roots) = tree(&[("proc/zoneinfo", "")]);
        let error = IdleBitmap::open(&roots).unwrap_err();
        assert!(error.is_unsupported() && error.to_string().contains("CONFIG_IDLE_PAGE_TRACKING=y"), "{error}");
        for error in [KPageFlags::open(&roots).unwrap_err(), KPageCgroup::open(&roots).unwrap_err(), KPageCount::open(&roots).unwrap_err()]
        {
            assert!(error.is_unsupported(), "{error}");
        }
    }
}
