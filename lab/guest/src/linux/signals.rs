//! Signals as values: blocked, then received one by one.

use std::io;
use std::time::Duration;

/// A set of blocked signals that can be waited for.
pub(crate) struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks these signals for the calling thread and its future children, so that they stay pending.
    ///
    /// # Errors
    /// `EINVAL` for an unknown signal.
    pub(crate) fn block(signals: &[libc::c_int]) -> io::Result<Self> {
        // SAFETY: sigset_t is plain data, for which all zeroes is valid; it is emptied next.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is writable and of the type that these calls work on; the old mask is not requested.
        unsafe {
            super::checked(libc::sigemptyset(&raw mut set))?;
            for &signal in signals {
                super::checked(libc::sigaddset(&raw mut set, signal))?;
            }
            super::checked(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()))?;
        }
        Ok(Self { set })
    }

    /// Waits for one of the signals, at most `timeout` (`None`: no limit), and returns it.
    pub(crate) fn take(&self, timeout: Option<Duration>) -> Option<libc::c_int> {
        let spec = timeout.map(super::poll::timespec);
        let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the set is initialised, no details are requested, and `spec` is null or points to a live timespec.
        let signal = unsafe { libc::sigtimedwait(&raw const self.set, std::ptr::null_mut(), spec) };
        // An error is a timeout, or an interruption by a signal that is not in the set.
        (signal > 0).then_some(signal)
    }
}
