//! For how long something is left alone: longer each time in a row.

use serde::{Deserialize, Serialize};
use units::Millis;

/// Rests, each of which is `unit << times`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rests {
    /// How much longer the present one lasts.
    left: Millis,
    /// How often in a row there was one.
    pub(super) times: u32,
    /// For how long there has been none since.
    calm: Millis,
}

impl Rests {
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// A rest begins.
    pub(super) fn begin(&mut self, unit: Millis, times_max: u32) {
        self.times = self.times.saturating_add(1).min(times_max);
        (self.left, self.calm) = (self.length(unit), Millis::ZERO);
    }

    /// Time has passed. Returns whether it was one of a rest. After as long without one, the next is shorter.
    pub(super) fn pass(&mut self, elapsed: Millis, unit: Millis) -> bool {
        if self.left > Millis::ZERO {
            self.left = self.left.saturating_sub(elapsed);
            return true;
        }
        self.calm += elapsed;
        if self.times > 0 && self.calm >= self.length(unit) {
            (self.times, self.calm) = (self.times - 1, Millis::ZERO);
        }
        false
    }

    fn length(&self, unit: Millis) -> Millis {
        Millis(unit.0.saturating_mul(1 << self.times.min(16)))
    }
}
