//! The bounds of a job's memory in the slow node: a floor of fast memory, an upper bound of slow memory, and its share where jobs compete
//! (Equilibria abstract: controls per container, and a fair share of each memory).
//!
//! # Rule
//! Of `m` bytes that can be moved, a floor of `f` leaves `m - f` for the slow node; an operator's upper bound leaves that bound. The lower
//! one is never crossed: a block is placed only if all of it fits, and while the job is above it (its rule changed, or it shrank), its most
//! accessed blocks are promoted.
//!
//! The share of [`super::division`] is no promise to this job but room for others. It is met within one block: the last block placed may
//! cross it, and a block is promoted only if the job then still has its share. Without that tolerance, a block that crosses it would
//! move back and forth.
//!
//! Promotion for a bound moves what `step_max` permits, and one block at least: it is not urgent, unlike that of hot memory, but it ends.

use serde::{Deserialize, Serialize};
use units::{Bytes, RatioPpm};

use super::runs::Runs;

/// What the operator permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// What the job keeps in fast memory, of its memory that can be moved.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fast_min: Bytes,
    /// The same, as a share of that memory. The larger of both counts.
    #[serde(default, skip_serializing_if = "is_none")]
    pub fast_share_min: RatioPpm,
    /// What it may have in the slow node at most; `None` without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_max: Option<Bytes>,
}

pub(super) fn is_zero(bytes: &Bytes) -> bool {
    *bytes == Bytes::ZERO
}

fn is_none(ratio: &RatioPpm) -> bool {
    ratio.0 == 0
}

impl Bounds {
    /// Whether nothing is bounded.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// What a job with so much memory may have in the slow node, and the bound that says so.
    fn limit(&self, memory: Bytes) -> Option<(Bytes, Bound)> {
        let floor = self.fast_min.max(Bytes(self.fast_share_min.share_of(memory.0)));
        let by_floor = (floor > Bytes::ZERO).then(|| (memory - floor, Bound::FastMin));
        let by_max = self.slow_max.map(|most| (most, Bound::SlowMax));
        by_floor.into_iter().chain(by_max).min_by_key(|&(bytes, _)| bytes)
    }
}

/// A bound of a job's memory in the slow node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The floor of its fast memory.
    FastMin,
    /// The upper bound of its slow memory.
    SlowMax,
    /// Its share of the slow node.
    Share,
}

/// A job that has more in the slow node than a bound permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excess {
    /// The bound.
    pub bound: Bound,
    /// By how much what remains without the hot blocks exceeds it.
    pub bytes: Bytes,
    /// How many blocks are promoted for it, besides those that are too hot.
    pub blocks: u32,
}

/// What a job may have in the slow node in one period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Never crossed.
    limit: Option<(Bytes, Bound)>,
    /// Met within one block.
    share: Option<Bytes>,
}

impl Allowance {
    pub(super) fn new(bounds: &Bounds, memory: Bytes, share: Option<Bytes>) -> Self {
        Self { limit: bounds.limit(memory), share }
    }

    /// The lower of both.
    pub(super) fn least(&self) -> Option<(Bytes, Bound)> {
        let share = self.share.map(|share| (share, Bound::Share));
        self.limit.into_iter().chain(share).min_by_key(|&(bytes, _)| bytes)
    }

    /// How many blocks of a size may be placed by a job that has so much, by each bound.
    pub(super) fn fits(&self, has: Bytes, block: Bytes) -> [(u32, Bound); 2] {
        let count = |blocks: u64| u32::try_from(blocks).unwrap_or(u32::MAX);
        let (limit, bound) = self.limit.unwrap_or((Bytes(u64::MAX), Bound::SlowMax));
        let below_share = self.share.map_or(u64::MAX, |share| (share - has).0);
        let whole = (limit - has).0.checked_div(block.0).unwrap_or(u64::MAX);
        let begun = if block.0 == 0 { u64::MAX } else { below_share.div_ceil(block.0) };
        [(if self.limit.is_some() { count(whole) } else { u32::MAX }, bound), (count(begun), Bound::Share)]
    }

    /// How many blocks of a size a job that has so much must promote.
    fn excess(&self, has: Bytes, block: Bytes) -> u64 {
        let over = |limit: Option<Bytes>| limit.map_or(0, |limit| (has - limit).0);
        let by_limit = over(self.limit.map(|(limit, _)| limit));
        // Blocks without a size change nothing.
        if block.0 == 0 { 0 } else { by_limit.div_ceil(block.0).max(over(self.share) / block.0) }
    }

    /// Returns how many blocks are promoted for the bounds and their size: the hottest of those that stay when the `promoted` hottest have
    /// gone, as long as `step` has room, and at least one. `None` if the job is within its bounds.
    pub(super) fn promote(&self, slow: &Runs, promoted: u32, step: Bytes) -> Option<(Excess, Bytes)> {
        let (mut gone, mut has) = (u64::from(promoted), slow.bytes() - slow.hottest(promoted));
        let (limit, bound) = self.least()?;
        let mut excess = Excess { bound, bytes: has - limit, blocks: 0 };
        let mut moved = Bytes::ZERO;
        for run in slow.as_slice().iter().rev() {
            let skipped = gone.min(run.blocks.into());
            gone -= skipped;
            let left = u64::from(run.blocks) - skipped;
            let needed = self.excess(has, run.bytes).min(left);
            let fit = (step - moved).0.checked_div(run.bytes.0).unwrap_or(u64::MAX);
            let taken = needed.min(fit.max(u64::from(excess.blocks == 0)));
            let bytes = Bytes(run.bytes.0.saturating_mul(taken));
            excess.blocks = excess.blocks.saturating_add(u32::try_from(taken).unwrap_or(u32::MAX));
            (moved, has) = (moved + bytes, has - bytes);
            if taken < left {
                break;
            }
        }
        (excess.blocks > 0).then_some((excess, moved))
    }
}

#[cfg(test)]
mod tests;
