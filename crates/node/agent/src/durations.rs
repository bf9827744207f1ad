//! Distributions of durations, in buckets that are wider the longer the duration: one in eight at most.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// Buckets between a duration and twice that.
const STEPS: u64 = 8;

/// How long a duration is remembered: between one and two of these.
const WINDOW: Duration = Duration::from_hours(1);

/// Shares of the durations that are reported, in percent.
const SHARES: [u64; 3] = [50, 90, 99];

/// How many durations fell into each bucket. Few buckets are in use: what is measured differs by some orders of magnitude.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations(BTreeMap<u64, u64>);

/// Upper bounds of the shortest half, nine tenths and 99 % of some durations: each is at most an eighth above the exact quantile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// How many durations.
    pub count: u64,
    /// The median, in microseconds.
    pub p50_us: f64,
    /// The 90th percentile, in microseconds.
    pub p90_us: f64,
    /// The 99th percentile, in microseconds.
    pub p99_us: f64,
}

impl Durations {
    /// Adds `count` durations of this length.
    pub fn add(&mut self, duration: Duration, count: u64) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let sum = self.0.entry(bucket(ns)).or_default();
        *sum = sum.saturating_add(count);
    }

    /// Their quantiles; `None` without any duration.
    #[must_use]
    pub fn quantiles(&self) -> Option<Quantiles> {
        let count = self.0.values().fold(0u64, |sum, count| sum.saturating_add(*count));
        let [p50_us, p90_us, p99_us] = SHARES.map(|share| self.quantile(count, share));
        (count > 0).then_some(Quantiles { count, p50_us, p90_us, p99_us })
    }

    /// The upper edge of the bucket that this share of `count` durations is in or below, in microseconds.
    #[expect(clippy::cast_precision_loss, reason = "shown to people")]
    fn quantile(&self, count: u64, percent: u64) -> f64 {
        let rank = (u128::from(count) * u128::from(percent)).div_ceil(100);
        let mut below = 0u128;
        let reached = self.0.iter().find(|(_, count)| {
            below += u128::from(**count);
            below >= rank
        });
        reached.map_or(0.0, |(bucket, _)| edge(*bucket) as f64 / 1e3)
    }

    fn merged(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        for (bucket, count) in &other.0 {
            let entry = sum.0.entry(*bucket).or_default();
            *entry = entry.saturating_add(*count);
        }
        sum
    }
}

/// The bucket of a duration in nanoseconds.
fn bucket(ns: u64) -> u64 {
    if ns < STEPS {
        return ns;
    }
    let exponent = u64::from(ns.ilog2());
    // The three bits below the highest one.
    exponent * STEPS + ((ns >> (exponent - 3)) & (STEPS - 1))
}

/// The longest duration of a bucket, in nanoseconds.
fn edge(bucket: u64) -> u64 {
    if bucket < STEPS {
        return bucket;
    }
    let (exponent, step) = (bucket / STEPS, bucket % STEPS);
    let above = u128::from(STEPS + step + 1) << (exponent - 3);
    u64::try_from(above - 1).unwrap_or(u64::MAX)
}

/// The durations of the last one to two hours.
#[derive(Clone, Debug, Default)]
pub struct RecentDurations {
    began: Duration,
    newer: Durations,
    older: Durations,
}

impl RecentDurations {
    /// Forgets what is too old.
    pub fn age(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.began);
        if passed < WINDOW {
            return;
        }
        let newer = std::mem::take(&mut self.newer);
        self.older = if passed < 2 * WINDOW { newer } else { Durations::default() };
        self.began = now;
    }

    /// Adds `count` durations of this length.
    pub fn add(&mut self, duration: Duration, count: u64) {
        self.newer.add(duration, count);
    }

    /// Their quantiles; `None` without any duration.
    #[must_use]
    pub fn quantiles(&self) -> Option<Quantiles> {
        self.newer.merged(&self.older).quantiles()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_quantile_is_at_most_an_eighth_above_the_exact_one(mut all in proptest::collection::vec(1u64..1 << 40, 1..200)) {
            let mut durations = Durations::default();
            all.iter().for_each(|&ns| durations.add(Duration::from_nanos(ns), 1));
            all.sort_unstable();
            let found = durations.quantiles().unwrap();
            prop_assert_eq!(found.count, all.len() as u64);
            for (share, us) in [(50, found.p50_us), (90, found.p90_us), (99, found.p99_us)] {
                #[expect(clippy::cast_precision_loss, reason = "a test")]
                let exact = all[(all.len() * share).div_ceil(100) - 1] as f64 / 1e3;
                prop_assert!((exact..=exact * 1.125 + 0.001).contains(&us), "{us} of {exact} at {share} %");
            }
        }
    }

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        let mut last = bucket(0);
        for ns in 1..100_000u64 {
            let now = bucket(ns);
            assert!(now == last || (edge(last) == ns - 1 && now > last), "{ns}");
            last = now;
        }
        assert_eq!(edge(bucket(u64::MAX)), u64::MAX);
    }

    #[test]
    fn old_durations_are_forgotten() {
        let mut recent = RecentDurations::default();
        let count = |recent: &RecentDurations| recent.quantiles().map_or(0, |found| found.count);
        recent.add(Duration::from_micros(5), 3);
        recent.age(WINDOW / 2);
        assert_eq!(count(&recent), 3);
        recent.age(WINDOW);
        recent.add(Duration::from_micros(5), 1);
        assert_eq!(count(&recent), 4, "remembered for an hour at least");
        recent.age(2 * WINDOW);
        assert_eq!(count(&recent), 1);
        recent.age(9 * WINDOW);
        assert_eq!(recent.quantiles(), None);
    }
}
