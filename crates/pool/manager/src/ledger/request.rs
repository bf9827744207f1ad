//! Requests to the ledger and its responses.

use pool::{EmcId, Generation, SliceId, Slices};
use serde::{Deserialize, Serialize};

use super::WHY_MAX;
use crate::api::{Assignment, Lease, RenewResponse, WorkList};

/// A request by a host, an operator, or the manager's maintenance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A host takes a lease.
    Lease {
        /// The host.
        host: String,
        /// Run of the host's daemon.
        instance: String,
    },
    /// A host renews its lease.
    Renew {
        /// The host.
        host: String,
        /// Epoch of its lease.
        epoch: u64,
    },
    /// A host requests slices for a VM that is about to start.
    Assign {
        /// Host that the VM starts on.
        host: String,
        /// Epoch of the host's lease.
        epoch: u64,
        /// The client's name for this request.
        request: String,
        /// The VM.
        vm: String,
        /// Number of slices.
        slices: Slices,
    },
    /// A host returns the slices of a VM.
    Return {
        /// Host that the VM ran on.
        host: String,
        /// Epoch of the host's lease.
        epoch: u64,
        /// The client's name for this request.
        request: String,
        /// The VM.
        vm: String,
    },
    /// A host reports that a slice is offline.
    Offlined {
        /// The host.
        host: String,
        /// Epoch of its lease.
        epoch: u64,
        /// The slice.
        slice: SliceId,
        /// Ownership generation of the slice.
        generation: Generation,
    },
    /// A host reports that it cannot take a slice offline.
    OfflineFailed {
        /// The host.
        host: String,
        /// Epoch of its lease.
        epoch: u64,
        /// The slice.
        slice: SliceId,
        /// Ownership generation of the slice.
        generation: Generation,
        /// The reason.
        why: String,
    },
    /// An EMC has failed.
    EmcFailed(EmcId),
    /// An EMC works again, and is empty.
    EmcRepaired(EmcId),
    /// The machine of a host is off, or cannot access the devices any more: its slices of devices are reclaimed.
    HostFenced(String),
    /// No process had locked a slice whose host has no lease; the manager has locked it.
    Abandoned {
        /// The slice.
        slice: SliceId,
        /// Ownership generation of the slice.
        generation: Generation,
    },
    /// A slice was zeroed.
    Scrubbed {
        /// The slice.
        slice: SliceId,
        /// Ownership generation of the slice.
        generation: Generation,
    },
    /// Time has passed.
    Tick,
}

/// The response to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// Response to a lease.
    Lease(Lease),
    /// Response to a renewal.
    Renewed(RenewResponse),
    /// Response to an assignment.
    Assignment(Assignment),
    /// Response to a return.
    WorkList(WorkList),
    /// Response to all other requests.
    Done,
}

impl Request {
    /// This request without the part of a host's reason that the ledger does not keep.
    pub(crate) fn limited(&self) -> Self {
        let mut request = self.clone();
        if let Self::OfflineFailed { why, .. } = &mut request {
            *why = why.chars().take(WHY_MAX).collect();
        }
        request
    }

    /// Label for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Lease { .. } => "lease",
            Self::Renew { .. } => "renew",
            Self::Assign { .. } => "assign",
            Self::Return { .. } => "return",
            Self::Offlined { .. } => "offlined",
            Self::OfflineFailed { .. } => "offline_failed",
            Self::EmcFailed(_) => "emc_failed",
            Self::EmcRepaired(_) => "emc_repaired",
            Self::HostFenced(_) => "host_fenced",
            Self::Abandoned { .. } => "abandoned",
            Self::Scrubbed { .. } => "scrubbed",
            Self::Tick => "tick",
        }
    }
}
