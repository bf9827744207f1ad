//! Errors of reading a model.

use std::path::{Path, PathBuf};

/// Errors of reading a model. Each names the file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the model {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not a model, is damaged, or has a form that this program does not support.
    #[error("{path}: {problem}; create it again with `thermocline-learn train`")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem, and its location in the file.
        problem: String,
    },
    /// The file was written by a newer program.
    #[error("{path}: metadata of version {found}; this program reads version {known}; use a newer program")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Version of the file.
        found: u64,
        /// The supported version.
        known: u64,
    },
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), problem: problem.into() }
    }

    /// Returns whether the file does not exist, as opposed to one that cannot be used.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }
}
