//! Adoption of the guests of an earlier daemon, and of operations that it left unfinished.

use std::time::Duration;

use manager::api::Assignment;

use super::models::Models;
use super::settings::{Refused, Settings};
use super::store::Store;
use super::table::{Claim, Host};
use crate::capacity::Capacity;
use crate::driver::Driver;
use crate::vm::State;

impl Host {
    /// A host, with the guests of its earlier daemons.
    ///
    /// # Errors
    /// The store cannot be read, or a guest cannot be adopted.
    pub fn new(
        settings: Settings,
        driver: Box<dyn Driver>,
        capacity: Box<dyn Capacity>,
        models: Option<Models>,
        store: Store,
    ) -> Result<Self, Refused> {
        let host = Self::with_store(settings, driver, capacity, models, store)?;
        host.adopt()?;
        Ok(host)
    }

    /// Adopts every guest in the store. A guest whose start was not complete is stopped: its requester has received no
    /// answer.
    fn adopt(&self) -> Result<(), Refused> {
        let known: Vec<_> = self.table().guests.values().filter_map(|guest| guest.record.process).collect();
        if let Err(error) = self.driver.end_samples(&known) {
            log::warn!("a sample of an earlier daemon may still run: {error}");
        }
        for name in self.names() {
            let mut guest = self.claim(&name, "being adopted")?;
            let found = self.driver.resume(&guest.machine, guest.process).map_err(Refused::because)?;
            match (guest.state, found) {
                (State::Running, Some(process)) => {
                    // The earlier daemon exited after the move and before it saved the result.
                    if process.generation > 1 && !guest.mitigated {
                        guest.mitigated = true;
                        guest.mapped.clear();
                        self.update_totals(|totals| totals.mitigated += 1);
                    }
                    guest.process = Some(process);
                    guest.note(format!("adopted as process {}", process.pid));
                    guest.try_save();
                }
                (_, Some(process)) => {
                    guest.note("was being started or stopped, and is stopped");
                    self.driver.stop(&guest.machine, &process, Duration::ZERO).map_err(Refused::because)?;
                    self.defer_end(guest);
                }
                (_, None) => {
                    guest.note("its process has exited in the meantime");
                    self.defer_end(guest);
                }
            }
        }
        Ok(())
    }

    /// After a new lease: returns slices that the manager assigns to guests that this host does not have.
    pub(super) fn reconcile(&self, assignments: &[Assignment]) {
        let damaged = self.damaged();
        for Assignment { vm, slices, .. } in assignments {
            if self.table().guests.contains_key(vm) || damaged.contains_key(vm) {
                continue;
            }
            log::warn!("the manager assigns {} slices to {vm}, which this host does not have: returning them", slices.len());
            if let Err(error) = self.give_back(vm) {
                log::warn!("{vm}: {error}");
            }
        }
    }

    /// Marks a guest as ended. Its slices are returned later, when there is a lease under which the manager accepts them.
    fn defer_end(&self, mut guest: Claim<'_>) {
        if guest.process.is_some() {
            self.record_life(&guest);
        }
        guest.state = State::Ended;
        guest.process = None;
        // All of its slices are returned then, also those that were being released.
        guest.assigned = true;
        guest.mapped.clear();
        guest.try_save();
    }
}
