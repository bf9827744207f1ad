//! Seeded random draws that are the same on every machine.

use fastrand::Rng;

/// Returns a generator for item `index` of the stream `seed`, independent of the generators of other items.
pub(super) fn stream(seed: u64, index: u64) -> Rng {
    // The finalizer of SplitMix64 decorrelates consecutive numbers.
    let mut mixed = seed.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    Rng::with_seed(mixed ^ (mixed >> 31))
}

/// Draws from the standard normal distribution (Box-Muller transform).
pub(super) fn normal(random: &mut Rng) -> f64 {
    let radius = libm::sqrt(-2.0 * libm::log(1.0 - random.f64()));
    radius * libm::cos(std::f64::consts::TAU * random.f64())
}

/// Draws from a log-normal distribution with a median and a standard deviation of the logarithm.
pub(super) fn log_normal(random: &mut Rng, (median, deviation): (f64, f64)) -> f64 {
    median * libm::exp(deviation * normal(random))
}

/// Returns the share with these log odds.
pub(super) fn share(logit: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-logit))
}

/// Returns the index that a uniform draw selects among weights.
pub(super) fn pick(weights: impl Iterator<Item = f64> + Clone, uniform: f64) -> usize {
    let mut remaining = uniform * weights.clone().sum::<f64>();
    let mut last = 0;
    for (index, weight) in weights.enumerate() {
        last = index;
        if remaining < weight {
            break;
        }
        remaining -= weight;
    }
    last
}

/// A value that drifts around zero (Ornstein-Uhlenbeck process), with a standard deviation and a correlation time in days.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drift {
    pub(super) value: f64,
    deviation: f64,
    days: f64,
}

impl Drift {
    pub(super) fn new(deviation: f64, days: f64, random: &mut Rng) -> Self {
        Self { value: deviation * normal(random), deviation, days }
    }

    pub(super) fn advance(&mut self, days: f64, random: &mut Rng) {
        let kept = libm::exp(-days / self.days);
        self.value = kept * self.value + self.deviation * libm::sqrt(1.0 - kept * kept) * normal(random);
    }
}
