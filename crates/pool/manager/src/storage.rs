//! Storage of the ledger: one file. A transaction is atomic, and synced to disk before its requests are answered.
//!
//! Rows are JSON, so that later versions can add fields, and operators can read them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pool::{EmcId, Kept, Lease, Record, SliceId, VmId};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::ledger::{Host, Ledger, Vm};

/// Version of the rows' format.
const SCHEMA: u32 = 1;
/// Cache for the file: large enough for the largest pool.
const CACHE_BYTES: usize = 16 << 20;

const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");
const EMCS: TableDefinition<'_, u16, &[u8]> = TableDefinition::new("emcs");
const SLICES: TableDefinition<'_, (u16, u32), &[u8]> = TableDefinition::new("slices");
const VMS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("vms");
const HOSTS: TableDefinition<'_, u16, &[u8]> = TableDefinition::new("hosts");

/// An error of the ledger's storage.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk is full.
    #[error("the disk under the ledger {path} is full: {source}")]
    Full {
        /// The ledger's file.
        path: PathBuf,
        /// The cause.
        source: redb::Error,
    },
    /// Another process has the file open.
    #[error("another process has the ledger {path} open: one manager per pool")]
    InUse {
        /// The ledger's file.
        path: PathBuf,
    },
    /// The file cannot be read or written.
    #[error("cannot use the ledger {path}: {source}")]
    Store {
        /// The ledger's file.
        path: PathBuf,
        /// The cause.
        source: redb::Error,
    },
    /// A row is invalid.
    #[error(
        "the ledger {path} has an invalid row, {row}: {why}; restore the ledger from a backup, or create a new pool once no guest uses this one"
    )]
    Row {
        /// The ledger's file.
        path: PathBuf,
        /// The row.
        row: String,
        /// Why it is invalid.
        why: String,
    },
    /// The file has another format version.
    #[error("the ledger {path} has schema {found}; this program writes {SCHEMA}")]
    Schema {
        /// The ledger's file.
        path: PathBuf,
        /// Version found.
        found: u32,
    },
}

/// Properties of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    schema: u32,
    slice_bytes: Bytes,
    next_vm: u64,
}

#[derive(Serialize, Deserialize)]
struct VmRow {
    #[serde(flatten)]
    vm: Vm,
    emc: EmcId,
    slices: Vec<u32>,
}

/// Contents of the ledger's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Size of a slice.
    pub slice_bytes: Bytes,
    /// Number of the next VM.
    pub next_vm: u64,
    /// State of the pool's state machine.
    pub kept: Kept,
    /// Hosts by number.
    pub hosts: Vec<Host>,
    /// Names and requests of VMs.
    pub vms: BTreeMap<VmId, Vm>,
}

/// The ledger's file. After an error it is closed, and reopened at its next use: its contents are authoritative.
#[derive(Debug)]
pub(crate) struct Storage {
    path: PathBuf,
    database: Option<Database>,
}

impl Storage {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let mut storage = Self { path: path.to_owned(), database: None };
        storage.database()?;
        Ok(storage)
    }

    fn database(&mut self) -> Result<&Database, Error> {
        let database = match self.database.take() {
            Some(database) => database,
            None => Database::builder().set_cache_size(CACHE_BYTES).create(&self.path).map_err(|error| self.error(error.into()))?,
        };
        Ok(self.database.insert(database))
    }

    fn error(&self, source: redb::Error) -> Error {
        let path = self.path.clone();
        match source {
            redb::Error::DatabaseAlreadyOpen => Error::InUse { path },
            redb::Error::Io(ref io) if is_full(io.kind()) => Error::Full { path, source },
            source => Error::Store { path, source },
        }
    }

    /// Reads the contents; `None` if nothing was written yet.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn load(&mut self) -> Result<Option<Stored>, Error> {
        let path = self.path.clone();
        let rows = read(self.database()?).map_err(|error| self.error(error))?;
        rows.map(|rows| rows.stored(&path)).transpose()
    }

    /// Writes the difference between two ledgers, or all of `after` without `before`. Returns when it is on disk.
    ///
    /// # Errors
    /// [`enum@Error`]. The change may be on disk or not; [`Self::load`] reads what is.
    pub(crate) fn save(&mut self, before: Option<&Ledger>, after: &Ledger) -> Result<(), Error> {
        let written = write(self.database()?, before, after);
        written.map_err(|error| {
            // After an error the database refuses all operations until it is reopened.
            self.database = None;
            self.error(error)
        })
    }
}

/// Whether an error means that the disk, the quota or the file size limit is exhausted.
fn is_full(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind as K;
    matches!(kind, K::StorageFull | K::QuotaExceeded | K::FileTooLarge)
}

fn write(database: &Database, before: Option<&Ledger>, after: &Ledger) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    let about = |ledger: &Ledger| About { schema: SCHEMA, slice_bytes: ledger.layout().slice_bytes, next_vm: ledger.next_vm };
    transaction.open_table(ABOUT)?.insert("pool", json(&about(after)).as_slice())?;
    put_slices(&transaction, before, after)?;
    put_vms(&transaction, before, after)?;
    let mut hosts = transaction.open_table(HOSTS)?;
    for (id, host) in (0u16..).zip(&after.hosts) {
        if before.and_then(|ledger| ledger.hosts.get(usize::from(id))).is_none_or(|was| was != host) {
            hosts.insert(id, json(host.as_ref()).as_slice())?;
        }
    }
    drop(hosts);
    transaction.commit()?;
    Ok(())
}

