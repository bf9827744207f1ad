//! What the manager does unasked: time passes, leases run out, slices that nobody holds come back, and are made anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pool::{EmcId, Generation, SliceId};
use tokio::sync::oneshot;

use crate::book::Ask;
use crate::files::{Files, Found, Scrub};
use crate::writer::{Followed, Handle};

/// How often time passes.
const TICK: Duration = Duration::from_millis(500);
/// How often locks are tried, unless there is something to scrub.
const LOOK: Duration = Duration::from_millis(500);

/// Passes time, until `stop` is closed.
pub(crate) fn tick(handle: Handle, stop: Receiver<()>) -> std::io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name("clock".to_owned()).spawn(move || {
        while stop.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            if let Err(refused) = handle.ask(Ask::Tick) {
                log::debug!("{}", refused.message);
            }
        }
    })
}

/// Why the keeper wakes before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// There is something to scrub.
    Scrub,
    /// The end has begun.
    Stop,
}

/// Takes slices back and makes them anew, until told to stop.
pub(crate) fn keep(handle: Handle, files: Files, wake: Receiver<Wake>) -> std::io::Result<thread::JoinHandle<()>> {
    let mut keeper = Keeper { handle, files, told: BTreeSet::new() };
    thread::Builder::new().name("keeper".to_owned()).spawn(move || {
        loop {
            keeper.round();
            match wake.recv_timeout(LOOK) {
                Ok(Wake::Scrub) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    })
}

struct Keeper {
    handle: Handle,
    files: Files,
    /// Troubles that were logged, so that each is told once.
    told: BTreeSet<(SliceId, Generation)>,
}

impl Keeper {
    fn round(&mut self) {
        let mut held = self.take_back();
        let book = self.handle.published().book;
        let mut found: BTreeMap<EmcId, Found> = BTreeMap::new();
        let mut done: Vec<(SliceId, Generation, oneshot::Receiver<Followed>)> = Vec::new();
        for (slice, generation) in book.to_scrub() {
            let of = match found.entry(slice.emc) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => match self.look(slice.emc) {
                    Some(of) => entry.insert(of),
                    None => continue,
                },
            };
            match self.files.scrub(slice, generation, of, held.remove(&(slice, generation)).flatten()) {
                Ok(Scrub::Done) => {
                    self.told.remove(&(slice, generation));
                    done.extend(self.handle.submit(Ask::Scrubbed { slice, generation }).ok().map(|answer| (slice, generation, answer)));
                }
                Ok(Scrub::InUse) => self.tell(slice, generation, "is to be made anew, and somebody still holds its lock"),
                Err(error) => self.tell(slice, generation, &format!("cannot be made anew: {error}")),
            }
        }
        for (slice, generation, answer) in done {
            // One that was not written down is made anew once more.
            if let Ok(Err(refused)) = answer.blocking_recv() {
                log::debug!("slice {}/{} of generation {}: {}", slice.emc.0, slice.index, generation.0, refused.message);
            }
        }
    }

    fn look(&self, emc: EmcId) -> Option<Found> {
        let found = self.files.make_emc(emc).and_then(|()| self.files.look(emc));
        found.inspect_err(|error| log::error!("{error}")).ok()
    }

    fn tell(&mut self, slice: SliceId, generation: Generation, what: &str) {
        if self.told.insert((slice, generation)) {
            log::warn!("slice {}/{} of generation {} {what}; tried again until it works", slice.emc.0, slice.index, generation.0);
        }
    }

    /// Takes the locks of slices whose hosts have no lease, and writes down those that nobody held. Returns the locks.
    fn take_back(&mut self) -> BTreeMap<(SliceId, Generation), Option<File>> {
        let book = self.handle.published().book;
        let mut asked = Vec::new();
        for (slice, generation) in book.unguarded(self.handle.clock.now()) {
            match self.files.lock(slice, generation) {
                Ok(None) => {}
                Ok(Some(lock)) => match self.handle.submit(Ask::Abandoned { slice, generation }) {
                    Ok(answer) => asked.push(((slice, generation), lock, answer)),
                    Err(_) => break,
                },
                Err(error) => self.tell(slice, generation, &format!("cannot be looked at: {error}")),
            }
        }
        let mut held = BTreeMap::new();
        for (of, lock, answer) in asked {
            if matches!(answer.blocking_recv(), Ok(Ok(_))) {
                log::info!("slice {}/{} is taken back: its host has no lease, and nobody holds it", of.0.emc.0, of.0.index);
                held.insert(of, lock);
            }
        }
        held
    }
}
