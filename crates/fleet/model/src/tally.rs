//! Sums the outcomes of a grid of parameters.
//!
//! All values are integers and the only operation is addition, so totals do not depend on how jobs were distributed
//! over threads, processes or machines. A value for a range of percentiles is added at the start of the range and
//! subtracted at its end; a value for all warm-ups that have passed is added to the last of them. Both are accumulated
//! once, at the end, which makes a grid cost little more than a single pair.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use units::{Millis, RatioPpm, UnixMillis};

use crate::grid::Grid;
use crate::rates::{self, Scale};
use crate::sampling::Sampled;
use crate::series::{Compressibility, Row, WINDOW_MS_MAX};

/// Sums that do not depend on the parameters of the grid. Page-milliseconds are pages times the duration for which they
/// existed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Number of jobs.
    pub jobs: u64,
    /// Number of jobs whose compressibility was assumed.
    pub jobs_assumed: u64,
    /// Number of entries.
    pub entries: u64,
    /// All pages.
    pub used_page_ms: u128,
    /// Pages at or above the first threshold of the traces: the upper bound of far memory.
    pub cold_page_ms: u128,
    /// Accesses to such pages.
    pub cold_accesses: u128,
    /// Start of the first entry; [`UnixMillis::EPOCH`] without entries.
    pub start_unix_ms: UnixMillis,
    /// End of the last entry.
    pub end_unix_ms: UnixMillis,
    /// Entries whose histograms are estimated from a sample.
    pub sampled: Sampled,
}

impl Base {
    pub(crate) fn merge(&mut self, other: &Self) {
        if other.entries == 0 {
            return;
        }
        self.start_unix_ms = if self.entries == 0 { other.start_unix_ms } else { self.start_unix_ms.min(other.start_unix_ms) };
        self.end_unix_ms = self.end_unix_ms.max(other.end_unix_ms);
        self.jobs += other.jobs;
        self.jobs_assumed += other.jobs_assumed;
        self.entries += other.entries;
        self.used_page_ms += other.used_page_ms;
        self.cold_page_ms += other.cold_page_ms;
        self.cold_accesses += other.cold_accesses;
        self.sampled.merge(&other.sampled);
    }

    /// Returns the time from the start of the first entry to the end of the last one.
    #[must_use]
    pub fn span(&self) -> Millis {
        self.end_unix_ms.since(self.start_unix_ms)
    }
}

/// Sums of one pair of percentile and warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Pages in far memory.
    pub stored_page_ms: u128,
    /// Pages of DRAM that the pool takes for them.
    pub pool_page_ms: u128,
    /// Pages promoted.
    pub promotions: u128,
    /// Entries with far memory on whose tracker did not distinguish the threshold in effect.
    pub unresolved: u128,
}

impl Sums {
    /// Adds modulo 2^128: until the totals are computed, sums are differences, which may be negative.
    fn add(&mut self, other: &Self) {
        self.stored_page_ms = self.stored_page_ms.wrapping_add(other.stored_page_ms);
        self.pool_page_ms = self.pool_page_ms.wrapping_add(other.pool_page_ms);
        self.promotions = self.promotions.wrapping_add(other.promotions);
        self.unresolved = self.unresolved.wrapping_add(other.unresolved);
    }
}

/// The sums of a group of jobs, for every pair of a grid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "packed::PackedTally", into = "packed::PackedTally")]
pub struct Tally {
    /// Sums that do not depend on the pair.
    pub base: Base,
    warmups: usize,
    /// By percentile, then by the last warm-up that has passed.
    sums: Vec<Sums>,
    /// Counts of entries by promotion rate, in the same order.
    counts: Counts,
}

impl Tally {
    /// Creates empty sums for the pairs of `grid`.
    #[must_use]
    pub fn new(grid: &Grid) -> Self {
        let pairs = grid.pairs();
        Self { base: Base::default(), warmups: grid.warmups().len(), sums: vec![Sums::default(); pairs], counts: Counts::new(pairs) }
    }

