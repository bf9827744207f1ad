//! Conversion of real numbers to counts.

/// Returns the integral part of `value`; zero for negative numbers and NaN, `u64::MAX` above the range.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, as intended")]
pub(crate) fn floor(value: f64) -> u64 {
    value as u64
}
