//! Lists of numbers, one for each threshold, in their serialized form: without trailing zeros.

use crate::thresholds::THRESHOLDS_MAX;

/// A serialized state with more counters than a set has thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSizeError(usize);

impl std::fmt::Display for PoolSizeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a pool of {} counters; there may be {}", self.0, THRESHOLDS_MAX + 1)
    }
}

impl std::error::Error for PoolSizeError {}

pub(super) fn copy<T: Copy>(to: &mut [T], from: &[T]) -> Result<(), PoolSizeError> {
    to.get_mut(..from.len()).ok_or(PoolSizeError(from.len()))?.copy_from_slice(from);
    Ok(())
}

/// The numbers without trailing zeros.
pub(super) fn used<T: Copy + Default + PartialEq>(numbers: &[T]) -> Vec<T> {
    let used = numbers.iter().rposition(|&n| n != T::default()).map_or(0, |last| last + 1);
    numbers[..used].to_vec()
}
