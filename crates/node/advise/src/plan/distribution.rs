//! Distributions of measured values in little memory, and upper bounds on future shares.
//!
//! # Upper bound
//! The share of periods in which a value was above a level is a measurement. Its upper bound is that of Clopper and
//! Pearson: the largest share for which the observed number of periods above the level, or fewer, has a probability of
//! 5 %. Without any period above, it is about 3 / n for n periods (the rule of three). The bound also holds for a level
//! chosen from the same n periods: the true share above the value that k of them exceeded has the distribution Beta(k +
//! 1, n - k), and the bound is its 95th percentile.
//!
//! # Independent periods
//! This assumes independent periods, but memory usage is correlated in time, so fewer periods are counted than were
//! observed. The variance of the mean of n independent values is 1 / n of that of one value. If the means of blocks of
//! b periods have f times that variance, n periods carry as much information as n / f independent ones (Flyvbjerg and
//! Petersen, "Error estimates on averages of correlated data", 1989). f grows with b until blocks are longer than the
//! correlation; the largest f over all powers of two with enough blocks is used. In simulated series of 1440 periods
//! whose values last for 1 to 100 periods, with and without noise, the true share was below the bound in at least 93 %
//! of the runs (see the test). The method fails for a journal that is shorter than the correlation.

use std::collections::BTreeMap;

use serde::Serialize;
use units::RatioPpm;

/// Values are rounded to this number of leading binary digits, a precision of 0.2 %, so that a distribution has a few
/// hundred distinct values, however long the journal is.
const LEADING_BITS: u32 = 10;

/// Confidence of the upper bound: the probability that the true share is above it is 5 %.
pub const CONFIDENCE: f64 = 0.95;

/// Distribution of byte counts or ratios over periods, added in the order of time.
#[derive(Clone, Debug, Default)]
pub(super) struct Distribution {
    counts: BTreeMap<u64, u64>,
    blocks: Blocks,
    samples: u64,
}

/// Percentiles of a distribution, by nearest rank, in its unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// The median.
    pub p50: u64,
    /// Exceeded in 5 % of the periods.
    pub p95: u64,
    /// Exceeded in 1 % of the periods.
    pub p99: u64,
    /// The maximum.
    pub max: u64,
}

/// Direction in which values are rounded to their leading digits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rounding {
    /// For demand.
    Up,
    /// For savings.
    Down,
}

impl Distribution {
    /// Adds one period.
    pub(super) fn add(&mut self, value: u64, rounding: Rounding) {
        let value = leading(value, rounding);
        *self.counts.entry(value).or_default() += 1;
        self.samples += 1;
        self.blocks.add(value);
    }

    /// Returns the number of periods.
    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the largest value.
    pub(super) fn max(&self) -> u64 {
        self.counts.last_key_value().map_or(0, |(&value, _)| value)
    }

    /// Returns the percentiles.
    pub(super) fn spread(&self) -> Spread {
        let above = |ppm: u32| self.exceeded_in(RatioPpm(ppm).share_of(self.samples));
        Spread { p50: above(500_000), p95: above(50_000), p99: above(10_000), max: self.max() }
    }

    /// Returns the smallest value that at most `periods` periods exceed.
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

    /// Returns the largest value that at most `periods` periods are below.
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

    /// Returns the number of periods above `level`.
    pub(super) fn above(&self, level: u64) -> u64 {
        self.counts.iter().rev().take_while(|&(&value, _)| value > level).map(|(_, count)| count).sum()
    }

    /// Returns the number of periods below `level`.
    pub(super) fn below(&self, level: u64) -> u64 {
        self.counts.range(..level).map(|(_, count)| count).sum()
    }

    /// Returns the number of independent periods with the same information.
    pub(super) fn independent(&self) -> u64 {
        count(shrink(self.samples, self.blocks.inefficiency()).floor()).max(1)
    }

