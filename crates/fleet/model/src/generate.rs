//! A synthetic fleet: jobs whose page ages, in the aggregate, resemble what has been published of fleets.
//!
//! # Purpose
//! Page ages of the jobs of a real fleet have never been published; the model and the tuner need input for development
//! and tests. [`fit`] compares the generated fleet with every published figure that applies, row by row.
//!
//! # Structure
//! A fleet consists of slots; in each slot one job follows another (churn). A job has a kind ([`kinds`]), a size, a
//! mixture of reuse distances, a daily cycle, noise, phases, and sweeps that touch part of all memory; its cluster and
//! machine shift it to colder or warmer together with its neighbours. The histograms of a job follow in closed form
//! ([`life`]).
//!
//! # Properties
//! The same seed gives the same fleet, on every machine and for any number of threads. Slots are independent of each
//! other, so a larger fleet of the same seed begins with different machines but has the same statistics.

mod character;
mod kinds;
mod life;

pub mod fit;
pub mod record;
pub mod resample;

use std::convert::Infallible;
use std::ops::Range;

use fastrand::Rng;
use policy::thresholds::{THRESHOLDS_MAX, Thresholds};
use units::{Millis, RatioPpm, UnixMillis};

pub use self::character::Character;
pub use self::kinds::{KINDS, Kind};
use self::life::{ENTRY_MINUTES, Life, Suffixes, Traits};
use crate::coverage::{Part, fingerprint};
use crate::fleet::{Label, Named, Source};
use crate::random::{log_normal, normal, shifted, stream};
use crate::series::{Compressibility, Series};

/// Entries per day.
pub const ENTRIES_PER_DAY: u32 = 288;
/// Duration of an entry.
pub const ENTRY: Millis = Millis::seconds(300);
/// Start of a generated trace: midnight of Monday, 1 January 2024, UTC.
pub const START: UnixMillis = UnixMillis(1_704_067_200_000);
/// Slots per machine, which are read together.
pub const SLOTS_PER_MACHINE: u64 = 12;
/// Clusters; (SDFM figure 2) shows ten. Cluster i has 1/i of the size of the first.
const CLUSTERS: usize = 10;
/// Standard deviations of the shifts of clusters, and of machines within a cluster ([`shifted`]).
const SHIFTS: (f64, f64) = (0.35, 0.60);

/// A generated fleet.
#[derive(Clone, Debug)]
pub struct Fleet {
    seed: u64,
    jobs: u64,
    entries: u32,
    thresholds: Thresholds,
    kinds: Vec<Kind>,
    clusters: Vec<Cluster>,
    /// Cumulative shares of the machines by cluster.
    clusters_up_to: Vec<f64>,
}

#[derive(Clone, Debug)]
struct Cluster {
    name: String,
    shift: f64,
    /// Cumulative shares of the kinds.
    kinds_up_to: Vec<f64>,
}

