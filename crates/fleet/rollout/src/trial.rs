//! Switchback trials: does far memory slow one job down, by what the job's own application reports?
//!
//! # Design
//! Far memory of the job is on in one half of each block and off in the other, in random order. Blocks are short, so that load and
//! neighbours are alike in both halves, and the order is random, so that a trend is not on one side. What a half inherits from the
//! one before (pages that still return, caches that are not warm) is excluded by not measuring its beginning, the washout.
//!
//! # Estimate
//! Each block gives one value: the logarithm of the outcome with far memory relative to that without, with the sign of a loss. What
//! else happens on a machine makes a few of these values very large, and they would decide a mean. So the estimate is the median of
//! the means of all pairs of values (Hodges and Lehmann, 1963), and its interval contains the effects that Wilcoxon's signed-rank
//! test does not reject. Where values are normally distributed this needs 5 % more blocks than a mean.
//!
//! The test is by randomisation: without an effect, the halves of each block could as well have been exchanged, which changes the
//! sign of its value; the p-value is the share of all such exchanges whose sum of signed ranks is as far from zero as the observed
//! one. Within a block, trend and carry-over that the washout left are part of the noise. A trial reports a slowdown, or a
//! speedup, only if interval and test agree.
//!
//! Pure: seeds and outcomes are arguments.

use std::str::FromStr;

use serde::Serialize;

use crate::sequential::quantile;

/// Confidence of the interval; one minus it is the level of the test.
pub const CONFIDENCE: f64 = 0.95;

/// Fewest blocks of which a trial makes an estimate: with five or fewer, no randomisation test can reach its level.
pub const BLOCKS_MIN: usize = 6;

/// Most blocks whose exchanges are all tried.
const EXACT_MAX: usize = 14;

/// Random exchanges that are tried beyond that.
const DRAWS: u32 = 20_000;

/// Whether the job may have far memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// As its policy decides.
    On,
    /// Nothing is offloaded, and what was is brought back.
    Off,
}

/// What a higher outcome means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Throughput.
    Higher,
    /// Latency, or time per request.
    Lower,
}

impl FromStr for Better {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "higher" => Ok(Self::Higher),
            "lower" => Ok(Self::Lower),
            _ => Err(format!("{word:?} is unknown; write higher (throughput) or lower (latency)")),
        }
    }
}

/// Outcomes of one block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Block {
    /// With far memory.
    pub on: f64,
    /// Without.
    pub off: f64,
}

/// What a trial found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The job is slower with far memory.
    Slower,
    /// The job is faster with far memory.
    Faster,
    /// A difference cannot be distinguished from chance.
    NoDifference,
}

/// The estimate of a trial. Ratios are slowdowns: 0.02 is 2 % less throughput or 2 % more latency, negative is faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Blocks with outcomes of both halves.
    pub blocks: usize,
    /// Estimated slowdown.
    pub slowdown_ratio: f64,
    /// Lower end of the interval.
    pub lower_ratio: f64,
    /// Upper end of the interval.
    pub upper_ratio: f64,
    /// The p-value of the randomisation test, of both sides.
    pub p_value: f64,
    /// The verdict.
    pub verdict: Verdict,
}

/// The order of the halves of each block.
#[must_use]
pub fn plan(blocks: usize, seed: u64) -> Vec<[Arm; 2]> {
    let mut random = fastrand::Rng::with_seed(seed);
    // As many of one order as of the other, as far as the number is even: a trend over the trial then cancels out.
    let mut orders: Vec<_> = (0..blocks).map(|block| if block % 2 == 0 { [Arm::On, Arm::Off] } else { [Arm::Off, Arm::On] }).collect();
    if blocks % 2 == 1 && random.bool() {
        orders[0].reverse();
    }
    random.shuffle(&mut orders);
    orders
}

/// Estimates the slowdown. Blocks in which an outcome is not a positive number are left out; `None` if fewer than [`BLOCKS_MIN`] are
/// left.
#[must_use]
pub fn estimate(blocks: &[Block], better: Better, seed: u64) -> Option<Estimate> {
    let sign = if better == Better::Higher { -1.0 } else { 1.0 };
    let usable = |outcome: f64| outcome.is_finite() && outcome > 0.0;
    let losses: Vec<f64> =
        blocks.iter().filter(|block| usable(block.on) && usable(block.off)).map(|block| sign * (block.on / block.off).ln()).collect();
    if losses.len() < BLOCKS_MIN {
        return None;
    }
    let [lower, middle, upper] = interval(&losses);
    let p_value = p_value(&signed_ranks(&losses), seed);
    let verdict = match (lower > 0.0, upper < 0.0) {
        _ if p_value > 1.0 - CONFIDENCE => Verdict::NoDifference,
        (true, _) => Verdict::Slower,
        (_, true) => Verdict::Faster,
        _ => Verdict::NoDifference,
    };
    // A loss in throughput of x is 1 - exp(-loss), one in latency exp(loss) - 1.
    let ratio = |loss: f64| if better == Better::Higher { -(-loss).exp_m1() } else { loss.exp_m1() };
    Some(Estimate {
        blocks: losses.len(),
        slowdown_ratio: ratio(middle),
        lower_ratio: ratio(lower),
        upper_ratio: ratio(upper),
        p_value,
        verdict,
    })
}

