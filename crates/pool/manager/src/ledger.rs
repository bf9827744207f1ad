//! The book on disk: one file, in which each transaction is all there or not at all, and is synced before anybody is answered.
//!
//! Rows are JSON, so that a later version can add to them and people can read them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pool::{EmcId, Kept, Lease, Record, SliceId, VmId};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::book::{Book, Host, Vm};

/// The form of the rows.
const SCHEMA: u32 = 1;
/// How much of the file is kept in memory: all of it, for any pool that can be.
const CACHE_BYTES: usize = 16 << 20;

const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");
const EMCS: TableDefinition<'_, u16, &[u8]> = TableDefinition::new("emcs");
const SLICES: TableDefinition<'_, (u16, u32), &[u8]> = TableDefinition::new("slices");
const VMS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("vms");
const HOSTS: TableDefinition<'_, u16, &[u8]> = TableDefinition::new("hosts");

/// What is wrong with a ledger.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk is full.
    #[error("the disk under the ledger {path} is full: {source}")]
    Full {
        /// The ledger.
        path: PathBuf,
        /// What the system said.
        source: redb::Error,
    },
    /// Another manager has it.
    #[error("another process has the ledger {path} open: one manager per pool")]
    InUse {
        /// The ledger.
        path: PathBuf,
    },
    /// It cannot be read or written.
    #[error("cannot use the ledger {path}: {source}")]
    Store {
        /// The ledger.
        path: PathBuf,
        /// What is wrong.
        source: redb::Error,
    },
    /// A row is not what it should be.
    #[error("the ledger {path} has a bad row {row}: {why}; restore it from a backup, or begin a new pool once no guest uses this one")]
    Row {
        /// The ledger.
        path: PathBuf,
        /// Which row.
        row: String,
        /// What is wrong with it.
        why: String,
    },
    /// Another version wrote it.
    #[error("the ledger {path} has schema {found}; this program writes {SCHEMA}")]
    Schema {
        /// The ledger.
        path: PathBuf,
        /// As found.
        found: u32,
    },
}

/// What a ledger is about.
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

/// All that a ledger holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The size of a slice.
    pub slice_bytes: Bytes,
    /// The number of the next VM.
    pub next_vm: u64,
    /// What the core needs.
    pub kept: Kept,
    /// By number.
    pub hosts: Vec<Host>,
    /// What the service knows of VMs.
    pub vms: BTreeMap<VmId, Vm>,
}

/// A ledger. After an error it is closed, and opened anew when it is next used: what is on disk then is what counts.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    database: Option<Database>,
}

impl Ledger {
    /// Opens a ledger, or begins one.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let mut ledger = Self { path: path.to_owned(), database: None };
        ledger.database()?;
        Ok(ledger)
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

    /// All that is in it; none if nothing was ever written.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn load(&mut self) -> Result<Option<Stored>, Error> {
        let path = self.path.clone();
        let rows = read(self.database()?).map_err(|error| self.error(error))?;
        rows.map(|rows| rows.stored(&path)).transpose()
    }

    /// Writes what has changed between two books, and returns when it is on the disk. `begin` writes everything.
    ///
    /// # Errors
    /// [`enum@Error`]. Whether the change is on disk is not known then; [`Self::load`] tells.
    pub(crate) fn save(&mut self, before: Option<&Book>, after: &Book) -> Result<(), Error> {
        let written = write(self.database()?, before, after);
        written.map_err(|error| {
            // A store that had an error once does nothing more until it is opened anew.
            self.database = None;
            self.error(error)
        })
    }
}

/// No room on the disk, within the quota, or within the limit of file sizes.
fn is_full(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind as K;
    matches!(kind, K::StorageFull | K::QuotaExceeded | K::FileTooLarge)
}

