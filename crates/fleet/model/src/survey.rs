//! Describes a fleet before any memory is moved: how cold its memory is and how often it is accessed, under every
//! threshold (SDFM figure 1), by machine (SDFM figure 2) and by job (SDFM figure 3).

use std::collections::BTreeMap;

use policy::thresholds::{THRESHOLDS_MAX, Thresholds};
use serde::{Deserialize, Serialize};
use units::RatioPpm;

use crate::fleet::{Account, Label};
use crate::series::Series;
use crate::tally::{COUNT_MAX, PAGE_MS_MAX, ratio};

/// Resolution of the histograms of shares: thousandths.
const STEPS: usize = 1_000;

/// Cold memory, and accesses to it, under every threshold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curve {
    /// All pages, times milliseconds.
    pub used_page_ms: u128,
    /// Pages at or above each threshold, times milliseconds.
    #[serde(with = "array")]
    pub cold_page_ms: [u128; THRESHOLDS_MAX],
    /// Accesses to pages at or above each threshold.
    #[serde(with = "array")]
    pub accesses: [u128; THRESHOLDS_MAX],
}

/// Serializes arrays that are longer than serde supports.
mod array {
    use policy::thresholds::THRESHOLDS_MAX;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(values: &[u128; THRESHOLDS_MAX], serializer: S) -> Result<S::Ok, S::Error> {
        values.as_slice().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u128; THRESHOLDS_MAX], D::Error> {
        let values = Vec::deserialize(deserializer)?;
        values.try_into().map_err(|values: Vec<u128>| serde::de::Error::invalid_length(values.len(), &"one sum per threshold"))
    }
}

impl Default for Curve {
    fn default() -> Self {
        Self { used_page_ms: 0, cold_page_ms: [0; THRESHOLDS_MAX], accesses: [0; THRESHOLDS_MAX] }
    }
}

impl Curve {
    fn of(series: &Series) -> Self {
        let mut curve = Self::default();
        for row in series.rows() {
            let window = u128::from(row.window_ms.0);
            for (sum, &cold) in curve.cold_page_ms.iter_mut().zip(&row.cold[1..]) {
                *sum += u128::from(cold) * window;
            }
            for (sum, &accesses) in curve.accesses.iter_mut().zip(&row.promotions[1..]) {
                *sum += u128::from(accesses);
            }
            curve.used_page_ms += u128::from(row.cold[0]) * window;
        }
        curve
    }

    fn merge(&mut self, other: &Self) {
        self.used_page_ms += other.used_page_ms;
        for (mine, theirs) in self.cold_page_ms.iter_mut().zip(other.cold_page_ms) {
            *mine += theirs;
        }
        for (mine, theirs) in self.accesses.iter_mut().zip(other.accesses) {
            *mine += theirs;
        }
    }

    /// Returns the share of the memory at or above a threshold.
    #[must_use]
    pub fn cold_ratio(&self, threshold: usize) -> f64 {
        ratio(self.cold_page_ms[threshold], self.used_page_ms)
    }

    /// Returns the share of the memory at or above a threshold that is accessed each minute.
    #[must_use]
    pub fn accessed_per_minute(&self, threshold: usize) -> f64 {
        ratio(self.accesses[threshold] * 60_000, self.cold_page_ms[threshold])
    }
}

/// The survey of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// The whole fleet.
    pub fleet: Curve,
    /// By class.
    pub classes: BTreeMap<String, Curve>,
    /// All pages, and pages at or above the first threshold, times milliseconds, by cluster and machine.
    pub machines: BTreeMap<(String, String), (u128, u128)>,
    /// Number of jobs by cold share of their memory, in thousandths, on average over their lifetimes.
    pub jobs: Vec<u64>,
    /// Number of jobs by compression ratio, in hundredths, up to ten.
    pub compression: Vec<u64>,
    /// Compressible cold pages, times milliseconds.
    pub compressible_page_ms: u128,
}

impl Default for Survey {
    fn default() -> Self {
        Self {
            fleet: Curve::default(),
            classes: BTreeMap::new(),
            machines: BTreeMap::new(),
            jobs: vec![0; STEPS + 1],
            compression: vec![0; STEPS + 1],
            compressible_page_ms: 0,
        }
    }
}

impl Survey {
    /// Returns the share of cold memory at or below which this share of the jobs lies, to a thousandth.
    #[must_use]
    pub fn cold_ratio_of_jobs(&self, percentile: RatioPpm) -> Option<f64> {
        nth(&self.jobs, percentile).map(|step| step / 1_000.0)
    }

    /// Returns the compression ratio at or below which this share of the jobs lies, to a hundredth.
    #[must_use]
    pub fn compression_of_jobs(&self, percentile: RatioPpm) -> Option<f64> {
        nth(&self.compression, percentile).map(|step| step / 100.0)
    }

    /// Returns the shares of cold memory of the machines of a cluster, ascending.
    #[must_use]
    pub fn cold_ratio_of_machines(&self, cluster: &str) -> Vec<f64> {
        let of_cluster = self.machines.iter().filter(|((name, _), _)| name == cluster);
        let mut shares: Vec<f64> = of_cluster.map(|(_, &(used, cold))| ratio(cold, used)).collect();
        shares.sort_by(f64::total_cmp);
        shares
    }

    /// Returns the names of the clusters.
    #[must_use]
    pub fn clusters(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.machines.keys().map(|(cluster, _)| cluster.as_str()).collect();
        names.dedup();
        names
    }

