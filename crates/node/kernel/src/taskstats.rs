//! Delay accounting: how long the tasks of a process waited, and for what (`taskstats` over generic netlink).
//!
//! The kernel counts while `kernel.task_delayacct` is 1 (Linux 5.14), and only tasks that started after it was set. Answers are
//! `struct taskstats` of `include/uapi/linux/taskstats.h`, which grows at its end: fields are read at fixed offsets. One version, 15
//! (Linux 6.14 and 6.15), has the longest and the shortest delay in between; version 16 moved them to the end.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::{AddAssign, Sub};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::{Error, Malformed, Result, Roots, file};

/// The name of the family, with the zero at its end.
const FAMILY: &[u8] = b"TASKSTATS\0";

/// The setting that turns delay accounting on.
const SETTING: &str = "sys/kernel/task_delayacct";

/// The path in errors, since a socket has none.
const SOCKET: &str = "netlink:taskstats";

// `linux/netlink.h` and `linux/genetlink.h`.
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;
const REQUEST: u16 = 1;
const TYPE_ERROR: u16 = 2;
const TYPE_CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const ATTR_FAMILY_ID: u16 = 1;
const ATTR_FAMILY_NAME: u16 = 2;

// `linux/taskstats.h`.
const GET: u8 = 1;
const ATTR_PID: u16 = 1;
const ATTR_TGID: u16 = 2;
const TYPE_STATS: u16 = 3;
const TYPE_AGGREGATE_PID: u16 = 4;
const TYPE_AGGREGATE_TGID: u16 = 5;

/// Offset in every layout of how often a task could run; the sum of its waits for a processor follows it.
const RUN_QUEUE: usize = 16;

/// Offsets in one layout of `struct taskstats`.
struct Layout {
    // Of a count of delays; their sum in nanoseconds follows it.
    block_io: usize,
    swap_in: usize,
    reclaim: usize,
    thrashing: usize,
    /// Of the longest delay, which versions before 15 lack.
    swap_in_max: usize,
}

/// The layout of all versions but one.
const LAYOUT: Layout = Layout { block_io: 32, swap_in: 48, reclaim: 312, thrashing: 328, swap_in_max: 464 };

/// Version 15: two numbers more after each kind of delay, of which that of the processor comes first.
const LAYOUT_15: Layout = Layout { block_io: 48, swap_in: 80, reclaim: 360, thrashing: 392, swap_in_max: 96 };

/// How often tasks waited, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Delay {
    /// How often.
    pub count: u64,
    /// For how long in sum, in nanoseconds.
    pub total_ns: u64,
}

/// What the tasks of a process waited for since they started, those that have ended included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Delays {
    /// Reads of swapped-out pages: decompression by zswap, synchronous devices, and the submission of requests to others.
    pub swap_in: Delay,
    /// Waits for block devices, for swapped-out pages as well as files. Each ends when the task may run again.
    pub block_io: Delay,
    /// Waits for a processor, each time that the task could run.
    pub run_queue: Delay,
    /// Reclaim of memory by the task itself.
    pub reclaim: Delay,
    /// Of the waits above, those for pages that belonged to the working set when they were evicted.
    pub thrashing: Delay,
    /// A longest read of a swapped-out page since the start, in nanoseconds; zero where the kernel reports none (before Linux 6.14).
    /// It is that of one of the process' tasks: the kernel does not compare them (`delayacct_add_tsk()` in `kernel/delayacct.c`).
    pub swap_in_max_ns: u64,
}

impl AddAssign for Delay {
    fn add_assign(&mut self, more: Self) {
        self.count = self.count.saturating_add(more.count);
        self.total_ns = self.total_ns.saturating_add(more.total_ns);
    }
}

impl Sub for Delay {
    type Output = Self;

    /// A counter that decreased belongs to another process of the same pid: nothing is counted.
    fn sub(self, before: Self) -> Self {
        Self { count: self.count.saturating_sub(before.count), total_ns: self.total_ns.saturating_sub(before.total_ns) }
    }
}

impl Delays {
    /// Waits for block devices, each until the task ran again: the kernel's count ends when it may run, and it then queues for a
    /// processor. That is assumed to take as long as its other waits for one on average.
    #[must_use]
    pub fn for_devices(&self) -> Duration {
        let queued = u128::from(self.run_queue.total_ns) * u128::from(self.block_io.count) / u128::from(self.run_queue.count.max(1));
        Duration::from_nanos(self.block_io.total_ns.saturating_add(u64::try_from(queued).unwrap_or(u64::MAX)))
    }
}