impl Fleet {
    /// Creates a fleet in which `jobs` jobs run at any time, over `days` days, with histograms over `thresholds` of 120
    /// s scans.
    #[must_use]
    pub fn new(seed: u64, jobs: u64, days: u32, thresholds: Thresholds) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "ten clusters")]
        let sizes: Vec<f64> = (1..=CLUSTERS).map(|rank| 1.0 / rank as f64).collect();
        let whole: f64 = sizes.iter().sum();
        let mut up_to = 0.0;
        let clusters_up_to = sizes.iter().map(|size| {
            up_to += size / whole;
            up_to
        });
        let clusters_up_to = clusters_up_to.collect();
        let clusters = (0..CLUSTERS).map(|index| {
            let random = &mut stream(seed, u64::MAX - index as u64);
            let weights: Vec<f64> = KINDS.iter().map(|kind| kind.share * libm::exp(0.5 * normal(random))).collect();
            let sum: f64 = weights.iter().sum();
            let mut kinds_up_to = 0.0;
            Cluster {
                name: format!("cluster-{index}"),
                shift: SHIFTS.0 * normal(random),
                kinds_up_to: weights
                    .iter()
                    .map(|weight| {
                        kinds_up_to += weight / sum;
                        kinds_up_to
                    })
                    .collect(),
            }
        });
        let clusters = clusters.collect();
        let entries = days.saturating_mul(ENTRIES_PER_DAY);
        Self { seed, jobs, entries, thresholds, kinds: Character::Mixed.kinds(1.0), clusters, clusters_up_to }
    }

    /// Returns the same fleet with another character, and `bursts` times as many sweeps and phases.
    #[must_use]
    pub fn of_character(self, character: Character, bursts: f64) -> Self {
        Self { kinds: character.kinds(bursts), ..self }
    }

    /// Returns the thresholds of the histograms.
    #[must_use]
    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// Returns the number of machines.
    #[must_use]
    pub fn machines(&self) -> u64 {
        self.jobs.div_ceil(SLOTS_PER_MACHINE)
    }

    /// Returns the slots of a machine.
    fn slots(&self, machine: u64) -> Range<u64> {
        let first = machine.saturating_mul(SLOTS_PER_MACHINE).min(self.jobs);
        first..first.saturating_add(SLOTS_PER_MACHINE).min(self.jobs)
    }

    /// Generates the jobs of one slot, one after the other; `series` is reused for each.
    pub fn slot(&self, slot: u64, series: &mut Series, each: &mut dyn FnMut(&Label, &Series)) {
        let random = &mut stream(self.seed, slot);
        let machine = slot / SLOTS_PER_MACHINE;
        // Values shared by all slots of a machine come from a stream of the machine.
        let of_machine = &mut stream(self.seed ^ 0x6d61_6368_696e_6573, machine);
        let cluster = &self.clusters[pick(&self.clusters_up_to, of_machine.f64())];
        let shift = cluster.shift + SHIFTS.1 * normal(of_machine);
        let kind = &self.kinds[pick(&cluster.kinds_up_to, random.f64())];
        let label = Label { cluster: cluster.name.clone(), machine: format!("machine-{machine:07}"), class: kind.name.to_owned() };
        let mut begin = 0;
        while begin < self.entries {
            let lifetime = whole(log_normal(random, kind.life_hours) * 60.0 / ENTRY_MINUTES).clamp(2, 10_000_000);
            // The first job of a slot has been running before the trace begins.
            let before = if begin == 0 { random.u64(0..lifetime) } else { 0 };
            let ends = u64::from(begin).saturating_add(lifetime - before).min(u64::from(self.entries));
            let end = u32::try_from(ends).unwrap_or(self.entries);
            self.job(kind, shift, (begin, end), before, random, series);
            each(&label, series);
            // The next job starts within the hour.
            begin = end.saturating_add(random.u32(1..12));
        }
    }

    /// Generates one job into `series`.
    fn job(&self, kind: &Kind, shift: f64, (begin, end): (u32, u32), before: u64, random: &mut Rng, series: &mut Series) {
        series.clear();
        series.start_unix_ms = START + ENTRY.saturating_mul(u64::from(begin));
        let compressible = 1.0 - shifted(kind.incompressible, 0.6 * normal(random));
        let compression = log_normal(random, (kind.compression, 0.30)).clamp(1.2, 6.0);
        series.compressibility = Compressibility { compressible: ppm(compressible), compressed: ppm(1.0 / compression) };
        let traits = Traits::draw(*kind, shift, random);
        let minute = |entry: u32| f64::from(entry) * ENTRY_MINUTES;
        let entries_before = usize::try_from(before).unwrap_or(usize::MAX);
        let mut life = Life::new(traits, &self.thresholds, entries_before, minute(begin), random.fork());
        let (mut promotions, mut cold) = ([0; THRESHOLDS_MAX + 1], [0; THRESHOLDS_MAX + 1]);
        let buckets = self.thresholds.len() + 1;
        for entry in begin..end {
            let Suffixes { pages, cold: cold_suffix, promotions: promoted } = life.entry(minute(entry));
            fold(pages, &cold_suffix, &mut cold[..buckets]);
            // Pages that are touched all the time are found at every scan.
            fold(promoted[0] + (pages - cold_suffix[0]) * ENTRY_MINUTES / life::SCAN_MINUTES, &promoted, &mut promotions[..buckets]);
            let age_ms = ENTRY.saturating_mul(before + u64::from(entry - begin) + 1);
            let pushed = series.push(age_ms, ENTRY, &promotions[..buckets], &cold[..buckets]);
            debug_assert!(pushed.is_ok(), "sizes are below 2^30 pages, and time increases");
        }
    }
}

impl Source for Fleet {
    type Error = Infallible;

    fn pieces(&self) -> usize {
        usize::try_from(self.machines()).unwrap_or(usize::MAX)
    }

    fn read(&self, piece: usize, each: &mut dyn FnMut(&Label, &Series)) -> Result<(), Infallible> {
        let mut series = Series::new(&self.thresholds);
        for slot in self.slots(piece as u64) {
            self.slot(slot, &mut series, each);
        }
        Ok(())
    }
}

impl Named for Fleet {
    fn part(&self, piece: usize) -> Part {
        let word = |number: u64| number.to_le_bytes();
        let kinds = format!("{:?}", self.kinds);
        let owner = fingerprint([b"generated".as_slice(), &word(self.seed), &word(piece as u64), kinds.as_bytes()]);
        let ages: Vec<u8> = self.thresholds.as_slice().iter().map(|age| age.0).collect();
        let slots = self.slots(piece as u64).count() as u64;
        let listing = fingerprint([word(slots).as_slice(), &word(u64::from(self.entries)), &ages]);
        Part { owner, listing, groups: 0..1, of: 1 }
    }
}

/// Returns the index of the first cumulative share above `share`.
fn pick(up_to: &[f64], share: f64) -> usize {
    up_to.iter().position(|&reach| share < reach).unwrap_or(up_to.len() - 1)
}

/// Converts suffix sums to buckets. Sums are rounded, not buckets, so that the total is exact.
fn fold(all: f64, suffix: &[f64; THRESHOLDS_MAX], buckets: &mut [u64]) {
    let mut above = whole(all);
    let last = buckets.len() - 1;
    for (bucket, &sum) in buckets.iter_mut().zip(suffix).take(last) {
        let sum = whole(sum).min(above);
        *bucket = above - sum;
        above = sum;
    }
    buckets[last] = above;
}

/// Rounds a positive number down.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; negative numbers become zero")]
fn whole(value: f64) -> u64 {
    value as u64
}

/// Converts a share to millionths.
fn ppm(share: f64) -> RatioPpm {
    RatioPpm(u32::try_from(whole(share * 1e6)).unwrap_or(u32::MAX).min(1_000_000))
}

#[cfg(test)]
mod tests;
