//! Seeded random numbers for tests.

/// Draws from the standard normal distribution (Box-Muller).
pub(crate) fn normal(random: &mut fastrand::Rng) -> f64 {
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
}
