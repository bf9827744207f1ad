//! What the pool is told, and what it wants done.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::slice::{EmcId, Generation, HostId, SliceId, VmId};

/// A request, an answer, or news.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// A VM is about to start on a host and wants so many slices.
    Assign {
        /// The VM, which has none yet.
        vm: VmId,
        /// Where it starts.
        host: HostId,
        /// How many, at least one.
        slices: u32,
    },
    /// A VM has no more use for its slices: it left, or all its memory is local now.
    Return {
        /// The VM.
        vm: VmId,
    },
    /// A host has taken a slice offline.
    Offlined {
        /// Which.
        slice: SliceId,
        /// Of the request.
        generation: Generation,
    },
    /// A host cannot take a slice offline.
    OfflineFailed {
        /// Which.
        slice: SliceId,
        /// Of the request.
        generation: Generation,
    },
    /// Nobody uses a slice any more, though its host never said so: it was given but not taken, or who used it died unseen.
    Abandoned {
        /// Which.
        slice: SliceId,
        /// Of the assignment.
        generation: Generation,
    },
    /// A slice has been zeroed.
    Scrubbed {
        /// Which.
        slice: SliceId,
        /// Of the request.
        generation: Generation,
    },
    /// Time has passed: unanswered requests become stuck, and those stuck for long are made again.
    Tick,
    /// An EMC has failed, with all it held.
    EmcFailed(EmcId),
    /// An EMC works again, and is empty.
    EmcRepaired(EmcId),
    /// A host has failed, with all its VMs.
    HostFailed(HostId),
    /// A host works again, and runs nothing.
    HostBack(HostId),
    /// The manager is away.
    ManagerFailed,
    /// The manager is back, with its ledger.
    ManagerBack,
}

/// What somebody must do, or know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
pub enum Effect {
    /// `Add_capacity`: the EMC lets the host access the slice, and the host brings it online for the VM.
    Online {
        /// The new owner.
        host: HostId,
        /// The slice.
        slice: SliceId,
        /// Its new generation.
        generation: Generation,
    },
    /// `Release_capacity`: the host takes the slice offline and answers [`Command::Offlined`] or
    /// [`Command::OfflineFailed`].
    Offline {
        /// Who has it.
        host: HostId,
        /// The slice.
        slice: SliceId,
        /// To be told in the answer.
        generation: Generation,
    },
    /// The EMC lets nobody access the slice; then it is zeroed, and [`Command::Scrubbed`] says so.
    Scrub {
        /// The slice.
        slice: SliceId,
        /// To be told in the answer.
        generation: Generation,
    },
    /// A VM has lost memory and cannot go on.
    Lost {
        /// The VM, which the pool has forgotten.
        vm: VmId,
        /// Where it ran.
        host: HostId,
        /// Why.
        cause: Cause,
    },
}

/// What cost a VM its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The EMC that held it.
    Emc,
    /// The host that it ran on.
    Host,
}

/// Why a command was not followed. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum Refusal {
    /// Say it again when the manager is back.
    #[error("the pool manager is away; nothing changes hands until it is back")]
    ManagerAway,
    /// There may be enough soon, or on another pool.
    #[error("{wanted} slices wanted; {grantable} can be given from one EMC now, and {releasing} are on their way back")]
    Short {
        /// How many were asked for.
        wanted: u32,
        /// How many a VM could have got.
        grantable: u32,
        /// How many are being released.
        releasing: u32,
    },
    /// Zero slices were asked for.
    #[error("a VM without pool memory has no business here; ask for at least one slice")]
    Nothing,
    /// The VM has slices already.
    #[error("VM {} has slices already; one assignment is for its whole life", .0.0)]
    VmKnown(VmId),
    /// The VM has none.
    #[error("VM {} has no slices", .0.0)]
    VmUnknown(VmId),
    /// The host is not up, or there is no such host.
    #[error("host {} is not there", .0.0)]
    NoHost(HostId),
    /// There is no such EMC.
    #[error("there is no EMC {}", .0.0)]
    NoEmc(EmcId),
    /// The answer is not to any open request: it came late, or twice.
    #[error("slice {} of EMC {} awaits no such answer", .0.index, .0.emc.0)]
    Stale(SliceId),
}
