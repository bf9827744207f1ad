//! What may be written to a swap device: its endurance as a budget (001 sections 2.5 and 4).
//!
//! An SSD is rated for a number of bytes written over its life. That rating per day is poured into a bucket at an
//! even rate; what offloading writes is taken out. The bucket holds a burst at most, so that a quiet night does not
//! buy a stormy day. The kernel may write more than it was asked for: the bucket then goes into debt, and nothing is
//! available until that is paid back.
//!
//! # Properties
//! Each is a test of that name: over any time, spending within what is available stays at or under burst plus rate
//! times time, to the byte; debt is paid back first; remainders are kept, however often the bucket is looked at; a
//! clock that goes back is tolerated; a budget of zero gives nothing ever; a restart loses nothing.

use serde::{Deserialize, Serialize};

use units::Bytes;

const MS_PER_DAY: u64 = 86_400_000;

/// What an operator may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// Bytes that may be written per day: the device's rating. Zero forbids writing.
    pub bytes_per_day: Bytes,
    /// The most that may be written at once: what a bucket holds.
    pub burst: Bytes,
}

/// What is left to write. It must survive a restart, or every restart would buy another burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Whole bytes left; negative while in debt.
    level: i64,
    /// The part of a byte that has been poured in beyond `level`, in bytes per [`MS_PER_DAY`].
    part: u64,
    /// When `level` was true, in the caller's milliseconds.
    at_ms: u64,
}

impl Bucket {
    /// A full bucket, for a machine or job seen for the first time; empty where nothing may be written.
    #[must_use]
    pub fn full(params: &Params, now_ms: u64) -> Self {
        Self { level: capacity(params), part: 0, at_ms: now_ms }
    }

    /// Bytes that may be written now; zero while in debt.
    #[must_use]
    pub fn available(&self, params: &Params, now_ms: u64) -> Bytes {
        Bytes(u64::try_from(self.poured(params, now_ms).level).unwrap_or(0))
    }

    /// Takes out what was written, even where it was more than available.
    pub fn spend(&mut self, params: &Params, now_ms: u64, written: Bytes) {
        let poured = self.poured(params, now_ms);
        let level = poured.level.saturating_sub_unsigned(written.0);
        *self = Self { level, ..poured };
    }

    /// This bucket with what has been poured in until now, and no more than it holds: the parameters may have changed
    /// since. A clock that went back pours nothing, and time counts from there: what it passes again is poured again.
    fn poured(self, params: &Params, now_ms: u64) -> Self {
        let elapsed_ms = now_ms.saturating_sub(self.at_ms);
        let parts = u128::from(elapsed_ms) * u128::from(params.bytes_per_day.0) + u128::from(self.part.min(MS_PER_DAY - 1));
        let bytes = u64::try_from(parts / u128::from(MS_PER_DAY)).unwrap_or(u64::MAX);
        let part = u64::try_from(parts % u128::from(MS_PER_DAY)).unwrap_or(0);
        let (level, capacity) = (self.level.saturating_add_unsigned(bytes), capacity(params));
        let (level, part) = if level >= capacity { (capacity, 0) } else { (level, part) };
        Self { level, part, at_ms: now_ms }
    }
}

/// What a bucket holds.
fn capacity(params: &Params) -> i64 {
    if params.bytes_per_day == Bytes::ZERO { 0 } else { i64::try_from(params.burst.0).unwrap_or(i64::MAX) }
}

#[cfg(test)]
mod tests;
