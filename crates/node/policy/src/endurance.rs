//! Write budget of a swap device (TMO sections 2.5 and 4).
//!
//! An SSD is rated for a number of bytes written over its life. A token bucket fills at this rate per day; offloading takes out what
//! it writes. The bucket holds at most a burst, so that idle days do not accumulate. The kernel may write more than was requested:
//! the level is then negative, and nothing is available until the debt is repaid.
//!
//! # Properties
//! Each is a test of this name: over any time, spending within what is available stays at or below burst plus rate times time, to the
//! byte; debt is repaid first; remainders are kept, however often the bucket is read; a clock that goes backwards is tolerated; a
//! budget of zero permits no write; a restart loses nothing.

use serde::{Deserialize, Serialize};

use units::{Bytes, Millis};

const MS_PER_DAY: u64 = 86_400_000;

/// Parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// Bytes that may be written per day: the device's rating. Zero permits no write.
    pub bytes_per_day: Bytes,
    /// The capacity of the bucket: the most that may be written at once.
    pub burst: Bytes,
}

/// The remaining budget. It must survive a restart, or every restart would add a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Whole bytes left; negative means debt.
    level: i64,
    /// The fraction of a byte beyond `level`, in bytes per [`MS_PER_DAY`].
    part: u64,
    /// The time of `level`, in the caller's milliseconds.
    at_ms: Millis,
}

impl Bucket {
    /// Returns a full bucket, for a machine or job observed for the first time; empty if the rate is zero.
    #[must_use]
    pub fn full(params: &Params, now_ms: Millis) -> Self {
        Self { level: capacity(params), part: 0, at_ms: now_ms }
    }

    /// Returns the bytes that may be written now; zero in debt.
    #[must_use]
    pub fn available(&self, params: &Params, now_ms: Millis) -> Bytes {
        Bytes(u64::try_from(self.poured(params, now_ms).level).unwrap_or(0))
    }

    /// Subtracts what was written, even if it exceeds what was available.
    pub fn spend(&mut self, params: &Params, now_ms: Millis, written: Bytes) {
        let poured = self.poured(params, now_ms);
        let level = poured.level.saturating_sub_unsigned(written.0);
        *self = Self { level, ..poured };
    }

    /// Returns the bucket at `now_ms`, limited to its capacity, because the parameters may have changed. If the clock went backwards,
    /// nothing is added, and time counts from `now_ms`.
    fn poured(self, params: &Params, now_ms: Millis) -> Self {
        let elapsed_ms = now_ms.saturating_sub(self.at_ms);
        let parts = u128::from(elapsed_ms.0) * u128::from(params.bytes_per_day.0) + u128::from(self.part.min(MS_PER_DAY - 1));
        let bytes = u64::try_from(parts / u128::from(MS_PER_DAY)).unwrap_or(u64::MAX);
        let part = u64::try_from(parts % u128::from(MS_PER_DAY)).unwrap_or(0);
        let (level, capacity) = (self.level.saturating_add_unsigned(bytes), capacity(params));
        let (level, part) = if level >= capacity { (capacity, 0) } else { (level, part) };
        Self { level, part, at_ms: now_ms }
    }
}

/// Returns the capacity of a bucket.
fn capacity(params: &Params) -> i64 {
    if params.bytes_per_day == Bytes::ZERO { 0 } else { i64::try_from(params.burst.0).unwrap_or(i64::MAX) }
}

#[cfg(test)]
mod tests;
