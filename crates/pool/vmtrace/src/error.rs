//! Errors of reading and writing traces.

use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;

/// Errors of reading and writing traces. Each names the file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on a file failed.
    #[error("cannot {operation} {path}: {source}")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The operation, as a verb phrase such as "open" or "create a file in".
        operation: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not a Parquet file, or is damaged.
    #[error("{path}: {source}")]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The library's error.
        source: ParquetError,
    },
    /// The file does not have the expected content.
    #[error("{path}: {problem}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem, and its location in the file.
        problem: String,
    },
    /// The file was written by a newer program.
    #[error(
        "{path} has VM trace version {found}; this program reads up to {known}; use the program that wrote it, or import its source again"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Version of the file.
        found: u64,
        /// The newest supported version.
        known: u64,
    },
    /// A VM is out of order.
    #[error("{path}: VM {id}, which arrives at {arrival} s, is out of order; VMs must be written in order of arrival")]
    Order {
        /// The file.
        path: PathBuf,
        /// Id of the VM.
        id: u64,
        /// Its arrival, in seconds.
        arrival: i64,
    },
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn file<'a>(path: &'a Path, operation: &'static str) -> impl FnOnce(std::io::Error) -> Self + 'a {
        move |source| Self::File { path: path.to_owned(), operation, source }
    }

    pub(crate) fn parquet(path: &Path) -> impl Fn(ParquetError) -> Self + '_ {
        |source| Self::Parquet { path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), problem: problem.into() }
    }
}
