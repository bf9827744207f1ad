//! Ages of pages.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Whole scan periods since the last observed access to a page, saturating at 255: 8 bits per page, which is 8.5 hours at the
/// default scan period of 120 s (SDFM section 5.1).
///
/// A page of age `a` had been idle for at least `a` and less than `a + 1` scan periods when it was scanned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Age(pub u8);

impl Age {
    /// The highest age; it stands for every idle time from 255 scan periods on.
    pub const MAX: Self = Self(u8::MAX);

    /// The age after one more scan period without an access.
    #[must_use]
    pub const fn older(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The shortest idle time of this age.
    #[must_use]
    pub const fn idle_time(self, scan_period: Duration) -> Duration {
        scan_period.saturating_mul(self.0 as u32)
    }

    /// The age of a page that has been idle for `idle`: whole scan periods, rounded down, saturating.
    #[must_use]
    pub fn from_idle_time(idle: Duration, scan_period: Duration) -> Self {
        let scans = idle.as_nanos() / scan_period.as_nanos().max(1);
        Self(u8::try_from(scans).unwrap_or(u8::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_saturate() {
        assert_eq!(Age(254).older(), Age(255));
        assert_eq!(Age(255).older(), Age(255));
        let period = Duration::from_secs(120);
        assert_eq!(Age::from_idle_time(Duration::from_secs(119), period), Age(0));
        assert_eq!(Age::from_idle_time(Duration::from_secs(120), period), Age(1));
        assert_eq!(Age::from_idle_time(Duration::from_secs(10_000_000), period), Age::MAX);
        assert_eq!(Age::from_idle_time(Duration::from_secs(1), Duration::ZERO), Age::MAX);
        assert_eq!(Age::MAX.idle_time(period), Duration::from_secs(30_600), "8.5 hours");
    }
}
