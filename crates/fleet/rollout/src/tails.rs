//! Tails of the normal distribution and of Student's t, and their inverses.
//!
//! # Approach
//! The tail of the normal distribution is the complementary error function. The tail of Student's t is half of the
//! regularized incomplete beta function, whose continued fraction converges within some hundred terms for all degrees of
//! freedom used here (DLMF 8.17.22). Both inverses use Newton's method on the logarithm of the tail, which is concave:
//! from the second step on, all steps approach the solution from the same side.

use std::f64::consts::{LN_2, PI, SQRT_2};

/// More terms than the continued fraction needs.
const TERMS_MAX: usize = 10_000;
/// More steps than Newton's method needs: beyond them, it has reached the precision of the tail.
const STEPS_MAX: usize = 100;
/// Relative change at which an iteration ends.
const PRECISION: f64 = 1e-15;

/// Returns the probability above `z` of the standard normal distribution.
pub(crate) fn normal(z: f64) -> f64 {
    libm::erfc(z / SQRT_2) / 2.0
}

/// Returns the point above which the standard normal distribution has probability `tail`, from 0 to 1.
pub(crate) fn normal_inverse(tail: f64) -> f64 {
    if tail > 0.5 {
        return -normal_inverse(1.0 - tail);
    }
    if tail <= 0.0 {
        return f64::INFINITY;
    }
    // The tail is below exp(-z^2/2)/2, so that this point is above the solution.
    let start = (-2.0 * (tail.ln() + LN_2)).max(0.0).sqrt();
    newton(start, tail, |z| (normal(z), (-z * z / 2.0).exp() / (2.0 * PI).sqrt()))
}

/// Returns the probability above `t`, which is positive, of Student's t.
pub(crate) fn student(t: f64, degrees_of_freedom: f64) -> f64 {
    incomplete_beta(degrees_of_freedom / 2.0, 0.5, degrees_of_freedom, t * t) / 2.0
}

/// Returns the point above which Student's t has probability `tail`, from 0 to one half.
pub(crate) fn student_inverse(tail: f64, degrees_of_freedom: f64) -> f64 {
    if tail >= 0.5 {
        return 0.0;
    }
    if tail <= 0.0 {
        return f64::INFINITY;
    }
    let half = (degrees_of_freedom + 1.0) / 2.0;
    let scale = libm::lgamma(half) - libm::lgamma(degrees_of_freedom / 2.0) - (degrees_of_freedom * PI).ln() / 2.0;
    // In logarithms of both, the tail is concave and nearly straight.
    let log = newton(normal_inverse(tail).ln(), tail, |log| {
        let t = log.exp();
        (student(t, degrees_of_freedom), t * (scale - half * (t * t / degrees_of_freedom).ln_1p()).exp())
    });
    log.exp()
}

/// Solves `tail(x) = target`; `at` returns the tail at a point and the density there.
fn newton(start: f64, target: f64, at: impl Fn(f64) -> (f64, f64)) -> f64 {
    let mut x = start;
    for _ in 0..STEPS_MAX {
        let (tail, density) = at(x);
        let step = (tail / target).ln() * tail / density;
        x += step;
        if step.abs() <= PRECISION * x.abs().max(1.0) {
            break;
        }
    }
    x
}

/// Returns the regularized incomplete beta function `I(a, b)` at `p/(p + q)`.
fn incomplete_beta(a: f64, b: f64, p: f64, q: f64) -> f64 {
    let x = p / (p + q);
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, q, p);
    }
    let front = libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b) + a * x.ln() + b * (q / (p + q)).ln();
    front.exp() / (a * fraction(a, b, x))
}

/// Returns the continued fraction of the incomplete beta function (DLMF 8.17.22), by the method of Lentz.
fn fraction(a: f64, b: f64, x: f64) -> f64 {
    let mut value = 1.0;
    let (mut c, mut d) = (1.0, 0.0);
    for step in 1..TERMS_MAX {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let m = (step / 2) as f64;
        let term = if step % 2 == 0 {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        d = 1.0 / (1.0 + term * d);
        c = 1.0 + term / c;
        value *= c * d;
        if (c * d - 1.0).abs() <= PRECISION {
            break;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(found: f64, expected: f64, precision: f64) {
        assert!((found / expected - 1.0).abs() <= precision, "{found} instead of {expected}");
    }

    #[test]
    fn quantiles_are_those_of_published_tables() {
        for (tail, z) in [(0.025, 1.959_963_985), (0.05, 1.644_853_627), (0.001, 3.090_232_306), (1e-9, 5.997_807_015)] {
            check(normal_inverse(tail), z, 1e-9);
            assert!(normal_inverse(1.0 - tail) < 0.0);
        }
        for (tail, degrees, t) in [
            (0.05, 2.0, 2.919_986),
            (0.025, 10.0, 2.228_139),
            (0.001, 5.0, 5.893_430),
            (0.005, 30.0, 2.749_996),
            (0.025, 120.0, 1.979_930_405),
        ] {
            check(student_inverse(tail, degrees), t, 2e-7);
        }
    }

    #[test]
    fn the_tail_of_two_degrees_of_freedom_has_a_closed_form() {
        for t in [0.01, 0.5, 1.0, 3.0, 100.0, 20_000.0_f64] {
            let root = (2.0 + t * t).sqrt();
            // (1 - t/root)/2, without cancellation.
            check(student(t, 2.0), 1.0 / (root * (root + t)), 1e-13);
        }
    }

    #[test]
    fn inverses_return_the_point() {
        for z in [1e-3, 0.01, 0.3, 1.0, 2.5, 6.0] {
            check(normal_inverse(normal(z)), z, 1e-9);
            for degrees in [2.0, 2.5, 3.0, 10.0, 150.0, 9_999.0] {
                check(student_inverse(student(z, degrees), degrees), z, 1e-9);
            }
        }
    }

    #[test]
    fn the_ends_are_defined() {
        assert_eq!((normal_inverse(0.0), normal_inverse(1.0)), (f64::INFINITY, f64::NEG_INFINITY));
        assert!(normal_inverse(0.5).abs() < 1e-15);
        assert_eq!((student_inverse(0.0, 3.0), student_inverse(0.5, 3.0)), (f64::INFINITY, 0.0));
        assert!(normal_inverse(f64::MIN_POSITIVE).is_finite());
    }
}
