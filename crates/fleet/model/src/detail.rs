//! What one pair of percentile and warm-up comes to, in detail: by hour (000 figure 5), by machine (figure 6) and by
//! job (figure 7).
//!
//! The sums of a grid ([`crate::tally`]) know the fleet as a whole; for a single pair there is room for more.

use std::collections::BTreeMap;

use policy::thresholds::Thresholds;
use units::RatioPpm;

use crate::fleet::{Account, Label};
use crate::grid::{Grid, Setup};
use crate::rates::{self, BINS};
use crate::replay::Replay;
use crate::series::Series;
use crate::tally::{Tally, ratio};

const HOUR_MS: u64 = 3_600_000;

/// Pages times milliseconds: how much was in far memory, and how much could have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// In far memory.
    pub stored_page_ms: u128,
    /// At or above the traces' first threshold.
    pub cold_page_ms: u128,
}

impl Share {
    fn add(&mut self, other: Self) {
        self.stored_page_ms += other.stored_page_ms;
        self.cold_page_ms += other.cold_page_ms;
    }

    /// Stored, as a share of what was cold.
    #[must_use]
    pub fn coverage(&self) -> f64 {
        ratio(self.stored_page_ms, self.cold_page_ms)
    }
}

/// The account of one pair.
#[derive(Clone, Debug)]
pub struct Detail {
    replay: Replay,
    /// What [`Replay`] fills beside; not looked at here.
    tally: Tally,
    /// By cluster, then by hour of Unix time.
    pub hours: BTreeMap<String, BTreeMap<u64, Share>>,
    /// By cluster and machine.
    pub machines: BTreeMap<(String, String), Share>,
    /// Jobs by their promotion rate while far memory was on; those for which it never was are left out.
    pub jobs: Vec<u64>,
}

impl Detail {
    /// An empty account; `None` where no threshold of the set is old enough for the setup.
    #[must_use]
    pub fn new(grid: &Grid, setup: &Setup, thresholds: &Thresholds) -> Option<Self> {
        Some(Self {
            replay: Replay::new(grid, setup, thresholds)?,
            tally: Tally::new(grid),
            hours: BTreeMap::new(),
            machines: BTreeMap::new(),
            jobs: vec![0; BINS],
        })
    }

    /// The rate at or below which this share of the jobs lies, per minute: the upper edge of its bin.
    #[must_use]
    pub fn rate_of_jobs(&self, percentile: RatioPpm) -> Option<f64> {
        rates::percentile(&self.jobs, percentile).map(rates::upper_edge)
    }
}

impl Account for Detail {
    fn job(&mut self, label: &Label, series: &Series) {
        let hours = self.hours.entry(label.cluster.clone()).or_default();
        let machine = self.machines.entry((label.cluster.clone(), label.machine.clone())).or_default();
        let (mut promotions, mut working_set_ms, mut on_ms) = (0u64, 0u128, 0u64);
        // The threshold that the last entry decided, and holds during this one.
        let mut threshold: Option<usize> = None;
        let mut began_ms = None;
        self.replay.watched(series, &mut self.tally, &mut |row, spans, warm| {
            let at_or_above = |index: usize| u64::from(row.cold[index + 1]);
            let window = u128::from(row.window_ms);
            let mut share = Share { stored_page_ms: 0, cold_page_ms: u128::from(at_or_above(0)) * window };
            if let Some(index) = threshold {
                share.stored_page_ms = u128::from(series.facts.compressible.share_of(at_or_above(index))) * window;
                promotions += u64::from(row.promotions[index + 1]);
                working_set_ms += u128::from(row.cold[0] - row.cold[1]) * window;
                on_ms += u64::from(row.window_ms);
            }
            let ended_ms = row.age_ms.saturating_sub(*began_ms.get_or_insert(row.age_ms.saturating_sub(u64::from(row.window_ms))));
            // An entry belongs to the hour in which its middle lies.
            let middle_ms = (series.start_unix_ms + ended_ms).saturating_sub(u64::from(row.window_ms) / 2);
            hours.entry(middle_ms / HOUR_MS).or_default().add(share);
            machine.add(share);
            threshold = spans.first().filter(|_| warm > 0).map(|span| span.threshold);
        });
        if on_ms > 0 {
            let working_set = u64::try_from(working_set_ms / u128::from(on_ms)).unwrap_or(u64::MAX);
            self.jobs[rates::bin(promotions, working_set, on_ms)] += 1;
        }
    }