/// The median of the means of all pairs, a value with itself included, between the ends of its interval.
fn interval(values: &[f64]) -> [f64; 3] {
    let pairs = values.iter().enumerate().flat_map(|(at, one)| values[at..].iter().map(move |other| f64::midpoint(*one, *other)));
    let mut means: Vec<f64> = pairs.collect();
    means.sort_unstable_by(f64::total_cmp);
    let last = means.len() - 1;
    let outside = outside(values.len()).min(last / 2);
    [means[outside], f64::midpoint(means[last / 2], means[last.div_ceil(2)]), means[last - outside]]
}

/// How many means of pairs are outside of the interval on each side: the greatest sum of ranks that the signed-rank test rejects, by
/// the normal approximation of that sum. With few blocks that may be one too few, and the interval a little wide.
fn outside(blocks: usize) -> usize {
    let n = count(blocks);
    let (mean, variance) = (n * (n + 1.0) / 4.0, n * (n + 1.0) * (2.0 * n + 1.0) / 24.0);
    let bound = mean - quantile(0.5 + CONFIDENCE / 2.0) * variance.sqrt() - 0.5;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the number of pairs, and not negative")]
    let outside = bound.max(0.0) as usize;
    outside
}

/// The ranks of the values by their distance from zero, with their signs. Equal distances share the mean of their ranks.
fn signed_ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| other.abs() < value.abs()).count();
        let equal = values.iter().filter(|other| other.abs().total_cmp(&value.abs()).is_eq()).count();
        count(below) + count(equal + 1) / 2.0
    };
    values.iter().map(|value| if *value == 0.0 { 0.0 } else { rank(value).copysign(*value) }).collect()
}

