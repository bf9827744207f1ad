//! Page table state of a process, one 64-bit entry per page: `/proc/PID/pagemap`
//! (`Documentation/admin-guide/mm/pagemap.rst`) and its `PAGEMAP_SCAN` ioctl (Linux 6.7).
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{BitOr, Range};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use serde::Serialize;
use units::PageSize;

use crate::{Error, Result, Roots, file, page_size};

/// The entry of one page in `/proc/PID/pagemap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Entry(pub u64);

impl Entry {
    /// Whether the page is in DRAM and mapped.
    #[must_use]
    pub fn present(self) -> bool {
        self.0 >> 63 & 1 == 1
    }

    /// Whether the page is in swap, zswap included, or under migration.
    #[must_use]
    pub fn swapped(self) -> bool {
        self.0 >> 62 & 1 == 1
    }

    /// Whether the page belongs to a file or to shared memory.
    #[must_use]
    pub fn file_or_shmem(self) -> bool {
        self.0 >> 61 & 1 == 1
    }

    /// Whether only this process maps the page.
    #[must_use]
    pub fn exclusive(self) -> bool {
        self.0 >> 56 & 1 == 1
    }

    /// Whether the page was written since the soft-dirty bits were cleared.
    #[must_use]
    pub fn soft_dirty(self) -> bool {
        self.0 >> 55 & 1 == 1
    }

    /// The page frame number; `None` if the page is not present, or if the caller lacks `CAP_SYS_ADMIN`.
    #[must_use]
    pub fn pfn(self) -> Option<u64> {
        let pfn = self.0 & ((1 << 55) - 1);
        (self.present() && pfn != 0).then_some(pfn)
    }

    /// The swap area and the offset there of a swapped page, as one number. A page that was swapped in and out again mostly has another.
    #[must_use]
    pub fn swap_entry(self) -> Option<u64> {
        (self.swapped() && !self.present()).then_some(self.0 & ((1 << 55) - 1))
    }
}

/// A set of page categories of `PAGEMAP_SCAN` (`PAGE_IS_*` in `include/uapi/linux/fs.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Categories(pub u64);

impl Categories {
    /// No category.
    pub const NONE: Self = Self(0);
    /// Of a file or of shared memory.
    pub const FILE: Self = Self(1 << 2);
    /// Whether the page is in DRAM and mapped.
    pub const PRESENT: Self = Self(1 << 3);
    /// In swap.
    pub const SWAPPED: Self = Self(1 << 4);
    /// The shared zero page.
    pub const PFNZERO: Self = Self(1 << 5);
    /// Mapped as a huge page.
    pub const HUGE: Self = Self(1 << 6);
    /// Written to since the soft-dirty bits were cleared.
    pub const SOFT_DIRTY: Self = Self(1 << 7);

    /// Whether every category of `other` is in this set.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Categories {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The pages that [`Pagemap::scan`] reports: those in every category of `all`, in at least one of `any` unless it is empty,
/// and in none of `none`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Categories that a page must be in.
    pub all: Categories,
    /// Categories of which a page must be in at least one; ignored if empty.
    pub any: Categories,
    /// Categories that a page must not be in.
    pub none: Categories,
    /// Categories to report; adjacent pages that differ in one of them are reported as separate ranges.
    pub report: Categories,
}

/// Adjacent pages of the same categories (`struct page_region`, written by the kernel).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[repr(C)]
pub struct PageRange {
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// The categories of the pages, limited to those that the query reports.
    pub categories: Categories,
}

/// `struct pm_scan_arg` of `include/uapi/linux/fs.h`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const SCAN_ARGUMENT_SIZE: usize = size_of::<ScanArgument>();
const _: () = assert!(SCAN_ARGUMENT_SIZE == 96 && size_of::<PageRange>() == 24);

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u32 = 3 << 30 | 96 << 16 | (b'f' as u32) << 8 | 16;

/// The most ranges that one ioctl returns.
const RANGES_PER_CALL: usize = 4096;

/// The page map of one process. It refers to the address space at the time of opening: after `execve(2)` it is
/// [`Error::Gone`].
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    path: PathBuf,
    page_size: PageSize,
}

impl Pagemap {
    /// Opens the page map of process `pid`.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Io`], `EACCES` without `CAP_SYS_PTRACE`.
    pub fn open(roots: &Roots, pid: i32) -> Result<Self> {
        let path = roots.of_process(pid, "pagemap");
        let file = File::open(&path).map_err(|source| Error::from_io(&path, "open", source))?;
        Ok(Self { file, path, page_size: page_size() })
    }

