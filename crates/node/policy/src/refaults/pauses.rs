//! The time after a request in which its pages may return, before the next one.

use serde::{Deserialize, Serialize};
use units::Millis;

/// A pause after a failure is a unit of so many doublings at least.
const DOUBLINGS_MIN: u32 = 3;
/// The longest pause is a unit of so many doublings.
const DOUBLINGS_MAX: u32 = 7;

/// Pauses, each of which is `unit << doublings`; there are none before anything failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pauses {
    /// How much longer the present one lasts.
    left: Millis,
    /// Failures, less the pauses without one.
    pub(super) doublings: u32,
    /// Whether there was a request, and no failure since.
    calm: bool,
}

impl Pauses {
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Time has passed.
    pub(super) fn pass(&mut self, elapsed: Millis) {
        self.left = self.left.saturating_sub(elapsed);
    }

    pub(super) fn is_pause(&self) -> bool {
        self.left > Millis::ZERO
    }

    /// How many times what returns beyond a stall target is owed.
    pub(super) fn times(&self) -> u64 {
        1 << self.doublings.min(DOUBLINGS_MAX)
    }

    /// Much of what went out returned. Without a request since the last failure, it is the same one.
    pub(super) fn fail(&mut self) {
        if std::mem::take(&mut self.calm) {
            self.doublings = self.doublings.saturating_add(1).clamp(DOUBLINGS_MIN, DOUBLINGS_MAX);
        }
    }

    /// A request is made, and a pause begins.
    pub(super) fn begin(&mut self, unit: Millis) {
        self.doublings = self.doublings.saturating_sub(u32::from(self.calm)).min(DOUBLINGS_MAX);
        self.calm = true;
        self.left = if self.doublings > 0 { Millis(unit.0.saturating_mul(1 << self.doublings)) } else { Millis::ZERO };
    }
}
