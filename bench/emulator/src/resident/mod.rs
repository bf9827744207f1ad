//! A resident: a small program of ours in the address space of another, which serves its page faults.
//!
//! Pages are **parked** by `UFFDIO_MOVE` at [`parking`], an address of the same address space that the program does not
//! use, and moved back when the program touches them. The kernel takes that call only from a process that shares the
//! address space, hence the resident: a process made with `clone(CLONE_VM | CLONE_PARENT)` by the program before its
//! first instruction. It is a child of ours, with descriptors of its own, and the program sees nothing of it but a few
//! mappings. The code (`resident/x86_64.s`) serves faults of parked pages and of pages never touched on its own;
//! everything else it tells its master, [`Resident`], and makes the system calls that the master asks for.
//!
//! Content is never lost: while faults are open, the resident lives, whoever else is killed. It ends when the program
//! has ended, which it learns from a pidfd. The program is killed when its master ends (`PR_SET_PDEATHSIG`); were the
//! resident killed alone, faults would wait, for the master holds the userfaultfd too.
//!
//! All pages are moved with the descriptor that tells of changes to the address space: as long as a change has not been
//! read, the kernel refuses to move a page (`mmap_changing`, `EAGAIN`), so that nothing is parked that has just been
//! mapped anew.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::ptrace::Traced;
use crate::userfaultfd::{self, Event};
use kernel::{Error, Result};

mod call;
mod code;

pub use call::{Call, Reply};

/// The bit that a parked page's address differs in: 32 TiB away, where programs do not map memory of their own.
const PARKING: u64 = 1 << 45;

/// Calls that the resident makes in one batch. Faults wait for the end of a batch.
pub const CALLS_MAX: usize = 64;

/// Places in the log of accesses; also more than pages that may be open.
pub const LOG: u64 = 1 << 16;

/// Where the page or block at `address` is parked, and the reverse.
#[must_use]
pub fn parking(address: u64) -> u64 {
    address ^ PARKING
}

/// What the resident has counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses to parked pages.
    pub accesses: u64,
    /// First touches of pages that had no content yet.
    pub first_touches: u64,
    /// Pages that could not be parked again: pinned, locked, shared after a fork.
    pub refused: u64,
    /// Time from reading an access to the page's return, of all accesses together: what was added, but for the way into
    /// the resident and back.
    pub served: Duration,
}

/// The master of a resident.
#[derive(Debug)]
pub struct Resident {
    pid: i32,
    resident: i32,
    control: Control,
    bell: OwnedFd,
    wake: OwnedFd,
    pidfd: OwnedFd,
    /// Kept open, so that faults wait and content stays should the resident be killed.
    _userfaultfd: OwnedFd,
    userfaultfd_there: u64,
    ticks_per_ms: u64,
    logged: u64,
}

impl Resident {
    /// Has the stopped program bring up its resident, and lets it run. Nothing is parked yet.
    ///
    /// # Errors
    /// [`Error::Unsupported`] before Linux 6.8, or on another architecture than x86-64; [`Error::Io`], `EPERM` where a
    /// program that is not root may not use `userfaultfd(2)`; [`Error::Gone`] where the program has ended.
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
        userfaultfd::agree(&own)?;
        control.prepare([userfaultfd, wake, bell, pidfd]);

