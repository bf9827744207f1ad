//! Prometheus metrics of a host: counts of events, and gauges from the table of guests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use units::Bytes;

use crate::events::{Event, label};
use crate::host::{Host, Line, List, ModelView};
use crate::monitor::Verdict;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    outcome: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabel {
    state: String,
}

/// Renders all metrics.
///
/// # Errors
/// Formatting failed; writing to a string does not fail in practice.
pub fn render(host: &Host) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("thermocline_pool_host");
    let counts = host.counts();
    for (event, name, help) in Event::ALL {
        let family = Family::<Outcome, Counter>::default();
        for (outcome, count) in counts.outcomes(event) {
            family.get_or_create(&Outcome { outcome }).inc_by(count);
        }
        registry.register(name, help, family);
    }
    let help = "Pauses of guests while they were moved to local memory, as the hypervisor reports them";
    registry.register_with_unit("mitigation_pause", help, Unit::Seconds, counts.pauses.clone());
    let help = "CPU time of observing guests: their memory, their accesses, with DAMON's kernel thread, and their performance counters";
    registry.register_with_unit("observation_cpu", help, Unit::Seconds, counts.observation_cpu.clone());
    register_state(&mut registry, &host.list(), host.mitigations_left());
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Registers gauges and totals of the current state.
fn register_state(registry: &mut Registry, list: &List, mitigations_left: u64) {
    let states = Family::<StateLabel, Gauge>::default();
    for guest in &list.guests {
        states.get_or_create(&StateLabel { state: label(guest.state) }).inc();
    }
    registry.register("guests", "Guests by state", states);
    let is_mispredicted = |guest: &&Line| !guest.mitigated && guest.verdict.is_some_and(Verdict::is_mispredicted);
    let mispredicted = list.guests.iter().filter(is_mispredicted).count() as u64;
    let not_visible = list.guests.iter().filter(|guest| guest.verdict == Some(Verdict::NotVisible)).count() as u64;
    let sum = |of: fn(&Line) -> Bytes| list.guests.iter().map(of).sum::<Bytes>().0;
    for (name, help, value) in [
        (
            "guests_mispredicted",
            "Guests that access more of the pool than predicted, are sensitive to latency, and are not mitigated; alert on this",
            mispredicted,
        ),
        ("guests_not_visible", "Guests that touched more of the pool than predicted, and whose accesses no instrument sees", not_visible),
        ("guests_damaged", "Guests whose state is damaged, which are not observed; alert on this", list.damaged.len() as u64),
        ("local_bytes", "Local memory for guests on this host", list.local_bytes.0),
        ("local_used_bytes", "Local memory that guests occupy", list.local_used_bytes.0),
        ("pool_bytes", "Pool memory that guests map", sum(|guest| guest.pool_bytes)),
        (
            "pool_touched_bytes",
            "Pool memory that guests had touched at the last sample",
            sum(|guest| guest.pool_touched_bytes.unwrap_or_default()),
        ),
        (
            "home_bytes",
            "Local memory in place of pool memory, of guests whose hot part was moved home; they keep the slices",
            sum(|guest| guest.home_bytes),
        ),
        ("mitigations_left", "Guests that may be mitigated within the budget", mitigations_left),
        ("manager_unavailable", "1 while the pool manager does not answer, or refuses", u64::from(list.pool_error.is_some())),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    }
    if let Some(model) = &list.model {
        register_model(registry, model);
    }
    for (name, help, value) in [
        ("guests_started", "Guests started since the host was set up, over restarts of its daemon", list.totals.started),
        (
            "guests_mitigated",
            "Guests moved to local memory since the host was set up; the budget is a share of the guests started",
            list.totals.mitigated,
        ),
    ] {
        let counter = Counter::<u64, AtomicU64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
}

fn register_model(registry: &mut Registry, model: &ModelView) {
    for (name, help, value) in [
        (
            "model_trained_until_seconds",
            "End of the training of the model of untouched memory, by the clock of requests",
            model.trained_until,
        ),
        ("model_guests", "Guests that got pool memory by this model, and have ended", model.guests.into()),
        ("model_guests_touched", "Those of them that touched it", model.guests_touched.into()),
        (
            "model_failed",
            "1 while the model is left, because more guests touched their pool memory than it was trained for; alert on this",
            model.failed.into(),
        ),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    }
}

/// Serves the metrics of `host` and returns the bound address. As [`daemon::metrics::serve`].
///
/// # Errors
/// As [`daemon::metrics::serve`].
pub fn serve(address: SocketAddr, host: Arc<Host>) -> std::io::Result<SocketAddr> {
    daemon::metrics::serve(address, move || render(&host))
}
