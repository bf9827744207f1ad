//! What policies `pressure` and `slowdown` would have placed in far memory, and what that would have cost.
//!
//! # Problem
//! Neither goes by a promotion rate. `pressure` offloads until tasks wait for a share of their time (001 section 3.3);
//! `slowdown` places until accesses to slow memory take a share of the job's time (002 section 3.4). The promotion
//! histogram of an entry says how many accesses there were to pages of each age; times what one costs on the tier,
//! that is the time lost for any depth of offloading.
//!
//! # Depth
//! A job's pages are taken in order of age, the oldest first, as reclaim and placement mean to. With `d` pages far,
//! accesses to them in an entry are read off the two histograms: the number of pages at or above a threshold, and
//! that of accesses to such pages, are two points of one falling curve, with straight lines between neighbours.
//!
//! # Controllers
//! - `pressure` is [`policy::pressure::step`] itself, once for each of its periods within an entry. Accesses are spread
//!   evenly over the entry, and each waits for the tier's latency. Nothing else stalls in the model.
//! - `slowdown` places all the time what keeps accesses within slowdown / latency per second, and of new blocks only
//!   what it samples. The budget of an entry is judged by the entry itself, for the controller looks at slow pages all
//!   the time; what it cannot take home before the end of a period is not seen at this resolution.
//!
//! # What it cannot know
//! Of pages younger than the first threshold the trace tells no more than that they are accessed in every scan. None of them is
//! ever far in the model, though a real `slowdown` may place some. A page that is accessed twice between two scans counts once. For `pressure` that is right (it came back the first
//! time); for `slowdown` it is not, so that bursts are underrated. Ages are of pages, and `slowdown` moves blocks of 512.
//! A live job also stalls for other reasons. How far off this is from live runs is written in `docs/reproduction/tuner.md`.

use policy::pressure::{self, Counters};
use policy::thresholds::THRESHOLDS_MAX;
use units::{Bytes, Pages, RatioPpm};

use crate::fleet::{Account, Label};
use crate::rates::{self, BINS};
use crate::series::{Facts, Row, Series};

/// A controller that is bounded by the time that far memory costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// `pressure`, with its period in milliseconds.
    Pressure(pressure::Params, u64),
    /// `slowdown`, with its period in milliseconds.
    Slowdown(policy::slowdown::Params, u64),
}

/// Everything that the model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The policy.
    pub controller: Controller,
    /// What the return of a page, or an access to slow memory, takes, in nanoseconds.
    pub latency_ns: u64,
    /// Bytes of a page in the trace.
    pub page_bytes: u64,
    /// Whether what is far takes DRAM, compressed.
    pub compressed: bool,
}

/// What came of it, in sums that add up in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    setup: Setup,
    /// Jobs.
    pub jobs: u64,
    /// Their entries.
    pub entries: u64,
    /// Milliseconds of all entries.
    pub window_ms: u128,
    /// All pages, times milliseconds.
    pub used_page_ms: u128,
    /// Pages at or above the first threshold.
    pub cold_page_ms: u128,
    /// Pages in far memory.
    pub far_page_ms: u128,
    /// Pages of DRAM that their compressed copies take.
    pub pool_page_ms: u128,
    /// Accesses to them.
    pub accesses: u128,
    /// When the first entry began and the last one ended, in milliseconds of Unix time.
    pub span_unix_ms: Option<(u64, u64)>,
    /// Entries with far memory by the share of their time that it cost.
    bins: Vec<u64>,
}

/// How many pages are far at the most for each number of accesses: points of a curve, from none upwards.
#[derive(Clone, Copy, Debug)]
struct Curve {
    /// Pages at or above a threshold, and accesses to them, from the oldest threshold to the youngest.
    points: [(u64, u64); THRESHOLDS_MAX + 1],
    len: usize,
}

impl Curve {
    /// The curve of an entry. Point 0 is nothing far; the last one is all that is cold.
    fn of(row: &Row<'_>) -> Self {
        let mut points = [(0, 0); THRESHOLDS_MAX + 1];
        let cold = row.cold.iter().zip(row.promotions).skip(1);
        for (point, (&pages, &accesses)) in points[1..].iter_mut().zip(cold.rev()) {
            *point = (u64::from(pages), u64::from(accesses));
        }
        Self { points, len: row.cold.len().min(points.len()) }
    }

    /// All pages that may be far.
    fn cold(&self) -> u64 {
        self.points[self.len - 1].0
    }

