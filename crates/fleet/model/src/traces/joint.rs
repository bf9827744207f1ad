//! What a piece of several compacted files consists of.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use trace::compact::Jobs;

/// Jobs of several files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Joint {
    pub(super) files: Arc<[PathBuf]>,
    /// The row groups of each file that may have the jobs.
    pub(super) groups: Vec<Range<usize>>,
    pub(super) jobs: Jobs,
}