    /// Returns the upper bound of a future share of which `observed` periods were observed, as a fraction of one, at
    /// [`CONFIDENCE`].
    pub(super) fn share_max(&self, observed: u64) -> f64 {
        clopper_pearson(self.independent(), count(shrink(observed, self.blocks.inefficiency()).ceil()))
    }
}

/// Means of blocks of 1, 2, 4, ... successive values.
#[derive(Clone, Debug, Default)]
struct Blocks {
    lengths: Vec<Means>,
}

/// Means of all blocks of one length: their number, mean and sum of squared deviations (Welford), and one block that
/// waits for the next to form a block of twice the length.
#[derive(Clone, Copy, Debug, Default)]
struct Means {
    count: u64,
    mean: f64,
    squares: f64,
    waiting: Option<f64>,
}

/// Lower limit of the number of blocks for estimating the variance of their means.
const BLOCKS_MIN: u64 = 8;

impl Blocks {
    #[expect(clippy::cast_precision_loss, reason = "a variance need not be exact to the byte")]
    fn add(&mut self, value: u64) {
        let mut value = value as f64;
        for at in 0.. {
            if at == self.lengths.len() {
                self.lengths.push(Means::default());
            }
            let means = &mut self.lengths[at];
            means.count += 1;
            let distance = value - means.mean;
            means.mean += distance / means.count as f64;
            means.squares += distance * (value - means.mean);
            match means.waiting.take() {
                Some(neighbour) => value = f64::midpoint(neighbour, value),
                None => {
                    means.waiting = Some(value);
                    return;
                }
            }
        }
    }

    /// Returns the variance of the mean relative to that of independent values; at least one.
    fn inefficiency(&self) -> f64 {
        let lengths = self.lengths.iter().take_while(|means| means.count >= BLOCKS_MIN);
        let ratios = lengths.scan((1.0, None), |(length, single), means| {
            #[expect(clippy::cast_precision_loss, reason = "periods of centuries are below 2^53")]
            let variance = means.squares / (means.count - 1) as f64;
            let ratio = *length * variance / *single.get_or_insert(variance);
            *length *= 2.0;
            Some(ratio)
        });
        // The ratio of constant values is NaN, which `f64::max` ignores.
        ratios.fold(1.0, f64::max)
    }
}

/// Rounds `value` to its leading digits.
fn leading(value: u64, rounding: Rounding) -> u64 {
    let dropped = (u64::BITS - value.leading_zeros()).saturating_sub(LEADING_BITS);
    let rest = (1u64 << dropped) - 1;
    match rounding {
        Rounding::Down => value & !rest,
        Rounding::Up => value.checked_add(rest).map_or(u64::MAX, |up| up & !rest),
    }
}

#[expect(clippy::cast_precision_loss, reason = "periods of centuries are below 2^53")]
fn shrink(periods: u64, factor: f64) -> f64 {
    periods as f64 / factor
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count that was divided by one or more")]
fn count(whole: f64) -> u64 {
    whole as u64
}

/// Returns the share at which `events` or fewer of `trials` have the probability 1 - [`CONFIDENCE`].
fn clopper_pearson(trials: u64, events: u64) -> f64 {
    if events >= trials {
        return 1.0;
    }
    let (mut low, mut high) = (0.0, 1.0);
    // The probability decreases with the share; forty bisections are more precise than any output.
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if probability_of_at_most(trials, events, middle) > 1.0 - CONFIDENCE { low = middle } else { high = middle }
    }
    high
}

