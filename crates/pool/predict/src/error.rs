//! Why a model cannot be used.

use std::path::{Path, PathBuf};

/// Why a model cannot be used. Each names the file and the place in it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the model {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no model, a damaged one, or one that this program does not serve.
    #[error("{path}: {what}; write it anew with `python -m thermocline.learn train`")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it, and where.
        what: String,
    },
    /// The file was written by a newer program.
    #[error("{path}: metadata of version {found}; this program reads version {known}; use a newer one")]
    Newer {
        /// Which file.
        path: PathBuf,
        /// The version that it has.
        found: u64,
        /// The version that this program reads.
        known: u64,
    },
}

/// What reading a model gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }

    /// Whether there is no such file, as opposed to one that cannot be used.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }
}
