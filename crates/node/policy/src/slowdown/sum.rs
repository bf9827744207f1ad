//! The upper bound of the accesses to several blocks together.
//!
//! # Formula
//! With the mean `m_i` and the upper bound `u_i` of each block, the bound of the sum is
//!
//! `sum(m_i) + sqrt(sum((u_i - m_i)^2))`
//!
//! (MOVER: Zou and Donner 2008). The errors of blocks are independent, and cancel out: what is added grows with the root of their
//! number. The sum of the bounds grows with their number, and is many times the true rate where there are many blocks.
//!
//! For one block it is that block's bound. For blocks without an access it is above the exact bound, that of one block observed for
//! as long as all of them together.
//!
//! # What it does not cover
//! - Errors that all blocks have in common, such as a job that rests while it is sampled.
//! - Selection. Of blocks that are chosen because few accesses were seen, more are to be expected. What is chosen is placed, and
//!   is sampled again in the next period, whose bound has nothing of the choice in it.

use units::AccessRate;

use super::rate::Estimate;

/// A sum over blocks. Sums that exceed 128 bits saturate, which is above any budget.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    means: u128,
    /// The sum of the squares of `upper - mean`.
    squares: u128,
    /// Blocks whose rate cannot be determined.
    unbounded: u64,
}

impl Sum {
    /// The sum with so many more blocks of this rate.
    pub(super) fn with(self, rate: Estimate, blocks: u32) -> Self {
        let (each, blocks) = (u128::from(rate.mean.0), u128::from(blocks));
        let half_width = rate.upper.map_or(0, |upper| u128::from((upper - rate.mean).0));
        Self {
            means: self.means.saturating_add(each.saturating_mul(blocks)),
            squares: self.squares.saturating_add((half_width * half_width).saturating_mul(blocks)),
            unbounded: if rate.upper.is_some() {
                self.unbounded
            } else {
                self.unbounded.saturating_add(u64::try_from(blocks).unwrap_or(u64::MAX))
            },
        }
    }

    /// The sum of these blocks and others.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            means: self.means.saturating_add(other.means),
            squares: self.squares.saturating_add(other.squares),
            unbounded: self.unbounded.saturating_add(other.unbounded),
        }
    }

    /// The upper bound; the largest number if the rate of a block cannot be determined.
    pub(super) fn upper(self) -> AccessRate {
        if self.unbounded > 0 {
            return AccessRate(u64::MAX);
        }
        let root = self.squares.isqrt();
        let half_width = root + u128::from(root * root < self.squares);
        AccessRate(u64::try_from(self.means.saturating_add(half_width)).unwrap_or(u64::MAX))
    }

    /// Returns how many of so many blocks of this rate fit in addition: as many as keep the bound within `limit`.
    ///
    /// The bound only grows with a further block, so that the number is found by bisection.
    pub(super) fn fitting(self, rate: Estimate, blocks: u32, limit: AccessRate) -> u32 {
        let fits = |blocks: u32| self.with(rate, blocks).upper() <= limit;
        if fits(blocks) {
            return blocks;
        }
        let (mut fit, mut over) = (0, blocks);
        while over - fit > 1 {
            let middle = fit.midpoint(over);
            if fits(middle) {
                fit = middle;
            } else {
                over = middle;
            }
        }
        fit
    }
}
