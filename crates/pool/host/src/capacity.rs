//! The source of slices: a pool manager, as its hosts use it.

use std::fs::File;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use manager::api::{AssignRequest, Assignment, Code, Slice, Slices, Work};
use manager::client::{Client, Error, Refusal};
use units::Bytes;

/// The manager's answer to a renewal.
#[derive(Clone, Debug, PartialEq)]
pub struct Renewal {
    /// Duration of the lease from now.
    pub lease: Duration,
    /// After a new lease: the assignments that the manager has for this host's guests.
    pub assignments: Option<Vec<Assignment>>,
    /// Slices that the host must take offline.
    pub work: Vec<Work>,
}

/// A pool manager. Calls block for a limited time.
pub trait Capacity: Send + Sync {
    /// Renews the lease, or requests a new one if there is none.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn renew(&self) -> Result<Renewal, Error>;

    /// Size of a slice; `None` until the manager has answered once.
    fn slice_size(&self) -> Option<Bytes>;

    /// Requests slices for a guest. A repeated `request` has the same answer.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn assign(&self, request: &str, vm: &str, slices: Slices) -> Result<Vec<Slice>, Error>;

    /// Returns a guest's slices. The host must take the slices in the answer offline, and report each.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn give_back(&self, request: &str, vm: &str) -> Result<Vec<Work>, Error>;

    /// Reports that a slice is offline and its file is closed.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn offlined(&self, slice: &Slice) -> Result<(), Error>;

    /// Reports that a slice cannot be taken offline now.
    ///
    /// # Errors
    /// [`enum@Error`]
    fn offline_failed(&self, slice: &Slice, why: &str) -> Result<(), Error>;
}

/// Whether a report needs no repetition although it failed: the manager has received it before, or does not know its
/// subject.
#[must_use]
pub fn is_settled(error: &Error) -> bool {
    matches!(error.code(), Some(Code::Stale | Code::NotFound | Code::Over))
}

/// Whether a slice was not touched since it was scrubbed. Without `SEEK_DATA` support of the file system it is assumed
/// to be clean.
#[must_use]
pub fn is_clean(file: &File) -> bool {
    use rustix::fs::{SeekFrom, seek};
    match seek(file, SeekFrom::Data(0)) {
        // No data up to the end of the file.
        Err(rustix::io::Errno::NXIO) => true,
        Ok(_) => false,
        Err(error) => {
            log::warn!("cannot determine whether a slice was scrubbed: {error}");
            true
        }
    }
}

/// The manager that a client connects to.
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
    slice_size: Option<Bytes>,
}

impl Remote {
    /// Acts for `host`; `instance` identifies this run of its daemon.
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

    /// Makes a call under the lease. If the lease is void, it is dropped, and the next renewal requests a new one.
    fn under_lease<T>(&self, call: impl FnOnce(u64) -> Result<T, Error>) -> Result<T, Error> {
        let Some(epoch) = self.known().epoch else {
            let message = format!("{} has no lease of the pool manager yet; try again in a few seconds", self.host);
            return Err(Error::Refused(Refusal { code: Code::Fenced, message }));
        };
        let result = call(epoch);
        if result.as_ref().is_err_and(|error| error.code() == Some(Code::Fenced)) {
            self.set(|known| {
                if known.epoch == Some(epoch) {
                    known.epoch = None;
                }
            });
        }
        result
    }
}

impl Capacity for Remote {
    fn renew(&self) -> Result<Renewal, Error> {
        if self.known().slice_size.is_none() {
            let size = self.client.pool()?.slice_bytes;
            self.set(|known| known.slice_size = Some(size));
        }
        if self.known().epoch.is_some() {
            match self.under_lease(|epoch| self.client.renew(&self.host, epoch)) {
                Err(error) if error.code() == Some(Code::Fenced) => log::warn!("the lease of {} is void: {error}", self.host),
                Err(error) => return Err(error),
                Ok(renewed) => return Ok(Renewal { lease: seconds(renewed.lease_seconds), assignments: None, work: renewed.work }),
            }
        }
        let lease = self.client.lease(&self.host, &self.instance)?;
        self.set(|known| known.epoch = Some(lease.epoch));
        Ok(Renewal { lease: seconds(lease.lease_seconds), assignments: Some(lease.assignments), work: lease.work })
    }

    fn slice_size(&self) -> Option<Bytes> {
        self.known().slice_size
    }

    fn assign(&self, request: &str, vm: &str, slices: Slices) -> Result<Vec<Slice>, Error> {
        let body = |epoch| AssignRequest { epoch, request: request.to_owned(), vm: vm.to_owned(), slices };
        self.under_lease(|epoch| self.client.assign(&self.host, &body(epoch))).map(|assignment| assignment.slices)
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

/// A duration from the manager's messages; a value that is no duration counts as zero.
fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use super::*;

    #[test]
    fn a_slice_is_clean_until_written_and_after_punching() {
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
