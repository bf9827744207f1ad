//! Errors of reading traces.

use std::ops::Range;
use std::path::PathBuf;

use store::FileError;
use units::UnixMillis;

use crate::series::RowError;

/// Error of reading traces.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no trace file.
    #[error("no trace file below {0}; traces end in .parquet")]
    None(PathBuf),
    /// A compacted file beside trace files.
    #[error("{compacted} is compacted, and {trace} is not: a job could be in both; \
             compact all with `thermocline trace compact {} {} --to FILE`", compacted.display(), trace.display())]
    Several {
        /// The compacted file.
        compacted: PathBuf,
        /// A trace file.
        trace: PathBuf,
    },
    /// More compacted files than are read together.
    #[error("there are {0} compacted files, of at most {max}; make one of several with `thermocline trace compact FILES --to FILE`",
        max = trace::compact::FILES_MAX)]
    TooMany(usize),
    /// The row groups do not exist.
    #[error("row groups {}..{} do not exist: {}", groups.start, groups.end,
        if *of == 0 { "there are several files; name one of them".to_owned() } else { format!("the file has 0..{of}") })]
    Groups {
        /// The requested row groups.
        groups: Range<u32>,
        /// Number of row groups of the file; 0 for several files.
        of: u32,
    },
    /// A file is not a trace, is damaged, or has another basis.
    #[error(transparent)]
    Trace(#[from] trace::Error),
    /// An entry is invalid.
    #[error("{job} on {machine}, entry at {} ms: {source}", .start_unix_ms.0)]
    Row {
        /// Job of the entry.
        job: String,
        /// Machine of the job.
        machine: String,
        /// Start of the entry.
        start_unix_ms: UnixMillis,
        /// The reason.
        source: RowError,
    },
}
