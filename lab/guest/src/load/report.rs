//! The report of a load: one line per second, and a summary.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::latencies::{Latencies, fields};

/// Counts and latencies of the current second and of the whole load.
pub(super) struct Report {
    latencies: Latencies,
    counts: Counts,
}

/// Replies by result.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Counts {
    /// Reads that returned a value of the right length.
    pub(super) hits: u64,
    /// Reads of keys that are not stored.
    pub(super) misses: u64,
    /// Writes that succeeded.
    pub(super) stored: u64,
    /// Refusals, and values of a wrong length.
    pub(super) errors: u64,
    /// Description of the first error.
    pub(super) first_error: Option<String>,
}

impl Counts {
    pub(super) fn error(&mut self, text: impl FnOnce() -> String) {
        self.errors += 1;
        self.first_error.get_or_insert_with(text);
    }
}

impl Report {
    /// Returns an empty report.
    ///
    /// # Errors
    /// Those of [`Latencies::new`].
    pub(super) fn new() -> Result<Self> {
        Ok(Self { latencies: Latencies::new()?, counts: Counts::default() })
    }

    pub(super) fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }

    pub(super) fn record(&mut self, latency: Duration) {
        self.latencies.record(latency);
    }

    /// Returns the line of the second that ends `t` seconds after the start, and starts the next one.
    pub(super) fn second(&mut self, t: u64) -> Value {
        self.latencies.second(t).into()
    }

    pub(super) fn summary(&self, elapsed: Duration) -> Value {
        let Counts { hits, misses, stored, errors, first_error } = &self.counts;
        let mut summary = self.latencies.summary(elapsed);
        summary.extend(fields([
            ("hits", json!(hits)),
            ("misses", json!(misses)),
            ("stored", json!(stored)),
            ("errors", json!(errors)),
            ("first_error", json!(first_error)),
        ]));
        summary.into()
    }
}
