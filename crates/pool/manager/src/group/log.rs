//! A member's part of the log, and its vote: one file beside the ledger. All is on disk before it is acknowledged.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{AnyError, Entry, LogId, LogState, OptionalSend, RaftLogReader, StorageError, StorageIOError, Vote};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::origin::Origin;
use super::types::Types;
use crate::chain::Hash;

/// Cache for the file.
const CACHE_BYTES: usize = 4 << 20;
/// Bytes of entries that are read for one message, unless the first is longer.
const READ_BYTES: usize = 2 << 20;

/// Entries by index: the hash of the entry, and the entry as JSON.
const ENTRIES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("entries");
/// The vote, the last entry that was removed from the front, whether the member joins, the identity of the group, and which files the
/// members have.
const STATE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("state");

/// What to do about a log that cannot be used.
const REMEDY: &str = "if the other members run, move this file and the ledger away and run `thermocline pool manager init --join`: this \
                      member then gets everything from them";

/// An error of the log.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is none.
    #[error(
        "the group's log {path} does not exist: for a new group, run `thermocline pool manager init` on each member; if the group exists, \
         this member has lost its files: run `thermocline pool manager init --join`"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// It exists already.
    #[error("{path} exists: this member was initialized before; move it and the ledger away first")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be read or written.
    #[error("cannot use the group's log {path}: {why}; {REMEDY}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
}

/// The open file. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    path: PathBuf,
    database: Arc<Database>,
    group: Arc<OnceLock<Hash>>,
    origin: Arc<OnceLock<Origin>>,
    /// The files of the other members, and whether others than these were reported.
    pub(super) known: Arc<Mutex<BTreeMap<u64, (Origin, bool)>>>,
}

type Read<T> = Result<T, Error>;

