//! The measurements of a young history: which thresholds were measured, how often, and with how many promotions.
//!
//! # Problem
//! The next of n exchangeable periods is worse than the worst of them with probability 1 / (n + 1). For K = 99 % no order
//! statistic of fewer than 99 periods is high enough, and a threshold that no page was old enough for has not been measured
//! at all: it has no promotions because it has no pages.
//!
//! # Bound
//! Until a threshold has N = 1 / (1 - K) observations ([`observations_needed`]), the promotions of its worst one, `w` of n,
//! are extrapolated to the worst of N by Weissman's estimator (Journal of the American Statistical Association 1978):
//! `w * (N / n)^g`. The tail index g is 1/2, that of the heaviest tail with a finite variance. The threshold qualifies if the
//! result is within the objective. The factor is 10 for the first observation at K = 99 %, 2 for the 25th, and 1 from the Nth.
//!
//! # Observations of several scans
//! The first observation of a threshold counts as many periods as it has scans in which pages had reached that age: that none was
//! promoted at that age before says nothing about it.
//!
//! # Samples
//! Counts of a sample of the pages have an error of their own. A single observation is too short for a bound on it: none of
//! 500 sampled pages accessed may mean three, and more than the objective permits in a period. So the promotions of all
//! observations are added up ([`pooled`]), and the upper 95 % bound of their mean must leave the same margin as the worst
//! observation. In a long history, the sampling error is part of the variation between the periods.

use units::{Millis, RatioPpm};

use super::partial::Taken;
use super::pooled::{OVER_PPM, Pooled, Sample};
use super::window::Observed;
use super::{Input, next_after};
use crate::thresholds::{THRESHOLDS_MAX, Thresholds};

/// Upper bound of the observations that a threshold needs, for percentiles near 100 %.
const NEEDED_MAX: u16 = 500;

/// Returns the observations that a history needs before its percentile K bounds the next period: `1 / (1 - K)`, 500 at most.
#[must_use]
pub fn observations_needed(percentile: RatioPpm) -> u16 {
    let rest = 1_000_000_u32.saturating_sub(percentile.0);
    1_000_000_u32.checked_div(rest).map_or(NEEDED_MAX, |needed| u16::try_from(needed).unwrap_or(NEEDED_MAX).min(NEEDED_MAX))
}

/// Observations of each threshold while its history is young.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Early {
    /// Observations in which pages had reached the threshold.
    pub(super) observations: [u16; THRESHOLDS_MAX],
    /// Most promotions of an observation, in millionths of those permitted, rounded up.
    pub(super) worst_ppm: [u32; THRESHOLDS_MAX],
    /// Age of the job at the last observation, in milliseconds.
    pub(super) last_ms: Millis,
    /// The sum of the observations that were made on a sample of the pages.
    pub(super) pooled: Pooled,
    /// How much of a part of the pages is taken.
    pub(super) taken: Taken,
    /// Whether the first observation of a threshold does not count ([`Early::measured`]).
    pub(super) strict: bool,
}

impl Default for Early {
    fn default() -> Self {
        Self {
            observations: [0; THRESHOLDS_MAX],
            worst_ppm: [0; THRESHOLDS_MAX],
            last_ms: Millis(0),
            pooled: Pooled::default(),
            taken: Taken::default(),
            strict: false,
        }
    }
}

/// One observation of all thresholds.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// Age of the job, in milliseconds.
    pub job_age_ms: Millis,
    /// The time that the promotions cover, in milliseconds.
    pub window_ms: Millis,
    /// Permitted promotions in this time.
    pub allowed: u64,
    /// The sample that the promotions were estimated from; `None` if all pages were counted.
    pub sample: Option<Sample>,
    /// The periods that it consists of.
    pub periods: u16,
}

impl Early {
    /// No measurements; whether the first observation of a threshold does not count.
    #[must_use]
    pub fn new(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }

    /// Adds an observation. `counts` has the promotions at or above each threshold, youngest threshold first, and the periods in which
    /// any page had reached it.
    ///
    /// A controller that decides more often than pages are scanned observes the same promotions again: these are no further
    /// observation ([`next_after`]).
    #[inline]
    pub fn observe(&mut self, observation: &Observation, counts: impl Iterator<Item = (u64, u16)>) {
        let Observation { job_age_ms, window_ms, allowed: of_all, sample, periods } = *observation;
        let elapsed_ms = job_age_ms.checked_sub(self.last_ms);
        if elapsed_ms.is_some_and(|elapsed_ms| self.observations[0] > 0 && elapsed_ms < next_after(window_ms)) {
            return;
        }
        self.last_ms = job_age_ms;
        let measured = self.observations.iter_mut().zip(&mut self.worst_ppm);
        for (index, ((observations, worst), (promotions, reached))) in measured.zip(counts).enumerate() {
            // No older threshold was reached or has promotions either.
            if reached == 0 && promotions == 0 {
                break;
            }
            let reached = reached.clamp(1, periods.max(1));
            let allowed = of_all.saturating_mul(reached.into()) / u64::from(periods.max(1));
            *observations = observations.saturating_add(reached).min(NEEDED_MAX);
            if u128::from(promotions) * 1_000_000 > u128::from(*worst) * u128::from(allowed) {
                *worst = ratio_ppm(promotions, allowed);
            }
            if let Some(sample) = sample {
                self.pooled.add(index, sample, promotions, allowed);
            }
        }
    }

