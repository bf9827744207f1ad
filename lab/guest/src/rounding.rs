//! From real numbers to counts.

/// The whole part of `value`; zero below zero and for "not a number", `u64::MAX` above the range.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturating is what the cast does and what is wanted")]
pub(crate) fn floor(value: f64) -> u64 {
    value as u64
}
