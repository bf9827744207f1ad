//! What is said to a pool manager, and what it answers: the messages of version 1, as JSON.

use std::path::PathBuf;

use pool::Counts;
pub use pool::Slices;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use units::Bytes;

/// A slice that a host may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Slice {
    /// The external memory controller that it is behind.
    pub emc: u16,
    /// Its place there.
    pub index: u32,
    /// The how-manieth owner this is; answers about the slice carry it.
    pub generation: u32,
    /// The file that is its memory. Whoever uses it holds an exclusive `flock` on it.
    pub path: PathBuf,
    /// Its size in bytes.
    #[schemars(with = "u64")]
    pub bytes: Bytes,
}

/// What a VM has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Assignment {
    /// The VM, by its host's name for it.
    pub vm: String,
    /// How many slices were asked for. Fewer are left where the host had no lease for a while and nobody used them.
    pub asked: u32,
    /// Those that it has.
    pub slices: Vec<Slice>,
}

/// What a host is to do about a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Take it offline, let go of its file, and say so by `offlined` or `offline-failed`.
    Offline,
}

/// Something that a host is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// With which slice.
    pub slice: Slice,
    /// What.
    pub action: Action,
    /// How long ago this was asked for.
    pub since_seconds: f64,
}

/// A host asks for a lease, by which all that it does is known to be its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// A name for this run of the host's driver, for people who look for the other one.
    pub instance: String,
}

/// A lease, and what the host has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lease {
    /// Goes with every request. Each lease has a higher one, and makes all before it worth nothing.
    pub epoch: u64,
    /// How long it lasts unless it is renewed.
    pub lease_seconds: f64,
    /// What its VMs have.
    pub assignments: Vec<Assignment>,
    /// What it is to do.
    pub work: Vec<Work>,
}

/// A host is still there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// Of its lease.
    pub epoch: u64,
}

/// A lease goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Renewed {
    /// For so long from now.
    pub lease_seconds: f64,
    /// What the host is to do.
    pub work: Vec<Work>,
}

/// A VM is about to start and wants slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AssignRequest {
    /// Of the host's lease.
    pub epoch: u64,
    /// The client's name for this request. Said again, it is the same request, and has the same answer.
    pub request: String,
    /// The VM. It has one assignment for its whole life.
    pub vm: String,
    /// How many slices, at least one.
    #[schemars(with = "u32")]
    pub slices: Slices,
}

/// What is still to be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkList {
    /// By the host.
    pub work: Vec<Work>,
}

/// A host has taken a slice offline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Offlined {
    /// Of the host's lease.
    pub epoch: u64,
    /// Of the slice.
    pub generation: u32,
}

/// A host cannot take a slice offline now. It will be asked again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OfflineFailed {
    /// Of the host's lease.
    pub epoch: u64,
    /// Of the slice.
    pub generation: u32,
    /// Why, for people.
    pub why: String,
}

/// Done, and nothing more to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Done {}

/// Why a request was not followed. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refused {
    /// Which kind, for programs.
    pub error: Code,
    /// What, where, and what to do, for people.
    pub message: String,
}

/// Kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// 400: the request makes no sense.
    BadRequest,
    /// 403: it is another host's affair, or an operator's.
    Forbidden,
    /// 404: there is no such thing.
    NotFound,
    /// 405: not with this method.
    MethodNotAllowed,
    /// 409: the epoch is void: the lease has run out, or a newer one was taken. Take a new lease.
    Fenced,
    /// 409: the slice awaits no such answer: it came late, or twice.
    Stale,
    /// 409: the VM, or the request, is known with other contents.
    Conflict,
    /// 409: what this request had brought is no longer the VM's.
    Over,
    /// 413: the request is too long.
    TooLong,
    /// 503: too many requests at once, or the manager is about to stop. Say it again.
    Busy,
    /// 503: the ledger cannot be written. Nothing changes hands until it can.
    Ledger,
    /// 507: there are not enough free slices.
    Short,
    /// 507: the disk under the ledger is full. Nothing changes hands until it is not.
    LedgerFull,
}

