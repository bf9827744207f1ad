//! What a machine has of its pool, and how that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
#[cfg(not(shuttle))]
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use daemon::watchdog;
use kernel::Roots;
use manager::api::{Slice, Slices, Work};
use serde::{Deserialize, Serialize};
#[cfg(shuttle)]
use shuttle::sync::{Mutex, MutexGuard};
use units::Bytes;

use super::blocks::Region;
use crate::capacity::{Capacity, is_settled};

/// Interval of requests for a lease while there is none.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Bounds of the interval between renewals, which is a third of the lease.
const RENEWAL_MAX: Duration = Duration::from_secs(10);
const RENEWAL_MIN: Duration = Duration::from_millis(200);

/// Requests to the manager have a timeout of seconds.
const RENEW_LIMIT: Duration = Duration::from_secs(2 * 60);
/// Taking all slices offline may take long.
const MOVE_LIMIT: Duration = Duration::from_secs(4 * 60 * 60);

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// A machine with slices of a pool.
///
/// Two locks, `moving` before `held`. `held` is held for requests to the manager, which are short, so that an answer with all assignments
/// and one with new ones do not overtake each other. `moving` is held while blocks go online and offline, which takes long:
/// meanwhile the lease is renewed.
pub struct Machine {
    name: String,
    roots: Roots,
    regions: Vec<Region>,
    capacity: Box<dyn Capacity>,
    /// How long one memory block may take to go offline.
    within: Duration,
    held: Mutex<Held>,
    moving: Mutex<()>,
}

/// What the machine has.
#[derive(Debug, Default)]
struct Held {
    assigned: BTreeMap<String, Vec<Slice>>,
    /// Why the manager's last answer was no success.
    pool_error: Option<String>,
    /// Slices that are online and not assigned to this machine, or that do not go offline, and why.
    stuck: BTreeMap<(u16, u32), String>,
    /// Whether the blocks are to be compared with `assigned`: after a new lease.
    compare: bool,
}

/// A slice and how much of it is online.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignedSlice {
    /// The EMC.
    pub emc: u16,
    /// Index at its EMC.
    pub index: u32,
    /// Ownership generation.
    pub generation: u32,
    /// Memory of it that is online; `None` if the kernel does not say so.
    pub online_bytes: Option<Bytes>,
}

/// Memory that was added under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assigned {
    /// The name.
    pub name: String,
    /// Size of its slices.
    pub bytes: Bytes,
    /// Its slices.
    pub slices: Vec<AssignedSlice>,
}

/// What a machine has of its pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// The host's name.
    pub host: String,
    /// The manager's last error; `None` if its last answer was a success.
    pub pool_error: Option<String>,
    /// Memory by name.
    pub memory: Vec<Assigned>,
    /// Slices that are online although this machine returned them, or never had them, and why.
    pub stuck: Vec<String>,
}

