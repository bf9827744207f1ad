//! Errors of stores and files.

use std::path::{Path, PathBuf};

/// The result of an operation on a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of one operation on one file or directory.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {path}: {source}")]
pub struct FileError {
    /// The file or directory.
    pub path: PathBuf,
    /// The failed operation as a verb phrase that precedes the path, such as "read" or "create a file in".
    pub operation: &'static str,
    /// The error of the operating system.
    pub source: std::io::Error,
}

impl FileError {
    /// Returns the function that adds the path and the operation to an error of the operating system, for `map_err`.
    pub fn at(path: &Path, operation: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self { path: path.to_owned(), operation, source }
    }
}

/// Error of a store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A local file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A store, or an object in it, cannot be used.
    #[error("cannot {operation} {url}: {cause}")]
    Object {
        /// URL of the store, or of the object in it.
        url: String,
        /// The failed operation as a verb.
        operation: &'static str,
        /// The reason.
        cause: String,
    },
}

impl Error {
    /// Returns whether a local file does not exist.
    #[must_use]
    pub fn is_missing_file(&self) -> bool {
        matches!(self, Self::File(error) if error.source.kind() == std::io::ErrorKind::NotFound)
    }
}
