//! What page cache may use of a job's stall target, which is a mean over time.

use serde::{Deserialize, Serialize};
use units::{Millis, Pages, RatioPpm};

use super::over_time::followed;

/// What is owed at most, and what unused periods permit later at most, in periods: a burst, as when a job reads all its files again, is
/// forgotten after them. For anonymous memory both are as much ([`crate::cold_age`]).
const PERIODS_MAX: u64 = 64;

/// What page cache leaves of a target to anonymous memory at least, and the reverse.
const HALF: u64 = 2;

/// A job's account. It is kept as the time in which the target permits as much, because the latency of a promotion may be found to be
/// another meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Budget {
    /// What returned beyond the target and the following periods have not made up for.
    pub(super) owed: Millis,
    /// What the last periods did not use.
    #[serde(default)]
    pub(super) unused: Millis,
    /// The part of the target that page cache took, in millionths: a mean.
    #[serde(default)]
    taken: u64,
}

/// What page cache cost in a period, in promotions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    pub(super) cost: Pages,
    pub(super) allowed: Pages,
    pub(super) elapsed: Millis,
}

impl Spent {
    /// The time in which the target permits so many promotions.
    fn permitted_in(&self, pages: Pages) -> Millis {
        let ms = u128::from(pages.0) * u128::from(self.elapsed.0) / u128::from(self.allowed.0.max(1));
        Millis(u64::try_from(ms).unwrap_or(u64::MAX))
    }

    fn periods_max(&self) -> Millis {
        Millis(self.elapsed.0.saturating_mul(PERIODS_MAX))
    }
}

impl Budget {
    pub(super) fn is_new(&self) -> bool {
        *self == Self::default()
    }

    /// The part of what a stall target permits that page cache may use in a period: what promotions leave, but half of it at least.
    /// [`Budget::taken`] keeps promotions within the rest.
    pub(super) fn part(allowance: Pages, promoted: Pages) -> Pages {
        Pages(allowance.0 / HALF).max(allowance - promoted)
    }

    /// Takes in what page cache cost, as a part of all that the target permits; the mean is over this time.
    pub(super) fn take(&mut self, cost: Pages, allowance: Pages, elapsed: Millis, life: Millis) {
        let taken = u128::from(cost.0) * 1_000_000 / u128::from(allowance.0.max(1));
        self.taken = followed(self.taken, u64::try_from(taken).unwrap_or(u64::MAX), elapsed, life);
    }

    /// The part of the target that page cache takes, half at most: what anonymous memory leaves to it.
    pub(super) fn taken(&self) -> RatioPpm {
        RatioPpm(u32::try_from(self.taken.min(1_000_000 / HALF)).unwrap_or(0))
    }

    /// Whether a period costs more than it and the unused ones before it permit.
    pub(super) fn is_exceeded(&self, spent: &Spent) -> bool {
        spent.permitted_in(spent.cost - spent.allowed) > self.unused
    }

    /// Settles a period, in which what exceeds the target is owed so many times.
    pub(super) fn settle(&mut self, spent: &Spent, times: u64) {
        let (beyond, within) = (spent.permitted_in(spent.cost - spent.allowed), spent.permitted_in(spent.allowed - spent.cost));
        let unpaid = beyond.saturating_sub(self.unused);
        let owed = self.owed + Millis(unpaid.0.saturating_mul(times));
        self.unused = (self.unused.saturating_sub(beyond) + within.saturating_sub(owed)).min(spent.periods_max());
        self.owed = owed.saturating_sub(within).min(spent.periods_max());
    }

    /// Whether more returned than the target permits, and quieter periods have not made up for it.
    pub(super) fn is_owed(&self) -> bool {
        self.owed > Millis::ZERO
    }
}

#[cfg(test)]
mod tests;
