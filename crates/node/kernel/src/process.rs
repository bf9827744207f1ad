//! Processes: `/proc/PID/stat`, process trees, memory of other processes, and resource usage of this process.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use serde::Serialize;
use units::{Bytes, PageSize};

use crate::{Error, Malformed, Result, Roots, file, text};

/// The fields of `/proc/PID/stat` that Thermocline uses (`proc_pid_stat(5)`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stat {
    /// The process.
    pub pid: i32,
    /// Command name, at most 15 bytes; may contain spaces and parentheses.
    pub comm: String,
    /// State: `R`, `S`, `D`, `Z` ...
    pub state: char,
    /// The pid of the parent.
    pub ppid: i32,
    /// Time in user mode, in clock ticks ([`clock_ticks`] per second).
    pub utime: u64,
    /// Time in the kernel, in clock ticks.
    pub stime: u64,
    /// Start time in clock ticks since boot. Pid and start time together identify a process.
    pub starttime: u64,
}

impl Stat {
    /// Its CPU time, user and system, in whole clock ticks.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        Duration::from_millis(self.utime.saturating_add(self.stime).saturating_mul(1000) / clock_ticks())
    }
}

/// Parses `/proc/PID/stat`.
///
/// # Errors
/// [`Malformed`] if the name is not in parentheses or a field is missing.
pub fn parse_stat(text: &str) -> Result<Stat, Malformed> {
    let malformed = |expected| Malformed::new(1, text, expected);
    // The name may contain parentheses; no later field does.
    let (head, tail) = text.rsplit_once(')').ok_or_else(|| malformed("a name in parentheses"))?;
    let (pid, comm) = head.split_once('(').ok_or_else(|| malformed("a name in parentheses"))?;
    let mut fields = tail.split_ascii_whitespace();
    let state = fields.next().and_then(|state| state.chars().next());
    let ppid = text::number(fields.next(), 1, "the parent's pid")?;
    // Counted from 1 with the pid first: utime is field 14, starttime field 22.
    let utime = text::number(fields.nth(14 - 5), 1, "utime in clock ticks")?;
    let stime = text::number(fields.next(), 1, "stime in clock ticks")?;
    let starttime = text::number(fields.nth(22 - 16), 1, "starttime in clock ticks")?;
    Ok(Stat {
        pid: text::number(Some(pid), 1, "a pid")?,
        comm: comm.to_owned(),
        state: state.ok_or_else(|| malformed("a state"))?,
        ppid,
        utime,
        stime,
        starttime,
    })
}

/// Reads `/proc/PID/stat`.
///
/// # Errors
/// [`Error::Gone`]; [`Error::Parse`]; [`Error::Io`].
pub fn stat(roots: &Roots, pid: i32) -> Result<Stat> {
    let path = roots.of_process(pid, "stat");
    parse_stat(&file::read(&path, file::SMALL)?).map_err(|malformed| malformed.at(&path))
}

/// Checks that the process `pid` is in the cgroup `path` of version 2, which begins with a slash, or in one below it.
///
/// # Errors
/// [`Error::Gone`] if it is not, or has exited; [`Error::Io`].
pub fn check_cgroup(roots: &Roots, pid: i32, path: &str) -> Result<()> {
    let file = roots.of_process(pid, "cgroup");
    let text = file::read(&file, file::SMALL)?;
    let below = |of: &str| of.strip_prefix(path.trim_end_matches('/')).is_some_and(|below| below.is_empty() || below.starts_with('/'));
    if text.lines().filter_map(|line| line.strip_prefix("0::")).any(below) { Ok(()) } else { Err(Error::Gone { path: file }) }
}

