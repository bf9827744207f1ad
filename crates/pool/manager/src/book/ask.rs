//! Requests and answers, as values.

use pool::{EmcId, Generation, SliceId};

use crate::api::{Assignment, Lease, Renewed, WorkList};

/// What is asked of the manager: by hosts, by operators, and by its own keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A host takes a lease.
    Lease {
        /// The host.
        host: String,
        /// Which run of its driver.
        instance: String,
    },
    /// A host keeps its lease.
    Renew {
        /// The host.
        host: String,
        /// Of its lease.
        epoch: u64,
    },
    /// A VM is about to start.
    Assign {
        /// Where.
        host: String,
        /// Of the host's lease.
        epoch: u64,
        /// The client's name for this request.
        request: String,
        /// The VM.
        vm: String,
        /// How many slices it wants.
        slices: u32,
    },
    /// A VM has no more use for its slices.
    Return {
        /// Where it ran.
        host: String,
        /// Of the host's lease.
        epoch: u64,
        /// The client's name for this request.
        request: String,
        /// The VM.
        vm: String,
    },
    /// A host has taken a slice offline.
    Offlined {
        /// The host.
        host: String,
        /// Of its lease.
        epoch: u64,
        /// Which.
        slice: SliceId,
        /// Of the slice.
        generation: Generation,
    },
    /// A host cannot.
    OfflineFailed {
        /// The host.
        host: String,
        /// Of its lease.
        epoch: u64,
        /// Which.
        slice: SliceId,
        /// Of the slice.
        generation: Generation,
        /// Why.
        why: String,
    },
    /// An EMC has failed.
    EmcFailed(EmcId),
    /// An EMC works again, and is empty.
    EmcRepaired(EmcId),
    /// Nobody has a lock on a slice whose host has no lease; the keeper has locked it.
    Abandoned {
        /// Which.
        slice: SliceId,
        /// Of the slice.
        generation: Generation,
    },
    /// The keeper has made a slice anew.
    Scrubbed {
        /// Which.
        slice: SliceId,
        /// Of the slice.
        generation: Generation,
    },
    /// Time has passed.
    Tick,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// To a lease.
    Lease(Lease),
    /// To a renewal.
    Renewed(Renewed),
    /// To an assignment.
    Assignment(Assignment),
    /// To a return.
    WorkList(WorkList),
    /// To everything else.
    Done,
}

impl Ask {
    /// A word for metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Lease { .. } => "lease",
            Self::Renew { .. } => "renew",
            Self::Assign { .. } => "assign",
            Self::Return { .. } => "return",
            Self::Offlined { .. } => "offlined",
            Self::OfflineFailed { .. } => "offline_failed",
            Self::EmcFailed(_) => "emc_failed",
            Self::EmcRepaired(_) => "emc_repaired",
            Self::Abandoned { .. } => "abandoned",
            Self::Scrubbed { .. } => "scrubbed",
            Self::Tick => "tick",
        }
    }
}
