//! The file in the pool's directory that says which ledger the slices' files belong to. Its lock makes a manager the only one of this
//! directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::chain::Mark;

/// Name of the file.
pub(crate) const NAME: &str = "ledger.mark";

/// An error of the mark.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another manager has the directory.
    #[error("another pool manager serves {directory}: stop it, or give this one a directory of its own")]
    InUse {
        /// The pool's directory.
        directory: PathBuf,
    },
    /// It cannot be read or written.
    #[error("cannot use {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It has other contents.
    #[error("{path} is damaged: {why}; run `thermocline pool manager recover`")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        why: String,
    },
}

/// The open and locked file.
#[derive(Debug)]
pub(crate) struct MarkFile {
    path: PathBuf,
    file: File,
}

impl MarkFile {
    /// Opens and locks it, and creates it if necessary.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn open(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(NAME);
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = opened.map_err(|source| Error::File { path: path.clone(), source })?;
        match file.try_lock() {
            Ok(()) => Ok(Self { path, file }),
            Err(TryLockError::WouldBlock) => Err(Error::InUse { directory: directory.to_owned() }),
            Err(TryLockError::Error(source)) => Err(Error::File { path, source }),
        }
    }

    /// The mark; `None` if none was written yet.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn read(&self) -> Result<Option<Mark>, Error> {
        let mut bytes = vec![0; 256];
        let length = self.file.read_at(&mut bytes, 0).map_err(|source| self.failed(source))?;
        bytes.truncate(length);
        if bytes.is_empty() {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&bytes);
        text.parse().map(Some).map_err(|why| Error::Damaged { path: self.path.clone(), why })
    }

    /// Writes the mark. It has a fixed length, so that a process that is killed leaves the old or the new one.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn write(&self, mark: &Mark) -> Result<(), Error> {
        self.file.write_all_at(mark.to_string().as_bytes(), 0).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::File { path: self.path.clone(), source }
    }
}