/// Lists the process `pid` and its descendants, parents first, at most `limit`; empty if it has exited.
///
/// Reads `/proc` once: descendants whose parent has exited have been reparented to init and are not found.
///
/// # Errors
/// [`Error::Io`] if `/proc` cannot be listed.
pub fn tree(roots: &Roots, pid: i32, limit: usize) -> Result<Vec<i32>> {
    let fail = |source| Error::from_io(&roots.proc, "list", source);
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    let mut found = Vec::new();
    for entry in fs::read_dir(&roots.proc).map_err(fail)? {
        let name = entry.map_err(fail)?.file_name();
        let Some(Ok(process)) = name.to_str().map(str::parse::<i32>) else { continue };
        match stat(roots, process) {
            Ok(stat) if process == pid => found.push(stat.pid),
            Ok(stat) => children.entry(stat.ppid).or_default().push(process),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    let mut next = 0;
    while next < found.len() && found.len() < limit {
        if let Some(mut below) = children.remove(&found[next]) {
            below.sort_unstable();
            found.extend(below);
        }
        next += 1;
    }
    found.truncate(limit);
    Ok(found)
}

/// The files that a process has open, as the kernel names them: a path, or the kind of an object without one, such as
/// `anon_inode:kvm-vm`. In no order.
///
/// # Errors
/// [`Error::Gone`]; [`Error::Io`], `EACCES` without `CAP_SYS_PTRACE` for a process of another user.
pub fn open_files(roots: &Roots, pid: i32) -> Result<Vec<PathBuf>> {
    let directory = roots.of_process(pid, "fd");
    let fail = |source| Error::from_io(&directory, "list", source);
    let mut files = Vec::new();
    for entry in fs::read_dir(&directory).map_err(fail)? {
        let link = entry.map_err(fail)?.path();
        match fs::read_link(&link) {
            Ok(file) => files.push(file),
            // It was closed meanwhile.
            Err(source) if file::is_absent(&source) => {}
            Err(source) => return Err(Error::from_io(&link, "read", source)),
        }
    }
    Ok(files)
}

/// Copies memory of a process, starting at `address`, into `buffer` (`/proc/PID/mem`). Swaps in pages that are in swap.
///
/// Returns the number of bytes copied: fewer than requested if a page is not mapped or the process is exiting.
///
/// # Errors
/// [`Error::Gone`] if the process has exited; [`Error::Io`], `EACCES` without `CAP_SYS_PTRACE`.
pub fn read_memory(roots: &Roots, pid: i32, address: u64, buffer: &mut [u8]) -> Result<usize> {
    let path = roots.of_process(pid, "mem");
    let file = File::open(&path).map_err(|source| Error::from_io(&path, "open", source))?;
    let mut copied = 0;
    while copied < buffer.len() {
        match file.read_at(&mut buffer[copied..], address.saturating_add(copied as u64)) {
            Ok(0) => break,
            Ok(count) => copied += count,
            Err(source) => match source.raw_os_error() {
                Some(libc::EINTR) => {}
                // Nothing is mapped there, or the address exceeds the range of a file offset.
                Some(libc::EIO | libc::EFAULT | libc::EINVAL) => break,
                _ => return Err(Error::from_io(&path, "read", source)),
            },
        }
    }
    Ok(copied)
}

/// Requests `SIGKILL` for this process when the parent thread that started it exits (`PR_SET_PDEATHSIG`). Returns whether
/// `parent` still exists.
///
/// # Errors
/// [`Error::Io`]; `prctl(2)` documents no error for this operation.
pub fn end_with(parent: u32) -> Result<bool> {
    // SAFETY: this option of prctl takes no pointer.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(Error::from_io(Path::new("/proc/self"), "set PR_SET_PDEATHSIG of", io::Error::last_os_error()));
    }
    // It may have exited before the call.
    Ok(std::os::unix::process::parent_id() == parent)
}

/// Sends a signal to a process; does nothing if the process has exited.
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: kill takes no pointer.
    unsafe { libc::kill(pid, signal) };
}

/// Waits for the exit of a child, and kills it at the end of the time. Returns its status; `None` if it was killed.
///
/// A child that waits in the kernel without heeding signals is left to a thread of its own after a second.
///
/// # Errors
/// It cannot be waited for, or killed.
pub fn wait_within(mut child: Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    const KILLED_WITHIN: Duration = Duration::from_secs(1);
    if let Some(status) = poll(&mut child, timeout)? {
        return Ok(Some(status));
    }
    child.kill()?;
    if poll(&mut child, KILLED_WITHIN)?.is_none() {
        std::thread::Builder::new().name("waits-for-child".to_owned()).spawn(move || child.wait())?;
    }
    Ok(None)
}

/// The status of a child that exits within this time.
fn poll(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    const INTERVAL: Duration = Duration::from_millis(5);
    let until = Instant::now() + timeout;
    loop {
        match child.try_wait()? {
            None if Instant::now() < until => std::thread::sleep(INTERVAL),
            status => return Ok(status),
        }
    }
}

/// CPU time of this process and of the children that it has waited for, user and system.
///
/// # Errors
/// [`Error::Io`]; `getrusage(2)` documents no error for this operation.
pub fn own_cpu_time() -> Result<Duration> {
    Ok(cpu_time(libc::RUSAGE_SELF)? + cpu_time(libc::RUSAGE_CHILDREN)?)
}

/// CPU time of the calling thread, user and system.
///
/// # Errors
/// [`Error::Io`]; `getrusage(2)` documents no error for this operation.
pub fn thread_cpu_time() -> Result<Duration> {
    cpu_time(libc::RUSAGE_THREAD)
}