fn put_slices(transaction: &WriteTransaction, before: Option<&Ledger>, after: &Ledger) -> Result<(), redb::Error> {
    let mut emcs = transaction.open_table(EMCS)?;
    let mut slices = transaction.open_table(SLICES)?;
    let mut was = before.map(|ledger| ledger.pool().slices());
    for (slice, record) in after.pool().slices() {
        if slice.index == 0 {
            let works = after.pool().emc_works(slice.emc);
            if before.is_none_or(|ledger| ledger.pool().emc_works(slice.emc) != works) {
                emcs.insert(slice.emc.0, json(&works).as_slice())?;
            }
        }
        if was.as_mut().and_then(Iterator::next).is_none_or(|(_, was)| was != record) {
            slices.insert((slice.emc.0, slice.index), json(record).as_slice())?;
        }
    }
    Ok(())
}

fn put_vms(transaction: &WriteTransaction, before: Option<&Ledger>, after: &Ledger) -> Result<(), redb::Error> {
    let mut rows = transaction.open_table(VMS)?;
    for (id, vm) in &after.vms {
        let Some(lease) = after.pool().leases().get(id) else { continue };
        if before.is_none_or(|ledger| ledger.pool().leases().get(id) != Some(lease)) {
            let row = VmRow { vm: vm.as_ref().clone(), emc: lease.emc, slices: lease.slices.clone() };
            rows.insert(id.0, json(&row).as_slice())?;
        }
    }
    for id in before.map(|ledger| &ledger.vms).into_iter().flatten().map(|(id, _)| id) {
        if !after.vms.contains_key(id) {
            rows.remove(id.0)?;
        }
    }
    Ok(())
}

/// Serializes a row; all rows can be JSON.
fn json<T: Serialize>(row: &T) -> Vec<u8> {
    serde_json::to_vec(row).unwrap_or_default()
}

/// Rows as stored.
#[derive(Default)]
struct Rows {
    about: Vec<u8>,
    emcs: Vec<(u16, Vec<u8>)>,
    slices: Vec<(SliceId, Vec<u8>)>,
    vms: Vec<(u64, Vec<u8>)>,
    hosts: Vec<(u16, Vec<u8>)>,
}

fn read(database: &Database) -> Result<Option<Rows>, redb::Error> {
    let transaction = database.begin_read()?;
    let about = match transaction.open_table(ABOUT) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
        about => about?,
    };
    let Some(about) = about.get("pool")? else { return Ok(None) };
    let mut rows = Rows { about: about.value().to_vec(), ..Rows::default() };
    for row in transaction.open_table(EMCS)?.iter()? {
        let (emc, row) = row?;
        rows.emcs.push((emc.value(), row.value().to_vec()));
    }
    for row in transaction.open_table(SLICES)?.iter()? {
        let (place, row) = row?;
        let (emc, index) = place.value();
        rows.slices.push((SliceId { emc: EmcId(emc), index }, row.value().to_vec()));
    }
    for row in transaction.open_table(VMS)?.iter()? {
        let (vm, row) = row?;
        rows.vms.push((vm.value(), row.value().to_vec()));
    }
    for row in transaction.open_table(HOSTS)?.iter()? {
        let (host, row) = row?;
        rows.hosts.push((host.value(), row.value().to_vec()));
    }
    Ok(Some(rows))
}

impl Rows {
    /// Parses the rows, which are in the order of their keys. A missing row is an error.
    fn stored(&self, path: &Path) -> Result<Stored, Error> {
        let invalid = |row: String, why: &str| Error::Row { path: path.to_owned(), row, why: why.to_owned() };
        let About { schema, slice_bytes, next_vm } = parse(path, || "about".to_owned(), &self.about)?;
        if schema != SCHEMA {
            return Err(Error::Schema { path: path.to_owned(), found: schema });
        }
        let mut stored = Stored { slice_bytes, next_vm, ..Stored::default() };
        for (emc, row) in &self.emcs {
            if usize::from(*emc) != stored.kept.works.len() {
                return Err(invalid(format!("EMC {emc}"), "a row before it is missing"));
            }
            stored.kept.works.push(parse(path, || format!("EMC {emc}"), row)?);
            stored.kept.slices.push(Vec::new());
        }
        for (slice, row) in &self.slices {
            let name = || format!("slice {}/{}", slice.emc.0, slice.index);
            let of = stored.kept.slices.get_mut(usize::from(slice.emc.0)).filter(|of| of.len() == slice.index as usize);
            let record: Record = parse(path, name, row)?;
            of.ok_or_else(|| invalid(name(), "a row before it is missing"))?.push(record);
        }
        for (id, row) in &self.vms {
            let VmRow { vm, emc, slices } = parse(path, || format!("VM {id}"), row)?;
            stored.kept.leases.insert(VmId(*id), Lease { host: vm.host, emc, slices });
            stored.vms.insert(VmId(*id), vm);
        }
        for (id, row) in &self.hosts {
            if usize::from(*id) != stored.hosts.len() {
                return Err(invalid(format!("host {id}"), "a row before it is missing"));
            }
            stored.hosts.push(parse(path, || format!("host {id}"), row)?);
        }
        Ok(stored)
    }
}

fn parse<T: DeserializeOwned>(path: &Path, row: impl Fn() -> String, text: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(text).map_err(|error| Error::Row { path: path.to_owned(), row: row(), why: error.to_string() })
}

#[cfg(test)]
mod tests;