    /// Accesses to the `pages` oldest pages; those of all pages where there are fewer.
    fn accesses(&self, pages: u64) -> u64 {
        let points = &self.points[..self.len];
        let above = points.partition_point(|point| point.0 < pages);
        match (above.checked_sub(1).map(|below| points[below]), points.get(above)) {
            (Some(below), Some(&above)) => below.1 + between(above.1 - below.1, pages - below.0, above.0 - below.0),
            (None, _) => 0,
            (Some(last), None) => last.1,
        }
    }

    /// How many of the oldest pages are accessed no more than so often.
    fn pages(&self, accesses: u64) -> u64 {
        let points = &self.points[..self.len];
        let above = points.partition_point(|point| point.1 <= accesses);
        match (above.checked_sub(1).map(|below| points[below]), points.get(above)) {
            (Some(below), Some(&above)) => below.0 + between(above.0 - below.0, accesses - below.1, above.1 - below.1),
            (None, _) => 0,
            (Some(last), None) => last.0,
        }
    }
}

/// All pages of a job.
fn pages(row: &Row<'_>) -> u64 {
    row.cold.first().copied().map_or(0, u64::from)
}

/// `part / whole` of `of`, rounded down; none of nothing.
fn between(of: u64, part: u64, whole: u64) -> u64 {
    let share = (u128::from(of) * u128::from(part)).checked_div(u128::from(whole)).unwrap_or(0);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Where one job stands under policy `pressure`.
#[derive(Debug, Default)]
struct Pressed {
    state: pressure::State,
    counters: Counters,
    far: u64,
    /// Accesses that did not make a whole one in the periods before, in parts of the entry's milliseconds.
    left_over: u64,
}

impl Pressed {
    /// One entry: mean pages far, and accesses to them.
    fn entry(&mut self, setup: &Setup, params: &pressure::Params, period_ms: u64, row: &Row<'_>) -> (u64, u64) {
        let curve = Curve::of(row);
        let (total, cold) = (pages(row), curve.cold());
        let window = u64::from(row.window_ms);
        let began_ms = row.age_ms.saturating_sub(window);
        let (mut at, mut far_ms, mut returned) = (0, 0u128, 0);
        let latency_us = u32::try_from(setup.latency_ns.div_ceil(1000)).unwrap_or(u32::MAX);
        while at < window {
            let elapsed = period_ms.clamp(1, window - at);
            at += elapsed;
            far_ms += u128::from(self.far) * u128::from(elapsed);
            let share = u128::from(curve.accesses(self.far)) * u128::from(elapsed) + u128::from(self.left_over);
            let whole = u64::try_from(share / u128::from(window)).unwrap_or(u64::MAX);
            self.left_over = u64::try_from(share % u128::from(window)).unwrap_or(0);
            returned += whole;
            self.far = self.far.min(cold).saturating_sub(whole);
            self.counters.refaults = Pages(self.counters.refaults.0.saturating_add(whole));
            let input = pressure::Input {
                job_age_ms: began_ms + at,
                elapsed_ms: elapsed,
                resident: Bytes((total - self.far) * setup.page_bytes),
                protected: Bytes(0),
                counters: self.counters,
                refault_cost_us: latency_us,
                veto: None,
            };
            let (state, step) = pressure::step(params, &self.state, &input);
            self.state = state;
            if let pressure::Decision::Reclaim { bytes } = step.decision {
                self.far = (self.far + bytes.0 / setup.page_bytes.max(1)).min(cold);
            }
        }
        (u64::try_from(far_ms / u128::from(window.max(1))).unwrap_or(u64::MAX), returned)
    }
}

/// One entry under policy `slowdown`: mean pages in slow memory, and accesses to them. `placed` is where the job stands.
fn slowed(setup: &Setup, params: &policy::slowdown::Params, period_ms: u64, row: &Row<'_>, placed: &mut u64) -> (u64, u64) {
    let curve = Curve::of(row);
    let window_ns = u128::from(row.window_ms) * 1_000_000;
    let lost_ns = window_ns * u128::from(params.slowdown.0) / 1_000_000;
    let allowed = u64::try_from(lost_ns / u128::from(setup.latency_ns.max(1))).unwrap_or(u64::MAX);
    let within = curve.pages(allowed);
    // Each period a sample of the blocks is judged; at the end of the entry so much more may have been placed.
    let periods = u64::from(row.window_ms) / period_ms.max(1);
    let sampled = params.sample.share_of(pages(row)).saturating_mul(periods);
    let before = (*placed).min(within);
    *placed = before.saturating_add(sampled).min(within);
    let mean = before.midpoint(*placed);
    (mean, curve.accesses(mean))
}

impl Waits {
    /// Nothing yet.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            jobs: 0,
            entries: 0,
            window_ms: 0,
            used_page_ms: 0,
            cold_page_ms: 0,
            far_page_ms: 0,
            pool_page_ms: 0,
            accesses: 0,
            span_unix_ms: None,
            bins: vec![0; BINS],
        }
    }

    /// What it is asked about.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The share of an entry's time that far memory cost, such that it was no more in `percentile` of the entries with far
    /// memory. `None` where there are none; infinite where it was all of it.
    #[must_use]
    pub fn lost(&self, percentile: RatioPpm) -> Option<f64> {
        rates::percentile(&self.bins, percentile).map(rates::upper_edge)
    }

    /// The mean share of time that it cost, over all entries.
    #[must_use]
    pub fn lost_mean(&self) -> f64 {
        let lost_ns = self.accesses * u128::from(self.setup.latency_ns);
        crate::tally::ratio(lost_ns, self.window_ms * 1_000_000)
    }

    /// Far memory as a share of cold memory.
    #[must_use]
    pub fn coverage(&self) -> f64 {
        crate::tally::ratio(self.far_page_ms, self.cold_page_ms)
    }

    fn add(&mut self, row: &Row<'_>, facts: &Facts, far: u64, accesses: u64) {
        let window = u128::from(row.window_ms);
        let pages = pages(row);
        self.entries += 1;
        self.window_ms += window;
        self.used_page_ms += u128::from(pages) * window;
        self.cold_page_ms += u128::from(row.cold.get(1).copied().unwrap_or(0)) * window;
        self.far_page_ms += u128::from(far) * window;
        if self.setup.compressed {
            self.pool_page_ms += u128::from(facts.compressed.share_of(far)) * window;
        }
        self.accesses += u128::from(accesses);
        if far > 0 {
            // A bin is of a share per minute of so many pages: with sixty million of them, of microseconds per microsecond.
            let lost_us = u128::from(accesses) * u128::from(self.setup.latency_ns) / 1000;
            let lost_us = u64::try_from(lost_us).unwrap_or(u64::MAX);
            self.bins[rates::bin(lost_us, 60_000_000, u64::from(row.window_ms))] += 1;
        }
    }
}

