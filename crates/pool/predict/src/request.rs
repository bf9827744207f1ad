//! A request for a VM, as a scheduler knows it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use units::Bytes;

/// A request for a VM, as a scheduler knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The customer.
    #[serde(default)]
    pub customer: Option<u64>,
    /// Type (series and size).
    #[serde(default)]
    pub vm_type: Option<String>,
    /// Guest operating system.
    #[serde(default)]
    pub guest_os: Option<String>,
    /// Region.
    #[serde(default)]
    pub location: Option<String>,
    /// Virtual cores, at least one.
    pub cores: u32,
    /// Requested memory.
    pub memory_bytes: Bytes,
    /// Time of the request in seconds, by the clock of the trace that the model was trained on.
    pub arrival: i64,
    /// Untouched shares of the customer's VMs that ended in the past week, if the caller keeps them.
    #[serde(default)]
    pub history: Option<Vec<f32>>,
    /// Untouched shares of this VM's own past days, the latest last, if it is placed again: at least 3, of which the last 7 count.
    #[serde(default)]
    pub own_past: Option<Vec<f32>>,
    /// Counters of earlier VMs of the same workload, by name; `None` if there are none.
    #[serde(default)]
    pub counters: Option<BTreeMap<String, f32>>,
}
