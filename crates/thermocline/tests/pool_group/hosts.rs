//! Hosts that get slices, check and write them, and return them, and what they find.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use manager::api::{AssignRequest, Code, Slice, Slices};
use manager::client::{Client, Error};

use super::group::SLICE_BYTES;

/// Observations of all hosts.
#[derive(Default)]
pub(crate) struct Observed {
    pub(crate) stop: AtomicBool,
    pub(crate) owners: Mutex<BTreeMap<u32, &'static str>>,
    pub(crate) double_owned: AtomicU64,
    /// Answered requests whose effect is gone.
    pub(crate) lost: AtomicU64,
    pub(crate) leaked: AtomicU64,
    pub(crate) overwritten: AtomicU64,
    pub(crate) cycles: AtomicU64,
}

/// A host that gets slices, writes to them, and returns them, without a pause.
pub(crate) struct Host {
    pub(crate) name: &'static str,
    pub(crate) client: Client,
    pub(crate) device: File,
    pub(crate) observed: Arc<Observed>,
}

impl Host {
    pub(crate) fn run(self) {
        let mut epoch = self.client.lease(self.name, "run").unwrap().epoch;
        for number in 0.. {
            if self.observed.stop.load(Ordering::Relaxed) {
                return;
            }
            match self.cycle(epoch, number) {
                Err(Error::Refused(refusal)) if refusal.code == Code::Fenced => epoch = self.client.lease(self.name, "run").unwrap().epoch,
                Err(Error::Refused(refusal)) if refusal.code == Code::Short => thread::sleep(Duration::from_millis(5)),
                Err(error) => panic!("{} in cycle {number}: {error}", self.name),
                Ok(()) => drop(self.observed.cycles.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    pub(crate) fn count(&self, counter: &AtomicU64, what: &str) {
        counter.fetch_add(1, Ordering::Relaxed);
        eprintln!("{}: {what}", self.name);
    }

    pub(crate) fn cycle(&self, epoch: u64, number: u64) -> Result<(), Error> {
        let (vm, observed) = (format!("vm-{number}"), &self.observed);
        self.client.renew(self.name, epoch)?;
        let request = AssignRequest {
            epoch,
            request: format!("a-{number}"),
            vm: vm.clone(),
            slices: Slices(1 + u32::from(number.is_multiple_of(2))),
        };
        let assigned = self.client.assign(self.name, &request)?;
        assigned.slices.iter().for_each(|slice| self.begin(slice));
        if self.client.assign(self.name, &request)? != assigned {
            self.count(&observed.lost, "an assignment is another one when it is repeated");
        }
        assigned.slices.iter().for_each(|slice| self.end(slice));
        match self.client.give_back(self.name, epoch, &format!("r-{number}"), &vm) {
            Err(error) if error.code() == Some(Code::NotFound) => self.count(&observed.lost, "an assignment is gone"),
            answer => drop(answer?),
        }
        for slice in &assigned.slices {
            match self.client.offlined(self.name, epoch, slice) {
                // The request was repeated after a failover, and had been applied.
                Err(error) if error.code() == Some(Code::Stale) => {}
                answer => answer?,
            }
        }
        Ok(())
    }

    /// Takes a slice into use: it must be zero, and is marked in two places.
    pub(crate) fn begin(&self, slice: &Slice) {
        if let Some(other) = self.observed.owners.lock().unwrap().insert(slice.index, self.name) {
            self.count(&self.observed.double_owned, &format!("{other} has slice {}, too", slice.index));
        }
        for offset in Self::places(slice) {
            let mut read = [1; 8];
            self.device.read_exact_at(&mut read, offset).unwrap();
            if read != [0; 8] {
                self.count(&self.observed.leaked, "a slice is not zero");
            }
            self.device.write_all_at(&[7; 8], offset).unwrap();
        }
    }

    pub(crate) fn end(&self, slice: &Slice) {
        for offset in Self::places(slice) {
            let mut read = [0; 8];
            self.device.read_exact_at(&mut read, offset).unwrap();
            if read != [7; 8] {
                self.count(&self.observed.overwritten, "a slice in use was overwritten");
            }
        }
        self.observed.owners.lock().unwrap().remove(&slice.index);
    }

    pub(crate) fn places(slice: &Slice) -> [u64; 2] {
        let begin = slice.offset.unwrap().0;
        [begin, begin + SLICE_BYTES - 8]
    }
}
