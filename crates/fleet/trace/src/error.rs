//! Errors of reading and writing traces.

use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;
use store::FileError;
use units::UnixMillis;

/// Error of reading or writing a trace.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on a file failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is not a Parquet file, or is damaged.
    #[error("{path}: {source}")]
    Parquet {
        /// Path of the file.
        path: PathBuf,
        /// Error of the Parquet library.
        source: ParquetError,
    },
    /// The file is not a trace, or is damaged.
    #[error("{path}: {what}")]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Description of the damage.
        what: String,
    },
    /// The file was written by a newer program.
    #[error("{path} has {kind} version {found}; this program reads up to {known}; use the program that wrote it, or a newer one")]
    Newer {
        /// Path of the file.
        path: PathBuf,
        /// Kind of file that the version belongs to.
        kind: &'static str,
        /// Version of the file.
        found: u32,
        /// Newest version that this program reads.
        known: u32,
    },
    /// The file has a layout whose rows cannot be joined with those of the present one.
    #[error("{path} is compacted in version {found}; only files of version {needed} can be joined or extended; compact its traces again")]
    Older {
        /// Path of the file.
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// The version that is needed.
        needed: u32,
    },
    /// Two compacted files have different entries of one day of a job.
    #[error("{path} and {other} have different entries of {job} on {machine} on {}: a day is compacted once, from all of its traces; \
             compact the traces of that day again, and leave out one of the files", crate::calendar::date(*day_unix_ms))]
    Overlap {
        /// Path of a file.
        path: PathBuf,
        /// Path of the other file.
        other: PathBuf,
        /// The job.
        job: String,
        /// Its machine.
        machine: String,
        /// Start of the day.
        day_unix_ms: UnixMillis,
    },
    /// Entries were not written in sorted order.
    #[error("{path}: the entry of {job} at {} ms is not sorted: it belongs before the last entry written", .start_unix_ms.0)]
    Order {
        /// Path of the file.
        path: PathBuf,
        /// Job of the entry.
        job: String,
        /// Start of the entry.
        start_unix_ms: UnixMillis,
    },
    /// Two files have histograms of a different basis.
    #[error("{path} has {found}, and the files before it have {expected}: their histograms cannot be added; read them separately")]
    Basis {
        /// Path of the file.
        path: PathBuf,
        /// Its basis.
        found: String,
        /// Basis of the other files.
        expected: String,
    },
    /// The system has no more threads.
    #[error("cannot start threads: {0}; ask for fewer with --threads")]
    Threads(#[from] rayon::ThreadPoolBuildError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// The result of an operation on a trace.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn parquet(path: &Path) -> impl Fn(ParquetError) -> Self + '_ {
        |source| Self::Parquet { path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }
}
