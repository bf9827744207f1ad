//! Prometheus metrics: what has happened, counted here, and what is, from the published book.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::api::{Code, PoolStatus, Refused};
use crate::book::Ask;
use crate::writer::Followed;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    request: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabels {
    emc: u16,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HostLabels {
    host: String,
}

type SecondsGauge = Gauge<f64, AtomicU64>;

/// What has happened since the process began.
#[derive(Debug)]
pub struct Metrics {
    requests: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    commits: AtomicU64,
    failed: AtomicU64,
    changes: AtomicU64,
    seconds: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        let bounds = [0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 1.0];
        Self {
            requests: Mutex::default(),
            commits: AtomicU64::default(),
            failed: AtomicU64::default(),
            changes: AtomicU64::default(),
            seconds: Histogram::new(bounds),
        }
    }
}

impl Metrics {
    pub(crate) fn committed(&self, requests: usize, took: Duration) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.changes.fetch_add(requests as u64, Ordering::Relaxed);
        self.seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn commit_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self, ask: &Ask, followed: &Followed) {
        let outcome = match followed {
            Ok(_) => "ok",
            Err(Refused { error, .. }) => word(*error),
        };
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((ask.word(), outcome)).or_default() += 1;
    }

    /// The text of one scrape.
    ///
    /// # Errors
    /// None in practice: writing to a string does not fail.
    pub fn render(&self, status: &PoolStatus) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("thermocline_pool");
        let requests = Family::<RequestLabels, Counter>::default();
        for (&(request, outcome), &count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            requests.get_or_create(&RequestLabels { request, outcome }).inc_by(count);
        }
        registry.register("requests", "Requests that were answered", requests);
        for (name, help, count) in [
            ("ledger_commits", "Transactions that are on the disk", &self.commits),
            ("ledger_commits_failed", "Transactions that could not be written", &self.failed),
            ("ledger_requests", "Requests in those transactions", &self.changes),
        ] {
            let counter = Counter::<u64>::default();
            counter.inc_by(count.load(Ordering::Relaxed));
            registry.register(name, help, counter);
        }
        registry.register_with_unit("ledger_commit", "How long a transaction took, its sync included", Unit::Seconds, self.seconds.clone());
        present(&mut registry, status);
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// What is.
fn present(registry: &mut Registry, status: &PoolStatus) {
    let slices = Family::<StateLabels, Gauge>::default();
    for of in &status.emcs {
        let counts = of.slices;
        for (state, count) in [
            ("free", counts.free),
            ("online", counts.online),
            ("offlining", counts.offlining),
            ("stuck", counts.stuck),
            ("scrubbing", counts.scrubbing),
            ("failed", counts.failed),
        ] {
            slices.get_or_create(&StateLabels { emc: of.emc, state }).set(i64::from(count));
        }
    }
    registry.register("slices", "Slices by state", slices);
    let stuck = SecondsGauge::default();
    stuck.set(status.stuck.iter().map(|slice| slice.since_seconds).fold(0.0, f64::max));
    registry.register_with_unit(
        "stuck_longest",
        "How long the longest stuck slice has been on its way back; alarm on this",
        Unit::Seconds,
        stuck,
    );
    for (name, help, value) in [
        ("grantable_slices", "The most that one VM could be given now", i64::from(status.grantable)),
        ("stuck_slices", "Slices that do not come back", i64::try_from(status.stuck.len()).unwrap_or(i64::MAX)),
        ("ledger_in_trouble", "1 while the ledger cannot be written and nothing changes hands", i64::from(status.trouble.is_some())),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    }
    let (left, of) = (Family::<HostLabels, SecondsGauge>::default(), Family::<HostLabels, Gauge>::default());
    for host in &status.hosts {
        let labels = HostLabels { host: host.host.clone() };
        left.get_or_create(&labels).set(host.lease_left_seconds.unwrap_or(0.0));
        of.get_or_create(&labels).set(i64::from(host.slices));
    }
    registry.register_with_unit("host_lease_left", "How long each host's lease lasts still; 0 without one", Unit::Seconds, left);
    registry.register("host_slices", "Slices that each host may access", of);
}

/// A refusal's code, as it is on the wire.
fn word(code: Code) -> &'static str {
    match code {
        Code::BadRequest => "bad_request",
        Code::Forbidden => "forbidden",
        Code::NotFound => "not_found",
        Code::MethodNotAllowed => "method_not_allowed",
        Code::Fenced => "fenced",
        Code::Stale => "stale",
        Code::Conflict => "conflict",
        Code::Over => "over",
        Code::TooLong => "too_long",
        Code::Busy => "busy",
        Code::Ledger => "ledger",
        Code::Short => "short",
        Code::LedgerFull => "ledger_full",
    }
}