    /// Returns the observations of threshold `index`.
    #[must_use]
    #[inline]
    pub fn observations(&self, index: usize) -> u16 {
        self.observations.get(index).copied().unwrap_or(0)
    }

    /// Returns the observations in which pages at threshold `index` could have been promoted.
    ///
    /// In the first one, pages reach the threshold: none of them was that old before, so none could be promoted at that age.
    #[must_use]
    #[inline]
    pub fn measured(&self, index: usize) -> u16 {
        self.observations(index).saturating_sub(u16::from(self.strict))
    }

    /// Returns whether every percentile is served by the history of each of so many thresholds, the oldest of which meets the objective.
    #[must_use]
    #[inline]
    pub fn complete(&self, thresholds: usize) -> bool {
        // An older threshold has no more observations than a younger one.
        let oldest = thresholds.saturating_sub(1);
        // A job that never met the objective is offloaded by its measurements for good.
        self.observations(oldest) >= NEEDED_MAX && self.worst_ppm.get(oldest).is_some_and(|&worst| worst <= 1_000_000)
    }

    /// Returns whether threshold `index` is expected to meet the objective, if `needed` observations are needed.
    #[must_use]
    #[inline]
    pub fn qualifies(&self, index: usize, needed: u16) -> bool {
        let (observations, Some(&worst)) = (self.measured(index), self.worst_ppm.get(index)) else { return false };
        // worst * sqrt(needed / observations) <= 1
        let worst = u64::from(worst.max(self.pooled.upper_ppm(index)).min(OVER_PPM));
        observations >= needed || (observations > 0 && worst * worst * u64::from(needed) <= u64::from(observations) * 1_000_000_000_000)
    }

    /// Returns how many promotions of threshold `index` are expected at most, in millionths of those permitted; `None` if it was never
    /// observed.
    #[must_use]
    pub fn excess_ppm(&self, index: usize, needed: u16) -> Option<u64> {
        let (observations @ 1.., Some(&worst)) = (self.measured(index), self.worst_ppm.get(index)) else { return None };
        let worst = u128::from(worst.max(self.pooled.upper_ppm(index)));
        // worst * sqrt(needed / observations), or the worst alone of a long history.
        let squared = worst * worst * u128::from(needed.max(observations)) / u128::from(observations);
        u64::try_from(squared.isqrt().saturating_add(1)).ok()
    }

    /// Returns the first of `thresholds` thresholds from `index` on that qualifies; their number if there is none.
    #[must_use]
    #[inline]
    pub fn first_qualifying(&self, index: usize, thresholds: usize, needed: u16) -> usize {
        (index..thresholds).find(|&index| self.qualifies(index, needed)).unwrap_or(thresholds)
    }

    /// Adds what one or more control periods observed; `input` is the last of them.
    pub(super) fn observe_input(&mut self, thresholds: &Thresholds, input: &Input, observed: &Observed) {
        let (mut counts, mut promoted) = ([(0, 0); THRESHOLDS_MAX], 0u64);
        let periods = u16::from(observed.scans);
        let oldest = input.cold.buckets().iter().rposition(|&pages| pages > 0).and_then(|bucket| thresholds.get(bucket.checked_sub(1)?));
        let of_all = observed.promotions.buckets().iter().skip(1).zip(thresholds.as_slice());
        for (index, (&promotions, &age)) in of_all.enumerate().rev() {
            promoted = promoted.saturating_add(promotions);
            // The oldest pages were this old for one scan, and of each younger age for one more.
            let scans = oldest.and_then(|oldest| oldest.0.checked_sub(age.0)).map_or(0, |younger| u16::from(younger) + 1);
            let first = self.observations(index) == 0;
            counts[index] = (promoted, if first { scans.min(periods) } else { scans.min(1) * periods });
        }
        let Input { job_age_ms, window_ms, sample, .. } = *input;
        let observation = Observation { job_age_ms, window_ms, allowed: observed.allowed.0, sample, periods };
        self.observe(&observation, counts[..thresholds.len()].iter().copied());
    }
}

/// A ratio in millionths, rounded up; at most 4,294, also if nothing is allowed.
fn ratio_ppm(promotions: u64, allowed: u64) -> u32 {
    if allowed == 0 {
        return u32::MAX;
    }
    let ppm = match promotions.checked_mul(1_000_000) {
        Some(scaled) => u128::from(scaled.div_ceil(allowed)),
        None => (u128::from(promotions) * 1_000_000).div_ceil(u128::from(allowed)),
    };
    u32::try_from(ppm).unwrap_or(u32::MAX)
}
