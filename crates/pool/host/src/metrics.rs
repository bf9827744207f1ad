//! Prometheus metrics of a host: what has happened, counted here, and what is, from the table of guests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;

use crate::host::{Host, List};
use crate::monitor::Verdict;

/// Something that is counted by how it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A guest was to start.
    Start,
    /// The monitor has judged a guest.
    Verdict,
    /// The processor's counters of a guest were asked for.
    Counters,
    /// A guest was to be moved to local memory.
    Repair,
    /// A guest was asked for all of its pool memory.
    Release,
    /// A slice was to go offline in a guest.
    Offline,
}

impl Event {
    const ALL: [(Self, &'static str, &'static str); 6] = [
        (Self::Start, "starts", "Guests that were to start, by outcome"),
        (Self::Verdict, "verdicts", "What the monitor said at each look at each guest"),
        (Self::Counters, "counters", "Looks at the processor's counters of guests that access the pool, by what the model said"),
        (Self::Repair, "repairs", "Moves of guests to local memory, by outcome"),
        (Self::Release, "releases", "Guests asked for all of their pool memory, by outcome; no_room: refused before the guest heard of it"),
        (Self::Offline, "slices_offlined", "Slices that were to be taken from running guests, by outcome"),
    ];
}

/// What has happened since the process began.
#[derive(Debug)]
pub(crate) struct Counts {
    events: Mutex<BTreeMap<(Event, String), u64>>,
    pauses: Histogram,
}

impl Default for Counts {
    fn default() -> Self {
        Self { events: Mutex::default(), pauses: Histogram::new([0.005, 0.02, 0.05, 0.1, 0.3, 1.0, 3.0]) }
    }
}

impl Counts {
    /// Counts an event that went some way.
    pub(crate) fn count(&self, event: Event, outcome: impl Into<String>) {
        *self.events.lock().unwrap_or_else(PoisonError::into_inner).entry((event, outcome.into())).or_default() += 1;
    }

    /// A guest stood still for so long while it was moved.
    pub(crate) fn paused(&self, seconds: f64) {
        self.pauses.observe(seconds);
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    outcome: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabel {
    state: String,
}

/// The word by which a value is known on the wire.
pub(crate) fn word(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// The text of one scrape.
///
/// # Errors
/// None in practice: writing to a string does not fail.
pub fn render(host: &Host) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("thermocline_pool_host");
    let counts = host.counts();
    for (event, name, help) in Event::ALL {
        let family = Family::<Outcome, Counter>::default();
        for ((of, outcome), &count) in counts.events.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if *of == event {
                family.get_or_create(&Outcome { outcome: outcome.clone() }).inc_by(count);
            }
        }
        registry.register(name, help, family);
    }
    let help = "How long guests stood still while they were moved, by the hypervisor's word";
    registry.register_with_unit("repair_pause", help, Unit::Seconds, counts.pauses.clone());
    present(&mut registry, &host.list(), host.repairs_left());
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// What is.
fn present(registry: &mut Registry, list: &List, repairs_left: u64) {
    let states = Family::<StateLabel, Gauge>::default();
    for guest in &list.guests {
        states.get_or_create(&StateLabel { state: word(guest.state) }).inc();
    }
    registry.register("guests", "Guests by what they do", states);
    let suffering = list.guests.iter().filter(|guest| !guest.repaired && guest.verdict.is_some_and(Verdict::suffers)).count() as u64;
    let sum = |of: fn(&crate::host::Line) -> u64| list.guests.iter().map(of).fold(0, u64::saturating_add);
    for (name, help, value) in [
        ("guests_suffering", "Guests that were predicted wrong, access the pool for that, and are not repaired; alarm on this", suffering),
        ("local_bytes", "Memory that guests may have on this host, beside the pool's", list.local_bytes),
        ("local_used_bytes", "Of that, what guests hold", list.local_used_bytes),
        ("pool_bytes", "Memory of the pool that guests map", sum(|guest| guest.pool_bytes)),
        ("pool_touched_bytes", "Of that, what they had touched at the last look", sum(|guest| guest.pool_touched_bytes.unwrap_or(0))),
        ("repairs_left", "Guests that may be repaired before the budget is spent", repairs_left),
        ("manager_in_trouble", "1 while the pool's manager does not answer, or refuses", u64::from(list.trouble.is_some())),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    }
    for (name, help, value) in [
        ("guests_started", "Guests started in the life of this host, over restarts of its daemon", list.totals.started),
        ("guests_repaired", "Guests moved to local memory in the life of this host; the budget is of those started", list.totals.repaired),
    ] {
        let counter = Counter::<u64, AtomicU64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
}

/// Serves the metrics of `host` and returns the bound address. As [`daemon::metrics::serve`].
///
/// # Errors
/// As [`daemon::metrics::serve`].
pub fn serve(address: SocketAddr, host: Arc<Host>) -> std::io::Result<SocketAddr> {
    daemon::metrics::serve(address, move || render(&host))
}
