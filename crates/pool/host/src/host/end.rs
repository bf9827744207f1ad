//! How guests end, and what they had goes back.

use std::time::Duration;

use manager::api::Work;

use super::{Held, Host, Refused, now};
use crate::capacity::is_settled;
use crate::vm::State;

impl Host {
    /// Ends a guest. Its slices go back at once, or as soon as the manager answers.
    ///
    /// # Errors
    /// When there is none of that name, or it is busy, or does not end.
    pub fn stop(&self, name: &str, grace: Duration) -> Result<(), Refused> {
        let mut held = self.hold(name, "stopping")?;
        held.state = State::Stopping;
        held.note("is to stop");
        held.try_save();
        if let Some(process) = held.process {
            self.driver.stop(&held.machine, &process, grace).map_err(Refused::because)?;
        }
        self.ended(held, None);
        Ok(())
    }

    /// Notices guests whose process has ended by itself, and gives back what is no longer used.
    pub(super) fn look_after(&self) {
        for name in self.names() {
            let Ok(held) = self.hold(&name, "being looked after") else { continue };
            match (held.state, held.process) {
                (State::Running | State::Stopping, Some(process)) if !self.driver.is_alive(&process) => {
                    self.ended(held, Some("its process has ended"));
                }
                (State::Ended, _) => self.ended(held, None),
                _ if held.assigned && held.mapped.is_empty() => {
                    let mut held = held;
                    self.settle(&mut held);
                }
                _ => {}
            }
        }
    }

    /// A guest has no process any more. It is forgotten once the pool knows.
    pub(super) fn ended(&self, mut held: Held<'_>, why: Option<&str>) {
        if let Some(why) = why {
            held.note(why);
        }
        held.state = State::Ended;
        held.process = None;
        // Slices that were being released already: the manager knows, and waits for our word.
        let left: Vec<_> = held.mapped.drain(..).collect();
        if !held.assigned {
            for slice in left {
                if let Err(error) = self.capacity.offlined(&slice) {
                    log::warn!("slice {}/{}: {error}", slice.emc, slice.index);
                }
            }
        }
        self.settle(&mut held);
        if !held.assigned {
            held.remove();
        }
    }

    /// Gives back the slices of a guest that maps none of them any more.
    pub(super) fn settle(&self, held: &mut Held<'_>) {
        if !held.assigned {
            return;
        }
        match self.give_back(&held.request.name.clone()) {
            Ok(slices) => {
                held.assigned = false;
                if slices > 0 {
                    held.note(format!("{slices} slices went back to the pool"));
                }
            }
            Err(why) => log::warn!("guest {}: its slices are not given back yet: {why}", held.request.name),
        }
        held.try_save();
    }

    /// Gives back what a guest without a process has; how many slices that were.
    pub(super) fn give_back(&self, name: &str) -> Result<usize, manager::client::Error> {
        let work = match self.capacity.give_back(&format!("end {name} {}", now()), name) {
            Err(error) if is_settled(&error) => Vec::new(),
            other => other?,
        };
        for Work { slice, .. } in &work {
            // What is not heard now is asked for again: nobody maps it.
            if let Err(error) = self.capacity.offlined(slice)
                && !is_settled(&error)
            {
                log::warn!("slice {}/{}: {error}", slice.emc, slice.index);
            }
        }
        Ok(work.len())
    }
}
