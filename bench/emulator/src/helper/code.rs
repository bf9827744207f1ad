//! The helper's code, and the layout in bytes of the memory that it shares with the emulator.

use std::time::{Duration, Instant};

/// The address bit that distinguishes a page from its parking address, 32 TiB away, where programs map no memory.
pub(super) const PARKING: u64 = 1 << 45;

/// Upper limit of the calls in one batch. Faults wait for the end of a batch.
pub const CALLS_MAX: usize = 64;

/// Entries of the log of accesses; the number of open pages is lower.
pub const LOG: u64 = 1 << 16;

/// Returns the parking address of the page or block at `address`, and the reverse.
#[must_use]
pub fn parking(address: u64) -> u64 {
    address ^ PARKING
}

/// Bytes of the mapping that holds the code.
pub(super) const LENGTH: u64 = 4096;

/// Polls for a fault before the helper sleeps: about ten microseconds, in which the next fault often arrives.
pub(super) const POLLS_BEFORE_SLEEP: u64 = 40;

/// Number of calls to make; 0 after they were made. With [`FOR_EVENT`] they belong to the pending event.
pub(super) const COMMAND: u64 = 0;
/// The flag in [`COMMAND`].
pub(super) const FOR_EVENT: u64 = 1 << 32;
/// Not 0 while the emulator handles [`MESSAGE`].
pub(super) const EVENT: u64 = 0x08;
/// Minimum number of ticks from reading a fault to resolving it.
pub(super) const DELAY: u64 = 0x10;
/// Number of open pages.
pub(super) const OPEN: u64 = 0x18;
/// Number of polls before sleeping.
pub(super) const POLLS: u64 = 0x20;
/// Number of accesses to parked pages, which is the end of the log.
pub(super) const ACCESSES: u64 = 0x28;
/// Number of first accesses.
pub(super) const FIRST: u64 = 0x30;
/// Number of pages that could not be parked again.
pub(super) const REFUSED: u64 = 0x38;
/// Total number of ticks from reading a fault to restoring its page.
pub(super) const SERVED: u64 = 0x40;
/// The address bit that [`parking`] changes.
pub(super) const PARKING_BIT: u64 = 0x48;
/// The userfaultfd, and the eventfds on which helper and emulator wait.
pub(super) const UFFD: u64 = 0x50;
pub(super) const WAKE: u64 = 0x58;
pub(super) const BELL: u64 = 0x60;
/// Three `struct pollfd`: userfaultfd, [`WAKE`], the program's pidfd.
pub(super) const POLL: u64 = 0x68;
/// The last `struct uffd_msg`.
pub(super) const MESSAGE: u64 = 0x80;
/// Arguments of the helper's own calls.
const ARGUMENT: u64 = 0xa0;
/// One word for the helper, and five for the emulator.
pub(super) const SCRATCH: u64 = 0xd0;
/// Queue of faults: address, and the tick at which the fault is due.
const QUEUE: u64 = 0x200;
const QUEUE_MASK: u64 = 255;
/// The calls: number, six arguments, result.
pub(super) const CALLS: u64 = 0x2000;
/// Five words for each call, to which an argument may point.
pub(super) const REQUESTS: u64 = CALLS + CALLS_MAX as u64 * 64;
/// Accessed pages: a ring of [`LOG`] addresses.
pub(super) const LOG_AT: u64 = 0x8000;

const _: () = assert!(QUEUE + (QUEUE_MASK + 1) * 16 <= CALLS && REQUESTS + CALLS_MAX as u64 * 40 <= LOG_AT);

/// Offset of entry number `at` of the log.
pub(super) fn log(at: u64) -> u64 {
    LOG_AT + at % LOG * 8
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::{
        ACCESSES, ARGUMENT, BELL, CALLS, COMMAND, DELAY, EVENT, FIRST, LOG, LOG_AT, MESSAGE, OPEN, PARKING_BIT, POLL, POLLS, QUEUE,
        QUEUE_MASK, REFUSED, SCRATCH, SERVED, UFFD, WAKE,
    };
    use crate::userfaultfd;

    std::arch::global_asm!(
        include_str!("x86_64.s"),
        PARKING = const PARKING_BIT,
        EVENT = const EVENT,
        COMMAND = const COMMAND,
        QUEUE = const QUEUE,
        QUEUE_MASK = const QUEUE_MASK,
        UFFD = const UFFD,
        MESSAGE = const MESSAGE,
        PAGEFAULT = const userfaultfd::PAGEFAULT,
        // The helper reports a fault that it cannot resolve as a message of this type.
        UNRESOLVED = const userfaultfd::PAGEFAULT,
        DELAY = const DELAY,
        POLLS = const POLLS,
        POLL = const POLL,
        WAKE = const WAKE,
        BELL = const BELL,
        SCRATCH = const SCRATCH,
        ARGUMENT = const ARGUMENT,
        FIRST = const FIRST,
        SERVED = const SERVED,
        ACCESSES = const ACCESSES,
        REFUSED = const REFUSED,
        OPEN = const OPEN,
        LOG = const LOG_AT,
        LOG_MASK = const LOG - 1,
        CALLS = const CALLS,
        SYS_POLL = const libc::SYS_poll,
        SYS_EXIT_GROUP = const libc::SYS_exit_group,
        SYS_IOCTL = const libc::SYS_ioctl,
        SYS_WRITE = const libc::SYS_write,
        UFFDIO_MOVE = const userfaultfd::MOVE,
        UFFDIO_ZEROPAGE = const userfaultfd::ZEROPAGE,
        UFFDIO_WAKE = const userfaultfd::WAKE,
        EAGAIN = const libc::EAGAIN,
        ENOENT = const libc::ENOENT,
        EEXIST = const libc::EEXIST,
    );

    unsafe extern "C" {
        static thermocline_helper_start: u8;
        static thermocline_helper_end: u8;
    }

    pub(super) fn code() -> &'static [u8] {
        let (start, end) = (&raw const thermocline_helper_start, &raw const thermocline_helper_end);
        // SAFETY: the two symbols delimit one sequence of bytes in read-only memory.
        unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
    }

    pub(super) fn ticks() -> u64 {
        // SAFETY: every x86-64 processor has this instruction, and Linux allows programs to use it.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    // `Traced::spawn` fails on other architectures, so neither function is ever called.
    pub(super) fn code() -> &'static [u8] {
        &[]
    }

    pub(super) fn ticks() -> u64 {
        0
    }
}

/// The position-independent code of the helper.
pub(super) fn code() -> &'static [u8] {
    machine::code()
}

/// Ticks of the processor's clock per millisecond, measured over 20 ms.
pub(super) fn ticks_per_ms() -> u64 {
    let (start, first) = (Instant::now(), machine::ticks());
    while start.elapsed() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    let (ticks, elapsed) = (machine::ticks() - first, start.elapsed());
    let per_ms = u128::from(ticks) * 1_000_000 / elapsed.as_nanos().max(1);
    u64::try_from(per_ms).unwrap_or(u64::MAX).max(1)
}