    /// Sets the ranges of percentiles in effect from the next entry on, with the index of their threshold, for the first `warm`
    /// warm-ups, at least one.
    ///
    /// The ranges descend from the highest percentiles, and each ends where the one before it began: the end of one and
    /// the start of the next are one change.
    pub(crate) fn open(&mut self, running: &mut Running, ranges: impl Iterator<Item = (Range<usize>, usize)>, warm: usize) {
        if running.warm != warm {
            self.settle(running);
            running.warm = warm;
        }
        running.close();
        let pair = |percentile: usize| percentile * self.warmups + warm - 1;
        running.open.extend(ranges.map(|(percentiles, threshold)| Open {
            threshold,
            // The difference above the highest percentile is not needed.
            end: Some(pair(percentiles.end)).filter(|&pair| pair < self.sums.len()),
            begin: pair(percentiles.start),
            percentiles,
            sums: [0; 4],
        }));
    }

    /// Adds an entry with this working set, for the ranges in effect.
    #[inline]
    pub(crate) fn add(&mut self, running: &mut Running, row: &Row<'_>, compressibility: &Compressibility, working_set: u32) {
        let window = row.window_ms.0;
        if running.window_ms + window > u64::from(WINDOW_MS_MAX) {
            self.settle(running);
        }
        running.window_ms += window;
        let Compressibility { compressible, compressed } = *compressibility;
        let (compressible, compressed) = (compressible.min(RatioPpm::ONE), compressed.min(RatioPpm::ONE));
        let scale = Scale::new(working_set, u32::try_from(window).unwrap_or(WINDOW_MS_MAX));
        // Bin of the range before, and where the lowest range begins.
        let (mut above, mut begin) = (None, 0);
        for open in &mut running.open {
            let (Some(&cold), Some(&promotions)) = (row.cold.get(open.threshold + 1), row.promotions.get(open.threshold + 1)) else {
                break;
            };
            let stored = share(compressible, cold.into());
            let pool = share(compressed, stored);
            // Whether the tracker did not distinguish the threshold's age: the outcome was not measured.
            let unresolved = !row.origin.resolves(open.threshold);
            let more = [stored * window, pool * window, promotions.into(), unresolved.into()];
            open.sums.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
            let bin = scale.bin(promotions);
            if let Some(end) = open.end.filter(|_| above != Some(bin)) {
                if let Some(before) = above {
                    self.counts.add(end, before, 1);
                }
                self.counts.add(end, bin, u64::MAX);
            }
            (above, begin) = (Some(bin), open.begin);
        }
        if let Some(bin) = above {
            self.counts.add(begin, bin, 1);
        }
    }

    /// Adds the sums of a job so far, and resets them. The ranges in effect remain.
    pub(crate) fn settle(&mut self, running: &mut Running) {
        running.window_ms = 0;
        running.add_open();
        if running.warm == 0 {
            return;
        }
        let warm = running.warm;
        running.take(|percentile, sums| {
            let [stored_page_ms, pool_page_ms, promotions, unresolved] =
                sums.map(|change| i128::from(change.cast_signed()).cast_unsigned());
            // The difference above the highest percentile is not needed.
            if let Some(slot) = self.sums.get_mut(percentile * self.warmups + warm - 1) {
                slot.add(&Sums { stored_page_ms, pool_page_ms, promotions, unresolved });
            }
        });
    }

    /// Adds the sums of another part of the same work.
    pub fn merge(&mut self, other: &Self) {
        self.base.merge(&other.base);
        for (mine, theirs) in self.sums.iter_mut().zip(&other.sums) {
            mine.add(theirs);
        }
        self.counts.merge(&other.counts);
    }

    /// Returns the totals of every pair: by percentile, then by warm-up, both ascending. Rates are those at `percentile` of the
    /// entries, and at [`TAIL`].
    #[must_use]
    pub fn finish(mut self, grid: &Grid, percentile: RatioPpm) -> Vec<Total> {
        self.accumulate();
        let pairs = grid.percentiles().iter().flat_map(|&percentile| grid.warmups().iter().map(move |&warmup| (percentile, warmup)));
        let total = |((k, warmup), &sums)| Total { percentile: k, warmup, base: self.base, sums, entries_on: 0, rates: Rates::default() };
        let mut totals: Vec<Total> = pairs.zip(&self.sums).map(total).collect();
        self.counts.each(self.warmups, |pair, counts| {
            if let Some(total) = totals.get_mut(pair) {
                total.entries_on = counts.total();
                total.rates = Rates::new(counts, percentile, self.base.entries.saturating_sub(total.entries_on));
            }
            true
        });
        totals
    }

