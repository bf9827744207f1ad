//! Quantities that decay and grow with time, whatever the length of a period.

use units::{Millis, Pages};

/// Refaults are usual if there were as many in the last warm-ups. A burst is a small part of so many.
const USUAL_WARMUPS: u64 = 4;

/// The part of a quantity that remains of it after a time, if it decays with this mean life.
pub(super) fn decayed(quantity: u64, time: Millis, life: Millis) -> u64 {
    // 1 / (1 + x) is exp(-x) for the short periods that there are, and never less.
    let kept = u128::from(quantity) * u128::from(life.0) / (u128::from(life.0) + u128::from(time.0)).max(1);
    u64::try_from(kept).unwrap_or(quantity)
}

/// A mean that has followed a quantity for a time, by the same weights.
pub(super) fn followed(mean: u64, quantity: u64, time: Millis, life: Millis) -> u64 {
    let (of, time) = (u128::from(life.0), u128::from(time.0));
    let sum = (u128::from(mean) * of).saturating_add(u128::from(quantity) * time);
    u64::try_from(sum / (of + time).max(1)).unwrap_or(u64::MAX)
}

/// The time over which a usual rate of refaults is a mean.
pub(super) fn usual_life(warmup: Millis) -> Millis {
    Millis(warmup.0.saturating_mul(USUAL_WARMUPS))
}

/// The time in which the amount doubles.
pub(super) fn doubled_in(warmup: Millis) -> Millis {
    Millis((warmup.0 / 4).max(1))
}

/// The amount of the next period, by 2^x of about 1 + 0.693 x.
pub(super) fn grown(amount: Pages, warmup: Millis, elapsed: Millis) -> Pages {
    let doubled_in = doubled_in(warmup).0;
    let more = u128::from(amount.0) * u128::from(elapsed.0.min(doubled_in)) * 693 / (u128::from(doubled_in) * 1_000);
    amount + Pages(u64::try_from(more).unwrap_or(u64::MAX))
}
