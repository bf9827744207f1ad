//! Seeded draws that are the same on every machine.

use fastrand::Rng;

/// A generator for item `index` of the stream `seed`, unrelated to those of its neighbours.
pub(super) fn stream(seed: u64, index: u64) -> Rng {
    // The finaliser of splitmix64: neighbouring numbers come out without anything in common.
    let mut mixed = seed.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    Rng::with_seed(mixed ^ (mixed >> 31))
}

/// A standard normal draw (Box and Muller).
pub(super) fn normal(random: &mut Rng) -> f64 {
    let radius = libm::sqrt(-2.0 * libm::log(1.0 - random.f64()));
    radius * libm::cos(std::f64::consts::TAU * random.f64())
}

/// A draw whose logarithm is normal, by its median and the standard deviation of the logarithm.
pub(super) fn log_normal(random: &mut Rng, (median, deviation): (f64, f64)) -> f64 {
    median * libm::exp(deviation * normal(random))
}

/// The share whose logarithm of odds this is.
pub(super) fn share(logit: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-logit))
}

/// The place that a uniform draw falls on, among weights.
pub(super) fn pick(weights: impl Iterator<Item = f64> + Clone, uniform: f64) -> usize {
    let mut left = uniform * weights.clone().sum::<f64>();
    let mut last = 0;
    for (index, weight) in weights.enumerate() {
        last = index;
        if left < weight {
            break;
        }
        left -= weight;
    }
    last
}

/// A value that wanders around zero (Ornstein and Uhlenbeck), by its standard deviation and the days after which it has forgotten
/// most of where it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wander {
    pub(super) value: f64,
    deviation: f64,
    days: f64,
}

impl Wander {
    pub(super) fn new(deviation: f64, days: f64, random: &mut Rng) -> Self {
        Self { value: deviation * normal(random), deviation, days }
    }

    pub(super) fn pass(&mut self, days: f64, random: &mut Rng) {
        let kept = libm::exp(-days / self.days);
        self.value = kept * self.value + self.deviation * libm::sqrt(1.0 - kept * kept) * normal(random);
    }
}
