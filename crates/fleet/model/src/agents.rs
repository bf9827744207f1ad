//! Replays traces through the agents' own controller, under one setting, with all that it does.
//!
//! [`crate::replay`] computes the thresholds of a whole grid at once, and nothing else. Agents also offload a part of the cold pages
//! where no threshold qualifies, and pool the scans of a sample. Here each scan is a control period of [`policy::cold_age::step`]
//! itself, with what is far and what returned as part of its input.
//!
//! # Scans of an entry
//! An agent decides after each scan, and an entry has the accesses of several: it is divided into as many decisions (`scans`).
//!
//! # Far memory
//! What was decided after one scan is in effect during the next. Where a part of the pages is far, it stays far until it
//! returns, and grows older meanwhile (`far`).
//!
//! # Interval
//! The rate is promotions by working set, over all entries with far memory. Entries that follow each other are alike, so each job's
//! entries are divided into ten stretches, whose deviations from the common rate give its standard error (a ratio estimator over
//! clusters). The interval is where 95 % of further traces as long as this one lie: this trace and the further ones vary alike.

mod far;
mod scans;

use policy::cold_age::{self, Decision, Hold, Input, Params, Reason, Sample, State};
use policy::histogram::Histogram;
use policy::thresholds::Thresholds;
use units::{Age, Millis, Pages};

use self::far::Far;
use self::scans::Division;
use crate::fleet::{Account, Label};
use crate::series::{Row, Series, buckets};
use crate::tally::ratio;

/// Stretches of a job, whose rates are compared.
const STRETCHES: usize = 10;

/// What one period brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Whether far memory was on.
    pub on: bool,
    /// Pages that were far.
    pub far: Pages,
    /// Whether these were a part of the pages at a threshold.
    pub is_part: bool,
    /// Of these, promoted.
    pub promoted: Pages,
    /// Promotions that the objective permitted.
    pub allowed: Pages,
}

/// The controller of one job, with the far memory that its decisions lead to.
#[derive(Clone, Debug)]
pub struct Controller {
    params: Params,
    state: State,
    far: Far,
}

impl Controller {
    /// A controller before its first period.
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self { params, state: State::default(), far: Far::default() }
    }

    /// Starts over for another job.
    pub fn reset(&mut self) {
        self.state = State::default();
        self.far.reset();
    }

    /// The index of the threshold whose pages are all far after the last decision: the number of thresholds if no page is far, and
    /// `None` if a part is.
    #[must_use]
    pub fn whole(&self, thresholds: &Thresholds) -> Option<usize> {
        if self.far.is_on() { self.far.whole() } else { Some(thresholds.len()) }
    }

    /// One control period. `input` is of a job whose memory is all in DRAM.
    pub fn period(&mut self, thresholds: &Thresholds, input: &Input) -> Period {
        let (on, is_part) = (self.far.is_on(), self.far.whole().is_none());
        let returned = self.far.period(&input.cold, &input.promotions);
        let far = self.far.pages();
        let given = if self.params.partial {
            Input { resident: self.far.resident(&input.cold), returned: Some(returned), ..*input }
        } else {
            *input
        };
        let (state, step) = cold_age::step(&self.params, thresholds, &self.state, &given);
        self.state = state;
        let at = |age: Age| thresholds.as_slice().iter().position(|&other| other == age);
        match step.decision {
            Decision::Offload { threshold, pages, reason: Reason::Partial } => {
                if let Some(index) = at(threshold) {
                    self.far.add(index, pages, &input.cold);
                }
            }
            Decision::Offload { threshold, .. } => self.far.set_whole(at(threshold), &input.cold),
            // Only nothing to offload yet.
            Decision::Hold { reason: Hold::NothingCold } => self.far.set_whole(step.threshold.and_then(at), &input.cold),
            Decision::Hold { .. } if self.params.partial => self.far.keep(),
            Decision::Hold { .. } => self.far.set_whole(None, &input.cold),
        }
        Period { on, far, is_part: on && is_part, promoted: returned.below_first() + returned.at_or_above(0), allowed: step.promotions_max }
    }
}

