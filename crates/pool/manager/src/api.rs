//! Messages of the pool manager's API, version 1, as JSON.

use std::path::PathBuf;

use pool::Counts;
pub use pool::Slices;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use units::Bytes;

/// A slice that is assigned to a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Slice {
    /// External memory controller of the slice.
    pub emc: u16,
    /// Index of the slice at its controller.
    pub index: u32,
    /// Ownership generation: increases with every owner. Reports about the slice carry it.
    pub generation: u32,
    /// File that is the slice's memory, or the device that has it. A process that uses a file holds an exclusive `flock` on it.
    pub path: PathBuf,
    /// Where the slice begins on a device; absent for a file, which is the slice. Other machines see the device, too, so that no lock
    /// shows who uses the slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u64>")]
    pub offset: Option<Bytes>,
    /// Size in bytes.
    #[schemars(with = "u64")]
    pub bytes: Bytes,
}

/// The slices of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Assignment {
    /// Name of the VM on its host.
    pub vm: String,
    /// Number of slices requested. `slices` has fewer if the host had no lease for some time and no process used them.
    #[schemars(with = "u32")]
    pub asked: Slices,
    /// The slices that the VM has.
    pub slices: Vec<Slice>,
}

/// An action that the manager requires from a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Take the slice offline, close its file, and report `offlined` or `offline-failed`.
    Offline,
}

/// An action that a host must perform on a slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// The slice.
    pub slice: Slice,
    /// The action.
    pub action: Action,
    /// Time since the action was first required, in seconds.
    pub since_seconds: f64,
}

/// A host requests a lease, which authorises all of its other requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// Name of this run of the host's daemon, shown to operators if two runs compete.
    pub instance: String,
}

/// A lease, and the state of the host at the manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lease {
    /// Epoch of the lease; required in every other request. A new lease has a higher epoch and voids all earlier ones.
    pub epoch: u64,
    /// Duration of the lease in seconds, unless it is renewed.
    pub lease_seconds: f64,
    /// Assignments of the host's VMs.
    pub assignments: Vec<Assignment>,
    /// Actions that the host must perform.
    pub work: Vec<Work>,
}

/// A host renews its lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// Epoch of the host's lease.
    pub epoch: u64,
}

/// A renewed lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RenewResponse {
    /// Duration of the lease from now, in seconds.
    pub lease_seconds: f64,
    /// Actions that the host must perform.
    pub work: Vec<Work>,
}

/// A host requests slices for a VM that is about to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AssignRequest {
    /// Epoch of the host's lease.
    pub epoch: u64,
    /// The client's name for this request. A repetition with the same name has the same answer.
    pub request: String,
    /// Name of the VM. A VM has one assignment for its whole life.
    pub vm: String,
    /// Number of slices, at least one.
    #[schemars(with = "u32")]
    pub slices: Slices,
}

/// Actions that are still required.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkList {
    /// Actions that the host must perform.
    pub work: Vec<Work>,
}

/// A host reports that a slice is offline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OfflinedRequest {
    /// Epoch of the host's lease.
    pub epoch: u64,
    /// Ownership generation of the slice.
    pub generation: u32,
}

/// A host reports that it cannot take a slice offline now. The manager requires it again later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OfflineFailedRequest {
    /// Epoch of the host's lease.
    pub epoch: u64,
    /// Ownership generation of the slice.
    pub generation: u32,
    /// The reason, for operators.
    pub why: String,
}

/// An empty answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Empty {}

/// A refused request. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorResponse {
    /// Error code, for programs.
    pub error: Code,
    /// What failed, on which object, and what to do, for operators.
    pub message: String,
}

/// Error codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// 400: the request is malformed.
    BadRequest,
    /// 403: only another host, or an operator, may make this request.
    Forbidden,
    /// 404: the object does not exist.
    NotFound,
    /// 405: the path does not accept this method.
    MethodNotAllowed,
    /// 409: the epoch is void, because the lease has expired or a newer one was taken. Request a new lease.
    Fenced,
    /// 409: no such report is expected for the slice; it is late, or a repetition.
    Stale,
    /// 409: the VM or the request is known with other parameters.
    Conflict,
    /// 409: the slices that this request assigned were returned since.
    Over,
    /// 413: the request's body is too long.
    TooLong,
    /// 503: too many requests at once, or the manager is stopping. Repeat the request.
    Busy,
    /// 503: this member of the group of managers is not the leader, or has lost its majority. Repeat the request at the leader, which the
    /// message names if it is known. After a loss of the majority, the request may have been applied.
    NotLeader,
    /// 503: the ledger cannot be written. No slice changes its owner until it can.
    Ledger,
    /// 507: not enough free slices.
    Short,
    /// 507: the ledger's disk is full. No slice changes its owner until it has space.
    LedgerFull,
}

impl Code {
    /// HTTP status of the code.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::Fenced | Self::Stale | Self::Conflict | Self::Over => 409,
            Self::TooLong => 413,
            Self::Busy | Self::NotLeader | Self::Ledger => 503,
            Self::Short | Self::LedgerFull => 507,
        }
    }
}

