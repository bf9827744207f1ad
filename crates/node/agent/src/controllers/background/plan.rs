//! A compaction or a prefetch in progress.

use super::drain::Drain;
use super::record::Done;
use crate::actuators::compact::{Cursor, Task};

/// A compaction or a prefetch in progress.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which of the two.
    pub task: Task,
    /// How far it has come.
    pub cursor: Cursor,
    /// Paused until a control period allows it to continue.
    pub paused: bool,
    /// Freeing what a swap device has taken.
    pub drain: Drain,
    /// What it has done.
    pub done: Done,
}

impl Plan {
    /// A plan for the memory of these processes.
    pub(super) fn new(task: Task, pids: &[i32]) -> Self {
        Self { task, cursor: Cursor::new(pids), paused: false, drain: Drain::default(), done: Done::default() }
    }
}