/// The input of an entry of which only the first `reached` sums are known.
#[must_use]
pub fn input(row: &Row<'_>, job_age_ms: Millis, reached: usize) -> Option<Input> {
    let histogram = |sums: &[u32]| {
        let known: Vec<u32> = sums.iter().enumerate().map(|(at, &sum)| if at < reached { sum } else { 0 }).collect();
        Histogram::try_from(buckets(&known).map(u64::from).collect::<Vec<_>>()).ok()
    };
    let (cold, promotions) = (histogram(row.cold)?, histogram(row.promotions)?);
    let pages = Pages(u64::from(row.origin.sampled));
    let sample = (pages > Pages::ZERO).then(|| Sample { pages, of: cold.below_first() + cold.at_or_above(0) });
    Some(Input {
        job_age_ms,
        window_ms: row.window_ms,
        cold,
        resident: cold,
        promotions,
        allowance: None,
        trial_max: None,
        returned: None,
        sample,
        reach: None,
        veto: None,
    })
}

/// Sums over stretches of entries, from which the rate and its error follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stretches {
    count: u64,
    promoted: u128,
    /// Pages of the working set, times seconds.
    working_set: u128,
    promoted_squared: u128,
    working_set_squared: u128,
    product: u128,
}

impl Stretches {
    fn add(&mut self, promoted: u64, working_set_page_ms: u128) {
        let (promoted, working_set) = (u128::from(promoted), working_set_page_ms / 1_000);
        self.merge(&Self {
            count: 1,
            promoted,
            working_set,
            promoted_squared: promoted * promoted,
            working_set_squared: working_set.saturating_mul(working_set),
            product: promoted.saturating_mul(working_set),
        });
    }

    /// Adds a stretch in which far memory was on.
    fn add_some(&mut self, sums: Sums) {
        if sums.working_set_page_ms > 0 {
            self.add(sums.promoted, sums.working_set_page_ms);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.promoted += other.promoted;
        self.working_set += other.working_set;
        self.promoted_squared = self.promoted_squared.saturating_add(other.promoted_squared);
        self.working_set_squared = self.working_set_squared.saturating_add(other.working_set_squared);
        self.product = self.product.saturating_add(other.product);
    }

    /// Promotions per minute as a share of the working set; `None` without any.
    fn rate(&self) -> Option<f64> {
        (self.working_set > 0).then(|| 60.0 * ratio(self.promoted, self.working_set))
    }

    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn interval(&self) -> Option<[f64; 2]> {
        let (rate, freedom) = (self.rate()?, self.count.checked_sub(1).filter(|&freedom| freedom > 0)? as f64);
        let per_second = rate / 60.0;
        let squares = self.promoted_squared as f64 + per_second * per_second * self.working_set_squared as f64;
        let residual = (squares - 2.0 * per_second * self.product as f64).max(0.0);
        let error = 60.0 * (residual * self.count as f64 / freedom).sqrt() / self.working_set as f64;
        let half = student(freedom) * 2f64.sqrt() * error;
        Some([(rate - half).max(0.0), rate + half])
    }
}

/// The 97.5th percentile of Student's t, by the first terms of its expansion in the inverse degrees of freedom; 10 % too small for two
/// of them, and less than 1 % for five.
fn student(freedom: f64) -> f64 {
    1.96 + 2.372 / freedom + 2.823 / (freedom * freedom) + 2.556 / (freedom * freedom * freedom)
}

/// What agents would have done on all jobs of a source.
#[derive(Clone, Debug)]
pub struct Agents {
    controller: Controller,
    thresholds: Thresholds,
    division: Division,
    /// Number of jobs.
    pub jobs: u64,
    /// Entries, and those with far memory.
    pub entries: u64,
    /// Of these, entries with far memory.
    pub entries_on: u64,
    /// Entries whose promotions exceeded the objective.
    pub entries_over: u64,
    /// Pages in far memory, times milliseconds.
    pub far_page_ms: u128,
    /// Of these, pages that were a part of the cold ones: live agents differ there, from the model and from each other.
    pub part_page_ms: u128,
    /// Pages of DRAM that their compressed copies take, times milliseconds.
    pub pool_page_ms: u128,
    /// Pages at or above the first threshold, times milliseconds.
    pub cold_page_ms: u128,
    /// Duration of all entries, in milliseconds.
    pub window_ms: u128,
    stretches: Stretches,
}

impl Agents {
    /// An empty account of traces with these thresholds and this scan period, under these parameters.
    #[must_use]
    pub fn new(params: Params, thresholds: Thresholds, scan_period: Millis) -> Self {
        let (jobs, entries, entries_on, entries_over) = (0, 0, 0, 0);
        let (far_page_ms, part_page_ms, pool_page_ms, cold_page_ms, window_ms) = (0, 0, 0, 0, 0);
        let (controller, stretches) = (Controller::new(params), Stretches::default());
        Self {
            controller,
            thresholds,
            division: Division::new(scan_period),
            jobs,
            entries,
            entries_on,
            entries_over,
            far_page_ms,
            part_page_ms,
            pool_page_ms,
            cold_page_ms,
            window_ms,
            stretches,
        }
    }

