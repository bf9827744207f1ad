//! DAMON_RECLAIM (`Documentation/admin-guide/mm/damon/reclaim.rst`, `mm/damon/design.rst`): regions that no sample found accessed for
//! `min_age` are paged out, up to a quota.
//!
//! An interval of the trace is one aggregation interval of twenty samples. Each sample checks one random page of each region.
//! A page counts as accessed in a sample if it was accessed in the interval: DAMON itself would have to catch it within a twentieth.
//! After an aggregation, neighbours with similar counts are merged, and each region is split at a random place while there are
//! fewer than half of the permitted regions.

use units::Bytes;

use crate::kernel::Place;
use crate::law::{Law, Request};
use crate::view::View;

/// Samples of an aggregation: 100 ms by 5 ms, the defaults.
const SAMPLES: u32 = 20;

/// `min_nr_regions`.
const REGIONS_MIN: usize = 10;

/// `max_nr_regions`; all of them for the job, while on a machine all memory shares them.
const REGIONS_MAX: usize = 1_000;

/// `quota_sz` for each `quota_reset_interval_ms` of a second.
const QUOTA: Bytes = Bytes::mib(128);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    first: u32,
    end: u32,
    accesses: u32,
    before: u32,
    age: u32,
}

impl Region {
    fn size(&self) -> u32 {
        self.end - self.first
    }

    /// Joins the next region: counts and ages are means by size.
    fn join(&mut self, next: &Self) {
        let (one, other) = (u64::from(self.size()), u64::from(next.size()));
        let mean = |mine: u32, theirs: u32| {
            u32::try_from((u64::from(mine) * one + u64::from(theirs) * other) / (one + other).max(1)).unwrap_or(u32::MAX)
        };
        (self.accesses, self.age) = (mean(self.accesses, next.accesses), mean(self.age, next.age));
        (self.before, self.end) = (self.accesses, next.end);
    }
}

/// DAMON_RECLAIM.
#[derive(Clone, Debug)]
pub struct DamonReclaim {
    min_age_ms: u64,
    regions: Vec<Region>,
    random: fastrand::Rng,
}

impl DamonReclaim {
    /// `seed` chooses the pages that are sampled and where regions are split.
    #[must_use]
    pub fn new(min_age_ms: u64, seed: u64) -> Self {
        Self { min_age_ms, regions: Vec::new(), random: fastrand::Rng::with_seed(seed) }
    }

    fn start(&mut self, groups: u32) {
        let count = u32::try_from(REGIONS_MIN).unwrap_or(1).min(groups.max(1));
        let at = |index: u32| u32::try_from(u64::from(groups) * u64::from(index) / u64::from(count)).unwrap_or(groups);
        self.regions = (0..count).map(|index| Region { first: at(index), end: at(index + 1), accesses: 0, before: 0, age: 0 }).collect();
    }

    fn sample(&mut self, view: &View<'_>) {
        for region in &mut self.regions {
            region.before = region.accesses;
            region.accesses = 0;
            for _ in 0..SAMPLES {
                region.accesses += u32::from(view.is_accessed(self.random.u32(region.first..region.end)));
            }
        }
    }

    /// Ages regions and merges neighbours, whose counts differ by a tenth of the largest count at most.
    fn merge(&mut self, groups: u32) {
        let similar = (self.regions.iter().map(|region| region.accesses).max().unwrap_or(0) / 10).max(1);
        let size_max = groups / u32::try_from(REGIONS_MIN).unwrap_or(1);
        let mut merged: Vec<Region> = Vec::with_capacity(self.regions.len());
        for mut region in self.regions.drain(..) {
            region.age = if region.accesses.abs_diff(region.before) > similar { 0 } else { region.age + 1 };
            match merged.last_mut() {
                Some(last) if last.accesses.abs_diff(region.accesses) <= similar && last.size() + region.size() <= size_max => {
                    last.join(&region);
                }
                _ => merged.push(region),
            }
        }
        self.regions = merged;
    }

    /// Splits each region in two, at a tenth to nine tenths of it.
    fn split(&mut self) {
        if self.regions.len() > REGIONS_MAX / 2 {
            return;
        }
        let mut parts = Vec::with_capacity(2 * self.regions.len());
        for region in self.regions.drain(..) {
            let at = region.first + u32::try_from(u64::from(region.size()) * self.random.u64(1..10) / 10).unwrap_or(0);
            if at > region.first && at < region.end {
                parts.extend([Region { end: at, ..region }, Region { first: at, ..region }]);
            } else {
                parts.push(region);
            }
        }
        self.regions = parts;
    }

    /// Groups of regions without accesses that are old enough, oldest regions first, within the quota.
    fn old(&self, view: &View<'_>) -> Vec<u32> {
        let is_old = |region: &&Region| region.accesses == 0 && u64::from(region.age) * view.interval_ms() >= self.min_age_ms;
        let mut regions: Vec<&Region> = self.regions.iter().filter(is_old).collect();
        regions.sort_by_key(|region| (std::cmp::Reverse(region.age), region.first));
        let quota = QUOTA.0 * view.interval_ms().max(1_000) / 1_000 / view.group_bytes().0;
        let resident = |group: &u32| view.place(*group) == Place::Resident;
        let groups = regions.into_iter().flat_map(|region| region.first..region.end).filter(resident);
        groups.take(usize::try_from(quota).unwrap_or(usize::MAX)).collect()
    }
}

impl Law for DamonReclaim {
    fn step(&mut self, view: &View<'_>) -> Vec<Request> {
        if self.regions.is_empty() {
            self.start(view.groups());
        }
        self.sample(view);
        self.merge(view.groups());
        let old = self.old(view);
        self.split();
        vec![Request::PageOut(old)]
    }
}
