//! The outcome of one pair of percentile and warm-up in detail: by hour (SDFM figure 5), machine (SDFM figure 6), job (SDFM
//! figure 7) and day.
//!
//! [`crate::tally`] has the sums of the whole fleet for every pair of a grid; the detail is affordable for a single
//! pair.

use std::collections::BTreeMap;

use policy::thresholds::Thresholds;
use units::{Millis, RatioPpm};

use crate::fleet::{Account, Label};
use crate::grid::{Grid, Setup};
use crate::rates::{self, BINS};
use crate::replay::Replay;
use crate::series::Series;
use crate::tally::{Tally, ratio};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;

/// Memory over time, in pages times milliseconds.
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

    /// Returns the stored share of the cold memory.
    #[must_use]
    pub fn coverage(&self) -> f64 {
        ratio(self.stored_page_ms, self.cold_page_ms)
    }
}

/// The account of one pair.
#[derive(Clone, Debug)]
pub struct Detail {
    replay: Replay,
    /// Required by [`Replay`]; not used here.
    tally: Tally,
    /// By cluster, then by hour since the Unix epoch.
    pub hours: BTreeMap<String, BTreeMap<u64, Share>>,
    /// By cluster and machine.
    pub machines: BTreeMap<(String, String), Share>,
    /// By day since the Unix epoch: histogram of the entries by their promotion rate while far memory was on.
    pub days: BTreeMap<u64, Vec<u64>>,
    /// Histogram of jobs by their promotion rate while far memory was on; jobs for which it never was are left out.
    pub jobs: Vec<u64>,
}

impl Detail {
    /// Creates an empty account; `None` if no threshold is old enough for the setup.
    #[must_use]
    pub fn new(grid: &Grid, setup: &Setup, thresholds: &Thresholds) -> Option<Self> {
        Some(Self {
            replay: Replay::new(grid, setup, thresholds)?,
            tally: Tally::new(grid),
            hours: BTreeMap::new(),
            machines: BTreeMap::new(),
            days: BTreeMap::new(),
            jobs: vec![0; BINS],
        })
    }

    /// Returns the rates at or below which this share of each day's entries with far memory lies, by day since the Unix epoch.
    pub fn rates_of_days(&self, percentile: RatioPpm) -> impl Iterator<Item = (u64, Option<f64>)> {
        self.days.iter().map(move |(&day, counts)| (day, rates::percentile(counts, percentile).map(rates::upper_edge)))
    }

    /// Returns the rate at or below which this share of the jobs lies, per minute: the upper edge of its bin.
    #[must_use]
    pub fn rate_of_jobs(&self, percentile: RatioPpm) -> Option<f64> {
        rates::percentile(&self.jobs, percentile).map(rates::upper_edge)
    }
}