    /// Promotions per minute as a share of the working set, over the entries with far memory; `None` if there were none.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        self.stretches.rate()
    }

    /// Where the rate of 95 % of further traces as long as these lies; `None` if there are too few entries.
    #[must_use]
    pub fn rate_interval(&self) -> Option<[f64; 2]> {
        self.stretches.interval()
    }
}

/// Promotions, and pages of the working set times milliseconds, while far memory was on.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    promoted: u64,
    working_set_page_ms: u128,
}

impl Sums {
    fn add(&mut self, other: Self) {
        self.promoted += other.promoted;
        self.working_set_page_ms += other.working_set_page_ms;
    }
}

impl Agents {
    /// The scans of an entry, as control periods.
    fn entry(&mut self, series: &Series, entry: &Input) -> Sums {
        let (mut sums, mut allowed, mut on) = (Sums::default(), Pages::ZERO, false);
        for input in self.division.divide(entry) {
            let period = self.controller.period(&self.thresholds, &input);
            let window = u128::from(input.window_ms.0);
            self.window_ms += window;
            self.cold_page_ms += u128::from(input.cold.at_or_above(0).0) * window;
            if period.on {
                let stored = series.compressibility.compressible.share_of(period.far.0);
                self.far_page_ms += u128::from(stored) * window;
                self.part_page_ms += if period.is_part { u128::from(stored) * window } else { 0 };
                self.pool_page_ms += u128::from(series.compressibility.compressed.share_of(stored)) * window;
                let working_set_page_ms = u128::from(input.cold.below_first().0) * window;
                sums.add(Sums { promoted: period.promoted.0, working_set_page_ms });
                (on, allowed) = (true, allowed + period.allowed);
            }
        }
        self.entries += 1;
        self.entries_on += u64::from(on);
        self.entries_over += u64::from(on && sums.promoted > allowed.0);
        sums
    }
}

impl Account for Agents {
    fn job(&mut self, _: &Label, series: &Series) {
        self.jobs += 1;
        self.controller.reset();
        self.division.reset();
        if series.buckets() != self.thresholds.len() + 1 {
            return;
        }
        let stretch = series.len().div_ceil(STRETCHES).max(1);
        let mut sums = Sums::default();
        for (number, row) in series.rows().enumerate() {
            let Some(input) = input(&row, row.age_ms, usize::MAX) else { continue };
            sums.add(self.entry(series, &input));
            if (number + 1).is_multiple_of(stretch) {
                self.stretches.add_some(std::mem::take(&mut sums));
            }
        }
        self.stretches.add_some(sums);
    }

    fn merge(&mut self, other: Self) {
        self.jobs += other.jobs;
        self.entries += other.entries;
        self.entries_on += other.entries_on;
        self.entries_over += other.entries_over;
        self.far_page_ms += other.far_page_ms;
        self.part_page_ms += other.part_page_ms;
        self.pool_page_ms += other.pool_page_ms;
        self.cold_page_ms += other.cold_page_ms;
        self.window_ms += other.window_ms;
        self.stretches.merge(&other.stretches);
    }
}

#[cfg(test)]
mod tests;
