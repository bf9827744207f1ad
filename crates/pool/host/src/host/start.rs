//! From a request to a running guest (Pond, section 4.3 A): prediction, share, slices online, start.

use std::fs::File;

use manager::api::{Code, Slice};
use manager::claim;
use manager::client::Error;

use super::{GUESTS_MAX, Guest, Held, Host, Refused, now};
use crate::capacity::is_clean;
use crate::metrics::Event;
use crate::share::{self, Share, Why};
use crate::vm::{Record, Request, State};

impl Host {
    /// Starts a guest. What is asked for by its request is had, or nothing; what is predicted gives way to local memory where the
    /// pool cannot give it.
    ///
    /// # Errors
    /// Why it does not run. Nothing is left of it then.
    pub fn start(&self, request: Request) -> Result<Record, Refused> {
        let started = self.start_checked(request);
        self.counts.count(Event::Start, if started.is_ok() { "ok" } else { "refused" });
        started
    }

    fn start_checked(&self, request: Request) -> Result<Record, Refused> {
        request.check().map_err(Refused)?;
        let share = self.share(&request)?;
        let mut held = self.reserve(request, share)?;
        let started = self.bring_up(&mut held);
        if let Err(why) = started {
            held.note(format!("did not start: {why}"));
            self.ended(held, None);
            return Err(why);
        }
        self.count(|totals| totals.started += 1);
        Ok(held.record.clone())
    }

    /// How a guest's memory is to be divided.
    fn share(&self, request: &Request) -> Result<Share, Refused> {
        let (memory, least) = (request.vm.memory_bytes, self.settings.least_local_bytes);
        let slice_bytes = self.capacity.slice_bytes();
        match (request.pool_bytes, slice_bytes, &self.predictor) {
            (Some(0), ..) => Ok(Share::local(memory, Why::Asked)),
            (Some(_), None, _) => Err(Refused("no pool manager has answered yet; ask without pool memory, or later".to_owned())),
            (Some(pool), Some(slice), _) => share::asked(memory, pool, slice, least).ok_or_else(|| {
                Refused(format!(
                    "{pool} bytes from the pool of {memory} in all: give a multiple of its slices of {slice} bytes that leaves at least \
                     {least} local"
                ))
            }),
            (None, _, None) => Ok(Share::local(memory, Why::NoPrediction)),
            (None, None, _) => Ok(Share::local(memory, Why::NoManager)),
            (None, Some(slice), Some(predictor)) => {
                let decision = predictor.decide(&request.vm);
                log::info!("guest {}: {decision:?}", request.name);
                Ok(share::predicted(memory, &decision, slice, least))
            }
        }
    }

    /// Puts a guest into the table, where its memory counts.
    fn reserve(&self, request: Request, share: Share) -> Result<Held<'_>, Refused> {
        let mut table = self.table();
        if table.guests.contains_key(&request.name) {
            return Err(Refused(format!("there is a guest {} already; stop it first, or choose another name", request.name)));
        }
        if table.guests.len() >= GUESTS_MAX {
            return Err(Refused(format!("this host runs {GUESTS_MAX} guests, which is as many as it may")));
        }
        let (used, all) = (table.local_bytes(), self.settings.local_bytes);
        if used.saturating_add(share.local_bytes) > all {
            let wanted = share.local_bytes;
            return Err(Refused(format!("{wanted} bytes of local memory are wanted; {used} of this host's {all} are in use")));
        }
        let name = request.name.clone();
        let mut record = Record::new(request, share);
        let pool = record.request.vm.memory_bytes - share.local_bytes;
        record.note(now(), format!("{pool} bytes from the pool, {} local: {:?}", share.local_bytes, share.why));
        table.guests.insert(name, Guest { record: record.clone(), busy: Some("starting") });
        Ok(Held { host: self, record, removed: false })
    }

    fn bring_up(&self, held: &mut Held<'_>) -> Result<(), Refused> {
        let files = if held.share.slices > 0 { self.have_slices(held)? } else { Vec::new() };
        held.mapped = held.machine.slices.clone();
        // From here on a process may be found that nobody knows of.
        held.save()?;
        let process = self.driver.start(&held.machine, files).map_err(Refused::because)?;
        held.process = Some(process);
        held.state = State::Running;
        held.note(format!("runs as process {}", process.pid));
        held.try_save();
        Ok(())
    }

    /// Has the slices, opened and locked. Without enough of them a guest whose share was predicted starts with local memory alone.
    fn have_slices(&self, held: &mut Held<'_>) -> Result<Vec<File>, Refused> {
        // Written down before it is asked for: whatever becomes of us, it is given back.
        held.assigned = true;
        held.save()?;
        let (name, slices) = (held.request.name.clone(), held.share.slices);
        let asked = self.capacity.assign(&format!("start {name} {}", now()), &name, slices);
        let why = match asked {
            Ok(slices) => {
                held.machine.slices = slices;
                return claim_all(&held.machine.slices);
            }
            Err(error) if held.request.pool_bytes.is_some() => return Err(Refused::because(error)),
            Err(error) => {
                held.note(format!("no slices: {error}"));
                // A manager that was not heard of may have given them all the same.
                held.assigned = !matches!(error, Error::Refused(_));
                if error.code() == Some(Code::Short) { Why::PoolShort } else { Why::NoManager }
            }
        };
        self.all_local(held, why)?;
        Ok(Vec::new())
    }

    fn all_local(&self, held: &mut Held<'_>, why: Why) -> Result<(), Refused> {
        let table = self.table();
        let others = table.local_bytes() - held.local_bytes();
        drop(table);
        let memory = held.request.vm.memory_bytes;
        if others.saturating_add(memory) > self.settings.local_bytes {
            return Err(Refused(format!("the pool gives no slices ({why:?}), and there are no {memory} bytes of local memory instead")));
        }
        held.share = Share::local(memory, why);
        held.machine.local_bytes = memory;
        held.note(format!("starts with local memory alone: {why:?}"));
        held.show();
        Ok(())
    }
}

/// Opens and locks every slice, and sees that nobody's data is in it.
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
