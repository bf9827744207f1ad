//! Commands to the pool, and the effects that must be carried out.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use units::Slices;

use crate::slice::{EmcId, Generation, HostId, SliceId, VmId};

/// A request, a report, or a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Assign slices to a VM that is about to start on a host.
    Assign {
        /// The VM, which has no slices yet.
        vm: VmId,
        /// The host that it starts on.
        host: HostId,
        /// Number of slices, at least one.
        slices: Slices,
    },
    /// Release the slices of a VM that has exited, or whose memory is now all local.
    Return {
        /// The VM.
        vm: VmId,
    },
    /// A host reports that a slice is offline.
    Offlined {
        /// The slice.
        slice: SliceId,
        /// Ownership generation in the effect.
        generation: Generation,
    },
    /// A host reports that it cannot take a slice offline.
    OfflineFailed {
        /// The slice.
        slice: SliceId,
        /// Ownership generation in the effect.
        generation: Generation,
    },
    /// No process uses a slice any more, although its host has not reported it: the slice was never claimed, or its
    /// user exited while the host had no lease.
    Abandoned {
        /// The slice.
        slice: SliceId,
        /// Ownership generation of the assignment.
        generation: Generation,
    },
    /// A slice has been zeroed.
    Scrubbed {
        /// The slice.
        slice: SliceId,
        /// Ownership generation in the effect.
        generation: Generation,
    },
    /// Time has passed: slices without a report become stuck, and the host is asked again for those stuck for long.
    Tick,
    /// An EMC has failed, with all of its contents.
    EmcFailed(EmcId),
    /// An EMC works again, and is empty.
    EmcRepaired(EmcId),
    /// A host has failed, with all its VMs.
    HostFailed(HostId),
    /// A host works again, and runs nothing.
    HostBack(HostId),
    /// The manager is down.
    ManagerFailed,
    /// The manager is up again, with its ledger.
    ManagerBack,
}

/// An action that a host or the manager must carry out, or a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
pub enum Effect {
    /// `Add_capacity`: the EMC lets the host access the slice, and the host brings it online for the VM.
    Online {
        /// The new owner.
        host: HostId,
        /// The slice.
        slice: SliceId,
        /// Its new ownership generation.
        generation: Generation,
    },
    /// `Release_capacity`: the host takes the slice offline and reports [`Command::Offlined`] or
    /// [`Command::OfflineFailed`].
    Offline {
        /// Host that has the slice.
        host: HostId,
        /// The slice.
        slice: SliceId,
        /// Ownership generation, for the report.
        generation: Generation,
    },
    /// The EMC denies all hosts access to the slice, which is then zeroed and reported by [`Command::Scrubbed`].
    Scrub {
        /// The slice.
        slice: SliceId,
        /// Ownership generation, for the report.
        generation: Generation,
    },
    /// A VM has lost memory and cannot continue.
    Lost {
        /// The VM, which the pool has removed.
        vm: VmId,
        /// Host that it ran on.
        host: HostId,
        /// The cause.
        cause: Cause,
    },
}

/// Cause of a VM's loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The EMC with its memory failed.
    Emc,
    /// Its host failed.
    Host,
}

/// Why a command was refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum Refusal {
    /// The manager is down. Repeat the command when it is up.
    #[error("the pool manager is down; no slice changes its owner until it is up")]
    ManagerAway,
    /// Not enough free slices. There may be enough later, or in another pool.
    #[error("{requested} slices requested; {grantable} can be assigned from one EMC now, and {releasing} are being released")]
    Short {
        /// Number of slices requested.
        requested: Slices,
        /// Most slices that can be assigned to a VM now.
        grantable: Slices,
        /// Number of slices that are being released.
        releasing: Slices,
    },
    /// Zero slices were requested.
    #[error("zero slices requested; request at least one, or none of the pool")]
    Nothing,
    /// The VM has slices already.
    #[error("VM {} has slices already; a VM has one assignment for its whole life", .0.0)]
    VmKnown(VmId),
    /// The VM has no slices.
    #[error("VM {} has no slices", .0.0)]
    VmUnknown(VmId),
    /// The host is not up, or there is no such host.
    #[error("host {} is not available", .0.0)]
    NoHost(HostId),
    /// There is no such EMC.
    #[error("there is no EMC {}", .0.0)]
    NoEmc(EmcId),
    /// No such report is expected: it is late, or a repetition.
    #[error("no such report is expected for slice {} of EMC {}", .0.index, .0.emc.0)]
    Stale(SliceId),
}
