//! What can go wrong with a trace, and where.

use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;
use store::FileError;

/// Why a trace cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on a file failed.
    #[error(transparent)]
    File(#[from] FileError),
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
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn parquet(path: &Path) -> impl Fn(ParquetError) -> Self + '_ {
        |source| Self::Parquet { path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }
}