impl AddAssign for Delays {
    fn add_assign(&mut self, more: Self) {
        self.swap_in += more.swap_in;
        self.block_io += more.block_io;
        self.run_queue += more.run_queue;
        self.reclaim += more.reclaim;
        self.thrashing += more.thrashing;
        self.swap_in_max_ns = self.swap_in_max_ns.max(more.swap_in_max_ns);
    }
}

impl Sub for Delays {
    type Output = Self;

    /// The longest delay has no difference: it remains that since the start.
    fn sub(self, before: Self) -> Self {
        Self {
            swap_in: self.swap_in - before.swap_in,
            block_io: self.block_io - before.block_io,
            run_queue: self.run_queue - before.run_queue,
            reclaim: self.reclaim - before.reclaim,
            thrashing: self.thrashing - before.thrashing,
            swap_in_max_ns: self.swap_in_max_ns,
        }
    }
}

/// Whether delay accounting is on; `None` if the kernel has none that can be turned on.
///
/// # Errors
/// [`Error::Io`].
pub fn enabled(roots: &Roots) -> Result<Option<bool>> {
    Ok(file::read_optional(&roots.proc.join(SETTING), file::SMALL)?.map(|text| text.trim() == "1"))
}

/// A socket to the kernel's delay accounting.
#[derive(Debug)]
pub struct TaskStats {
    socket: File,
    family: u16,
    sequence: u32,
}

impl TaskStats {
    /// Opens it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the remedy while delay accounting is off or missing; [`Error::Io`].
    pub fn open(roots: &Roots) -> Result<Self> {
        match enabled(roots)? {
            Some(true) => {}
            Some(false) => {
                return Err(Error::unsupported(
                    "delay accounting is off",
                    "run `sysctl kernel.task_delayacct=1` before the jobs start, or boot with `delayacct`",
                ));
            }
            None => return Err(Error::unsupported("the kernel has no delay accounting", "use a kernel with CONFIG_TASK_DELAY_ACCT")),
        }
        // SAFETY: socket takes no pointer.
        let descriptor = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_GENERIC) };
        if descriptor < 0 {
            return Err(fail("open", io::Error::last_os_error()));
        }
        // SAFETY: socket has just returned this descriptor, and nothing else owns it.
        let socket = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        let mut opened = Self { socket, family: TYPE_CONTROL, sequence: 0 };
        let answer = opened.ask(GET_FAMILY, ATTR_FAMILY_NAME, FAMILY)?;
        let id = attribute(&answer, ATTR_FAMILY_ID).and_then(|value| value.try_into().ok());
        opened.family = u16::from_ne_bytes(id.ok_or_else(|| malformed("the id of the family"))?);
        Ok(opened)
    }

    /// What the tasks of the process `pid` waited for.
    ///
    /// # Errors
    /// [`Error::Gone`] if it has exited; [`Error::Parse`]; [`Error::Io`], `EPERM` without `CAP_NET_ADMIN`.
    pub fn delays(&mut self, pid: i32) -> Result<Delays> {
        self.delays_of(pid, ATTR_TGID, TYPE_AGGREGATE_TGID)
    }

    /// What the task `tid` alone waited for since it started.
    ///
    /// # Errors
    /// As those of [`TaskStats::delays`].
    pub fn delays_of_task(&mut self, tid: i32) -> Result<Delays> {
        self.delays_of(tid, ATTR_PID, TYPE_AGGREGATE_PID)
    }

    fn delays_of(&mut self, id: i32, kind: u16, aggregate: u16) -> Result<Delays> {
        let answer = self.ask(GET, kind, &id.to_ne_bytes())?;
        let nested = attribute(&answer, aggregate).ok_or_else(|| malformed("statistics of tasks"))?;
        let stats = attribute(nested, TYPE_STATS).ok_or_else(|| malformed("statistics of tasks"))?;
        parse(stats).ok_or_else(|| malformed("a whole struct taskstats"))
    }

    /// Sends a request with one attribute; returns the attributes of the answer.
    fn ask(&mut self, command: u8, attribute: u16, value: &[u8]) -> Result<Vec<u8>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(self.family, self.sequence, command, attribute, value);
        self.socket.write_all(&request).map_err(|source| fail("ask", source))?;
        let mut answer = [0; 4096];
        loop {
            let length = self.socket.read(&mut answer).map_err(|source| fail("read", source))?;
            // An answer to an earlier request, whose reader gave up, is skipped.
            match payload(&answer[..length], self.sequence).map_err(malformed)? {
                Some(Ok(attributes)) => return Ok(attributes.to_vec()),
                Some(Err(errno)) if errno == libc::ESRCH => return Err(Error::Gone { path: SOCKET.into() }),
                Some(Err(errno)) => return Err(fail("ask", io::Error::from_raw_os_error(errno))),
                None => {}
            }
        }
    }
}

