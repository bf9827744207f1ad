//! What can go wrong with a trace of VMs, and where.

use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;

/// Why a trace cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be used.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was to be done with it.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no Parquet file, or a damaged one.
    #[error("{path}: {source}")]
    Parquet {
        /// Which file.
        path: PathBuf,
        /// What the library said.
        source: ParquetError,
    },
    /// The file is not what it is read as, or a damaged one.
    #[error("{path}: {what}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file was written by a newer program.
    #[error(
        "{path} has VM trace version {found}; this program reads up to {known}; use the program that wrote it, or import its origin again"
    )]
    Newer {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The newest that is known.
        known: u64,
    },
    /// A VM comes before one that was written already.
    #[error("{path}: VM {id}, which arrives at {arrival} s, comes after one that it belongs before; VMs are written by arrival")]
    Order {
        /// Which file.
        path: PathBuf,
        /// Which VM.
        id: u64,
        /// When it arrives.
        arrival: i64,
    },
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn io<'a>(path: &'a Path, what: &'static str) -> impl FnOnce(std::io::Error) -> Self + 'a {
        move |source| Self::Io { path: path.to_owned(), what, source }
    }

    pub(crate) fn parquet(path: &Path) -> impl Fn(ParquetError) -> Self + '_ {
        |source| Self::Parquet { path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }
}
