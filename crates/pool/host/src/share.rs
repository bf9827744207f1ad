//! How much of a guest's memory comes from the pool (Pond, section 4.3 A). Pure.

use predict::{Decision, Reason};
use serde::{Deserialize, Serialize};

/// Why so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It was asked for.
    Asked,
    /// The guest does not notice slow memory, by the model.
    Insensitive,
    /// The guest will not touch so much, by the model.
    Untouched,
    /// Too little is predicted untouched for a whole slice.
    NothingUntouched,
    /// A model could not speak of it, or there is none; `pool predict` says more.
    NoPrediction,
    /// No manager answers, so that nobody knows of slices.
    NoManager,
    /// The pool has not enough.
    PoolShort,
}

/// How a guest's memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// From the pool, in slices.
    pub slices: u32,
    /// Beside its cores, in bytes.
    pub local_bytes: u64,
    /// Why.
    pub why: Why,
    /// Whether the model says that it would not notice.
    pub insensitive: bool,
}

impl Share {
    /// All of it local.
    #[must_use]
    pub fn local(memory_bytes: u64, why: Why) -> Self {
        Self { slices: 0, local_bytes: memory_bytes, why, insensitive: false }
    }
}

/// Divides `memory_bytes`, so that `least_local_bytes` stay local for the guest's kernel.
///
/// `decision` is the models' word; its untouched share is what counts, since slices may be smaller than those it was made for.
#[must_use]
pub fn predicted(memory_bytes: u64, decision: &Decision, slice_bytes: u64, least_local_bytes: u64) -> Share {
    let wanted = match decision.reason {
        Reason::Insensitive => memory_bytes,
        _ => part(memory_bytes, decision.untouched_ratio.unwrap_or(0.0)),
    };
    let slices = whole(wanted.min(memory_bytes.saturating_sub(least_local_bytes)), slice_bytes);
    let why = match decision.reason {
        Reason::Insensitive => Why::Insensitive,
        Reason::Untouched | Reason::NothingUntouched if slices > 0 => Why::Untouched,
        Reason::Untouched | Reason::NothingUntouched => Why::NothingUntouched,
        _ => Why::NoPrediction,
    };
    let local_bytes = memory_bytes - u64::from(slices) * slice_bytes;
    Share { slices, local_bytes, why, insensitive: why == Why::Insensitive }
}

/// Divides as somebody has asked; none if that leaves too little local memory, or is no whole number of slices.
#[must_use]
pub fn asked(memory_bytes: u64, pool_bytes: u64, slice_bytes: u64, least_local_bytes: u64) -> Option<Share> {
    let slices = whole(pool_bytes, slice_bytes);
    let local_bytes = memory_bytes.checked_sub(pool_bytes)?;
    let fits = u64::from(slices) * slice_bytes == pool_bytes && local_bytes >= least_local_bytes;
    fits.then_some(Share { slices, local_bytes, why: Why::Asked, insensitive: false })
}

fn whole(bytes: u64, slice_bytes: u64) -> u32 {
    u32::try_from(bytes.checked_div(slice_bytes).unwrap_or(0)).unwrap_or(u32::MAX)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "clamped, and rounded down")]
fn part(bytes: u64, ratio: f64) -> u64 {
    (bytes as f64 * ratio.clamp(0.0, 1.0)) as u64
}

#[cfg(test)]
mod tests {
    use predict::Latency;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn whole_slices_of_what_is_untouched_come_from_the_pool() {
        let check = |reason, ratio: Option<f64>, slices: u32, why| {
            let decision = Decision { pool_bytes: 0, reason, untouched_ratio: ratio, latency: Latency::NoModel };
            let share = predicted(2048 * MIB, &decision, 256 * MIB, 512 * MIB);
            assert_eq!((share.slices, share.why), (slices, why), "{reason:?} {ratio:?}");
            assert_eq!(share.local_bytes + u64::from(share.slices) * 256 * MIB, 2048 * MIB);
            assert_eq!(share.insensitive, reason == Reason::Insensitive);
        };
        check(Reason::Untouched, Some(0.5), 4, Why::Untouched);
        check(Reason::Untouched, Some(0.49), 3, Why::Untouched);
        // Less than the slices that the model rounds to, and still one of ours.
        check(Reason::NothingUntouched, Some(0.2), 1, Why::Untouched);
        check(Reason::NothingUntouched, Some(0.1), 0, Why::NothingUntouched);
        // The guest's kernel needs local memory, whatever is untouched.
        check(Reason::Untouched, Some(0.99), 6, Why::Untouched);
        check(Reason::Insensitive, None, 6, Why::Insensitive);
        check(Reason::NoHistory, None, 0, Why::NoPrediction);
        check(Reason::StaleModel, None, 0, Why::NoPrediction);
        check(Reason::Untouched, Some(f64::NAN), 0, Why::NothingUntouched);
    }

    #[test]
    fn what_is_asked_for_must_be_whole_and_leave_enough() {
        let check = |pool: u64, want: Option<(u32, u64)>| {
            let found = asked(2048 * MIB, pool * MIB, 256 * MIB, 512 * MIB);
            assert_eq!(found.map(|share| (share.slices, share.local_bytes / MIB)), want, "{pool} MiB");
        };
        check(0, Some((0, 2048)));
        check(256, Some((1, 1792)));
        check(1536, Some((6, 512)));
        check(1792, None);
        check(300, None);
        check(4096, None);
    }
}
