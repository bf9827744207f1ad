//! How the ages of an entry were obtained.
//!
//! A tracker distinguishes ages up to some age only (`lru_gen`: two scans). Its histograms say nothing about a threshold
//! above that age, and what they show there is no measurement. An outcome at such a threshold is counted as unresolved.

use policy::thresholds::Thresholds;
use units::Age;

/// How the ages of an entry were obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Index of the tracker in [`crate::series::Series::trackers`].
    pub tracker: u8,
    /// The oldest age that the tracker distinguished; 0 if unknown.
    pub resolved_to: Age,
    /// Number of thresholds up to that age; all if it is unknown.
    pub resolved_thresholds: u8,
    /// Pages of the sample; 0 if all pages were counted.
    pub sampled: u32,
}

impl Origin {
    /// Returns the origin of exact ages.
    pub(crate) fn exact(thresholds: &Thresholds) -> Self {
        Self::new(thresholds, 0, Age::MAX, 0)
    }

    pub(crate) fn new(thresholds: &Thresholds, tracker: u8, resolved_to: Age, sampled: u32) -> Self {
        let ages = thresholds.as_slice();
        let resolved = if resolved_to == Age(0) { ages.len() } else { ages.partition_point(|&age| age <= resolved_to) };
        Self { tracker, resolved_to, resolved_thresholds: u8::try_from(resolved).unwrap_or(u8::MAX), sampled }
    }

    /// Returns whether the histograms say something about the threshold with this index.
    #[must_use]
    #[inline]
    pub fn resolves(&self, threshold: usize) -> bool {
        threshold < usize::from(self.resolved_thresholds)
    }
}
