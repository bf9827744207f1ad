//! Models what the policies `pressure` and `slowdown` would have moved to far memory, and the time that would have
//! cost.
//!
//! # Problem
//! Neither policy is bounded by a promotion rate. `pressure` offloads until tasks wait for a share of their time (TMO
//! section 3.3); `slowdown` places pages until accesses to slow memory take a share of the job's time (Thermostat
//! section 3.4). The promotion histogram of an entry has the number of accesses to pages of each age; multiplied by the
//! latency of the tier, it gives the time lost for any amount of far memory.
//!
//! # Amount
//! A job's pages are moved in order of age, the oldest first, as reclaim and placement approximate. The accesses to the
//! `d` oldest pages are read from the two histograms: each threshold gives a point (pages at or above it, accesses to
//! such pages), and neighbouring points are connected by straight lines.
//!
//! # Controllers
//! - `pressure` runs [`policy::pressure::step`] itself, once per period within an entry. Accesses are spread evenly
//!   over the entry, and each waits for the latency of the tier. The model has no other stalls.
//! - `slowdown` always keeps as many pages placed as keep the access rate within slowdown / latency; new blocks are
//!   limited to those it samples. The budget of an entry is computed from the entry itself, because the controller
//!   samples slow pages all the time; accesses before it promotes them are not visible at this resolution.
//!
//! # Limitations
//! A trace only shows that pages younger than the first threshold are accessed in every scan. In the model they are
//! never far, though a real `slowdown` may place some. A page accessed twice between two scans counts once. That is
//! right for `pressure`, where the first access returns the page; for `slowdown` it underestimates bursts. Ages are per
//! page, and `slowdown` moves blocks of 512 pages. A live job also stalls for other reasons.
//! `docs/reproduction/tuner.md` compares the model with live runs.

use policy::pressure::{self, Counters};
use policy::thresholds::THRESHOLDS_MAX;
use units::{Bytes, Millis, Pages, RatioPpm, UnixMillis};

use crate::fleet::{Account, Label};
use crate::rates::{self, BINS};
use crate::series::{Compressibility, Row, Series};

/// A controller bounded by the time that far memory costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// `pressure`, with its period in milliseconds.
    Pressure(pressure::Params, Millis),
    /// `slowdown`, with its period in milliseconds.
    Slowdown(policy::slowdown::Params, Millis),
}

/// Parameters of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The policy.
    pub controller: Controller,
    /// Latency of a page's return, or of an access to slow memory, in nanoseconds.
    pub latency_ns: u64,
    /// Bytes of a page in the trace.
    pub page_bytes: Bytes,
    /// Whether far memory takes DRAM, compressed.
    pub compressed: bool,
}

/// The outcome, in sums that can be added in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    setup: Setup,
    /// Number of jobs.
    pub jobs: u64,
    /// Number of entries.
    pub entries: u64,
    /// Duration of all entries, in milliseconds.
    pub window_ms: u128,
    /// All pages, times milliseconds.
    pub used_page_ms: u128,
    /// Pages at or above the first threshold, times milliseconds.
    pub cold_page_ms: u128,
    /// Pages in far memory, times milliseconds.
    pub far_page_ms: u128,
    /// Pages of DRAM that their compressed copies take, times milliseconds.
    pub pool_page_ms: u128,
    /// Accesses to pages in far memory.
    pub accesses: u128,
    /// Start of the first entry and end of the last one.
    pub span_unix_ms: Option<(UnixMillis, UnixMillis)>,
    /// Number of entries with far memory, by the share of their time that it cost.
    bins: Vec<u64>,
}

/// Accesses as a function of far pages: points of an increasing curve.
#[derive(Clone, Copy, Debug)]
struct Curve {
    /// Pages at or above a threshold and accesses to them, from the oldest threshold to the youngest.
    points: [(u64, u64); THRESHOLDS_MAX + 1],
    len: usize,
}

