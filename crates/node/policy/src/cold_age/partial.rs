//! A part of the cold pages, where the promotions of all of them would exceed the objective.
//!
//! # Problem
//! Pages that are accessed at random have no age from which on they are safe: of a key-value store with uniform tails, every
//! threshold is promoted at the same rate. If that rate is three times the objective, no threshold qualifies and nothing is
//! offloaded, although a third of the pages would meet the objective.
//!
//! # Rule
//! If all pages of age T or older were promoted r times as often as the objective permits, 1/r of them are promoted as often as it
//! permits. r is an upper bound, as for thresholds ([`super::early`]): the worst observation of T and the margin of a short history.
//! Far memory grows up to the largest part of any measured threshold.
//!
//! What goes out are pages of the oldest threshold that has so many: they are accessed no more often than the mean, and generations of
//! the kernel that are opened at its pace distinguish them from pages in use. That threshold is at most two fifths of the time observed: the
//! oldest generation cannot be older in a young job, since generations are opened ever more slowly.
//!
//! Where a threshold qualifies for all its pages, the part is 1, and the rule is the same as without it, unless a younger
//! threshold has more pages in its part.
//!
//! # What really returns
//! Pages that are accessed in a loop are not accessed at random: the oldest come next, and all that are far return at once. So a
//! period in which more pages returned than the objective permits halves the part, unless there are still more pages far than it
//! permits: these cannot be called back. And nothing more goes out for 1 / (1 - K) periods, for each such period, so that they are
//! (100 - K) % at most. In other periods the part grows, by a factor of two in as many.
//!
//! # Properties
//! A more conservative class never takes more, before anything has returned: its r is higher at every threshold. Of a threshold that
//! the percentile or a spike excludes, r is at least 2 and what the present period shows.

use serde::{Deserialize, Serialize};
use units::{Millis, Pages};

use super::{Early, Input, next_after};
use crate::thresholds::Thresholds;

/// The whole of a part, in millionths.
const WHOLE: u32 = 1_000_000;

/// The least share that is taken: it is doubled in so many periods as K needs.
const LEAST: u32 = WHOLE / 1_024;

/// The longest wait, in periods: two weeks of scans of two minutes.
const WAIT_MAX: u32 = 10_000;

/// The share of the part that is taken, by what has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Taken {
    ppm: u32,
    /// Periods in which nothing more goes out.
    wait: u32,
    /// Age of the job at the last period that it follows.
    at_ms: Millis,
}

impl Default for Taken {
    fn default() -> Self {
        Self { ppm: WHOLE, wait: 0, at_ms: Millis::ZERO }
    }
}

impl Taken {
    /// Takes in what has returned in a period, and returns how many pages may be far.
    pub(super) fn follow(&mut self, part: Part, input: &Input, allowed: Pages, needed: u16) -> Part {
        let elapsed_ms = input.job_age_ms.checked_sub(self.at_ms);
        if elapsed_ms.is_none_or(|elapsed_ms| elapsed_ms >= next_after(input.window_ms)) {
            self.at_ms = input.job_age_ms;
            let needed = u32::from(needed.max(1));
            if input.returned.is_some_and(|returned| returned.at_or_above(0) > allowed) {
                self.wait = (self.wait + needed).min(WAIT_MAX);
                if far(input) <= self.of(part).far_max {
                    self.ppm = (self.ppm / 2).max(LEAST);
                }
            } else if self.wait > 0 {
                self.wait -= 1;
            } else {
                // 2^(1/n) is about 1 + 0.693/n.
                self.ppm = (self.ppm + self.ppm / needed * 693 / 1_000 + 1).min(WHOLE);
            }
        }
        if self.wait > 0 { Part { far_max: Pages::ZERO, ..part } } else { self.of(part) }
    }

    fn of(self, part: Part) -> Part {
        let pages = u128::from(part.far_max.0) * u128::from(self.ppm) / u128::from(WHOLE);
        Part { far_max: Pages(u64::try_from(pages).unwrap_or(u64::MAX)), ..part }
    }
}

/// Pages that are far.
pub(super) fn far(input: &Input) -> Pages {
    let all = |of: &crate::histogram::Histogram| of.below_first() + of.at_or_above(0);
    all(&input.cold) - all(&input.resident)
}

/// A part of the cold pages that may be far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Index of the threshold.
    pub(super) index: usize,
    /// The most pages that may be far.
    pub(super) far_max: Pages,
}

/// Returns the largest part of all measured thresholds; `None` if none has pages. `past` is the first threshold that the percentile
/// and the spike rule permit; `needed` are the observations of a long history. Of the thresholds, the first `reached` count.
pub(super) fn largest(
    early: &Early,
    thresholds: &Thresholds,
    input: &Input,
    allowed: Pages,
    past: usize,
    needed: u16,
    reached: usize,
) -> Option<Part> {
    let mut best: Option<Part> = None;
    for index in 0..input.cold.buckets().len().saturating_sub(1).min(reached) {
        let Some(excess) = early.excess_ppm(index, needed) else { break };
        // The percentile and the spike rule know of promotions that this threshold's own history may not show yet.
        let excess = if index < past { excess.max(present_ppm(input, allowed, index)).max(2 * u64::from(WHOLE)) } else { excess };
        let cold = input.cold.at_or_above(index);
        let pages = u128::from(cold.0) * 1_000_000 / u128::from(excess.max(1_000_000));
        let far_max = Pages(u64::try_from(pages).unwrap_or(cold.0));
        if far_max > best.map_or(Pages::ZERO, |best| best.far_max) {
            best = Some(Part { index, far_max });
        }
    }
    best.map(|part| Part { index: oldest(thresholds, input, part, reached), ..part })
}

/// The oldest of the first `reached` thresholds that has the pages of a part, as far as the job was observed for long enough.
pub(super) fn oldest(thresholds: &Thresholds, input: &Input, part: Part, reached: usize) -> usize {
    // Ages are in scans, which are at most as long as a period.
    let observed = |index: usize| {
        let age_ms = thresholds.get(index).map_or(u64::MAX, |age| u64::from(age.0).saturating_mul(input.window_ms.0));
        age_ms.saturating_mul(5) <= input.job_age_ms.0.saturating_mul(2)
    };
    let older = (part.index + 1..reached).rev();
    older.into_iter().find(|&index| observed(index) && input.cold.at_or_above(index) >= part.far_max).unwrap_or(part.index)
}

/// Promotions of threshold `index` in this period, in millionths of those permitted.
fn present_ppm(input: &Input, allowed: Pages, index: usize) -> u64 {
    let promotions = u128::from(input.promotions.at_or_above(index).0);
    u64::try_from(promotions * u128::from(WHOLE) / u128::from(allowed.0.max(1))).unwrap_or(u64::MAX)
}
