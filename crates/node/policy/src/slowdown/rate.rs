//! Estimates access rates from samples of accessed bits, with a bound of the error.
//!
//! # Problem
//! The accessed bit of a page shows whether the page was accessed since the bit was last read and cleared, not how often. A placement
//! needs the rate (Thermostat section 2.1) and its error: a wrong placement costs slowdown, a page left in DRAM costs only savings. So
//! all decisions use `upper`.
//!
//! # One page
//! If accesses are independent of each other with a rate `r`, their number in an interval `d` is Poisson with mean
//! `x = r d`, and the bit is found set with chance `p = 1 - exp(-x)`. Of `n` samples, `k` find it set:
//!
//! mean = -ln(1 - k/n) / d; upper = -ln(1 - p') / d,
//!
//! with `p'` the exact binomial upper bound on `p` (`super::binomial::upper_bound`). The logarithm is monotone, so the bound
//! on the rate holds as often as that on `p`: in at least 95 % of cases, whatever the rate. After no access in `n` samples it is
//! `ln 20 / (n d)`, about `3 / (n d)`.
//!
//! The estimate saturates: if every sample finds the bit set, any higher rate would give the same result. There is no
//! upper bound then, and the mean is that of `k = n - 1/2`, `ln(2 n) / d`.
//!
//! # A block by its parts
//! Which parts of a block were touched at all is determined over a window `w`; of the `T` that were, a random `m` are sampled.
//! With `x_i` the rate of part `i`, what is estimated is
//!
//! `S = T/m * sum(x_i / (1 - exp(-x_i w)))`.
//!
//! The divisor is the chance of being touched in the window (Horvitz and Thompson 1952), and stands for the parts that
//! were not touched by chance: of 512 parts with one access in 30 s each, two thirds are not touched in 10 s, and have two thirds
//! of the accesses. That *these* were not touched is no evidence, because it is how they were selected. A touched part
//! with no access in its samples stands for `1 / w`, which is the formula's limit. Computed is `x + 1/w / (1 + t/2 + t^2/6)` with
//! `t = x w`, which is never less.
//!
//! The upper bound adds what may be missing:
//!
//! 1. *Sampling error of the parts.* The delta method gives `x_i` the variance `(exp(x) - 1) / n`, which with
//!    `exp(-x) = 1 - k/n` is `k / (n (n - k))`; times `z^2` it is the square of a half-width. Above half of the samples the
//!    error's upper tail is far longer than the normal's: there the exact half-width of the page's own bound takes its
//!    place (adding squares of half-widths is the MOVER method of Zou and Donner 2008).
//! 2. *Sampling error of the window.* A part stands for itself with the variance `x^2 exp(-t) / (1 - exp(-t))^2`, that is
//!    `1/w^2` times `(t/2 / sinh(t/2))^2`, computed as `1 / (1 + t^2/12)`, which is never less.
//! 3. *Parts not sampled.* With `h_i^2` the sum of these two and `s^2` the variance among what the parts stand for, two-stage
//!    sampling (Cochran 1977, chapter 10) has the squared half-width `z^2 T (T - m) s^2 / m + T/m * sum(h_i^2)`. Its root is
//!    added.
//! 4. *Counts too small for a normal.* For few accesses in all, the exact Poisson bound exceeds the count `K` by less than
//!    `z sqrt(K) + ln 20`, and is just `ln 20` for none. So `T/m * ln 40 / n` is added for the samples, and `ln 40 / w` for
//!    the window; 40 rather than 20 because each of the two can fail alone.
//!
//! A single saturated part makes the block saturated.
//!
//! # What the bound does not cover
//! - Bursts. Accesses that come together set one bit: what is estimated is a rate of bursts, as the accessed bit shows
//!   them. Accesses served while the TLB still holds the page show nowhere.
//! - A block in which a few parts that were not sampled have most of the accesses. In simulated blocks of equal parts the bound holds in
//!   98.8 % of cases or more. If rates fall with a part's rank (Zipf, exponents 0.5 to 1.5) it holds in 99.5 % for blocks of up to 10
//!   accesses per second, but only in 78 to 99 % for those of 30 to 300. Such a block is detected by the samples of the slow node, and is
//!   promoted in the next period.
//!
//! # Properties
//! Each is a test of that name: the bound holds in 95 % of cases, exactly summed; it is monotone in what was accessed; it
//! shrinks with more samples; no access gives 3 over the time; a saturated part saturates the block; any input is answered.

