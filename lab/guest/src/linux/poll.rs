//! `ppoll(2)` over a handful of descriptors.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Returns the entry for one descriptor; `events` is a set of `libc::POLL*`.
pub(crate) fn interest(fd: BorrowedFd<'_>, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
}

/// Waits until one of `fds` is ready or `timeout` has passed (`None`: no limit); returns the number of ready ones.
///
/// # Errors
/// Those of `ppoll(2)`; an interrupted wait counts as a timeout, because callers check their deadline anyway.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let spec = timeout.map(timespec);
    let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `fds` is a slice of initialised pollfd of the given length, `spec` is null or points to a live timespec,
    // and a null signal mask leaves the mask unchanged.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, spec, std::ptr::null()) };
    match super::checked(ready) {
        Ok(ready) => Ok(usize::try_from(ready).unwrap_or(0)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

/// Converts a timeout for the kernel, limited to 68 years.
pub(super) fn timespec(timeout: Duration) -> libc::timespec {
    libc::timespec { tv_sec: timeout.as_secs().min(i32::MAX.unsigned_abs().into()).cast_signed(), tv_nsec: timeout.subsec_nanos().into() }
}
