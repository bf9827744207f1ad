//! The time after a request in which its pages may return, before the next one.

use serde::{Deserialize, Serialize};
use units::Millis;

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

    /// Much of what went out returned.
    pub(super) fn fail(&mut self) {
        (self.doublings, self.calm) = (self.doublings.saturating_add(1).min(DOUBLINGS_MAX), false);
    }

    /// A request is made, and a pause begins.
    pub(super) fn begin(&mut self, unit: Millis) {
        self.doublings = self.doublings.saturating_sub(u32::from(self.calm)).min(DOUBLINGS_MAX);
        self.calm = self.doublings > 0;
        self.left = if self.calm { Millis(unit.0.saturating_mul(1 << self.doublings)) } else { Millis::ZERO };
    }
}