impl Code {
    /// The HTTP status.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::Fenced | Self::Stale | Self::Conflict | Self::Over => 409,
            Self::TooLong => 413,
            Self::Busy | Self::Ledger => 503,
            Self::Short | Self::LedgerFull => 507,
        }
    }
}

/// How many slices are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SliceCounts {
    /// Nobody's, and zero.
    pub free: u32,
    /// VMs'.
    pub online: u32,
    /// Being taken offline by their host.
    pub offlining: u32,
    /// Their host could not take them offline, or did not answer in time. It is asked again.
    pub stuck: u32,
    /// Nobody's, and to be zeroed.
    pub scrubbing: u32,
    /// Behind an EMC that does not work.
    pub failed: u32,
}

impl From<Counts> for SliceCounts {
    fn from(counts: Counts) -> Self {
        let Counts { free, online, offlining, stuck, orphaned, scrubbing, failed } = counts;
        // A service that runs has no orphans: they are those of a manager that is away.
        Self { free, online, offlining, stuck: stuck + orphaned, scrubbing, failed }
    }
}

/// A pool at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolStatus {
    /// Size of a slice in bytes.
    #[schemars(with = "u64")]
    pub slice_bytes: Bytes,
    /// Slices by state.
    pub slices: SliceCounts,
    /// The most that one VM could be given now.
    pub grantable: u32,
    /// Slices that are promised to nobody.
    pub buffer_slices: u32,
    /// Why nothing changes hands now; none when all is well.
    pub trouble: Option<String>,
    /// Each controller.
    pub emcs: Vec<EmcStatus>,
    /// Each host.
    pub hosts: Vec<HostStatus>,
    /// Slices that do not come back.
    pub stuck: Vec<StuckSlice>,
}

/// An external memory controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EmcStatus {
    /// Its number.
    pub emc: u16,
    /// Whether it works.
    pub works: bool,
    /// Its slices by state.
    pub slices: SliceCounts,
}

/// A host as the manager sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostStatus {
    /// Its name.
    pub host: String,
    /// Of its last lease; zero if it has had none.
    pub epoch: u64,
    /// Which run of its driver took that lease.
    pub instance: String,
    /// How long its lease lasts still; none if it has none.
    pub lease_left_seconds: Option<f64>,
    /// Its VMs with pool memory.
    pub vms: u32,
    /// Slices that it may access, also those that it is to give back.
    pub slices: u32,
}

/// A slice that should have come back and has not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StuckSlice {
    /// The controller.
    pub emc: u16,
    /// Its place there.
    pub index: u32,
    /// Who has it; none where it is to be zeroed and somebody still uses it.
    pub host: Option<String>,
    /// How long ago its VM gave it back.
    pub since_seconds: f64,
    /// How often its host has said that it cannot.
    pub failures: u32,
    /// What the host said last.
    pub why: Option<String>,
}

/// What a slice does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// Nobody's, and zero.
    Free,
    /// A VM's memory.
    Online,
    /// Its host was asked to take it offline.
    Offlining,
    /// Its host could not, or did not answer in time.
    Stuck,
    /// To be zeroed.
    Scrubbing,
    /// Behind an EMC that does not work.
    Failed,
}

/// A slice as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SliceStatus {
    /// The controller.
    pub emc: u16,
    /// Its place there.
    pub index: u32,
    /// The how-manieth owner it is at.
    pub generation: u32,
    /// What it does.
    pub state: Doing,
    /// The host that may access it.
    pub host: Option<String>,
    /// The VM whose memory it is.
    pub vm: Option<String>,
}

/// All slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SliceList {
    /// By EMC and place.
    pub slices: Vec<SliceStatus>,
}

/// Who may access what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Permissions {
    /// A table for each EMC.
    pub emcs: Vec<PermissionTable>,
}

/// The permission table of an EMC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PermissionTable {
    /// Which.
    pub emc: u16,
    /// For each slice the one host that may access it.
    pub owners: Vec<Option<String>>,
}