use serde::{Deserialize, Serialize};

use super::binomial::{LN_20, LN_40, ONE, ln, minus_ln_1p, upper_bound};
use units::AccessRate;

/// The square of z, the one-sided 95 % quantile of the normal distribution (1.6449), in millionths.
const Z_SQUARED_PPM: u128 = 2_705_543;

/// Micro-accesses per second in one access per microsecond.
const MICRO_PER_US: u128 = 1_000_000_000_000;

/// Samples of the accessed bit of one page, at equal intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BitSamples {
    /// Number of samples.
    pub taken: u32,
    /// Number of samples that found the bit set. More than `taken` counts as `taken`.
    pub accessed: u32,
}

/// An estimated access rate with its upper bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Estimate {
    /// The most likely rate; if saturated, the lowest rate that saturates.
    pub mean: AccessRate,
    /// The upper 95 % bound of the rate. `None` if it cannot be determined: all samples found the bit set, or there were none.
    pub upper: Option<AccessRate>,
}

/// Estimates the rate of one page from samples `interval_us` microseconds apart.
#[must_use]
pub fn page(samples: BitSamples, interval_us: u64) -> Estimate {
    let BitSamples { taken, accessed } = samples.clamped();
    if taken == 0 || interval_us == 0 {
        return Estimate::default();
    }
    let mean = per_second(u128::from(samples.mean()), interval_us, u128::div_euclid);
    let upper = (accessed < taken).then(|| per_second(u128::from(samples.upper()), interval_us, u128::div_ceil));
    Estimate { mean, upper }
}

/// Estimates the rate from counted accesses in `exposure_us` microseconds, which do not saturate.
///
/// The exact Poisson bound on a mean of which `K` were counted is less than `K + z sqrt(K) + ln 20`, and just `ln 20` for none.
#[must_use]
pub fn counted(accesses: u64, exposure_us: u64) -> Estimate {
    if exposure_us == 0 {
        return Estimate::default();
    }
    let count = u128::from(accesses) * u128::from(ONE);
    // In Q32, rounded up: the root of z^2 K 2^64, of which 10^6 has been taken out before the root.
    let spread = (Z_SQUARED_PPM.saturating_mul(accesses.into()).saturating_mul(u128::from(ONE)) / 1_000_000 + 1).isqrt();
    let spread = (spread + 1) * u128::from(ONE.isqrt());
    let upper = count + spread + u128::from(LN_20);
    Estimate { mean: per_second(count, exposure_us, u128::div_euclid), upper: Some(per_second(upper, exposure_us, u128::div_ceil)) }
}

/// Returns the highest rate that this number of samples of one page resolves in 95 % of cases: above it, all samples find the bit set in
/// more than one case in twenty, which gives no upper bound.
#[must_use]
pub fn resolvable(samples: u32, interval_us: u64) -> AccessRate {
    if samples == 0 || interval_us == 0 {
        return AccessRate::ZERO;
    }
    // (1 - exp(-x))^n = 5 %, and the bound after no access at all is the p with (1 - p)^n = 5 %, so that x = -ln p.
    let x = ln(ONE).saturating_sub(ln(upper_bound(0, samples)));
    per_second(x.into(), interval_us, u128::div_euclid)
}

/// A block of which some parts were sampled.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Number of parts of the block: 512 for a whole huge page.
    pub of: u32,
    /// Parts that were touched at all during the window.
    pub touched: u32,
    /// Length of the window, in microseconds.
    pub touch_window_us: u64,
    /// The samples of a random selection of the touched parts. A part without samples counts as not selected.
    pub samples: &'a [BitSamples],
    /// The sampling interval, in microseconds.
    pub interval_us: u64,
}

