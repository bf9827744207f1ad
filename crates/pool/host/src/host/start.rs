//! Start of a guest (Pond section 4.3 A): prediction, division of its memory, assignment of slices, hypervisor.

use std::fs::File;

use manager::api::{Code, Slice, Slices};
use manager::claim;
use manager::client::Error;
use predict::Untouched;
use units::Bytes;

use super::settings::Refused;
use super::table::{Claim, DAMAGED, Guest, Host, now};
use crate::capacity::is_clean;
use crate::events::Event;
use crate::prediction::Prediction;
use crate::share::{self, Share, Why};
use crate::vm::{Record, Request, State};

/// Most guests of one host.
const GUESTS_MAX: usize = 1024;

impl Host {
    /// Starts a guest. Pool memory that the request sets is provided or the request fails; predicted pool memory is
    /// replaced by local memory if the pool cannot provide it.
    ///
    /// # Errors
    /// Why the guest does not run. Nothing of it is left then.
    pub fn start(&self, request: Request) -> Result<Record, Refused> {
        let started = self.start_checked(request);
        self.counts.count(Event::Start, if started.is_ok() { "ok" } else { "refused" });
        started
    }

    fn start_checked(&self, request: Request) -> Result<Record, Refused> {
        request.check().map_err(Refused)?;
        self.driver.check(request.description.as_ref()).map_err(Refused)?;
        let (share, prediction) = self.share(&request)?;
        let mut guest = self.reserve(request, share, prediction)?;
        let started = self.bring_up(&mut guest);
        if let Err(why) = started {
            guest.note(format!("did not start: {why}"));
            self.ended(guest, None);
            return Err(why);
        }
        self.update_totals(|totals| totals.started += 1);
        Ok(guest.record.clone())
    }

    /// Decides how the guest's memory is divided. Returns also what the model of untouched memory answered, if it was asked.
    fn share(&self, request: &Request) -> Result<(Share, Option<Prediction>), Refused> {
        let (memory, local_min) = (request.memory(), self.settings.local_min);
        let local = |why| Ok((Share::local(memory, why), None));
        match (request.pool_bytes, self.capacity.slice_size(), self.predictor()) {
            (Some(Bytes::ZERO), ..) => local(Why::Asked),
            (Some(_), None, _) => Err(Refused("no pool manager has answered yet; request no pool memory, or try again later".to_owned())),
            (Some(pool), Some(slice), _) => {
                let share = share::requested(memory, pool, slice, local_min).ok_or_else(|| {
                    Refused(format!(
                        "{} bytes of pool memory for a guest of {}: give a multiple of the slice size, {}, that leaves at least {} local",
                        pool.0, memory.0, slice.0, local_min.0
                    ))
                })?;
                Ok((share, None))
            }
            (None, _, None) => local(Why::NoPrediction),
            (None, None, _) => local(Why::NoManager),
            (None, Some(slice), Some(predictor)) => {
                let decision = self.predict(&predictor, &request.vm);
                log::info!("guest {}: {decision:?}", request.name);
                let share = share::predicted(memory, &decision, slice, local_min);
                // Of the models that predicted: those in use may have been replaced since.
                let model = predictor.untouched().map(Untouched::trained_until);
                let prediction = model.map(|model| Prediction { model, answer: decision.reason.into() });
                if share.why == Why::Untouched && self.models().is_some_and(|models| models.has_failed()) {
                    return Ok((Share::local(memory, Why::ModelFailed), prediction));
                }
                Ok((share, prediction))
            }
        }
    }

