//! Prometheus metrics: counts of requests and transactions, and gauges from the published ledger.

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

use crate::api::{Code, ErrorResponse, GroupStatus, PoolStatus};
use crate::ledger::{Outcome, Request};

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

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MemberLabels {
    member: u64,
}

type SecondsGauge = Gauge<f64, AtomicU64>;

/// Counts since the process started.
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

    pub(crate) fn answered(&self, request: &Request, outcome: &Outcome) {
        let outcome = match outcome {
            Ok(_) => "ok",
            Err(ErrorResponse { error, .. }) => label(*error),
        };
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((request.label(), outcome)).or_default() += 1;
    }

    /// Renders all metrics.
    ///
    /// # Errors
    /// Formatting failed; writing to a string does not fail in practice.
    pub fn render(&self, status: &PoolStatus) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("thermocline_pool");
        let requests = Family::<RequestLabels, Counter>::default();
        for (&(request, outcome), &count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            requests.get_or_create(&RequestLabels { request, outcome }).inc_by(count);
        }
        registry.register("requests", "Requests by outcome", requests);
        for (name, help, count) in [
            ("ledger_commits", "Transactions written to disk", &self.commits),
            ("ledger_commits_failed", "Transactions that could not be written", &self.failed),
            ("ledger_requests", "Requests in the written transactions", &self.changes),
        ] {
            let counter = Counter::<u64>::default();
            counter.inc_by(count.load(Ordering::Relaxed));
            registry.register(name, help, counter);
        }
        registry.register_with_unit("ledger_commit", "Duration of a transaction, including its sync", Unit::Seconds, self.seconds.clone());
        register_state(&mut registry, status);
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// Registers gauges of the current state.
fn register_state(registry: &mut Registry, status: &PoolStatus) {
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
        "Time since the return of the slice that is overdue the longest; alert on this",
        Unit::Seconds,
        stuck,
    );
    for (name, help, value) in [
        ("grantable_slices", "Most slices that one VM could be assigned now", i64::from(status.grantable.0)),
        ("stuck_slices", "Slices that are overdue", i64::try_from(status.stuck.len()).unwrap_or(i64::MAX)),
        (
            "ledger_unavailable",
            "1 while the ledger cannot be written and no slice changes its owner",
            i64::from(status.ledger_error.is_some()),
        ),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    }
    if let Some(group) = &status.group {
        register_group(registry, group);
    }
    let (left, of) = (Family::<HostLabels, SecondsGauge>::default(), Family::<HostLabels, Gauge>::default());
    for host in &status.hosts {
        let labels = HostLabels { host: host.host.clone() };
        left.get_or_create(&labels).set(host.lease_left_seconds.unwrap_or(0.0));
        of.get_or_create(&labels).set(i64::from(host.slices.0));
    }
    registry.register_with_unit("host_lease_left", "Time until the host's lease expires; 0 without a lease", Unit::Seconds, left);
    registry.register("host_slices", "Slices that the host may access", of);
}

/// Registers gauges of a group of managers, as this member knows it.
fn register_group(registry: &mut Registry, group: &GroupStatus) {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let leads = group.leader == Some(group.member);
    for (name, help, value) in [
        ("group_leader", "1 while this member of the group leads", i64::from(leads)),
        ("group_leader_known", "1 while this member knows a leader", i64::from(group.leader.is_some())),
        ("group_term", "Term of the group's leader, or of the last election", number(group.term)),
        ("group_applied_entry", "Number of the last entry that this member's ledger has", number(group.applied_entry)),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    }
    let changes = Counter::<u64>::default();
    changes.inc_by(group.leader_changes);
    registry.register("group_leader_changes", "Elections that gave the group another leader, since this member started", changes);
    let lag = Family::<MemberLabels, Gauge>::default();
    for of in &group.members {
        if let Some(entries) = of.lag_entries {
            lag.get_or_create(&MemberLabels { member: of.member }).set(number(entries));
        }
    }
    registry.register("group_lag_entries", "Entries that the leader has and the member lacks; only from the leader", lag);
}

/// The JSON name of an error code.
fn label(code: Code) -> &'static str {
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
        Code::NotLeader => "not_leader",
        Code::Ledger => "ledger",
        Code::Short => "short",
        Code::LedgerFull => "ledger_full",
    }
}
