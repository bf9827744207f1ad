//! What the same far memory would save in other tiers: DRAM per millisecond that jobs lose.
//!
//! A replay decides which pages are far, and how often they return. Both are properties of the jobs; the tier decides what a page
//! that is far still costs, and what each return costs. This is a pure function of a replay's totals: no trace is read again.
//!
//! # The margin
//! Each pair of K and S is a point: DRAM saved, against time lost. Those on the upper concave hull save most for their time, and
//! the slope of the hull is the DRAM that a further millisecond saves. It falls along the hull: what is coldest goes out first.
//!
//! # Limitations
//! Pages that do not compress are not far in the replay, though a disk would take them: of tiers without compression the
//! saving is a lower bound. The threshold in effect is that of the objective, which other tiers may set differently. Latency does
//! not grow with load, and what waits for the same device waits no longer.

use units::Bytes;

use crate::tally::{Total, ratio};

/// A tier of far memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// What one returning page costs its job.
    pub latency_ns: u64,
    /// Price of a byte of the tier, as a share of a byte of DRAM.
    pub price_ratio: f64,
    /// Whether pages are compressed in DRAM, of which they still take a part.
    pub compressed: bool,
}

/// A pair of K and S in a tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step<'a> {
    /// The pair.
    pub total: &'a Total,
    /// DRAM that the far pages no longer take. A mean.
    pub saved_bytes: f64,
    /// The same, less DRAM of the price of what the tier takes.
    pub net_bytes: f64,
    /// Milliseconds that all jobs together lose in a second.
    pub lost_ms_per_second: f64,
    /// DRAM saved for each of the last of these milliseconds per second; `None` if no time is lost for it.
    pub marginal_bytes: Option<f64>,
}

impl Tier {
    fn step<'a>(&self, total: &'a Total, page: Bytes) -> Step<'a> {
        let bytes = |page_ms: u128| total.mean_pages(page_ms.saturating_mul(u128::from(page.0)));
        let (stored, pool) = (bytes(total.sums.stored_page_ms), bytes(total.sums.pool_page_ms));
        let saved_bytes = if self.compressed { stored - pool } else { stored };
        let taken = if self.compressed { 0.0 } else { stored };
        let lost_ns = total.sums.promotions.saturating_mul(u128::from(self.latency_ns));
        // Nanoseconds per millisecond of the span are microseconds per second.
        let lost_ms_per_second = ratio(lost_ns, u128::from(total.base.span().0)) / 1e3;
        Step { total, saved_bytes, net_bytes: saved_bytes - taken * self.price_ratio, lost_ms_per_second, marginal_bytes: None }
    }

    /// Returns the pairs on the upper concave hull of DRAM saved against time lost, by time. The hull begins without far memory.
    #[must_use]
    pub fn hull<'a>(&self, totals: &'a [Total], page: Bytes) -> Vec<Step<'a>> {
        let mut steps: Vec<Step<'a>> = totals.iter().map(|total| self.step(total, page)).filter(|step| step.saved_bytes > 0.0).collect();
        steps.sort_by(|a, b| a.lost_ms_per_second.total_cmp(&b.lost_ms_per_second).then(b.saved_bytes.total_cmp(&a.saved_bytes)));
        let mut hull: Vec<Step<'a>> = Vec::new();
        for step in steps {
            // More time must save more.
            if hull.last().is_some_and(|last| step.saved_bytes <= last.saved_bytes) {
                continue;
            }
            while let Some(last) = hull.last() {
                let before = hull.len().checked_sub(2).and_then(|at| hull.get(at));
                if slope(before, last) > slope(Some(last), &step) {
                    break;
                }
                hull.pop();
            }
            hull.push(step);
        }
        for at in 0..hull.len() {
            let before = at.checked_sub(1).map(|before| hull[before]);
            hull[at].marginal_bytes = Some(slope(before.as_ref(), &hull[at])).filter(|slope| slope.is_finite());
        }
        hull
    }

    /// Returns a pair with the slope of the hull at its time.
    #[must_use]
    pub fn at<'a>(&self, total: &'a Total, hull: &[Step<'_>], page: Bytes) -> Step<'a> {
        let step = self.step(total, page);
        let segment = hull.iter().find(|of_hull| of_hull.lost_ms_per_second >= step.lost_ms_per_second);
        Step { marginal_bytes: segment.and_then(|segment| segment.marginal_bytes), ..step }
    }
}