    /// Adds the guest to the table, where its local memory counts as used.
    fn reserve(&self, request: Request, share: Share, prediction: Option<Prediction>) -> Result<Claim<'_>, Refused> {
        if let Some((name, why)) = self.damaged().into_iter().next() {
            return Err(Refused(format!("guest {name}: {why}. {DAMAGED}")));
        }
        let mut table = self.table();
        if table.guests.contains_key(&request.name) {
            return Err(Refused(format!("there is a guest {} already; stop it first, or choose another name", request.name)));
        }
        if table.guests.len() >= GUESTS_MAX {
            return Err(Refused(format!("this host has {GUESTS_MAX} guests, the most that it supports")));
        }
        let (used, all) = (table.local_used(), self.settings.local);
        if used + share.local_bytes > all {
            return Err(Refused(format!(
                "the guest needs {} bytes of local memory; {} of this host's {} are in use",
                share.local_bytes.0, used.0, all.0
            )));
        }
        let name = request.name.clone();
        let mut record = Record::new(request, share);
        record.model = prediction.filter(|_| share.why == Why::Untouched).map(|prediction| prediction.model);
        record.prediction = prediction;
        let pool = record.request.memory() - share.local_bytes;
        record.note(now(), format!("{} bytes from the pool, {} local: {:?}", pool.0, share.local_bytes.0, share.why));
        table.guests.insert(name, Guest { record: record.clone(), busy: Some("starting") });
        Ok(Claim { host: self, record, removed: false })
    }

    fn bring_up(&self, guest: &mut Claim<'_>) -> Result<(), Refused> {
        let locks = if guest.share.slices > Slices(0) { self.acquire_slices(guest)? } else { Vec::new() };
        guest.mapped = guest.machine.slices.clone();
        // From here on a process may exist whose id is not saved.
        guest.save()?;
        let process = self.driver.start(&guest.machine, locks).map_err(Refused::because)?;
        guest.process = Some(process);
        guest.state = State::Running;
        guest.started_at = Some(now());
        guest.note(format!("runs as process {}", process.pid));
        guest.try_save();
        Ok(())
    }

    /// Requests the slices, and opens and locks them. If the pool cannot provide predicted slices, the guest starts
    /// with local memory only.
    fn acquire_slices(&self, guest: &mut Claim<'_>) -> Result<Vec<File>, Refused> {
        // Saved before the request: if the daemon exits now, the next one gives the slices back.
        guest.assigned = true;
        guest.save()?;
        let (name, slices) = (guest.request.name.clone(), guest.share.slices);
        let assigned = self.capacity.assign(&format!("start {name} {}", now()), &name, slices);
        let why = match assigned {
            Ok(slices) => {
                guest.machine.slices = slices;
                return claim_all(&guest.machine.slices);
            }
            Err(error) if guest.request.pool_bytes.is_some() => return Err(Refused::because(error)),
            Err(error) => {
                guest.note(format!("no slices: {error}"));
                // Unless the manager refused, it may have assigned the slices although no answer arrived.
                guest.assigned = !matches!(error, Error::Refused(_));
                if error.code() == Some(Code::Short) { Why::PoolShort } else { Why::NoManager }
            }
        };
        self.use_local_memory(guest, why)?;
        Ok(Vec::new())
    }

    /// Replaces the guest's pool memory by local memory.
    fn use_local_memory(&self, guest: &mut Claim<'_>, why: Why) -> Result<(), Refused> {
        let table = self.table();
        let others = table.local_used() - guest.local_bytes();
        drop(table);
        let memory = guest.request.memory();
        if others + memory > self.settings.local {
            return Err(Refused(format!(
                "the pool provides no slices ({why:?}), and this host has no {} bytes of local memory instead",
                memory.0
            )));
        }
        guest.share = Share::local(memory, why);
        guest.machine.local_bytes = memory;
        guest.note(format!("starts with local memory only: {why:?}"));
        guest.publish();
        Ok(())
    }
}

/// Opens and locks every slice, and checks that it was scrubbed.
fn claim_all(slices: &[Slice]) -> Result<Vec<File>, Refused> {
    let mut files = Vec::with_capacity(slices.len());
    for slice in slices {
        let file = claim::claim(slice).map_err(Refused::because)?;
        if !is_clean(&file) {
            return Err(Refused(format!("slice {}/{} was not scrubbed: {} holds data", slice.emc, slice.index, slice.path.display())));
        }
        files.push(file);
    }
    Ok(files)
}
