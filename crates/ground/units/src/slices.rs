//! Slices of a memory pool.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// A number of slices of a memory pool, all of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slices(pub u32);

impl Slices {
    /// No slice.
    pub const ZERO: Self = Self(0);

    /// The number of elements of a collection, saturating.
    #[must_use]
    pub fn count(elements: usize) -> Self {
        Self(u32::try_from(elements).unwrap_or(u32::MAX))
    }

    /// Memory of this many slices of `size`, saturating.
    #[must_use]
    pub const fn bytes(self, size: Bytes) -> Bytes {
        size.saturating_mul(self.0 as u64)
    }

    /// The difference, or zero if it would be negative.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Slices {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sum for Slices {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_saturate() {
        assert_eq!(Slices(2).bytes(Bytes::gib(1)), Bytes::gib(2));
        assert_eq!(Slices(2).bytes(Bytes(u64::MAX)), Bytes(u64::MAX));
        assert_eq!(Slices(1).saturating_sub(Slices(2)), Slices::ZERO);
        assert_eq!([Slices(u32::MAX), Slices(1)].into_iter().sum::<Slices>(), Slices(u32::MAX));
        assert_eq!(Slices::count(usize::MAX), Slices(u32::MAX));
    }
}
