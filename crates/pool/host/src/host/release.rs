//! Release of pool memory by a running guest: only with enough free memory, slice by slice, each reported to the
//! manager.

use manager::api::{Slice, Work};

use super::settings::Refused;
use super::table::{Claim, Host, now};
use crate::capacity::is_settled;
use crate::driver::Offline;
use crate::events::Event;
use crate::free_memory::{self, By, FreeMemory};
use crate::vm::{Record, State};

impl Host {
    /// Takes all pool memory from a running guest.
    ///
    /// # Errors
    /// The guest has too little free memory, in which case it was not asked; or it has kept slices, in which case it is
    /// asked again when the manager asks the host.
    pub fn release(&self, name: &str) -> Result<Record, Refused> {
        let mut guest = self.claim(name, "releasing slices")?;
        if guest.state != State::Running || guest.mapped.is_empty() {
            return Err(Refused(format!("guest {name} has no pool memory to release")));
        }
        self.check_free_memory(&mut guest).inspect_err(|_| self.counts.count(Event::Release, "no_free_memory"))?;
        if guest.assigned {
            self.capacity.give_back(&format!("release {name} {}", now()), name).map_err(Refused::because)?;
            guest.assigned = false;
            guest.note("must release its slices");
            guest.save()?;
        }
        let mut kept = Vec::new();
        for slice in guest.mapped.clone() {
            if let Err(why) = self.offline(&mut guest, &slice) {
                kept.push(why.0);
            }
        }
        self.counts.count(Event::Release, if kept.is_empty() { "ok" } else { "kept" });
        match kept.is_empty() {
            true => Ok(guest.record.clone()),
            false => Err(Refused(format!("guest {name} has kept slices, and will be asked again: {}", kept.join("; ")))),
        }
    }

    /// Takes the slices offline that the manager requires.
    pub(super) fn take_offline(&self, work: Vec<Work>) {
        for Work { slice, .. } in work {
            let owner = {
                let table = self.table();
                let maps = |record: &Record| record.mapped.iter().any(|mapped| (mapped.emc, mapped.index) == (slice.emc, slice.index));
                table.guests.iter().find(|(_, guest)| maps(&guest.record)).map(|(name, _)| name.clone())
            };
            let done = match owner {
                // A busy guest is usually releasing this slice. The manager asks again.
                Some(name) if self.table().guests.get(&name).is_some_and(|guest| guest.busy.is_some()) => Ok(()),
                Some(name) => self.claim(&name, "releasing slices").and_then(|mut guest| {
                    if guest.assigned {
                        // The manager expects the slice back from a guest that keeps it: settled when the guest ends.
                        return Ok(());
                    }
                    match self.check_free_memory(&mut guest) {
                        Ok(()) => self.offline(&mut guest, &slice),
                        Err(why) => {
                            self.report_failed(&slice, &why.0);
                            Err(why)
                        }
                    }
                }),
                None => self.report_offlined(&slice),
            };
            if let Err(why) = done {
                log::warn!("slice {}/{}: {why}", slice.emc, slice.index);
            }
        }
    }

    /// Checks that the guest has enough free memory to give up all of its slices.
    fn check_free_memory(&self, guest: &mut Claim<'_>) -> Result<(), Refused> {
        let Some(process) = guest.process else { return Ok(()) };
        let reported = self.driver.guest_memory(&guest.machine, &process).unwrap_or_else(|error| {
            log::warn!("guest {}: {error}", guest.request.name);
            None
        });
        let usage = self.driver.touched(&guest.machine, &process).map_err(Refused::because)?;
        let free = free_memory::estimate(guest.machine.local_bytes, guest.pool_bytes(), &usage, reported, self.settings.margin);
        guest.free_memory = Some(free);
        let enough = free.is_enough();
        if !enough {
            let why = describe(&guest.request.name, &free);
            guest.note(format!("keeps its slices: {why}"));
            guest.try_save();
            return Err(Refused(why));
        }
        guest.try_save();
        Ok(())
    }

    /// Takes one slice from the guest, and reports the outcome to the manager.
    fn offline(&self, guest: &mut Claim<'_>, slice: &Slice) -> Result<(), Refused> {
        let Some(process) = guest.process else { return Ok(()) };
        let begin = std::time::Instant::now();
        let outcome = self.driver.offline(&guest.machine, &process, slice, self.settings.release_timeout);
        let (emc, index) = (slice.emc, slice.index);
        let why = match outcome {
            Ok(Offline::Done) => {
                self.counts.count(Event::Offline, "ok");
                guest.mapped.retain(|mapped| (mapped.emc, mapped.index) != (emc, index));
                guest.note(format!("slice {emc}/{index} went offline in {:.3} s", begin.elapsed().as_secs_f64()));
                guest.try_save();
                return self.report_offlined(slice);
            }
            Ok(Offline::Refused(why)) => why,
            Ok(Offline::Pending(why)) => format!("{why} after {:.0} s", begin.elapsed().as_secs_f64()),
            Err(error) => error.to_string(),
        };
        self.counts.count(Event::Offline, "failed");
        guest.note(format!("slice {emc}/{index} stays: {why}"));
        guest.try_save();
        self.report_failed(slice, &why);
        Err(Refused(format!("slice {emc}/{index}: {why}")))
    }

    fn report_offlined(&self, slice: &Slice) -> Result<(), Refused> {
        match self.capacity.offlined(slice) {
            Err(error) if !is_settled(&error) => Err(Refused::because(error)),
            _ => Ok(()),
        }
    }

    fn report_failed(&self, slice: &Slice, why: &str) {
        if let Err(error) = self.capacity.offline_failed(slice, why) {
            log::warn!("slice {}/{}: {error}", slice.emc, slice.index);
        }
    }
}

fn describe(name: &str, free: &FreeMemory) -> String {
    let FreeMemory { used_bytes, margin_bytes, left_bytes, by } = free;
    let by = match by {
        By::Balloon => "by its own report",
        By::Touched => "by the memory that it ever touched",
    };
    format!(
        "guest {name} uses {} bytes {by}, and {} must stay free; without its slices it would have {}, and its kernel would kill programs",
        used_bytes.0, margin_bytes.0, left_bytes.0
    )
}