impl Machine {
    /// A machine whose devices are `regions`, one for each EMC.
    #[must_use]
    pub fn new(name: String, roots: Roots, regions: Vec<Region>, capacity: Box<dyn Capacity>, within: Duration) -> Self {
        Self { name, roots, regions, capacity, within, held: Mutex::default(), moving: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moving(&self) -> MutexGuard<'_, ()> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a lease, and what is not assigned to this machine offline, before anything is added. Without an answer of the manager, that
    /// happens once it answers.
    pub fn begin(&self) {
        let (_, work) = self.renew();
        self.follow(&work);
    }

    /// Keeps the lease and follows the manager until `stop` receives a message or is disconnected. The memory stays online.
    pub fn run(&self, stop: &Receiver<()>) {
        // While work is being done, later answers are dropped: the manager repeats open requests.
        let (send, received) = sync_channel::<Vec<Work>>(1);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let member = watchdog::join("memory", MOVE_LIMIT);
                while let Ok(work) = received.recv() {
                    let _busy = member.busy();
                    self.follow(&work);
                }
            });
            let member = watchdog::join("lease", RENEW_LIMIT);
            loop {
                let busy = member.busy();
                let (pause, work) = self.renew();
                let _ = send.try_send(work);
                drop(busy);
                if !matches!(stop.recv_timeout(pause), Err(RecvTimeoutError::Timeout)) {
                    break;
                }
            }
            drop(send);
        });
    }

    /// Renews the lease. Returns how long to wait until the next time, and what the manager requires.
    fn renew(&self) -> (Duration, Vec<Work>) {
        let mut held = self.held();
        match self.capacity.renew() {
            Ok(renewal) => {
                if held.pool_error.take().is_some() {
                    log::info!("the pool manager answers again");
                }
                if let Some(assignments) = renewal.assignments {
                    log::info!("{} has a lease of {} s", self.name, renewal.lease.as_secs_f64());
                    held.assigned = assignments.into_iter().map(|assignment| (assignment.vm, assignment.slices)).collect();
                    held.compare = true;
                }
                ((renewal.lease / 3).clamp(RENEWAL_MIN, RENEWAL_MAX), renewal.work)
            }
            Err(error) => {
                let error = error.to_string();
                if held.pool_error.as_deref() != Some(error.as_str()) {
                    log::warn!("{error}; the memory stays, and no slice changes its owner");
                }
                held.pool_error = Some(error);
                (RETRY_INTERVAL, Vec::new())
            }
        }
    }

    /// Does what the manager requires.
    fn follow(&self, work: &[Work]) {
        if std::mem::take(&mut self.held().compare) {
            self.compare();
        }
        for work in work {
            self.release(&work.slice);
        }
    }

    /// What is assigned comes online, and what is not goes offline.
    fn compare(&self) {
        let _moving = self.moving();
        let known: Vec<Slice> = {
            let mut held = self.held();
            held.stuck.clear();
            held.assigned.values().flatten().cloned().collect()
        };
        let expected: BTreeSet<(u16, Bytes)> = known.iter().map(|slice| (slice.emc, slice.offset.unwrap_or_default())).collect();
        let Some(size) = self.capacity.slice_size() else { return };
        for (emc, region) in (0u16..).zip(&self.regions) {
            for (index, offset) in (0u32..).zip(region.offsets(size)) {
                if expected.contains(&(emc, offset)) || region.online(&self.roots, offset, size) == Ok(Bytes::ZERO) {
                    continue;
                }
                log::warn!("slice {emc}/{index} is online and not assigned to this machine: it goes offline");
                if let Err(why) = region.take_offline(&self.roots, offset, size, self.within) {
                    log::error!("slice {emc}/{index} is not assigned to this machine, and stays online: {why}. Turn the machine off");
                    let mut held = self.held();
                    held.stuck.insert((emc, index), why);
                    // The manager requires nothing of it: it is tried again with the next answer.
                    held.compare = true;
                }
            }
        }
        for slice in &known {
            if let Err(why) = self.bring_online(slice) {
                log::error!("slice {}/{} does not come online: {why}", slice.emc, slice.index);
            }
        }
    }

    fn region(&self, slice: &Slice) -> Result<&Region, String> {
        if slice.offset.is_none() {
            return Err("it is a file of the manager's machine, not a part of a device".to_owned());
        }
        self.regions.get(usize::from(slice.emc)).ok_or_else(|| format!("this machine has no device for EMC {}", slice.emc))
    }

    fn bring_online(&self, slice: &Slice) -> Result<(), String> {
        self.region(slice)?.bring_online(&self.roots, slice)
    }

    /// Takes a slice offline and reports that. Returns whether it is offline.
    fn release(&self, slice: &Slice) -> bool {
        let key = (slice.emc, slice.index);
        let moving = self.moving();
        // Required by an answer from before it was returned and assigned again.
        let is_assigned = self.held().assigned.values().flatten().any(|assigned| (assigned.emc, assigned.index) == key);
        if is_assigned {
            return true;
        }
        let take = |region: &Region| region.take_offline(&self.roots, slice.offset.unwrap_or_default(), slice.bytes, self.within);
        let done = self.region(slice).and_then(take);
        drop(moving);
        let mut held = self.held();
        let reported = match &done {
            Ok(()) => {
                held.stuck.remove(&key);
                self.capacity.offlined(slice)
            }
            Err(why) => {
                log::warn!("slice {}/{}: {why}", slice.emc, slice.index);
                held.stuck.insert(key, why.clone());
                self.capacity.offline_failed(slice, why)
            }
        };
        // The manager repeats what it requires.
        if let Err(error) = reported
            && !is_settled(&error)
        {
            log::warn!("slice {}/{}: its report failed: {error}", slice.emc, slice.index);
        }
        done.is_ok()
    }

    /// Adds memory under a name.
    ///
    /// # Errors
    /// [`Refused`]; the slices are returned then.
    pub fn add(&self, name: &str, slices: Slices) -> Result<Assigned, Refused> {
        let moving = self.moving();
        let assigned = self.assign(name, slices)?;
        let failed = assigned.iter().find_map(|slice| Some((slice, self.bring_online(slice).err()?)));
        drop(moving);
        if let Some((slice, why)) = failed {
            let back = self.give_back(name).err().map(|error| format!("; {error}")).unwrap_or_default();
            let slice = format!("{}/{}", slice.emc, slice.index);
            return Err(Refused(format!("slice {slice} does not come online: {why}; all slices of {name} are returned{back}")));
        }
        log::info!("{name}: {} slices are online", assigned.len());
        Ok(self.view(name, &assigned))
    }

    fn assign(&self, name: &str, slices: Slices) -> Result<Vec<Slice>, Refused> {
        let mut held = self.held();
        if held.assigned.contains_key(name) {
            return Err(Refused(format!("there is memory {name} already; add more under another name")));
        }
        let assigned = self.capacity.assign(&request("add", name), name, slices).map_err(|error| Refused(error.to_string()))?;
        held.assigned.insert(name.to_owned(), assigned.clone());
        Ok(assigned)
    }

    /// Removes the memory that was added under a name.
    ///
    /// # Errors
    /// [`Refused`], or which slices do not go offline now; the manager requires these again.
    pub fn remove(&self, name: &str) -> Result<(), Refused> {
        {
            let held = self.held();
            if !held.assigned.contains_key(name) {
                let names: Vec<&str> = held.assigned.keys().map(String::as_str).collect();
                return Err(Refused(format!("there is no memory {name}; there is: {}", names.join(", "))));
            }
        }
        self.give_back(name)
    }

    fn give_back(&self, name: &str) -> Result<(), Refused> {
        let (work, slices) = {
            let mut held = self.held();
            let work = match self.capacity.give_back(&request("remove", name), name) {
                Ok(work) => work,
                // An earlier request was answered, and the answer lost: what is required comes when the lease is renewed.
                Err(error) if is_settled(&error) => Vec::new(),
                Err(error) => return Err(Refused(error.to_string())),
            };
            (work, held.assigned.remove(name).unwrap_or_default())
        };
        // The answer names what is required of all of the machine's memory.
        let mut left = Vec::new();
        for work in work.iter().filter(|work| slices.contains(&work.slice)) {
            if !self.release(&work.slice) {
                left.push(format!("{}/{}", work.slice.emc, work.slice.index));
            }
        }
        if left.is_empty() {
            log::info!("{name}: {} slices are returned", slices.len());
            return Ok(());
        }
        Err(Refused(format!(
            "{name} is returned, and these of its slices are still online: {}; they go offline as soon as their pages can be moved, see `list`",
            left.join(", ")
        )))
    }

    fn view(&self, name: &str, slices: &[Slice]) -> Assigned {
        let online = |slice: &Slice| {
            let of = |region: &Region| region.online(&self.roots, slice.offset.unwrap_or_default(), slice.bytes);
            self.region(slice).and_then(of).ok()
        };
        let slice = |slice: &Slice| {
            let Slice { emc, index, generation, .. } = *slice;
            AssignedSlice { emc, index, generation, online_bytes: online(slice) }
        };
        Assigned { name: name.to_owned(), bytes: slices.iter().map(|slice| slice.bytes).sum(), slices: slices.iter().map(slice).collect() }
    }

    /// The number of slices of this size.
    ///
    /// # Errors
    /// The size is no multiple of the pool's slices, or the manager has not answered yet.
    pub fn slices_of(&self, bytes: Bytes) -> Result<Slices, Refused> {
        let Some(size) = self.capacity.slice_size().filter(|size| *size > Bytes::ZERO) else {
            let why = self.held().pool_error.clone();
            return Err(Refused(why.unwrap_or_else(|| "the pool manager has not answered yet".to_owned())));
        };
        let count = u32::try_from(bytes.0 / size.0).ok().filter(|count| *count > 0 && bytes.0.is_multiple_of(size.0));
        count.map(Slices).ok_or_else(|| Refused(format!("{bytes} is not a multiple of the pool's slices of {size}")))
    }

    /// What this machine has.
    #[must_use]
    pub fn list(&self) -> List {
        let held = self.held();
        List {
            host: self.name.clone(),
            pool_error: held.pool_error.clone(),
            memory: held.assigned.iter().map(|(name, slices)| self.view(name, slices)).collect(),
            stuck: held.stuck.iter().map(|((emc, index), why)| format!("slice {emc}/{index}: {why}")).collect(),
        }
    }
}

/// A name for a request that no other request has: the manager takes one with the same name as a repetition.
fn request(what: &str, name: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{what} {name} at {} us", units::micros(now))
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("name", &self.name).field("regions", &self.regions).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
