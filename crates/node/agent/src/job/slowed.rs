//! What the slowdown controller knows of one job, and what has been moved for it.

use std::collections::VecDeque;

use policy::slowdown;
use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::journal::SlowRecord;

/// Periods kept in memory for `explain`.
const RECENT_MAX: usize = 64;

/// A job whose seldom accessed memory may live in a slow node.
#[derive(Clone, Debug, Default)]
pub struct Slowed {
    /// What of it is in the slow node, by the last look at every block.
    pub slow: Bytes,
    /// The last periods, oldest first.
    pub recent: VecDeque<SlowPeriod>,
    /// Moved since the agent started.
    pub totals: Moved,
    moved: Moved,
}

/// What became of the blocks that were to be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Bytes that went to the slow node.
    pub placed: Bytes,
    /// Bytes that came home from it.
    pub home: Bytes,
    /// Bytes that the kernel did not move because the node that they were to go to is full.
    pub no_room: Bytes,
    /// Bytes that it did not move because they are locked, shared with others, or in use by a device.
    pub pinned: Bytes,
    /// Bytes that were gone, or their process was.
    pub gone: Bytes,
}

impl Moved {
    /// The sum of both.
    pub fn add(&mut self, other: &Self) {
        self.placed += other.placed;
        self.home += other.home;
        self.no_room += other.no_room;
        self.pinned += other.pinned;
        self.gone += other.gone;
    }
}

/// What people are shown of a period that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowPeriod {
    /// Milliseconds since the epoch.
    pub unix_ms: u64,
    /// What was decided.
    pub step: slowdown::Step,
    /// The job's memory that can be moved at all.
    pub memory: Bytes,
    /// Of that, what was in the slow node before.
    pub slow: Bytes,
    /// What was moved since the decision before.
    pub moved: Moved,
}

impl From<&SlowRecord> for SlowPeriod {
    fn from(record: &SlowRecord) -> Self {
        Self { unix_ms: record.unix_ms, step: record.step, memory: record.memory, slow: record.slow, moved: record.moved }
    }
}

impl Slowed {
    /// Takes note of blocks that were moved, or not.
    pub fn note(&mut self, moved: &Moved) {
        self.slow = self.slow + moved.placed - moved.home;
        self.totals.add(moved);
        self.moved.add(moved);
    }

    /// What was moved since the last call.
    pub fn take_moved(&mut self) -> Moved {
        std::mem::take(&mut self.moved)
    }

    /// Remembers a period.
    pub fn remember(&mut self, record: &SlowRecord) {
        self.slow = record.slow;
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(SlowPeriod::from(record));
    }
}