/// Estimates the rate of a block from a sample of its touched parts.
#[must_use]
pub fn parts(parts: &Parts<'_>) -> Estimate {
    let sample = Sample::of(parts);
    let touched = u128::from(parts.touched).max(sample.parts);
    let untouched = u128::from(parts.of) > touched;
    if (touched > 0 && (sample.parts == 0 || parts.interval_us == 0)) || (untouched && parts.touch_window_us == 0) {
        return Estimate::default();
    }
    let unnoticed = if untouched { per_second(LN_40.into(), parts.touch_window_us, u128::div_ceil) } else { AccessRate::ZERO };
    if touched == 0 {
        return Estimate { mean: AccessRate::ZERO, upper: Some(unnoticed) };
    }
    let sum = touched.saturating_mul(sample.sum) / sample.parts;
    let upper = sample.excess(touched).map(|excess| {
        let sampled = sum.saturating_add(excess).saturating_add(1);
        per_second(sampled, parts.interval_us, u128::div_ceil) + unnoticed
    });
    Estimate { mean: per_second(sum, parts.interval_us, u128::div_euclid), upper }
}

impl BitSamples {
    fn clamped(self) -> Self {
        Self { taken: self.taken, accessed: self.accessed.min(self.taken) }
    }

    /// Accesses per interval in Q32: `ln(n / (n - k))`, or `ln(2 n)` where all samples found the bit set.
    fn mean(self) -> u64 {
        let Self { taken, accessed } = self.clamped();
        match u64::from(taken - accessed) {
            0 => ln(u64::from(taken) * 2),
            idle => ln(u64::from(taken)).saturating_sub(ln(idle)),
        }
    }

    /// The 95 % upper bound on accesses per interval in Q32, of samples that are not saturated.
    fn upper(self) -> u64 {
        match self.clamped() {
            // 0.05^(1/n) is left idle, so the bound has a closed form.
            Self { accessed: 0, taken } => LN_20.div_ceil(u64::from(taken.max(1))),
            Self { accessed, taken } => minus_ln_1p(upper_bound(accessed, taken)),
        }
    }

    /// The square of the half-width of the 95 % bound on accesses per interval, in Q64; `None` where saturated.
    fn half_width_squared(self) -> Option<u128> {
        let Self { taken, accessed } = self.clamped();
        let idle = u128::from(taken.checked_sub(accessed).filter(|&idle| idle > 0)?);
        if u128::from(accessed) > idle {
            let half_width = u128::from(self.upper().saturating_sub(self.mean()));
            return Some(half_width * half_width);
        }
        let variance = (u128::from(accessed) << 64) / (u128::from(taken) * idle);
        Some(z_squared_times(variance))
    }
}

/// The touched parts that were sampled, in accesses per interval.
struct Sample<'a> {
    samples: &'a [BitSamples],
    /// Intervals in which a part would have been found touched, and untouched ones were not; `None` where all were touched.
    window: Option<Window>,
    /// Number of parts with at least one sample.
    parts: u128,
    /// The sum of what each stands for, in Q32.
    sum: u128,
}

impl<'a> Sample<'a> {
    fn of(parts: &Parts<'a>) -> Self {
        let seen = parts.samples.iter().filter(|samples| samples.taken > 0).count() as u128;
        let all_touched = u128::from(parts.of) <= u128::from(parts.touched).max(seen);
        let window = (!all_touched).then(|| Window::new(parts.touch_window_us, parts.interval_us));
        let sample = Self { samples: parts.samples, window, parts: seen, sum: 0 };
        Self { sum: sample.seen().map(|samples| sample.stands_for(samples)).sum(), ..sample }
    }