    /// Reads one entry per page, starting with the page at address `start`. Returns the number of entries read: fewer than
    /// requested at the end of the address space.
    ///
    /// # Errors
    /// [`Error::Gone`] if the process has exited or runs another program; [`Error::Io`].
    pub fn read(&self, start: u64, entries: &mut [Entry]) -> Result<usize> {
        // SAFETY: Entry is a transparent u64, so both slices have the same layout and valid values, and the
        // borrow of one replaces that of the other.
        let words = unsafe { std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u64>(), entries.len()) };
        let offset = start / self.page_size.bytes() * 8;
        let count = file::read_words_at(&self.file, offset, words).map_err(|source| Error::from_io(&self.path, "read", source))?;
        if count == 0 && !entries.is_empty() && start < 1 << 63 {
            return Err(Error::Gone { path: self.path.clone() });
        }
        Ok(count)
    }

    /// Whether this kernel has the `PAGEMAP_SCAN` ioctl.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Io`].
    pub fn can_scan(&self) -> Result<bool> {
        let mut argument = ScanArgument { return_mask: Categories::PRESENT.0, ..ScanArgument::default() };
        match self.scan_once(&mut argument, &mut [PageRange::default()]) {
            Ok(_) => Ok(true),
            Err(error) if error.is_unsupported() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Finds the pages of `range` that match `query`, as sorted ranges; at most `limit` of them.
    ///
    /// Returns the ranges and the address that the scan reached: the end of `range`, or the address from which to continue if
    /// `limit` was reached.
    ///
    /// # Errors
    /// [`Error::Unsupported`] before Linux 6.7; [`Error::Gone`]; [`Error::Io`].
    pub fn scan(&self, range: Range<u64>, query: Query, limit: usize) -> Result<(Vec<PageRange>, u64)> {
        let mut found: Vec<PageRange> = Vec::new();
        let mut buffer = vec![PageRange::default(); RANGES_PER_CALL.min(limit.max(1))];
        let mut from = range.start;
        while from < range.end && found.len() < limit {
            let room = buffer.len().min(limit - found.len());
            let mut argument = ScanArgument {
                start: from,
                end: range.end,
                category_inverted: query.none.0,
                category_mask: query.all.0 | query.none.0,
                category_anyof_mask: query.any.0,
                return_mask: query.report.0,
                ..ScanArgument::default()
            };
            let count = self.scan_once(&mut argument, &mut buffer[..room])?;
            for next in &buffer[..count] {
                match found.last_mut() {
                    // A range may be split between two calls.
                    Some(last) if last.end == next.start && last.categories == next.categories => last.end = next.end,
                    _ => found.push(*next),
                }
            }
            if argument.walk_end <= from {
                break;
            }
            from = argument.walk_end;
        }
        Ok((found, from.min(range.end)))
    }

    fn scan_once(&self, argument: &mut ScanArgument, ranges: &mut [PageRange]) -> Result<usize> {
        argument.size = SCAN_ARGUMENT_SIZE as u64;
        argument.vec = ranges.as_mut_ptr().expose_provenance() as u64;
        argument.vec_len = ranges.len() as u64;
        // SAFETY: `argument` has the layout and size that the request number names; `vec` and `vec_len` describe a
        // borrowed slice of repr(C) structures that every byte pattern is valid for; both outlive the call.
        let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN as libc::Ioctl, std::ptr::from_mut(argument)) };
        if let Ok(count) = usize::try_from(count) {
            return Ok(count.min(ranges.len()));
        }
        let source = io::Error::last_os_error();
        Err(match source.raw_os_error() {
            Some(libc::ENOTTY | libc::EINVAL) => Error::unsupported(
                "this kernel has no PAGEMAP_SCAN ioctl",
                "boot Linux 6.7 or newer; on older kernels the page map is read entry by entry",
            ),
            _ => Error::from_io(&self.path, "scan", source),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Mapping, own_pid, tree};

    #[test]
    fn entries_decode_the_documented_bits() {
        let check = |word: u64, present, swapped, file, exclusive, soft_dirty, pfn| {
            let entry = Entry(word);
            let got = (entry.present(), entry.swapped(), entry.file_or_shmem(), entry.exclusive(), entry.soft_dirty(), entry.pfn());
            assert_eq!(got, (present, swapped, file, exclusive, soft_dirty, pfn), "{word:#x}");
        };
        check(0, false, false, false, false, false, None);
        check(0x8000_0000_0000_1234, true, false, false, false, false, Some(0x1234));
        check(0x8000_0000_0000_0000, true, false, false, false, false, None);
        check(0x4000_0000_0000_0ab0, false, true, false, false, false, None);
        check(0xa180_0000_0000_0001, true, false, true, true, true, Some(1));
    }

    #[test]
    fn pages_of_this_process_are_reported() {
        let memory = Mapping::new(8);
        for page in [0, 2, 3] {
            memory.touch(page);
        }
        let pagemap = Pagemap::open(&Roots::host(), own_pid()).unwrap();
        let mut entries = [Entry::default(); 8];
        assert_eq!(pagemap.read(memory.range(0..8).start, &mut entries).unwrap(), 8);
        assert_eq!(entries.map(Entry::present), [true, false, true, true, false, false, false, false]);
        assert!(!entries[0].file_or_shmem() && entries[0].exclusive() && !entries[0].swapped());
    }

    #[test]
    fn a_scan_reports_the_ranges_of_a_category() {
        let memory = Mapping::new(8);
        for page in [0, 2, 3, 5] {
            memory.touch(page);
        }
        let pagemap = Pagemap::open(&Roots::host(), own_pid()).unwrap();
        if !pagemap.can_scan().unwrap() {
            println!("skipped: this kernel has no PAGEMAP_SCAN ioctl");
            return;
        }
        let present = Query { all: Categories::PRESENT, none: Categories::FILE, report: Categories::PRESENT, ..Query::default() };
        let scan = |limit| {
            let (ranges, reached) = pagemap.scan(memory.range(0..8), present, limit).unwrap();
            assert!(ranges.iter().all(|range| range.categories == Categories::PRESENT));
            (ranges.iter().map(|range| range.start..range.end).collect::<Vec<_>>(), reached)
        };
        let (ranges, reached) = scan(100);
        assert_eq!(ranges, [memory.range(0..1), memory.range(2..4), memory.range(5..6)]);
        assert_eq!(reached, memory.range(0..8).end);
        let (ranges, reached) = scan(2);
        assert_eq!(ranges, [memory.range(0..1), memory.range(2..4)]);
        assert!(reached <= memory.range(0..5).end, "the scan stops at the limit");
        let swapped = Query { any: Categories::SWAPPED, report: Categories::SWAPPED, ..Query::default() };
        assert_eq!(pagemap.scan(memory.range(0..8), swapped, 100).unwrap(), (vec![], memory.range(0..8).end));
    }

    #[test]
    fn pages_of_a_huge_reservation_are_found_without_reading_an_entry_for_each() {
        let pages = (64 << 40) / Mapping::page();
        let memory = Mapping::reserved(pages);
        let touched = [0, pages / 3, pages - 1];
        touched.iter().for_each(|&page| memory.touch(page));
        let pagemap = Pagemap::open(&Roots::host(), own_pid()).unwrap();
        if !pagemap.can_scan().unwrap() {
            println!("skipped: this kernel has no PAGEMAP_SCAN ioctl");
            return;
        }
        let query = Query { any: Categories::PRESENT | Categories::SWAPPED, ..Query::default() };
        let began = std::time::Instant::now();
        let (found, _) = pagemap.scan(memory.range(0..pages), query, 100).unwrap();
        let scanned = began.elapsed();
        assert_eq!(found.iter().map(|range| range.start).collect::<Vec<_>>(), touched.map(|page| memory.range(page..page + 1).start));
        // One entry after the other, a millionth of the reservation.
        let mut entries = vec![Entry::default(); pages / 1_000_000];
        let began = std::time::Instant::now();
        assert_eq!(pagemap.read(memory.range(1..2).start, &mut entries).unwrap(), entries.len());
        let read = began.elapsed();
        println!("64 TiB scanned in {scanned:?}; {} of its pages read in {read:?}", entries.len());
        assert!(scanned < read * 100_000, "the scan took {scanned:?}, reading a millionth of the entries {read:?}");
    }

    #[test]
    fn an_exited_process_and_a_missing_ioctl_are_reported() {
        assert!(Pagemap::open(&Roots::host(), i32::MAX).unwrap_err().is_gone());
        let (keep, roots) = tree(&[("proc/7/pagemap", "")]);
        let pagemap = Pagemap::open(&roots, 7).unwrap();
        let mut entries = [Entry::default(); 2];
        assert!(pagemap.read(4096, &mut entries).unwrap_err().is_gone(), "the address space is gone");
        assert!(!pagemap.can_scan().unwrap(), "a plain file has no such ioctl");
        let words: Vec<u8> = [1_u64, 2, 3].iter().flat_map(|word| word.to_ne_bytes()).collect();
        std::fs::write(keep.path().join("proc/7/pagemap"), words).unwrap();
        assert_eq!(pagemap.read(page_size().bytes() * 2, &mut entries).unwrap(), 1);
        assert_eq!(entries[0], Entry(3));
    }
}
