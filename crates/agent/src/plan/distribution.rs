//! How often a measured value was how high, in little memory, and what that says about the time to come.
//!
//! # Time to come
//! The share of periods in which a value was above a level is a measurement; the bound on it is Clopper and Pearson's:
//! the largest share under which as few periods as were seen above the level, or fewer, still have a chance of 5 %.
//! Without any period above, it is about 3 / n for n periods: the rule of three.
//!
//! That holds for independent periods, and memory does not come and go independently. As a chain with two states,
//! above and not above, the share varies by a factor (1 + l) / (1 - l) more than with independent periods, l being one
//! minus both chances of a change. A level that is seldom exceeded is seldom entered, so that l is about 1 - 1 / L for a
//! mean stretch of L periods above, and the factor is 2 L - 1. The bound therefore counts only n / (2 L - 1) periods.

use std::collections::BTreeMap;

use policy::units::RatioPpm;
use serde::Serialize;

/// Values are kept to this many leading binary digits, which is to 0.2 %. So a distribution has a few hundred distinct
/// values, however long the journal is.
const LEADING_BITS: u32 = 10;

/// How sure the bound is: the chance that the true share lies above it is 5 %.
pub const CONFIDENCE: f64 = 0.95;

/// A distribution of byte counts or ratios over periods, in the order of time.
#[derive(Clone, Debug, Default)]
pub(super) struct Distribution {
    counts: BTreeMap<u64, u64>,
    /// Summed up to a level: how many stretches of periods above that level there were.
    rises: BTreeMap<u64, i64>,
    /// Summed up to but without a level: how many stretches below it.
    falls: BTreeMap<u64, i64>,
    last: Option<u64>,
    samples: u64,
}

/// The usual percentiles of a distribution, by nearest rank, in its unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// The median.
    pub p50: u64,
    /// Exceeded in 5 % of the periods.
    pub p95: u64,
    /// Exceeded in 1 % of the periods.
    pub p99: u64,
    /// Never exceeded.
    pub max: u64,
}

/// Periods on the wrong side of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tail {
    /// How many.
    pub(super) periods: u64,
    /// In how many stretches without a break.
    pub(super) stretches: u64,
}

/// Which way a value that is kept to its leading digits may err.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rounding {
    /// For what is needed.
    Up,
    /// For what is gained.
    Down,
}

impl Distribution {
    /// One period more.
    pub(super) fn add(&mut self, value: u64, rounding: Rounding) {
        let value = leading(value, rounding);
        *self.counts.entry(value).or_default() += 1;
        self.samples += 1;
        // A level is entered from below where it lies at or above the value before and below this one.
        let before = self.last.unwrap_or(0);
        if before < value {
            *self.rises.entry(before).or_default() += 1;
            *self.rises.entry(value).or_default() -= 1;
        }
        if self.last.is_none_or(|last| last > value) {
            *self.falls.entry(value).or_default() += 1;
            if let Some(last) = self.last {
                *self.falls.entry(last).or_default() -= 1;
            }
        }
        self.last = Some(value);
    }

    /// How many periods there were.
    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// The largest value.
    pub(super) fn max(&self) -> u64 {
        self.counts.last_key_value().map_or(0, |(&value, _)| value)
    }

    /// The percentiles.
    pub(super) fn spread(&self) -> Spread {
        let above = |ppm: u32| self.exceeded_in(RatioPpm(ppm).share_of(self.samples));
        Spread { p50: above(500_000), p95: above(50_000), p99: above(10_000), max: self.max() }
    }

    /// The smallest value that no more than `periods` exceed.
    pub(super) fn exceeded_in(&self, periods: u64) -> u64 {
        let mut above = 0;
        for (&value, &count) in self.counts.iter().rev() {
            above += count;
            if above > periods {
                return value;
            }
        }
        0
    }

    /// The largest value that no more than `periods` fall short of.
    pub(super) fn missed_in(&self, periods: u64) -> u64 {
        let mut below = 0;
        for (&value, &count) in &self.counts {
            below += count;
            if below > periods {
                return value;
            }
        }
        self.max()
    }

    /// The periods above `level`.
    pub(super) fn above(&self, level: u64) -> Tail {
        let stretches: i64 = self.rises.range(..=level).map(|(_, change)| change).sum();
        let periods = self.counts.iter().filter(|&(&value, _)| value > level).map(|(_, count)| count).sum();
        Tail { periods, stretches: u64::try_from(stretches).unwrap_or(0) }
    }

    /// The periods below `level`.
    pub(super) fn below(&self, level: u64) -> Tail {
        let stretches: i64 = self.falls.range(..level).map(|(_, change)| change).sum();
        let periods = self.counts.range(..level).map(|(_, count)| count).sum();
        Tail { periods, stretches: u64::try_from(stretches).unwrap_or(0) }
    }
}

/// `value` kept to its leading digits.
fn leading(value: u64, rounding: Rounding) -> u64 {
    let dropped = (u64::BITS - value.leading_zeros()).saturating_sub(LEADING_BITS);
    let rest = (1u64 << dropped) - 1;
    match rounding {
        Rounding::Down => value & !rest,
        Rounding::Up => value.checked_add(rest).map_or(u64::MAX, |up| up & !rest),
    }
}

