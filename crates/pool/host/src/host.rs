//! The daemon of one host.
//!
//! Guests are kept in a table under one lock that is held for moments only. Whoever does something to a guest takes it out of
//! the others' hands first ([`Held`]): one thing at a time happens to a guest, and nothing waits for a guest that is busy.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use predict::Predictor;
use serde::{Deserialize, Serialize};

use crate::capacity::Capacity;
use crate::counters::Perf;
use crate::driver::Driver;
use crate::metrics::Counts;
use crate::vm::Record;
use crate::{monitor, room};

mod adopt;
mod end;
mod release;
mod run;
mod start;
mod store;
mod view;
mod watch;

pub use run::run;
pub use store::Store;
pub use view::{Line, List};

/// Guests of one host.
const GUESTS_MAX: usize = 1024;

/// How a host is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Its name, as the manager knows it.
    pub name: String,
    /// Memory that guests may have on this host beside the pool's.
    pub local_bytes: u64,
    /// What stays local of every guest's memory.
    pub least_local_bytes: u64,
    /// How often guests are looked at.
    pub period: Duration,
    /// How wrong a prediction may be, and how much is repaired.
    pub monitor: monitor::Settings,
    /// Between two repairs.
    pub rest: Duration,
    /// How long a repair may take.
    pub repair_within: Duration,
    /// What a guest must have left when it is to do without its slices.
    pub margin: room::Margin,
    /// How long a guest may take over one slice before that counts as failed.
    pub release_within: Duration,
}

/// What this host has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Guests started.
    pub started: u64,
    /// Guests moved to local memory.
    pub repaired: u64,
    /// When the last one was, in seconds of Unix time.
    pub last_repair: Option<f64>,
}

/// Why a request is not followed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

impl Refused {
    fn because(why: impl std::fmt::Display) -> Self {
        Self(why.to_string())
    }
}

/// One host.
pub struct Host {
    settings: Settings,
    driver: Box<dyn Driver>,
    capacity: Box<dyn Capacity>,
    predictor: Option<Predictor>,
    /// What counts, and for how long at a time.
    perf: Option<(Perf, Duration)>,
    store: Store,
    counts: Counts,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    guests: BTreeMap<String, Guest>,
    totals: Totals,
    /// What the manager said last; none while all is well.
    trouble: Option<String>,
}

#[derive(Debug)]
struct Guest {
    record: Record,
    /// What is being done to it.
    busy: Option<&'static str>,
}

impl Table {
    /// Local memory that guests hold.
    fn local_bytes(&self) -> u64 {
        self.guests.values().map(|guest| guest.record.local_bytes()).sum()
    }
}

impl Host {
    /// A host, with the guests that an earlier run of it has left.
    ///
    /// # Errors
    /// When its state cannot be read.
    pub fn new(
        settings: Settings,
        driver: Box<dyn Driver>,
        capacity: Box<dyn Capacity>,
        predictor: Option<Predictor>,
        store: Store,
    ) -> Result<Self, Refused> {
        let (records, totals) = store.load()?;
        let guests = records.into_iter().map(|record| (record.request.name.clone(), Guest { record, busy: None })).collect();
        let table = Mutex::new(Table { guests, totals, trouble: None });
        let host = Self { settings, driver, capacity, predictor, perf: None, store, counts: Counts::default(), table };
        host.adopt()?;
        Ok(host)
    }

    /// The same, which judges guests by the processor's counters too, where there is a model for that. Those of a guest that
    /// accesses more of the pool than it should are looked at for `time`.
    #[must_use]
    pub fn with_counters(mut self, perf: Perf, time: Duration) -> Self {
        self.perf = self.predictor.as_ref().is_some_and(Predictor::has_latency_model).then_some((perf, time));
        self
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a guest, to do something to it.
    fn hold(&self, name: &str, doing: &'static str) -> Result<Held<'_>, Refused> {
        let mut table = self.table();
        let Some(guest) = table.guests.get_mut(name) else {
            let known: Vec<_> = table.guests.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Refused(format!("no guest is named {name}; there are: {known}")));
        };
        if let Some(busy) = guest.busy {
            return Err(Refused(format!("guest {name} is busy {busy}; try again in a moment")));
        }
        guest.busy = Some(doing);
        let record = guest.record.clone();
        drop(table);
        Ok(Held { host: self, record, removed: false })
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Guests that may still be repaired, of those that were started.
    pub(crate) fn repairs_left(&self) -> u64 {
        let totals = self.table().totals;
        monitor::repairs_left(&self.settings.monitor, totals.started, totals.repaired)
    }

    fn names(&self) -> Vec<String> {
        self.table().guests.keys().cloned().collect()
    }

    /// Changes what the host has seen, and writes it down.
    fn count(&self, change: impl FnOnce(&mut Totals)) {
        let totals = {
            let mut table = self.table();
            change(&mut table.totals);
            table.totals
        };
        if let Err(error) = self.store.save_totals(&totals) {
            log::error!("{error}");
        }
    }
}

/// A guest in our hands alone, until this is dropped.
struct Held<'a> {
    host: &'a Host,
    record: Record,
    removed: bool,
}

impl Held<'_> {
    /// Writes down what is known of it, and shows it.
    fn save(&mut self) -> Result<(), Refused> {
        self.host.store.save(&self.record)?;
        self.show();
        Ok(())
    }

    /// As [`Held::save`], where there is nothing else to be done if the disk will not: what is shown is right.
    fn try_save(&mut self) {
        if let Err(error) = self.save() {
            log::error!("guest {}: {error}", self.record.request.name);
            self.show();
        }
    }

    fn show(&self) {
        if let Some(guest) = self.host.table().guests.get_mut(&self.record.request.name) {
            guest.record = self.record.clone();
        }
    }

    fn note(&mut self, what: impl Into<String>) {
        self.record.note(now(), what);
    }

    /// Forgets it.
    fn remove(mut self) {
        if let Err(error) = self.host.store.remove(&self.record.request.name) {
            log::error!("{error}");
        }
        self.removed = true;
    }
}

impl Deref for Held<'_> {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Record {
        &mut self.record
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut table = self.host.table();
        if self.removed {
            table.guests.remove(&self.record.request.name);
        } else if let Some(guest) = table.guests.get_mut(&self.record.request.name) {
            guest.busy = None;
        }
    }
}

/// Seconds of Unix time.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests;
