//! Seeded random numbers that are the same on every machine.

use fastrand::Rng;

/// Returns the generator of item `index` of the stream `seed`, independent of those of its neighbours.
pub(crate) fn stream(seed: u64, index: u64) -> Rng {
    // The finalizer of splitmix64: the results for neighbouring numbers are uncorrelated.
    let mut mixed = seed.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    Rng::with_seed(mixed ^ (mixed >> 31))
}

/// Draws from the standard normal distribution (Box-Muller).
pub(crate) fn normal(random: &mut Rng) -> f64 {
    let radius = libm::sqrt(-2.0 * libm::log(1.0 - random.f64()));
    radius * libm::cos(std::f64::consts::TAU * random.f64())
}

/// Draws from a log-normal distribution with this median and standard deviation of the logarithm.
pub(crate) fn log_normal(random: &mut Rng, (median, deviation): (f64, f64)) -> f64 {
    median * libm::exp(deviation * normal(random))
}

/// Shifts a share on the logit scale, on which 50 % to 73 % is one step and 73 % to 88 % the next.
pub(crate) fn shifted(share: f64, by: f64) -> f64 {
    1.0 / (1.0 + (1.0 / share - 1.0) * libm::exp(-by))
}

/// Draws from a Poisson distribution with a small mean.
pub(crate) fn count(random: &mut Rng, mean: f64) -> u32 {
    let floor = libm::exp(-mean);
    let mut product = random.f64();
    let mut count = 0;
    while product > floor && count < 1_000 {
        product *= random.f64();
        count += 1;
    }
    count
}
