//! Observations on a sample of the pages, summed over several scans.
//!
//! # Problem
//! An objective permits few promotions of sampled pages in a scan: 0.2 % of the working set per minute are two pages of a sample
//! of 2,000, if a quarter of it is the working set and a scan takes two minutes. One sampled page more or less decides whether
//! the period was within the objective, so that the percentile of the bests is that of the sampling error: with K = 99 %, the
//! threshold is near the oldest age that any sampled page had when it was accessed.
//!
//! # Rule
//! With the bound, the promotions of [`SCANS`] scans are one observation, which counts as so many periods. If it exceeds what
//! the objective permits because of a single scan, it counts as one period with that best, and the others have the best
//! without it. While an observation is incomplete, best is that of the last complete one, or higher if the promotions so far
//! exceed what the whole permits.
//!
//! A sum of scans says nothing about their differences, which the objective is about. What really came back from far memory is
//! counted by the kernel in each period: a period in which this alone exceeds the objective counts by itself, with the best
//! threshold of what came back. So a threshold that is too low for K rises until the share of such periods is (100 - K) %.

use serde::{Deserialize, Serialize};

use super::lists::{PoolSizeError, copy, used};
use super::{Input, best_index, next_after};
use crate::histogram::Histogram;
use crate::thresholds::{THRESHOLDS_MAX, Thresholds};
use units::{Millis, Pages};

/// Scans of an observation. Fixed, so that a job of a more conservative class observes the same.
pub const SCANS: u8 = 8;

/// Periods that one counts as whose real promotions exceed the objective. Such periods raise the threshold step by step, and until
/// it is high enough there are too many of them: counted once, 1.1 % of the periods of a simulated job with K = 99 % were over its
/// objective, counted twice 0.6 %, for a threshold that is 6 % higher (test `with_a_sample_the_promotions_of_all_pages_keep_the_objective`).
pub const RETURNED_WEIGHT: u32 = 2;

/// The incomplete observation, and the result of the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Promotions of the scans so far; `None` before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sum: Option<Histogram>,
    /// For each threshold, the most promotions at or above it in one of these scans; without trailing zeros.
    #[serde(default, skip_serializing_if = "Peaks::is_empty")]
    peaks: Peaks,
    /// Promotions that the objective permitted in these scans.
    allowed: Pages,
    /// The number of these scans.
    scans: u8,
    /// Age of the job at the last of them, in milliseconds.
    last_ms: Millis,
    /// Index of the best threshold of the last complete observation, without its worst scan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    best: Option<u8>,
}

/// What the promotions of one or more scans are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The promotions.
    pub promotions: Histogram,
    /// The permitted ones.
    pub allowed: Pages,
    /// The scans.
    pub scans: u8,
    /// Index of the best threshold.
    pub best: usize,
    /// The same of all but the worst scan; irrelevant if there is one scan.
    pub rest_best: usize,
}

/// What one control period showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Index of the best threshold.
    pub best: usize,
    /// The same of the real promotions alone; 0 if they were within the objective, or are part of `complete`.
    pub returned_best: usize,
    /// The observation that it is or completes.
    pub complete: Option<Observed>,
}

/// A number for each threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>", into = "Vec<u64>")]
struct Peaks([u64; THRESHOLDS_MAX]);

impl Default for Peaks {
    fn default() -> Self {
        Self([0; THRESHOLDS_MAX])
    }
}

impl Peaks {
    fn is_empty(&self) -> bool {
        self.0.iter().all(|&peak| peak == 0)
    }

    fn observe(&mut self, promotions: &Histogram) {
        let mut promoted = 0u64;
        for (peak, &count) in self.0.iter_mut().zip(&promotions.buckets()[1..]).rev() {
            promoted = promoted.saturating_add(count);
            *peak = promoted.max(*peak);
        }
    }
}

impl TryFrom<Vec<u64>> for Peaks {
    type Error = PoolSizeError;

    fn try_from(list: Vec<u64>) -> Result<Self, PoolSizeError> {
        let mut peaks = Self::default();
        copy(&mut peaks.0, &list)?;
        Ok(peaks)
    }
}

impl From<Peaks> for Vec<u64> {
    fn from(peaks: Peaks) -> Self {
        used(&peaks.0)
    }
}

impl Window {
    /// Adds a control period, which permitted `allowed` promotions, unless it is of the same scan as the last.
    pub(super) fn observe(&mut self, thresholds: &Thresholds, input: &Input, allowed: Pages) -> Seen {
        if self.sum.is_some_and(|sum| !sum.fits(thresholds)) {
            *self = Self::default();
        }
        let mut returned_best = 0;
        if self.is_new(input) {
            let returned = input.returned.filter(|returned| returned.fits(thresholds));
            returned_best = returned.map_or(0, |returned| best_index(thresholds, &returned, allowed));
            self.add(thresholds, input, allowed);
        }
        if self.scans < SCANS {
            return Seen { best: self.best_so_far(thresholds, allowed).max(returned_best), returned_best, complete: None };
        }
        let promotions = self.sum.unwrap_or_else(|| Histogram::empty(thresholds));
        let best = best_index(thresholds, &promotions, self.allowed);
        let rest_best = self.rest_best(thresholds, &promotions);
        let complete = Observed { promotions, allowed: self.allowed, scans: self.scans, best, rest_best };
        *self = Self { last_ms: self.last_ms, best: u8::try_from(rest_best).ok(), ..Self::default() };
        Seen { best: best.max(returned_best), returned_best, complete: Some(complete) }
    }

    fn add(&mut self, thresholds: &Thresholds, input: &Input, allowed: Pages) {
        self.sum.get_or_insert_with(|| Histogram::empty(thresholds)).merge(&input.promotions);
        self.peaks.observe(&input.promotions);
        self.allowed += allowed;
        self.scans += 1;
        self.last_ms = input.job_age_ms;
    }

    /// Whether no observation was completed yet.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.best.is_none()
    }

    /// A controller that decides more often than pages are scanned reads the same promotions again ([`next_after`]).
    fn is_new(&self, input: &Input) -> bool {
        let elapsed_ms = input.job_age_ms.checked_sub(self.last_ms);
        let first = self.scans == 0 && self.best.is_none();
        first || elapsed_ms.is_none_or(|elapsed_ms| elapsed_ms >= next_after(input.window_ms))
    }

    /// The best threshold of all scans but the worst, which may be another one for each threshold.
    fn rest_best(&self, thresholds: &Thresholds, promotions: &Histogram) -> usize {
        let allowed = self.allowed.0 - self.allowed.0.div_ceil(u64::from(SCANS));
        let mut promoted = 0u64;
        for index in (0..thresholds.len()).rev() {
            promoted = promoted.saturating_add(promotions.buckets()[index + 1]);
            if promoted.saturating_sub(self.peaks.0[index]) > allowed {
                return index + 1;
            }
        }
        0
    }

    fn best_so_far(&self, thresholds: &Thresholds, allowed: Pages) -> usize {
        let (Some(best), Some(sum)) = (self.best, self.sum) else { return self.best.map_or(thresholds.len(), usize::from) };
        let to_come = Pages(allowed.0.saturating_mul(u64::from(SCANS - self.scans)));
        usize::from(best).max(best_index(thresholds, &sum, self.allowed + to_come))
    }
}