    /// Turns the sums from differences into those of each pair.
    fn accumulate(&mut self) {
        let row = self.warmups;
        // Over percentiles: each differs from the one before it by the ranges that start and end there.
        for index in row..self.sums.len() {
            let before = self.sums[index - row];
            self.sums[index].add(&before);
        }
        // Over warm-ups: entries after a longer warm-up also count for the shorter ones.
        for index in (0..self.sums.len()).rev().filter(|index| (index + 1) % row != 0) {
            let longer = self.sums[index + 1];
            self.sums[index].add(&longer);
        }
    }
}

/// The share of the entries whose highest rate is the tail of a fleet: bursts that the objective's percentile does not show.
pub const TAIL: RatioPpm = RatioPpm(995_000);

/// Promotion rates of a pair: promotions per minute as a share of the working set, each the upper edge of its bin, at or below
/// which a share of the entries lies. `None` if there are no such entries.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// The share, as it was given.
    pub percentile: RatioPpm,
    /// At this share of the entries with far memory on.
    pub on: Option<f64>,
    /// At the share [`TAIL`] of them.
    pub tail: Option<f64>,
    /// At this share of all entries, those without far memory counting as a rate of zero. A long warm-up dilutes this value;
    /// compare `on` with an objective.
    pub all: Option<f64>,
}

impl Rates {
    fn new(counts: &PairCounts, percentile: RatioPpm, entries_off: u64) -> Self {
        let rate = |share, more| counts.percentile(share, more).map(rates::upper_edge);
        Self { percentile, on: rate(percentile, 0), tail: rate(TAIL, 0), all: rate(percentile, entries_off) }
    }
}

/// The outcome of a pair of percentile and warm-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Total {
    /// K.
    pub percentile: RatioPpm,
    /// S.
    pub warmup: Millis,
    /// Sums that do not depend on K and S.
    pub base: Base,
    /// Sums that depend on K and S.
    pub sums: Sums,
    /// Entries during which far memory was on.
    pub entries_on: u64,
    /// Promotion rates of the entries.
    pub rates: Rates,
}

impl Total {
    /// Returns the coverage (SDFM section 6.1): far memory as a share of the memory that was cold at the first
    /// threshold.
    #[must_use]
    pub fn coverage(&self) -> f64 {
        ratio(self.sums.stored_page_ms, self.base.cold_page_ms)
    }

    /// Returns the interval of the coverage that the sampling error leaves at 95 % confidence; `None` if all pages were
    /// counted.
    #[must_use]
    pub fn coverage_interval(&self) -> Option<[f64; 2]> {
        self.base.sampled.coverage_interval(self.base.used_page_ms, self.base.cold_page_ms, self.sums.stored_page_ms)
    }

    /// Returns the interval of the promoted pages, as [`Total::coverage_interval`] does.
    #[must_use]
    pub fn promotions_interval(&self) -> Option<[f64; 2]> {
        self.base.sampled.promotions_interval(self.base.used_page_ms, self.sums.stored_page_ms, self.sums.promotions)
    }

    /// Returns the share of the entries with far memory on whose tracker did not distinguish the threshold in effect.
    #[must_use]
    pub fn unresolved(&self) -> f64 {
        ratio(self.sums.unresolved, u128::from(self.entries_on))
    }

    /// Returns whether some entry measured the outcome, or there is none to measure.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.entries_on == 0 || self.sums.unresolved < u128::from(self.entries_on)
    }

    /// Returns the DRAM saved, as a share of the memory used.
    #[must_use]
    pub fn saved_ratio(&self) -> f64 {
        ratio(self.sums.stored_page_ms - self.sums.pool_page_ms, self.base.used_page_ms)
    }

    /// Returns the mean number of pages over the span of the traces.
    #[must_use]
    pub fn mean_pages(&self, page_ms: u128) -> f64 {
        ratio(page_ms, u128::from(self.base.span().0))
    }
}

/// Returns a share of pages, rounded down. 32 bits can count the pages, and the share is at most one.
#[inline]
fn share(of: RatioPpm, pages: u64) -> u64 {
    pages * u64::from(of.0) / 1_000_000
}

/// Returns `part / whole`; 0 if `whole` is 0.
#[expect(clippy::cast_precision_loss, reason = "shown and compared; no decision depends on its last digits")]
#[must_use]
pub fn ratio(part: u128, whole: u128) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

mod counts;
mod packed;
mod running;

use counts::{Counts, PairCounts};
use running::Open;

pub(crate) use packed::{COUNT_MAX, PAGE_MS_MAX};
pub(crate) use running::Running;
