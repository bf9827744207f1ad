//! The kernel's log, `/dev/kmsg` (`Documentation/ABI/testing/dev-kmsg`): the only report of failed requests to swap devices
//! (`mm/page_io.c`).
//!
//! Each read returns one record:
//! ```text
//! 1,1804,98765432,-;Write-error on swap-device (253:0:4352)
//! ```
//! Its fields are priority and facility, sequence number, microseconds since boot and flags; the text holds the device number
//! and the sector. Lines that begin with a space continue the record above them. The kernel rate-limits these messages, so that
//! their number is a lower bound.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::{Error, Result, Roots, file};

/// At least the size of any record (`PRINTK_MESSAGE_MAX`); a read with a smaller buffer fails.
const RECORD_BYTES: usize = 8192;

/// Records read per call; the rest is read by the next call.
const RECORDS_MAX: usize = 4096;

/// Priorities of kernel records are below this; records written by programs have another facility.
const USER: u32 = 8;

/// A failed request to a swap device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapError {
    /// The request.
    pub request: Request,
    /// The device number: major and minor.
    pub device: (u32, u32),
}

/// A request to a swap device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Request {
    /// A read of a page. If it fails, the page is lost, and the process that touched it receives SIGBUS.
    Read,
    /// A write of a page. If it fails, the page stays in memory.
    Write,
}

/// Parses the failed request of a record, if it reports one.
#[must_use]
pub fn parse(record: &str) -> Option<SwapError> {
    let (prefix, text) = record.split_once(';')?;
    let priority: u32 = prefix.split(',').next()?.parse().ok()?;
    if priority >= USER {
        return None;
    }
    let (what, numbers) = text.lines().next()?.split_once(" on swap-device (")?;
    let request = match what {
        "Read-error" => Request::Read,
        "Write-error" => Request::Write,
        _ => return None,
    };
    let mut numbers = numbers.strip_suffix(')')?.split(':').map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return None };
    Some(SwapError { request, device: (major, minor) })
}

/// The log from the time of opening.
#[derive(Debug)]
pub struct Kmsg {
    log: File,
    path: PathBuf,
}

impl Kmsg {
    /// Opens the log at its end.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the file does not exist, as in a container; [`Error::Io`] without permission.
    pub fn open(roots: &Roots) -> Result<Self> {
        let path = roots.dev.join("kmsg");
        let opened = match passed().filter(|_| path == Path::new("/dev/kmsg")) {
            Some(log) => log.and_then(nonblocking),
            None => OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path),
        };
        let mut log = match opened {
            Err(source) if file::is_absent(&source) => {
                let what = format!("{} does not exist, so that errors of swap devices are not visible", path.display());
                return Err(Error::unsupported(what, "give the agent the host's /dev/kmsg"));
            }
            opened => opened.map_err(|source| Error::from_io(&path, "open", source))?,
        };
        log.seek(SeekFrom::End(0)).map_err(|source| Error::from_io(&path, "seek in", source))?;
        Ok(Self { log, path })
    }

    /// The failed requests to swap devices that the kernel has logged since the last call.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn swap_errors(&mut self) -> Result<Vec<SwapError>> {
        let mut errors = Vec::new();
        let mut record = vec![0; RECORD_BYTES];
        for _ in 0..RECORDS_MAX {
            match self.log.read(&mut record) {
                Ok(0) => break,
                Ok(length) => errors.extend(parse(&String::from_utf8_lossy(&record[..length]))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Records were overwritten before they were read: the next read returns the oldest one left.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::from_io(&self.path, "read", source)),
            }
        }
        Ok(errors)
    }
}

/// The log that the service manager has opened for this process, which then needs no permission (`OpenFile=` in
/// `systemd.service(5)`, `sd_listen_fds(3)`).
#[expect(unsafe_code, reason = "a descriptor by its number")]
fn passed() -> Option<io::Result<File>> {
    let variable = |name: &str| std::env::var(name).ok();
    if variable("LISTEN_PID")? != std::process::id().to_string() {
        return None;
    }
    let number = position(&variable("LISTEN_FDS")?, &variable("LISTEN_FDNAMES")?)?;
    // SAFETY: the service manager's descriptors are open in this process, and nothing closes them: this one is only copied.
    let log = unsafe { BorrowedFd::borrow_raw(number) };
    Some(log.try_clone_to_owned().map(File::from))
}

/// The number of the descriptor with the name `kmsg`.
fn position(count: &str, names: &str) -> Option<i32> {
    const FIRST: i32 = 3;
    let index = i32::try_from(names.split(':').position(|name| name == "kmsg")?).ok()?;
    (index < count.parse().ok()?).then_some(FIRST + index)
}

#[expect(unsafe_code, reason = "fcntl")]
fn nonblocking(log: File) -> io::Result<File> {
    // SAFETY: the descriptor is open, and the operation takes an integer.
    match unsafe { libc::fcntl(log.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(log),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::testing::tree;

    #[test]
    fn the_descriptor_is_found_by_its_name() {
        let check = |count: &str, names: &str, expected: Option<i32>| assert_eq!(position(count, names), expected, "{count} {names}");
        check("1", "kmsg", Some(3));
        check("3", "metrics:store:kmsg", Some(5));
        check("1", "metrics:kmsg", None);
        check("1", "unknown", None);
        check("", "kmsg", None);
    }

    #[test]
    fn only_failed_requests_are_recognized() {
        let check = |record: &str, want: Option<(Request, (u32, u32))>| {
            let want = want.map(|(request, device)| SwapError { request, device });
            assert_eq!(parse(record), want, "{record:?}");
        };
        let wrote = "1,1804,98765432,-;Write-error on swap-device (253:0:4352)\n";
        check(wrote, Some((Request::Write, (253, 0))));
        check("1,7,8,-,caller=T1;Read-error on swap-device (254:16:8)\n", Some((Request::Read, (254, 16))));
        check("1,1,1,-;Read-error on swap-device (8:1:8)\n SUBSYSTEM=block\n", Some((Request::Read, (8, 1))));
        // Written by a program.
        check("9,1,1,-;Write-error on swap-device (253:0:4352)\n", None);
        check("1,1,1,-;Write error -5 on dio swapfile (4096)\n", None);
        check("6,1,1,-;Adding 1048572k swap on /dev/vdb.\n", None);
        check("1,1,1,-;Read-error on swap-device (8)\n", None);
        check("1,1,1,-;Read-error on swap-device (8:99999999999:1)\n", None);
        for at in 0..wrote.len() - 2 {
            check(&wrote[..at], None);
        }
    }

    #[test]
    fn records_from_before_opening_are_ignored() {
        let (_keep, roots) = tree(&[("dev/kmsg", "1,1,1,-;Read-error on swap-device (8:1:8)\n")]);
        let mut log = Kmsg::open(&roots).unwrap();
        assert_eq!(log.swap_errors().unwrap(), []);
        let mut writer = OpenOptions::new().append(true).open(roots.dev.join("kmsg")).unwrap();
        writer.write_all(b"1,2,2,-;Write-error on swap-device (8:1:16)\n").unwrap();
        assert_eq!(log.swap_errors().unwrap(), [SwapError { request: Request::Write, device: (8, 1) }]);
        assert_eq!(log.swap_errors().unwrap(), []);
        let (_keep, roots) = tree(&[]);
        assert!(Kmsg::open(&roots).unwrap_err().is_unsupported());
    }
}
