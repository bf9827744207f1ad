//! What an earlier run of this host has left: guests that go on, and things half done.

use std::time::Duration;

use manager::api::Assignment;

use super::{Host, Refused};
use crate::vm::State;

impl Host {
    /// Takes over every guest that is remembered. One whose start was not over is ended: nobody waits for it.
    pub(super) fn adopt(&self) -> Result<(), Refused> {
        for name in self.names() {
            let mut held = self.hold(&name, "being taken over")?;
            let found = self.driver.resume(&held.machine, held.process).map_err(Refused::because)?;
            match (held.state, found) {
                (State::Running, Some(process)) => {
                    // It was moved, and we did not live to write it down.
                    if process.generation > 1 && !held.repaired {
                        held.repaired = true;
                        held.mapped.clear();
                        self.count(|totals| totals.repaired += 1);
                    }
                    held.process = Some(process);
                    held.note(format!("taken over, as process {}", process.pid));
                    held.try_save();
                }
                (_, Some(process)) => {
                    held.note("was not to be left running, and is ended");
                    self.driver.stop(&held.machine, &process, Duration::ZERO).map_err(Refused::because)?;
                    self.forget(held);
                }
                (_, None) => {
                    held.note("its process has ended meanwhile");
                    self.forget(held);
                }
            }
        }
        Ok(())
    }

    /// Ended before there is a lease to say so under; that is caught up on later.
    fn forget(&self, mut held: super::Held<'_>) {
        held.state = State::Ended;
        held.process = None;
        // The manager is told of all of them then.
        held.assigned = true;
        held.mapped.clear();
        held.try_save();
    }

    /// After a new lease: gives back what the manager thinks guests have that are not here.
    pub(super) fn reconcile(&self, assignments: &[Assignment]) {
        for Assignment { vm, slices, .. } in assignments {
            if self.table().guests.contains_key(vm) {
                continue;
            }
            log::warn!("the manager counts {} slices as {vm}'s, who is not here: they go back", slices.len());
            if let Err(error) = self.give_back(vm) {
                log::warn!("{vm}: {error}");
            }
        }
    }
}
