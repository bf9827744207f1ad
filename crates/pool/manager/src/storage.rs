//! Storage of the ledger: one file. A transaction is atomic, and synced to disk before its requests are answered.
//!
//! Rows are JSON, so that later versions can add fields, and operators can read them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use pool::{EmcId, Kept, VmId};
use redb::{Database, Durability, Key, ReadableTable, Table, TableDefinition, TableHandle, WriteTransaction};
use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::chain::{Chain, Hash};
use crate::ledger::{Host, Ledger, Vm};
use crate::mark::{self, MarkFile};

/// Version of the rows' format.
const SCHEMA: u32 = 1;
/// Cache for the file: large enough for the largest pool.
const CACHE_BYTES: usize = 16 << 20;

const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");
const EMCS: TableDefinition<'_, u16, &[u8]> = TableDefinition::new("emcs");
const SLICES: TableDefinition<'_, (u16, u32), &[u8]> = TableDefinition::new("slices");
const VMS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("vms");
const HOSTS: TableDefinition<'_, u16, &[u8]> = TableDefinition::new("hosts");

/// What to do about a ledger that cannot be believed. A restored backup is refused as well, unless nothing has happened since.
const REMEDY: &str =
    "run `thermocline pool manager recover`, which makes a new ledger from the slices' files and locks; guests keep running";

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
    #[error("the ledger {path} has an invalid row, {row}: {why}; {REMEDY}")]
    Row {
        /// The ledger's file.
        path: PathBuf,
        /// The row.
        row: String,
        /// Why it is invalid.
        why: String,
    },
    /// Its rows are not those that were written last.
    #[error("the ledger {path} is damaged: its rows do not match their checksum; {REMEDY}")]
    Damaged {
        /// The ledger's file.
        path: PathBuf,
    },
    /// It does not belong to the slices' files.
    #[error("the ledger {path} does not belong to the slices in {directory}: {why}; {REMEDY}")]
    Other {
        /// The ledger's file.
        path: PathBuf,
        /// The pool's directory.
        directory: PathBuf,
        /// The cause.
        why: &'static str,
    },
    /// The mark in the pool's directory cannot be used.
    #[error(transparent)]
    Mark(#[from] mark::Error),
    /// No random number.
    #[error("cannot draw the pool's identity: the system gives no random numbers")]
    Random,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    schema: u32,
    slice_bytes: Bytes,
    next_vm: u64,
    /// Where a member of a group stands in the log of the group; absent for a manager alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    position: Option<String>,
    /// Not in ledgers of earlier versions.
    #[serde(default)]
    chain: Chain,
}

impl About {
    /// Its fields without the chain, which covers them.
    fn fields(&self) -> Vec<u8> {
        let fields = (self.schema, self.slice_bytes, self.next_vm);
        self.position.as_ref().map_or_else(|| json(&fields), |position| json(&(fields, position)))
    }
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
    /// Where a member of a group stands in the log of the group; `None` for a manager alone.
    pub position: Option<String>,
    /// State of the pool's state machine.
    pub kept: Kept,
    /// Hosts by number.
    pub hosts: Vec<Host>,
    /// Names and requests of VMs.
    pub vms: BTreeMap<VmId, Vm>,
}

/// The ledger's file, and the mark of it in the pool's directory. After an error the file is closed, and reopened at its next use: its
/// contents are authoritative.
#[derive(Debug)]
pub(crate) struct Storage {
    path: PathBuf,
    database: Option<Database>,
    directory: PathBuf,
    mark: MarkFile,
    /// The chain of what was loaded or saved last.
    chain: Chain,
    /// Whether the mark is that of the chain.
    is_marked: bool,
    /// Saved with the next change: where a member of a group stands in its log.
    pub(crate) position: Option<String>,
}

