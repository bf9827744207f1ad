//! Events: what the scheduler decided, and what it knew. The log is a list of them.

use placement::{Node, Shape, Strategy};
use serde::{Deserialize, Serialize};
use units::{Bytes, Slices};

use crate::api::VmRequest;

/// Servers, pools and the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// The hardware of every host.
    pub shape: Shape,
    /// Size of a slice.
    pub slice_bytes: Bytes,
    /// The placement policy.
    pub strategy: Strategy,
    /// The pools with their hosts.
    pub pools: Vec<PoolOfHosts>,
    /// Hosts that fail together. A host of none fails alone. Left out if there are none, as in earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<Domain>,
}

/// Hosts that fail together, such as those of a rack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    /// Name of the domain.
    pub name: String,
    /// Names of its hosts.
    pub hosts: Vec<String>,
}

/// A pool and the hosts that share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolOfHosts {
    /// Name of the pool.
    pub name: String,
    /// Slices that VMs may have.
    pub slices: Slices,
    /// Whether a manager says what it can assign. If not, the pool's slices are only counted.
    pub managed: bool,
    /// Names of the hosts.
    pub hosts: Vec<String>,
}

/// The host of a VM and what it has there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Name of the host.
    pub host: String,
    /// Cores and local memory on each NUMA node.
    pub nodes: Vec<Node>,
    /// Slices of the host's pool.
    pub slices: Slices,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// The servers and the policy from now on. The first event of every log.
    Topology(Topology),
    /// A VM that an earlier log placed; after the topology of a new log.
    Kept {
        /// Number of its request.
        id: u64,
        /// What was requested.
        request: VmRequest,
        /// Its host.
        on: Host,
    },
    /// A request was decided.
    Decided {
        /// Number of the request, from 1. Only the policy `random` uses it.
        id: u64,
        /// What was requested.
        request: VmRequest,
        /// The host; `None` if no host could hold the VM.
        on: Option<Host>,
    },
    /// A VM has ended.
    Ended {
        /// Name of the VM.
        vm: String,
    },
    /// A host gets no new VMs, or gets them again.
    Drained {
        /// Name of the host.
        host: String,
        /// Whether it gets none.
        drained: bool,
    },
    /// What a pool's manager can assign to one VM has changed; `None` if it does not answer.
    Grantable {
        /// Name of the pool.
        pool: String,
        /// The most slices.
        slices: Option<Slices>,
    },
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Number of the event, from 1, without gaps.
    pub sequence: u64,
    /// Unix time in milliseconds.
    pub time_ms: u64,
    /// Name in the client's certificate; `scheduler` for the scheduler itself.
    pub who: String,
    /// The event.
    pub event: Event,
}
