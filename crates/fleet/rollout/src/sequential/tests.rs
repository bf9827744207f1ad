use proptest::prelude::*;

use super::*;
use crate::random::normal;

/// Noise of the machines of both groups.
#[derive(Clone, Copy, Debug)]
struct Noise {
    /// Standard deviation of the permanent level of a machine.
    permanent: f64,
    /// Standard deviation of a machine's hourly value.
    hourly: f64,
    /// Autocorrelation of the hourly noise.
    autocorrelation: f64,
    /// Whether the noise is exponentiated: many small values and a few very large ones.
    skewed: bool,
    /// Amplitude of a machine's daily cycle, with a phase of its own.
    swing: f64,
}

const PLAIN: Noise = Noise { permanent: 0.0, hourly: 1.0, autocorrelation: 0.0, skewed: false, swing: 0.0 };

/// Simulates two groups over 48 hourly evaluations, of which the first 24 are the minimum time. Returns the first
/// evaluation in which the lower bound of the difference exceeds `margin`.
fn first_alarm(noise: Noise, sizes: [usize; 2], effect: f64, margin: f64, alpha: f64, seed: u64) -> Option<usize> {
    let random = &mut fastrand::Rng::with_seed(seed);
    let shift = [0.0, effect];
    let mut machines: Vec<(usize, f64, f64, f64, f64)> = Vec::new();
    for (group, &size) in sizes.iter().enumerate() {
        for _ in 0..size {
            machines.push((group, noise.permanent * normal(random), normal(random), random.f64(), 0.0));
        }
    }
    for evaluation in 1..=48u32 {
        let hour = f64::from(evaluation);
        let mut sums = [(0.0, 0.0, 0.0); 2];
        for (group, own, state, phase, total) in &mut machines {
            *state = noise.autocorrelation * *state + (1.0 - noise.autocorrelation * noise.autocorrelation).sqrt() * normal(random);
            let drawn = *own + noise.hourly * *state;
            let value = if noise.skewed { drawn.exp() } else { drawn };
            *total += value + noise.swing * (std::f64::consts::TAU * (hour / 24.0 + *phase)).cos() + shift[*group];
            let mean = *total / hour;
            let sum = &mut sums[*group];
            *sum = (sum.0 + 1.0, sum.1 + mean, sum.2 + mean * mean);
        }
        let [control, treated] = sums.map(|(n, sum, squares)| (n, sum / n, (squares - sum * sum / n) / (n - 1.0) / n));
        let error = (control.2 + treated.2).sqrt();
        let freedom = (control.2 + treated.2).powi(2) / (control.2.powi(2) / (control.0 - 1.0) + treated.2.powi(2) / (treated.0 - 1.0));
        let at = SequentialTest { alpha, elapsed: hour / 24.0 };
        let difference = treated.1 - control.1;
        // Student's t is never below the normal distribution, and expensive.
        if difference - at.multiplier() * error > margin && at.bounds(difference, error, freedom).lower > margin {
            return Some(usize::try_from(evaluation).unwrap());
        }
    }
    None
}

/// Counts false alarms in 10,000 rollouts without an effect.
fn check_false(noise: Noise, sizes: [usize; 2], alpha: f64) {
    let seeds = 10_000;
    let alarms = (0..seeds).filter(|&seed| first_alarm(noise, sizes, 0.0, 0.0, alpha, seed).is_some()).count();
    #[expect(clippy::cast_precision_loss, reason = "ten thousand")]
    let rate = alarms as f64 / seeds as f64;
    println!("{noise:?} {sizes:?}: {alarms} false alarms of {seeds}, alpha {alpha}");
    assert!(rate <= alpha, "{noise:?} {sizes:?}: {rate} of all rollouts raise a false alarm; the limit is {alpha}");
}

#[test]
fn independent_noise_stays_within_the_error_probability() {
    check_false(PLAIN, [20, 10], 0.01);
}

#[test]
fn permanent_differences_stay_within_the_error_probability() {
    check_false(Noise { permanent: 1.0, ..PLAIN }, [20, 10], 0.01);
}

#[test]
fn autocorrelated_noise_stays_within_the_error_probability() {
    check_false(Noise { autocorrelation: 0.9, permanent: 0.2, ..PLAIN }, [20, 10], 0.01);
}

#[test]
fn skewed_noise_stays_within_the_error_probability() {
    check_false(Noise { skewed: true, permanent: 0.5, ..PLAIN }, [20, 10], 0.01);
}

#[test]
fn daily_cycles_stay_within_the_error_probability() {
    check_false(Noise { swing: 1.0, ..PLAIN }, [20, 10], 0.01);
}

#[test]
fn five_machines_stay_within_the_error_probability() {
    check_false(Noise { permanent: 0.5, ..PLAIN }, [5, 5], 0.01);
}

