//! Replays traces through the agents' own controller, under one setting, with all that it does.
//!
//! [`crate::replay`] computes the thresholds of a whole grid at once, and nothing else. Agents also offload a part of the cold pages
//! where no threshold qualifies, and pool the scans of a sample. Here each entry is a control period of [`policy::cold_age::step`]
//! itself, with what is far and what returned as part of its input.
//!
//! # Far memory
//! What was decided at the end of one entry is in effect during the next. Where a part of the pages at a threshold is far, that part
//! of the accesses are promotions: as if pages were accessed at random. A part stays far until it returns.
//!
//! # Interval
//! The rate is promotions by working set, over all entries with far memory. Entries that follow each other are alike, so each job's
//! entries are divided into ten stretches, whose deviations from the common rate give its standard error (a ratio estimator over
//! clusters). The interval is where 95 % of further traces as long as this one lie: this trace and the further ones vary alike.

use policy::cold_age::{self, Decision, Hold, Input, Params, Reason, Sample, State};
use policy::histogram::Histogram;
use policy::thresholds::Thresholds;
use units::{Age, Millis, Pages};

use crate::fleet::{Account, Label};
use crate::series::{Row, Series, buckets};
use crate::tally::ratio;

/// Stretches of a job, whose rates are compared.
const STRETCHES: usize = 10;

/// Far memory in a period: the index of a threshold, and the share of the pages at or above it that are far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// Index of the threshold.
    pub index: usize,
    /// The share; one if all of them are far.
    pub share: f64,
}

impl Effect {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a mean, rounded")]
    fn part(self, pages: Pages) -> Pages {
        Pages((pages.0 as f64 * self.share).round() as u64)
    }

    /// The pages of a histogram that are far, by bucket.
    fn of(self, histogram: &Histogram) -> Histogram {
        let far = |(at, &pages): (usize, &u64)| if at > self.index { self.part(Pages(pages)).0 } else { 0 };
        let buckets: Vec<u64> = histogram.buckets().iter().enumerate().map(far).collect();
        Histogram::try_from(buckets).unwrap_or(*histogram)
    }
}

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
    in_effect: Option<Effect>,
}

impl Controller {
    /// A controller before its first period.
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self { params, state: State::default(), in_effect: None }
    }

    /// Starts over for another job.
    pub fn reset(&mut self) {
        (self.state, self.in_effect) = (State::default(), None);
    }

    /// What the last decision put in effect.
    #[must_use]
    pub fn in_effect(&self) -> Option<Effect> {
        self.in_effect
    }

    /// One control period. `input` is of a job whose memory is all in DRAM.
    pub fn period(&mut self, thresholds: &Thresholds, input: &Input) -> Period {
        let before = self.in_effect;
        let of = |histogram: &Histogram| before.map_or(Pages::ZERO, |effect| effect.part(histogram.at_or_above(effect.index)));
        let (promoted, far) = (of(&input.promotions), of(&input.cold));
        let given = if self.params.partial { with_far(input, before) } else { *input };
        let (state, step) = cold_age::step(&self.params, thresholds, &self.state, &given);
        self.state = state;
        let left = far - promoted;
        let at = |age: Age| thresholds.as_slice().iter().position(|&other| other == age);
        let whole = |age: Age| at(age).map(|index| Effect { index, share: 1.0 });
        let part = |index: usize, pages: Pages| {
            let share = ratio(pages.0.into(), input.cold.at_or_above(index).0.into()).min(1.0);
            Effect { index, share }
        };
        self.in_effect = match step.decision {
            Decision::Offload { threshold, pages, reason: Reason::Partial } => at(threshold).map(|index| part(index, left + pages)),
            Decision::Offload { threshold, .. } => whole(threshold),
            // Only nothing to offload yet.
            Decision::Hold { reason: Hold::NothingCold } => step.threshold.and_then(whole),
            Decision::Hold { .. } => {
                let stays = before.filter(|effect| self.params.partial && effect.share < 1.0 && left > Pages::ZERO);
                stays.map(|Effect { index, .. }| part(index, left))
            }
        };
        let is_part = before.is_some_and(|effect| effect.share < 1.0);
        Period { on: before.is_some(), far, is_part, promoted, allowed: step.promotions_max }
    }
}

/// The input with the pages that are far, and what returned of them.
fn with_far(input: &Input, effect: Option<Effect>) -> Input {
    // With nothing far, nothing returned.
    let none = Effect { index: input.cold.buckets().len(), share: 0.0 };
    let effect = effect.unwrap_or(none);
    let far = effect.of(&input.cold);
    let resident = input.cold.buckets().iter().zip(far.buckets()).map(|(all, far)| all.saturating_sub(*far));
    let resident = Histogram::try_from(resident.collect::<Vec<_>>()).unwrap_or(input.cold);
    Input { resident, returned: Some(effect.of(&input.promotions)), ..*input }
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
    /// An empty account under these parameters.
    #[must_use]
    pub fn new(params: Params, thresholds: Thresholds) -> Self {
        let (jobs, entries, entries_on, entries_over) = (0, 0, 0, 0);
        let (far_page_ms, part_page_ms, pool_page_ms, cold_page_ms, window_ms) = (0, 0, 0, 0, 0);
        let (controller, stretches) = (Controller::new(params), Stretches::default());
        Self {
            controller,
            thresholds,
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

impl Account for Agents {
    fn job(&mut self, _: &Label, series: &Series) {
        self.jobs += 1;
        self.controller.reset();
        if series.buckets() != self.thresholds.len() + 1 {
            return;
        }
        let stretch = series.len().div_ceil(STRETCHES).max(1);
        let (mut promoted, mut working_set_page_ms) = (0, 0);
        for (number, row) in series.rows().enumerate() {
            let Some(input) = input(&row, row.age_ms, usize::MAX) else { continue };
            let period = self.controller.period(&self.thresholds, &input);
            let window = u128::from(row.window_ms.0);
            self.entries += 1;
            self.window_ms += window;
            self.cold_page_ms += u128::from(input.cold.at_or_above(0).0) * window;
            if period.on {
                let stored = series.compressibility.compressible.share_of(period.far.0);
                self.entries_on += 1;
                self.entries_over += u64::from(period.promoted > period.allowed);
                self.far_page_ms += u128::from(stored) * window;
                self.part_page_ms += if period.is_part { u128::from(stored) * window } else { 0 };
                self.pool_page_ms += u128::from(series.compressibility.compressed.share_of(stored)) * window;
                promoted += period.promoted.0;
                working_set_page_ms += u128::from(input.cold.below_first().0) * window;
            }
            if (number + 1).is_multiple_of(stretch) && working_set_page_ms > 0 {
                self.stretches.add(std::mem::take(&mut promoted), std::mem::take(&mut working_set_page_ms));
            }
        }
        if working_set_page_ms > 0 {
            self.stretches.add(promoted, working_set_page_ms);
        }
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
