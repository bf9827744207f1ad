//! What can go wrong with a trace, and where.

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
    /// The file is a Parquet file and no trace, or a damaged one.
    #[error("{path}: {what}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file was written by a newer program.
    #[error("{path} has {kind} version {found}; this program reads up to {known}; use the program that wrote it, or a newer one")]
    Newer {
        /// Which file.
        path: PathBuf,
        /// What the version is of.
        kind: &'static str,
        /// Its version.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// An entry comes before one that was written already.
    #[error("{path}: the entry of {job} at {start_unix_ms} ms comes after one that it belongs before; entries are written sorted")]
    Order {
        /// Which file.
        path: PathBuf,
        /// Whose entry.
        job: String,
        /// When it begins.
        start_unix_ms: u64,
    },
    /// Two files count different things.
    #[error("{path} counts {found}, and the files before it {expected}: ages of different scans cannot be mixed; take them apart")]
    Basis {
        /// Which file.
        path: PathBuf,
        /// What it counts.
        found: String,
        /// What the others count.
        expected: String,
    },
    /// The store cannot be used.
    #[error("{url}: {what}")]
    Store {
        /// Which one.
        url: String,
        /// What is wrong.
        what: String,
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
