//! Advice on another process's memory: `pidfd_open(2)`, `process_madvise(2)`.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use units::Bytes;

use crate::thp::HUGE_PAGE;
use crate::{Error, Result};

/// The most ranges per call (`UIO_MAXIOV`).
const RANGES_PER_CALL: usize = 1024;

/// Bytes advised per call. The kernel limits a call to 2 GiB; a lower limit keeps each call short.
const BYTES_PER_CALL: u64 = 256 << 20;

/// Bytes paged out per call. The kernel compresses during the call, and holds the process's `mmap_lock` all the time: its own
/// `mmap` and `fork` wait. 256 pages are compressed in a few milliseconds.
const PAGEOUT_PER_CALL: u64 = 1 << 20;

/// `MADV_COLLAPSE` of `include/uapi/asm-generic/mman-common.h`, which the headers of the C library do not have yet.
const MADV_COLLAPSE: libc::c_int = 25;

/// The supported advice. None of these changes the content of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advice {
    Pageout,
    Cold,
    WillNeed,
    Collapse,
}

impl Advice {
    fn number(self) -> libc::c_int {
        match self {
            Self::Pageout => libc::MADV_PAGEOUT,
            Self::Cold => libc::MADV_COLD,
            Self::WillNeed => libc::MADV_WILLNEED,
            Self::Collapse => MADV_COLLAPSE,
        }
    }

    /// Bytes per call. Collapsing copies memory and takes longer per byte.
    fn bytes_per_call(self) -> u64 {
        match self {
            Self::Collapse => 8 * HUGE_PAGE,
            Self::Pageout => PAGEOUT_PER_CALL,
            Self::Cold | Self::WillNeed => BYTES_PER_CALL,
        }
    }
}

/// A reference to a process that remains valid if the pid is reused.
#[derive(Debug)]
pub struct PidFd {
    pid: i32,
    descriptor: OwnedFd,
}

impl PidFd {
    /// Opens the process `pid`, which must be a thread group leader.
    ///
    /// # Errors
    /// [`Error::Gone`] if it has exited; [`Error::Unsupported`] before Linux 5.3; [`Error::Io`].
    pub fn open(pid: i32) -> Result<Self> {
        // SAFETY: pidfd_open takes no pointer.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let Some(descriptor) = i32::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0) else {
            return Err(fail(pid, "open", io::Error::last_os_error()));
        };
        // SAFETY: pidfd_open has just returned this descriptor, close-on-exec, and nothing else owns it.
        Ok(Self { pid, descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }

    /// The pid that the process was opened by.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether the process is alive; a zombie is not.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        // A failed poll is inconclusive; the next call on the process returns the error.
        !self.poll(0)
    }

