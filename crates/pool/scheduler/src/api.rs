//! Messages of the scheduler's API, version 1, as JSON.

use placement::{Limit, Mode, Node};
use serde::{Deserialize, Serialize};
use units::{Bytes, Slices};

/// A VM is about to start. A repetition with the same values has the same answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmRequest {
    /// Name of the VM, unique in the cluster.
    pub vm: String,
    /// Cores.
    pub cores: u32,
    /// All memory of the VM.
    pub memory_bytes: Bytes,
    /// The part of its memory that may come from a pool, rounded down to whole slices; what `thermocline pool predict` says.
    #[serde(default)]
    pub pool_bytes: Bytes,
    /// The group with which it should not fail together; `None` if it has none. Left out of the log then, as in earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
}

/// A group of VMs of which one failure should not take along many, such as those of a service: an availability set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Name of the group.
    pub group: String,
    /// The most VMs of the group that may fail together with this one, itself included.
    #[serde(default = "one")]
    pub limit: u32,
    /// Whether the limit may be exceeded.
    #[serde(default)]
    pub mode: Mode,
}

fn one() -> u32 {
    1
}

impl Spread {
    pub(crate) fn limit(&self) -> Limit {
        Limit { most: self.limit, mode: self.mode }
    }
}

/// The VMs of a group that fail together with one of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Together {
    /// Name of the group, as requested.
    pub group: String,
    /// Its limit, as requested.
    pub limit: u32,
    /// Whether that may be exceeded, as requested.
    pub mode: Mode,
    /// The fault domain of its host: the configured one, or the host itself.
    pub domain: String,
    /// VMs of the group in that domain now, this one included.
    pub with_domain: u32,
    /// VMs of the group with slices of its pool now, this one included; 0 if it has no slices.
    pub with_pool: u32,
}

/// Where a VM runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Name of the VM.
    pub vm: String,
    /// The host that starts it.
    pub host: String,
    /// Local memory.
    pub local_bytes: Bytes,
    /// Slices of the host's pool, which the host requests from the pool's manager.
    pub pool_slices: Slices,
    /// Cores and local memory on each NUMA node of the host.
    pub nodes: Vec<Node>,
    /// What fails together with it now; `None` if it has no group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Together>,
    /// The policy, why it has less pool memory than requested, and what is free beside it now, for operators.
    pub reason: String,
}

/// All VMs, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmList {
    /// The VMs.
    pub vms: Vec<Placed>,
}

/// Status of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The placement policy.
    pub strategy: String,
    /// Number of VMs.
    pub vms: u64,
    /// Requests that no host could hold, since the log's beginning.
    pub refused: u64,
    /// Groups of VMs that run.
    #[serde(default)]
    pub groups: u64,
    /// VMs of groups of which more fail together now than their limit says.
    #[serde(default)]
    pub over_limit: u64,
    /// Pools.
    pub pools: Vec<PoolView>,
    /// Hosts.
    pub hosts: Vec<HostView>,
    /// Why the log cannot be written, so that nothing is placed; `null` if it can.
    pub log_error: Option<String>,
}

/// Status of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolView {
    /// Name of the pool.
    pub pool: String,
    /// Slices that VMs may have.
    pub slices: Slices,
    /// Slices of VMs that were placed.
    pub used: Slices,
    /// Most slices that one VM could get now.
    pub grantable: Slices,
    /// Whether its manager answers.
    pub answers: bool,
}

/// Status of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostView {
    /// Name of the host.
    pub host: String,
    /// Its pool.
    pub pool: String,
    /// Its fault domain; the host itself if none is configured.
    #[serde(default)]
    pub domain: String,
    /// Whether it gets no new VMs.
    pub drained: bool,
    /// Number of its VMs.
    pub vms: u32,
    /// Cores that new VMs can get; none while it is drained.
    pub free_cores: u32,
    /// Local memory that new VMs can get; none while it is drained.
    pub free_bytes: Bytes,
}

/// An empty answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// A refused request. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Error code, for programs.
    pub error: Code,
    /// What failed, and what to do, for operators.
    pub message: String,
}

/// Error codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// 400: the request is malformed.
    BadRequest,
    /// 403: the certificate is not for an operator.
    Forbidden,
    /// 404: the object does not exist.
    NotFound,
    /// 405: the path does not accept this method.
    MethodNotAllowed,
    /// 409: the VM is known with other values.
    Conflict,
    /// 413: the request's body is too long.
    TooLong,
    /// 503: too many requests at once, or the scheduler is stopping. Repeat the request.
    Busy,
    /// 503: the log cannot be written. Nothing is placed until it can.
    Log,
    /// 507: no host can hold the VM, or none within the hard limit of its group.
    Full,
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
            Self::Conflict => 409,
            Self::TooLong => 413,
            Self::Busy | Self::Log => 503,
            Self::Full => 507,
        }
    }
}
