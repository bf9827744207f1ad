//! The sampling error of histograms that are estimated from a sample.
//!
//! Successive entries of a job share most of their sample, so a sampled page counts once for each job, however many
//! entries it is in, and a page that was promoted several times counts once. Jobs have different sampling ratios; the
//! effective size of the whole sample is that of Kish. Intervals are score intervals (Wilson for coverage, Poisson for
//! promotions) at 95 % confidence. They hold the sampling error only.

use serde::{Deserialize, Serialize};

/// Sums over the sampled entries of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// Pages that samples stand for, times milliseconds.
    pub page_ms: u128,
    /// Sampled pages, times milliseconds.
    pub sampled_page_ms: u128,
    /// Sum over the jobs of the squared pages, divided by the job's sampled pages. Pages are in units of 2^20
    /// page-milliseconds.
    squares: u128,
}

/// Bits by which page-milliseconds are shifted before they are squared.
const SQUARED_SHIFT: u32 = 20;
/// 95 % of a normal distribution lie within this many standard deviations.
const DEVIATIONS: f64 = 1.959_964;

impl Sampled {
    /// Adds an entry of the current job.
    #[inline]
    pub(crate) fn entry(&mut self, pages: u32, sampled: u32, window_ms: u128) {
        if sampled > 0 {
            self.page_ms += u128::from(pages) * window_ms;
            self.sampled_page_ms += u128::from(sampled) * window_ms;
        }
    }

    /// Ends a job whose sampled entries took this long.
    pub(crate) fn finish_job(&mut self, lasted_ms: u128) {
        let mean = self.sampled_page_ms.checked_div(lasted_ms).unwrap_or(0).max(1);
        let pages = self.page_ms >> SQUARED_SHIFT;
        self.squares = pages.saturating_mul(pages) / mean;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.page_ms = self.page_ms.saturating_add(other.page_ms);
        self.sampled_page_ms = self.sampled_page_ms.saturating_add(other.sampled_page_ms);
        self.squares = self.squares.saturating_add(other.squares);
    }

    /// Returns the effective number of sampled pages; `None` if nothing was sampled.
    #[must_use]
    pub fn pages(&self) -> Option<f64> {
        let pages = real(self.page_ms >> SQUARED_SHIFT);
        (self.squares > 0).then(|| pages * pages / real(self.squares))
    }

    /// Returns the interval of a coverage, as a share; `None` if all pages were counted. All arguments are
    /// page-milliseconds of the whole fleet.
    pub(crate) fn coverage_interval(&self, used: u128, cold: u128, stored: u128) -> Option<[f64; 2]> {
        let pages = self.pages()? * share(cold, used);
        let (coverage, sampled) = (share(stored, cold), share(self.page_ms, used));
        let square = DEVIATIONS * DEVIATIONS;
        let (middle, of) = (coverage * pages + square / 2.0, pages + square);
        let half = DEVIATIONS * (coverage * (1.0 - coverage) * pages + square / 4.0).max(0.0).sqrt();
        // Only the sampled share of the memory has an error.
        Some([middle - half, middle + half].map(|bound| (coverage + sampled * (bound / of - coverage)).clamp(0.0, 1.0)))
    }

    /// Returns the interval of promoted pages; `None` if all pages were counted. The other arguments are
    /// page-milliseconds of the whole fleet.
    pub(crate) fn promotions_interval(&self, used: u128, stored: u128, promotions: u128) -> Option<[f64; 2]> {
        let pages = self.pages()? * share(stored, used);
        let (sampled, ratio) = (share(self.page_ms, used), share(self.sampled_page_ms, self.page_ms));
        let promotions = real(promotions);
        // A sampled page counts once, however often it was promoted.
        let observed = (promotions * sampled * ratio).min(pages);
        let square = DEVIATIONS * DEVIATIONS;
        let half = DEVIATIONS * (observed + square / 4.0).sqrt();
        let error = |bound: f64| if observed > 0.0 { promotions * sampled * (bound / observed - 1.0) } else { bound / ratio };
        Some([observed + square / 2.0 - half, observed + square / 2.0 + half].map(|bound| (promotions + error(bound)).max(0.0)))
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown; no decision depends on its last digits")]
fn real(number: u128) -> f64 {
    number as f64
}

/// Returns `part / whole`; 0 if `whole` is 0.
fn share(part: u128, whole: u128) -> f64 {
    if whole == 0 { 0.0 } else { real(part) / real(whole) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One job of 1,000,000 pages for a minute, 100 of them sampled for each entry of it.
    fn sampled(entries: u32, points: u32) -> Sampled {
        let mut sampled = Sampled::default();
        (0..entries).for_each(|_| sampled.entry(1_000_000, points, 60_000));
        sampled.finish_job(u128::from(entries) * 60_000);
        sampled
    }

    #[test]
    fn a_sampled_page_counts_once_for_a_job() {
        let check = |sampled: Sampled, expected: f64| {
            let pages = sampled.pages().unwrap();
            assert!((pages / expected - 1.0).abs() < 1e-3, "{pages}, not {expected}");
        };
        check(sampled(1, 100), 100.0);
        check(sampled(50, 100), 100.0);
        let mut two = sampled(50, 100);
        two.merge(&sampled(50, 100));
        check(two, 200.0);
        // The errors of two jobs add up, and the job of the smaller sample dominates.
        let mut unequal = sampled(50, 100);
        unequal.merge(&sampled(50, 10_000));
        check(unequal, 4.0 / (1.0 / 100.0 + 1.0 / 10_000.0));
        assert_eq!(Sampled::default().pages(), None);
    }

    #[test]
    fn intervals_are_those_of_the_sample() {
        let (one, used) = (sampled(1, 1_000), 60_000_000_000);
        let close = |found: Option<[f64; 2]>, expected: [f64; 2]| {
            let found = found.unwrap();
            assert!(
                found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.002 * expected.abs().max(0.01)),
                "{found:?}"
            );
        };
        // Half of 400 cold points: Wilson's interval.
        close(one.coverage_interval(used, used * 2 / 5, used / 5), [0.451_3, 0.548_7]);
        // Not certain at an estimate of 0 or 1 either.
        close(one.coverage_interval(used, used * 2 / 5, 0), [0.0, 0.009_51]);
        // 16 events, each of 1,000 pages: Poisson's score interval.
        close(one.promotions_interval(used, used / 5, 16_000), [9_849.0, 25_992.0]);
        close(one.promotions_interval(used, used / 5, 0), [0.0, 3_841.0]);
        // A quarter of the memory was sampled: the rest has no error.
        close(one.coverage_interval(used * 4, used * 4, used * 2), [0.492_27, 0.507_73]);
        assert_eq!(Sampled::default().coverage_interval(used, used, used), None);
    }
}
