//! The grid of parameters that a replay evaluates.

use policy::thresholds::Thresholds;
use serde::{Deserialize, Serialize};
use units::{Age, Millis, RatioPpm};

/// Maximum percentiles, and maximum warm-ups, of a grid.
pub const AXIS_MAX: usize = 1_000;

/// Maximum pairs of a grid: each takes 388 bytes per group and thread, and 256 for every 32 bins of rates in use.
pub const PAIRS_MAX: usize = 50_000;

/// Percentiles K and warm-ups S. A replay evaluates all their pairs at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    percentiles: Vec<RatioPpm>,
    warmups: Vec<Millis>,
}

/// Reason why parameters do not form a grid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GridError {
    /// An axis is empty or too long.
    #[error("{0} {1}; give 1 to {AXIS_MAX}")]
    Count(usize, &'static str),
    /// Too many pairs.
    #[error("{0} pairs of percentile and warm-up; give {PAIRS_MAX} at most")]
    Pairs(usize),
    /// A percentile is above 100 %.
    #[error("a percentile of {0}; 100% is the highest")]
    Percentile(RatioPpm),
}

impl Grid {
    /// Creates a grid of these percentiles and warm-ups. Order and repetition do not matter.
    ///
    /// # Errors
    /// [`GridError`] for an empty axis, too many values, or a percentile above 100 %.
    pub fn new(mut percentiles: Vec<RatioPpm>, mut warmups: Vec<Millis>) -> Result<Self, GridError> {
        percentiles.sort_unstable();
        percentiles.dedup();
        warmups.sort_unstable();
        warmups.dedup();
        for (count, what) in [(percentiles.len(), "percentiles"), (warmups.len(), "warm-ups")] {
            if !(1..=AXIS_MAX).contains(&count) {
                return Err(GridError::Count(count, what));
            }
        }
        if percentiles.len() * warmups.len() > PAIRS_MAX {
            return Err(GridError::Pairs(percentiles.len() * warmups.len()));
        }
        match percentiles.last() {
            Some(&highest) if highest > RatioPpm::ONE => Err(GridError::Percentile(highest)),
            _ => Ok(Self { percentiles, warmups }),
        }
    }

    /// Returns the percentiles in ascending order.
    #[must_use]
    pub fn percentiles(&self) -> &[RatioPpm] {
        &self.percentiles
    }

    /// Returns the warm-ups in ascending order.
    #[must_use]
    pub fn warmups(&self) -> &[Millis] {
        &self.warmups
    }

    /// Returns the number of pairs.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.percentiles.len() * self.warmups.len()
    }
}

/// Parameters of a whole pass: each setup takes a pass of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// P: promotions per minute allowed, as a share of the working set.
    pub promotion_rate_max: RatioPpm,
    /// Minimum age, in scans, of pages that may leave DRAM; younger pages are the working set. The first threshold of
    /// the traces applies if it is older.
    pub minimum_cold_age: Age,
    /// Half-life of past best thresholds; zero weights all alike.
    pub half_life_ms: Millis,
    /// Whether a best threshold above the percentile takes effect at once (the rule for spikes).
    pub spikes: bool,
    /// Whether the threshold is an upper bound also while the history is short.
    pub bound: bool,
    /// Whether agents offload a part of the pages where no threshold qualifies. The parts are not modelled; a threshold counts as
    /// measured from its second observation on.
    pub partial: bool,
}

impl Setup {
    /// Creates a setup with the minimum age of the traces, equal weights, the rule for spikes and no bound.
    #[must_use]
    pub const fn new(promotion_rate_max: RatioPpm) -> Self {
        Self { promotion_rate_max, minimum_cold_age: Age(1), half_life_ms: Millis::ZERO, spikes: true, bound: false, partial: false }
    }

    /// Returns the index of the first threshold that may be chosen; `None` if no threshold is that old.
    #[must_use]
    pub fn first(&self, thresholds: &Thresholds) -> Option<usize> {
        thresholds.as_slice().iter().position(|&age| age >= self.minimum_cold_age)
    }
}

impl std::fmt::Display for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (age, half_life) = (self.minimum_cold_age.0, self.half_life_ms.0);
        let Self { promotion_rate_max, spikes, bound, .. } = self;
        write!(f, "P {promotion_rate_max}, minimum age {age} scans, half-life {half_life} ms, spikes {spikes}, bound {bound}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_sorted_and_checked() {
        let ppm = |list: &[u32]| list.iter().map(|&k| RatioPpm(k)).collect::<Vec<_>>();
        let check = |ks: &[u32], ss: &[u64], expected: Result<usize, GridError>| {
            assert_eq!(Grid::new(ppm(ks), ss.iter().copied().map(Millis).collect()).map(|grid| grid.pairs()), expected);
        };
        check(&[990_000, 900_000, 990_000], &[600, 0], Ok(4));
        check(&[], &[0], Err(GridError::Count(0, "percentiles")));
        check(&[1], &[], Err(GridError::Count(0, "warm-ups")));
        check(&[1_000_001], &[0], Err(GridError::Percentile(RatioPpm(1_000_001))));
        let many: Vec<u32> = (0..1_000).collect();
        check(&many, &(0..51).collect::<Vec<_>>(), Err(GridError::Pairs(51_000)));
        let grid = Grid::new(ppm(&[990_000, 900_000]), vec![Millis(600), Millis::ZERO]).unwrap();
        assert_eq!((grid.percentiles(), grid.warmups()), (&ppm(&[900_000, 990_000])[..], &[Millis::ZERO, Millis(600)][..]));
    }

    #[test]
    fn a_minimum_age_is_rounded_up_to_a_threshold() {
        let thresholds = Thresholds::try_from(vec![1, 4, 10]).unwrap();
        let first = |age| Setup { minimum_cold_age: Age(age), ..Setup::new(RatioPpm(2_000)) }.first(&thresholds);
        assert_eq!([0, 1, 2, 4, 10, 11].map(first), [Some(0), Some(0), Some(1), Some(1), Some(2), None]);
    }
}
