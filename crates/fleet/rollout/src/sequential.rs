//! A test that may be looked at as often as one likes.
//!
//! # Problem
//! A rollout is looked at every few minutes, and ends at the first look that shows harm. A test made for one look, asked
//! again and again, raises the alarm sooner or later: at 5 % each, a hundred looks at nothing do so in a third of all
//! rollouts. And the looks are not at new machines: the same ones have been watched for longer.
//!
//! # Approach
//! At time `t` into a stage let `D(t)` be the difference between the two groups, of means over all time so far, and `s(t)` its
//! standard error *over machines* ([`crate::contrast`]). Were nothing the matter, `Z(t) = D(t)/s(t)` would be a Gaussian
//! process with variance one at each look. Robbins' normal mixture bounds Brownian motion `W` for all time: with probability
//! `1 - alpha` at least,
//!
//! ```text
//! W(v) < sqrt(2 (v + rho) ln(sqrt((v + rho)/rho) / (2 alpha) + 1))      for all v > 0
//! ```
//!
//! (one-sided, in closed form: Howard, Ramdas, McAuliffe and Sekhon, *Time-uniform, nonparametric, nonasymptotic confidence
//! sequences*, Annals of Statistics 2021, section 3.2; Robbins, *Statistical methods related to the law of the iterated
//! logarithm*, 1970. That estimated variances do is shown by Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, *Time-uniform
//! central limit theory and asymptotic confidence sequences*, Annals of Statistics 2024). Divided by `sqrt(v)`, with
//! `r = v/rho`, it bounds `W(v)/sqrt(v)` by [`multiplier`].
//!
//! Time is the clock: `r = t/t0`. `W(t)/sqrt(t)` at two looks `u < t` has the correlation `sqrt(u/t)`. So have means of
//! noise that is drawn anew all the time. Where machines differ from each other for good, or noise lasts, `Z(u)` and `Z(t)` are
//! correlated more, and by Slepian's lemma (*The one-sided barrier problem for Gaussian noise*, 1962) a Gaussian process of higher
//! correlations stays below the same bounds at least as likely. So the bound holds whatever part of the noise belongs to
//! machines and whatever to the hour, without knowing which; it is exact where machines do not differ, and careful where they do.
//!
//! Few machines: the standard error is an estimate, which Student's t allows for. A bound of so many standard errors is moved to
//! where Student's t has the tail that the normal distribution has there.
//!
//! # Properties
//! - Under no difference the bounds of a side are crossed at any look of a stage, however many looks, with probability
//!   `alpha` at most. Tested over 10,000 seeds for each of several kinds of noise.
//! - [`detectable`] says how large a difference must be to be seen by a certain time: the test's power.
//! - What breaks it: noise that reverses itself (what was high comes out low for that reason). A day's swing does not: both
//!   groups have it.

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// At the end of a stage's shortest time, so many `t0` have passed. There the bound is tightest for the alphas of interest:
/// it falls until `r` is about `2 ln(1/alpha)`, and rises slower than the square root of a logarithm from there.
pub const TIGHTEST: f64 = 12.0;
/// Student's t with more degrees of freedom than this is taken for normal.
const NORMAL_FROM: f64 = 1e4;

/// Bounds that hold at all looks together: each with probability `1 - alpha`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The difference is above this.
    pub lower: f64,
    /// The difference is below this.
    pub upper: f64,
}

/// How sure one wants to be, and since when one has been looking.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// The probability that a side's bound is ever wrong.
    pub alpha: f64,
    /// Time that the evidence covers, in terms of the stage's shortest time.
    pub elapsed: f64,
}

impl Look {
    /// Half the width of the bounds in standard errors, for machines without number. Infinite before there is evidence.
    #[must_use]
    pub fn multiplier(&self) -> f64 {
        let r = self.elapsed * TIGHTEST;
        if r <= 0.0 || self.alpha <= 0.0 {
            return f64::INFINITY;
        }
        (2.0 * (1.0 + 1.0 / r) * ((1.0 + r).sqrt() / (2.0 * self.alpha) + 1.0).ln()).sqrt()
    }

    /// [`Self::multiplier`] where the standard error is estimated with so many degrees of freedom.
    #[must_use]
    pub fn multiplier_of(&self, degrees_of_freedom: f64) -> f64 {
        student(self.multiplier(), degrees_of_freedom)
    }

    /// Bounds of a difference that was found with this standard error.
    #[must_use]
    pub fn bounds(&self, difference: f64, standard_error: f64, degrees_of_freedom: f64) -> Bounds {
        let half = if standard_error > 0.0 { self.multiplier_of(degrees_of_freedom) * standard_error } else { 0.0 };
        Bounds { lower: difference - half, upper: difference + half }
    }

    /// How far a difference must lie beyond a margin to be seen at this look with probability `power`, given the standard
    /// error that there will be.
    #[must_use]
    pub fn detectable(&self, standard_error: f64, degrees_of_freedom: f64, power: f64) -> f64 {
        (self.multiplier_of(degrees_of_freedom) + quantile(power)) * standard_error
    }
}

/// The point of Student's t with the upper tail that the normal distribution has above `z`. Below two degrees of freedom
/// it is that of two: nobody decides by three machines.
#[must_use]
pub fn student(z: f64, degrees_of_freedom: f64) -> f64 {
    if !z.is_finite() || degrees_of_freedom >= NORMAL_FROM {
        return z;
    }
    if z < 0.0 {
        return -student(-z, degrees_of_freedom);
    }
    // From 6 standard deviations on the tail is too thin to work with; what is proportional to it there stays so.
    let (inside, beyond) = (z.min(6.0), (z / 6.0).max(1.0));
    let distribution = StudentsT::new(0.0, 1.0, degrees_of_freedom.max(2.0));
    distribution.map_or(f64::INFINITY, |student| beyond * -student.inverse_cdf(Normal::standard().sf(inside)))
}

/// The point of the normal distribution below which so much of it lies.
#[must_use]
pub fn quantile(share: f64) -> f64 {
    Normal::standard().inverse_cdf(share.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;