    /// Waits up to `timeout` for the process to exit; returns whether it has. A signal to the caller ends the wait early.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        self.poll(libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX))
    }

    fn poll(&self, timeout_ms: libc::c_int) -> bool {
        let mut poll = libc::pollfd { fd: self.descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is one valid pollfd that outlives the call.
        unsafe { libc::poll(&raw mut poll, 1, timeout_ms) > 0 }
    }

    /// Requests pageout of the given ranges of page-aligned addresses (`MADV_PAGEOUT`).
    ///
    /// Ranges that are unmapped, locked or not pageable are skipped. A range with a hole is advised around the hole
    /// (`madvise_walk_vmas()` in `mm/madvise.c`) but not counted. Returns the bytes advised, not the bytes freed: pages that other
    /// processes also map and recently accessed pages stay, and with a swap device (not zswap) pages leave DRAM only at the next
    /// reclaim.
    ///
    /// # Errors
    /// [`Error::Gone`] if the process has exited; [`Error::Unsupported`] before Linux 5.10; [`Error::Io`], `EPERM`
    /// without `CAP_SYS_NICE` and `CAP_SYS_PTRACE`.
    pub fn advise_pageout(&self, ranges: &[Range<u64>]) -> Result<Bytes> {
        self.advise(ranges, Advice::Pageout)
    }

    /// Marks the given ranges as cold (`MADV_COLD`): the next reclaim scans their pages first, and they stay in DRAM until then.
    /// Also applies to file pages that only this process maps.
    ///
    /// Skips ranges and counts bytes as [`PidFd::advise_pageout`] does.
    ///
    /// # Errors
    /// As [`PidFd::advise_pageout`].
    pub fn advise_cold(&self, ranges: &[Range<u64>]) -> Result<Bytes> {
        self.advise(ranges, Advice::Cold)
    }

    /// Requests swap-in of the given ranges (`MADV_WILLNEED`), without waiting for devices.
    ///
    /// Swapped pages are read into the swap cache: page tables show them as swapped until they are touched. Skips ranges and
    /// counts bytes as [`PidFd::advise_pageout`] does.
    ///
    /// # Errors
    /// As [`PidFd::advise_pageout`].
    pub fn advise_willneed(&self, ranges: &[Range<u64>]) -> Result<Bytes> {
        self.advise(ranges, Advice::WillNeed)
    }

    /// Collapses base pages to huge pages of [`HUGE_PAGE`] bytes (`MADV_COLLAPSE`) that lie wholly within the given ranges.
    /// Independent of `transparent_hugepage/enabled`.
    ///
    /// A huge page that cannot be collapsed is skipped: locked or `VM_NOHUGEPAGE` (`EINVAL`), unmapped or no free huge page
    /// (`ENOMEM`), in use (`EAGAIN`, `EBUSY`). Returns the bytes that are in huge pages, including those that were before.
    ///
    /// # Errors
    /// As [`PidFd::advise_pageout`].
    pub fn advise_collapse(&self, ranges: &[Range<u64>]) -> Result<Bytes> {
        self.advise(ranges, Advice::Collapse)
    }

    /// Whether this kernel supports [`PidFd::advise_collapse`] (Linux 6.1, with `CONFIG_TRANSPARENT_HUGEPAGE`).
    ///
    /// # Errors
    /// [`Error::Unsupported`] before Linux 5.10; [`Error::Io`].
    pub fn can_collapse(&self) -> Result<bool> {
        // An empty request: known advice succeeds, unknown advice is EINVAL.
        match self.process_madvise(&[Range { start: 0, end: 0 }], Advice::Collapse) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            Err(source) => Err(fail(self.pid, "advise", source)),
        }
    }

    fn advise(&self, ranges: &[Range<u64>], advice: Advice) -> Result<Bytes> {
        advise(ranges, advice, |batch| self.process_madvise(batch, advice)).map(Bytes).map_err(|source| fail(self.pid, "advise", source))
    }

    /// One system call. Returns the bytes advised.
    fn process_madvise(&self, batch: &[Range<u64>], advice: Advice) -> io::Result<u64> {
        let vectors = batch.iter().map(to_iovec).collect::<io::Result<Vec<_>>>()?;
        // SAFETY: `vectors` is a valid array of that length that outlives the call; the addresses are those of the
        // other process and are checked by the kernel. No `Advice` ever changes the content of memory, so no reference
        // in this process is invalidated even where the other process is this one.
        let advised = unsafe {
            libc::syscall(libc::SYS_process_madvise, self.descriptor.as_raw_fd(), vectors.as_ptr(), vectors.len(), advice.number(), 0)
        };
        u64::try_from(advised).map_err(|_| io::Error::last_os_error())
    }
}

fn to_iovec(range: &Range<u64>) -> io::Result<libc::iovec> {
    let unusable = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let start = usize::try_from(range.start).map_err(unusable)?;
    let length = usize::try_from(range.end.saturating_sub(range.start)).map_err(unusable)?;
    Ok(libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(start), iov_len: length })
}

fn fail(pid: i32, op: &'static str, source: io::Error) -> Error {
    if source.raw_os_error() == Some(libc::ENOSYS) {
        return Error::unsupported("this kernel has no process_madvise", "boot Linux 5.10 or newer");
    }
    Error::from_io(&PathBuf::from(format!("/proc/{pid}")), op, source)
}

/// Passes `ranges` to `call` in batches, continues after a partial result, and skips ranges that the kernel rejects. Returns
/// the bytes that `call` reports as advised.
fn advise(ranges: &[Range<u64>], advice: Advice, mut call: impl FnMut(&[Range<u64>]) -> io::Result<u64>) -> io::Result<u64> {
    let mut advised: u64 = 0;
    let mut pieces = ranges.iter().flat_map(|range| pieces(range, advice)).peekable();
    let mut batch: Vec<Range<u64>> = Vec::new();
    let mut batch_bytes = 0;
    loop {
        while batch.len() < RANGES_PER_CALL
            && let Some(piece) =
                pieces.next_if(|piece| batch.is_empty() || batch_bytes + (piece.end - piece.start) <= advice.bytes_per_call())
        {
            batch_bytes += piece.end - piece.start;
            batch.push(piece);
        }
        if batch.is_empty() {
            return Ok(advised);
        }
        match call(&batch) {
            Ok(0) => drop(batch.remove(0)),
            Ok(bytes) => {
                advised = advised.saturating_add(bytes);
                consume(&mut batch, bytes);
            }
            Err(error) => match error.raw_os_error() {
                // ENOMEM: unmapped, at least in part. EINVAL: locked, hugetlb or device memory. EBADF, to WILLNEED on a
                // kernel without swap: no file to read from. All stop at the first range of the call.
                Some(libc::ENOMEM | libc::EINVAL | libc::EBADF) => drop(batch.remove(0)),
                Some(libc::EAGAIN | libc::EBUSY) if advice == Advice::Collapse => drop(batch.remove(0)),
                Some(libc::EINTR) => return Ok(advised),
                Some(libc::EAGAIN) if advised > 0 => return Ok(advised),
                _ => return Err(error),
            },
        }
        batch_bytes = batch.iter().map(|piece| piece.end - piece.start).sum();
    }
}