impl Storage {
    /// Opens the file, or creates it, for the slices in `directory`, which no other manager may use meanwhile.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn open(path: &Path, directory: &Path) -> Result<Self, Error> {
        let mark = MarkFile::open(directory)?;
        let mut random = [0; 16];
        aws_lc_rs::rand::fill(&mut random).map_err(|_| Error::Random)?;
        let chain = Chain::start(random);
        let mut storage =
            Self { path: path.to_owned(), database: None, directory: directory.to_owned(), mark, chain, is_marked: false, position: None };
        storage.database()?;
        Ok(storage)
    }

    fn database(&mut self) -> Result<&Database, Error> {
        let database = match self.database.take() {
            Some(database) => database,
            None => {
                let open = || Database::builder().set_cache_size(CACHE_BYTES).create(&self.path);
                self.guarded(open)?.map_err(|error| self.error(error.into()))?
            }
        };
        Ok(self.database.insert(database))
    }

    /// Calls the store's library, which panics on some damaged files.
    fn guarded<T>(&self, call: impl FnOnce() -> T) -> Result<T, Error> {
        catch_unwind(AssertUnwindSafe(call)).map_err(|_| Error::Damaged { path: self.path.clone() })
    }

    /// The hash of all rows.
    pub(crate) fn rows(&self) -> Hash {
        self.chain.rows
    }

    fn error(&self, source: redb::Error) -> Error {
        let path = self.path.clone();
        match source {
            redb::Error::DatabaseAlreadyOpen => Error::InUse { path },
            redb::Error::Io(ref io) if is_full(io.kind()) => Error::Full { path, source },
            source => Error::Store { path, source },
        }
    }

    /// Reads the contents; `None` if nothing was written yet. `has_files`: the pool's directory has files of slices.
    ///
    /// # Errors
    /// [`enum@Error`]: among others, contents that are not the last ones that were written beside these files.
    pub(crate) fn load(&mut self, has_files: bool) -> Result<Option<Stored>, Error> {
        let path = self.path.clone();
        self.database()?;
        let rows = self.guarded(|| self.database.as_ref().map_or(Ok(None), rows::read))?.map_err(|error| self.error(error))?;
        let mark = self.mark.read()?;
        let other = |why| Error::Other { path: path.clone(), directory: self.directory.clone(), why };
        let Some(rows) = rows else {
            return if mark.is_some() || has_files { Err(other("it is new, and they were made before")) } else { Ok(None) };
        };
        let (about, stored) = rows.stored(&path)?;
        let hash = rows.hash();
        if !about.chain.is_intact(hash, &about.fields()) {
            return Err(Error::Damaged { path });
        }
        // A ledger of an earlier version has no chain, and one that was upgraded a moment ago perhaps no mark.
        let chain = if about.chain.sequence == 0 { Chain { rows: hash, ..self.chain } } else { about.chain };
        let disagrees = match mark {
            Some(mark) => chain.disagrees(&mark),
            None => (has_files && chain.sequence > 1).then_some("they have no mark of it"),
        };
        if let Some(why) = disagrees {
            return Err(other(why));
        }
        (self.chain, self.is_marked) = (chain, mark == Some(chain.mark()));
        self.position.clone_from(&stored.position);
        Ok(Some(stored))
    }

    /// Writes the difference between two ledgers, or all of `after` without `before`. Returns when it is on disk.
    ///
    /// # Errors
    /// [`enum@Error`]. The change may be on disk or not; [`Self::load`] reads what is.
    pub(crate) fn save(&mut self, before: Option<&Ledger>, after: &Ledger) -> Result<(), Error> {
        if !self.is_marked && self.chain.sequence > 0 {
            self.mark.write(&self.chain.mark())?;
            self.is_marked = true;
        }
        let (path, chain) = (self.path.clone(), self.chain);
        self.database()?;
        let nothing = || Ok(Written::Nothing);
        let position = self.position.clone();
        let written =
            self.guarded(|| self.database.as_ref().map_or_else(nothing, |database| write(database, &chain, position, before, after)));
        let written = written.and_then(|written| written.map_err(|error| self.error(error)));
        if written.is_err() {
            // After an error the database refuses all operations until it is reopened.
            self.database = None;
        }
        match written? {
            Written::Nothing => Ok(()),
            Written::Elsewhere => Err(Error::Damaged { path }),
            Written::Changes(chain) => self.marked(chain),
        }
    }
}

/// Whether an error means that the disk, the quota or the file size limit is exhausted.
fn is_full(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind as K;
    matches!(kind, K::StorageFull | K::QuotaExceeded | K::FileTooLarge)
}

/// What a transaction did.
enum Written {
    /// All rows were as they should be.
    Nothing,
    /// The file is not what was loaded or saved last; nothing was written.
    Elsewhere,
    /// The chain after it.
    Changes(Chain),
}

/// Rows that a transaction changes, and the hash of all rows.
struct Changes {
    rows: Hash,
    changed: bool,
}

impl Changes {
    /// Replaces a row, unless it is the same.
    fn put<'k, K: Key + 'static>(
        &mut self,
        table: &mut Table<'_, K, &'static [u8]>,
        key: &K::SelfType<'k>,
        value: &[u8],
    ) -> Result<(), redb::Error> {
        let bytes = K::as_bytes(key).as_ref().to_vec();
        let was = table.get(key)?.map(|row| row.value().to_vec());
        if was.as_deref() == Some(value) {
            return Ok(());
        }
        let name = table.name().to_owned();
        self.removed(&name, &bytes, was.as_deref());
        self.rows.toggle(Hash::row(&name, &bytes, value));
        self.changed = true;
        table.insert(key, value)?;
        Ok(())
    }

