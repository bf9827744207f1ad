//! System calls that the helper makes for the emulator.

use std::ops::Range;

use super::code;
use super::control::Control;
use crate::userfaultfd::{self, Event};

/// A system call to make in the program's address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    op: &'static str,
    number: libc::c_long,
    arguments: [u64; 6],
    /// The words to which the argument at this index points.
    request: Option<(usize, [u64; 5])>,
    /// Whether the first argument is the program's userfaultfd.
    userfaultfd: bool,
}

/// The outcome of a [`Call`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The result, or the error number.
    pub result: Result<u64, i32>,
    /// The words of the request after the call.
    pub words: [u64; 5],
}

impl Call {
    fn plain(op: &'static str, number: libc::c_long, arguments: [u64; 6]) -> Self {
        Self { op, number, arguments, request: None, userfaultfd: false }
    }

    /// An ioctl on the program's userfaultfd.
    fn ioctl(op: &'static str, request: u64, words: [u64; 5]) -> Self {
        let arguments = [0, request, 0, 0, 0, 0];
        Self { op, number: libc::SYS_ioctl, arguments, request: Some((2, words)), userfaultfd: true }
    }

    /// Moves present pages from one range of addresses to another, which must have no pages.
    #[must_use]
    pub fn move_pages(to: u64, from: u64, bytes: u64) -> Self {
        Self::ioctl("ioctl UFFDIO_MOVE in", userfaultfd::MOVE, [to, from, bytes, 0, 0])
    }

    /// Registers a range: faults on its absent pages are reported to the userfaultfd.
    #[must_use]
    pub fn register(range: &Range<u64>) -> Self {
        let words = [range.start, range.end - range.start, userfaultfd::MODE_MISSING, 0, 0];
        Self::ioctl("ioctl UFFDIO_REGISTER in", userfaultfd::REGISTER, words)
    }

    /// Unregisters a range: the kernel handles its faults again.
    #[must_use]
    pub fn unregister(range: &Range<u64>) -> Self {
        Self::ioctl("ioctl UFFDIO_UNREGISTER in", userfaultfd::UNREGISTER, [range.start, range.end - range.start, 0, 0, 0])
    }

    /// Wakes the threads that wait for this page, so that they retry.
    #[must_use]
    pub fn wake(page: u64) -> Self {
        Self::ioctl("ioctl UFFDIO_WAKE in", userfaultfd::WAKE, [page, 4096, 0, 0, 0])
    }

    /// Maps a page of zeroes.
    #[must_use]
    pub fn zero(page: u64) -> Self {
        Self::ioctl("ioctl UFFDIO_ZEROPAGE in", userfaultfd::ZEROPAGE, [page, 4096, 0, 0, 0])
    }

    /// Copies to absent pages. The last of [`Reply::words`] is the number of bytes copied, or an error.
    #[must_use]
    pub fn copy(to: u64, from: u64, bytes: u64) -> Self {
        Self::ioctl("ioctl UFFDIO_COPY in", userfaultfd::COPY, [to, from, bytes, 0, 0])
    }

    /// Copies to a forked child, whose userfaultfd is this descriptor of the helper.
    #[must_use]
    pub fn copy_to(child: u64, to: u64, from: u64, bytes: u64) -> Self {
        let mut call = Self::copy(to, from, bytes);
        (call.userfaultfd, call.arguments[0]) = (false, child);
        call
    }

    /// Reads a message of a child's userfaultfd into [`Reply::words`], without waiting.
    #[must_use]
    pub fn read(child: u64) -> Self {
        let arguments = [child, 0, 32, 0, 0, 0];
        Self { request: Some((1, [0; 5])), ..Self::plain("read a message for", libc::SYS_read, arguments) }
    }

    /// Reads the next message of the program's own userfaultfd in the same way, while an event is pending.
    #[must_use]
    pub fn read_own() -> Self {
        Self { userfaultfd: true, ..Self::read(0) }
    }

