//! What a load says about itself: one line per second, and a summary.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Longest latency that is told from longer ones, in microseconds.
const LATENCY_US_MAX: u64 = 600_000_000;
/// Decimal digits to which latencies are kept.
const DIGITS: u8 = 2;

/// Counts and latencies, of the current second and of the whole load.
pub(super) struct Report {
    second: Histogram<u64>,
    whole: Histogram<u64>,
    counts: Counts,
}

/// How replies turned out.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Counts {
    /// Reads that found a value of the right length.
    pub(super) hits: u64,
    /// Reads that found none.
    pub(super) misses: u64,
    /// Writes that were stored.
    pub(super) stored: u64,
    /// Refusals, and values of a wrong length.
    pub(super) errors: u64,
    /// What the first error was.
    pub(super) first_error: Option<String>,
}

impl Counts {
    pub(super) fn error(&mut self, text: impl FnOnce() -> String) {
        self.errors += 1;
        self.first_error.get_or_insert_with(text);
    }
}

impl Report {
    /// # Errors
    /// None in practice: the bounds are constants.
    pub(super) fn new() -> Result<Self> {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_US_MAX, DIGITS).context("latency bounds");
        Ok(Self { second: histogram()?, whole: histogram()?, counts: Counts::default() })
    }

    pub(super) fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }

    pub(super) fn record(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.second.saturating_record(us);
        self.whole.saturating_record(us);
    }

    /// The line about the second that ends `t` seconds after the start; the next one starts.
    pub(super) fn second(&mut self, t: u64) -> Value {
        let line = json!({
            "t": t, "ops": self.second.len(),
            "p50_us": quantile(&self.second, 0.5), "p99_us": quantile(&self.second, 0.99),
        });
        self.second.reset();
        line
    }

    pub(super) fn summary(&self, elapsed: Duration) -> Value {
        let Counts { hits, misses, stored, errors, first_error } = &self.counts;
        json!({
            "summary": true,
            "seconds": elapsed.as_secs_f64(),
            "ops_per_s": self.whole.len() as f64 / elapsed.as_secs_f64().max(1e-9),
            "p50_us": quantile(&self.whole, 0.5),
            "p99_us": quantile(&self.whole, 0.99),
            "max_us": quantile(&self.whole, 1.0),
            "requests": self.whole.len(),
            "hits": hits, "misses": misses, "stored": stored,
            "errors": errors, "first_error": first_error,
        })
    }
}

/// A quantile in microseconds; nothing when nothing was recorded.
fn quantile(histogram: &Histogram<u64>, quantile: f64) -> Option<u64> {
    (!histogram.is_empty()).then(|| histogram.value_at_quantile(quantile))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_start_anew_and_the_summary_counts_all() {
        let mut report = Report::new().unwrap();
        for us in 1..=100 {
            report.record(Duration::from_micros(us));
        }
        assert_eq!(report.second(1), json!({"t": 1, "ops": 100, "p50_us": 50, "p99_us": 99}));
        assert_eq!(report.second(2), json!({"t": 2, "ops": 0, "p50_us": null, "p99_us": null}));
        report.record(Duration::from_secs(10_000));
        let summary = report.summary(Duration::from_secs(2));
        assert_eq!((&summary["requests"], &summary["ops_per_s"]), (&json!(101), &json!(50.5)));
        assert!(summary["max_us"].as_u64().unwrap() >= LATENCY_US_MAX, "{summary}");
    }
}
