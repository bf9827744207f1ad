//! Blocks by their parts: by hand, and simulated.

use super::*;

const SAMPLES: u32 = 10;
const SAMPLED: usize = 50;
const WINDOW_S: u32 = 10;

/// The one place that estimates a block by hand; every case below is data. Rates per second.
fn check(of: u32, touched: u32, all: &[BitSamples], mean: f64, bound: Option<f64>) {
    let estimate = parts(&Parts { of, touched, touch_window_us: 10 * SECOND, samples: all, interval_us: SECOND });
    assert!((estimate.mean.as_f64() - mean).abs() < 1e-3, "{of} {touched} {all:?}: {estimate:?}");
    assert_eq!(estimate.upper.is_some(), bound.is_some(), "{of} {touched} {all:?}: {estimate:?}");
    let near = estimate.upper.zip(bound).is_none_or(|(got, want)| (got.as_f64() - want).abs() < 1e-3);
    assert!(near, "{of} {touched} {all:?}: {estimate:?}");
}

#[test]
fn by_hand() {
    // No part was accessed for ten seconds: ln 40 / 10 s.
    check(512, 0, &[], 0.0, Some(0.3689));
    // All of the one part: its own mean; sqrt(2.7055 * 5 / (10 * 5)) and ln 40 / 10.
    check(1, 1, &[samples(5, 10)], LN_2, Some(LN_2 + 0.5201 + 0.3689));
    // Above half of the samples, the page's own half-width: 5.2753 - 2.3026.
    check(1, 1, &[samples(9, 10)], LN_10, Some(5.2753 + 0.3689));
    // Two of four that differ: squared deviation 2 * 0.3466^2, times z^2 * 4 * 2 / 2, and 4/2 * 0.52^2 from one.
    check(
        4,
        4,
        &[samples(5, 10), samples(0, 10)],
        2.0 * LN_2,
        Some(2.0 * LN_2 + (2.7055 * 4.0 * 0.240_23 + 2.0 * 0.270_55f64).sqrt() + 0.7378),
    );
    // Two of four accessed, and two never accessed: with t = 6.931 each stands for 0.6931 + 0.1 / (1 + t/2 + t^2/6), and its
    // square is 0.2706 + 2.7055 * 0.01 / (1 + t^2/12); 4 * ln 40 / (2 * 10), and ln 40 / 10.
    check(6, 4, &[samples(5, 10), samples(5, 10)], 2.8047, Some(2.8047 + 1.0506 + 0.7378 + 0.3689));
}

#[test]
fn inputs_without_a_bound() {
    // A part without samples is no sample; a single part does not speak for others.
    check(512, 10, &[], 0.0, None);
    check(512, 10, &[samples(0, 0), samples(0, 0)], 0.0, None);
    check(512, 10, &[samples(5, 10)], 7.0116, None);
    let no_window = Parts { of: 2, touched: 1, touch_window_us: 0, samples: &[samples(1, 10)], interval_us: SECOND };
    assert_eq!(parts(&no_window).upper, None, "the time without access of the other part is unknown");
}

#[test]
fn a_saturated_part_saturates_the_block() {
    let mut all = vec![samples(1, 10); 49];
    check(512, 49, &all, 8.0251, Some(8.0251 + 1.6391 + 0.3689 * 2.0));
    all.push(samples(10, 10));
    check(512, 50, &all, 8.0251 + 2.9963, None);
}

#[test]
fn sampled_parts_override_the_number_of_touched_parts() {
    check(1, 1, &[samples(5, 10), samples(5, 10)], 2.0 * LN_2, Some(2.0 * LN_2 + 0.7356 + 0.3689));
}

struct Random(u64);

impl Random {
    /// Uniform in 0 to 1.
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        f64::from(u32::try_from(self.0 >> 32).unwrap()) / f64::from(u32::MAX)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 33) % n as u64).unwrap()
    }
}

/// Over so many periods of a block whose parts have these rates per second: the share in which its rate was within the bound.
/// And over those that were not saturated, the mean of estimate and of bound, each by the true rate.
struct Coverage {
    within: f64,
    mean: f64,
    bound: f64,
}

fn simulate(rates: &[f64], periods: u32) -> Coverage {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let truth: f64 = rates.iter().sum();
    let set = |rate: f64| 1.0 - (-rate).exp();
    let (mut within, mut bounded, mut mean, mut bound) = (0.0, 0.0, 0.0, 0.0);
    for _ in 0..periods {
        let mut touched: Vec<f64> = rates.iter().copied().filter(|rate| random.share() < set(rate * f64::from(WINDOW_S))).collect();
        let (of, all_touched) = (u32::try_from(rates.len()).unwrap(), u32::try_from(touched.len()).unwrap());
        let mut all = Vec::new();
        while !touched.is_empty() && all.len() < SAMPLED {
            let rate = touched.swap_remove(random.below(touched.len()));
            let accessed = (0..SAMPLES).filter(|_| random.share() < set(rate)).count();
            all.push(samples(u32::try_from(accessed).unwrap(), SAMPLES));
        }
        let touch_window_us = u64::from(WINDOW_S) * SECOND;
        let estimate = parts(&Parts { of, touched: all_touched, touch_window_us, samples: &all, interval_us: SECOND });
        within += f64::from(u8::from(estimate.upper.is_none_or(|upper| upper.as_f64() >= truth)));
        if let Some(upper) = estimate.upper {
            bounded += 1.0;
            mean += estimate.mean.as_f64() / truth;
            bound += upper.as_f64() / truth;
        }
    }
    Coverage { within: within / f64::from(periods), mean: mean / bounded, bound: bound / bounded }
}

#[test]
fn blocks_of_equal_parts_are_within_the_bound_in_95_percent() {
    for parts in [1, 8, 49, 100, 512] {
        for rate in [0.001, 0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 2.0] {
            let Coverage { within, mean, bound } = simulate(&vec![rate; parts], 400);
            // Least is 98.8 %: eight parts at 0.6.
            assert!(within >= 0.98, "{parts} parts at {rate} per second: {within}");
            // Parts that are touched about once a window are estimated 11 % too high at most. One part says little.
            let biased = parts > 1 && rate >= 0.1 && mean.is_finite() && !(0.92..1.12).contains(&mean);
            assert!(!biased, "{parts} parts at {rate} per second: {mean} times the rate");
            let wide = parts >= 100 && rate >= 0.03 && bound > 1.6;
            assert!(!wide, "{parts} parts at {rate} per second: a bound of {bound} times the rate");
        }
    }
}

/// Rates that fall with the part's rank. Over 2,000 periods (here are fewer), blocks of up to 10 accesses per second are
/// within the bound in 99.5 % of cases. Of those with more some are not, least often (78 %) with 100 per second by the first
/// power: there the part that has a seventh of all accesses is not sampled in nine cases of ten, and those next to it often
/// enough not to saturate.
#[test]
fn blocks_of_unequal_parts() {
    for exponent in [0.5, 0.8, 1.0, 1.2, 1.5] {
        let weights: Vec<f64> = (1..=512).map(|rank| f64::from(rank).powf(-exponent)).collect();
        let sum: f64 = weights.iter().sum();
        for (total, least) in [(0.1, 0.98), (0.3, 0.98), (1.0, 0.98), (3.0, 0.98), (10.0, 0.98), (30.0, 0.82), (100.0, 0.73), (300.0, 0.82)]
        {
            let rates: Vec<f64> = weights.iter().map(|weight| total * weight / sum).collect();
            let within = simulate(&rates, 400).within;
            assert!(within >= least, "{total} per second by rank to the power of -{exponent}: {within}");
        }
    }
}