/// Returns DRAM by time between two steps; without the first, from no far memory.
fn slope(before: Option<&Step<'_>>, step: &Step<'_>) -> f64 {
    let (saved, lost) = before.map_or((0.0, 0.0), |before| (before.saved_bytes, before.lost_ms_per_second));
    let more = step.lost_ms_per_second - lost;
    if more > 0.0 { (step.saved_bytes - saved) / more } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::{Base, Rates, Sums};
    use units::{Millis, RatioPpm, UnixMillis};

    /// A pair that stores pages, of which a third remain in the pool, over a second.
    fn total(stored_pages: u128, promotions: u128) -> Total {
        let base = Base { entries: 1, start_unix_ms: UnixMillis(0), end_unix_ms: UnixMillis(1_000), ..Base::default() };
        let sums = Sums { stored_page_ms: stored_pages * 1_000, pool_page_ms: stored_pages * 1_000 / 3, promotions, ..Sums::default() };
        Total { percentile: RatioPpm(980_000), warmup: Millis(0), base, sums, entries_on: 1, rates: Rates::default() }
    }

    fn tier(compressed: bool) -> Tier {
        Tier { name: "tier".to_owned(), latency_ns: 2_000_000, price_ratio: 0.25, compressed }
    }

    #[test]
    fn a_page_costs_what_its_tier_takes_and_each_return_its_latency() {
        let total = total(300, 5);
        let check = |compressed: bool, saved: f64, net: f64| {
            let step = tier(compressed).step(&total, Bytes(10));
            assert_eq!((step.saved_bytes, step.net_bytes, step.lost_ms_per_second), (saved, net, 10.0));
        };
        check(true, 2_000.0, 2_000.0);
        check(false, 3_000.0, 2_250.0);
    }

    #[test]
    fn the_hull_has_what_saves_most_for_its_time() {
        // By promotions: 1 saves 100, 2 saves 150 (below the line from 1 to 3), 3 saves 220, 4 saves less, 6 saves 250.
        let totals = [total(150, 2), total(220, 3), total(100, 1), total(200, 4), total(250, 6), total(0, 9)];
        let tier = tier(false);
        let hull = tier.hull(&totals, Bytes(1));
        let found: Vec<_> = hull.iter().map(|step| (step.saved_bytes, step.lost_ms_per_second, step.marginal_bytes.unwrap())).collect();
        assert_eq!(found, [(100.0, 2.0, 50.0), (220.0, 6.0, 30.0), (250.0, 12.0, 5.0)]);
        // The slope falls, so that the last millisecond saves least.
        assert!(found.windows(2).all(|pair| pair[1].2 < pair[0].2));
        let at = |index: usize| tier.at(&totals[index], &hull, Bytes(1)).marginal_bytes;
        assert_eq!([at(2), at(0), at(1), at(3), at(5)], [Some(50.0), Some(30.0), Some(30.0), Some(5.0), None]);
    }

    #[test]
    fn what_costs_no_time_has_no_slope() {
        let totals = [total(60, 0), total(72, 0), total(90, 4)];
        let tier = tier(true);
        let hull = tier.hull(&totals, Bytes(3));
        let found: Vec<_> = hull.iter().map(|step| (step.total.sums.promotions, step.marginal_bytes)).collect();
        assert_eq!(found, [(0, None), (4, Some(4.5))]);
        assert_eq!(tier.hull(&[], Bytes(3)), []);
    }
}