/// Splits a range into parts for one call each; none for an empty range. For collapsing, each part is one huge page, and a
/// partial huge page is omitted.
fn pieces(range: &Range<u64>, advice: Advice) -> impl Iterator<Item = Range<u64>> + use<> {
    let (size, mut start, end) = match advice {
        Advice::Collapse => {
            let start = range.start.checked_next_multiple_of(HUGE_PAGE).unwrap_or(range.end);
            (HUGE_PAGE, start, range.end - range.end % HUGE_PAGE)
        }
        _ => (BYTES_PER_CALL, range.start, range.end),
    };
    std::iter::from_fn(move || {
        let piece = start..end.min(start.saturating_add(size));
        start = piece.end;
        (piece.start < piece.end).then_some(piece)
    })
}

/// Removes `bytes` from the front of `batch`.
fn consume(batch: &mut Vec<Range<u64>>, mut bytes: u64) {
    let mut done = 0;
    for piece in batch.iter_mut() {
        let length = piece.end - piece.start;
        if bytes < length {
            piece.start += bytes;
            break;
        }
        bytes -= length;
        done += 1;
    }
    batch.drain(..done);
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one range is what is meant")]
mod tests {
    use super::*;
    use crate::testing::{Mapping, own_pid};

    /// A process that exits when its standard input is closed.
    fn child() -> std::process::Child {
        std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("cat")
    }

    #[test]
    fn unmapped_ranges_are_skipped() {
        let memory = Mapping::new(64);
        for page in 0..64 {
            memory.touch(page);
        }
        memory.unmap(10..11);
        let this = PidFd::open(own_pid()).unwrap();
        let page = Mapping::page() as u64;
        let check = |pages: &[std::ops::Range<usize>], expected: u64| {
            let ranges: Vec<_> = pages.iter().map(|pages| memory.range(pages.clone())).collect();
            for advice in [PidFd::advise_pageout, PidFd::advise_cold, PidFd::advise_willneed] {
                match advice(&this, &ranges) {
                    Ok(advised) => assert_eq!(advised, Bytes(expected * page), "{pages:?}"),
                    Err(error) if error.is_unsupported() => println!("skipped: {error}"),
                    Err(error) => panic!("{error}"),
                }
            }
        };
        check(&[], 0);
        check(&[3..3], 0);
        check(&[0..4], 4);
        check(&[0..4, 10..11, 20..24], 8);
        check(&[10..11], 0);
        check(&[10..11, 10..11, 63..64], 1);
    }

    #[test]
    fn ranges_beyond_the_limit_of_one_call_are_advised() {
        let pages = 2 * RANGES_PER_CALL + 100;
        let memory = Mapping::new(2 * pages);
        let ranges: Vec<_> = (0..pages).map(|page| memory.range(2 * page..2 * page + 1)).collect();
        match PidFd::open(own_pid()).unwrap().advise_pageout(&ranges) {
            Ok(advised) => assert_eq!(advised, Bytes((pages * Mapping::page()) as u64)),
            Err(error) => assert!(error.is_unsupported(), "{error}"),
        }
    }

    #[test]
    fn an_exited_process_is_gone() {
        let mut child = child();
        let process = PidFd::open(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(process.is_alive() && !process.wait(Duration::ZERO));
        drop(child.stdin.take());
        assert!(process.wait(Duration::from_secs(60)), "the exit is reported before the process is reaped");
        child.wait().unwrap();
        assert!(!process.is_alive());
        for advice in [PidFd::advise_pageout, PidFd::advise_cold, PidFd::advise_willneed] {
            assert!(advice(&process, &[0..4096]).unwrap_err().is_gone());
        }
        assert!(PidFd::open(process.pid()).unwrap_err().is_gone());
    }

    /// Advises ranges with a simulated kernel, and records the number of ranges of each call.
    fn advise_by(ranges: &[Range<u64>], kernel: impl FnMut(&[Range<u64>]) -> io::Result<u64>) -> (io::Result<u64>, Vec<usize>) {
        advise_so(Advice::Pageout, ranges, kernel)
    }

    fn advise_so(
        advice: Advice,
        ranges: &[Range<u64>],
        mut kernel: impl FnMut(&[Range<u64>]) -> io::Result<u64>,
    ) -> (io::Result<u64>, Vec<usize>) {
        let mut calls = Vec::new();
        let answer = advise(ranges, advice, |batch| {
            calls.push(batch.len());
            assert!(calls.len() < 100, "no progress");
            kernel(batch)
        });
        (answer, calls)
    }

    fn bytes(batch: &[Range<u64>]) -> u64 {
        batch.iter().map(|range| range.end - range.start).sum()
    }

    #[test]
    fn partial_results_are_continued() {
        let ranges = [0..4096, 8192..16384, 20480..24576];
        let (answer, calls) = advise_by(&ranges, |batch| Ok(bytes(batch)));
        assert_eq!((answer.unwrap(), calls), (16384, vec![3]));
        let (answer, calls) = advise_by(&ranges, |_| Ok(4096));
        assert_eq!((answer.unwrap(), calls), (16384, vec![3, 2, 2, 1]));
        let (answer, calls) = advise_by(&ranges, |_| Ok(0));
        assert_eq!((answer.unwrap(), calls), (0, vec![3, 2, 1]));
        let refuse = |errno| {
            move |batch: &[Range<u64>]| match batch[0].start {
                8192 => Err(io::Error::from_raw_os_error(errno)),
                _ => Ok(4096),
            }
        };
        for errno in [libc::ENOMEM, libc::EINVAL, libc::EBADF] {
            let (answer, calls) = advise_by(&ranges, refuse(errno));
            assert_eq!((answer.unwrap(), calls), (8192, vec![3, 2, 1]));
        }
        assert_eq!(advise_by(&ranges, refuse(libc::EINTR)).0.unwrap(), 4096);
        assert_eq!(advise_by(&ranges, refuse(libc::EPERM)).0.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn large_ranges_are_split_and_batched_by_bytes() {
        let large = [0..3 * BYTES_PER_CALL + 4096];
        let mut sizes = Vec::new();
        let (answer, calls) = advise_by(&large, |batch| {
            sizes.push(bytes(batch));
            Ok(bytes(batch))
        });
        assert_eq!((answer.unwrap(), calls), (3 * BYTES_PER_CALL + 4096, vec![1; 4]));
        assert_eq!(sizes, [BYTES_PER_CALL, BYTES_PER_CALL, BYTES_PER_CALL, 4096]);
        let inverted = Range { start: 8192, end: 4096 };
        assert_eq!(advise_by(&[inverted], |_| panic!("nothing to advise")).0.unwrap(), 0);
    }

    #[test]
    fn each_huge_page_is_collapsed_by_its_own_call() {
        let at = |huge_page: u64| huge_page * HUGE_PAGE;
        let check = |ranges: &[Range<u64>], errno: i32, expected: &[u64]| {
            let mut collapsed = Vec::new();
            let (answer, _) = advise_so(Advice::Collapse, ranges, |batch| {
                assert!(batch.iter().all(|piece| piece.start % HUGE_PAGE == 0 && piece.end == piece.start + HUGE_PAGE), "{batch:x?}");
                match batch[0].start {
                    start if start == at(2) => Err(io::Error::from_raw_os_error(errno)),
                    start => {
                        collapsed.push(start / HUGE_PAGE);
                        Ok(HUGE_PAGE)
                    }
                }
            });
            assert_eq!(answer.unwrap(), expected.len() as u64 * HUGE_PAGE);
            assert_eq!(collapsed, expected);
        };
        for errno in [libc::EINVAL, libc::ENOMEM, libc::EAGAIN, libc::EBUSY] {
            check(&[at(0)..at(4)], errno, &[0, 1, 3]);
            check(&[at(0) + 4096..at(4) - 4096, at(6)..at(7)], errno, &[1, 6]);
        }
        check(&[at(0)..at(1) - 1, at(1) + 1..at(2) - 1, u64::MAX - 4096..u64::MAX], libc::EINVAL, &[]);
        let this = PidFd::open(own_pid()).unwrap();
        match this.can_collapse() {
            // Memory with the advice MADV_NOHUGEPAGE.
            Ok(_) => assert_eq!(this.advise_collapse(&[Mapping::new(2048).range(0..2048)]).unwrap(), Bytes::ZERO),
            Err(error) => assert!(error.is_unsupported(), "{error}"),
        }
    }
}
