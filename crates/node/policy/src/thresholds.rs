//! The predefined set of cold-age thresholds (SDFM section 4.4).
//!
//! The controller, its histograms, the journal and every replay share one set. A histogram folded into these buckets therefore
//! contains everything that the controller reads, and a replay decides exactly as the agent did.

use serde::{Deserialize, Serialize};

use units::Age;

/// The largest set that a histogram supports.
pub const THRESHOLDS_MAX: usize = 64;

/// The cold ages that a job's threshold is chosen from: strictly increasing, the first at least one scan period.
///
/// The first is the *minimum cold age*: pages younger than it are the working set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct Thresholds {
    ages: [Age; THRESHOLDS_MAX],
    len: usize,
}

/// Why a list of ages is not a set of thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThresholdsError {
    /// Fewer than two, or more than [`THRESHOLDS_MAX`].
    Count(usize),
    /// The age at this index is zero, or does not exceed the one before it.
    Order(usize),
}

impl std::fmt::Display for ThresholdsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(n) => write!(f, "{n} cold-age thresholds; there must be 2 to {THRESHOLDS_MAX}"),
            Self::Order(i) => write!(f, "cold-age threshold {i} is zero or not above the one before it"),
        }
    }
}

impl std::error::Error for ThresholdsError {}

impl Thresholds {
    /// Returns `count` thresholds from 1 to 255 scan periods, spaced by about equal factors.
    ///
    /// The i-th of n is `255^(i / (n - 1))` scan periods, rounded, and at least one more than its predecessor: where the factor is
    /// less than one scan period, the set is 1, 2, 3, ...
    ///
    /// # Errors
    /// [`ThresholdsError::Count`] unless `count` is 2 to [`THRESHOLDS_MAX`].
    pub fn log_spaced(count: usize) -> Result<Self, ThresholdsError> {
        if !(2..=THRESHOLDS_MAX).contains(&count) {
            return Err(ThresholdsError::Count(count));
        }
        let mut ages = Vec::with_capacity(count);
        let mut last = 0u8;
        for i in 0..count {
            #[expect(clippy::cast_precision_loss, reason = "both are below 64")]
            let exact = 255f64.powf(i as f64 / (count - 1) as f64).round();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 255 by construction")]
            let age = (exact as u8).max(last.saturating_add(1));
            ages.push(age);
            last = age;
        }
        Self::try_from(ages)
    }

    /// Returns the ages, youngest first.
    #[must_use]
    pub fn as_slice(&self) -> &[Age] {
        &self.ages[..self.len]
    }

    /// Returns the number of thresholds, at least two.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the age of threshold `index`; `None` past the end, which means "no threshold".
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Age> {
        self.as_slice().get(index).copied()
    }

    /// Returns the youngest threshold. Younger pages are the working set (SDFM section 4.2).
    #[must_use]
    pub fn minimum_cold_age(&self) -> Age {
        self.ages[0]
    }
}

impl TryFrom<Vec<u8>> for Thresholds {
    type Error = ThresholdsError;

    fn try_from(list: Vec<u8>) -> Result<Self, ThresholdsError> {
        if !(2..=THRESHOLDS_MAX).contains(&list.len()) {
            return Err(ThresholdsError::Count(list.len()));
        }
        let mut ages = [Age(0); THRESHOLDS_MAX];
        let mut last = 0;
        for (i, &age) in list.iter().enumerate() {
            if age <= last {
                return Err(ThresholdsError::Order(i));
            }
            ages[i] = Age(age);
            last = age;
        }
        Ok(Self { ages, len: list.len() })
    }
}

impl From<Thresholds> for Vec<u8> {
    fn from(set: Thresholds) -> Self {
        set.as_slice().iter().map(|age| age.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_set_is_the_documented_one() {
        let set: Vec<u8> = Thresholds::log_spaced(32).unwrap().into();
        let expected =
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 21, 25, 30, 36, 43, 51, 61, 73, 87, 104, 125, 149, 178, 213, 255];
        assert_eq!(set, expected);
    }

    #[test]
    fn every_set_increases_from_one_scan_to_the_oldest_age() {
        for count in 2..=THRESHOLDS_MAX {
            let set = Thresholds::log_spaced(count).unwrap();
            assert_eq!(set.len(), count);
            assert_eq!(set.minimum_cold_age(), Age(1));
            assert_eq!(set.as_slice().last(), Some(&Age::MAX));
            assert!(set.as_slice().windows(2).all(|w| w[0] < w[1]), "{set:?}");
        }
        for count in [0, 1, 65, usize::MAX] {
            assert_eq!(Thresholds::log_spaced(count), Err(ThresholdsError::Count(count)));
        }
    }

    #[test]
    fn invalid_sets_are_refused() {
        let parse = |text: &str| serde_json::from_str::<Thresholds>(text).map_err(|e| e.to_string());
        assert!(parse("[1,2,255]").is_ok());
        for bad in ["[]", "[1]", "[0,1]", "[2,2]", "[3,1]", "[1,256]"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