impl Account for Detail {
    fn job(&mut self, label: &Label, series: &Series) {
        let days = &mut self.days;
        let hours = self.hours.entry(label.cluster.clone()).or_default();
        let machine = self.machines.entry((label.cluster.clone(), label.machine.clone())).or_default();
        let (mut promotions, mut working_set_ms, mut on) = (0u64, 0u128, Millis::ZERO);
        // The threshold that the last entry decided; it is in effect during this entry.
        let mut threshold: Option<usize> = None;
        let mut start = None;
        self.replay.job_observed(series, &mut self.tally, &mut |row, spans, warm| {
            let at_or_above = |index: usize| u64::from(row.cold[index + 1]);
            let window = u128::from(row.window_ms.0);
            let end = row.age_ms.saturating_sub(*start.get_or_insert(row.age_ms.saturating_sub(row.window_ms)));
            // An entry belongs to the hour and the day of its middle.
            let middle = series.start_unix_ms + end - Millis(row.window_ms.0 / 2);
            let working_set = u64::from(row.cold[0] - row.cold[1]);
            let mut share = Share { stored_page_ms: 0, cold_page_ms: u128::from(at_or_above(0)) * window };
            if let Some(index) = threshold {
                share.stored_page_ms = u128::from(series.compressibility.compressible.share_of(at_or_above(index))) * window;
                let returned = u64::from(row.promotions[index + 1]);
                promotions += returned;
                working_set_ms += u128::from(working_set) * window;
                on += row.window_ms;
                let day = days.entry(middle.0 / DAY_MS).or_insert_with(|| vec![0; BINS]);
                day[rates::bin(returned, working_set, row.window_ms)] += 1;
            }
            hours.entry(middle.0 / HOUR_MS).or_default().add(share);
            machine.add(share);
            threshold = spans.first().filter(|_| warm > 0).map(|span| span.threshold);
        });
        if on > Millis::ZERO {
            let working_set = u64::try_from(working_set_ms / u128::from(on.0)).unwrap_or(u64::MAX);
            self.jobs[rates::bin(promotions, working_set, on)] += 1;
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
        for (day, counts) in other.days {
            let mine = self.days.entry(day).or_insert_with(|| vec![0; BINS]);
            mine.iter_mut().zip(counts).for_each(|(mine, theirs)| *mine += theirs);
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

    /// The details of the same jobs add up to their sum.
    #[test]
    fn the_parts_add_up_to_the_whole() {
        let thresholds = Thresholds::log_spaced(32).unwrap();
        let source = Fleet::new(3, 60, 2, thresholds);
        let grid = Grid::new(vec![RatioPpm(980_000)], vec![Millis(600_000)]).unwrap();
        let setup = Setup::new(RatioPpm(2_000));
        let open = || {
            let model = fleet::Model::new(&grid, &[setup], &thresholds, fleet::By::Fleet).unwrap();
            (Detail::new(&grid, &setup, &thresholds).unwrap(), model)
        };
        let (detail, model) = fleet::run(&source, &fleet::all(&source), NonZero::new(2).unwrap(), open, |_| {}).unwrap();
        let total = &model.whole()[0].clone().finish(&grid, RatioPpm(980_000))[0];
        let sum = |shares: &mut dyn Iterator<Item = &Share>| {
            let mut whole = Share::default();
            shares.for_each(|share| whole.add(*share));
            (whole.stored_page_ms, whole.cold_page_ms)
        };
        let expected = (total.sums.stored_page_ms, total.base.cold_page_ms);
        assert!(expected.0 > 0 && expected.0 < expected.1);
        assert_eq!(sum(&mut detail.machines.values()), expected);
        assert_eq!(sum(&mut detail.hours.values().flat_map(BTreeMap::values)), expected);
        assert!(detail.hours.values().all(|hours| hours.len() <= 49), "a day has 24 hours");
        // The entries of all days are those of the whole, and so are their rates.
        let mut entries = vec![0; BINS];
        detail.days.values().for_each(|day| entries.iter_mut().zip(day).for_each(|(whole, more)| *whole += more));
        assert_eq!((entries.iter().sum::<u64>(), detail.days.len() >= 2), (total.entries_on, true));
        assert_eq!(rates::percentile(&entries, RatioPpm(980_000)).map(rates::upper_edge), total.rates.on);
        let of_days: Vec<_> = detail.rates_of_days(RatioPpm(980_000)).map(|(_, rate)| rate.unwrap()).collect();
        let (least, most) = (of_days.iter().copied().reduce(f64::min), of_days.iter().copied().reduce(f64::max));
        assert!(least <= total.rates.on && total.rates.on <= most, "{of_days:?}");
        assert!((1..=total.base.jobs).contains(&detail.jobs.iter().sum()));
        assert!(detail.rate_of_jobs(RatioPpm(100_000)) <= detail.rate_of_jobs(RatioPpm(980_000)));
    }

    #[test]
    fn the_rate_of_a_job_counts_promotions_above_its_threshold() {
        let thresholds = Thresholds::try_from(vec![1, 4]).unwrap();
        let grid = Grid::new(vec![RatioPpm::ONE], vec![Millis::ZERO]).unwrap();
        let setup = Setup::new(RatioPpm(2_000));
        let mut series = Series::new(&thresholds);
        // 500 accesses to pages of one to three scans, one to older pages; a working set of 100,000 pages: T is 4
        // scans.
        for entry in 1..=3 {
            series.push(Millis(60_000 * entry), Millis(60_000), &[0u64, 500, 1], &[100_000, 900, 100]).unwrap();
        }
        let mut detail = Detail::new(&grid, &setup, &thresholds).unwrap();
        let label = Label { cluster: "a".to_owned(), machine: "m".to_owned(), class: String::new() };
        detail.job(&label, &series);
        let machine = detail.machines[&("a".to_owned(), "m".to_owned())];
        // No threshold is in effect during the first entry.
        assert_eq!(machine, Share { stored_page_ms: 2 * 100 * 60_000, cold_page_ms: 3 * 1_000 * 60_000 });
        assert!((machine.coverage() - 200.0 / 3_000.0).abs() < 1e-12);
        assert_eq!(detail.hours["a"].keys().copied().collect::<Vec<_>>(), [0]);
        let rate = detail.rate_of_jobs(RatioPpm::ONE).unwrap();
        assert!((1e-5..=1.01e-5).contains(&rate), "{rate}");
    }
}
