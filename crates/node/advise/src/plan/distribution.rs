//! How often a measured value was how high, in little memory, and what that says about the time to come.
//!
//! # Time to come
//! The share of periods in which a value was above a level is a measurement; the bound on it is Clopper and Pearson's:
//! the largest share under which as few periods as were seen above the level, or fewer, still have a chance of 5 %.
//! Without any period above, it is about 3 / n for n periods: the rule of three. It holds for a level that was picked by
//! the same n periods, too: the true share above the value that k of them exceeded is distributed as Beta(k + 1, n - k),
//! and the bound is that distribution's 95th percentile.
//!
//! # Independent periods
//! All that is true of independent periods, and memory does not come and go independently. So fewer periods are counted
//! than were seen. The mean of n independent values varies n times less than one value does. Where the means of blocks of b
//! periods vary f times more than that, n periods tell as much as n / f independent ones (Flyvbjerg and Petersen, "Error
//! estimates on averages of correlated data", 1989). f grows with b until blocks are longer than what one period still
//! has to do with a later one; the largest over all powers of two is taken, as far as there are enough blocks to tell.
//! On simulated series of 1440 periods whose values keep for 1 to 100 periods, with and without noise on top, the true
//! share lay below the bound in 93 % of the runs or more, as a test shows. Nothing helps where a whole journal is shorter
//! than what one period has to do with a later one.

use std::collections::BTreeMap;

use serde::Serialize;
use units::RatioPpm;

/// Values are kept to this many leading binary digits, which is to 0.2 %. So a distribution has a few hundred distinct
/// values, however long the journal is.
const LEADING_BITS: u32 = 10;

/// How sure the bound is: the chance that the true share lies above it is 5 %.
pub const CONFIDENCE: f64 = 0.95;

/// A distribution of byte counts or ratios over periods, in the order of time.
#[derive(Clone, Debug, Default)]
pub(super) struct Distribution {
    counts: BTreeMap<u64, u64>,
    blocks: Blocks,
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
        self.blocks.add(value);
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

    /// How many periods were above `level`.
    pub(super) fn above(&self, level: u64) -> u64 {
        self.counts.iter().rev().take_while(|&(&value, _)| value > level).map(|(_, count)| count).sum()
    }

    /// How many periods were below `level`.
    pub(super) fn below(&self, level: u64) -> u64 {
        self.counts.range(..level).map(|(_, count)| count).sum()
    }

    /// How many independent periods tell as much.
    pub(super) fn independent(&self) -> u64 {
        count(shrink(self.samples, self.blocks.inefficiency()).floor()).max(1)
    }

    /// The bound on the share of periods like `seen` of these, in the time to come, as a fraction of one, at
    /// [`CONFIDENCE`].
    pub(super) fn share_max(&self, seen: u64) -> f64 {
        clopper_pearson(self.independent(), count(shrink(seen, self.blocks.inefficiency()).ceil()))
    }
}

/// Means of blocks of 1, 2, 4, ... successive values.
#[derive(Clone, Debug, Default)]
struct Blocks {
    lengths: Vec<Means>,
}

/// The means of all blocks of one length: how many, their mean and the sum of squared distances from it (Welford), and
/// one that waits for its neighbour to become a block of twice the length.
#[derive(Clone, Copy, Debug, Default)]
struct Means {
    count: u64,
    mean: f64,
    squares: f64,
    waiting: Option<f64>,
}

/// With fewer blocks than these, how much their means vary cannot be told.
const BLOCKS_MIN: u64 = 8;

impl Blocks {
    #[expect(clippy::cast_precision_loss, reason = "how much a value varies need not be exact to the byte")]
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

    /// How many times more than with independent values the mean of all varies; at least one.
    fn inefficiency(&self) -> f64 {
        let lengths = self.lengths.iter().take_while(|means| means.count >= BLOCKS_MIN);
        let ratios = lengths.scan((1.0, None), |(length, single), means| {
            #[expect(clippy::cast_precision_loss, reason = "periods of centuries are below 2^53")]
            let variance = means.squares / (means.count - 1) as f64;
            let ratio = *length * variance / *single.get_or_insert(variance);
            *length *= 2.0;
            Some(ratio)
        });
        // Values that never change are no number here, and that is not above one.
        ratios.fold(1.0, f64::max)
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

#[expect(clippy::cast_precision_loss, reason = "periods of centuries are below 2^53")]
fn shrink(periods: u64, factor: f64) -> f64 {
    periods as f64 / factor
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count that was divided by one or more")]
fn count(whole: f64) -> u64 {
    whole as u64
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
        let all = of(&hundred);
        for (periods, exceeded, missed) in [(0, 100, 1), (1, 99, 2), (99, 1, 100), (100, 0, 100)] {
            assert_eq!((all.exceeded_in(periods), all.missed_in(periods)), (exceeded, missed), "{periods} periods");
        }
        assert_eq!([0, 1, 99, 100].map(|level| (all.above(level), all.below(level))), [(100, 0), (99, 0), (1, 98), (0, 99)]);
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
    fn periods_that_hang_together_count_less() {
        // So many times lower and higher by turns, each in stretches of one length.
        let stretches = |length: usize, count: usize| {
            let values: Vec<u64> = (0..count).flat_map(|at| std::iter::repeat_n(if at % 2 == 0 { 100 } else { 200 }, length)).collect();
            of(&values)
        };
        let check = |values: &Distribution, want: u64| assert_eq!(values.independent(), want);
        check(&stretches(1, 1024), 1024);
        // As many as there are stretches, but one that their mean takes.
        check(&stretches(8, 128), 127);
        check(&stretches(64, 16), 15);
        check(&stretches(1024, 1), 1024);
        check(&of(&[5]), 1);
        check(&of(&[]), 1);
        let slow = stretches(8, 128);
        assert!((slow.share_max(0) - clopper_pearson(slow.independent(), 0)).abs() < 1e-12);
        assert!((slow.share_max(9) - clopper_pearson(slow.independent(), 2)).abs() < 1e-12, "9 of 8 each are more than one");
    }

    /// The next number of a sequence, even over 0 to 2^20 - 1 (Marsaglia's xorshift).
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state >> 44
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "numbers below 2^21")]
    fn a_true_share_lies_below_its_bound_as_often_as_promised() {
        const RUNS: usize = 300;
        const PERIODS: u64 = 1440;
        // A value keeps for so many periods in the mean, then another one is drawn; with or without noise on top.
        let check = |keeps: u64, noise: bool| {
            let mut state = 0x9e37_79b9_7f4a_7c15 ^ keeps;
            let held = (0..RUNS).filter(|_| {
                let mut distribution = Distribution::default();
                let mut value = random(&mut state);
                for _ in 0..PERIODS {
                    if random(&mut state).is_multiple_of(keeps) {
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
            // 285 runs are 95 %, and chance moves them by 4.
            assert!(held >= 278, "{held} of {RUNS} runs, values that keep for {keeps} periods, noise {noise}");
        };
        for keeps in [1, 3, 10, 30, 100] {
            check(keeps, false);
            check(keeps, true);
        }
    }
}