    /// Returns whether these can be the counts of a fleet, so that derived values do not overflow.
    pub(crate) fn is_sound(&self) -> bool {
        let curve = |curve: &Curve| {
            let sums = [&curve.cold_page_ms, &curve.accesses].into_iter().flatten();
            sums.chain([&curve.used_page_ms]).all(|&sum| sum <= PAGE_MS_MAX)
        };
        let counts = [&self.jobs, &self.compression];
        let machines = self.machines.values().all(|&(used, cold)| used <= PAGE_MS_MAX && cold <= PAGE_MS_MAX);
        let counted = counts.iter().all(|list| list.len() == STEPS + 1) && counts.into_iter().flatten().all(|&n| n <= COUNT_MAX);
        let compressible = self.compressible_page_ms <= PAGE_MS_MAX;
        counted && machines && compressible && curve(&self.fleet) && self.classes.values().all(curve)
    }

    /// Returns the index of the first threshold of at least `scans` scans.
    #[must_use]
    pub fn threshold(thresholds: &Thresholds, scans: u8) -> Option<usize> {
        thresholds.as_slice().iter().position(|age| age.0 >= scans)
    }
}

/// Returns the step at which this share of all counts is reached.
fn nth(counts: &[u64], percentile: RatioPpm) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a thousand at most")]
    crate::rates::percentile(counts, percentile).map(|step| step as f64)
}

impl Account for Survey {
    fn job(&mut self, label: &Label, series: &Series) {
        let curve = Curve::of(series);
        let (used, cold) = (curve.used_page_ms, curve.cold_page_ms[0]);
        let machine = self.machines.entry((label.cluster.clone(), label.machine.clone())).or_default();
        machine.0 += used;
        machine.1 += cold;
        if let Some(step) = (cold * STEPS as u128).checked_div(used) {
            self.jobs[usize::try_from(step).map_or(STEPS, |step| step.min(STEPS))] += 1;
        }
        // A compressed size of 1/3 is a ratio of 3.
        let step = 100_000_000 / series.compressibility.compressed.0.max(1);
        self.compression[usize::try_from(step).map_or(STEPS, |step| step.min(STEPS))] += 1;
        self.compressible_page_ms += cold * u128::from(series.compressibility.compressible.0) / 1_000_000;
        self.fleet.merge(&curve);
        match self.classes.get_mut(&label.class) {
            Some(class) => class.merge(&curve),
            None => drop(self.classes.insert(label.class.clone(), curve)),
        }
    }

    fn merge(&mut self, other: Self) {
        self.fleet.merge(&other.fleet);
        self.compressible_page_ms += other.compressible_page_ms;
        for (class, curve) in other.classes {
            self.classes.entry(class).or_default().merge(&curve);
        }
        for (machine, (used, cold)) in other.machines {
            let mine = self.machines.entry(machine).or_default();
            mine.0 += used;
            mine.1 += cold;
        }
        for (mine, theirs) in [(&mut self.jobs, other.jobs), (&mut self.compression, other.compression)] {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        }
    }
}

#[cfg(test)]
mod tests {
    use units::Millis;

    use super::*;
    use crate::series::Compressibility;

    /// Returns a job with two entries over the thresholds 1 and 4, in pages.
    fn job(cold: [[u64; 3]; 2], compressibility: Compressibility) -> Series {
        let mut series = Series::new(&Thresholds::try_from(vec![1, 4]).unwrap());
        series.compressibility = compressibility;
        for (index, cold) in cold.iter().enumerate() {
            series.push(Millis(60_000 * (index as u64 + 1)), Millis(60_000), &[5, 30, 12], cold).unwrap();
        }
        series
    }

    #[test]
    fn shares_are_of_the_pages_and_the_jobs() {
        let label = |machine: &str| Label { cluster: "a".to_owned(), machine: machine.to_owned(), class: "standard".to_owned() };
        let compressibility =
            |compressible, compressed| Compressibility { compressible: RatioPpm(compressible), compressed: RatioPpm(compressed) };
        let mut survey = Survey::default();
        survey.job(&label("one"), &job([[700, 200, 100], [500, 400, 100]], compressibility(500_000, 500_000)));
        let mut other = Survey::default();
        other.job(&label("two"), &job([[1_000, 0, 0], [1_000, 0, 0]], compressibility(1_000_000, 250_000)));
        survey.merge(other);
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
        // 300 and 500 of 1,000 pages in the first job's two minutes, none in the other's.
        close(survey.fleet.cold_ratio(0), 800.0 / 4_000.0);
        close(survey.fleet.cold_ratio(1), 200.0 / 4_000.0);
        // 42 accesses in each of four minutes, divided by 800 page-minutes.
        close(survey.fleet.accessed_per_minute(0), 168.0 / 800.0);
        assert_eq!(survey.cold_ratio_of_machines("a").iter().map(|share| (share * 1e3).round()).collect::<Vec<_>>(), [0.0, 400.0]);
        assert_eq!(survey.cold_ratio_of_jobs(RatioPpm(500_000)), Some(0.0));
        assert_eq!(survey.cold_ratio_of_jobs(RatioPpm::ONE), Some(0.4));
        assert_eq!(survey.compression_of_jobs(RatioPpm(500_000)), Some(2.0));
        assert_eq!((survey.compressible_page_ms, survey.clusters()), (400 * 60_000, vec!["a"]));
        assert_eq!(survey.classes["standard"], survey.fleet);
    }
}
