//! Units as types, so that pages are never added to bytes nor seconds to scans.
//!
//! Every type is a plain counter with `0` as its start; arithmetic that could leave the range saturates,
//! because a far-memory agent must hold back on a nonsensical number, never crash on it.

pub mod quantity;

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Nothing of it.
            pub const ZERO: Self = Self(0);

            /// The difference, or zero where it would be negative.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                self.saturating_sub(other)
            }
        }

        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }
    };
}

counter! {
    /// A size or an amount of memory, in bytes.
    Bytes
}
counter! {
    /// A number of base pages (the kernel's `PAGE_SIZE`, 4 KiB on x86-64).
    Pages
}

counter! {
    /// How often memory is accessed, in millionths of an access per second.
    AccessRate
}

impl AccessRate {
    /// So many accesses per second.
    #[must_use]
    pub const fn per_second(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }

    /// So many times this rate.
    #[must_use]
    pub const fn saturating_mul(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }

    /// Accesses per second as a fraction, for display and reports.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl fmt::Display for AccessRate {
    /// Accesses per second, to three figures below 1,000: `0.0123/s`, `42.5/s`, `31234/s`.
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

impl Bytes {
    /// `n` times 2^20 bytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// Whole pages that this many bytes fill; the rest is dropped.
    #[must_use]
    pub const fn to_pages(self, page_size: PageSize) -> Pages {
        Pages(self.0 / page_size.0)
    }
}

impl Pages {
    /// The bytes that this many pages hold.
    #[must_use]
    pub const fn to_bytes(self, page_size: PageSize) -> Bytes {
        Bytes(self.0.saturating_mul(page_size.0))
    }
}

impl fmt::Display for Bytes {
    /// In the largest binary unit that leaves at least one: `1.5 GiB`, `312 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

/// Bytes per base page. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PageSize(u64);

impl PageSize {
    /// 4 KiB, the base page of x86-64.
    pub const X86_64: Self = Self(4096);

    /// A page size, or `None` where `bytes` is not a power of two.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() { Some(Self(bytes)) } else { None }
    }

    /// Bytes per page.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

/// Whole scans since the last observed access to a page, saturating at 255 (000 section 5.1: 8 bits per page,
/// 8.5 hours at the default scan period of 120 s).
///
/// An age of `a` means that the page was idle for at least `a` and less than `a + 1` scan periods when it was
/// scanned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Age(pub u8);

impl Age {
    /// The oldest age that 8 bits tell apart; it means "this old or older".
    pub const MAX: Self = Self(u8::MAX);

    /// One scan later without an access.
    #[must_use]
    pub const fn older(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The shortest idle time that this age stands for.
    #[must_use]
    pub const fn idle_time(self, scan_period: Duration) -> Duration {
        scan_period.saturating_mul(self.0 as u32)
    }

    /// The age after `idle` without an access: whole scan periods, rounded down, saturating.
    #[must_use]
    pub fn from_idle_time(idle: Duration, scan_period: Duration) -> Self {
        let scans = idle.as_nanos() / scan_period.as_nanos().max(1);
        Self(u8::try_from(scans).unwrap_or(u8::MAX))
    }
}

/// A ratio in millionths: `2000` is 0.2 %. Integer, so that a replay on another machine rounds the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RatioPpm(pub u32);

impl RatioPpm {
    /// One, or 100 %.
    pub const ONE: Self = Self(1_000_000);

    /// `part / whole` in millionths, rounded down; `None` where `whole` is zero, saturating at 4294.
    #[must_use]
    pub fn of(part: u64, whole: u64) -> Option<Self> {
        let ppm = u128::from(part).checked_mul(1_000_000)?.checked_div(u128::from(whole))?;
        Some(Self(u32::try_from(ppm).unwrap_or(u32::MAX)))
    }

    /// This share of `whole`, rounded down.
    #[must_use]
    pub fn share_of(self, whole: u64) -> u64 {
        // Almost always the product fits in 64 bits, where a division by a constant is a multiplication.
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

/// Whole milliseconds, rounded down, saturating.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_show_in_binary_units() {
        for (bytes, text) in [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 19, "1.5 MiB"), (u64::MAX, "16384.0 PiB")] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn rates_show_per_second() {
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