    fn seen(&self) -> impl Iterator<Item = BitSamples> + use<'a> {
        self.samples.iter().copied().filter(|samples| samples.taken > 0)
    }

    /// A part's own rate, and its share of the rate of the untouched, in Q32.
    fn stands_for(&self, samples: BitSamples) -> u128 {
        let own = u128::from(samples.mean());
        own + self.window.map_or(0, |window| window.missed(own))
    }

    /// How far the rate of the block may lie above the estimate, in accesses per interval, in Q32, but for `unnoticed`;
    /// `None` where a part is saturated, or where a single one should speak for several.
    fn excess(&self, touched: u128) -> Option<u128> {
        let unseen = touched - self.parts;
        let between = match self.parts {
            _ if unseen == 0 => 0,
            1 => return None,
            parts => {
                let squares = z_squared_times(self.squared_deviations() / (parts - 1));
                (squares / parts).saturating_mul(touched).saturating_mul(unseen)
            }
        };
        let mut within = 0u128;
        for samples in self.seen() {
            let by_window = self.window.map_or(0, |window| z_squared_times(window.variance(samples.mean().into())));
            within = within.saturating_add(samples.half_width_squared()?).saturating_add(by_window);
        }
        let within = (within / self.parts).saturating_add(1).saturating_mul(touched);
        let fewest = u128::from(self.seen().map(|samples| samples.taken).min().unwrap_or(1));
        let small_counts = touched.saturating_mul(u128::from(LN_40)).div_ceil(self.parts * fewest);
        Some((between.saturating_add(within).isqrt() + 1).saturating_add(small_counts))
    }

    /// The sum of squared deviations of what the parts stand for from their mean, in Q64.
    fn squared_deviations(&self) -> u128 {
        let mean = self.sum / self.parts.max(1);
        self.seen().map(|samples| self.stands_for(samples).abs_diff(mean).pow(2)).fold(0, u128::saturating_add)
    }
}

/// The window in which touched parts were determined.
#[derive(Clone, Copy)]
struct Window {
    /// Intervals per window inverted: accesses per interval at one access per window, in Q32. At least one unit, at most 2^24
    /// accesses per interval.
    one: u128,
}

impl Window {
    fn new(window_us: u64, interval_us: u64) -> Self {
        let one = u128::from(interval_us) * u128::from(ONE) / u128::from(window_us.max(1));
        Self { one: one.clamp(1, 1 << 56) }
    }

    /// Accesses per window at so many per interval, both in Q32. More than 2^16 are not distinguished.
    fn accesses(self, per_interval: u128) -> u128 {
        (per_interval * u128::from(ONE) / self.one).min(1 << 48)
    }

    /// `x / (exp(t) - 1)` in accesses per interval, in Q32, from above: `1/w / (1 + t/2 + t^2/6)`.
    fn missed(self, per_interval: u128) -> u128 {
        let t = self.accesses(per_interval);
        let divisor = u128::from(ONE) + t / 2 + ((t * t) >> 32) / 6;
        (self.one * u128::from(ONE)).div_ceil(divisor)
    }

    /// `(x / (2 sinh(t/2)))^2` in Q64, from above: `1/w^2 / (1 + t^2/12)`.
    fn variance(self, per_interval: u128) -> u128 {
        let t = self.accesses(per_interval);
        let divisor = u128::from(ONE) + ((t * t) >> 32) / 12;
        // Both factors of the square are below 2^56, but times 2^32 they would not fit.
        (self.one * u128::from(ONE)).div_ceil(divisor).saturating_mul(self.one)
    }
}

/// `z^2` times this, rounded up.
fn z_squared_times(square: u128) -> u128 {
    (square.saturating_mul(Z_SQUARED_PPM) / 1_000_000).saturating_add(1)
}

/// Accesses per interval, in Q32, as a rate; rounded by `divide`.
fn per_second(per_interval: u128, interval_us: u64, divide: impl Fn(u128, u128) -> u128) -> AccessRate {
    let rate = divide(per_interval.saturating_mul(MICRO_PER_US), u128::from(interval_us) * u128::from(ONE));
    AccessRate(u64::try_from(rate).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
