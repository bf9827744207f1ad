//! The time of one step, passed to it as an argument.

use std::time::Duration;

use daemon::Clock;
use units::{Millis, UnixMillis};

/// Both clocks, read once at the start of a step. Everything that the step records carries this time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Time since boot, by the monotonic clock.
    pub since_boot: Duration,
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub unix_ms: UnixMillis,
}

impl Now {
    /// Reads both clocks.
    #[must_use]
    pub fn of(clock: &Clock) -> Self {
        Self { since_boot: clock.now(), unix_ms: clock.unix_ms() }
    }

    /// Time since boot.
    #[must_use]
    pub fn boot_ms(&self) -> Millis {
        Millis::from(self.since_boot)
    }
}