/// Returns the probability of at most `events` in `trials` with probability `share` each, strictly between zero and
/// one.
#[expect(clippy::cast_precision_loss, reason = "periods of centuries are below 2^53")]
fn probability_of_at_most(trials: u64, events: u64, share: f64) -> f64 {
    // The terms of the binomial sum as logarithms, because the first terms of a long journal underflow.
    let odds = (share / (1.0 - share)).ln();
    let mut term = trials as f64 * (-share).ln_1p();
    let mut sum = term.exp();
    for event in 1..=events {
        term += ((trials - event + 1) as f64 / event as f64).ln() + odds;
        sum += term.exp();
    }
    sum
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
    fn values_are_rounded_to_ten_leading_digits_in_the_safe_direction() {
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
        let all = of(&hundred);
        for (periods, exceeded, missed) in [(0, 100, 1), (1, 99, 2), (99, 1, 100), (100, 0, 100)] {
            assert_eq!((all.exceeded_in(periods), all.missed_in(periods)), (exceeded, missed), "{periods} periods");
        }
        assert_eq!([0, 1, 99, 100].map(|level| (all.above(level), all.below(level))), [(100, 0), (99, 0), (1, 98), (0, 99)]);
    }

    #[test]
    fn upper_bounds_agree_with_published_tables() {
        // One-sided 95 % limits by Clopper and Pearson, to four decimals.
        for (trials, events, want) in [(1, 0, 0.95), (10, 0, 0.2589), (10, 1, 0.3942), (100, 5, 0.1023), (299, 0, 0.01), (3, 3, 1.0)] {
            let bound = clopper_pearson(trials, events);
            assert!((bound - want).abs() < 6e-5, "{events} of {trials}: {bound}");
        }
        let long = clopper_pearson(1_000_000, 10_000);
        assert!((0.01..0.0102).contains(&long), "{long}");
    }

    #[test]
    fn correlated_periods_count_less() {
        // Alternating low and high stretches of one length.
        let stretches = |length: usize, count: usize| {
            let values: Vec<u64> = (0..count).flat_map(|at| std::iter::repeat_n(if at % 2 == 0 { 100 } else { 200 }, length)).collect();
            of(&values)
        };
        let check = |values: &Distribution, want: u64| assert_eq!(values.independent(), want);
        check(&stretches(1, 1024), 1024);
        // The number of stretches, less one degree of freedom for the mean.
        check(&stretches(8, 128), 127);
        check(&stretches(64, 16), 15);
        check(&stretches(1024, 1), 1024);
        check(&of(&[5]), 1);
        check(&of(&[]), 1);
        let slow = stretches(8, 128);
        assert!((slow.share_max(0) - clopper_pearson(slow.independent(), 0)).abs() < 1e-12);
        assert!((slow.share_max(9) - clopper_pearson(slow.independent(), 2)).abs() < 1e-12, "9 periods are more than one stretch of 8");
    }

    /// Returns the next number of a sequence, uniform from 0 to 2^20 - 1 (Marsaglia's xorshift).
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state >> 44
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "numbers below 2^21")]
    fn the_true_share_is_below_its_bound_at_the_stated_confidence() {
        const RUNS: usize = 300;
        const PERIODS: u64 = 1440;
        // A value lasts for a mean number of periods, then another one is drawn; with or without noise.
        let check = |lasts: u64, noise: bool| {
            let mut state = 0x9e37_79b9_7f4a_7c15 ^ lasts;
            let held = (0..RUNS).filter(|_| {
                let mut distribution = Distribution::default();
                let mut value = random(&mut state);
                for _ in 0..PERIODS {
                    if random(&mut state).is_multiple_of(lasts) {
                        value = random(&mut state);
                    }
                    distribution.add(value + if noise { random(&mut state) } else { 0 }, Rounding::Up);
                }
                let level = distribution.exceeded_in(PERIODS / 100);
                let whole = f64::from(1 << 20);
                let true_share = if noise { (2.0 - level as f64 / whole).powi(2) / 2.0 } else { 1.0 - level as f64 / whole };
                true_share <= distribution.share_max(distribution.above(level))
            });
            let held = held.count();
            // 285 runs are 95 %, with a standard deviation of 4.
            assert!(held >= 278, "{held} of {RUNS} runs, values that last for {lasts} periods, noise {noise}");
        };
        for lasts in [1, 3, 10, 30, 100] {
            check(lasts, false);
            check(lasts, true);
        }
    }
}
