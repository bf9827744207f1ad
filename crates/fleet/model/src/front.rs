//! Selects pairs of parameters from the totals of a grid.

use units::RatioPpm;

use crate::tally::Total;

/// The objective of a fleet: this share of the entries with far memory on stays at or below this rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objective {
    /// Share of the entries: 98 % in (SDFM section 5.3).
    pub percentile: RatioPpm,
    /// Promotions per minute as a share of the working set: 0.2 % in (SDFM section 4.2).
    pub rate_max: RatioPpm,
}

impl Objective {
    /// Returns the fleet's rate at the objective's percentile, for which `total` was made; 0 if far memory was never on.
    #[must_use]
    pub fn rate(&self, total: &Total) -> f64 {
        debug_assert_eq!(total.rates.percentile, self.percentile, "rates at another share of the entries");
        total.rates.on.unwrap_or(0.0)
    }

    /// Returns whether a pair meets the objective.
    #[must_use]
    pub fn holds(&self, total: &Total) -> bool {
        self.rate(total) <= self.rate_max.as_f64()
    }
}

/// Returns the pair that stores most among those that meet the objective; among equals, the one with the lower rate.
/// This is the exhaustive optimum of (SDFM section 5.3).
#[must_use]
pub fn best<'a>(totals: &'a [Total], objective: &Objective) -> Option<&'a Total> {
    let holding = totals.iter().filter(|total| objective.holds(total));
    holding.max_by(|a, b| {
        let stored = a.sums.stored_page_ms.cmp(&b.sums.stored_page_ms);
        stored.then_with(|| objective.rate(b).total_cmp(&objective.rate(a)))
    })
}

/// Returns the Pareto front: the pairs for which no other stores more at the same or a lower rate. Most stored first.
#[must_use]
pub fn front<'a>(totals: &'a [Total], objective: &Objective) -> Vec<&'a Total> {
    let mut sorted: Vec<_> = totals.iter().map(|total| (objective.rate(total), total)).collect();
    sorted.sort_by(|(rate_a, a), (rate_b, b)| rate_a.total_cmp(rate_b).then_with(|| b.sums.stored_page_ms.cmp(&a.sums.stored_page_ms)));
    let mut kept: Vec<&Total> = Vec::new();
    for (_, total) in sorted {
        if kept.last().is_none_or(|last| total.sums.stored_page_ms > last.sums.stored_page_ms) {
            kept.push(total);
        }
    }
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use policy::thresholds::Thresholds;
    use units::Millis;

    use super::*;
    use crate::grid::{Grid, Setup};
    use crate::replay::Replay;
    use crate::series::Series;
    use crate::tally::Tally;

    /// Returns the totals of a job whose accesses to pages of one scan vary by entry, with a working set of a million
    /// pages.
    fn tally(percentiles: &[u32], accesses: impl Iterator<Item = u64>) -> (Grid, Tally) {
        let thresholds = Thresholds::try_from(vec![1, 4]).unwrap();
        let mut series = Series::new(&thresholds);
        for (index, promoted) in accesses.enumerate() {
            series.push(Millis(60_000 * (index as u64 + 1)), Millis(60_000), &[0, promoted, 0], &[1_000_000, 900, 100]).unwrap();
        }
        let grid = Grid::new(percentiles.iter().map(|&k| RatioPpm(k)).collect(), vec![Millis::ZERO]).unwrap();
        let setup = Setup::new(RatioPpm(2_000));
        let mut tally = Tally::new(&grid);
        Replay::new(&grid, &setup, &thresholds).unwrap().job(&series, &mut tally);
        (grid, tally)
    }

    #[test]
    fn the_best_pair_stores_most_within_the_objective() {
        // One entry in ten has too many promotions: percentiles below 90 % ignore it, and an objective at 80 % permits
        // them.
        let (grid, tally) = tally(&[500_000, 850_000, 950_000], (0..400).map(|entry| if entry % 10 == 9 { 5_000 } else { 100 }));
        let check = |percentile, rate_max, expected: Option<u32>| {
            let objective = Objective { percentile: RatioPpm(percentile), rate_max: RatioPpm(rate_max) };
            let totals = tally.clone().finish(&grid, objective.percentile);
            assert_eq!(best(&totals, &objective).map(|total| total.percentile.0), expected);
        };
        check(800_000, 2_000, Some(850_000));
        check(980_000, 2_000, Some(950_000));
        check(1_000_000, 0, None);
        let objective = Objective { percentile: RatioPpm(980_000), rate_max: RatioPpm(2_000) };
        let totals = tally.finish(&grid, objective.percentile);
        let front: Vec<_> = front(&totals, &objective).iter().map(|total| total.percentile.0).collect();
        assert_eq!(front.last(), Some(&950_000));
        assert_eq!(front.len(), 2, "{front:?}: of two percentiles with the same outcome, the front has one");
    }
}