impl Log {
    /// Creates the file. With `joining`, its member has no vote until it has what the others have. `group` is the identity of a new group;
    /// without it, the member has that of the first message that it gets.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn create(path: &Path, joining: bool, group: Option<Hash>) -> Result<(), Error> {
        if path.exists() {
            return Err(Error::Exists { path: path.to_owned() });
        }
        // Renamed when it is whole: a file with this name has its vote.
        let draft = path.with_added_extension("new");
        let _ = std::fs::remove_file(&draft);
        let log = Self::at(&draft)?;
        let origin = log.draw(joining)?;
        log.write(|transaction| {
            transaction.open_table(ENTRIES)?;
            put(transaction, "joining", &joining)?;
            put(transaction, "origin", &origin)?;
            group.map_or(Ok(()), |group| put(transaction, "group", &group))
        })?;
        drop(log);
        std::fs::rename(&draft, path).map_err(|error| unusable(path, &error))
    }

    /// Refuses a member without the file.
    ///
    /// # Errors
    /// [`Error::Missing`]
    pub(crate) fn check_exists(path: &Path) -> Result<(), Error> {
        if path.exists() { Ok(()) } else { Err(Error::Missing { path: path.to_owned() }) }
    }

    /// Opens the file, and checks all entries.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Self::check_exists(path)?;
        let log = Self::at(path)?;
        let mut next = 0;
        while let Some(last) = log.entries(next..)?.last() {
            next = last.log_id.index + 1;
        }
        if let Some(group) = log.get("group")? {
            let _ = log.group.set(group);
        }
        let origin = match log.get("origin")? {
            Some(origin) => origin,
            // Files of a version that drew none.
            None => log.draw(false).and_then(|origin| log.put("origin", &origin).map(|()| origin))?,
        };
        let _ = log.origin.set(origin);
        Ok(log)
    }

    fn draw(&self, joined: bool) -> Result<Origin, Error> {
        let files = Hash::random().ok_or_else(|| unusable(&self.path, &"the system gives no random numbers"))?;
        Ok(Origin { files, joined })
    }

    fn at(path: &Path) -> Result<Self, Error> {
        let open = || Database::builder().set_cache_size(CACHE_BYTES).create(path);
        // The store's library panics on some damaged files.
        let opened = std::panic::catch_unwind(open).map_err(|_| unusable(path, &"it is damaged"))?;
        let database = Arc::new(opened.map_err(|error| unusable(path, &error))?);
        Ok(Self { path: path.to_owned(), database, group: Arc::default(), origin: Arc::default(), known: Arc::default() })
    }

    /// Refuses a log that ends before the entry that the ledger has applied, because entries and perhaps a vote are lost, and one that
    /// begins after the next entry.
    pub(crate) fn check_follows(&self, applied: Option<LogId<u64>>) -> Result<(), Error> {
        let state = self.state()?;
        let index = |id: Option<LogId<u64>>| id.map(|id| id.index);
        if index(applied) > index(state.last_log_id) {
            return Err(unusable(&self.path, &"it is older than the ledger beside it: entries were lost"));
        }
        if index(applied) < index(state.last_purged_log_id) {
            return Err(unusable(&self.path, &"the ledger beside it is older, and lacks entries that are not in the log any more"));
        }
        Ok(())
    }

    /// Whether there was never an entry or a vote.
    pub(crate) fn is_empty(&self) -> Result<bool, Error> {
        let vote: Option<Vote<u64>> = self.get("vote")?;
        Ok(vote.is_none() && self.state()?.last_log_id.is_none())
    }

    /// The identity of the group, if it is known.
    pub(crate) fn group(&self) -> Option<Hash> {
        self.group.get().copied()
    }

    /// Whether this is the identity of the group. The first one that is asked for becomes it.
    pub(crate) fn is_of(&self, group: Hash) -> Result<bool, Error> {
        if self.group.get().is_none() {
            self.write(|transaction| put(transaction, "group", &group))?;
        }
        Ok(*self.group.get_or_init(|| group) == group)
    }

    /// The files of this member.
    pub(crate) fn origin(&self) -> Option<Origin> {
        self.origin.get().copied()
    }

    /// Whether the member has no vote yet.
    pub(crate) fn joining(&self) -> Result<bool, Error> {
        Ok(self.get("joining")?.unwrap_or(false))
    }

    /// Sets whether the member has no vote.
    pub(crate) fn set_joining(&self, joining: bool) -> Result<(), Error> {
        self.put("joining", &joining)
    }

    fn write(&self, change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>) -> Result<(), Error> {
        let written = || {
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            change(&transaction)?;
            transaction.commit()?;
            Ok(())
        };
        written().map_err(|error: redb::Error| unusable(&self.path, &error))
    }

    pub(super) fn put<T: Serialize>(&self, key: &str, value: &T) -> Result<(), Error> {
        self.write(|transaction| put(transaction, key, value))
    }

    pub(super) fn get<T: DeserializeOwned>(&self, key: &str) -> Read<Option<T>> {
        let read = || -> Result<Option<Vec<u8>>, redb::Error> {
            let table = self.database.begin_read()?.open_table(STATE)?;
            Ok(table.get(key)?.map(|row| row.value().to_vec()))
        };
        let row = read().map_err(|error| unusable(&self.path, &error))?;
        row.map(|row| serde_json::from_slice(&row)).transpose().map_err(|error| unusable(&self.path, &error))
    }

    fn entries(&self, range: impl RangeBounds<u64>) -> Read<Vec<Entry<Types>>> {
        let read = || -> Result<Vec<(u64, Vec<u8>)>, redb::Error> {
            let table = self.database.begin_read()?.open_table(ENTRIES)?;
            let (mut rows, mut bytes) = (Vec::new(), 0);
            for row in table.range(range)? {
                let (index, row) = row?;
                bytes += row.value().len();
                if bytes > READ_BYTES && !rows.is_empty() {
                    break;
                }
                rows.push((index.value(), row.value().to_vec()));
            }
            Ok(rows)
        };
        let rows = read().map_err(|error| unusable(&self.path, &error))?;
        rows.iter().map(|(index, row)| parse(*index, row).map_err(|why| unusable(&self.path, &why))).collect()
    }

    fn state(&self) -> Read<LogState<Types>> {
        let last_purged_log_id: Option<LogId<u64>> = self.get("removed")?;
        let read = || -> Result<Option<(u64, Vec<u8>)>, redb::Error> {
            let table = self.database.begin_read()?.open_table(ENTRIES)?;
            Ok(table.last()?.map(|(index, row)| (index.value(), row.value().to_vec())))
        };
        let last = read().map_err(|error| unusable(&self.path, &error))?;
        let last = last.map(|(index, row)| parse(index, &row)).transpose().map_err(|why| unusable(&self.path, &why))?;
        let last_log_id = last.map(|entry| entry.log_id).or(last_purged_log_id);
        Ok(LogState { last_purged_log_id, last_log_id })
    }
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::Unusable { path: path.to_owned(), why: why.to_string() }
}

