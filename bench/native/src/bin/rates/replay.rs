//! Replay of a trace: the samples of accessed bits, the estimates, and the true rates.

use std::collections::BTreeMap;
use std::time::Duration;

use policy::slowdown::rate::{self, BitSamples, Estimate, Parts};
use serde::Serialize;

use crate::trace::Trace;

/// Base pages per huge page, as a power of two.
const BLOCK_SHIFT: u32 = 9;

/// Maximum number of a block's parts whose rates are sampled (Thermostat section 3.2).
const SAMPLED_PARTS: usize = 50;

/// Unit of the estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// A page of 4 KiB.
    Page,
    /// A block of 2 MiB by its single accessed bit.
    Block,
    /// A block of 2 MiB by the accessed bits of its parts: first which are accessed, then the rates of some of those.
    BlockByParts,
}

/// Accuracy of the estimates for one trace.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) trace: String,
    pub(crate) unit: Unit,
    pub(crate) interval_us: u64,
    pub(crate) samples: u32,
    /// Pages or blocks, times windows, with any access.
    pub(crate) estimates: u64,
    /// Share of saturated estimates: every sample found the bit set.
    pub(crate) saturated_ratio: f64,
    /// Raw accesses per interval with any access: 1.0 for isolated accesses, more for bursts.
    pub(crate) burst: f64,
    /// Median of |estimate - true| / true over unsaturated estimates, for the same window, with raw accesses.
    pub(crate) median_error_ratio: Option<f64>,
    /// The same with accesses to a unit within a tenth of the interval counted once.
    pub(crate) median_error_apart_ratio: Option<f64>,
    /// Share of all estimates with the true rate of raw accesses within the bound, or saturated.
    pub(crate) within_ratio: f64,
    /// The same for distinct accesses.
    pub(crate) within_apart_ratio: f64,
    /// The same for distinct accesses in the following window, in which an estimate is used.
    pub(crate) within_next_ratio: Option<f64>,
}

/// Returns the accuracy for all units at one interval.
pub(crate) fn rows(trace: &Trace, interval: Duration, samples: u32) -> Vec<Row> {
    let interval_us = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX);
    let sampler = Sampler { interval_ns: interval_us.saturating_mul(1_000), samples };
    [Unit::Page, Unit::Block, Unit::BlockByParts]
        .into_iter()
        .filter_map(|unit| sampler.judge(trace, unit).row(trace, unit, interval_us, samples))
        .collect()
}

#[derive(Clone, Copy)]
struct Sampler {
    interval_ns: u64,
    samples: u32,
}

/// Times and base pages of the accesses of one unit, in order of time.
type Accesses = Vec<(u64, u64)>;

/// True rates within a window.
#[derive(Clone, Copy, Debug, Default)]
struct Truth {
    /// Accesses per second.
    raw: f64,
    /// The same without indistinguishable accesses.
    apart: f64,
}

impl Sampler {
    fn judge(self, trace: &Trace, unit: Unit) -> Verdicts {
        let mut units: BTreeMap<u64, Accesses> = BTreeMap::new();
        for &(at, page) in &trace.accesses {
            let key = if unit == Unit::Page { page } else { page >> BLOCK_SHIFT };
            units.entry(key).or_default().push((at, page));
        }
        // By parts takes two windows: one for which parts are accessed, one for their rates.
        let windows = if unit == Unit::BlockByParts { 2 } else { 1 };
        let window_ns = self.interval_ns.saturating_mul(self.samples.into());
        let span_ns = window_ns.saturating_mul(windows);
        let mut random = fastrand::Rng::with_seed(7);
        let mut verdicts = Verdicts::default();
        for accesses in units.values() {
            let mut start = 0;
            while start + span_ns <= trace.length_ns {
                let end = start + span_ns;
                let here = within(accesses, start, end);
                let next = (end + span_ns <= trace.length_ns).then(|| self.truth(within(accesses, end, end + span_ns), span_ns));
                if !here.is_empty() {
                    let estimate = match unit {
                        Unit::Page | Unit::Block => rate::page(self.sample(here, start, None), self.interval_ns / 1_000),
                        Unit::BlockByParts => self.by_parts(here, start, start + window_ns, &mut random),
                    };
                    let intervals = distinct(here, self.interval_ns);
                    verdicts.add(estimate, self.truth(here, span_ns), next, here.len(), intervals);
                }
                start = end;
            }
        }
        verdicts
    }

    fn truth(self, accesses: &[(u64, u64)], span_ns: u64) -> Truth {
        let seconds = Duration::from_nanos(span_ns).as_secs_f64();
        let per_second = |count: usize| count as f64 / seconds;
        Truth { raw: per_second(accesses.len()), apart: per_second(distinct(accesses, (self.interval_ns / 10).max(1))) }
    }

    /// Returns the samples of the window that begins at `start`, of one base page or of the whole unit.
    fn sample(self, accesses: &[(u64, u64)], start: u64, page: Option<u64>) -> BitSamples {
        let mut accessed = 0;
        let mut last = None;
        for &(at, _) in accesses.iter().filter(|&&(_, of)| page.is_none_or(|page| of == page)) {
            let interval = (at - start) / self.interval_ns;
            accessed += u32::from(last != Some(interval));
            last = Some(interval);
        }
        BitSamples { taken: self.samples, accessed }
    }

