//! Laws compared at equal time lost, as in the guest arena (`lab/arena/curves.py`).

use serde::Serialize;

/// What one intensity of a law did to one program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Time lost, as a share.
    pub lost_ratio: f64,
    /// Bytes saved.
    pub saved_bytes: f64,
}

/// What a law saves if it may lose `lost` of the time.
///
/// Between its points lies a line: it may run at one intensity for a part of the time and at the next for the rest. The line begins
/// at the origin, where it does not run. Beyond the last point it saves what it saved at best.
#[must_use]
pub fn saved_at(points: &[Point], lost: f64) -> f64 {
    let mut line = vec![Point { lost_ratio: 0.0, saved_bytes: 0.0 }];
    line.extend(points);
    line.sort_by(|one, other| one.lost_ratio.total_cmp(&other.lost_ratio).then(one.saved_bytes.total_cmp(&other.saved_bytes)));
    let mut best = line.iter().filter(|point| point.lost_ratio <= lost).map(|point| point.saved_bytes).fold(0.0, f64::max);
    for pair in line.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        if before.lost_ratio <= lost && lost < after.lost_ratio {
            let part = (lost - before.lost_ratio) / (after.lost_ratio - before.lost_ratio);
            best = best.max(before.saved_bytes + (after.saved_bytes - before.saved_bytes) * part);
        }
    }
    best
}

/// The geometric mean; 1 of nothing.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a few values")]
pub fn geomean(values: &[f64]) -> f64 {
    libm::exp(values.iter().map(|&value| libm::log(value)).sum::<f64>() / values.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases of `lab/tests` for the same function.
    #[test]
    fn between_points_lies_a_line_that_begins_at_the_origin() {
        let point = |lost_ratio, saved_bytes| Point { lost_ratio, saved_bytes };
        let points = [point(0.05, 300.0), point(0.01, 100.0)];
        for (lost, expected) in [(0.0, 0.0), (0.005, 50.0), (0.01, 100.0), (0.03, 200.0), (0.05, 300.0), (0.5, 300.0)] {
            assert!((saved_at(&points, lost) - expected).abs() < 1e-9, "{lost}");
        }
        assert!(saved_at(&[], 0.01).abs() < 1e-9);
        let worse = [point(0.01, 100.0), point(0.02, 50.0)];
        assert!((saved_at(&worse, 0.015) - 100.0).abs() < 1e-9, "more loss for less is not used");
        assert!((geomean(&[1.0, 4.0]) - 2.0).abs() < 1e-9);
    }
}