fn fail(op: &'static str, source: io::Error) -> Error {
    Error::from_io(Path::new(SOCKET), op, source)
}

fn malformed(expected: &'static str) -> Error {
    Malformed::new(1, "the kernel's answer", expected).at(Path::new(SOCKET))
}

/// A request with one attribute.
fn request(family: u16, sequence: u32, command: u8, attribute: u16, value: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX);
    let mut body = vec![command, 1, 0, 0];
    body.extend(length(4 + value.len()).to_ne_bytes());
    body.extend(attribute.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
    let mut message = Vec::from(u32::from(length(HEADER + body.len())).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    message.extend([0; 4]);
    message.extend(body);
    message
}

/// The attributes of an answer or its error number; `None` if it answers another request.
///
/// # Errors
/// What was expected where the answer is malformed.
fn payload(message: &[u8], sequence: u32) -> std::result::Result<Option<std::result::Result<&[u8], i32>>, &'static str> {
    let length = word(message, 0).and_then(|length| usize::try_from(length).ok()).ok_or("the length of a message")?;
    let message = message.get(..length).ok_or("a whole message")?;
    let kind = half(message, 4).ok_or("the type of a message")?;
    if word(message, 8).ok_or("the number of a request")? != sequence {
        return Ok(None);
    }
    if kind == TYPE_ERROR {
        let errno = word(message, HEADER).ok_or("an error number")?.cast_signed();
        return Ok(Some(Err(errno.saturating_neg())));
    }
    message.get(HEADER + GENERIC_HEADER..).map(|attributes| Some(Ok(attributes))).ok_or("a generic message")
}

