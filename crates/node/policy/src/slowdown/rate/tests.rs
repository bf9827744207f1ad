use std::f64::consts::{LN_2, LN_10};
use std::time::Duration;

use proptest::prelude::*;

use super::*;

mod blocks;

const SECOND: u64 = 1_000_000;

fn samples(accessed: u32, taken: u32) -> BitSamples {
    BitSamples { taken, accessed }
}

/// The bound in accesses per interval; infinite where saturated.
fn upper(accessed: u32, taken: u32) -> f64 {
    page(samples(accessed, taken), SECOND).upper.map_or(f64::INFINITY, AccessRate::as_f64)
}

/// The chance that a Poisson count is `count`, given its mean.
fn poisson(mean: f64, count: u32) -> f64 {
    (f64::from(count) * mean.ln() - mean - (1..=count).map(|factor| f64::from(factor).ln()).sum::<f64>()).exp()
}

#[test]
fn the_bound_on_what_was_counted_holds_in_95_percent_of_cases() {
    for mean in [0.05, 0.5, 1.0, 2.9, 3.1, 7.0, 20.0, 150.0] {
        let holds = |count: &u32| counted(u64::from(*count), SECOND).upper.is_some_and(|upper| upper.as_f64() >= mean);
        let chance: f64 = (0..600).filter(holds).map(|count| poisson(mean, count)).sum();
        assert!(chance >= 0.95, "{mean}: {chance}");
    }
    for (accesses, exposure_us, mean, upper) in [(0, SECOND, 0.0, 2.995_733), (100, 10 * SECOND, 10.0, 11.944_427)] {
        let got = counted(accesses, exposure_us);
        assert!((got.mean.as_f64() - mean).abs() < 1e-5 && (got.upper.unwrap().as_f64() - upper).abs() < 1e-4, "{accesses}: {got:?}");
    }
    assert_eq!(counted(7, 0), Estimate::default());
    for extreme in [counted(u64::MAX, 1), counted(0, u64::MAX), counted(u64::MAX, u64::MAX)] {
        assert!(extreme.upper.is_some_and(|upper| upper >= extreme.mean), "{extreme:?}");
    }
}

#[test]
fn one_page() {
    // The means are ln(n / (n - k)); the bounds are -ln(1 - p) at the p that leaves 5 %, found in floating point.
    for (accessed, taken, interval_us, mean, bound) in [
        (0, 10, SECOND, 0.0, Some(0.299_573)),
        (0, 30, SECOND, 0.0, Some(0.099_858)),
        (1, 10, SECOND, 0.105_361, Some(0.501_145)),
        (5, 10, SECOND, LN_2, Some(1.503_093)),
        (5, 10, SECOND / 5, 5.0 * LN_2, Some(7.515_465)),
        (9, 10, SECOND, LN_10, Some(5.275_344)),
        (10, 10, SECOND, 2.995_732, None),
        (11, 10, SECOND, 2.995_732, None),
        (0, 0, SECOND, 0.0, None),
        (3, 10, 0, 0.0, None),
    ] {
        let estimate = page(samples(accessed, taken), interval_us);
        let near = |rate: AccessRate, want: f64| (rate.as_f64() - want).abs() <= 2e-6;
        assert!(near(estimate.mean, mean), "{accessed} of {taken}: {estimate:?}");
        assert_eq!(estimate.upper.is_some(), bound.is_some(), "{accessed} of {taken}: {estimate:?}");
        assert!(estimate.upper.zip(bound).is_none_or(|(got, want)| near(got, want)), "{accessed} of {taken}: {estimate:?}");
    }
}