impl Curve {
    /// Returns the curve of an entry. Point 0 is no far memory; the last one is all cold memory.
    fn of(row: &Row<'_>) -> Self {
        let mut points = [(0, 0); THRESHOLDS_MAX + 1];
        let cold = row.cold.iter().zip(row.promotions).skip(1);
        for (point, (&pages, &accesses)) in points[1..].iter_mut().zip(cold.rev()) {
            *point = (u64::from(pages), u64::from(accesses));
        }
        Self { points, len: row.cold.len().min(points.len()) }
    }

    /// Returns the pages that may be far.
    fn cold(&self) -> u64 {
        self.points[self.len - 1].0
    }

    /// Returns the accesses to the `pages` oldest pages, or to all pages if there are fewer.
    fn accesses(&self, pages: u64) -> u64 {
        let points = &self.points[..self.len];
        let above = points.partition_point(|point| point.0 < pages);
        match (above.checked_sub(1).map(|below| points[below]), points.get(above)) {
            (Some(below), Some(&above)) => below.1 + between(above.1 - below.1, pages - below.0, above.0 - below.0),
            (None, _) => 0,
            (Some(last), None) => last.1,
        }
    }

    /// Returns how many of the oldest pages have at most this many accesses.
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

/// Returns all pages of a job.
fn pages(row: &Row<'_>) -> u64 {
    row.cold.first().copied().map_or(0, u64::from)
}

/// Returns `of * part / whole`, rounded down; 0 if `whole` is 0.
fn between(of: u64, part: u64, whole: u64) -> u64 {
    let share = (u128::from(of) * u128::from(part)).checked_div(u128::from(whole)).unwrap_or(0);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// State of one job under policy `pressure`.
#[derive(Debug, Default)]
struct PressureState {
    state: pressure::State,
    counters: Counters,
    far: u64,
    /// Remainder of accesses below one, in fractions of the entry's milliseconds.
    left_over: u64,
}

impl PressureState {
    /// Replays one entry. Returns the mean far pages and the accesses to them.
    fn entry(&mut self, setup: &Setup, params: &pressure::Params, period: Millis, row: &Row<'_>) -> (u64, u64) {
        let curve = Curve::of(row);
        let (total, cold) = (pages(row), curve.cold());
        let window = row.window_ms.0;
        let began = row.age_ms.saturating_sub(row.window_ms);
        let (mut at, mut far_ms, mut returned) = (0, 0u128, 0);
        let latency_us = u32::try_from(setup.latency_ns.div_ceil(1000)).unwrap_or(u32::MAX);
        while at < window {
            let elapsed = period.0.clamp(1, window - at);
            at += elapsed;
            far_ms += u128::from(self.far) * u128::from(elapsed);
            let share = u128::from(curve.accesses(self.far)) * u128::from(elapsed) + u128::from(self.left_over);
            let whole = u64::try_from(share / u128::from(window)).unwrap_or(u64::MAX);
            self.left_over = u64::try_from(share % u128::from(window)).unwrap_or(0);
            returned += whole;
            self.far = self.far.min(cold).saturating_sub(whole);
            self.counters.refaults = Pages(self.counters.refaults.0.saturating_add(whole));
            let input = pressure::Input {
                job_age_ms: Millis(began.0 + at),
                elapsed_ms: Millis(elapsed),
                resident: setup.page_bytes.saturating_mul(total - self.far),
                protected: Bytes(0),
                counters: self.counters,
                refault_cost_us: latency_us,
                veto: None,
            };
            let (state, step) = pressure::step(params, &self.state, &input);
            self.state = state;
            if let pressure::Decision::Reclaim { bytes } = step.decision {
                self.far = (self.far + bytes.0 / setup.page_bytes.0.max(1)).min(cold);
            }
        }
        (u64::try_from(far_ms / u128::from(window.max(1))).unwrap_or(u64::MAX), returned)
    }
}

/// Replays one entry under policy `slowdown`. Returns the mean pages in slow memory and the accesses to them. `placed`
/// is the number of pages placed so far, and is updated.
fn slowdown_entry(setup: &Setup, params: &policy::slowdown::Params, period: Millis, row: &Row<'_>, placed: &mut u64) -> (u64, u64) {
    let curve = Curve::of(row);
    let window_ns = u128::from(row.window_ms.0) * 1_000_000;
    let lost_ns = window_ns * u128::from(params.slowdown.0) / 1_000_000;
    let allowed = u64::try_from(lost_ns / u128::from(setup.latency_ns.max(1))).unwrap_or(u64::MAX);
    let within = curve.pages(allowed);
    // Each period judges a sample of the blocks; the samples of the entry limit what is placed by its end.
    // An entry may be shorter than a period.
    let sampled = between(params.sample.share_of(pages(row)), row.window_ms.0, period.0.max(1));
    let before = (*placed).min(within);
    *placed = before.saturating_add(sampled).min(within);
    let mean = before.midpoint(*placed);
    (mean, curve.accesses(mean))
}

impl Waits {
    /// Creates empty sums.
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

    /// Returns the parameters.
    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Returns the share of an entry's time that far memory cost, at this percentile of the entries with far memory.
    /// `None` if there are none; infinite if it was all of the time.
    #[must_use]
    pub fn lost(&self, percentile: RatioPpm) -> Option<f64> {
        rates::percentile(&self.bins, percentile).map(rates::upper_edge)
    }

    /// Returns the mean share of time that far memory cost, over all entries.
    #[must_use]
    pub fn lost_mean(&self) -> f64 {
        let lost_ns = self.accesses * u128::from(self.setup.latency_ns);
        crate::tally::ratio(lost_ns, self.window_ms * 1_000_000)
    }

    /// Returns far memory as a share of cold memory.
    #[must_use]
    pub fn coverage(&self) -> f64 {
        crate::tally::ratio(self.far_page_ms, self.cold_page_ms)
    }

    fn add(&mut self, row: &Row<'_>, compressibility: &Compressibility, far: u64, accesses: u64) {
        let window = u128::from(row.window_ms.0);
        let pages = pages(row);
        self.entries += 1;
        self.window_ms += window;
        self.used_page_ms += u128::from(pages) * window;
        self.cold_page_ms += u128::from(row.cold.get(1).copied().unwrap_or(0)) * window;
        self.far_page_ms += u128::from(far) * window;
        if self.setup.compressed {
            self.pool_page_ms += u128::from(compressibility.compressed.share_of(far)) * window;
        }
        self.accesses += u128::from(accesses);
        if far > 0 {
            // A bin is a share per minute. With 60,000,000 in place of the working set, it is microseconds per
            // microsecond.
            let lost_us = u128::from(accesses) * u128::from(self.setup.latency_ns) / 1000;
            let lost_us = u64::try_from(lost_us).unwrap_or(u64::MAX);
            self.bins[rates::bin(lost_us, 60_000_000, row.window_ms)] += 1;
        }
    }
}

impl Account for Waits {
    fn job(&mut self, _: &Label, series: &Series) {
        if series.is_empty() {
            return;
        }
        self.jobs += 1;
        let (mut pressure_state, mut placed) = (PressureState::default(), 0);
        let (mut first, mut last) = (None, Millis::ZERO);
        for row in series.rows().filter(|row| row.window_ms > Millis::ZERO) {
            let (far, accesses) = match &self.setup.controller {
                Controller::Pressure(params, period) => pressure_state.entry(&self.setup, params, *period, &row),
                Controller::Slowdown(params, period) => slowdown_entry(&self.setup, params, *period, &row, &mut placed),
            };
            // Incompressible pages are rejected by a compressed pool.
            let far = if self.setup.compressed { series.compressibility.compressible.share_of(far) } else { far };
            self.add(&row, &series.compressibility, far, accesses);
            first.get_or_insert(row.age_ms.saturating_sub(row.window_ms));
            last = row.age_ms;
        }
        if let Some(first) = first {
            let span = (series.start_unix_ms, series.start_unix_ms + last.saturating_sub(first));
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

fn joined(one: Option<(UnixMillis, UnixMillis)>, other: (UnixMillis, UnixMillis)) -> (UnixMillis, UnixMillis) {
    one.map_or(other, |one| (one.0.min(other.0), one.1.max(other.1)))
}

#[cfg(test)]
mod tests;