        // It survived exec unless the program is set-user-ID or has capabilities.
        let kill = [libc::PR_SET_PDEATHSIG.unsigned_abs().into(), libc::SIGKILL.unsigned_abs().into(), 0, 0, 0, 0];
        traced.call("set PR_SET_PDEATHSIG of", libc::SYS_prctl, kill)?;
        // A signal to the whole process group, such as Ctrl-C, must not end the resident, which inherits the mask.
        let (all, old) = (control.at_there(code::SCRATCH + 8), control.at_there(code::SCRATCH + 16));
        control.set(code::SCRATCH + 8, u64::MAX);
        let set_mask = u64::from(libc::SIG_SETMASK.unsigned_abs());
        traced.call("block signals of", libc::SYS_rt_sigprocmask, [set_mask, all, old, 8, 0, 0])?;
        let flags = u64::from((libc::CLONE_VM | libc::CLONE_PARENT).unsigned_abs());
        let resident = traced.call_from("clone", entry, there, libc::SYS_clone, [flags, 0, 0, 0, 0, 0])?;
        traced.call("unblock signals of", libc::SYS_rt_sigprocmask, [set_mask, old, 0, 8, 0, 0])?;
        for descriptor in [memory, userfaultfd, wake, bell, pidfd] {
            traced.call("close for", libc::SYS_close, [descriptor, 0, 0, 0, 0, 0])?;
        }
        let mut new = Self {
            pid: traced.pid(),
            resident: i32::try_from(resident).unwrap_or_default(),
            control,
            bell: program.fetch_from(resident, bell)?,
            wake: program.fetch_from(resident, wake)?,
            pidfd: program.pidfd,
            _userfaultfd: own,
            userfaultfd_there: userfaultfd,
            ticks_per_ms: code::ticks_per_ms(),
            logged: 0,
        };
        new.settle_in([userfaultfd, wake, bell, pidfd], entry)?;
        Ok((traced.release()?, new))
    }

    /// Has the resident leave the program's session and descriptors, and keeps its mappings from forked children.
    fn settle_in(&mut self, mut keep: [u64; 4], entry: u64) -> Result<()> {
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

    /// The pid of the program.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Lets an access take this much longer than it would anyhow, and this many pages be open before the oldest is
    /// parked again.
    pub fn set(&self, delay: Duration, open: u64) {
        let ticks = u128::from(self.ticks_per_ms) * delay.as_nanos() / 1_000_000;
        self.control.set(code::DELAY, u64::try_from(ticks).unwrap_or(u64::MAX));
        self.control.set(code::OPEN, open.min(LOG - 1));
    }

    /// What has been counted.
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

    /// The pages accessed since the last call, in order, and how many more there were than the log holds.
    pub fn accessed(&mut self) -> (Vec<u64>, u64) {
        let end = self.control.get(code::ACCESSES);
        let start = self.logged.max(end.saturating_sub(LOG));
        let lost = start - self.logged;
        self.logged = end;
        ((start..end).map(|at| self.control.get(code::log(at))).collect(), lost)
    }

    /// The pages that are open and will be parked again.
    #[must_use]
    pub fn open(&self) -> Vec<u64> {
        let end = self.control.get(code::ACCESSES);
        (end.saturating_sub(self.control.get(code::OPEN))..end).map(|at| self.control.get(code::log(at))).collect()
    }

    /// Forgets that pages of these addresses are open: they will not be parked. Only while an event is at hand.
    pub fn strike(&self, range: &std::ops::Range<u64>) {
        let end = self.control.get(code::ACCESSES);
        // Of the older ones none will be parked again.
        for at in end.saturating_sub(self.control.get(code::OPEN) + 1)..end {
            if range.contains(&self.control.get(code::log(at))) {
                self.control.set(code::log(at), 0);
            }
        }
    }

    /// Waits for an event, for `timeout` at most.
    pub fn wait(&self, timeout: Duration) {
        let mut polls = [&self.bell, &self.pidfd].map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
        let timeout = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
        // SAFETY: `polls` are two valid pollfds that outlive the call. Whatever the outcome, the caller looks again.
        unsafe { libc::poll(polls.as_mut_ptr(), 2, timeout) };
        let mut drained = 0_u64;
        // SAFETY: eight bytes are read into eight bytes. The bell does not block; that it is silent is no failure.
        unsafe { libc::read(self.bell.as_raw_fd(), (&raw mut drained).cast(), 8) };
    }

    /// Whether the program has ended.
    #[must_use]
    pub fn ended(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is one valid pollfd that outlives the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
    }

    /// What the resident could not deal with alone; until [`Resident::go_on`] it only makes calls for it.
    #[must_use]
    pub fn event(&self) -> Option<Event> {
        (self.control.get(code::EVENT) != 0).then(|| self.control.message()).and_then(Event::parse)
    }

    /// The event has been dealt with.
    pub fn go_on(&self) {
        self.control.set(code::EVENT, 0);
        self.ring();
    }

    /// Has the resident make these calls, [`CALLS_MAX`] at most, one after the other. `None` where none was made,
    /// because an event came first: what the calls rest on may have changed.
    ///
    /// # Errors
    /// [`Error::Gone`] where the resident or the program has ended.
    pub fn run(&mut self, calls: &[Call]) -> Result<Option<Vec<Reply>>> {
        self.submit(calls, 0)
    }

    /// The same while an event is at hand.
    ///
    /// # Errors
    /// As [`Resident::run`].
    pub fn run_for_event(&mut self, calls: &[Call]) -> Result<Vec<Reply>> {
        Ok(self.submit(calls, code::FOR_EVENT)?.unwrap_or_default())
    }

    fn submit(&mut self, calls: &[Call], flag: u64) -> Result<Option<Vec<Reply>>> {
        let calls = &calls[..calls.len().min(CALLS_MAX)];
        if calls.is_empty() {
            return Ok(Some(Vec::new()));
        }
        for (at, call) in calls.iter().enumerate() {
            call.write(&self.control, at, self.userfaultfd_there);
        }
        self.control.set(code::COMMAND, calls.len() as u64 | flag);
        self.ring();
        while self.control.get(code::COMMAND) != 0 {
            // An event means that the resident stands still: unless it had finished just before, it never began.
            if flag == 0 && self.control.get(code::EVENT) != 0 && self.control.get(code::COMMAND) != 0 {
                self.control.set(code::COMMAND, 0);
                return Ok(None);
            }
            if self.resident_ended() {
                return Err(Error::Gone { path: PathBuf::from(format!("/proc/{}", self.resident)) });
            }
            self.wait(Duration::from_millis(10));
        }
        Ok(Some((0..calls.len()).map(|at| Reply::read(&self.control, at)).collect()))
    }

    /// Whether the resident has ended, which it does when the program has.
    #[must_use]
    pub fn resident_ended(&self) -> bool {
        let mut status = 0;
        // SAFETY: `status` outlives the call. Once reaped, the answer is an error, which means the same.
        unsafe { libc::waitpid(self.resident, &raw mut status, libc::WNOHANG | libc::__WALL) != 0 }
    }

    /// Ends the resident of a program that has replaced itself by `exec`: the old address space serves nobody.
    pub fn abandon(&self) {
        // SAFETY: kill takes no pointer; the pid is that of our child, which we have not waited for.
        unsafe { libc::kill(self.resident, libc::SIGKILL) };
    }

    fn ring(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes are written from eight bytes. A full counter has the same effect as a larger one.
        unsafe { libc::write(self.wake.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    fn fail(&self, op: &'static str, errno: i32) -> Error {
        Error::from_io(Path::new(&format!("/proc/{}", self.pid)), op, io::Error::from_raw_os_error(errno))
    }
}

/// The area that master and resident share; its layout is in [`code`].
#[derive(Debug)]
struct Control {
    here: *mut u64,
    /// Its address in the program.
    there: u64,
}

impl Control {
    const LENGTH: u64 = code::LOG_AT + LOG * 8;

    /// Maps the area that follows the code in `memory`, and puts the code in front of it.
    fn map(memory: &OwnedFd, there: u64) -> Result<Self> {
        let fail = |source| Error::from_io(Path::new("the resident's memory"), "map", source);
        let file = File::from(memory.try_clone().map_err(fail)?);
        std::os::unix::fs::FileExt::write_all_at(&file, code::code(), 0).map_err(fail)?;
        let (length, offset) = (usize::try_from(Self::LENGTH).unwrap_or(0), i64::try_from(code::LENGTH).unwrap_or(0));
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses disturbs nothing.
        let here = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, memory.as_raw_fd(), offset) };
        if here == libc::MAP_FAILED {
            return Err(fail(io::Error::last_os_error()));
        }
        Ok(Self { here: here.cast(), there })
    }

    /// The word at this offset in bytes.
    fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < Self::LENGTH, "an offset within the area");
        let at = usize::try_from(offset / 8).unwrap_or(0);
        // SAFETY: the offset lies within the mapping, which lives as long as we do, is aligned, and is only ever
        // accessed by whole words, here as atomics and there by single instructions.
        unsafe { AtomicU64::from_ptr(self.here.add(at)) }
    }

    fn get(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::SeqCst)
    }

    fn set(&self, offset: u64, value: u64) {
        self.word(offset).store(value, Ordering::SeqCst);
    }

    /// The same place as the program sees it.
    fn at_there(&self, offset: u64) -> u64 {
        self.there + offset
    }

    fn message(&self) -> [u64; 4] {
        [0, 8, 16, 24].map(|at| self.get(code::MESSAGE + at))
    }

    /// Writes what the code needs to know before its first instruction.
    fn prepare(&self, [userfaultfd, wake, bell, pidfd]: [u64; 4]) {
        self.set(code::PARKING_BIT, PARKING);
        self.set(code::OPEN, LOG - 1);
        self.set(code::LOOKS, code::LOOKS_IN_VAIN);
        for (offset, descriptor) in [(code::UFFD, userfaultfd), (code::WAKE, wake), (code::BELL, bell)] {
            self.set(offset, descriptor);
        }
        let readable = u64::from(libc::POLLIN.unsigned_abs()) << 32;
        for (at, descriptor) in (0..).zip([userfaultfd, wake, pidfd]) {
            self.set(code::POLL + at * 8, descriptor | readable);
        }
    }

    fn put_name(&self, name: &str) -> u64 {
        let mut bytes = [0; 16];
        for (to, from) in bytes.iter_mut().take(15).zip(name.bytes()) {
            *to = from;
        }
        for (at, word) in (0..).step_by(8).zip(bytes.as_chunks::<8>().0) {
            self.set(code::SCRATCH + 24 + at, u64::from_ne_bytes(*word));
        }
        self.at_there(code::SCRATCH + 24)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made, and nobody borrows from it any more.
        unsafe { libc::munmap(self.here.cast(), usize::try_from(Self::LENGTH).unwrap_or(0)) };
    }
}

/// A process whose descriptors can be copied.
struct Remote {
    pidfd: OwnedFd,
}

impl Remote {
    fn open(pid: i32) -> Result<Self> {
        // SAFETY: pidfd_open takes no pointer.
        let made = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        Ok(Self { pidfd: owned(made, "open")? })
    }

    /// A copy of its descriptor (`pidfd_getfd(2)`).
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