/// Numbers of slices by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SliceCounts {
    /// Without owner, zeroed.
    pub free: u32,
    /// Memory of VMs.
    pub online: u32,
    /// Being taken offline by their hosts.
    pub offlining: u32,
    /// Their hosts could not take them offline, or did not answer in time. The manager requires it again.
    pub stuck: u32,
    /// Without owner, to be zeroed.
    pub scrubbing: u32,
    /// At a controller that has failed.
    pub failed: u32,
}

impl From<Counts> for SliceCounts {
    fn from(counts: Counts) -> Self {
        let Counts { free, online, offlining, stuck, orphaned, scrubbing, failed } = counts;
        // A running manager has no orphaned slices: slices become orphaned while it is down.
        Self { free, online, offlining, stuck: stuck + orphaned, scrubbing, failed }
    }
}

/// Status of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolStatus {
    /// Size of a slice in bytes.
    #[schemars(with = "u64")]
    pub slice_bytes: Bytes,
    /// Slices by state.
    pub slices: SliceCounts,
    /// Most slices that one VM could be assigned now.
    #[schemars(with = "u32")]
    pub grantable: Slices,
    /// Slices that are kept free as a buffer.
    #[schemars(with = "u32")]
    pub buffer_slices: Slices,
    /// Why the ledger cannot be written, so that no slice changes its owner; `null` if it can.
    pub ledger_error: Option<String>,
    /// Controllers.
    pub emcs: Vec<EmcStatus>,
    /// Hosts.
    pub hosts: Vec<HostStatus>,
    /// Slices that are overdue.
    pub stuck: Vec<StuckSlice>,
    /// The group of managers, as the member that answers knows it; absent for a manager alone. A member that does not lead may lack the
    /// last changes, and does not know of the last renewals of leases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupStatus>,
}

/// Status of a group of managers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupStatus {
    /// Number of the member that answers.
    pub member: u64,
    /// Number of the leader; `null` if none is known.
    pub leader: Option<u64>,
    /// Term of the leader, or of the last election.
    pub term: u64,
    /// Number of the last entry in this member's log.
    pub last_entry: u64,
    /// Number of the last entry that its ledger has.
    pub applied_entry: u64,
    /// How often the leader has changed since this member started.
    pub leader_changes: u64,
    /// Whether this member has no vote, because its files are new and it has not yet all entries.
    pub joining: bool,
    /// All members.
    pub members: Vec<GroupMember>,
}

/// A member of a group of managers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupMember {
    /// Its number, from 1.
    pub member: u64,
    /// Its URL.
    pub url: String,
    /// Whether it is the leader.
    pub is_leader: bool,
    /// Entries that the leader's log has and its own lacks; `null` if that is not known: the member that answers does not lead, or
    /// this one has not answered it yet.
    pub lag_entries: Option<u64>,
}

/// An external memory controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EmcStatus {
    /// Number of the controller.
    pub emc: u16,
    /// Whether the controller works.
    pub works: bool,
    /// Numbers of its slices by state.
    pub slices: SliceCounts,
}

/// Status of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostStatus {
    /// Host name.
    pub host: String,
    /// Epoch of its last lease; zero if it has had none.
    pub epoch: u64,
    /// Run of the host's daemon that took the lease.
    pub instance: String,
    /// Time until its lease expires, in seconds; `null` without a lease.
    pub lease_left_seconds: Option<f64>,
    /// Number of its VMs with pool memory.
    pub vms: u32,
    /// Number of slices that it may access, including those that it must take offline.
    #[schemars(with = "u32")]
    pub slices: Slices,
}

/// A slice that is overdue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StuckSlice {
    /// External memory controller of the slice.
    pub emc: u16,
    /// Index of the slice at its controller.
    pub index: u32,
    /// Host that has it; `null` if it is to be zeroed and a process still uses it.
    pub host: Option<String>,
    /// Time since its VM returned it, in seconds.
    pub since_seconds: f64,
    /// How often its host has reported a failure.
    pub failures: u32,
    /// The host's last reason.
    pub why: Option<String>,
}

/// State of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SliceState {
    /// Without owner, zeroed.
    Free,
    /// Memory of a VM.
    Online,
    /// Its host must take it offline.
    Offlining,
    /// Its host could not take it offline, or did not answer in time.
    Stuck,
    /// Without owner, to be zeroed.
    Scrubbing,
    /// At a controller that has failed.
    Failed,
}

/// Status of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SliceStatus {
    /// External memory controller of the slice.
    pub emc: u16,
    /// Index of the slice at its controller.
    pub index: u32,
    /// Ownership generation.
    pub generation: u32,
    /// Current state.
    pub state: SliceState,
    /// Host that may access it.
    pub host: Option<String>,
    /// VM that uses it.
    pub vm: Option<String>,
}

/// All slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SliceList {
    /// Slices by controller and index.
    pub slices: Vec<SliceStatus>,
}

/// Access permissions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Permissions {
    /// One table per controller.
    pub emcs: Vec<PermissionTable>,
}

/// Permission table of an external memory controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PermissionTable {
    /// Number of the controller.
    pub emc: u16,
    /// The host that may access each slice, by index; `null` if none may.
    pub owners: Vec<Option<String>>,
}