/// The value of the first attribute of this type.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    // The upper two bits of a type are flags.
    const TYPE_MASK: u16 = 0x3fff;
    loop {
        let length = usize::from(half(attributes, 0)?);
        let value = attributes.get(4..length)?;
        if half(attributes, 2)? & TYPE_MASK == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

/// The fields of `struct taskstats` that Thermocline uses; `None` if it ends before them (before Linux 4.20).
fn parse(stats: &[u8]) -> Option<Delays> {
    let number = |at: usize| Some(u64::from_ne_bytes(stats.get(at..at + 8)?.try_into().ok()?));
    let delay = |at: usize| Some(Delay { count: number(at)?, total_ns: number(at + 8)? });
    let layout = if half(stats, 0)? == 15 { LAYOUT_15 } else { LAYOUT };
    Some(Delays {
        swap_in: delay(layout.swap_in)?,
        block_io: delay(layout.block_io)?,
        run_queue: delay(RUN_QUEUE)?,
        reclaim: delay(layout.reclaim)?,
        thrashing: delay(layout.thrashing)?,
        swap_in_max_ns: number(layout.swap_in_max).unwrap_or(0),
    })
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tree;

    /// A kernel's answer: a padding attribute comes before the statistics where these must be aligned.
    fn answer(sequence: u32) -> Vec<u8> {
        answer_of(sequence, 8, 352, &[(16, 8), (32, 3), (40, 900), (48, 5), (56, 70), (336, 11)])
    }

    /// An answer of this version and size with these numbers.
    fn answer_of(sequence: u32, version: u16, size: usize, numbers: &[(usize, u64)]) -> Vec<u8> {
        let mut stats = vec![0; size];
        stats[..2].copy_from_slice(&version.to_ne_bytes());
        for &(at, value) in numbers {
            stats[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        let attribute = |kind: u16, value: &[u8]| {
            let mut bytes = Vec::from(u16::try_from(4 + value.len()).unwrap().to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes
        };
        let nested = [attribute(ATTR_TGID, &7_i32.to_ne_bytes()), attribute(0, &[]), attribute(TYPE_STATS, &stats)].concat();
        request(30, sequence, GET, TYPE_AGGREGATE_TGID, &nested)
    }

    fn read(message: &[u8]) -> Option<Delays> {
        let attributes = payload(message, 9).ok()??.ok()?;
        parse(attribute(attribute(attributes, TYPE_AGGREGATE_TGID)?, TYPE_STATS)?)
    }

    #[test]
    fn delays_are_read_at_their_offsets() {
        let found = read(&answer(9)).unwrap();
        assert_eq!(found.block_io, Delay { count: 3, total_ns: 900 });
        assert_eq!(found.swap_in, Delay { count: 5, total_ns: 70 });
        assert_eq!(found.run_queue, Delay { count: 8, total_ns: 0 });
        assert_eq!((found.reclaim, found.thrashing), (Delay::default(), Delay { count: 0, total_ns: 11 }));
        assert_eq!(found.swap_in_max_ns, 0, "this version reports none");
        assert_eq!(payload(&answer(8), 9), Ok(None), "an answer to an earlier request");
    }

    #[test]
    fn version_15_has_its_fields_elsewhere() {
        let check = |version, size, numbers: &[(usize, u64)]| {
            let found = read(&answer_of(9, version, size, numbers)).unwrap();
            let expected = Delays {
                swap_in: Delay { count: 5, total_ns: 70 },
                block_io: Delay { count: 3, total_ns: 900 },
                run_queue: Delay { count: 8, total_ns: 6 },
                reclaim: Delay { count: 1, total_ns: 20 },
                thrashing: Delay { count: 2, total_ns: 11 },
                swap_in_max_ns: 44,
            };
            assert_eq!(found, expected, "version {version}");
        };
        let fields = [(16, 8), (24, 6), (48, 3), (56, 900), (80, 5), (88, 70), (96, 44), (360, 1), (368, 20), (392, 2), (400, 11)];
        check(15, 560, &fields);
        check(16, 560, &[(16, 8), (24, 6), (32, 3), (40, 900), (48, 5), (56, 70), (312, 1), (320, 20), (328, 2), (336, 11), (464, 44)]);
    }

    #[test]
    fn a_cut_answer_is_refused_at_every_byte() {
        let whole = answer(9);
        assert!((0..whole.len()).all(|length| read(&whole[..length]).is_none()));
        assert_eq!(attribute(&[0; 8], 1), None, "an attribute of no length ends the search");
    }

    #[test]
    fn an_error_is_returned_by_its_number() {
        let mut message = request(30, 9, GET, ATTR_TGID, &[0; 4]);
        message[4..6].copy_from_slice(&TYPE_ERROR.to_ne_bytes());
        message[HEADER..HEADER + 4].copy_from_slice(&(-libc::ESRCH).to_ne_bytes());
        assert_eq!(payload(&message, 9), Ok(Some(Err(libc::ESRCH))));
    }

    #[test]
    fn accounting_that_is_off_has_a_remedy() {
        for (files, want) in [(vec![], "CONFIG_TASK_DELAY_ACCT"), (vec![("proc/sys/kernel/task_delayacct", "0\n")], "task_delayacct=1")] {
            let (_keep, roots) = tree(&files);
            let error = TaskStats::open(&roots).unwrap_err();
            assert!(error.is_unsupported() && error.to_string().contains(want), "{error}");
        }
    }

    #[test]
    fn a_wait_for_a_device_ends_when_the_task_runs() {
        let delay = |count, total_ns| Delay { count, total_ns };
        let delays = |run_queue| Delays { block_io: delay(10, 500), run_queue, ..Delays::default() };
        for (run_queue, expected) in [(delay(0, 0), 500), (delay(200, 600), 530), (delay(u64::MAX, u64::MAX), 510)] {
            assert_eq!(delays(run_queue).for_devices(), Duration::from_nanos(expected));
        }
        assert_eq!(delays(delay(1, u64::MAX)).for_devices(), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn differences_never_go_below_zero() {
        let (less, more) = (Delay { count: 1, total_ns: 5 }, Delay { count: 2, total_ns: 3 });
        assert_eq!(more - less, Delay { count: 1, total_ns: 0 });
        let mut sum = Delays { swap_in: more, swap_in_max_ns: 3, ..Delays::default() };
        sum += Delays { swap_in: less, swap_in_max_ns: 2, ..Delays::default() };
        assert_eq!((sum - sum).swap_in_max_ns, 3);
        assert_eq!((sum - Delays::default()).swap_in, Delay { count: 3, total_ns: 8 });
    }
}
