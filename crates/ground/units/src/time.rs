//! Durations as integers, for records.

use std::ops::{Add, AddAssign, Mul, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Whole milliseconds, rounded down, saturating.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whole microseconds, rounded down, saturating.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Nanoseconds, saturating.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A span of time, in whole milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// `n` seconds.
    #[must_use]
    pub const fn seconds(n: u64) -> Self {
        Self(n.saturating_mul(1_000))
    }

    /// `n` hours.
    #[must_use]
    pub const fn hours(n: u64) -> Self {
        Self(n.saturating_mul(3_600_000))
    }

    /// `n` days.
    #[must_use]
    pub const fn days(n: u64) -> Self {
        Self(n.saturating_mul(86_400_000))
    }

    /// The product with a number.
    #[must_use]
    pub const fn saturating_mul(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }

    /// The difference, or zero if it would be negative.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The difference, or `None` if it would be negative.
    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(difference) => Some(Self(difference)),
            None => None,
        }
    }

    /// As a number, for rates and reports.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 ms, which is 285,000 years")]
    pub const fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// The same as a duration.
    #[must_use]
    pub const fn to_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl From<Duration> for Millis {
    /// Whole milliseconds, rounded down, saturating.
    fn from(duration: Duration) -> Self {
        Self(millis(duration))
    }
}

impl Add for Millis {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Mul<u64> for Millis {
    type Output = Self;
    fn mul(self, n: u64) -> Self {
        self.saturating_mul(n)
    }
}

impl AddAssign for Millis {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// A point in time, in whole milliseconds since 1970 (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// 1970.
    pub const EPOCH: Self = Self(0);

    /// The time since another point; zero if that is later.
    #[must_use]
    pub const fn since(self, other: Self) -> Millis {
        Millis(self.0.saturating_sub(other.0))
    }
}

impl Add<Millis> for UnixMillis {
    type Output = Self;
    fn add(self, span: Millis) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Millis> for UnixMillis {
    type Output = Self;
    fn sub(self, span: Millis) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_spans_saturate() {
        let noon = UnixMillis(1_000);
        assert_eq!((noon + Millis(5)).since(noon), Millis(5));
        assert_eq!(noon.since(noon + Millis(5)), Millis::ZERO);
        assert_eq!(noon - Millis::days(1), UnixMillis::EPOCH);
        assert_eq!(noon + Millis(u64::MAX), UnixMillis(u64::MAX));
        assert_eq!(Millis::hours(24), Millis::days(1));
        assert_eq!(Millis::from(Duration::from_micros(1_999)), Millis(1));
        assert_eq!(Millis::seconds(2).to_duration(), Duration::from_secs(2));
    }
}
