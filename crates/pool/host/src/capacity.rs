//! Where slices come from: a pool manager, as its hosts see it.

use std::fs::File;
use std::sync::{Mutex, PoisonError};

use manager::api::{AssignRequest, Assignment, Code, Slice, Work};
use manager::client::{Client, Error};

/// What a host has to hear after it told that it is still there.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// How long it may be silent now.
    pub lease_seconds: f64,
    /// After a new lease: what the manager thinks this host's guests have.
    pub fresh: Option<Vec<Assignment>>,
    /// What the host is to do.
    pub work: Vec<Work>,
}

/// A pool manager. Calls block for a bounded time.
pub trait Capacity: Send + Sync {
    /// Keeps the lease, or takes a new one where there is none any more.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn keep(&self) -> Result<Kept, Error>;

    /// The size of a slice; none before the manager was heard of.
    fn slice_bytes(&self) -> Option<u64>;

    /// Asks for a guest's slices. The same `request` has the same answer.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn assign(&self, request: &str, vm: &str, slices: u32) -> Result<Vec<Slice>, Error>;

    /// Gives back what a guest has. What is to be taken offline for that comes back; it is to be said of each when it is.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn give_back(&self, request: &str, vm: &str) -> Result<Vec<Work>, Error>;

    /// A slice is offline, and let go of.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn offlined(&self, slice: &Slice) -> Result<(), Error>;

    /// A slice cannot be had offline now.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn offline_failed(&self, slice: &Slice, why: &str) -> Result<(), Error>;
}

/// Whether there is nothing left to be done about what was said: the manager has heard it before, or does not know of it.
#[must_use]
pub fn is_settled(error: &Error) -> bool {
    matches!(error.code(), Some(Code::Stale | Code::NotFound | Code::Over))
}

/// Whether nobody has touched a slice since it was scrubbed. A file system that cannot tell is believed.
#[must_use]
pub fn is_clean(file: &File) -> bool {
    use rustix::fs::{SeekFrom, seek};
    match seek(file, SeekFrom::Data(0)) {
        // There is no data up to the end.
        Err(rustix::io::Errno::NXIO) => true,
        Ok(_) => false,
        Err(error) => {
            log::warn!("cannot tell whether a slice was scrubbed: {error}");
            true
        }
    }
}

/// The manager at the other end of a client.
#[derive(Debug)]
pub struct Remote {
    client: Client,
    host: String,
    instance: String,
    state: Mutex<Known>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    epoch: Option<u64>,
    slice_bytes: Option<u64>,
}

impl Remote {
    /// Speaks for `host`; `instance` tells this run of it from others.
    #[must_use]
    pub fn new(client: Client, host: String, instance: String) -> Self {
        Self { client, host, instance, state: Mutex::default() }
    }

    fn known(&self) -> Known {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Says something under the lease; one that is void is forgotten, so that a new one is taken.
    fn under_lease<T>(&self, say: impl FnOnce(u64) -> Result<T, Error>) -> Result<T, Error> {
        // No manager has an epoch of zero: without a lease it says so.
        let epoch = self.known().epoch.unwrap_or(0);
        let said = say(epoch);
        if said.as_ref().is_err_and(|error| error.code() == Some(Code::Fenced)) {
            self.set(|known| {
                if known.epoch == Some(epoch) {
                    known.epoch = None;
                }
            });
        }
        said
    }
}

impl Capacity for Remote {
    fn keep(&self) -> Result<Kept, Error> {
        if self.known().slice_bytes.is_none() {
            let bytes = self.client.pool()?.slice_bytes;
            self.set(|known| known.slice_bytes = Some(bytes));
        }
        if self.known().epoch.is_some() {
            match self.under_lease(|epoch| self.client.renew(&self.host, epoch)) {
                Err(error) if error.code() == Some(Code::Fenced) => log::warn!("the lease of {} is void: {error}", self.host),
                Err(error) => return Err(error),
                Ok(renewed) => return Ok(Kept { lease_seconds: renewed.lease_seconds, fresh: None, work: renewed.work }),
            }
        }
        let lease = self.client.lease(&self.host, &self.instance)?;
        self.set(|known| known.epoch = Some(lease.epoch));
        Ok(Kept { lease_seconds: lease.lease_seconds, fresh: Some(lease.assignments), work: lease.work })
    }

    fn slice_bytes(&self) -> Option<u64> {
        self.known().slice_bytes
    }

    fn assign(&self, request: &str, vm: &str, slices: u32) -> Result<Vec<Slice>, Error> {
        let ask = |epoch| AssignRequest { epoch, request: request.to_owned(), vm: vm.to_owned(), slices };
        self.under_lease(|epoch| self.client.assign(&self.host, &ask(epoch))).map(|assignment| assignment.slices)
    }

    fn give_back(&self, request: &str, vm: &str) -> Result<Vec<Work>, Error> {
        self.under_lease(|epoch| self.client.give_back(&self.host, epoch, request, vm)).map(|list| list.work)
    }

    fn offlined(&self, slice: &Slice) -> Result<(), Error> {
        self.under_lease(|epoch| self.client.offlined(&self.host, epoch, slice))
    }

    fn offline_failed(&self, slice: &Slice, why: &str) -> Result<(), Error> {
        self.under_lease(|epoch| self.client.offline_failed(&self.host, epoch, slice, why))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use super::*;

    #[test]
    fn what_was_written_is_not_clean_and_what_was_punched_is() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        assert!(is_clean(&file));
        file.seek(SeekFrom::Start(1 << 19)).unwrap();
        file.write_all(b"marker").unwrap();
        file.sync_all().unwrap();
        assert!(!is_clean(&file));
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, flags, 0, 1 << 20).unwrap();
        assert!(is_clean(&file));
    }
}
