//! The table of guests, and claims on them.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use predict::{Decision, Predictor};
use units::Bytes;

use super::lives::{self, Life, Lives};
use super::models::{Models, Outcome};
use super::settings::{Refused, Settings, Totals};
use super::store::{Loaded, Store};
use crate::capacity::Capacity;
use crate::counters::Perf;
use crate::driver::Driver;
use crate::events::Counts;
use crate::monitor;
use crate::vm::{Record, State};

/// What an operator does about damaged state.
pub(super) const DAMAGED: &str = "It is not observed, its slices stay assigned, and no guest is started beside it, because its \
                                  memory is not known: stop its process, then move the file to another directory";

/// One host.
pub struct Host {
    pub(super) settings: Settings,
    pub(super) driver: Box<dyn Driver>,
    pub(super) capacity: Box<dyn Capacity>,
    models: Option<Mutex<Models>>,
    /// Sampler of performance counters, and the duration of a sample.
    pub(super) perf: Option<(Perf, Duration)>,
    pub(super) store: Store,
    pub(super) counts: Counts,
    /// Guests that have ended. Locks are taken in this order: `lives`, `models`, `table`.
    lives: Mutex<Lives>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) guests: BTreeMap<String, Guest>,
    pub(super) totals: Totals,
    /// Guests whose state is damaged, and why. They run on, unobserved, and keep their slices.
    pub(super) damaged: BTreeMap<String, String>,
    /// The pool manager's last error; `None` if its last answer was a success.
    pub(super) pool_error: Option<String>,
}

#[derive(Debug)]
pub(super) struct Guest {
    pub(super) record: Record,
    /// The operation that has claimed the guest.
    pub(super) busy: Option<&'static str>,
}

impl Table {
    /// Local memory that guests occupy.
    pub(super) fn local_used(&self) -> Bytes {
        self.guests.values().map(|guest| guest.record.local_bytes()).sum()
    }
}

impl Host {
    /// A host with the guests in its store; [`Host::adopt`] takes them over.
    pub(super) fn with_store(
        settings: Settings,
        driver: Box<dyn Driver>,
        capacity: Box<dyn Capacity>,
        mut models: Option<Models>,
        store: Store,
    ) -> Result<Self, Refused> {
        let Loaded { records, totals, damaged } = store.load()?;
        for (name, why) in &damaged {
            log::error!("guest {name}: {why}. {DAMAGED}");
        }
        let mut lives = Lives::load(store.directory(), &settings, models.as_mut())?;
        if let Some(models) = &models {
            lives.add_running(&records, models.predictor());
        }
        let guests = records.into_iter().map(|record| (record.request.name.clone(), Guest { record, busy: None })).collect();
        let table = Mutex::new(Table { guests, totals, damaged, pool_error: None });
        let (models, lives) = (models.map(Mutex::new), Mutex::new(lives));
        let host = Self { settings, driver, capacity, models, perf: None, store, counts: Counts::default(), lives, table };
        host.judge_model();
        Ok(host)
    }

    /// Adds sampling of performance counters, for `time` per sample: once of each guest that has run for long enough, and of those
    /// that access more of the pool than predicted. While there is no latency model there is no sampling.
    #[must_use]
    pub fn with_counters(mut self, perf: Perf, time: Duration) -> Self {
        self.perf = Some((perf, time));
        self
    }

