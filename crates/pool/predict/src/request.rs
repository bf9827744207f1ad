//! What a scheduler knows of a VM that is asked for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a scheduler knows of a VM that is asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Whose it is.
    #[serde(default)]
    pub customer: Option<u64>,
    /// Its type (series and size).
    #[serde(default)]
    pub vm_type: Option<String>,
    /// Its guest operating system.
    #[serde(default)]
    pub guest_os: Option<String>,
    /// Its region.
    #[serde(default)]
    pub location: Option<String>,
    /// Virtual cores, at least one.
    pub cores: u32,
    /// Memory that is asked for, in bytes.
    pub memory_bytes: u64,
    /// When it is asked for, in seconds, by the clock of the trace that the model was trained on.
    pub arrival: i64,
    /// Untouched shares of the customer's VMs that ended in the past week, where the caller keeps them itself.
    #[serde(default)]
    pub history: Option<Vec<f32>>,
    /// Counters of earlier VMs of the same workload, by name; none where there were none.
    #[serde(default)]
    pub counters: Option<BTreeMap<String, f32>>,
}