    /// Estimates in the two stages of Thermostat section 3.2: accessed parts from the accesses before `middle`, their
    /// rates from those after.
    fn by_parts(self, accesses: &[(u64, u64)], start: u64, middle: u64, random: &mut fastrand::Rng) -> Estimate {
        let (first, second) = accesses.split_at(accesses.partition_point(|&(at, _)| at < middle));
        let mut touched: Vec<u64> = first.iter().map(|&(_, page)| page).collect();
        touched.sort_unstable();
        touched.dedup();
        let all = u32::try_from(touched.len()).unwrap_or(u32::MAX);
        random.shuffle(&mut touched);
        touched.truncate(SAMPLED_PARTS);
        let samples: Vec<BitSamples> = touched.iter().map(|&page| self.sample(second, middle, Some(page))).collect();
        let (touch_window_us, interval_us) = ((middle - start) / 1_000, self.interval_ns / 1_000);
        rate::parts(&Parts { of: 1 << BLOCK_SHIFT, touched: all, touch_window_us, samples: &samples, interval_us })
    }
}

/// Returns the accesses from `start` to before `end`.
fn within(accesses: &[(u64, u64)], start: u64, end: u64) -> &[(u64, u64)] {
    let from = accesses.partition_point(|&(at, _)| at < start);
    let to = accesses.partition_point(|&(at, _)| at < end);
    &accesses[from..to]
}

/// Returns the number of intervals of this length with an access, summed over base pages.
fn distinct(accesses: &[(u64, u64)], interval_ns: u64) -> usize {
    let mut found: Vec<(u64, u64)> = accesses.iter().map(|&(at, page)| (page, at / interval_ns)).collect();
    found.sort_unstable();
    found.dedup();
    found.len()
}

/// Estimates compared with the true rates.
#[derive(Debug, Default)]
struct Verdicts {
    saturated: u64,
    within: u64,
    within_apart: u64,
    within_next: u64,
    estimates: u64,
    followed: u64,
    accesses: usize,
    intervals: usize,
    errors: Vec<f64>,
    errors_apart: Vec<f64>,
}

impl Verdicts {
    fn add(&mut self, estimate: Estimate, truth: Truth, next: Option<Truth>, accesses: usize, intervals: usize) {
        let bound = estimate.upper.map_or(f64::INFINITY, |upper| upper.as_f64());
        self.estimates += 1;
        self.accesses += accesses;
        self.intervals += intervals;
        self.within += u64::from(truth.raw <= bound);
        self.within_apart += u64::from(truth.apart <= bound);
        if let Some(next) = next {
            self.followed += 1;
            self.within_next += u64::from(next.apart <= bound);
        }
        if estimate.upper.is_none() {
            self.saturated += 1;
            return;
        }
        let mean = estimate.mean.as_f64();
        self.errors.push((mean - truth.raw).abs() / truth.raw);
        self.errors_apart.push((mean - truth.apart).abs() / truth.apart);
    }

    /// Returns the row; `None` if the trace is shorter than a window.
    fn row(mut self, trace: &Trace, unit: Unit, interval_us: u64, samples: u32) -> Option<Row> {
        let ratio = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        Some(Row {
            trace: trace.name.clone(),
            unit,
            interval_us,
            samples,
            estimates: self.estimates,
            saturated_ratio: ratio(self.saturated, self.estimates)?,
            burst: self.accesses as f64 / self.intervals as f64,
            median_error_ratio: median(&mut self.errors),
            median_error_apart_ratio: median(&mut self.errors_apart),
            within_ratio: ratio(self.within, self.estimates)?,
            within_apart_ratio: ratio(self.within_apart, self.estimates)?,
            within_next_ratio: ratio(self.within_next, self.followed),
        })
    }
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(accesses: impl IntoIterator<Item = (u64, u64)>) -> Trace {
        let mut accesses: Vec<_> = accesses.into_iter().collect();
        accesses.sort_unstable();
        Trace { name: "t".into(), length_ns: 100_000_000, accesses }
    }

    /// Checks 10 samples of 4 KiB pages, a millisecond apart.
    fn check(trace: &Trace, estimates: u64, saturated: f64, burst: f64, within: f64) {
        let row = rows(trace, Duration::from_millis(1), 10).remove(0);
        let got = (row.estimates, row.saturated_ratio, row.burst, row.within_ratio);
        assert_eq!(got, (estimates, saturated, burst, within), "{row:?}");
    }

    #[test]
    fn estimates_are_compared_with_true_rates() {
        // Every millisecond: saturated.
        check(&trace((0..100).map(|at| (at * 1_000_000, 1))), 10, 1.0, 1.0, 1.0);
        // Once in ten samples: 100 per second, and the bound is 501.
        check(&trace((0..10).map(|at| (at * 10_000_000, 1))), 10, 0.0, 1.0, 1.0);
        // A hundred accesses in one of ten: 10,000 per second.
        check(&trace((0..10).flat_map(|at| (0..100).map(move |n| (at * 10_000_000 + n, 1)))), 10, 0.0, 100.0, 0.0);
    }

    #[test]
    fn random_accesses_are_within_the_bound_in_95_percent() {
        let mut random = fastrand::Rng::with_seed(5);
        // 20 accesses in 100 ms to each of 10 pages in each of two blocks: 0.2 per interval and page, 2 per block.
        let pages = (0..20u64).map(|page| page / 10 * 512 + page % 10);
        let accesses: Vec<_> = pages.flat_map(|page| (0..20).map(move |_| page)).map(|page| (random.u64(0..100_000_000), page)).collect();
        for row in rows(&trace(accesses), Duration::from_millis(1), 10) {
            assert!(row.within_ratio >= 0.95 && row.burst < 1.2, "{row:?}");
        }
    }
}
