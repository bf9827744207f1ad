//! Page faults handled in user space: `userfaultfd(2)`, `include/uapi/linux/userfaultfd.h`.
//!
//! Requests are plain words, because another process makes them: the kernel accepts `UFFDIO_MOVE` only from a process
//! that shares the address space (`userfaultfd_move()` in `fs/userfaultfd.c`), so [`crate::helper`] makes it there.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use kernel::{Error, Result};

/// `UFFDIO_API`.
const API: u64 = 0xc018_aa3f;
/// `UFFDIO_REGISTER`.
pub(crate) const REGISTER: u64 = 0xc020_aa00;
/// `UFFDIO_UNREGISTER`.
pub(crate) const UNREGISTER: u64 = 0x8010_aa01;
/// `UFFDIO_WAKE`.
pub(crate) const WAKE: u64 = 0x8010_aa02;
/// `UFFDIO_COPY`.
pub(crate) const COPY: u64 = 0xc028_aa03;
/// `UFFDIO_ZEROPAGE`.
pub(crate) const ZEROPAGE: u64 = 0xc020_aa04;
/// `UFFDIO_MOVE`, since Linux 6.8.
pub(crate) const MOVE: u64 = 0xc028_aa05;

/// `UFFD_API`.
const VERSION: u64 = 0xaa;
/// `UFFD_FEATURE_EVENT_FORK`, `_REMAP`, `_REMOVE`, `_UNMAP` and `UFFD_FEATURE_MOVE`.
const FEATURES: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 16;
/// `UFFDIO_REGISTER_MODE_MISSING`.
pub(crate) const MODE_MISSING: u64 = 1;

/// The first byte of a message about a fault (`UFFD_EVENT_PAGEFAULT`).
pub(crate) const PAGEFAULT: u8 = 0x12;

/// A message of a userfaultfd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The process has forked. The child's userfaultfd is this descriptor of the process that read the message.
    Fork(u64),
    /// A mapping has moved: old address, new address, bytes.
    Remap(u64, u64, u64),
    /// The program is about to free the pages at these addresses (`madvise(2)`).
    Remove(Range<u64>),
    /// These addresses are no longer mapped.
    Unmap(Range<u64>),
    /// A fault at this address.
    Fault(u64),
}

impl Event {
    /// Parses a `struct uffd_msg`; `None` for an event that was not requested.
    #[must_use]
    pub fn parse(message: [u64; 4]) -> Option<Self> {
        let [head, first, second, third] = message;
        match head.to_ne_bytes()[0] {
            PAGEFAULT => Some(Self::Fault(second)),
            0x13 => Some(Self::Fork(first & u64::from(u32::MAX))),
            0x14 => Some(Self::Remap(first, second, third)),
            0x15 => Some(Self::Remove(first..second)),
            0x16 => Some(Self::Unmap(first..second)),
            _ => None,
        }
    }
}

/// Enables the moving of pages and all events; once per descriptor, from any process.
///
/// # Errors
/// [`Error::Unsupported`] before Linux 6.8; [`Error::Io`].
pub(crate) fn enable(descriptor: &OwnedFd) -> Result<()> {
    let mut request = [VERSION, FEATURES, 0];
    // SAFETY: `request` is as large as struct uffdio_api and outlives the call.
    if unsafe { libc::ioctl(descriptor.as_raw_fd(), API, request.as_mut_ptr()) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EINVAL) => Err(Error::Unsupported {
            what: "this kernel's userfaultfd cannot move pages".to_owned(),
            remedy: "boot Linux 6.8 or later, with CONFIG_USERFAULTFD".to_owned(),
        }),
        error => Err(Error::from_io(Path::new("userfaultfd"), "ioctl UFFDIO_API on", error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_parsed() {
        let check = |message, expected| assert_eq!(Event::parse(message), expected);
        check([0x12, 1, 0x7000, 0], Some(Event::Fault(0x7000)));
        check([0x13, 9 | 7 << 32, 0, 0], Some(Event::Fork(9)));
        check([0x14, 1, 2, 3], Some(Event::Remap(1, 2, 3)));
        check([0x15, 4096, 8192, 0], Some(Event::Remove(4096..8192)));
        check([0x16, 4096, 8192, 0], Some(Event::Unmap(4096..8192)));
        check([0x17, 0, 0, 0], None);
    }
}
