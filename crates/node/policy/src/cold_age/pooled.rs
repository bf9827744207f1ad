//! The promotions of a young history that were counted on a sample of the pages, added up over the observations.
//!
//! # Bound
//! Of c sampled pages promoted while the objective permitted m, the mean rate is c / m of the objective. c is a Poisson count,
//! whose upper 95 % bound lies below `c + 1.645 sqrt(c) + 3`. The distance of the bound from c is reduced by the square root of the
//! share of the pages that are not in the sample: nothing is uncertain if all of them are.

use units::Pages;

use crate::thresholds::THRESHOLDS_MAX;

/// A ratio of promotions to permitted promotions that disqualifies a threshold.
pub(super) const OVER_PPM: u32 = 1_000_001;

/// Fractions of a sampled page that sums are kept in.
const FRACTIONS: u64 = 64;

/// The pages that histograms were estimated from, if not all pages were observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sample {
    /// Pages in the sample.
    pub pages: Pages,
    /// Pages that they represent; the counts in the histograms are scaled to these.
    pub of: Pages,
}

impl Sample {
    /// Whether there are pages that are not in the sample.
    #[must_use]
    pub fn is_partial(self) -> bool {
        self.pages < self.of
    }

    /// Returns the share of the pages that are in the sample, in millionths.
    fn share_ppm(self) -> u32 {
        let ppm = u128::from(self.pages.0) * 1_000_000 / u128::from(self.of.0.max(1));
        u32::try_from(ppm).unwrap_or(u32::MAX).min(1_000_000)
    }

    /// Returns how many sampled pages stand for this many pages, in fractions.
    fn fractions(self, pages: u64) -> u64 {
        let scaled = (u128::from(pages) * u128::from(self.pages.0.min(self.of.0))).saturating_mul(u128::from(FRACTIONS));
        let scaled = scaled / u128::from(self.of.0.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

/// Returns how far the upper 95 % bound of a Poisson count is above it, rounded up. Each event counts as `event` in `count` and in
/// the result: `event (1.645 sqrt(count / event) + 3)`.
pub(super) fn above_count(count: u128, event: u128) -> u128 {
    // 1.645^2 is less than 2.707. The square root of a number of parts is that of the events times the root of the parts of one.
    3 * event + 1 + count.saturating_mul(event).saturating_mul(2_707).div_ceil(1_000).isqrt()
}

/// Sums by threshold, in fractions of a sampled page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooled {
    /// Promotions.
    pub(super) promoted: [u64; THRESHOLDS_MAX],
    /// Promotions that the objective permitted in the observations of the threshold.
    pub(super) allowed: [u64; THRESHOLDS_MAX],
    /// The smallest share of the pages that was sampled, in millionths.
    pub(super) share_ppm: u32,
}

impl Default for Pooled {
    fn default() -> Self {
        Self { promoted: [0; THRESHOLDS_MAX], allowed: [0; THRESHOLDS_MAX], share_ppm: 1_000_000 }
    }
}

impl Pooled {
    /// Adds an observation of threshold `index`.
    pub(super) fn add(&mut self, index: usize, sample: Sample, promotions: u64, allowed: u64) {
        let (Some(promoted), Some(permitted)) = (self.promoted.get_mut(index), self.allowed.get_mut(index)) else { return };
        *promoted = promoted.saturating_add(sample.fractions(promotions));
        *permitted = permitted.saturating_add(sample.fractions(allowed));
        self.share_ppm = self.share_ppm.min(sample.share_ppm());
    }

    /// Returns the upper 95 % bound of the promotions of threshold `index`, in millionths of those permitted; 0 if it was only
    /// observed on all pages.
    #[must_use]
    #[inline]
    pub fn upper_ppm(&self, index: usize) -> u32 {
        let (Some(&promoted), Some(&allowed)) = (self.promoted.get(index), self.allowed.get(index)) else { return u32::MAX };
        let unsampled = u128::from(1_000_000_u32.saturating_sub(self.share_ppm));
        if unsampled == 0 {
            return 0;
        }
        let count = u128::from(promoted);
        let error = above_count(count, FRACTIONS.into());
        let error = (error * error * unsampled).div_ceil(1_000_000).isqrt() + 1;
        let ppm = ((count + error) * 1_000_000).checked_div(u128::from(allowed)).unwrap_or(u128::MAX);
        u32::try_from(ppm).unwrap_or(u32::MAX)
    }
}