/// The bound on the share of periods like `seen` among `samples`, as a fraction of one, at [`CONFIDENCE`].
///
/// `like` tells how long stretches are: a tail of the same distribution at a level where there are some.
pub(super) fn share_max(samples: u64, seen: Tail, like: Tail) -> f64 {
    // Where no stretch was seen, nothing is known of their length.
    let (stretches, factor) = if like.stretches == 0 { (1, 1) } else { (like.stretches, like.periods * 2 - like.stretches) };
    let scaled = |periods: u64| u128::from(periods) * u128::from(stretches);
    let independent = u64::try_from(scaled(samples) / u128::from(factor)).unwrap_or(u64::MAX).max(1);
    let events = u64::try_from(scaled(seen.periods).div_ceil(u128::from(factor))).unwrap_or(u64::MAX);
    clopper_pearson(independent, events)
}

/// The share p at which `events` or fewer of `trials` have the chance 1 - [`CONFIDENCE`].
fn clopper_pearson(trials: u64, events: u64) -> f64 {
    if events >= trials {
        return 1.0;
    }
    let (mut low, mut high) = (0.0, 1.0);
    // The chance falls as p grows; forty halvings are finer than anything that is shown.
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if chance_of_at_most(trials, events, middle) > 1.0 - CONFIDENCE { low = middle } else { high = middle }
    }
    high
}

/// The chance of at most `events` in `trials`, each with the chance `share`, strictly between zero and one.
#[expect(clippy::cast_precision_loss, reason = "periods of centuries are below 2^53")]
fn chance_of_at_most(trials: u64, events: u64, share: f64) -> f64 {
    // The terms of the binomial sum, in logarithms, because the first ones of a long journal are too small for a float.
    let odds = (share / (1.0 - share)).ln();
    let mut term = trials as f64 * (-share).ln_1p();
    let mut chance = term.exp();
    for event in 1..=events {
        term += ((trials - event + 1) as f64 / event as f64).ln() + odds;
        chance += term.exp();
    }
    chance
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[u64]) -> Distribution {
        let mut distribution = Distribution::default();
        values.iter().for_each(|&value| distribution.add(value, Rounding::Up));
        distribution
    }

    #[test]
    fn values_keep_ten_leading_digits_and_err_to_the_safe_side() {
        for (value, up, down) in [
            (0, 0, 0),
            (1023, 1023, 1023),
            (1025, 1026, 1024),
            (700 << 20, 700 << 20, 700 << 20),
            ((1 << 30) + 1, (1 << 30) + (1 << 21), 1 << 30),
            (u64::MAX, u64::MAX, u64::MAX << 54),
        ] {
            assert_eq!((leading(value, Rounding::Up), leading(value, Rounding::Down)), (up, down), "{value}");
        }
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(of(&hundred).spread(), Spread { p50: 50, p95: 95, p99: 99, max: 100 });
        assert_eq!(of(&[7]).spread(), Spread { p50: 7, p95: 7, p99: 7, max: 7 });
        assert_eq!(of(&[]).spread(), Spread::default());
        for (periods, exceeded, missed) in [(0, 100, 1), (1, 99, 2), (99, 1, 100), (100, 0, 100)] {
            let all = of(&hundred);
            assert_eq!((all.exceeded_in(periods), all.missed_in(periods)), (exceeded, missed), "{periods} periods");
        }
    }

    /// Counts in the plain way: look at every value.
    fn stretches(values: &[u64], wanted: impl Fn(u64) -> bool) -> Tail {
        let hits: Vec<bool> = values.iter().map(|&value| wanted(value)).collect();
        let starts = hits.iter().enumerate().filter(|&(at, &hit)| hit && (at == 0 || !hits[at - 1])).count();
        Tail { periods: hits.iter().filter(|&&hit| hit).count() as u64, stretches: starts as u64 }
    }

    #[test]
    fn stretches_are_counted_at_every_level() {
        for values in [&[5, 5, 1, 9, 9, 9, 3, 5][..], &[0, 0, 4], &[8, 2, 8, 2], &[3], &[]] {
            let distribution = of(values);
            for level in 0..=10 {
                assert_eq!(distribution.above(level), stretches(values, |value| value > level), "{values:?} above {level}");
                assert_eq!(distribution.below(level), stretches(values, |value| value < level), "{values:?} below {level}");
            }
        }
    }

    #[test]
    fn the_bound_is_that_of_the_tables() {
        // One-sided 95 % limits by Clopper and Pearson, to four places.
        for (trials, events, want) in [(1, 0, 0.95), (10, 0, 0.2589), (10, 1, 0.3942), (100, 5, 0.1023), (299, 0, 0.01), (3, 3, 1.0)] {
            let bound = clopper_pearson(trials, events);
            assert!((bound - want).abs() < 6e-5, "{events} of {trials}: {bound}");
        }
        let long = clopper_pearson(1_000_000, 10_000);
        assert!((0.01..0.0102).contains(&long), "{long}");
    }

    #[test]
    fn long_stretches_count_less() {
        let none = Tail::default();
        let singles = Tail { periods: 10, stretches: 10 };
        let tens = Tail { periods: 10, stretches: 1 };
        assert!((share_max(1000, none, none) - 0.003).abs() < 1e-4);
        assert!((share_max(1000, singles, singles) - clopper_pearson(1000, 10)).abs() < 1e-9);
        // One stretch of ten: 1000 / 19 = 52 independent periods, and 10 / 19 of one event, rounded up.
        assert!((share_max(1000, tens, tens) - clopper_pearson(52, 1)).abs() < 1e-9);
    }
}