    /// Maps memory at exactly these addresses; `EEXIST` if something is mapped there.
    #[must_use]
    pub fn map(range: &Range<u64>) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let arguments = [range.start, range.end - range.start, protection.unsigned_abs().into(), flags.unsigned_abs().into(), u64::MAX, 0];
        Self::plain("map in", libc::SYS_mmap, arguments)
    }

    /// Unmaps these addresses.
    #[must_use]
    pub fn unmap(range: &Range<u64>) -> Self {
        Self::plain("unmap in", libc::SYS_munmap, [range.start, range.end - range.start, 0, 0, 0, 0])
    }

    /// Frees the pages at these addresses.
    #[must_use]
    pub fn discard(range: &Range<u64>) -> Self {
        Self::advise(range, libc::MADV_DONTNEED)
    }

    /// Excludes these addresses from forked children.
    #[must_use]
    pub fn not_for_children(range: Range<u64>) -> Self {
        Self::advise(&range, libc::MADV_DONTFORK)
    }

    fn advise(range: &Range<u64>, advice: libc::c_int) -> Self {
        let arguments = [range.start, range.end - range.start, advice.unsigned_abs().into(), 0, 0, 0];
        Self::plain("madvise in", libc::SYS_madvise, arguments)
    }

    /// Closes a descriptor of the resident.
    #[must_use]
    pub fn close(descriptor: u64) -> Self {
        Self::plain("close in", libc::SYS_close, [descriptor, 0, 0, 0, 0, 0])
    }

    pub(super) fn close_range(first: u64, last: u64) -> Self {
        Self::plain("close descriptors in", libc::SYS_close_range, [first, last, 0, 0, 0, 0])
    }

    /// Creates a session, so that signals of the terminal do not reach the helper.
    pub(super) fn session() -> Self {
        Self::plain("setsid in", libc::SYS_setsid, [0; 6])
    }

    /// Sets the highest priority, because slow memory would not wait for a processor.
    pub(super) fn priority() -> Self {
        let nice = i64::from(-20).cast_unsigned();
        Self::plain("setpriority in", libc::SYS_setpriority, [u64::from(libc::PRIO_PROCESS), 0, nice, 0, 0, 0])
    }

    /// Sets the name in `ps`, from the string at this address.
    pub(super) fn name(address: u64) -> Self {
        Self::plain("set PR_SET_NAME in", libc::SYS_prctl, [libc::PR_SET_NAME.unsigned_abs().into(), address, 0, 0, 0, 0])
    }

    /// The operation, for an error about `/proc/PID`.
    #[must_use]
    pub fn op(&self) -> &'static str {
        self.op
    }

    pub(super) fn write(&self, control: &Control, at: usize, userfaultfd: u64) {
        let (call, request) = places(at);
        let mut arguments = self.arguments;
        if self.userfaultfd {
            arguments[0] = userfaultfd;
        }
        if let Some((index, words)) = self.request {
            arguments[index] = control.remote(request);
            for (offset, word) in (0..).step_by(8).zip(words) {
                control.set(request + offset, word);
            }
        }
        control.set(call, self.number.cast_unsigned());
        for (offset, argument) in (8..).step_by(8).zip(arguments) {
            control.set(call + offset, argument);
        }
    }
}

impl Reply {
    /// The message that a [`Call::read`] returned; `None` if there was none.
    #[must_use]
    pub fn message(&self) -> Option<Event> {
        let [head, first, second, third, _] = self.words;
        (self.result == Ok(32)).then(|| Event::parse([head, first, second, third])).flatten()
    }

    pub(super) fn read(control: &Control, at: usize) -> Self {
        let (call, request) = places(at);
        let raw = control.get(call + 56);
        let result = match i32::try_from(raw.cast_signed()) {
            Ok(errno @ -4095..=-1) => Err(-errno),
            _ => Ok(raw),
        };
        Self { result, words: [0, 8, 16, 24, 32].map(|offset| control.get(request + offset)) }
    }
}

/// Offsets of call number `at`, and of the words to which it may point.
fn places(at: usize) -> (u64, u64) {
    (code::CALLS + at as u64 * 64, code::REQUESTS + at as u64 * 40)
}
