//! The memory that emulator and helper share.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use kernel::{Error, Result};

use super::code::{self, LOG, PARKING};

/// The memory that emulator and helper share; its layout is in [`code`].
#[derive(Debug)]
pub(super) struct Control {
    here: *mut u64,
    /// Its address in the program.
    pub(super) there: u64,
}

impl Control {
    /// Length in bytes.
    pub(super) const LENGTH: u64 = code::LOG_AT + LOG * 8;

    /// Maps the area behind the code in `memory`, and writes the code.
    pub(super) fn map(memory: &OwnedFd, there: u64) -> Result<Self> {
        let fail = |source| Error::from_io(Path::new("the helper's memory"), "map", source);
        let file = File::from(memory.try_clone().map_err(fail)?);
        std::os::unix::fs::FileExt::write_all_at(&file, code::code(), 0).map_err(fail)?;
        let (length, offset) = (usize::try_from(Self::LENGTH).unwrap_or(0), i64::try_from(code::LENGTH).unwrap_or(0));
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses does not affect existing ones.
        let here = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, memory.as_raw_fd(), offset) };
        if here == libc::MAP_FAILED {
            return Err(fail(io::Error::last_os_error()));
        }
        Ok(Self { here: here.cast(), there })
    }

    /// Returns the word at this offset in bytes.
    fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < Self::LENGTH, "an offset within the area");
        let at = usize::try_from(offset / 8).unwrap_or(0);
        // SAFETY: the offset is within the mapping, which lives as long as `self`, is aligned, and is only accessed in
        // whole words, here as atomics and in the helper by single instructions.
        unsafe { AtomicU64::from_ptr(self.here.add(at)) }
    }

    pub(super) fn get(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::SeqCst)
    }

    pub(super) fn set(&self, offset: u64, value: u64) {
        self.word(offset).store(value, Ordering::SeqCst);
    }

    /// The address of an offset in the program.
    pub(super) fn remote(&self, offset: u64) -> u64 {
        self.there + offset
    }

    /// The last message of the userfaultfd.
    pub(super) fn message(&self) -> [u64; 4] {
        [0, 8, 16, 24].map(|at| self.get(code::MESSAGE + at))
    }

    /// Writes the parameters that the code reads at its start.
    pub(super) fn prepare(&self, [userfaultfd, wake, bell, pidfd]: [u64; 4]) {
        self.set(code::PARKING_BIT, PARKING);
        self.set(code::OPEN, LOG - 1);
        self.set(code::POLLS, code::POLLS_BEFORE_SLEEP);
        for (offset, descriptor) in [(code::UFFD, userfaultfd), (code::WAKE, wake), (code::BELL, bell)] {
            self.set(offset, descriptor);
        }
        let readable = u64::from(libc::POLLIN.unsigned_abs()) << 32;
        for (at, descriptor) in (0..).zip([userfaultfd, wake, pidfd]) {
            self.set(code::POLL + at * 8, descriptor | readable);
        }
    }

    /// Writes a name of at most 15 bytes. Returns its address in the program.
    pub(super) fn put_name(&self, name: &str) -> u64 {
        let mut bytes = [0; 16];
        for (to, from) in bytes.iter_mut().take(15).zip(name.bytes()) {
            *to = from;
        }
        for (at, word) in (0..).step_by(8).zip(bytes.as_chunks::<8>().0) {
            self.set(code::SCRATCH + 24 + at, u64::from_ne_bytes(*word));
        }
        self.remote(code::SCRATCH + 24)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // SAFETY: this is the mapping created by `map`, and no borrow of it is left.
        unsafe { libc::munmap(self.here.cast(), usize::try_from(Self::LENGTH).unwrap_or(0)) };
    }
}
