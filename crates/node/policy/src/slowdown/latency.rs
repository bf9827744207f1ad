//! The latency of the slow node that the budget is derived from, where it is measured.
//!
//! # Which error is safe
//! The budget is `x / t_s`. A latency below the true one permits more accesses than the tolerated slowdown pays for: the job is slowed
//! down. One above it costs savings only. So
//! - a measured latency never counts below the known one, of the operator or of firmware: it is that of an idle node, and a loaded one is
//!   not faster. A measurement that is wrong because the processor is emulated, or because the line was in a cache after all, changes
//!   nothing;
//! - without a known latency nothing is placed, as before: there would be no lower bound;
//! - a rise takes effect faster than a fall. What counts for a job is the mean over time, as its lost time is the sum over its accesses.
//!   With gains of 1/2 up and 1/8 down, a node that is loaded in every other period has `x = l + 7/8 ((x + h) / 2 - l)` after each idle one:
//!   `(2 l + 7 h) / 9`, and `(l + 8 h) / 9` after each loaded one. It counts as loaded for five sixths of the time.
//!
//! # Outliers
//! A single measurement may meet a moment of the machine that is not its state. Each is the median of the last three, which drops one
//! alone, in either direction.

/// The highest latency that counts: the largest that an operator can set. A clock that was stopped shows any value.
pub const MAX_NS: u64 = 1_000_000;

/// Parts of the difference by which a rise and a fall take effect in each period.
const RISE_PARTS: u64 = 2;
const FALL_PARTS: u64 = 8;

/// Measurements of one node, smoothed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// The last three, the oldest first.
    last: [u64; 3],
    taken: u8,
    smooth_ns: Option<u64>,
}

impl Measured {
    /// Takes a measurement, in nanoseconds.
    pub fn take(&mut self, ns: u64) {
        let [_, second, third] = self.last;
        self.last = [second, third, ns.min(MAX_NS)];
        self.taken = self.taken.saturating_add(1).min(3);
        let mut sorted = self.last;
        sorted.sort_unstable();
        // Of fewer than three, the places that are not filled are zeros, which sort first: the higher one of two counts.
        let median = if self.taken < 3 { sorted[2] } else { sorted[1] };
        self.smooth_ns = Some(match self.smooth_ns {
            None => median,
            Some(smooth) if median > smooth => smooth + (median - smooth).div_ceil(RISE_PARTS),
            Some(smooth) => smooth - (smooth - median) / FALL_PARTS,
        });
    }

    /// The smoothed latency in nanoseconds; `None` before the first measurement.
    #[must_use]
    pub fn ns(&self) -> Option<u64> {
        self.smooth_ns
    }
}

/// Returns the latency from which the budget is derived: `known_ns`, or the measured one if that is higher. The latter is `true` in the
/// second case. An unknown latency, zero, stays unknown.
#[must_use]
pub fn in_effect(known_ns: u64, measured: &Measured) -> (u64, bool) {
    match measured.ns() {
        Some(ns) if known_ns > 0 && ns > known_ns => (ns, true),
        _ => (known_ns, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(measurements: &[u64]) -> Measured {
        let mut measured = Measured::default();
        for &ns in measurements {
            measured.take(ns);
        }
        measured
    }

    #[test]
    fn a_measured_latency_never_counts_below_the_known_one() {
        for (known, measurements, expected) in [
            (400, &[][..], (400, false)),
            (400, &[90, 90, 90], (400, false)),
            (400, &[400, 400, 400], (400, false)),
            (400, &[700, 700, 700], (700, true)),
            (400, &[0, 0, 0], (400, false)),
            (0, &[700, 700, 700], (0, false)),
            (400, &[u64::MAX, u64::MAX, u64::MAX], (MAX_NS, true)),
        ] {
            assert_eq!(in_effect(known, &after(measurements)), expected, "{known} {measurements:?}");
        }
    }

    #[test]
    fn one_outlier_changes_nothing() {
        for outlier in [0, 50, 5_000, u64::MAX] {
            let mut measured = after(&[300; 5]);
            for ns in [outlier, 300, 300, 300] {
                measured.take(ns);
                assert_eq!(measured.ns(), Some(300), "{outlier}");
            }
        }
    }

    #[test]
    fn a_rise_takes_effect_faster_than_a_fall() {
        let mut measured = after(&[300; 3]);
        let mut periods = |to: u64, near: std::ops::RangeInclusive<u64>| {
            (1..100)
                .find(|_| {
                    measured.take(to);
                    near.contains(&measured.ns().unwrap())
                })
                .unwrap()
        };
        let up = periods(900, 840..=900);
        let down = periods(300, 300..=360);
        assert!(up <= 5 && down > 3 * up && down < 25, "{up} up, {down} down");
    }

    #[test]
    fn a_node_that_is_loaded_half_of_the_time_counts_as_loaded_for_most_of_it() {
        // Two periods each, as the median of three drops single ones.
        let mut measured = Measured::default();
        let mut sum = 0;
        for period in 0..400u64 {
            measured.take(if period / 2 % 2 == 0 { 300 } else { 900 });
            sum += if period < 200 { 0 } else { measured.ns().unwrap() };
        }
        assert!((700..=900).contains(&(sum / 200)), "{}", sum / 200);
    }

    #[test]
    fn it_stays_between_what_was_measured() {
        let mut measured = Measured::default();
        let mut seed = 1u64;
        for _ in 0..1_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            measured.take(200 + (seed >> 33) % 800);
            assert!((200..1_000).contains(&measured.ns().unwrap()));
        }
    }
}