/// The same evaluations with the bound of a single one.
#[test]
fn a_bound_for_one_evaluation_raises_too_many_alarms() {
    let alarms = (0..1_000).filter(|&seed| {
        let random = &mut fastrand::Rng::with_seed(seed);
        let mut sum = 0.0;
        (1..=48u32).any(|evaluation| {
            sum += normal(random);
            sum / f64::from(evaluation).sqrt() > quantile(0.99)
        })
    });
    let alarms = alarms.count();
    assert!(alarms > 40, "{alarms} of 1000, where one evaluation would raise 10");
}

/// A detectable effect is detected with the stated power, and a quarter of it rarely.
#[test]
fn a_detectable_effect_is_detected_with_the_stated_power() {
    let (alpha, power) = (0.01, 0.8);
    let noise = Noise { permanent: 0.5, ..PLAIN };
    let sizes = [60usize, 30];
    #[expect(clippy::cast_precision_loss, reason = "few machines")]
    let error = ((0.25 + 1.0 / 24.0) * (1.0 / sizes[0] as f64 + 1.0 / sizes[1] as f64)).sqrt();
    let effect = SequentialTest { alpha, elapsed: 1.0 }.detectable(error, 60.0, power);
    let detected =
        |effect: f64| (0..1_000).filter(|&seed| first_alarm(noise, sizes, effect, 0.0, alpha, seed).is_some_and(|at| at <= 24)).count();
    let (whole, quarter) = (detected(effect), detected(effect / 4.0));
    println!("an effect of {effect:.3} is detected in {whole} of 1000, a quarter of it in {quarter}");
    // It may also be detected in earlier evaluations.
    assert!((790..=900).contains(&whole), "{whole} of 1000, for a power of {power}");
    assert!(quarter < 100, "{quarter}");
}

#[test]
fn multipliers_agree_with_manual_computation() {
    let check = |alpha, elapsed, expected: f64| {
        let found = SequentialTest { alpha, elapsed }.multiplier();
        assert!((found - expected).abs() < 5e-3, "{alpha} {elapsed}: {found}");
    };
    // sqrt(2 * (1 + 1/12) * ln(sqrt(13)/0.02 + 1)), and so on.
    check(0.01, 1.0, 3.3558);
    check(0.01, 1.0 / 12.0, 4.1329);
    check(0.001, 1.0, 4.0319);
    assert_eq!(SequentialTest { alpha: 0.0, elapsed: 1.0 }.multiplier(), f64::INFINITY);
    assert_eq!(SequentialTest { alpha: 0.01, elapsed: 0.0 }.multiplier(), f64::INFINITY);
    // It is tightest near the end of the minimum time.
    let at = |elapsed| SequentialTest { alpha: 0.001, elapsed }.multiplier();
    assert!(at(1.0) < at(0.2) && at(1.0) < at(20.0) && at(4.0) - at(1.0) < 0.2);
}

#[test]
fn student_preserves_the_tail_of_the_normal_distribution() {
    let check = |z: f64, freedom: f64, expected: f64| {
        let found = student(z, freedom);
        assert!((found / expected - 1.0).abs() < 1e-3, "{z} {freedom}: {found}, not {expected}");
    };
    // From tables: 97.5 % and 99.9 %.
    check(1.959_964, 4.0, 2.776_445);
    check(1.959_964, 30.0, 2.042_272);
    check(3.090_232, 10.0, 4.143_700);
    check(-1.959_964, 4.0, -2.776_445);
    check(5.0, 1e9, 5.0);
    for freedom in [2.0, 3.5, 9.0, 300.0, 9_999.0] {
        for z in [0.1, 1.0, 3.0, 5.0, 6.0] {
            let tail = tails::student(student(z, freedom), freedom);
            let expected = tails::normal(z);
            assert!((tail / expected - 1.0).abs() < 1e-4, "{z} {freedom}: {tail:e} {expected:e}");
        }
    }
}

proptest! {
    #[test]
    fn a_smaller_alpha_widens_the_bounds_and_more_machines_narrow_them(
        alpha in 1e-6f64..0.2, elapsed in 1e-3f64..50.0, freedom in 1.0f64..500.0, error in 0.0f64..10.0, difference in -5.0f64..5.0
    ) {
        let test = SequentialTest { alpha, elapsed };
        let bounds = test.bounds(difference, error, freedom);
        prop_assert!(bounds.lower <= difference && difference <= bounds.upper);
        let stricter = SequentialTest { alpha: alpha / 2.0, elapsed }.bounds(difference, error, freedom);
        prop_assert!(stricter.lower <= bounds.lower);
        prop_assert!(test.bounds(difference, error, freedom * 2.0).lower >= bounds.lower - 1e-9 * bounds.lower.abs());
        prop_assert!(test.multiplier_of(freedom) >= test.multiplier() * (1.0 - 1e-9));
    }
}
