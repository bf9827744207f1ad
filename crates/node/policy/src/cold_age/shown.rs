//! What the pages that are far have shown: how many of them returned.
//!
//! # Problem
//! Promotions of a job whose pages are counted by sample have an error, which is large while the job is young: nothing accessed of
//! 500 sampled pages may mean three, each of which stands for many. So a job would keep most of its cold pages for its first
//! dozens of scans, although none of those that went out came back.
//!
//! # Rule
//! The pages that are far are no sample: the kernel counts each that returns. If c of them returned in E page-periods, a page
//! returns in a period with probability (c + 1.645 sqrt(c) + 3) / E at most, the upper 95 % bound of a Poisson count
//! ([`super::pooled`]). That many pages may be far whose returns the objective permits by this bound, and twice as many as are far
//! now: what goes out next is younger, and shows itself within a period.
//!
//! This replaces the error of the sample alone. Its mean still counts: what is far is the oldest, and says little about pages that
//! are in use.

use serde::{Deserialize, Serialize};
use units::Pages;

use super::Input;
use super::partial::far;
use super::pooled::above_count;

/// Parts of a page that the bound is computed in.
const PARTS: u128 = 1_000;

/// Sums over the last periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shown {
    /// Pages times the periods that they were far.
    page_periods: u64,
    /// Those that returned.
    returned: u64,
    /// Periods in these sums.
    periods: u16,
}

impl Shown {
    pub(super) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Adds a period. After twice `periods` of them the sums are halved, so that a job that changes is followed.
    pub(super) fn add(&mut self, input: &Input, periods: u16) {
        let Some(returned) = input.returned else { return };
        let returned = returned.below_first() + returned.at_or_above(0);
        // What returned was far as well.
        self.page_periods = self.page_periods.saturating_add((far(input) + returned).0);
        self.returned = self.returned.saturating_add(returned.0);
        self.periods = self.periods.saturating_add(1);
        if self.periods / 2 >= periods.max(1) {
            *self = Self { page_periods: self.page_periods / 2, returned: self.returned.div_ceil(2), periods: self.periods / 2 };
        }
    }

    /// Returns how many pages may be far if so many may return in a period on average; `None` if nothing was far.
    pub(super) fn far_max(&self, input: &Input, allowed: Pages) -> Option<Pages> {
        let count = u128::from(self.returned) * PARTS;
        let upper = count + above_count(count, PARTS);
        let pages = u128::from(allowed.0) * PARTS * u128::from(self.page_periods) / upper;
        let pages = Pages(u64::try_from(pages).unwrap_or(u64::MAX));
        let far = far(input);
        Some(pages.min(far + far)).filter(|most| *most > Pages::ZERO)
    }
}
