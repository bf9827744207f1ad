//! A trial's result as a limit of far memory, in what the application itself reports.
//!
//! # Problem
//! The agent estimates what promotions cost a job; a switchback trial measures it. Where both disagree, the trial is right.
//!
//! # Rule
//! A trial gives the job's slowdown with an interval, and the pages that returned per second meanwhile. If even the lower end of the
//! interval is above the slowdown that the job's class tolerates, a part of these promotions is permitted from then on: tolerated
//! slowdown by measured slowdown. To first order the slowdown is proportional to what returns, so the job then keeps its class's
//! slowdown in its own unit, whatever a promotion was assumed to cost. Otherwise the trial changes nothing: an interval that
//! contains the tolerated slowdown shows no harm.
//!
//! The limit is applied beside the objective, and the smaller of both counts. A trial made under the limit of an earlier one that is
//! within the tolerated slowdown confirms that limit ([`Kept::after`]); it does not lift it.
//!
//! # Properties
//! Each is a test of this name: a trial never permits more than returned during it; a slower job is never permitted more; a lower
//! tolerated slowdown never permits more; what is permitted keeps the tolerated slowdown, if slowdown is proportional to promotions;
//! a trial within the tolerated slowdown changes nothing.

use serde::{Deserialize, Serialize};
use units::{Millis, Pages, RatioPpm, UnixMillis};

/// A trial's result that an operator has the agent keep. Slowdowns are in millionths; negative ones are speedups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The estimate.
    pub slowdown_ppm: i32,
    /// The lower end of its interval.
    pub lower_ppm: i32,
    /// The upper end.
    pub upper_ppm: i32,
    /// Anonymous and shared pages that were promoted in 1,000 seconds with far memory on.
    pub promoted_per_1000_s: u64,
    /// Pages of page cache that were refaulted in that time.
    pub refaulted_per_1000_s: u64,
    /// When the agent took it.
    pub at_unix_ms: UnixMillis,
}

