use proptest::prelude::*;

use super::*;
use crate::random::normal;

/// What the machines of both groups are like.
#[derive(Clone, Copy, Debug)]
struct Noise {
    /// Standard deviation of what a machine is for good.
    for_good: f64,
    /// Standard deviation of what it is in an hour.
    hourly: f64,
    /// How much of an hour's noise is left in the next.
    lasting: f64,
    /// Whether noise is exponentiated: many small values and a few very large ones.
    skewed: bool,
    /// How far a machine swings over a day, with a phase of its own.
    swing: f64,
}

const PLAIN: Noise = Noise { for_good: 0.0, hourly: 1.0, lasting: 0.0, skewed: false, swing: 0.0 };

/// A rollout of two groups over 48 hourly looks, of which the first 24 are the shortest time; at which look the lower bound of
/// the difference first passes `margin`.
fn first_alarm(noise: Noise, sizes: [usize; 2], effect: f64, margin: f64, alpha: f64, seed: u64) -> Option<usize> {
    let random = &mut fastrand::Rng::with_seed(seed);
    let shift = [0.0, effect];
    let mut machines: Vec<(usize, f64, f64, f64, f64)> = Vec::new();
    for (group, &size) in sizes.iter().enumerate() {
        for _ in 0..size {
            machines.push((group, noise.for_good * normal(random), normal(random), random.f64(), 0.0));
        }
    }
    for look in 1..=48u32 {
        let hour = f64::from(look);
        let mut sums = [(0.0, 0.0, 0.0); 2];
        for (group, own, state, phase, total) in &mut machines {
            *state = noise.lasting * *state + (1.0 - noise.lasting * noise.lasting).sqrt() * normal(random);
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
        let at = Look { alpha, elapsed: hour / 24.0 };
        let difference = treated.1 - control.1;
        // Student's t is never below the normal distribution, and dear.
        if difference - at.multiplier() * error > margin && at.bounds(difference, error, freedom).lower > margin {
            return Some(usize::try_from(look).unwrap());
        }
    }
    None
}

/// False alarms of 10,000 rollouts in which nothing is the matter.
fn check_false(noise: Noise, sizes: [usize; 2], alpha: f64) {
    let seeds = 10_000;
    let alarms = (0..seeds).filter(|&seed| first_alarm(noise, sizes, 0.0, 0.0, alpha, seed).is_some()).count();
    #[expect(clippy::cast_precision_loss, reason = "ten thousand")]
    let rate = alarms as f64 / seeds as f64;
    println!("{noise:?} {sizes:?}: {alarms} false alarms of {seeds}, alpha {alpha}");
    assert!(rate <= alpha, "{noise:?} {sizes:?}: {rate} of all rollouts raise a false alarm, where {alpha} was promised");
}

#[test]
fn noise_that_is_drawn_anew_raises_no_more_alarms_than_promised() {
    check_false(PLAIN, [20, 10], 0.01);
}

#[test]
fn machines_that_differ_for_good_raise_no_more_alarms_than_promised() {
    check_false(Noise { for_good: 1.0, ..PLAIN }, [20, 10], 0.01);
}

#[test]
fn noise_that_lasts_raises_no_more_alarms_than_promised() {
    check_false(Noise { lasting: 0.9, for_good: 0.2, ..PLAIN }, [20, 10], 0.01);
}

#[test]
fn skewed_noise_raises_no_more_alarms_than_promised() {
    check_false(Noise { skewed: true, for_good: 0.5, ..PLAIN }, [20, 10], 0.01);
}

#[test]
fn days_and_nights_raise_no_more_alarms_than_promised() {
    check_false(Noise { swing: 1.0, ..PLAIN }, [20, 10], 0.01);
}

#[test]
fn five_machines_raise_no_more_alarms_than_promised() {
    check_false(Noise { for_good: 0.5, ..PLAIN }, [5, 5], 0.01);
}

/// The same looks with the bound of a single look: what this module is for.
#[test]
fn a_bound_for_one_look_would_cry_wolf() {
    let alarms = (0..1_000).filter(|&seed| {
        let random = &mut fastrand::Rng::with_seed(seed);
        let mut sum = 0.0;
        (1..=48u32).any(|look| {
            sum += normal(random);
            sum / f64::from(look).sqrt() > quantile(0.99)
        })
    });
    let alarms = alarms.count();
    assert!(alarms > 40, "{alarms} of 1000, where one look would raise 10");
}

/// What `detectable` says is seen is seen as often as it says, and what is a quarter of it is not.
#[test]
fn what_is_detectable_is_detected() {
    let (alpha, power) = (0.01, 0.8);
    let noise = Noise { for_good: 0.5, ..PLAIN };
    let sizes = [60usize, 30];
    #[expect(clippy::cast_precision_loss, reason = "few machines")]
    let error = ((0.25 + 1.0 / 24.0) * (1.0 / sizes[0] as f64 + 1.0 / sizes[1] as f64)).sqrt();
    let effect = Look { alpha, elapsed: 1.0 }.detectable(error, 60.0, power);
    let seen =
        |effect: f64| (0..1_000).filter(|&seed| first_alarm(noise, sizes, effect, 0.0, alpha, seed).is_some_and(|at| at <= 24)).count();
    let (whole, quarter) = (seen(effect), seen(effect / 4.0));
    println!("an effect of {effect:.3} is seen in {whole} of 1000, a quarter of it in {quarter}");
    // It may be seen at earlier looks, too.
    assert!((790..=900).contains(&whole), "{whole} of 1000, where {power} was said");
    assert!(quarter < 100, "{quarter}");
}

#[test]
fn bounds_are_as_wide_as_they_say() {
    let check = |alpha, elapsed, want: f64| {
        let got = Look { alpha, elapsed }.multiplier();
        assert!((got - want).abs() < 5e-3, "{alpha} {elapsed}: {got}");
    };
    // sqrt(2 * (1 + 1/12) * ln(sqrt(13)/0.02 + 1)), and so on.
    check(0.01, 1.0, 3.3558);
    check(0.01, 1.0 / 12.0, 4.1329);
    check(0.001, 1.0, 4.0319);
    assert_eq!(Look { alpha: 0.0, elapsed: 1.0 }.multiplier(), f64::INFINITY);
    assert_eq!(Look { alpha: 0.01, elapsed: 0.0 }.multiplier(), f64::INFINITY);
    // It is tightest about where it is said to be.
    let at = |elapsed| Look { alpha: 0.001, elapsed }.multiplier();
    assert!(at(1.0) < at(0.2) && at(1.0) < at(20.0) && at(4.0) - at(1.0) < 0.2);
}

#[test]
fn students_tail_is_the_normal_one() {
    let check = |z: f64, freedom: f64, want: f64| {
        let got = student(z, freedom);
        assert!((got / want - 1.0).abs() < 1e-3, "{z} {freedom}: {got}, not {want}");
    };
    // From tables: 97.5 % and 99.9 %.
    check(1.959_964, 4.0, 2.776_445);
    check(1.959_964, 30.0, 2.042_272);
    check(3.090_232, 10.0, 4.143_700);
    check(-1.959_964, 4.0, -2.776_445);
    check(5.0, 1e9, 5.0);
    for freedom in [2.0, 3.5, 9.0, 300.0, 9_999.0] {
        for z in [0.1, 1.0, 3.0, 5.0, 6.0] {
            let tail = StudentsT::new(0.0, 1.0, freedom).unwrap().sf(student(z, freedom));
            let wanted = Normal::standard().sf(z);
            assert!((tail / wanted - 1.0).abs() < 1e-4, "{z} {freedom}: {tail:e} {wanted:e}");
        }
    }
}

proptest! {
    #[test]
    fn surer_is_wider_and_more_machines_are_narrower(
        alpha in 1e-6f64..0.2, elapsed in 1e-3f64..50.0, freedom in 1.0f64..500.0, error in 0.0f64..10.0, difference in -5.0f64..5.0
    ) {
        let look = Look { alpha, elapsed };
        let bounds = look.bounds(difference, error, freedom);
        prop_assert!(bounds.lower <= difference && difference <= bounds.upper);
        let surer = Look { alpha: alpha / 2.0, elapsed }.bounds(difference, error, freedom);
        prop_assert!(surer.lower <= bounds.lower);
        prop_assert!(look.bounds(difference, error, freedom * 2.0).lower >= bounds.lower - 1e-9 * bounds.lower.abs());
        prop_assert!(look.multiplier_of(freedom) >= look.multiplier() * (1.0 - 1e-9));
    }
}