    fn removed(&mut self, name: &str, key: &[u8], value: Option<&[u8]>) {
        if let Some(value) = value {
            self.rows.toggle(Hash::row(name, key, value));
            self.changed = true;
        }
    }
}

fn write(
    database: &Database,
    chain: &Chain,
    position: Option<String>,
    before: Option<&Ledger>,
    after: &Ledger,
) -> Result<Written, redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    let was = transaction.open_table(ABOUT)?.get("pool")?.and_then(|row| serde_json::from_slice::<About>(row.value()).ok());
    if was.as_ref().is_some_and(|was| was.chain.sequence > 0 && was.chain != *chain) {
        transaction.abort()?;
        return Ok(Written::Elsewhere);
    }
    let mut changes = Changes { rows: chain.rows, changed: false };
    put_slices(&transaction, &mut changes, before, after)?;
    put_vms(&transaction, &mut changes, before, after)?;
    put_hosts(&transaction, &mut changes, before, after)?;
    let (slice_bytes, next_vm) = (after.layout().slice_bytes, after.next_vm);
    let mut about = About { schema: SCHEMA, slice_bytes, next_vm, position, chain: Chain::default() };
    if !changes.changed && was.as_ref().is_some_and(|was| was.chain.sequence > 0 && was.fields() == about.fields()) {
        transaction.abort()?;
        return Ok(Written::Nothing);
    }
    about.chain = chain.next(changes.rows, &about.fields());
    transaction.open_table(ABOUT)?.insert("pool", json(&about).as_slice())?;
    transaction.commit()?;
    Ok(Written::Changes(about.chain))
}

fn put_hosts(transaction: &WriteTransaction, changes: &mut Changes, before: Option<&Ledger>, after: &Ledger) -> Result<(), redb::Error> {
    let mut hosts = transaction.open_table(HOSTS)?;
    for (id, host) in (0u16..).zip(&after.hosts) {
        if before.and_then(|ledger| ledger.hosts.get(usize::from(id))).is_none_or(|was| was != host) {
            changes.put(&mut hosts, &id, &json(host.as_ref()))?;
        }
    }
    Ok(())
}

fn put_slices(transaction: &WriteTransaction, changes: &mut Changes, before: Option<&Ledger>, after: &Ledger) -> Result<(), redb::Error> {
    let mut emcs = transaction.open_table(EMCS)?;
    let mut slices = transaction.open_table(SLICES)?;
    let mut was = before.map(|ledger| ledger.pool().slices());
    for (slice, record) in after.pool().slices() {
        if slice.index == 0 {
            let works = after.pool().emc_works(slice.emc);
            if before.is_none_or(|ledger| ledger.pool().emc_works(slice.emc) != works) {
                changes.put(&mut emcs, &slice.emc.0, &json(&works))?;
            }
        }
        if was.as_mut().and_then(Iterator::next).is_none_or(|(_, was)| was != record) {
            changes.put(&mut slices, &(slice.emc.0, slice.index), &json(record))?;
        }
    }
    Ok(())
}

fn put_vms(transaction: &WriteTransaction, changes: &mut Changes, before: Option<&Ledger>, after: &Ledger) -> Result<(), redb::Error> {
    let mut rows = transaction.open_table(VMS)?;
    for (id, vm) in &after.vms {
        let Some(lease) = after.pool().leases().get(id) else { continue };
        if before.is_none_or(|ledger| ledger.pool().leases().get(id) != Some(lease)) {
            let row = VmRow { vm: vm.as_ref().clone(), emc: lease.emc, slices: lease.slices.clone() };
            changes.put(&mut rows, &id.0, &json(&row))?;
        }
    }
    for id in before.map(|ledger| &ledger.vms).into_iter().flatten().map(|(id, _)| id) {
        if !after.vms.contains_key(id) {
            let was = rows.remove(id.0)?.map(|row| row.value().to_vec());
            changes.removed(VMS.name(), &id.0.to_le_bytes(), was.as_deref());
        }
    }
    Ok(())
}

/// Serializes a row; all rows can be JSON.
fn json<T: Serialize>(row: &T) -> Vec<u8> {
    serde_json::to_vec(row).unwrap_or_default()
}

mod rows;
mod snapshot;

#[cfg(test)]
mod tests;
