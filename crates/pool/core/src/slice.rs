//! Identifiers, times, and states of slices.

use serde::{Deserialize, Serialize};

/// A time or a duration in nanoseconds. The caller defines time zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ns(pub u64);

/// A host that is connected to the pool, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostId(pub u16);

/// An external memory controller of the pool, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EmcId(pub u16);

/// A virtual machine, by the number that its scheduler gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VmId(pub u64);

/// One GiB of an EMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SliceId {
    /// Controller of the slice.
    pub emc: EmcId,
    /// Index at the controller: the slice's offset in GiB.
    pub index: u32,
}

/// Ownership generation of a slice: increases with every owner. Reports carry it, so that a late report about an
/// earlier owner is recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Generation(pub u32);

/// State of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Without owner, zeroed.
    Free,
    /// Memory of a VM.
    Online {
        /// Host that may access it.
        host: HostId,
        /// VM that uses it.
        vm: VmId,
    },
    /// Released by its VM; its host must take it offline.
    Offlining {
        /// Host that may still access it.
        host: HostId,
        /// When the host was asked.
        since: Ns,
    },
    /// Its host could not take it offline, or did not report in time. The host is asked again.
    Stuck {
        /// Host that may still access it.
        host: HostId,
        /// When it became stuck.
        since: Ns,
    },
    /// Its host failed while the manager was down.
    Orphaned {
        /// Host that could access it.
        host: HostId,
    },
    /// Without owner; must be zeroed before it is assigned.
    Scrubbing {
        /// When scrubbing was required.
        since: Ns,
    },
    /// At an EMC that has failed.
    Failed,
}

impl State {
    /// The host that the EMC's permission table names for this slice (Pond section 4.1).
    #[must_use]
    pub fn owner(&self) -> Option<HostId> {
        match *self {
            Self::Online { host, .. } | Self::Offlining { host, .. } | Self::Stuck { host, .. } | Self::Orphaned { host } => Some(host),
            Self::Free | Self::Scrubbing { .. } | Self::Failed => None,
        }
    }
}
