//! Ratios.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A ratio in millionths: `2000` is 0.2 %. An integer, so that a replay on another machine rounds in the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RatioPpm(pub u32);

impl RatioPpm {
    /// One, or 100 %.
    pub const ONE: Self = Self(1_000_000);

    /// `part / whole` in millionths, rounded down; `None` if `whole` is zero; saturates at 4294.
    #[must_use]
    pub fn of(part: u64, whole: u64) -> Option<Self> {
        let ppm = u128::from(part).checked_mul(1_000_000)?.checked_div(u128::from(whole))?;
        Some(Self(u32::try_from(ppm).unwrap_or(u32::MAX)))
    }

    /// This share of `whole`, rounded down.
    #[must_use]
    pub fn share_of(self, whole: u64) -> u64 {
        // Fast path: a 64-bit division by a constant compiles to a multiplication.
        if let Some(product) = whole.checked_mul(u64::from(self.0)) {
            return product / 1_000_000;
        }
        u64::try_from(u128::from(whole) * u128::from(self.0) / 1_000_000).unwrap_or(u64::MAX)
    }

    /// As a fraction of one, for display and reports.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

impl fmt::Display for RatioPpm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 1e4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_round_down_and_never_overflow() {
        assert_eq!(RatioPpm::of(1, 3), Some(RatioPpm(333_333)));
        assert_eq!(RatioPpm::of(1, 0), None);
        assert_eq!(RatioPpm::of(u64::MAX, 1), Some(RatioPpm(u32::MAX)));
        assert_eq!(RatioPpm(2000).share_of(1_000_000), 2000);
        assert_eq!(RatioPpm(u32::MAX).share_of(u64::MAX), u64::MAX);
        assert_eq!(RatioPpm(500_000).share_of(u64::MAX), u64::MAX / 2);
        assert_eq!(RatioPpm(2000).to_string(), "0.2%");
    }
}
