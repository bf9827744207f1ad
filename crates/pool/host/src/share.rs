//! Division of a guest's memory between local memory and the pool (Pond section 4.3 A). Pure.

use manager::api::Slices;
use predict::{Decision, Reason};
use serde::{Deserialize, Serialize};
use units::Bytes;

/// Reason for a division.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The request set the pool memory.
    Asked,
    /// The guest is predicted to be insensitive to memory latency.
    Insensitive,
    /// The guest is predicted to leave this much memory untouched.
    Untouched,
    /// Less than one slice is predicted to stay untouched.
    NothingUntouched,
    /// The models made no prediction, or there are none; `pool predict` shows the reason.
    NoPrediction,
    /// Too many guests touched the pool memory that the present model gave them.
    ModelFailed,
    /// The pool manager does not answer.
    NoManager,
    /// The pool has too few free slices.
    PoolShort,
}

/// Division of a guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Pool memory.
    pub slices: Slices,
    /// Local memory.
    pub local_bytes: Bytes,
    /// The reason.
    pub why: Why,
    /// Whether the guest is predicted to be insensitive to memory latency.
    pub insensitive: bool,
}

impl Share {
    /// All of the guest's memory is local.
    #[must_use]
    pub fn local(memory: Bytes, why: Why) -> Self {
        Self { slices: Slices(0), local_bytes: memory, why, insensitive: false }
    }
}

/// Divides `memory` by a prediction. At least `local_min` stays local, for the guest's kernel.
///
/// Of `decision`, the untouched share is used and not the pool size: the pool's slices may be smaller than those that
/// the decision rounds to.
#[must_use]
pub fn predicted(memory: Bytes, decision: &Decision, slice_size: Bytes, local_min: Bytes) -> Share {
    let untouched = match decision.reason {
        Reason::Insensitive => memory,
        _ => part(memory, decision.untouched_ratio.unwrap_or(0.0)),
    };
    let slices = whole_slices(untouched.min(memory.saturating_sub(local_min)), slice_size);
    let why = match decision.reason {
        Reason::Insensitive => Why::Insensitive,
        Reason::Untouched | Reason::NothingUntouched if slices > Slices(0) => Why::Untouched,
        Reason::Untouched | Reason::NothingUntouched => Why::NothingUntouched,
        _ => Why::NoPrediction,
    };
    Share { slices, local_bytes: memory - slices.bytes(slice_size), why, insensitive: why == Why::Insensitive }
}

/// Divides `memory` as requested; `None` if `pool` is not a whole number of slices, or leaves less than `local_min`.
#[must_use]
pub fn requested(memory: Bytes, pool: Bytes, slice_size: Bytes, local_min: Bytes) -> Option<Share> {
    let slices = whole_slices(pool, slice_size);
    let local_bytes = Bytes(memory.0.checked_sub(pool.0)?);
    let fits = slices.bytes(slice_size) == pool && local_bytes >= local_min;
    fits.then_some(Share { slices, local_bytes, why: Why::Asked, insensitive: false })
}

fn whole_slices(size: Bytes, slice_size: Bytes) -> Slices {
    Slices(u32::try_from(size.0.checked_div(slice_size.0).unwrap_or(0)).unwrap_or(u32::MAX))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "clamped, and rounded down")]
fn part(size: Bytes, ratio: f64) -> Bytes {
    Bytes((size.0 as f64 * ratio.clamp(0.0, 1.0)) as u64)
}

#[cfg(test)]
mod tests {
    use predict::Latency;

    use super::*;

    const MEMORY: Bytes = Bytes::mib(2048);
    const SLICE: Bytes = Bytes::mib(256);
    const LOCAL_MIN: Bytes = Bytes::mib(512);

    #[test]
    fn untouched_memory_comes_from_the_pool_in_whole_slices() {
        let check = |reason, ratio: Option<f64>, slices: u32, why| {
            let decision =
                Decision { pool_bytes: Bytes::ZERO, reason, untouched_ratio: ratio, predicted_by: None, latency: Latency::NoModel };
            let share = predicted(MEMORY, &decision, SLICE, LOCAL_MIN);
            assert_eq!((share.slices, share.why), (Slices(slices), why), "{reason:?} {ratio:?}");
            assert_eq!(share.local_bytes + share.slices.bytes(SLICE), MEMORY);
            assert_eq!(share.insensitive, reason == Reason::Insensitive);
        };
        check(Reason::Untouched, Some(0.5), 4, Why::Untouched);
        check(Reason::Untouched, Some(0.49), 3, Why::Untouched);
        // Less than one of the slices that the model rounds to, and still one of this pool's.
        check(Reason::NothingUntouched, Some(0.2), 1, Why::Untouched);
        check(Reason::NothingUntouched, Some(0.1), 0, Why::NothingUntouched);
        // The guest's kernel needs local memory, however much is untouched.
        check(Reason::Untouched, Some(0.99), 6, Why::Untouched);
        check(Reason::Insensitive, None, 6, Why::Insensitive);
        check(Reason::NoHistory, None, 0, Why::NoPrediction);
        check(Reason::StaleModel, None, 0, Why::NoPrediction);
        check(Reason::Untouched, Some(f64::NAN), 0, Why::NothingUntouched);
    }

    #[test]
    fn requested_pool_memory_is_whole_slices_and_leaves_enough() {
        let check = |pool: u64, expected: Option<(u32, u64)>| {
            let found = requested(MEMORY, Bytes::mib(pool), SLICE, LOCAL_MIN);
            assert_eq!(found.map(|share| (share.slices.0, share.local_bytes.0 >> 20)), expected, "{pool} MiB");
        };
        check(0, Some((0, 2048)));
        check(256, Some((1, 1792)));
        check(1536, Some((6, 512)));
        check(1792, None);
        check(300, None);
        check(4096, None);
    }
}
