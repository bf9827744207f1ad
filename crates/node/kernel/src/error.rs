//! Errors of kernel interfaces.

use std::io;
use std::path::{Path, PathBuf};

/// The longest part of a malformed value that an error shows, in characters.
const VALUE_SHOWN_MAX: usize = 80;

/// A failure of one kernel interface.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed, and no other variant applies.
    #[error("cannot {op} {path}: {source}{}", hint(.source))]
    Io {
        /// The file, or the path that names the object of the call, such as `/proc/42`.
        path: PathBuf,
        /// The operation, as a verb: `read`, `write`, `ioctl PAGEMAP_SCAN on`.
        op: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// A kernel file does not have its documented format.
    #[error(
        "{path}, line {line}: expected {expected}, found {value:?}; the format of this kernel may be newer: \
         please report it with the content of the file"
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 0 for the file as a whole.
        line: usize,
        /// The value found, cut to a readable length.
        value: String,
        /// The expected format.
        expected: &'static str,
    },
    /// The cgroup, process, kdamond or block device has vanished: a normal outcome on a running machine.
    #[error("{path} is gone: its cgroup, process or device no longer exists")]
    Gone {
        /// The path that vanished.
        path: PathBuf,
    },
    /// The machine lacks the interface, or it is disabled.
    #[error("{what}; {remedy}")]
    Unsupported {
        /// What is missing.
        what: String,
        /// How to enable it.
        remedy: String,
    },
    /// Another user holds the resource. It is never taken over.
    #[error("{what}; {remedy}")]
    Busy {
        /// What is held, and by which process or module.
        what: String,
        /// How to free it.
        remedy: String,
    },
}

/// The result of a kernel interface.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the cgroup, process or device has vanished.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }

    /// Whether this machine lacks the interface.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported { .. })
    }

    /// The error number of the failed system call, if the error has one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Wraps the error of a system call; `ENOENT`, `ENODEV` and `ESRCH` become [`Error::Gone`].
    #[must_use]
    pub fn from_io(path: &Path, op: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ESRCH) => Self::Gone { path: path.to_owned() },
            _ => Self::Io { path: path.to_owned(), op, source },
        }
    }

    pub(crate) fn unsupported(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into(), remedy: remedy.into() }
    }

    pub(crate) fn busy(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Busy { what: what.into(), remedy: remedy.into() }
    }
}

/// The remedy of a denied permission; empty for other errors.
fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "; run as root, or with CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_SYS_NICE",
        _ => "",
    }
}

/// Text or bytes that a parser rejects. [`Malformed::at`] adds the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The line, from 1; 0 for the text as a whole.
    pub line: usize,
    /// The value found, cut to a readable length.
    pub value: String,
    /// The expected format.
    pub expected: &'static str,
}

impl Malformed {
    pub(crate) fn new(line: usize, value: &str, expected: &'static str) -> Self {
        Self { line, value: value.chars().take(VALUE_SHOWN_MAX).collect(), expected }
    }

    /// Converts to an error of the file at `path`.
    #[must_use]
    pub fn at(self, path: &Path) -> Error {
        Error::Parse { path: path.to_owned(), line: self.line, value: self.value, expected: self.expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_operation_path_value_and_remedy() {
        let path = Path::new("/sys/x");
        let io = |errno| Error::from_io(path, "write", io::Error::from_raw_os_error(errno));
        let check = |error: Error, gone: bool, parts: &[&str]| {
            let shown = error.to_string();
            assert!(parts.iter().all(|part| shown.contains(part)), "{shown}");
            assert_eq!(error.is_gone(), gone, "{shown}");
        };
        check(io(libc::EPERM), false, &["cannot write /sys/x", "not permitted", "run as root"]);
        check(io(libc::EBUSY), false, &["cannot write /sys/x", "busy"]);
        for errno in [libc::ENOENT, libc::ENODEV, libc::ESRCH] {
            check(io(errno), true, &["/sys/x is gone"]);
        }
        let long = "é".repeat(1000);
        let malformed = Malformed::new(3, &long, "a whole number").at(path);
        check(malformed, false, &["/sys/x, line 3", "expected a whole number", "report it"]);
        assert_eq!(Malformed::new(3, &long, "").value.chars().count(), VALUE_SHOWN_MAX);
        check(Error::unsupported("no zswap", "boot another kernel"), false, &["no zswap; boot another kernel"]);
        assert_eq!(io(libc::EBUSY).errno(), Some(libc::EBUSY));
    }
}
