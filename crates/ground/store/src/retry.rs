//! How long to wait for a store, and how long between attempts.

use std::time::Duration;

/// Time limit for reading one small object, including the retries of the HTTP client.
pub const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Exponential backoff: the waiting time doubles with each consecutive failure, up to a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Waiting time after the first failure.
    pub first: Duration,
    /// Longest waiting time.
    pub max: Duration,
}

impl Backoff {
    /// Returns the waiting time after this many consecutive failures; zero without a failure.
    #[must_use]
    pub fn wait(self, failures: u32) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
        self.first.saturating_mul(1u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_time_doubles_up_to_the_maximum() {
        let backoff = Backoff { first: Duration::from_secs(5), max: Duration::from_secs(300) };
        for (failures, seconds) in [(0, 0), (1, 5), (2, 10), (6, 160), (7, 300), (40, 300), (u32::MAX, 300)] {
            assert_eq!(backoff.wait(failures), Duration::from_secs(seconds), "{failures} failures");
        }
    }
}
