//! A sequential test: its error probability holds for any number of evaluations.
//!
//! # Problem
//! A rollout is evaluated every few minutes and ends at the first evaluation that shows harm. A test designed for one
//! evaluation, repeated many times, sooner or later raises a false alarm: at 5 % each, a hundred evaluations do so in a
//! third of all rollouts without harm. The evaluations are not of new machines either: they are of the same machines
//! after a longer time.
//!
//! # Approach
//! At time `t` into a stage let `D(t)` be the difference of the means of the two groups over all time so far, and
//! `s(t)` its standard error *over machines* ([`crate::contrast`]). Without an effect, `Z(t) = D(t)/s(t)` would be a
//! Gaussian process with variance one in each evaluation. Robbins' normal mixture bounds Brownian motion `W` for all
//! time: with probability of at least `1 - alpha`,
//!
//! ```text
//! W(v) < sqrt(2 (v + rho) ln(sqrt((v + rho)/rho) / (2 alpha) + 1))      for all v > 0
//! ```
//!
//! (one-sided, in closed form: Howard, Ramdas, McAuliffe and Sekhon, *Time-uniform, nonparametric, nonasymptotic
//! confidence sequences*, Annals of Statistics 2021, section 3.2; Robbins, *Statistical methods related to the law of
//! the iterated logarithm*, 1970. Estimated variances are covered by Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas,
//! *Time-uniform central limit theory and asymptotic confidence sequences*, Annals of Statistics 2024). Divided by
//! `sqrt(v)`, with `r = v/rho`, it bounds `W(v)/sqrt(v)` by [`SequentialTest::multiplier`].
//!
//! Time is the clock: `r = t/t0`. `W(t)/sqrt(t)` in two evaluations `u < t` has the correlation `sqrt(u/t)`, as have
//! means of independent noise. If machines differ permanently, or noise is autocorrelated, `Z(u)` and `Z(t)` have a
//! higher correlation, and by Slepian's lemma (*The one-sided barrier problem for Gaussian noise*, 1962) a Gaussian
//! process with higher correlations stays below the same bounds at least as likely. The bound therefore holds for any
//! mixture of the two kinds of noise, without knowing it; it is exact if machines do not differ, and conservative if
//! they do.
//!
//! With few machines the standard error is an estimate, which Student's t allows for: a bound of some standard errors
//! is moved to the point where Student's t has the tail that the normal distribution has there.
//!
//! # Properties
//! - Without a difference, the bounds of a side are crossed in any evaluation of a stage, however many there are, with
//!   a probability of at most `alpha`. Tested over 10,000 seeds for each of several kinds of noise.
//! - [`SequentialTest::detectable`] is the difference that is detected by a certain time: the power of the test.
//! - The bounds do not hold for noise that reverses itself (a high value causes a low one later). A daily cycle does no
//!   harm, because both groups have it.

use crate::tails;

/// Multiples of `t0` in the minimum time of a stage. The bound is tightest there for the usual alphas: it decreases
/// until `r` is about `2 ln(1/alpha)`, and then increases more slowly than the square root of a logarithm.
pub const TIGHTEST: f64 = 12.0;
/// Degrees of freedom above which Student's t is replaced by the normal distribution.
const NORMAL_FROM: f64 = 1e4;

/// Bounds that hold jointly over all evaluations: each with probability `1 - alpha`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Lower bound of the difference.
    pub lower: f64,
    /// Upper bound of the difference.
    pub upper: f64,
}

/// The state of a test: its error probability and the time of the current evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SequentialTest {
    /// Probability that the bound of a side is ever wrong.
    pub alpha: f64,
    /// Time that the evidence covers, as a multiple of the stage's minimum time.
    pub elapsed: f64,
}

impl SequentialTest {
    /// Returns half the width of the bounds in standard errors, for infinitely many machines. Infinite without
    /// evidence.
    #[must_use]
    pub fn multiplier(&self) -> f64 {
        let r = self.elapsed * TIGHTEST;
        if r <= 0.0 || self.alpha <= 0.0 {
            return f64::INFINITY;
        }
        (2.0 * (1.0 + 1.0 / r) * ((1.0 + r).sqrt() / (2.0 * self.alpha) + 1.0).ln()).sqrt()
    }

    /// Returns the multiplier for a standard error that is estimated with these degrees of freedom.
    #[must_use]
    pub fn multiplier_of(&self, degrees_of_freedom: f64) -> f64 {
        student(self.multiplier(), degrees_of_freedom)
    }

    /// Returns the bounds of a difference with this standard error.
    #[must_use]
    pub fn bounds(&self, difference: f64, standard_error: f64, degrees_of_freedom: f64) -> Bounds {
        let half = if standard_error > 0.0 { self.multiplier_of(degrees_of_freedom) * standard_error } else { 0.0 };
        Bounds { lower: difference - half, upper: difference + half }
    }

    /// Returns how far a difference must be beyond a margin to be detected in this evaluation with probability `power`,
    /// given the standard error.
    #[must_use]
    pub fn detectable(&self, standard_error: f64, degrees_of_freedom: f64, power: f64) -> f64 {
        (self.multiplier_of(degrees_of_freedom) + quantile(power)) * standard_error
    }
}

/// Returns the point of Student's t with the upper tail that the normal distribution has above `z`. Fewer than two
/// degrees of freedom count as two, because no decision is made with three machines.
#[must_use]
pub fn student(z: f64, degrees_of_freedom: f64) -> f64 {
    if !z.is_finite() || degrees_of_freedom >= NORMAL_FROM {
        return z;
    }
    if z < 0.0 {
        return -student(-z, degrees_of_freedom);
    }
    // Beyond 6 standard deviations the tail is too small to compute: extrapolate in proportion.
    let (inside, beyond) = (z.min(6.0), (z / 6.0).max(1.0));
    beyond * tails::student_inverse(tails::normal(inside), degrees_of_freedom.max(2.0))
}

/// Returns the quantile of the standard normal distribution.
#[must_use]
pub fn quantile(share: f64) -> f64 {
    -tails::normal_inverse(share.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;
