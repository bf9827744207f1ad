//! Periodic work of the manager: time passes, leases expire, abandoned slices are reclaimed, and slices are scrubbed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pool::{EmcId, Generation, SliceId};
use tokio::sync::oneshot;

use crate::files::{Files, Generations, Scrub};
use crate::ledger::{Outcome, Request};
use crate::writer::{Handle, Wake};

/// Interval of ticks.
const TICK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of maintenance rounds, unless there are slices to scrub.
const ROUND_INTERVAL: Duration = Duration::from_millis(500);

/// A tick waits for the ledger, and a round scrubs every free slice.
const TICK_LIMIT: Duration = Duration::from_secs(10 * 60);
const ROUND_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Starts the thread that submits ticks, until `stop` is closed.
pub(crate) fn tick(handle: Handle, stop: Receiver<()>) -> std::io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name("clock".to_owned()).spawn(move || {
        let member = daemon::watchdog::join("clock", TICK_LIMIT);
        while stop.recv_timeout(TICK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let _busy = member.busy();
            if let Err(refused) = handle.call(Request::Tick) {
                log::debug!("{}", refused.message);
            }
        }
    })
}

/// Starts the thread that reclaims and scrubs slices, until it is woken to stop.
pub(crate) fn maintain(handle: Handle, files: Files, wake: Receiver<Wake>) -> std::io::Result<thread::JoinHandle<()>> {
    let mut maintenance = Maintenance { handle, files, reported: BTreeSet::new() };
    thread::Builder::new().name("maintenance".to_owned()).spawn(move || {
        let member = daemon::watchdog::join("maintenance", ROUND_LIMIT);
        loop {
            let busy = member.busy();
            maintenance.round();
            drop(busy);
            match wake.recv_timeout(ROUND_INTERVAL) {
                Ok(Wake::Scrub) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    })
}

struct Maintenance {
    handle: Handle,
    files: Files,
    /// Slices whose error was logged; a repeated error is logged once.
    reported: BTreeSet<(SliceId, Generation)>,
}

impl Maintenance {
    fn round(&mut self) {
        let mut locks = self.reclaim();
        let ledger = self.handle.published().ledger;
        let mut files: BTreeMap<EmcId, Generations> = BTreeMap::new();
        let mut done: Vec<(SliceId, Generation, oneshot::Receiver<Outcome>)> = Vec::new();
        for (slice, generation) in ledger.to_scrub() {
            let of = match files.entry(slice.emc) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => match self.list(slice.emc) {
                    Some(of) => entry.insert(of),
                    None => continue,
                },
            };
            match self.files.scrub(slice, generation, of, locks.remove(&(slice, generation)).flatten()) {
                Ok(Scrub::Done) => {
                    self.reported.remove(&(slice, generation));
                    let submitted = self.handle.submit(Request::Scrubbed { slice, generation });
                    done.extend(submitted.ok().map(|answer| (slice, generation, answer)));
                }
                Ok(Scrub::InUse) => self.report(slice, generation, "cannot be scrubbed: a process holds its lock"),
                Err(error) => self.report(slice, generation, &format!("cannot be scrubbed: {error}")),
            }
        }
        for (slice, generation, answer) in done {
            // A scrub that was not saved is repeated in the next round.
            if let Ok(Err(refused)) = answer.blocking_recv() {
                log::debug!("slice {}/{}, generation {}: {}", slice.emc.0, slice.index, generation.0, refused.message);
            }
        }
    }

    fn list(&self, emc: EmcId) -> Option<Generations> {
        let found = self.files.create_directory(emc).and_then(|()| self.files.list(emc));
        found.inspect_err(|error| log::error!("{error}")).ok()
    }

    fn report(&mut self, slice: SliceId, generation: Generation, error: &str) {
        if self.reported.insert((slice, generation)) {
            log::warn!("slice {}/{}, generation {} {error}; retried until it succeeds", slice.emc.0, slice.index, generation.0);
        }
    }

    /// Locks slices whose hosts have no lease, and reclaims those that no process had locked. Returns the locks.
    fn reclaim(&mut self) -> BTreeMap<(SliceId, Generation), Option<File>> {
        let ledger = self.handle.published().ledger;
        let mut submitted = Vec::new();
        for (slice, generation) in ledger.unguarded(self.handle.clock.now()) {
            match self.files.lock(slice, generation) {
                Ok(None) => {}
                Ok(Some(lock)) => match self.handle.submit(Request::Abandoned { slice, generation }) {
                    Ok(answer) => submitted.push(((slice, generation), lock, answer)),
                    Err(_) => break,
                },
                Err(error) => self.report(slice, generation, &format!("cannot be locked: {error}")),
            }
        }
        let mut locks = BTreeMap::new();
        for (of, lock, answer) in submitted {
            if matches!(answer.blocking_recv(), Ok(Ok(_))) {
                log::info!("reclaimed slice {}/{}: its host has no lease, and no process had locked it", of.0.emc.0, of.0.index);
                locks.insert(of, lock);
            }
        }
        locks
    }
}
