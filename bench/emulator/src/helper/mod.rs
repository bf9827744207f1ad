//! The helper: a small process in the address space of the emulated program, which handles its page faults.
//!
//! Pages are **parked** by `UFFDIO_MOVE` at [`parking`], an address in the same address space that the program does not
//! use, and moved back when the program accesses them. The kernel accepts that call only from a process that shares the
//! address space, hence the helper: the program creates it with `clone(CLONE_VM | CLONE_PARENT)` before its first
//! instruction. It is a child of the emulator, with its own file descriptors; the program sees only a few additional
//! mappings. Its code (`helper/x86_64.s`) handles faults on parked pages and on pages that were never accessed by
//! itself; it reports all other events to the emulator ([`Helper`]), and makes the system calls that the emulator
//! requests.
//!
//! Content is never lost: the helper lives as long as the program may fault, whichever other process is killed. It
//! exits when the program has exited, which a pidfd shows. The program is killed when the emulator exits
//! (`PR_SET_PDEATHSIG`); if only the helper is killed, faults wait, because the emulator holds the userfaultfd as well.
//!
//! All pages are moved with the descriptor that reports changes to the address space: until a change has been read, the
//! kernel refuses to move pages (`mmap_changing`, `EAGAIN`), so a page that was just mapped is never parked.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use crate::ptrace::Traced;
use crate::userfaultfd::{self, Event};
use kernel::{Error, Result};

mod call;
mod code;
mod control;

pub use call::{Call, Reply};
pub use code::{CALLS_MAX, LOG, parking};
use control::Control;

/// Counters of the helper since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses to parked pages.
    pub accesses: u64,
    /// First accesses to pages without content.
    pub first_touches: u64,
    /// Pages that could not be parked again because they were pinned, locked, or shared after a fork.
    pub refused: u64,
    /// Total time from reading a fault to restoring its page: the added latency without the switch to the helper and
    /// back.
    pub served: Duration,
}

/// The emulator's side of the helper.
#[derive(Debug)]
pub struct Helper {
    pid: i32,
    helper: i32,
    control: Control,
    bell: OwnedFd,
    wake: OwnedFd,
    pidfd: OwnedFd,
    /// Kept open, so that faults wait and content is kept if the helper is killed.
    _userfaultfd: OwnedFd,
    remote_userfaultfd: u64,
    ticks_per_ms: u64,
    logged: u64,
}

impl Helper {
    /// Makes the stopped program create the helper, and lets the program run. No page is parked yet.
    ///
    /// # Errors
    /// [`Error::Unsupported`] before Linux 6.8, or on another architecture than x86-64; [`Error::Io`] with `EPERM` if
    /// only root may use `userfaultfd(2)`; [`Error::Gone`] if the program has exited.
    pub fn start(mut traced: Traced) -> Result<(Child, Self)> {
        let program = Remote::open(traced.pid())?;
        let name = traced.put("slow-memory")?;
        let memory = traced.call("memfd_create for", libc::SYS_memfd_create, [name, u64::from(libc::MFD_CLOEXEC), 0, 0, 0, 0])?;
        let length = code::LENGTH + Control::LENGTH;
        traced.call("ftruncate for", libc::SYS_ftruncate, [memory, length, 0, 0, 0, 0])?;
        let map = |traced: &mut Traced, length: u64, protection: libc::c_int, offset: u64| {
            let (protection, flags) = (protection.cast_unsigned().into(), libc::MAP_SHARED.cast_unsigned().into());
            traced.call("mmap for", libc::SYS_mmap, [0, length, protection, flags, memory, offset])
        };
        let entry = map(&mut traced, code::LENGTH, libc::PROT_READ | libc::PROT_EXEC, 0)?;
        let there = map(&mut traced, Control::LENGTH, libc::PROT_READ | libc::PROT_WRITE, code::LENGTH)?;
        let control = Control::map(&program.fetch(memory)?, there)?;

        let nonblocking = u64::try_from(libc::O_CLOEXEC | libc::O_NONBLOCK).unwrap_or_default();
        let userfaultfd = traced.call("userfaultfd for", libc::SYS_userfaultfd, [nonblocking, 0, 0, 0, 0, 0])?;
        let wake = traced.call("eventfd for", libc::SYS_eventfd2, [0, nonblocking, 0, 0, 0, 0])?;
        let bell = traced.call("eventfd for", libc::SYS_eventfd2, [0, nonblocking, 0, 0, 0, 0])?;
        let pid = u64::from(traced.pid().unsigned_abs());
        let pidfd = traced.call("pidfd_open for", libc::SYS_pidfd_open, [pid, 0, 0, 0, 0, 0])?;
        let own = program.fetch(userfaultfd)?;
        userfaultfd::enable(&own)?;
        control.prepare([userfaultfd, wake, bell, pidfd]);

        // The setting is kept by exec unless the program is set-user-ID or has capabilities.
        let kill = [libc::PR_SET_PDEATHSIG.unsigned_abs().into(), libc::SIGKILL.unsigned_abs().into(), 0, 0, 0, 0];
        traced.call("set PR_SET_PDEATHSIG of", libc::SYS_prctl, kill)?;
        // A signal to the process group, such as Ctrl-C, must not kill the helper, which inherits the signal mask.
        let (all, old) = (control.remote(code::SCRATCH + 8), control.remote(code::SCRATCH + 16));
        control.set(code::SCRATCH + 8, u64::MAX);
        let set_mask = u64::from(libc::SIG_SETMASK.unsigned_abs());
        traced.call("block signals of", libc::SYS_rt_sigprocmask, [set_mask, all, old, 8, 0, 0])?;
        let flags = u64::from((libc::CLONE_VM | libc::CLONE_PARENT).unsigned_abs());
        let helper = traced.call_from("clone", entry, there, libc::SYS_clone, [flags, 0, 0, 0, 0, 0])?;
        traced.call("unblock signals of", libc::SYS_rt_sigprocmask, [set_mask, old, 0, 8, 0, 0])?;
        for descriptor in [memory, userfaultfd, wake, bell, pidfd] {
            traced.call("close for", libc::SYS_close, [descriptor, 0, 0, 0, 0, 0])?;
        }
        let mut new = Self {
            pid: traced.pid(),
            helper: i32::try_from(helper).unwrap_or_default(),
            control,
            bell: program.fetch_from(helper, bell)?,
            wake: program.fetch_from(helper, wake)?,
            pidfd: program.pidfd,
            _userfaultfd: own,
            remote_userfaultfd: userfaultfd,
            ticks_per_ms: code::ticks_per_ms(),
            logged: 0,
        };
        new.isolate([userfaultfd, wake, bell, pidfd], entry)?;
        Ok((traced.release()?, new))
    }