/// CPU time of all children that have exited and were waited for, user and system.
///
/// # Errors
/// [`Error::Io`]; `getrusage(2)` documents no error for this operation.
pub fn children_cpu_time() -> Result<Duration> {
    cpu_time(libc::RUSAGE_CHILDREN)
}

fn cpu_time(who: libc::c_int) -> Result<Duration> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has the size of a rusage, and the kernel writes it.
    if unsafe { libc::getrusage(who, usage.as_mut_ptr()) } != 0 {
        return Err(Error::from_io(Path::new("/proc/self"), "measure", io::Error::last_os_error()));
    }
    // SAFETY: it was zeroed, which is a valid rusage, and then written by the kernel.
    let usage = unsafe { usage.assume_init() };
    Ok(duration(usage.ru_utime) + duration(usage.ru_stime))
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = Duration::from_secs(time.tv_sec.unsigned_abs());
    seconds.saturating_add(Duration::from_micros(time.tv_usec.unsigned_abs()))
}

/// Resident memory of this process (`/proc/self/statm`).
///
/// # Errors
/// [`Error::Parse`]; [`Error::Io`].
pub fn own_rss(roots: &Roots) -> Result<Bytes> {
    let path = roots.proc.join("self/statm");
    let text = file::read(&path, file::SMALL)?;
    let resident = text::number(text.split_ascii_whitespace().nth(1), 1, "resident pages");
    let pages = units::Pages(resident.map_err(|malformed| malformed.at(&path))?);
    Ok(pages.to_bytes(page_size()))
}

/// The id of the current boot (`/proc/sys/kernel/random/boot_id`). Ids of cgroups and processes are valid only within one boot.
///
/// # Errors
/// [`Error::Gone`] if the file does not exist; [`Error::Io`].
pub fn boot_id(roots: &Roots) -> Result<String> {
    let path = roots.proc.join("sys/kernel/random/boot_id");
    Ok(file::read(&path, file::SMALL)?.trim().to_owned())
}

/// The release of the running kernel, as `uname -r` prints it: for records, never for decisions.
///
/// # Errors
/// [`Error::Gone`] if the file does not exist; [`Error::Io`].
pub fn kernel_release(roots: &Roots) -> Result<String> {
    let path = roots.proc.join("sys/kernel/osrelease");
    Ok(file::read(&path, file::SMALL)?.trim().to_owned())
}

/// The time since boot, from `/proc/uptime`.
///
/// # Errors
/// [`Error::Parse`]; [`Error::Io`].
pub fn uptime(roots: &Roots) -> Result<Duration> {
    let path = roots.proc.join("uptime");
    let text = file::read(&path, file::SMALL)?;
    let field = text.split_ascii_whitespace().next().unwrap_or("");
    field
        .parse::<f64>()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| Malformed::new(1, field, "seconds since boot").at(&path))
}

/// Clock ticks per second, the unit of the times in [`Stat`]; 100 (`USER_HZ`) if `sysconf(3)` does not report it.
#[must_use]
pub fn clock_ticks() -> u64 {
    sysconf(libc::_SC_CLK_TCK).unwrap_or(100)
}

/// The kernel's base page size; 4 KiB if `sysconf(3)` does not report it.
#[must_use]
pub fn page_size() -> PageSize {
    sysconf(libc::_SC_PAGESIZE).and_then(PageSize::new).unwrap_or(PageSize::X86_64)
}