    pub(super) fn models(&self) -> Option<MutexGuard<'_, Models>> {
        self.models.as_ref().map(|models| models.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The models that predict; `None` if none are configured.
    pub(super) fn predictor(&self) -> Option<Arc<Predictor>> {
        Some(Arc::clone(self.models()?.predictor()))
    }

    /// Reads the models again if their files have changed, and all that rests on them.
    pub fn refresh_models(&self) {
        let mut lives = self.lives();
        let Some(mut models) = self.models() else { return };
        let (replaced, errors) = models.refresh();
        for error in errors {
            log::error!("{error}; a model that was read before stays in use, without one guests get no pool memory by it");
        }
        if !replaced {
            return;
        }
        let records: Vec<Record> = self.table().guests.values().map(|guest| guest.record.clone()).collect();
        match Lives::load(self.store.directory(), &self.settings, Some(&mut models)) {
            Ok(mut read) => {
                read.add_running(&records, models.predictor());
                *lives = read;
            }
            Err(error) => log::error!("{error}"),
        }
        let until = models.predictor().untouched().map(predict::Untouched::trained_until);
        match until {
            Some(until) => log::info!("the models were replaced; training of the one of untouched memory ended at {until} s"),
            None => log::info!("the models were replaced; there is none of untouched memory, and guests get no pool memory by it"),
        }
    }

    /// Judges the model of untouched memory by the guests that it gave pool memory.
    pub(super) fn judge_model(&self) {
        let Some(mut models) = self.models() else { return };
        let (id, now) = (models.id(), now());
        let mut running = Outcome::default();
        for Guest { record, .. } in self.table().guests.values() {
            let ran = record.state == State::Running && lives::has_run(record, self.settings.least_life, now);
            let touched = lives::touched_pool(self.settings.monitor.touched, record.machine.pool_bytes(), record.pool_touched_bytes);
            if let Some(touched) = touched.filter(|_| ran && record.model.is_some() && record.model == id) {
                running.add(touched);
            }
        }
        if let Some((Outcome { guests, touched }, target)) = models.judge(running) {
            log::error!(
                "the model of untouched memory fails: {touched} of {guests} guests touched the pool memory that it gave them, where {target} \
                 may; until there is another model, guests get no pool memory by it"
            );
        }
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What guests have left behind.
    pub(super) fn lives(&self) -> MutexGuard<'_, Lives> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a guest that ends now to the history and the file of lives.
    pub(super) fn record_life(&self, record: &Record) {
        let Some(life) = Life::of(&self.settings.name, record, now()) else { return };
        // Until both have it, the models are not read again, which counts the file's lives.
        let mut lives = self.lives();
        if let Err(error) = lives.add(&life) {
            log::error!("guest {}: {error}", record.request.name);
        }
        if let (Some((model, touched)), Some(mut models)) = (life.outcome(self.settings.tolerated()), self.models()) {
            models.add(model, touched);
        }
        drop(lives);
    }

    /// Predicts for a request, with the history of its customer and the counters of its workload on this host, unless it has these
    /// itself.
    pub(super) fn predict(&self, predictor: &Predictor, request: &predict::Request) -> Decision {
        let lives = self.lives();
        let recent = |customer| lives.recent(customer, request.arrival);
        let history = request.history.clone().or_else(|| request.customer.map(recent));
        let vm = predict::Request { history, ..request.clone() };
        if vm.counters.is_some() || !predictor.has_latency_model() {
            return predictor.decide(&vm);
        }
        predictor.decide_for(&vm, lives.latency(&vm))
    }

    /// Claims a guest for an operation.
    pub(super) fn claim(&self, name: &str, operation: &'static str) -> Result<Claim<'_>, Refused> {
        let mut table = self.table();
        let Some(guest) = table.guests.get_mut(name) else {
            let known: Vec<_> = table.guests.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Refused(format!("there is no guest {name}; guests of this host: {known}")));
        };
        if let Some(busy) = guest.busy {
            return Err(Refused(format!("guest {name} is busy {busy}; try again in a moment")));
        }
        guest.busy = Some(operation);
        let record = guest.record.clone();
        drop(table);
        Ok(Claim { host: self, record, removed: false })
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// How many more guests may be mitigated.
    pub(crate) fn mitigations_left(&self) -> u64 {
        let totals = self.table().totals;
        monitor::mitigations_left(&self.settings.monitor, totals.started, totals.mitigated)
    }

    /// Guests with damaged state; those whose file is gone were handled.
    pub(super) fn damaged(&self) -> BTreeMap<String, String> {
        let mut table = self.table();
        table.damaged.retain(|name, _| self.store.has(name));
        table.damaged.clone()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.table().guests.keys().cloned().collect()
    }

    /// Changes the totals and saves them.
    pub(super) fn update_totals(&self, change: impl FnOnce(&mut Totals)) {
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

/// A guest that an operation has claimed, until this is dropped.
pub(super) struct Claim<'a> {
    pub(super) host: &'a Host,
    pub(super) record: Record,
    pub(super) removed: bool,
}

impl Claim<'_> {
    /// Saves and publishes the record.
    pub(super) fn save(&mut self) -> Result<(), Refused> {
        self.host.store.save(&self.record)?;
        self.publish();
        Ok(())
    }

    /// As [`Claim::save`]; an error is logged, and the record is published all the same.
    pub(super) fn try_save(&mut self) {
        if let Err(error) = self.save() {
            log::error!("guest {}: {error}", self.record.request.name);
            self.publish();
        }
    }

    /// Copies the record into the table.
    pub(super) fn publish(&self) {
        if let Some(guest) = self.host.table().guests.get_mut(&self.record.request.name) {
            guest.record = self.record.clone();
        }
    }

    /// Records an event now.
    pub(super) fn note(&mut self, what: impl Into<String>) {
        self.record.note(now(), what);
    }

    /// Removes the guest from the table and the store.
    pub(super) fn remove(mut self) {
        if let Err(error) = self.host.store.remove(&self.record.request.name) {
            log::error!("{error}");
        }
        self.removed = true;
    }
}

impl Deref for Claim<'_> {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

impl DerefMut for Claim<'_> {
    fn deref_mut(&mut self) -> &mut Record {
        &mut self.record
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut table = self.host.table();
        if self.removed {
            table.guests.remove(&self.record.request.name);
        } else if let Some(guest) = table.guests.get_mut(&self.record.request.name) {
            guest.busy = None;
        }
    }
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
