//! Metadata of a trace: its origin, its time range, and the names of its categories.

use serde::{Deserialize, Serialize};

/// Metadata of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Description of the trace's source.
    pub origin: String,
    /// Whether the trace is synthetic: nothing in it was measured.
    pub generated: bool,
    /// The last second of the trace. A VM without a departure was running then, or its departure is unknown.
    pub ends: i64,
    /// Whether seconds count from 1970 (UTC); otherwise from an arbitrary instant.
    #[serde(default)]
    pub unix_time: bool,
    /// The names of the VMs' categories.
    #[serde(flatten)]
    pub names: CategoryNames,
}

/// Names of categories. VMs refer to them by index: [`crate::Vm::vm_type`] is an index into `vm_types`, and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CategoryNames {
    /// Types of VMs.
    pub vm_types: Vec<String>,
    /// Guest operating systems.
    pub guest_os: Vec<String>,
    /// Regions.
    pub locations: Vec<String>,
}

/// Returns the index of a name and adds the name if it is new. Returns `None` if the list is full (65,535 names).
pub fn number_of(names: &mut Vec<String>, name: &str) -> Option<u16> {
    if let Some(at) = names.iter().position(|known| known == name) {
        return u16::try_from(at).ok();
    }
    let next = u16::try_from(names.len()).ok().filter(|&next| next < u16::MAX)?;
    names.push(name.to_owned());
    Some(next)
}
