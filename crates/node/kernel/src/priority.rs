//! Running when nothing else wants to: `SCHED_IDLE` and nice (`sched(7)`).
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::path::Path;

use crate::{Error, Result};

/// The calling thread's idle priority, undone when dropped.
///
/// It belongs to one thread and therefore cannot be sent to another.
#[derive(Debug)]
pub struct IdlePriority {
    previous: Option<(libc::c_int, libc::sched_param)>,
    refused: Option<io::Error>,
    _this_thread: PhantomData<*const ()>,
}

impl IdlePriority {
    /// Puts the calling thread under `SCHED_IDLE`. Failure is not an error; [`IdlePriority::refused`] reports it.
    #[must_use]
    pub fn enter() -> Self {
        let (previous, refused) = match enter_idle() {
            Ok(previous) => (Some(previous), None),
            Err(error) => (None, Some(error)),
        };
        Self { previous, refused, _this_thread: PhantomData }
    }

    /// Whether the calling thread runs under `SCHED_IDLE`.
    #[must_use]
    pub fn is_entered() -> bool {
        // SAFETY: sched_getscheduler takes no pointer; 0 is the calling thread.
        unsafe { libc::sched_getscheduler(0) == libc::SCHED_IDLE }
    }

    /// Why the kernel refused, where it did.
    #[must_use]
    pub fn refused(&self) -> Option<&io::Error> {
        self.refused.as_ref()
    }
}

impl Drop for IdlePriority {
    fn drop(&mut self) {
        if let Some((policy, parameters)) = &self.previous {
            // SAFETY: `parameters` is a valid sched_param that outlives the call; 0 is the calling thread. A
            // refusal leaves the thread at idle priority, which is harmless.
            unsafe { libc::sched_setscheduler(0, *policy, parameters) };
        }
    }
}

fn enter_idle() -> io::Result<(libc::c_int, libc::sched_param)> {
    // SAFETY: sched_getscheduler takes no pointer; 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    let mut parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameters` is a valid sched_param to write to.
    if policy < 0 || unsafe { libc::sched_getparam(0, &raw mut parameters) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let idle = libc::sched_param { sched_priority: 0 };
    // SAFETY: `idle` is a valid sched_param that outlives the call.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const idle) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((policy, parameters))
}

/// Sets the calling thread's nice value, from -20 (first) to 19 (last). Stays until set again.
///
/// # Errors
/// [`Error::Io`]: `EACCES` or `EPERM` for a value below what we may set.
pub fn nice(value: i32) -> Result<()> {
    // SAFETY: setpriority takes no pointer; on Linux PRIO_PROCESS with 0 is the calling thread.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, value) } != 0 {
        return Err(Error::from_io(Path::new("/proc/self"), "set the nice value of", io::Error::last_os_error()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> libc::c_int {
        // SAFETY: sched_getscheduler takes no pointer; 0 is the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn idle_priority_lasts_as_long_as_its_guard() {
        let before = policy();
        let guard = IdlePriority::enter();
        assert!(guard.refused().is_none(), "any thread may lower itself: {:?}", guard.refused());
        assert_eq!(policy(), libc::SCHED_IDLE);
        drop(guard);
        // Leaving SCHED_IDLE requires root or RLIMIT_NICE; without them the thread remains there.
        // SAFETY: geteuid takes no argument and cannot fail.
        if unsafe { libc::geteuid() } == 0 {
            assert_eq!(policy(), before);
        }
    }

    #[test]
    fn a_thread_may_be_nicer() {
        std::thread::spawn(|| {
            nice(19).unwrap();
            // SAFETY: getpriority takes no pointer; 0 is the calling thread.
            assert_eq!(unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }, 19);
        })
        .join()
        .unwrap();
    }
}