fn write(database: &Database, before: Option<&Book>, after: &Book) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    let about = |book: &Book| About { schema: SCHEMA, slice_bytes: book.layout().slice_bytes, next_vm: book.next_vm };
    transaction.open_table(ABOUT)?.insert("pool", json(&about(after)).as_slice())?;
    put_slices(&transaction, before, after)?;
    put_vms(&transaction, before, after)?;
    let mut hosts = transaction.open_table(HOSTS)?;
    for (id, host) in (0u16..).zip(&after.hosts) {
        if before.and_then(|book| book.hosts.get(usize::from(id))).is_none_or(|was| was != host) {
            hosts.insert(id, json(host.as_ref()).as_slice())?;
        }
    }
    drop(hosts);
    transaction.commit()?;
    Ok(())
}

fn put_slices(transaction: &WriteTransaction, before: Option<&Book>, after: &Book) -> Result<(), redb::Error> {
    let mut emcs = transaction.open_table(EMCS)?;
    let mut slices = transaction.open_table(SLICES)?;
    let mut was = before.map(|book| book.pool().slices());
    for (slice, record) in after.pool().slices() {
        if slice.index == 0 {
            let works = after.pool().emc_works(slice.emc);
            if before.is_none_or(|book| book.pool().emc_works(slice.emc) != works) {
                emcs.insert(slice.emc.0, json(&works).as_slice())?;
            }
        }
        if was.as_mut().and_then(Iterator::next).is_none_or(|(_, was)| was != record) {
            slices.insert((slice.emc.0, slice.index), json(record).as_slice())?;
        }
    }
    Ok(())
}

fn put_vms(transaction: &WriteTransaction, before: Option<&Book>, after: &Book) -> Result<(), redb::Error> {
    let mut rows = transaction.open_table(VMS)?;
    for (id, vm) in &after.vms {
        let Some(lease) = after.pool().leases().get(id) else { continue };
        if before.is_none_or(|book| book.pool().leases().get(id) != Some(lease)) {
            let row = VmRow { vm: vm.as_ref().clone(), emc: lease.emc, slices: lease.slices.clone() };
            rows.insert(id.0, json(&row).as_slice())?;
        }
    }
    for id in before.map(|book| &book.vms).into_iter().flatten().map(|(id, _)| id) {
        if !after.vms.contains_key(id) {
            rows.remove(id.0)?;
        }
    }
    Ok(())
}

/// Our own rows, of numbers, words and lists: they can all be JSON.
fn json<T: Serialize>(row: &T) -> Vec<u8> {
    serde_json::to_vec(row).unwrap_or_default()
}

/// The rows as they are in the file.
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
    /// Rows are in the order of their keys; one that is missing in between is a bad ledger.
    fn stored(&self, path: &Path) -> Result<Stored, Error> {
        let bad = |row: String, why: &str| Error::Row { path: path.to_owned(), row, why: why.to_owned() };
        let About { schema, slice_bytes, next_vm } = parse(path, || "about".to_owned(), &self.about)?;
        if schema != SCHEMA {
            return Err(Error::Schema { path: path.to_owned(), found: schema });
        }
        let mut stored = Stored { slice_bytes, next_vm, ..Stored::default() };
        for (emc, row) in &self.emcs {
            if usize::from(*emc) != stored.kept.works.len() {
                return Err(bad(format!("EMC {emc}"), "one before it is missing"));
            }
            stored.kept.works.push(parse(path, || format!("EMC {emc}"), row)?);
            stored.kept.slices.push(Vec::new());
        }
        for (slice, row) in &self.slices {
            let name = || format!("slice {}/{}", slice.emc.0, slice.index);
            let of = stored.kept.slices.get_mut(usize::from(slice.emc.0)).filter(|of| of.len() == slice.index as usize);
            let record: Record = parse(path, name, row)?;
            of.ok_or_else(|| bad(name(), "one before it is missing"))?.push(record);
        }
        for (id, row) in &self.vms {
            let VmRow { vm, emc, slices } = parse(path, || format!("VM {id}"), row)?;
            stored.kept.leases.insert(VmId(*id), Lease { host: vm.host, emc, slices });
            stored.vms.insert(VmId(*id), vm);
        }
        for (id, row) in &self.hosts {
            if usize::from(*id) != stored.hosts.len() {
                return Err(bad(format!("host {id}"), "one before it is missing"));
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