    /// Makes the helper leave the session, close the program's descriptors, and hides its mappings from forked
    /// children.
    fn isolate(&mut self, mut keep: [u64; 4], entry: u64) -> Result<()> {
        keep.sort_unstable();
        let mut calls = vec![
            Call::session(),
            Call::priority(),
            Call::name(self.control.put_name("slow-memory")),
            Call::not_for_children(entry..entry + code::LENGTH),
            Call::not_for_children(self.control.there..self.control.there + Control::LENGTH),
        ];
        let mut from = 0;
        for descriptor in keep {
            calls.extend((descriptor > from).then(|| Call::close_range(from, descriptor - 1)));
            from = descriptor + 1;
        }
        calls.push(Call::close_range(from, u64::from(u32::MAX)));
        for (call, reply) in calls.iter().zip(self.run(&calls)?.unwrap_or_default()) {
            reply.result.map_err(|source| self.fail(call.op(), source))?;
        }
        Ok(())
    }

    /// Process id of the program.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sets the added delay of an access, and the number of open pages above which the oldest is parked again.
    pub fn set(&self, delay: Duration, open: u64) {
        let ticks = u128::from(self.ticks_per_ms) * delay.as_nanos() / 1_000_000;
        self.control.set(code::DELAY, u64::try_from(ticks).unwrap_or(u64::MAX));
        self.control.set(code::OPEN, open.min(LOG - 1));
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let ns = u128::from(self.control.get(code::SERVED)) * 1_000_000 / u128::from(self.ticks_per_ms);
        Counts {
            accesses: self.control.get(code::ACCESSES),
            first_touches: self.control.get(code::FIRST),
            refused: self.control.get(code::REFUSED),
            served: Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)),
        }
    }

    /// Returns the pages accessed since the last call, in order, and the number of accesses that exceeded the log.
    pub fn accessed(&mut self) -> (Vec<u64>, u64) {
        let end = self.control.get(code::ACCESSES);
        let start = self.logged.max(end.saturating_sub(LOG));
        let lost = start - self.logged;
        self.logged = end;
        ((start..end).map(|at| self.control.get(code::log(at))).collect(), lost)
    }

    /// Returns the open pages, which will be parked again.
    #[must_use]
    pub fn open(&self) -> Vec<u64> {
        let end = self.control.get(code::ACCESSES);
        (end.saturating_sub(self.control.get(code::OPEN))..end).map(|at| self.control.get(code::log(at))).collect()
    }

    /// Removes pages from the open ones, so that they are not parked. Only while an event is pending.
    pub fn forget_open(&self, range: &std::ops::Range<u64>) {
        let end = self.control.get(code::ACCESSES);
        // Older entries are not parked again.
        for at in end.saturating_sub(self.control.get(code::OPEN) + 1)..end {
            if range.contains(&self.control.get(code::log(at))) {
                self.control.set(code::log(at), 0);
            }
        }
    }

    /// Waits for an event, at most for `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let mut polls = [&self.bell, &self.pidfd].map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
        let timeout = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
        // SAFETY: `polls` are two valid pollfds that outlive the call. The caller checks again whatever the result.
        unsafe { libc::poll(polls.as_mut_ptr(), 2, timeout) };
        let mut drained = 0_u64;
        // SAFETY: eight bytes are read into eight bytes. The descriptor is nonblocking; an empty counter is no failure.
        unsafe { libc::read(self.bell.as_raw_fd(), (&raw mut drained).cast(), 8) };
    }

    /// Returns whether the program has exited.
    #[must_use]
    pub fn program_exited(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is one valid pollfd that outlives the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
    }

    /// Returns an event that the helper cannot handle itself. Until [`Helper::resume`] it only makes calls for this
    /// event.
    #[must_use]
    pub fn event(&self) -> Option<Event> {
        (self.control.get(code::EVENT) != 0).then(|| self.control.message()).and_then(Event::parse)
    }

    /// Resumes the helper after an event was handled.
    pub fn resume(&self) {
        self.control.set(code::EVENT, 0);
        self.ring();
    }

    /// Makes the helper execute these calls in order, at most [`CALLS_MAX`]. `None` if an event came first and no call
    /// was made, because the address space may have changed.
    ///
    /// # Errors
    /// [`Error::Gone`] if the helper or the program has exited.
    pub fn run(&mut self, calls: &[Call]) -> Result<Option<Vec<Reply>>> {
        self.submit(calls, 0)
    }

    /// The same while an event is pending.
    ///
    /// # Errors
    /// As [`Helper::run`].
    pub fn run_for_event(&mut self, calls: &[Call]) -> Result<Vec<Reply>> {
        Ok(self.submit(calls, code::FOR_EVENT)?.unwrap_or_default())
    }

    fn submit(&mut self, calls: &[Call], flag: u64) -> Result<Option<Vec<Reply>>> {
        let calls = &calls[..calls.len().min(CALLS_MAX)];
        if calls.is_empty() {
            return Ok(Some(Vec::new()));
        }
        for (at, call) in calls.iter().enumerate() {
            call.write(&self.control, at, self.remote_userfaultfd);
        }
        self.control.set(code::COMMAND, calls.len() as u64 | flag);
        self.ring();
        while self.control.get(code::COMMAND) != 0 {
            // After an event the helper waits: if it has not finished the batch, it has not begun it.
            if flag == 0 && self.control.get(code::EVENT) != 0 && self.control.get(code::COMMAND) != 0 {
                self.control.set(code::COMMAND, 0);
                return Ok(None);
            }
            if self.exited() {
                return Err(Error::Gone { path: PathBuf::from(format!("/proc/{}", self.helper)) });
            }
            self.wait(Duration::from_millis(10));
        }
        Ok(Some((0..calls.len()).map(|at| Reply::read(&self.control, at)).collect()))
    }

    /// Returns whether the helper has exited, which it does after the program.
    #[must_use]
    pub fn exited(&self) -> bool {
        let mut status = 0;
        // SAFETY: `status` outlives the call. After reaping, waitpid returns an error, which means the same.
        unsafe { libc::waitpid(self.helper, &raw mut status, libc::WNOHANG | libc::__WALL) != 0 }
    }

    /// Kills the helper of a program that has replaced itself by `exec`, because no process uses the old address space.
    pub fn abandon(&self) {
        // SAFETY: kill takes no pointer; the pid is that of our child, which we have not waited for.
        unsafe { libc::kill(self.helper, libc::SIGKILL) };
    }

    fn ring(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes are written from eight bytes. A saturated counter has the same effect.
        unsafe { libc::write(self.wake.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    fn fail(&self, op: &'static str, errno: i32) -> Error {
        Error::from_io(Path::new(&format!("/proc/{}", self.pid)), op, io::Error::from_raw_os_error(errno))
    }
}

/// A process whose file descriptors can be copied.
struct Remote {
    pidfd: OwnedFd,
}

impl Remote {
    fn open(pid: i32) -> Result<Self> {
        // SAFETY: pidfd_open takes no pointer.
        let made = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        Ok(Self { pidfd: owned(made, "open")? })
    }

    /// Copies a descriptor of the process (`pidfd_getfd(2)`).
    fn fetch(&self, descriptor: u64) -> Result<OwnedFd> {
        // SAFETY: pidfd_getfd takes no pointer.
        let made = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.pidfd.as_raw_fd(), descriptor, 0) };
        owned(made, "copy a descriptor of")
    }

    fn fetch_from(&self, pid: u64, descriptor: u64) -> Result<OwnedFd> {
        Self::open(i32::try_from(pid).unwrap_or_default())?.fetch(descriptor)
    }
}

fn owned(made: libc::c_long, op: &'static str) -> Result<OwnedFd> {
    match i32::try_from(made) {
        // SAFETY: the call has just returned this descriptor, and nothing else owns it.
        Ok(descriptor @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(Error::from_io(Path::new("the traced program"), op, io::Error::last_os_error())),
    }
}
