//! Errors of this crate.

use std::io;
use std::path::{Path, PathBuf};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a daemon cannot set up what it needs.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on a file failed.
    #[error("cannot {operation} {path}: {source}{}", hint(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation, as a verb.
        operation: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// Another process holds the pid lock.
    #[error("{path} is locked by {holder}; stop that process first, or query it instead of starting a second one")]
    Locked {
        /// The pid file.
        path: PathBuf,
        /// The holder: `process PID`, or `another process` if the file names none.
        holder: String,
    },
    /// Another user could take over a file that only this daemon may use.
    #[error("{path} {problem}; {remedy}")]
    Insecure {
        /// The file or directory.
        path: PathBuf,
        /// What is insecure about it.
        problem: String,
        /// What the operator should do.
        remedy: String,
    },
}

impl Error {
    /// Returns a closure that wraps the I/O error of one operation on one file.
    pub(crate) fn io(path: &Path, operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, operation, source }
    }
}

/// The remedy of a denied permission; empty for other errors.
fn hint(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied { "; run as root, or give this user access" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_denied_permission_has_a_remedy() {
        let error = |kind: io::ErrorKind| Error::io(Path::new("/run/x"), "create")(kind.into()).to_string();
        assert_eq!(
            error(io::ErrorKind::PermissionDenied),
            "cannot create /run/x: permission denied; run as root, or give this user access"
        );
        assert_eq!(error(io::ErrorKind::NotFound), "cannot create /run/x: entity not found");
    }
}