/// The share of exchanges of halves whose sum is at least as far from zero as the observed one, which is one of them.
fn p_value(losses: &[f64], seed: u64) -> f64 {
    // The sums of equal values in another order differ by rounding.
    let observed = losses.iter().sum::<f64>().abs() * (1.0 - 1e-12);
    let extreme = |signs: u64| {
        let of = |(block, loss): (usize, &f64)| if signs >> (block % 64) & 1 == 1 { -loss } else { *loss };
        losses.iter().enumerate().map(of).sum::<f64>().abs() >= observed
    };
    if losses.len() <= EXACT_MAX {
        let all = 1_u64 << losses.len();
        return share((0..all).filter(|signs| extreme(*signs)).count(), all);
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut drawn = 1;
    for _ in 0..DRAWS {
        let sum: f64 = losses.iter().map(|loss| if random.bool() { -loss } else { *loss }).sum();
        drawn += usize::from(sum.abs() >= observed);
    }
    share(drawn, u64::from(DRAWS) + 1)
}

#[expect(clippy::cast_precision_loss, reason = "at most 20,001 exchanges")]
fn share(part: usize, all: u64) -> f64 {
    part as f64 / all as f64
}

#[expect(clippy::cast_precision_loss, reason = "a trial has far fewer than 2^52 blocks")]
fn count(blocks: usize) -> f64 {
    blocks as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::normal;

    /// Simulated trials.
    struct Trials {
        /// True slowdown.
        slowdown: f64,
        /// Standard deviation of one half's outcome.
        noise: f64,
        /// Change of the outcome from one half to the next.
        trend: f64,
        blocks: usize,
    }

    impl Trials {
        fn run(&self, seed: u64) -> Estimate {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut half = 0;
            let mut outcome = |arm| {
                half += 1;
                let slow = if arm == Arm::On { 1.0 - self.slowdown } else { 1.0 };
                1000.0 * slow * (1.0 + self.trend).powi(half) * (1.0 + self.noise * normal(&mut random))
            };
            let block = |[first, second]: [Arm; 2]| {
                let (a, b) = (outcome(first), outcome(second));
                if first == Arm::On { Block { on: a, off: b } } else { Block { on: b, off: a } }
            };
            let blocks: Vec<_> = plan(self.blocks, seed).into_iter().map(block).collect();
            estimate(&blocks, Better::Higher, seed).unwrap()
        }

        /// Shares of trials that find a slowdown, that find any difference, and whose interval holds the truth.
        fn rates(&self, trials: u64) -> [f64; 3] {
            let mut counts = [0; 3];
            for seed in 0..trials {
                let found = self.run(seed);
                counts[0] += usize::from(found.verdict == Verdict::Slower);
                counts[1] += usize::from(found.verdict != Verdict::NoDifference);
                counts[2] += usize::from((found.lower_ratio..=found.upper_ratio).contains(&self.slowdown));
            }
            counts.map(|count| share(count, trials))
        }
    }

    #[test]
    fn two_percent_are_found_and_nothing_where_there_is_nothing() {
        let noisy = |slowdown| Trials { slowdown, noise: 0.02, trend: 0.0, blocks: 30 };
        let [found, _, held] = noisy(0.02).rates(400);
        assert!(found > 0.93 && held > 0.92, "found {found}, held {held}");
        let [_, alarms, held] = noisy(0.0).rates(400);
        assert!(alarms <= 0.08 && held > 0.92, "{alarms} false alarms, held {held}");
    }

    #[test]
    fn bursts_of_others_do_not_hide_two_percent() {
        let bursts = |slowdown, noise| {
            let mut random = fastrand::Rng::with_seed(7);
            let mut outcome = |slow: f64| {
                let burst = if random.f64() < 0.1 { 3.0 } else { 1.0 };
                burst * (1.0 - slow) * (1.0 + noise * normal(&mut random))
            };
            let blocks: Vec<_> = (0..40).map(|_| Block { on: outcome(slowdown), off: outcome(0.0) }).collect();
            estimate(&blocks, Better::Higher, 1).unwrap()
        };
        let found = bursts(0.02, 0.01);
        assert!(found.verdict == Verdict::Slower && (0.01..0.03).contains(&found.slowdown_ratio), "{found:?}");
        assert_eq!(bursts(0.0, 0.01).verdict, Verdict::NoDifference);
    }

    #[test]
    fn an_interval_has_the_values_of_the_signed_rank_test() {
        // Tables of the test: at 5 % of both sides, sums up to 0 are rejected of 6 values, 8 of 10, 52 of 20.
        assert_eq!([6, 10, 20].map(outside), [0, 7, 52]);
        let values: Vec<f64> = (0..20).map(f64::from).collect();
        let [lower, middle, upper] = interval(&values);
        assert!((middle - 9.5).abs() < 1e-12 && (lower + upper - 19.0).abs() < 1e-12 && (6.0..8.0).contains(&lower), "{lower} {upper}");
        assert_eq!(signed_ranks(&[-0.5, 2.0, 0.5, 0.0, -3.0]), [-2.5, 4.0, 2.5, 0.0, -5.0]);
    }

    #[test]
    fn a_trend_is_no_slowdown() {
        let [_, alarms, _] = Trials { slowdown: 0.0, noise: 0.01, trend: 0.005, blocks: 12 }.rates(300);
        assert!(alarms <= 0.08, "{alarms} false alarms");
        let [found, ..] = Trials { slowdown: 0.02, noise: 0.005, trend: -0.003, blocks: 12 }.rates(300);
        assert!(found > 0.95, "found {found}");
    }

    #[test]
    fn the_order_is_random_and_balanced() {
        for blocks in [0, 1, 6, 7, 30] {
            let orders = plan(blocks, 3);
            let first_on = orders.iter().filter(|order| order[0] == Arm::On).count();
            assert!(orders.len() == blocks && first_on.abs_diff(blocks - first_on) <= blocks % 2, "{orders:?}");
            assert!(orders.iter().all(|[first, second]| first != second));
        }
        assert_eq!(plan(30, 3), plan(30, 3));
        assert_ne!(plan(30, 3), plan(30, 4));
    }

    #[test]
    fn a_loss_has_the_same_sign_for_latency_and_throughput() {
        let blocks = |on, off| vec![Block { on, off }; 8];
        let near = |found: f64, want: f64| assert!((found - want).abs() < 1e-9, "{found}, not {want}");
        let found = estimate(&blocks(98.0, 100.0), Better::Higher, 1).unwrap();
        near(found.slowdown_ratio, 0.02);
        assert_eq!((found.verdict, found.p_value), (Verdict::Slower, 2.0 / 256.0));
        let found = estimate(&blocks(102.0, 100.0), Better::Lower, 1).unwrap();
        near(found.slowdown_ratio, 0.02);
        let found = estimate(&blocks(90.0, 100.0), Better::Lower, 1).unwrap();
        near(found.slowdown_ratio, -0.1);
        assert_eq!(found.verdict, Verdict::Faster);
        assert_eq!(estimate(&blocks(1.0, 1.0), Better::Lower, 1).unwrap().verdict, Verdict::NoDifference);
    }

    #[test]
    fn outcomes_that_are_no_numbers_are_left_out() {
        let mut blocks = vec![Block { on: 1.0, off: 1.0 }; BLOCKS_MIN];
        blocks.extend([Block { on: f64::NAN, off: 1.0 }, Block { on: 0.0, off: 1.0 }, Block { on: 1.0, off: f64::INFINITY }]);
        assert_eq!(estimate(&blocks, Better::Higher, 1).unwrap().blocks, BLOCKS_MIN);
        assert_eq!(estimate(&blocks[1..], Better::Higher, 1), None);
    }
}
