//! The state machine of a member: its ledger, to which the entries of the log are applied in their order.
//!
//! The number of the applied entry is in the same transaction as the rows that it changed, so that no entry is applied twice or left
//! out, at whichever instruction the process is killed.

use std::io::Cursor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::RaftStateMachine;
use openraft::{
    AnyError, BasicNode, Entry, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta, StorageError,
    StorageIOError, StoredMembership,
};
use pool::{Generation, Ns, Record, State};
use serde::{Deserialize, Serialize};

use super::types::{Change, Effect, Rules, Types, What};
use crate::chain::Hash;
use crate::ledger::{Host, Ledger};
use crate::published::{Published, Shared};
use crate::restore::build_ledger;
use crate::settings::Settings;
use crate::storage::{self, Storage, Stored};

/// An error of a member's ledger.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its file cannot be used.
    #[error(transparent)]
    Storage(#[from] storage::Error),
    /// It belongs to a manager alone.
    #[error(
        "the ledger {path} is that of a manager that is in no group: move it away and run `thermocline pool manager init`, or remove [group]"
    )]
    Alone {
        /// The ledger's file.
        path: String,
    },
    /// It is inconsistent, or an entry cannot be applied to it.
    #[error(
        "the ledger of this member is inconsistent: {0}; move it and the group's log away, and run `thermocline pool manager init --join`"
    )]
    Inconsistent(String),
}

/// Where a member stands in the log, stored with its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    applied: Option<LogId<u64>>,
    membership: StoredMembership<u64, BasicNode>,
    /// Index of the last change.
    change: u64,
    /// Time of the last change.
    now: Ns,
    rules: Option<Rules>,
}

/// The ledger of a member.
#[derive(Debug)]
pub(crate) struct Core {
    settings: Settings,
    storage: Storage,
    position: Position,
    ledger: Ledger,
    published: Shared,
}

impl Core {
    /// Reads the ledger, or creates an empty one.
    ///
    /// # Errors
    /// [`enum@Error`]
    pub(crate) fn open(settings: &Settings, mut storage: Storage, now: Ns) -> Result<Self, Error> {
        let stored = storage.load(false)?;
        let is_new = stored.is_none();
        let stored = stored.unwrap_or_else(|| Stored { slice_bytes: settings.slice_size, next_vm: 1, ..Stored::default() });
        let position = match (&stored.position, is_new) {
            (Some(position), _) => serde_json::from_str(position).map_err(|error| Error::Inconsistent(error.to_string()))?,
            (None, true) => Position::default(),
            (None, false) => return Err(Error::Alone { path: settings.ledger.display().to_string() }),
        };
        let ledger = ledger(settings, &position, stored, now)?;
        let published = Shared::new(ledger.clone());
        let mut core = Self { settings: settings.clone(), storage, position, ledger, published };
        if is_new {
            core.storage.position = Some(core.position_text());
            core.storage.save(None, &core.ledger)?;
        }
        Ok(core)
    }

    fn position_text(&self) -> String {
        serde_json::to_string(&self.position).unwrap_or_default()
    }

    /// What readers get.
    pub(crate) fn published(&self) -> &Shared {
        &self.published
    }

    /// The last entry that was applied.
    pub(crate) fn applied(&self) -> Option<LogId<u64>> {
        self.position.applied
    }

    /// The ledger, the number and time of the last change, and the hash of all rows.
    pub(crate) fn base(&self) -> (Ledger, u64, Ns, Hash) {
        (self.ledger.clone(), self.position.change, self.position.now, self.storage.rows())
    }

    /// Whether the pool has these rules.
    pub(crate) fn has_rules(&self, rules: &Rules) -> bool {
        self.position.rules.as_ref() == Some(rules)
    }

    /// Whether these rules can be applied to the ledger.
    pub(crate) fn check_rules(&mut self, rules: &Rules, now: Ns) -> Result<(), Error> {
        self.with_rules(rules, now).map(drop)
    }

    /// Takes over what is not on disk, unless there were changes since `change`.
    pub(crate) fn remember(&mut self, change: u64, ledger: Ledger) {
        if self.position.change == change {
            self.ledger = ledger;
            self.publish();
        }
    }

    fn publish(&self) {
        self.published.set(Published { ledger: Arc::new(self.ledger.clone()), error: None });
    }