impl Kept {
    /// Whether the interval contains the estimate.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        self.lower_ppm <= self.slowdown_ppm && self.slowdown_ppm <= self.upper_ppm
    }

    /// Whether the job was slower than tolerated beyond doubt.
    #[must_use]
    pub fn exceeds(&self, tolerated: RatioPpm) -> bool {
        i64::from(self.lower_ppm) > i64::from(tolerated.0)
    }

    /// Whether it is older than `keep`. A clock that was set back expires nothing.
    #[must_use]
    pub fn is_expired(&self, now: UnixMillis, keep: Millis) -> bool {
        now.0.saturating_sub(self.at_unix_ms.0) >= keep.0
    }

    /// The result that applies after this one, if `earlier` applied during its trial.
    #[must_use]
    pub fn after(self, earlier: Option<Self>, tolerated: RatioPpm) -> Self {
        earlier.filter(|earlier| earlier.exceeds(tolerated) && !self.exceeds(tolerated)).unwrap_or(self)
    }

    /// Promotions that are permitted in `window`, where a refault of page cache counts as `refault_cost` of a promotion; `None` if the
    /// trial limits nothing.
    #[must_use]
    pub fn promotions_max(&self, tolerated: RatioPpm, window: Millis, refault_cost: RatioPpm) -> Option<Pages> {
        let measured = u128::from(self.slowdown_ppm.max(self.lower_ppm).unsigned_abs());
        if !self.exceeds(tolerated) {
            return None;
        }
        let refaulted = u128::from(self.refaulted_per_1000_s) * u128::from(refault_cost.0) / 1_000_000;
        let returned = u128::from(self.promoted_per_1000_s) + refaulted;
        // 65 bits by 64 bits fit; by 32 more, they saturate: as much never returns.
        let pages = returned.saturating_mul(u128::from(window.0)).saturating_mul(u128::from(tolerated.0)) / measured / 1_000_000;
        Some(Pages(u64::try_from(pages).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECONDS_1000: Millis = Millis(1_000_000);
    const FREE: RatioPpm = RatioPpm(0);

    fn kept(lower_ppm: i32, slowdown_ppm: i32, promoted: u64) -> Kept {
        Kept {
            slowdown_ppm,
            lower_ppm,
            upper_ppm: slowdown_ppm.saturating_mul(2),
            promoted_per_1000_s: promoted,
            refaulted_per_1000_s: 0,
            at_unix_ms: UnixMillis(1_000),
        }
    }

    #[test]
    fn a_trial_within_the_tolerated_slowdown_changes_nothing() {
        let check = |lower, slowdown, expected: Option<u64>| {
            let found = kept(lower, slowdown, 900).promotions_max(RatioPpm(30_000), SECONDS_1000, FREE);
            assert_eq!(found, expected.map(Pages), "{lower} {slowdown}");
        };
        check(-20_000, 10_000, None);
        check(10_000, 60_000, None);
        check(30_000, 60_000, None);
        check(30_001, 60_000, Some(450));
        check(40_000, 90_000, Some(300));
        check(-90_000, -40_000, None);
    }

    #[test]
    fn refaults_count_by_their_cost() {
        let trial = Kept { refaulted_per_1000_s: 1_000, ..kept(40_000, 60_000, 600) };
        let permitted = |cost| trial.promotions_max(RatioPpm(30_000), Millis(60_000), RatioPpm(cost)).unwrap();
        assert_eq!([0, 500_000, 1_000_000].map(permitted), [18, 33, 48].map(Pages));
    }

    #[test]
    fn a_trial_under_a_limit_does_not_lift_it() {
        let (slow, fast) = (kept(40_000, 60_000, 600), kept(-10_000, 5_000, 100));
        let worse = kept(50_000, 70_000, 90);
        let tolerated = RatioPpm(30_000);
        assert_eq!(fast.after(Some(slow), tolerated), slow);
        assert_eq!(worse.after(Some(slow), tolerated), worse);
        assert_eq!(fast.after(Some(fast), tolerated), fast);
        assert_eq!(fast.after(None, tolerated), fast);
        // The operator tolerates more by now.
        assert_eq!(fast.after(Some(slow), RatioPpm(40_000)), fast);
    }

    #[test]
    fn a_result_expires_by_its_age() {
        let keep = Millis(500);
        let check = |now, expired| assert_eq!(kept(0, 0, 0).is_expired(UnixMillis(now), keep), expired, "{now}");
        check(0, false);
        check(1_499, false);
        check(1_500, true);
        assert!(kept(0, 0, 0).is_expired(UnixMillis(1_000), Millis::ZERO), "none is kept");
    }

    proptest! {
        #[test]
        fn a_trial_never_permits_more_than_returned_during_it(
            (lower, more) in (any::<i32>(), 0i32..=1_000_000), tolerated: u32, promoted: u64, refaulted: u64, cost in 0u32..=1_000_000,
        ) {
            let trial = Kept { refaulted_per_1000_s: refaulted, ..kept(lower, lower.saturating_add(more), promoted) };
            if let Some(pages) = trial.promotions_max(RatioPpm(tolerated), SECONDS_1000, RatioPpm(cost)) {
                prop_assert!(trial.exceeds(RatioPpm(tolerated)) && pages.0 <= promoted.saturating_add(refaulted));
            }
        }

        #[test]
        fn a_slower_job_is_never_permitted_more(
            (lower, lower_more) in (0i32..500_000, 0i32..500_000), (above, above_more) in (0i32..500_000, 0i32..500_000),
            tolerated in 0u32..500_000, promoted in 0u64..1 << 40,
        ) {
            let permitted = |lower: i32, slowdown: i32| {
                let found = kept(lower, slowdown, promoted).promotions_max(RatioPpm(tolerated), SECONDS_1000, FREE);
                found.map_or(u64::MAX, |pages| pages.0)
            };
            let slow = permitted(lower, lower + above);
            prop_assert!(permitted(lower + lower_more, lower + lower_more + above + above_more) <= slow);
        }

        #[test]
        fn a_lower_tolerated_slowdown_never_permits_more(
            (lower, above) in (0i32..500_000, 0i32..500_000), tolerated: u32, less: u32, promoted: u64, window in 0u64..1 << 40,
        ) {
            let permitted = |tolerated: u32| {
                let found = kept(lower, lower + above, promoted).promotions_max(RatioPpm(tolerated), Millis(window), FREE);
                found.map_or(u64::MAX, |pages| pages.0)
            };
            prop_assert!(permitted(tolerated.saturating_sub(less)) <= permitted(tolerated));
        }

        #[test]
        fn what_is_permitted_keeps_the_tolerated_slowdown(
            ppm_per_page in 1u64..1_000, promoted in 1u64..1_000_000, tolerated in 0u32..500_000,
        ) {
            // A linear world: each page that returns in 1,000 s costs as much.
            let slowdown = i32::try_from(ppm_per_page * promoted).unwrap_or(i32::MAX);
            let trial = kept(slowdown, slowdown, promoted);
            let permitted = trial.promotions_max(RatioPpm(tolerated), SECONDS_1000, FREE).map_or(promoted, |pages| pages.0);
            if u64::from(slowdown.unsigned_abs()) == ppm_per_page * promoted {
                prop_assert!(permitted * ppm_per_page <= u64::from(tolerated), "{permitted}");
                // And not much less: a page less than a whole one.
                let all = slowdown.unsigned_abs() <= tolerated;
                prop_assert!(all || (permitted + 1) * ppm_per_page > u64::from(tolerated));
            }
        }
    }
}
