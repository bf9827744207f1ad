//! How often memory is accessed.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::counter::counter;

counter! {
    /// How often memory is accessed, in millionths of an access per second.
    AccessRate
}

impl AccessRate {
    /// `n` accesses per second.
    #[must_use]
    pub const fn per_second(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }

    /// Accesses per second, for display and reports.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl fmt::Display for AccessRate {
    /// Prints accesses per second, to three significant figures from 0.1 to 1,000: `0.0123/s`, `42.5/s`, `31234/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.as_f64();
        let decimals = match self.0 {
            0 => 0,
            1..100_000 => 4,
            100_000..1_000_000 => 3,
            1_000_000..10_000_000 => 2,
            10_000_000..100_000_000 => 1,
            _ => 0,
        };
        write!(f, "{value:.decimals$}/s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_print_per_second() {
        for (micro, text) in [
            (0, "0/s"),
            (12_345, "0.0123/s"),
            (123_456, "0.123/s"),
            (1_234_567, "1.23/s"),
            (42_500_000, "42.5/s"),
            (31_234_000_000, "31234/s"),
        ] {
            assert_eq!(AccessRate(micro).to_string(), text);
        }
        assert_eq!(AccessRate::per_second(u64::MAX), AccessRate(u64::MAX));
    }
}