    fn merge(&mut self, other: Self) {
        for (cluster, hours) in other.hours {
            let mine = self.hours.entry(cluster).or_default();
            for (hour, share) in hours {
                mine.entry(hour).or_default().add(share);
            }
        }
        for (machine, share) in other.machines {
            self.machines.entry(machine).or_default().add(share);
        }
        self.jobs.iter_mut().zip(other.jobs).for_each(|(mine, theirs)| *mine += theirs);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use super::*;
    use crate::fleet;
    use crate::generate::Fleet;

    /// In detail and in one sum, the same jobs come to the same.
    #[test]
    fn the_parts_add_up_to_the_whole() {
        let thresholds = Thresholds::log_spaced(32).unwrap();
        let source = Fleet::new(3, 60, 1, thresholds);
        let grid = Grid::new(vec![RatioPpm(980_000)], vec![600_000]).unwrap();
        let setup = Setup::new(RatioPpm(2_000));
        let open = || {
            let model = fleet::Model::new(&grid, &[setup], &thresholds, fleet::By::Fleet).unwrap();
            (Detail::new(&grid, &setup, &thresholds).unwrap(), model)
        };
        let (detail, model) = fleet::run(&source, &fleet::all(&source), NonZero::new(2).unwrap(), open, |_| {}).unwrap();
        let total = &model.whole()[0].clone().finish(&grid)[0];
        let sum = |shares: &mut dyn Iterator<Item = &Share>| {
            let mut whole = Share::default();
            shares.for_each(|share| whole.add(*share));
            (whole.stored_page_ms, whole.cold_page_ms)
        };
        let want = (total.sums.stored_page_ms, total.base.cold_page_ms);
        assert!(want.0 > 0 && want.0 < want.1);
        assert_eq!(sum(&mut detail.machines.values()), want);
        assert_eq!(sum(&mut detail.hours.values().flat_map(BTreeMap::values)), want);
        assert!(detail.hours.values().all(|hours| hours.len() <= 25), "a day has 24 hours");
        assert!((1..=total.base.jobs).contains(&detail.jobs.iter().sum()));
        assert!(detail.rate_of_jobs(RatioPpm(100_000)) <= detail.rate_of_jobs(RatioPpm(980_000)));
    }

    #[test]
    fn a_job_is_rated_by_what_its_threshold_let_out() {
        let thresholds = Thresholds::try_from(vec![1, 4]).unwrap();
        let grid = Grid::new(vec![RatioPpm::ONE], vec![0]).unwrap();
        let setup = Setup::new(RatioPpm(2_000));
        let mut series = Series::new(&thresholds);
        // 500 accesses to pages of one to three scans, one to older ones; a working set of 100,000: T is 4 scans.
        for entry in 1..=3 {
            series.push(60_000 * entry, 60_000, &[0u64, 500, 1], &[100_000, 900, 100]).unwrap();
        }
        let mut detail = Detail::new(&grid, &setup, &thresholds).unwrap();
        let label = Label { cluster: "a".to_owned(), machine: "m".to_owned(), class: String::new() };
        detail.job(&label, &series);
        let machine = detail.machines[&("a".to_owned(), "m".to_owned())];
        // During the first entry nothing is decided yet.
        assert_eq!(machine, Share { stored_page_ms: 2 * 100 * 60_000, cold_page_ms: 3 * 1_000 * 60_000 });
        assert!((machine.coverage() - 200.0 / 3_000.0).abs() < 1e-12);
        assert_eq!(detail.hours["a"].keys().copied().collect::<Vec<_>>(), [0]);
        let rate = detail.rate_of_jobs(RatioPpm::ONE).unwrap();
        assert!((1e-5..=1.01e-5).contains(&rate), "{rate}");
    }
}
