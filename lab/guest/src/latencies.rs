//! Latencies of requests, per second and in total.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

/// Largest latency that is recorded exactly, in microseconds.
const LATENCY_US_MAX: u64 = 600_000_000;
/// Decimal digits of precision.
const DIGITS: u8 = 2;

/// Latencies of the current second and of the whole run.
pub(crate) struct Latencies {
    second: Histogram<u64>,
    whole: Histogram<u64>,
}

impl Latencies {
    /// Returns empty histograms.
    ///
    /// # Errors
    /// Never in practice: the bounds are constants.
    pub(crate) fn new() -> Result<Self> {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_US_MAX, DIGITS).context("latency bounds");
        Ok(Self { second: histogram()?, whole: histogram()? })
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.second.saturating_record(us);
        self.whole.saturating_record(us);
    }

    /// Returns the fields of the second that ends `t` seconds after the start, and starts the next one.
    pub(crate) fn second(&mut self, t: u64) -> Map<String, Value> {
        let line = fields([
            ("t", json!(t)),
            ("ops", json!(self.second.len())),
            ("p50_us", json!(quantile(&self.second, 0.5))),
            ("p99_us", json!(quantile(&self.second, 0.99))),
        ]);
        self.second.reset();
        line
    }

    /// Returns the fields of the whole run.
    pub(crate) fn summary(&self, elapsed: Duration) -> Map<String, Value> {
        fields([
            ("summary", json!(true)),
            ("seconds", json!(elapsed.as_secs_f64())),
            ("ops_per_s", json!(self.whole.len() as f64 / elapsed.as_secs_f64().max(1e-9))),
            ("p50_us", json!(quantile(&self.whole, 0.5))),
            ("p99_us", json!(quantile(&self.whole, 0.99))),
            ("p999_us", json!(quantile(&self.whole, 0.999))),
            ("max_us", json!(quantile(&self.whole, 1.0))),
            ("requests", json!(self.whole.len())),
        ])
    }
}

/// Prints one line and flushes it, so that readers see it at once.
///
/// # Errors
/// Standard output is closed.
pub(crate) fn print_line(line: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot write to standard output")
}

/// Returns the fields of a JSON object.
pub(crate) fn fields<const N: usize>(pairs: [(&str, Value); N]) -> Map<String, Value> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns a quantile in microseconds; `None` if nothing was recorded.
fn quantile(histogram: &Histogram<u64>, quantile: f64) -> Option<u64> {
    (!histogram.is_empty()).then(|| histogram.value_at_quantile(quantile))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_reset_and_the_summary_has_all() {
        let mut latencies = Latencies::new().unwrap();
        for us in 1..=100 {
            latencies.record(Duration::from_micros(us));
        }
        assert_eq!(Value::from(latencies.second(1)), json!({"t": 1, "ops": 100, "p50_us": 50, "p99_us": 99}));
        assert_eq!(Value::from(latencies.second(2)), json!({"t": 2, "ops": 0, "p50_us": null, "p99_us": null}));
        latencies.record(Duration::from_secs(10_000));
        let summary = latencies.summary(Duration::from_secs(2));
        assert_eq!((&summary["requests"], &summary["ops_per_s"]), (&json!(101), &json!(50.5)));
        assert!(summary["max_us"].as_u64().unwrap() >= LATENCY_US_MAX, "{summary:?}");
    }
}
