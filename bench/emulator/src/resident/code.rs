//! The resident's code and the layout of the area that it shares with its master, in bytes.

use std::time::{Duration, Instant};

use super::{CALLS_MAX, LOG};

/// Bytes of the mapping that holds the code.
pub(super) const LENGTH: u64 = 4096;

/// Looks for a fault before the resident sleeps: some ten microseconds, in which the next fault often comes.
pub(super) const LOOKS_IN_VAIN: u64 = 40;

/// Calls to make; 0 once they are made. With [`FOR_EVENT`] they belong to the event at hand.
pub(super) const COMMAND: u64 = 0;
/// The mark in [`COMMAND`].
pub(super) const FOR_EVENT: u64 = 1 << 32;
/// Not 0 while the master has to deal with [`MESSAGE`].
pub(super) const EVENT: u64 = 0x08;
/// Ticks from reading a fault to resolving it, at least.
pub(super) const DELAY: u64 = 0x10;
/// Pages that may be open.
pub(super) const OPEN: u64 = 0x18;
/// Looks before sleep.
pub(super) const LOOKS: u64 = 0x20;
/// Accesses to parked pages so far: the end of the log.
pub(super) const ACCESSES: u64 = 0x28;
/// First touches so far.
pub(super) const FIRST: u64 = 0x30;
/// Pages that could not be parked again.
pub(super) const REFUSED: u64 = 0x38;
/// Ticks from reading accesses to their pages' return, summed.
pub(super) const SERVED: u64 = 0x40;
/// The bit that [`super::parking`] turns over.
pub(super) const PARKING_BIT: u64 = 0x48;
/// The userfaultfd, and the event counters of resident and master.
pub(super) const UFFD: u64 = 0x50;
pub(super) const WAKE: u64 = 0x58;
pub(super) const BELL: u64 = 0x60;
/// Three `struct pollfd`: userfaultfd, [`WAKE`], the program's pidfd.
pub(super) const POLL: u64 = 0x68;
/// The last `struct uffd_msg`.
pub(super) const MESSAGE: u64 = 0x80;
/// The resident's own arguments.
const ARGUMENT: u64 = 0xa0;
/// One word of the resident's, and five of the master's.
pub(super) const SCRATCH: u64 = 0xd0;
/// Faults that wait: address and the tick at which they are due.
const QUEUE: u64 = 0x200;
const QUEUE_MASK: u64 = 255;
/// Calls to make: number, six arguments, result.
pub(super) const CALLS: u64 = 0x2000;
/// Five words for each call that its argument may point to.
pub(super) const REQUESTS: u64 = CALLS + CALLS_MAX as u64 * 64;
/// Pages accessed: a ring of [`LOG`] addresses.
pub(super) const LOG_AT: u64 = 0x8000;

const _: () = assert!(QUEUE + (QUEUE_MASK + 1) * 16 <= CALLS && REQUESTS + CALLS_MAX as u64 * 40 <= LOG_AT);

/// Where the log has its entry number `at`.
pub(super) fn log(at: u64) -> u64 {
    LOG_AT + at % LOG * 8
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::{
        ACCESSES, ARGUMENT, BELL, CALLS, COMMAND, DELAY, EVENT, FIRST, LOG, LOG_AT, LOOKS, MESSAGE, OPEN, PARKING_BIT, POLL, QUEUE,
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
        // A fault that the resident reports is told as a message of that kind.
        UNRESOLVED = const userfaultfd::PAGEFAULT,
        DELAY = const DELAY,
        LOOKS = const LOOKS,
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
        static thermocline_resident_start: u8;
        static thermocline_resident_end: u8;
    }

    pub(super) fn code() -> &'static [u8] {
        let (start, end) = (&raw const thermocline_resident_start, &raw const thermocline_resident_end);
        // SAFETY: the two symbols stand before and behind one run of bytes in read-only memory.
        unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
    }

    pub(super) fn ticks() -> u64 {
        // SAFETY: every x86-64 processor has this instruction, and Linux lets programs use it.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    // A program cannot be traced into having a resident here, so that neither is ever reached.
    pub(super) fn code() -> &'static [u8] {
        &[]
    }

    pub(super) fn ticks() -> u64 {
        0
    }
}

/// The code, which runs wherever it is copied to.
pub(super) fn code() -> &'static [u8] {
    machine::code()
}

/// How fast the processor's clock ticks, measured over some milliseconds.
pub(super) fn ticks_per_ms() -> u64 {
    let (start, first) = (Instant::now(), machine::ticks());
    while start.elapsed() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    let (ticks, elapsed) = (machine::ticks() - first, start.elapsed());
    let per_ms = u128::from(ticks) * 1_000_000 / elapsed.as_nanos().max(1);
    u64::try_from(per_ms).unwrap_or(u64::MAX).max(1)
}
