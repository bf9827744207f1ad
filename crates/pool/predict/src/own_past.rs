//! The rule for a VM that has a past week of its own: it will leave untouched at least 0.9 times the least of that week.
//!
//! On real VMs (Bitbrains) this rule overpredicted fewer of them than the model where both promised as much memory
//! (`docs/reproduction/pond-predictions.md`), so that it takes the model's place. It knows nothing of a VM that is new.

/// The share of the least untouched memory that is promised.
pub const SHARE: f64 = 0.9;
/// Days that a past week has at least: with fewer the least of them says little. That of a customer's history in training.
pub const DAYS_MIN: usize = 3;
/// Days of a past week.
pub const DAYS_MAX: usize = 7;

/// Returns the share of its memory that a VM will not touch, by the untouched shares of its past days, the latest last. `None` if
/// there are too few, or one is not a share.
#[must_use]
pub fn predict(days: &[f32]) -> Option<f64> {
    let week = &days[days.len().saturating_sub(DAYS_MAX)..];
    if week.len() < DAYS_MIN || !week.iter().all(|share| (0.0..=1.0).contains(share)) {
        return None;
    }
    week.iter().copied().reduce(f32::min).map(|least| SHARE * f64::from(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_the_past_week_counts() {
        let check = |days: &[f32], expected: Option<f64>| assert_eq!(predict(days), expected, "{days:?}");
        check(&[], None);
        check(&[0.5, 0.5], None);
        check(&[0.5, 0.25, 0.75], Some(0.225));
        check(&[0.0, 0.5, 0.5], Some(0.0));
        // Older days are not of the week.
        check(&[0.0, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0], Some(0.45));
        for wrong in [f32::NAN, -0.1, 1.5, f32::INFINITY] {
            check(&[0.5, 0.5, wrong], None);
        }
    }
}
