//! Arithmetic of the rate estimates: logarithms and the binomial distribution, in integers.
//!
//! A real number `x` is represented as `x * 2^32`, called Q32 below, so that every machine rounds alike.

/// One in Q32.
pub(super) const ONE: u64 = 1 << 32;

/// ln 20 in Q32, rounded up: a Poisson count with this mean is zero in 5 % of cases.
pub(super) const LN_20: u64 = 12_866_572_143;

/// ln 40 in Q32, rounded up: likewise for 2.5 %.
pub(super) const LN_40: u64 = 15_843_616_615;

/// More trials than this are scaled down to this many: the bound is within 1 % of the estimate's error by then, and a sum
/// over the distribution stays short.
const TRIALS_MAX: u32 = 1_024;

/// ln 2 times 2^62.
const LN_2_Q62: u128 = 3_196_577_161_300_663_914;

/// Fractional bits of the binary logarithm.
const LOG_BITS: u32 = 40;

/// The natural logarithm of a positive integer in Q32, at most one unit too small. Zero is taken as one.
///
/// `n = 2^e * m` with `1 <= m < 2`. Squaring `m` doubles its binary logarithm: where the square reaches two, the next
/// bit of the logarithm is a one, and the square is halved.
pub(super) fn ln(n: u64) -> u64 {
    let n = n.max(1);
    let mut mantissa = u128::from(n << n.leading_zeros());
    let mut log2 = u128::from(n.ilog2());
    for _ in 0..LOG_BITS {
        mantissa = (mantissa * mantissa) >> 63;
        let bit = mantissa >> 64;
        mantissa >>= bit;
        log2 = log2 << 1 | bit;
    }
    // Q40 times Q62 is Q102. The logarithm of 2^64 is 44.4, so Q32 fits by far.
    u64::try_from((log2 * LN_2_Q62) >> (LOG_BITS + 62 - 32)).unwrap_or(u64::MAX)
}

/// `-ln(1 - p)` in Q32, at most two units too large, for a `p` in Q32 below one; one is taken as the next below it.
pub(super) fn minus_ln_1p(p: u64) -> u64 {
    ln(ONE) + 1 - ln(ONE.saturating_sub(p))
}

/// The exact one-sided 95 % upper bound (Clopper and Pearson 1934) on the chance `p` of a success, after `successes` in
/// `trials`: the largest p with `P(X <= successes | p) >= 5 %`, in Q32, rounded up.
///
/// `trials` must be more than `successes`: after nothing but successes there is no bound below one, and one is returned.
pub(super) fn upper_bound(successes: u32, trials: u32) -> u64 {
    let (successes, trials) = shortened(successes, trials);
    if successes >= trials {
        return ONE;
    }
    // P(X <= k) falls as p grows. At the observed share it is far above 5 %, at one it is zero.
    let mut enough = ONE * u64::from(successes) / u64::from(trials);
    let mut too_little = ONE;
    while too_little - enough > 1 {
        let middle = enough.midpoint(too_little);
        if at_least_5_percent(successes, trials, middle) {
            enough = middle;
        } else {
            too_little = middle;
        }
    }
    too_little
}

/// The same share of fewer trials, where there are more than [`TRIALS_MAX`]; rounded towards more successes.
fn shortened(successes: u32, trials: u32) -> (u32, u32) {
    if trials <= TRIALS_MAX {
        return (successes, trials);
    }
    let scaled = (u64::from(successes) * u64::from(TRIALS_MAX)).div_ceil(u64::from(trials));
    (u32::try_from(scaled).unwrap_or(TRIALS_MAX), TRIALS_MAX)
}

/// Whether `P(X <= k) >= 5 %`, with X the successes among n, each with chance p (in Q32, neither zero nor one).
///
/// The terms are taken relative to the largest, which lies at the mode, because the outer ones may be less than any
/// integer can hold: `P(i + 1) / P(i) = (n - i) p / ((i + 1) (1 - p))`.
fn at_least_5_percent(k: u32, n: u32, p: u64) -> bool {
    const LARGEST: u128 = 1 << 62;
    let (k, n, p) = (u128::from(k), u128::from(n), u128::from(p));
    let q = u128::from(ONE) - p;
    let mode = (((n + 1) * p) >> 32).min(n);
    let (mut below, mut above) = (0, 0);
    let mut count = |i: u128, term: u128| if i <= k { below += term } else { above += term };
    // A term is below 2^62, n at most 2^10, p at most 2^32: the products stay below 2^104.
    let (mut i, mut term) = (mode, LARGEST);
    while term > 0 && i < n {
        count(i, term);
        term = term * (n - i) * p / ((i + 1) * q);
        i += 1;
    }
    if i == n {
        count(n, term);
    }
    let (mut i, mut term) = (mode, LARGEST);
    while term > 0 && i > 0 {
        term = term * i * q / ((n - i + 1) * p);
        i -= 1;
        count(i, term);
    }
    below * 19 >= above
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::cast_precision_loss, reason = "a test")]
    fn real(q32: u64) -> f64 {
        q32 as f64 / ONE as f64
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "a test")]
    fn logarithms_are_exact_to_a_billionth() {
        for n in (1..2_000).chain([ONE - 1, ONE, ONE + 1, u64::MAX / 3, u64::MAX]) {
            assert!((real(ln(n)) - (n as f64).ln()).abs() < 1e-9, "ln {n}: {}", real(ln(n)));
        }
        assert_eq!(ln(0), 0);
        for p in [0, 1, 1 << 16, ONE / 2, ONE - 1] {
            assert!((real(minus_ln_1p(p)) + (1.0 - real(p)).ln()).abs() < 1e-8, "{p}");
        }
        assert!((real(LN_20) - 20f64.ln()).abs() < 1e-9);
        assert!((real(LN_40) - 40f64.ln()).abs() < 1e-9);
    }

    /// `P(X <= k)` in floating point, straight from the definition, by what is above `k`.
    fn cumulative(k: u32, n: u32, p: f64) -> f64 {
        let mut term = p.powi(n.cast_signed());
        let mut above = term;
        for i in (k + 2..=n).rev() {
            term *= f64::from(i) / f64::from(n - i + 1) * (1.0 - p) / p;
            above += term;
        }
        1.0 - above
    }

    #[test]
    fn the_bound_leaves_five_percent() {
        for n in 1..=100 {
            for k in 0..n {
                let left = cumulative(k, n, real(upper_bound(k, n)));
                assert!((left - 0.05).abs() < 1e-6, "{k} of {n}: {left}");
            }
            assert_eq!(upper_bound(n, n), ONE);
        }
    }

    #[test]
    fn many_trials_count_as_fewer() {
        for (k, n) in [(0, 4_000), (1, 5_000), (2_000, 4_000), (3_999, 4_000), (1 << 30, u32::MAX)] {
            let (bound, share) = (real(upper_bound(k, n)), f64::from(k) / f64::from(n));
            assert!(bound > share && bound < share + 0.03, "{k} of {n}: {bound}");
        }
        assert_eq!(upper_bound(u32::MAX, u32::MAX), ONE);
        assert_eq!(upper_bound(0, 0), ONE);
    }
}
