//! The entries of the log, and the types that the consensus library needs.

use std::io::Cursor;
use std::path::PathBuf;

use openraft::BasicNode;
use pool::{Ns, Slices};
use serde::{Deserialize, Serialize};
use units::Bytes;

use super::origin::Origin;
use crate::chain::Hash;
use crate::ledger::Request;
use crate::settings::{Emc, Settings};

openraft::declare_raft_types!(
    /// The types of the log.
    pub(crate) Types:
        D = Change,
        R = Effect,
        NodeId = u64,
        Node = BasicNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = Cursor<Vec<u8>>,
);

/// A message with its group, sender and receiver, so that members of an earlier group and a wrong order of members are found.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Envelope<T> {
    pub(crate) group: Option<Hash>,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The files of the sender; `None` of versions whose files had no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<Origin>,
    pub(crate) message: T,
}

/// Whether an entry had an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Effect(pub(crate) bool);

/// A change of the ledger: an entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    /// Number of the change before it. If it is another one, this change was made for an earlier state, and has no effect.
    pub(crate) after: u64,
    /// The leader's time.
    pub(crate) now: Ns,
    /// What changes.
    pub(crate) what: What,
}

/// What an entry changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum What {
    /// The leader's configuration is new.
    Rules(Rules),
    /// Requests that the leader did not refuse.
    Requests {
        /// When the lease of each host expires.
        until: Vec<Ns>,
        /// The hash of all rows before it.
        rows: Hash,
        /// The requests, in their order.
        requests: Vec<Request>,
    },
}

/// The part of the configuration that the outcome of requests depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rules {
    slice_size: Bytes,
    emcs: Vec<(u32, Option<PathBuf>)>,
    hosts: Vec<String>,
    buffer_slices: Slices,
    host_slices: Option<Slices>,
    lease: Ns,
    answer_within: Ns,
    ask_again_after: Ns,
}

impl Rules {
    /// The rules of a configuration.
    pub(crate) fn of(settings: &Settings) -> Self {
        Self {
            slice_size: settings.slice_size,
            emcs: settings.emcs.iter().map(|emc| (emc.slices, emc.device.clone())).collect(),
            hosts: settings.hosts.clone(),
            buffer_slices: settings.buffer_slices,
            host_slices: settings.host_slices,
            lease: settings.lease,
            answer_within: settings.answer_within,
            ask_again_after: settings.ask_again_after,
        }
    }

    /// The rules before the first entry: a pool without slices and hosts.
    pub(crate) fn none(settings: &Settings) -> Self {
        Self { emcs: Vec::new(), hosts: Vec::new(), buffer_slices: Slices::ZERO, ..Self::of(settings) }
    }

    /// Duration of a lease.
    pub(crate) fn lease(&self) -> Ns {
        self.lease
    }

    /// A configuration with these rules in place of its own.
    pub(crate) fn over(&self, settings: &Settings) -> Settings {
        Settings {
            slice_size: self.slice_size,
            emcs: self.emcs.iter().map(|(slices, device)| Emc { slices: *slices, device: device.clone() }).collect(),
            hosts: self.hosts.clone(),
            buffer_slices: self.buffer_slices,
            host_slices: self.host_slices,
            lease: self.lease,
            answer_within: self.answer_within,
            ask_again_after: self.ask_again_after,
            ..settings.clone()
        }
    }
}