    fn apply(&mut self, entry: Entry<Types>) -> Result<Effect, Error> {
        let mut next = None;
        let mut effect = Effect(true);
        let mut position = self.position.clone();
        position.applied = Some(entry.log_id);
        match entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Membership(membership) => position.membership = StoredMembership::new(Some(entry.log_id), membership),
            EntryPayload::Normal(change) if change.after != position.change => effect = Effect(false),
            EntryPayload::Normal(change) => {
                (position.change, position.now) = (entry.log_id.index, change.now);
                next = Some(self.changed(change, &mut position)?);
            }
        }
        self.position = position;
        self.storage.position = Some(self.position_text());
        let next = next.unwrap_or_else(|| self.ledger.clone());
        // Without the former ledger all rows are compared: rules change more than the rows of requests.
        let before = (next.layout() == self.ledger.layout()).then_some(&self.ledger);
        self.storage.save(before, &next)?;
        self.ledger = next;
        self.publish();
        Ok(effect)
    }

    fn changed(&mut self, change: Change, position: &mut Position) -> Result<Ledger, Error> {
        let Change { now, what, .. } = change;
        match what {
            What::Rules(rules) => {
                let ledger = self.with_rules(&rules, now)?;
                position.rules = Some(rules);
                Ok(ledger)
            }
            What::Requests { until, rows, requests } => {
                if rows != self.storage.rows() {
                    return Err(Error::Inconsistent(format!("its rows before entry {} are not those of the leader", position.change)));
                }
                let mut next = self.ledger.clone().with_leases_until(&until);
                for request in &requests {
                    let differs = |refused: crate::api::ErrorResponse| {
                        Error::Inconsistent(format!("a request that the leader accepted is refused here: {}", refused.message))
                    };
                    next.apply(now, request).map_err(differs)?;
                }
                Ok(next)
            }
        }
    }

    /// The ledger with these rules. New slices are zeroed before they are free, and leases of a lost ledger are void.
    fn with_rules(&mut self, rules: &Rules, now: Ns) -> Result<Ledger, Error> {
        let settings = rules.over(&self.settings);
        let mut stored = self.storage.load(false)?.unwrap_or_default();
        if stored.kept.slices.is_empty() {
            stored.slice_bytes = settings.slice_size;
        }
        for (index, emc) in settings.emcs.iter().enumerate() {
            if index >= stored.kept.slices.len() {
                stored.kept.slices.push(Vec::new());
                stored.kept.works.push(true);
            }
            let works = stored.kept.works.get(index).copied().unwrap_or(true);
            let state = if works { State::Scrubbing { since: now } } else { State::Failed };
            let Some(slices) = stored.kept.slices.get_mut(index) else { continue };
            while slices.len() < emc.slices as usize {
                slices.push(Record { state, generation: Generation::default(), returned: None });
            }
        }
        for name in &settings.hosts {
            if !stored.hosts.iter().any(|host| host.name == *name) {
                stored.hosts.push(Host { name: name.clone(), epoch: now.0 / 1_000_000_000, ..Host::default() });
            }
        }
        build_ledger(&settings, stored, now).map_err(Error::Inconsistent)
    }

    /// Replaces everything by the copy of another member.
    fn replace(&mut self, copy: &[u8]) -> Result<(), Error> {
        let stored = self.storage.replace(copy)?;
        let text = stored.position.as_deref().unwrap_or_default();
        let position: Position = serde_json::from_str(text).map_err(|error| Error::Inconsistent(error.to_string()))?;
        self.ledger = ledger(&self.settings, &position, stored, position.now)?;
        self.position = position;
        self.publish();
        Ok(())
    }

    fn meta(&self) -> SnapshotMeta<u64, BasicNode> {
        let Position { applied, membership, .. } = self.position.clone();
        let snapshot_id = applied.map_or_else(|| "empty".to_owned(), |id| id.to_string());
        SnapshotMeta { last_log_id: applied, last_membership: membership, snapshot_id }
    }
}

fn ledger(settings: &Settings, position: &Position, stored: Stored, now: Ns) -> Result<Ledger, Error> {
    let rules = position.rules.clone().unwrap_or_else(|| Rules::none(settings));
    build_ledger(&rules.over(settings), stored, now).map_err(Error::Inconsistent)
}

/// A copy of the ledger, and up to which entry it is.
type Copy = (SnapshotMeta<u64, BasicNode>, Vec<u8>);

/// The state machine as the library uses it.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    core: Arc<Mutex<Core>>,
    /// The copy that was made or received last.
    copied: Arc<Mutex<Option<Copy>>>,
}

impl Machine {
    /// The state machine of a member.
    pub(crate) fn new(core: Arc<Mutex<Core>>) -> Self {
        Self { core, copied: Arc::default() }
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn copied(&self) -> MutexGuard<'_, Option<Copy>> {
        self.copied.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(error: &Error) -> StorageError<u64> {
    StorageIOError::write_state_machine(AnyError::error(error)).into()
}

fn snapshot((meta, bytes): Copy) -> Snapshot<Types> {
    Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) }
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError<u64>> {
        let copied = {
            let mut core = self.core();
            let bytes = core.storage.export().map_err(|error| failed(&error.into()))?;
            (core.meta(), bytes)
        };
        *self.copied() = Some(copied.clone());
        Ok(snapshot(copied))
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>), StorageError<u64>> {
        let core = self.core();
        Ok((core.position.applied, core.position.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Effect>, StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut core = self.core();
        let mut effects = Vec::new();
        for entry in entries {
            effects.push(core.apply(entry).map_err(|error| failed(&error))?);
        }
        Ok(effects)
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError<u64>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, BasicNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError<u64>> {
        let bytes = snapshot.into_inner();
        self.core().replace(&bytes).map_err(|error| failed(&error))?;
        log::info!("this member got a copy of the ledger, up to entry {}", meta.last_log_id.map_or(0, |id| id.index));
        *self.copied() = Some((meta.clone(), bytes));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError<u64>> {
        Ok(self.copied().clone().map(snapshot))
    }
}

#[cfg(test)]
mod tests;
