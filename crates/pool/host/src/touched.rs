//! The memory that a guest has touched over its life, in a bounded number of values.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use units::Bytes;

/// Most values of a guest.
pub const VALUES_MAX: usize = 32;

/// The memory that a guest had touched by the ends of equal intervals of its life.
///
/// What was touched stays touched, so no value is below the one before, and an interval without a sample has the value of the one
/// before. The intervals of a guest that lives longer than [`VALUES_MAX`] of them become twice as long, again and again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touched {
    /// Length of an interval. The first one begins at the guest's start.
    pub interval_seconds: u64,
    /// Touched memory, local and in the pool, by the end of each interval; of the last one, by the last sample.
    pub bytes: Vec<Bytes>,
}

impl Touched {
    /// Adds a sample that was taken at this age of the guest. `interval` is the length of an interval at first.
    pub fn add(&mut self, age: Duration, touched: Bytes, interval: Duration) {
        if self.bytes.is_empty() {
            self.interval_seconds = interval.as_secs();
        }
        // Of a guest's file, it may be anything.
        self.interval_seconds = self.interval_seconds.max(1);
        while age.as_secs() / self.interval_seconds >= VALUES_MAX as u64 {
            self.interval_seconds = self.interval_seconds.saturating_mul(2);
            self.bytes = self.bytes.chunks(2).filter_map(|pair| pair.last().copied()).collect();
        }
        let before = self.bytes.last().copied().unwrap_or_default();
        let at = usize::try_from(age.as_secs() / self.interval_seconds).unwrap_or(VALUES_MAX - 1);
        // A clock that was set back changes nothing of earlier intervals.
        self.bytes.resize(self.bytes.len().max(at + 1), before);
        if let Some(last) = self.bytes.last_mut() {
            *last = before.max(touched);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD: Duration = Duration::from_secs(1_800);

    fn of(samples: &[(u64, u64)]) -> Touched {
        let mut touched = Touched::default();
        for &(age, bytes) in samples {
            touched.add(Duration::from_secs(age), Bytes(bytes), PERIOD);
        }
        touched
    }

    #[test]
    fn intervals_without_a_sample_have_the_value_before() {
        let check = |samples: &[(u64, u64)], interval: u64, expected: &[u64]| {
            let Touched { interval_seconds, bytes } = of(samples);
            assert_eq!((interval_seconds, bytes.iter().map(|bytes| bytes.0).collect::<Vec<_>>()), (interval, expected.to_vec()));
        };
        check(&[(0, 5)], 1_800, &[5]);
        check(&[(10, 5), (1_799, 7), (1_800, 6)], 1_800, &[7, 7]);
        check(&[(10, 5), (3 * 1_800, 9)], 1_800, &[5, 5, 5, 9]);
        // The first sample came late, and then the clock was set back.
        check(&[(2 * 1_800, 3), (0, 4)], 1_800, &[0, 0, 4]);
        check(&[(31 * 1_800, 3)], 1_800, &[[0; 31].as_slice(), &[3]].concat());
        check(&[(0, 1), (1_800, 2), (32 * 1_800, 3)], 3_600, &[[2; 16].as_slice(), &[3]].concat());
    }

    proptest! {
        /// Each value is the most that was touched at any sample up to the end of its interval, however long the guest lives.
        #[test]
        fn values_are_those_of_all_samples(samples in prop::collection::vec((0u64..40_000, any::<u64>()), 1..200)) {
            let mut age = 0;
            let samples: Vec<(u64, u64)> = samples.into_iter().map(|(after, bytes)| { age += after; (age, bytes) }).collect();
            let touched = of(&samples);
            prop_assert!(touched.bytes.len() <= VALUES_MAX);
            for (at, value) in touched.bytes.iter().enumerate() {
                let end = (at as u64 + 1) * touched.interval_seconds;
                let most = samples.iter().filter(|(age, _)| *age < end).map(|(_, bytes)| *bytes).max();
                prop_assert_eq!(value.0, most.unwrap_or(0));
            }
            prop_assert!(touched.interval_seconds == 1_800 || touched.bytes.len() > VALUES_MAX / 2, "no interval is longer than needed");
        }

        #[test]
        fn nothing_of_a_file_or_a_clock_stops_the_daemon(interval in any::<u64>(), ages in prop::collection::vec(any::<u64>(), 1..20)) {
            let mut touched = Touched { interval_seconds: interval, bytes: vec![Bytes(1)] };
            for age in ages {
                touched.add(Duration::from_secs(age), Bytes(1), Duration::ZERO);
                prop_assert!(touched.bytes.len() <= VALUES_MAX);
            }
        }
    }
}
