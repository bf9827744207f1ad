//! End of a guest, and return of its slices to the pool.

use std::time::Duration;

use manager::api::Work;

use super::settings::Refused;
use super::table::{Claim, Host, now};
use crate::capacity::is_settled;
use crate::vm::State;

impl Host {
    /// Stops a guest. Its slices are returned now, or as soon as the manager answers.
    ///
    /// # Errors
    /// There is no such guest, it is busy, or its process does not exit.
    pub fn stop(&self, name: &str, grace: Duration) -> Result<(), Refused> {
        let mut guest = self.claim(name, "stopping")?;
        guest.state = State::Stopping;
        guest.note("is being stopped");
        guest.try_save();
        if let Some(process) = guest.process {
            self.sample_touched(&mut guest, &process);
            self.driver.stop(&guest.machine, &process, grace).map_err(Refused::because)?;
        }
        self.ended(guest, None);
        Ok(())
    }

    /// Detects guests whose process has exited, and returns slices that are no longer used.
    pub(super) fn check_guests(&self) {
        for name in self.names() {
            let Ok(guest) = self.claim(&name, "being checked") else { continue };
            match (guest.state, guest.process) {
                (State::Running | State::Stopping, Some(process)) if !self.driver.is_alive(&process) => {
                    self.ended(guest, Some("its process has exited"));
                }
                (State::Ended, _) => self.ended(guest, None),
                _ if guest.assigned && guest.mapped.is_empty() => {
                    let mut guest = guest;
                    self.return_slices(&mut guest);
                }
                _ => {}
            }
        }
    }

    /// Handles the exit of a guest's process. The guest is removed once the manager has its slices back.
    pub(super) fn ended(&self, mut guest: Claim<'_>, why: Option<&str>) {
        if let Some(why) = why {
            guest.note(why);
        }
        guest.state = State::Ended;
        if guest.process.is_some() {
            // It no longer counts as running where it counts as ended.
            guest.publish();
            self.record_life(&guest);
        }
        guest.process = None;
        // For slices that were already being released, the manager waits for the report that they are offline.
        let left: Vec<_> = guest.mapped.drain(..).collect();
        if !guest.assigned {
            for slice in left {
                if let Err(error) = self.capacity.offlined(&slice) {
                    log::warn!("slice {}/{}: {error}", slice.emc, slice.index);
                }
            }
        }
        self.return_slices(&mut guest);
        if !guest.assigned {
            guest.remove();
        }
    }

    /// Returns the slices of a guest that maps none of them.
    pub(super) fn return_slices(&self, guest: &mut Claim<'_>) {
        if !guest.assigned {
            return;
        }
        match self.give_back(&guest.request.name.clone()) {
            Ok(slices) => {
                guest.assigned = false;
                if slices > 0 {
                    guest.note(format!("{slices} slices were returned to the pool"));
                }
            }
            Err(why) => log::warn!("guest {}: its slices are not returned yet: {why}", guest.request.name),
        }
        guest.try_save();
    }

    /// Returns all slices of a guest without a process, and reports them offline. Returns their number.
    pub(super) fn give_back(&self, name: &str) -> Result<usize, manager::client::Error> {
        let work = match self.capacity.give_back(&format!("end {name} {}", now()), name) {
            Err(error) if is_settled(&error) => Vec::new(),
            other => other?,
        };
        for Work { slice, .. } in &work {
            // If the report is lost, the manager asks again, and the host answers that no guest maps the slice.
            if let Err(error) = self.capacity.offlined(slice)
                && !is_settled(&error)
            {
                log::warn!("slice {}/{}: {error}", slice.emc, slice.index);
            }
        }
        Ok(work.len())
    }
}