fn put<T: Serialize>(transaction: &WriteTransaction, key: &str, value: &T) -> Result<(), redb::Error> {
    transaction.open_table(STATE)?.insert(key, serde_json::to_vec(value).unwrap_or_default().as_slice())?;
    Ok(())
}

fn row(index: u64, entry: &Entry<Types>) -> Vec<u8> {
    let text = serde_json::to_vec(entry).unwrap_or_default();
    let hash = Hash::row("entries", &index.to_le_bytes(), &text).to_string();
    [hash.as_bytes(), &text].concat()
}

fn parse(index: u64, row: &[u8]) -> Result<Entry<Types>, String> {
    let (hash, text) = row.split_at_checked(32).ok_or_else(|| format!("entry {index} is cut off"))?;
    if Hash::row("entries", &index.to_le_bytes(), text).to_string().as_bytes() != hash {
        return Err(format!("entry {index} is damaged: it does not match its checksum"));
    }
    serde_json::from_slice(text).map_err(|error| format!("entry {index}: {error}"))
}

fn reading(error: &Error) -> StorageError<u64> {
    StorageIOError::read_logs(AnyError::error(error)).into()
}

fn writing(error: &Error) -> StorageError<u64> {
    StorageIOError::write_logs(AnyError::error(error)).into()
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<Types>>, StorageError<u64>> {
        // The library requires all of them. They are as many as it wants to apply at once.
        let mut all: Vec<Entry<Types>> = Vec::new();
        let mut start = range.start_bound().cloned();
        loop {
            let part = self.entries((start, range.end_bound().cloned())).map_err(|error| reading(&error))?;
            let Some(last) = part.last() else { return Ok(all) };
            start = Bound::Excluded(last.log_id.index);
            all.extend(part);
        }
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry<Types>>, StorageError<u64>> {
        self.entries(start..end).map_err(|error| reading(&error))
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError<u64>> {
        self.state().map_err(|error| reading(&error))
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), StorageError<u64>> {
        self.write(|transaction| put(transaction, "vote", vote)).map_err(|error| writing(&error))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, StorageError<u64>> {
        self.get("vote").map_err(|error| reading(&error))
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let rows: Vec<_> = entries.into_iter().map(|entry| (entry.log_id.index, row(entry.log_id.index, &entry))).collect();
        let written = self.write(|transaction| {
            let mut table = transaction.open_table(ENTRIES)?;
            for (index, row) in &rows {
                table.insert(index, row.as_slice())?;
            }
            Ok(())
        });
        written.map_err(|error| writing(&error))?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, from: LogId<u64>) -> Result<(), StorageError<u64>> {
        let cut = |transaction: &WriteTransaction| {
            transaction.open_table(ENTRIES)?.retain_in(from.index.., |_, _| false)?;
            Ok(())
        };
        self.write(cut).map_err(|error| writing(&error))
    }

    async fn purge(&mut self, to: LogId<u64>) -> Result<(), StorageError<u64>> {
        let cut = |transaction: &WriteTransaction| {
            transaction.open_table(ENTRIES)?.retain_in(..=to.index, |_, _| false)?;
            put(transaction, "removed", &to)
        };
        self.write(cut).map_err(|error| writing(&error))
    }
}
