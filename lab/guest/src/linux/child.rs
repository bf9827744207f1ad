//! Child processes: code between `fork` and `exec`, signals, reaping.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// How a child exited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Exit {
    /// Exit status, if it exited.
    pub(crate) status: Option<i32>,
    /// Signal number, if a signal killed it.
    pub(crate) signal: Option<i32>,
    /// User and system time of the child and of the descendants it waited for.
    pub(crate) cpu: Duration,
}

/// Makes the child enter a cgroup before `exec`, so that all of its pages are charged there.
/// `procs` is the open `cgroup.procs` file of that cgroup.
pub(crate) fn enter_cgroup(command: &mut Command, procs: File) {
    // SAFETY: the closure runs in the forked child and only calls write(2), which is async-signal-safe,
    // on a descriptor that the closure owns.
    unsafe {
        command.pre_exec(move || {
            let me = b"0";
            let written = libc::write(procs.as_raw_fd(), me.as_ptr().cast(), me.len());
            if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
    }
}

/// Sends `signal` to `pid`, or to the process group `-pid` if it is negative (`kill(2)`).
///
/// # Errors
/// `ESRCH` if there is no such process, `EPERM`, `EINVAL` for an unknown signal.
pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: takes no pointers.
    super::checked(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Returns a descriptor that becomes readable when process `pid` exits (`pidfd_open(2)`).
///
/// # Errors
/// `ESRCH` if there is no such process, `ENOSYS` before Linux 5.3.
pub(crate) fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = super::checked(libc::c_int::try_from(fd).unwrap_or(-1))?;
    // SAFETY: the descriptor was just opened and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Waits until any child has exited and returns its id without reaping it.
///
/// # Errors
/// `ECHILD` if there is no child.
pub(crate) fn wait_any() -> io::Result<i32> {
    // SAFETY: siginfo_t is plain data, for which all zeroes is valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is writable and of the type that the call fills.
    super::retried(|| unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, libc::WEXITED | libc::WNOWAIT) })?;
    // SAFETY: waitid succeeded, so the kernel filled the child part of the union.
    Ok(unsafe { info.si_pid() })
}

/// Reaps the child `pid` if it has exited; returns `None` if it has not, or is not a child.
pub(crate) fn reap(pid: i32) -> Option<Exit> {
    let mut status = 0;
    // SAFETY: rusage is plain integers, for which all zeroes is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers refer to live values of the types that the call fills.
    let reaped = super::retried(|| unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) });
    if reaped.ok()? != pid {
        return None;
    }
    Some(Exit {
        status: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
        cpu: duration(usage.ru_utime) + duration(usage.ru_stime),
    })
}

/// Forks this process, which must be single-threaded, and runs `life` in the child. The child exits with the returned
/// status, or is killed by `SIGKILL` when the parent exits. Returns the child's process id.
///
/// # Errors
/// Those of `fork(2)`.
pub(crate) fn fork(life: impl FnOnce() -> i32) -> io::Result<i32> {
    let parent = std::process::id();
    // SAFETY: with a single thread, the child inherits no lock that another thread holds.
    let pid = super::checked(unsafe { libc::fork() })?;
    if pid > 0 {
        return Ok(pid);
    }
    // SAFETY: takes no pointers for this option.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // The parent may have exited before the prctl.
    let status = if std::os::unix::process::parent_id() == parent { life() } else { 1 };
    // SAFETY: exits the child without running the parent's exit handlers a second time.
    unsafe { libc::_exit(status) }
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
}