impl Account for Waits {
    fn job(&mut self, _: &Label, series: &Series) {
        if series.is_empty() {
            return;
        }
        self.jobs += 1;
        let (mut pressed, mut placed) = (Pressed::default(), 0);
        let (mut first_ms, mut last_ms) = (None, 0);
        for row in series.rows().filter(|row| row.window_ms > 0) {
            let (far, accesses) = match &self.setup.controller {
                Controller::Pressure(params, period_ms) => pressed.entry(&self.setup, params, *period_ms, &row),
                Controller::Slowdown(params, period_ms) => slowed(&self.setup, params, *period_ms, &row, &mut placed),
            };
            // What is incompressible comes back at once from a compressed pool.
            let far = if self.setup.compressed { series.facts.compressible.share_of(far) } else { far };
            self.add(&row, &series.facts, far, accesses);
            first_ms.get_or_insert(row.age_ms.saturating_sub(u64::from(row.window_ms)));
            last_ms = row.age_ms;
        }
        if let Some(first_ms) = first_ms {
            let span = (series.start_unix_ms, series.start_unix_ms.saturating_add(last_ms - first_ms));
            self.span_unix_ms = Some(joined(self.span_unix_ms, span));
        }
    }

    fn merge(&mut self, other: Self) {
        self.jobs += other.jobs;
        self.entries += other.entries;
        self.window_ms += other.window_ms;
        self.used_page_ms += other.used_page_ms;
        self.cold_page_ms += other.cold_page_ms;
        self.far_page_ms += other.far_page_ms;
        self.pool_page_ms += other.pool_page_ms;
        self.accesses += other.accesses;
        if let Some(span) = other.span_unix_ms {
            self.span_unix_ms = Some(joined(self.span_unix_ms, span));
        }
        for (mine, theirs) in self.bins.iter_mut().zip(other.bins) {
            *mine += theirs;
        }
    }
}

fn joined(one: Option<(u64, u64)>, other: (u64, u64)) -> (u64, u64) {
    one.map_or(other, |one| (one.0.min(other.0), one.1.max(other.1)))
}

#[cfg(test)]
mod tests;
