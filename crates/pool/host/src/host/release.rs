//! Taking pool memory away from a guest that runs: only where it has the room, slice by slice, and told to the manager.

use manager::api::{Slice, Work};

use super::{Held, Host, Refused, now};
use crate::capacity::is_settled;
use crate::driver::Offline;
use crate::metrics::Event;
use crate::room::{self, By, Room};
use crate::vm::{Record, State};

impl Host {
    /// Takes back all pool memory of a running guest.
    ///
    /// # Errors
    /// When the guest has no room for what it uses: nothing was asked of it then. Or when it has not given all; that is tried
    /// again when the manager asks.
    pub fn release(&self, name: &str) -> Result<Record, Refused> {
        let mut held = self.hold(name, "giving up slices")?;
        if held.state != State::Running || held.mapped.is_empty() {
            return Err(Refused(format!("guest {name} has no pool memory to give back")));
        }
        self.must_have_room(&mut held).inspect_err(|_| self.counts.count(Event::Release, "no_room"))?;
        if held.assigned {
            self.capacity.give_back(&format!("release {name} {}", now()), name).map_err(Refused::because)?;
            held.assigned = false;
            held.note("is to give back its slices");
            held.save()?;
        }
        let mut kept = Vec::new();
        for slice in held.mapped.clone() {
            if let Err(why) = self.offline(&mut held, &slice) {
                kept.push(why.0);
            }
        }
        self.counts.count(Event::Release, if kept.is_empty() { "ok" } else { "kept" });
        match kept.is_empty() {
            true => Ok(held.record.clone()),
            false => Err(Refused(format!("guest {name} has kept slices, and will be asked again: {}", kept.join("; ")))),
        }
    }

    /// Follows what the manager wants back.
    pub(super) fn follow(&self, work: Vec<Work>) {
        for Work { slice, .. } in work {
            let owner = {
                let table = self.table();
                let maps = |record: &Record| record.mapped.iter().any(|mapped| (mapped.emc, mapped.index) == (slice.emc, slice.index));
                table.guests.iter().find(|(_, guest)| maps(&guest.record)).map(|(name, _)| name.clone())
            };
            let done = match owner {
                // Busy with that very thing, most of the time; and it is asked for again.
                Some(name) if self.table().guests.get(&name).is_some_and(|guest| guest.busy.is_some()) => Ok(()),
                Some(name) => self.hold(&name, "giving up slices").and_then(|mut held| {
                    if held.assigned {
                        // The manager has lost patience with a guest that is still to have it: the guest's end settles that.
                        return Ok(());
                    }
                    match self.must_have_room(&mut held) {
                        Ok(()) => self.offline(&mut held, &slice),
                        Err(why) => {
                            self.tell_failed(&slice, &why.0);
                            Err(why)
                        }
                    }
                }),
                None => self.tell_offlined(&slice),
            };
            if let Err(why) = done {
                log::warn!("slice {}/{}: {why}", slice.emc, slice.index);
            }
        }
    }

    /// Whether the guest could do without all that it still has of the pool.
    fn must_have_room(&self, held: &mut Held<'_>) -> Result<(), Refused> {
        let Some(process) = held.process else { return Ok(()) };
        let inside = self.driver.inside(&held.machine, &process).unwrap_or_else(|error| {
            log::warn!("guest {}: {error}", held.request.name);
            None
        });
        let usage = self.driver.usage(&held.machine, &process).map_err(Refused::because)?;
        let room = room::room(held.machine.local_bytes, held.pool_bytes(), &usage, inside, self.settings.margin);
        held.room = Some(room);
        let enough = room.is_enough();
        if !enough {
            let why = in_words(&held.request.name, &room);
            held.note(format!("keeps its slices: {why}"));
            held.try_save();
            return Err(Refused(why));
        }
        held.try_save();
        Ok(())
    }

    /// Takes one slice away, and tells the manager how that went.
    fn offline(&self, held: &mut Held<'_>, slice: &Slice) -> Result<(), Refused> {
        let Some(process) = held.process else { return Ok(()) };
        let begun = std::time::Instant::now();
        let told = self.driver.offline(&held.machine, &process, slice, self.settings.release_within);
        let (emc, index) = (slice.emc, slice.index);
        let why = match told {
            Ok(Offline::Done) => {
                self.counts.count(Event::Offline, "ok");
                held.mapped.retain(|mapped| (mapped.emc, mapped.index) != (emc, index));
                held.note(format!("slice {emc}/{index} went offline in {:.3} s", begun.elapsed().as_secs_f64()));
                held.try_save();
                return self.tell_offlined(slice);
            }
            Ok(Offline::Refused(why)) => why,
            Ok(Offline::NotYet(why)) => format!("{why} after {:.0} s", begun.elapsed().as_secs_f64()),
            Err(error) => error.to_string(),
        };
        self.counts.count(Event::Offline, "failed");
        held.note(format!("slice {emc}/{index} stays: {why}"));
        held.try_save();
        self.tell_failed(slice, &why);
        Err(Refused(format!("slice {emc}/{index}: {why}")))
    }

    fn tell_offlined(&self, slice: &Slice) -> Result<(), Refused> {
        match self.capacity.offlined(slice) {
            Err(error) if !is_settled(&error) => Err(Refused::because(error)),
            _ => Ok(()),
        }
    }

    fn tell_failed(&self, slice: &Slice, why: &str) {
        if let Err(error) = self.capacity.offline_failed(slice, why) {
            log::warn!("slice {}/{}: {error}", slice.emc, slice.index);
        }
    }
}

fn in_words(name: &str, room: &Room) -> String {
    let Room { used_bytes, margin_bytes, left_bytes, by } = room;
    let by = match by {
        By::Balloon => "by its own word",
        By::Touched => "by what it ever touched",
    };
    format!(
        "guest {name} uses {used_bytes} bytes {by}, and {margin_bytes} must stay free; without its slices it would have {left_bytes}: \
         it would end its own programs for want of memory"
    )
}