/// Returns a positive value of `sysconf(3)`.
fn sysconf(name: libc::c_int) -> Option<u64> {
    // SAFETY: sysconf takes no pointer and returns -1 for an unknown name.
    let answer = unsafe { libc::sysconf(name) };
    u64::try_from(answer).ok().filter(|answer| *answer > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_waited_for_until_the_time_ends() {
        let start = |words: &[&str]| std::process::Command::new(words[0]).args(&words[1..]).spawn().unwrap();
        let status = wait_within(start(&["false"]), Duration::from_secs(60)).unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(1));
        let endless = start(&["sleep", "1000"]);
        let pid = endless.id();
        assert_eq!(wait_within(endless, Duration::from_millis(50)).unwrap(), None);
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "it was killed, and waited for");
    }

    #[test]
    fn a_process_is_in_its_cgroup_and_those_above() {
        let directory = tempfile::tempdir().unwrap();
        let roots = Roots { proc: directory.path().to_owned(), ..Roots::host() };
        std::fs::create_dir(directory.path().join("7")).unwrap();
        for (text, path, want) in [
            ("0::/a/b\n", "/a/b", true),
            ("0::/a/b\n", "/a", true),
            ("0::/a/b\n", "/", true),
            ("0::/ab\n", "/a", false),
            ("0::/\n", "/a", false),
            ("4:memory:/a\n0::/c\n", "/a", false),
            ("", "/a", false),
        ] {
            std::fs::write(directory.path().join("7/cgroup"), text).unwrap();
            let found = check_cgroup(&roots, 7, path);
            assert_eq!(found.is_ok(), want, "{text:?} {path}");
            assert!(found.is_ok() || found.is_err_and(|error| error.is_gone()));
        }
        assert!(check_cgroup(&roots, 8, "/a").unwrap_err().is_gone());
    }
    use crate::testing::{cut_everywhere, put, tree as fake};

    const CAPTURED: &str = "4711 (a) (b c) S 42 4711 4711 0 -1 4194560 1093 0 5 0 17 23 1 2 20 0 1 0 987654 5726208 1024 \
                            18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

    #[test]
    fn a_name_may_contain_spaces_and_parentheses() {
        let expected = Stat { pid: 4711, comm: "a) (b c".into(), state: 'S', ppid: 42, utime: 17, stime: 23, starttime: 987_654 };
        assert_eq!(parse_stat(CAPTURED).unwrap(), expected);
        cut_everywhere(CAPTURED, parse_stat);
        let me = i32::try_from(std::process::id()).unwrap();
        assert_eq!(stat(&Roots::host(), me).unwrap().pid, me);
    }

    #[test]
    fn a_tree_lists_parents_first_and_is_bounded() {
        let (keep, roots) = fake(&[("proc/self/status", ""), ("proc/12/other", "")]);
        for (pid, ppid) in [(1, 0), (10, 1), (30, 10), (20, 10), (25, 20), (99, 1)] {
            let text = CAPTURED.replace("4711 (", &format!("{pid} (")).replace(" S 42 ", &format!(" S {ppid} "));
            put(keep.path(), &format!("proc/{pid}/stat"), &text);
        }
        let check = |pid, limit, expected: &[i32]| assert_eq!(tree(&roots, pid, limit).unwrap(), expected, "{pid} {limit}");
        check(10, 100, &[10, 20, 30, 25]);
        check(10, 2, &[10, 20]);
        check(99, 100, &[99]);
        check(77, 100, &[]);
    }

    #[test]
    fn memory_of_a_process_is_copied() {
        let me = i32::try_from(std::process::id()).unwrap();
        let text = *b"compressible?";
        let mut copy = [0; 13];
        let address = text.as_ptr().expose_provenance() as u64;
        assert_eq!(read_memory(&Roots::host(), me, address, &mut copy).unwrap(), 13);
        assert_eq!(copy, text);
        assert_eq!(read_memory(&Roots::host(), me, u64::MAX - 3, &mut copy).unwrap(), 0, "no such address");
        assert_eq!(read_memory(&Roots::host(), me, 8, &mut copy).unwrap(), 0, "nothing is mapped there");
        assert!(read_memory(&Roots::host(), i32::MAX, address, &mut copy).unwrap_err().is_gone());
    }

    #[test]
    fn resource_usage_of_this_process_is_read() {
        let roots = Roots::host();
        assert!(own_rss(&roots).unwrap() > Bytes::ZERO);
        assert_eq!(boot_id(&roots).unwrap().len(), 36);
        assert!(uptime(&roots).unwrap() > Duration::ZERO);
        assert!(kernel_release(&roots).unwrap().contains('.'));
        assert!(page_size().bytes() >= 4096 && clock_ticks() > 0);
        let before = own_cpu_time().unwrap();
        while own_cpu_time().unwrap() == before {
            std::hint::black_box(0);
        }
        // CPU time of another thread is not counted.
        let used = std::thread::spawn(|| {
            while thread_cpu_time().unwrap() < Duration::from_millis(20) {
                std::hint::black_box(0);
            }
            thread_cpu_time().unwrap()
        });
        let before = thread_cpu_time().unwrap();
        let used = used.join().unwrap();
        assert!(thread_cpu_time().unwrap() - before < used, "waiting uses no CPU time");
    }

    #[test]
    fn a_malformed_uptime_is_rejected() {
        for text in ["", "never", "-1 0", "inf"] {
            let (_keep, roots) = fake(&[("proc/uptime", text)]);
            assert!(matches!(uptime(&roots), Err(Error::Parse { .. })), "{text:?}");
        }
    }

    #[test]
    fn a_parent_that_has_exited_is_reported() {
        assert!(end_with(std::os::unix::process::parent_id()).unwrap());
        assert!(!end_with(u32::MAX).unwrap());
    }
}
