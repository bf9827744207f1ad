//! Memory mappings: creation, page accesses, shared counters.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Returns the page size in bytes (`sysconf(_SC_PAGESIZE)`).
pub(crate) fn page_bytes() -> usize {
    // SAFETY: takes no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// A mapping that exists until it is dropped; readable and, unless stated otherwise, writable.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

/// Advice for a whole mapping (`madvise(2)`).
#[derive(Clone, Copy)]
pub(crate) enum Advice {
    /// `MADV_NOHUGEPAGE`
    NoHugePage,
    /// `MADV_HUGEPAGE`
    HugePage,
    /// `MADV_DONTFORK`
    DontFork,
    /// `MADV_RANDOM`
    Random,
}

impl Mapping {
    /// Maps private anonymous memory that starts at a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// `ENOMEM` if the address space or the overcommit limit is exhausted.
    pub(crate) fn anonymous(bytes: usize, align: usize) -> io::Result<Self> {
        let align = align.max(page_bytes());
        let reserved = bytes.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        let whole = map(reserved, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        // Unmaps the parts before and after the aligned part.
        let before = whole.start.as_ptr().align_offset(align);
        let after = reserved - before - bytes;
        let whole = std::mem::ManuallyDrop::new(whole);
        // SAFETY: `before` is at most `align`, so all three parts lie within the reservation, which we own.
        unsafe {
            let start = whole.start.add(before);
            if before > 0 {
                libc::munmap(whole.start.as_ptr().cast(), before);
            }
            if after > 0 {
                libc::munmap(start.add(bytes).as_ptr().cast(), after);
            }
            Ok(Self { start, bytes })
        }
    }

    /// Maps the first `bytes` of `file`, shared with all processes that map or read it.
    /// The file must not shrink while it is mapped: accessing a page beyond its end kills the process.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub(crate) fn shared(file: &File, bytes: usize) -> io::Result<Self> {
        map(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Like [`Mapping::shared`], for reading only.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub(crate) fn shared_read_only(file: &File, bytes: usize) -> io::Result<Self> {
        map(bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// Returns the length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Advises the kernel about the whole mapping.
    ///
    /// # Errors
    /// `EINVAL` if the kernel was built without the feature.
    pub(crate) fn advise(&self, advice: Advice) -> io::Result<()> {
        let advice = match advice {
            Advice::NoHugePage => libc::MADV_NOHUGEPAGE,
            Advice::HugePage => libc::MADV_HUGEPAGE,
            Advice::DontFork => libc::MADV_DONTFORK,
            Advice::Random => libc::MADV_RANDOM,
        };
        // SAFETY: the range is a mapping that we own, and none of these advices changes its contents.
        super::checked(unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, advice) }).map(drop)
    }

    /// Names anonymous memory in `/proc/PID/maps` (`PR_SET_VMA_ANON_NAME`).
    ///
    /// # Errors
    /// `EINVAL` on kernels without `CONFIG_ANON_VMA_NAME`, or for a name with invalid characters.
    pub(crate) fn name(&self, name: &str) -> io::Result<()> {
        let name = CString::new(name)?;
        let (option, kind) = (libc::PR_SET_VMA, libc::PR_SET_VMA_ANON_NAME);
        // SAFETY: the range is a mapping that we own and the name outlives the call, which copies it.
        super::checked(unsafe { libc::prctl(option, kind, self.start.as_ptr(), self.bytes, name.as_ptr()) }).map(drop)
    }

    /// Copies `data` to `offset` of a writable mapping; panics if it does not fit.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        assert!(offset.checked_add(data.len()).is_some_and(|end| end <= self.bytes), "write beyond the mapping");
        // SAFETY: the target lies within the mapping. References to its bytes are handed out only as atomics, which are
        // in mappings of their own.
        unsafe { self.start.as_ptr().add(offset).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
    }

    /// Accesses one byte per page of `pages`: reads it, or reads and writes it.
    pub(crate) fn touch(&self, pages: std::ops::Range<usize>, write: bool) {
        let page = page_bytes();
        assert!(pages.end.checked_mul(page).is_some_and(|end| end <= self.bytes), "touch beyond the mapping");
        for index in pages {
            // SAFETY: the last byte of page `index` lies within the mapping, as just checked; volatile keeps the
            // access.
            unsafe {
                let last = self.start.as_ptr().add((index + 1) * page - 1);
                let byte = last.read_volatile();
                if write {
                    last.write_volatile(byte.wrapping_add(1));
                }
            }
        }
    }

    /// Locks the whole mapping in DRAM (`mlock(2)`).
    ///
    /// # Errors
    /// `ENOMEM` or `EPERM` beyond the limit on locked memory, `RLIMIT_MEMLOCK`.
    pub(crate) fn lock(&self) -> io::Result<()> {
        lock(self.start.as_ptr(), self.bytes)
    }

    /// Frees the memory of these pages (`MADV_DONTNEED`), which then read as zeroes.
    pub(crate) fn discard(&self, pages: std::ops::Range<usize>) {
        let page = page_bytes();
        assert!(pages.end.checked_mul(page).is_some_and(|end| end <= self.bytes), "discard beyond the mapping");
        // SAFETY: the range lies within private memory that we own, and no reference to its bytes is handed out.
        unsafe { libc::madvise(self.start.as_ptr().add(pages.start * page).cast(), pages.len() * page, libc::MADV_DONTNEED) };
    }

    /// Returns the counter at `offset`, a multiple of four. In a read-only mapping it may only be loaded.
    pub(crate) fn u32_at(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset.checked_add(4).is_some_and(|end| end <= self.bytes), "no u32 at {offset}");
        // SAFETY: aligned, since mappings start at pages, and within a mapping that lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// Returns the counter at `offset`, a multiple of eight. In a read-only mapping it may only be loaded.
    pub(crate) fn u64_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= self.bytes), "no u64 at {offset}");
        // SAFETY: aligned, since mappings start at pages, and within a mapping that lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by us, and nothing borrowed from `self` outlives it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn map(bytes: usize, protection: libc::c_int, flags: libc::c_int, fd: libc::c_int) -> io::Result<Mapping> {
    // SAFETY: a new mapping at an address chosen by the kernel affects no memory in use.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0) };
    match NonNull::new(start.cast()) {
        Some(start_) if start != libc::MAP_FAILED => Ok(Mapping { start: start_, bytes }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Locks these items in DRAM (`mlock(2)`), with anything else on their first and last pages.
///
/// # Errors
/// Those of [`Mapping::lock`].
pub(crate) fn lock_items<T>(items: &[T]) -> io::Result<()> {
    lock(items.as_ptr().cast(), size_of_val(items))
}

fn lock(start: *const u8, bytes: usize) -> io::Result<()> {
    // SAFETY: locking does not change contents, and the kernel checks the range.
    super::checked(unsafe { libc::mlock(start.cast(), bytes) }).map(drop)
}

/// Creates a file without a path (`memfd_create(2)`), of length zero.
///
/// # Errors
/// Those of `memfd_create(2)`.
pub(crate) fn memory_file(name: &str) -> io::Result<File> {
    let name = CString::new(name)?;
    // SAFETY: the name is NUL-terminated and outlives the call.
    let fd = super::checked(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: the descriptor was just opened and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn anonymous_memory_is_aligned_and_accessible() {
        for align in [1, 4096, 1 << 21] {
            let mapping = Mapping::anonymous(3 << 21, align).unwrap();
            assert!(mapping.start().is_multiple_of(align as u64));
            mapping.touch(0..mapping.bytes() / page_bytes(), true);
        }
    }

    #[test]
    fn discarded_pages_are_zeroes_and_others_are_kept() {
        let page = page_bytes();
        let mapping = Mapping::anonymous(3 * page, 1).unwrap();
        for offset in [0, page, 2 * page] {
            mapping.write(offset, &7_u32.to_ne_bytes());
        }
        mapping.discard(1..2);
        assert_eq!([0, page, 2 * page].map(|offset| mapping.u32_at(offset).load(Relaxed)), [7, 0, 7]);
    }

    #[test]
    fn shared_memory_is_visible_in_every_mapping() {
        let file = memory_file("test").unwrap();
        file.set_len(8192).unwrap();
        let (one, other) = (Mapping::shared(&file, 8192).unwrap(), Mapping::shared_read_only(&file, 8192).unwrap());
        one.u64_at(4096).store(7, Relaxed);
        one.write(4, &9_u32.to_ne_bytes());
        assert_eq!((other.u64_at(4096).load(Relaxed), other.u32_at(4).load(Relaxed)), (7, 9));
        one.touch(1..2, true);
        assert_eq!(other.u32_at(8188).load(Relaxed).to_ne_bytes()[3], 1);
    }
}