/// Not by simulation: the chances of all outcomes in which the bound is at or above the true rate, summed.
#[test]
fn the_bound_holds_in_95_percent_of_cases_exactly_summed() {
    for taken in 5..=60 {
        let bounds: Vec<f64> = (0..=taken).map(|accessed| upper(accessed, taken)).collect();
        for step in 0..96 {
            let rate = 0.001 * 1.1f64.powi(step);
            let (idle, set) = ((-rate).exp(), 1.0 - (-rate).exp());
            let mut chance = idle.powi(taken.cast_signed());
            let mut held = 0.0;
            for accessed in 0..=taken {
                held += if bounds[accessed as usize] >= rate { chance } else { 0.0 };
                chance *= f64::from(taken - accessed) / f64::from(accessed + 1) * set / idle;
            }
            assert!(held >= 0.95 - 1e-9, "{rate} per interval, {taken} samples: {held}");
        }
    }
}

#[test]
fn it_is_monotone_in_what_was_accessed() {
    for taken in 1..=60 {
        for accessed in 0..taken {
            let (less, more) = (page(samples(accessed, taken), SECOND), page(samples(accessed + 1, taken), SECOND));
            assert!(less.mean < more.mean && upper(accessed, taken) < upper(accessed + 1, taken), "{accessed} of {taken}");
            assert!(less.upper > Some(less.mean), "{accessed} of {taken}");
        }
    }
}

#[test]
fn the_bound_shrinks_with_more_samples() {
    for taken in 1..=60 {
        for accessed in 0..=taken {
            let here = upper(accessed, taken);
            assert!(upper(accessed, taken + 1) < here, "{accessed} of {taken}, and one more sample");
            assert!(accessed == taken || upper(2 * accessed, 2 * taken) < here, "{accessed} of {taken}, and twice that");
        }
    }
}

#[test]
fn no_access_gives_3_over_the_time() {
    for (taken, interval_us) in [(1, SECOND), (10, SECOND), (30, SECOND), (60, SECOND / 10), (100_000, 5_000)] {
        let bound = page(samples(0, taken), interval_us).upper.unwrap().as_f64();
        let seconds = f64::from(taken) * Duration::from_micros(interval_us).as_secs_f64();
        assert!((bound * seconds - 2.996).abs() < 0.02, "{taken} samples each {interval_us} us: {bound}");
    }
}

proptest! {
    #[test]
    fn any_input_is_answered(
        all in prop::collection::vec((any::<u32>(), any::<u32>()), 0..60),
        of: u32, touched: u32, touch_window_us: u64, interval_us: u64,
    ) {
        let all: Vec<BitSamples> = all.into_iter().map(|(taken, accessed)| BitSamples { taken, accessed }).collect();
        for &samples in &all {
            let estimate = page(samples, interval_us);
            prop_assert!(estimate.upper.is_none_or(|upper| upper >= estimate.mean));
        }
        let estimate = parts(&Parts { of, touched, touch_window_us, samples: &all, interval_us });
        prop_assert!(estimate.upper.is_none_or(|upper| upper >= estimate.mean));
    }
}

#[test]
fn the_resolvable_rate_saturates_in_one_case_in_twenty() {
    for samples in [1_u32, 2, 5, 10, 30, 60, 600] {
        let rate = resolvable(samples, 1_000_000).as_f64();
        let saturated = (1.0 - (-rate).exp()).powf(samples.into());
        assert!((0.049..=0.051).contains(&saturated), "{samples} samples, {rate}/s: {saturated}");
        assert_eq!(resolvable(samples, 100_000).as_f64().round(), (10.0 * rate).round());
    }
    assert_eq!((resolvable(0, 1), resolvable(1, 0)), (AccessRate::ZERO, AccessRate::ZERO));
}

#[test]
fn extremes_are_answered() {
    for n in [0, 1, u32::MAX] {
        for of in [0, 1, u32::MAX] {
            for us in [0, 1, u64::MAX] {
                let all = [samples(n, u32::MAX), samples(0, n), samples(n / 2, n)];
                let estimate = parts(&Parts { of, touched: of, touch_window_us: us, samples: &all, interval_us: us });
                assert!(estimate.upper.is_none_or(|upper| upper >= estimate.mean), "{estimate:?}");
            }
        }
    }
}
