//! Names, times, and what a slice is doing.

use serde::{Deserialize, Serialize};
use units::Bytes;

/// A time or a span, in nanoseconds. What its zero means is the caller's affair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ns(pub u64);

/// A host that is wired to the pool, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostId(pub u16);

/// An external memory controller of the pool, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EmcId(pub u16);

/// A virtual machine, by whatever number its scheduler gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VmId(pub u64);

/// A number of slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slices(pub u32);

impl Slices {
    /// Memory of this many slices of `size`, saturating.
    #[must_use]
    pub fn bytes(self, size: Bytes) -> Bytes {
        Bytes(size.0.saturating_mul(u64::from(self.0)))
    }
}

impl std::fmt::Display for Slices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// One GiB of an EMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SliceId {
    /// The controller that it is behind.
    pub emc: EmcId,
    /// Its place there: it begins at so many GiB.
    pub index: u32,
}

/// The how-manieth time a slice is on its way through its states. Answers carry it, so that a late one about an earlier
/// owner is told from one about this owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Generation(pub u32);

/// What a slice is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nobody's, and zeroed.
    Free,
    /// A VM's memory.
    Online {
        /// Who may access it.
        host: HostId,
        /// Whose memory it is.
        vm: VmId,
    },
    /// No VM's any more; its host was asked to take it offline.
    Offlining {
        /// Who may still access it.
        host: HostId,
        /// When the host was asked.
        since: Ns,
    },
    /// Its host could not take it offline, or did not answer in time. It is asked again.
    Stuck {
        /// Who may still access it.
        host: HostId,
        /// When that was known.
        since: Ns,
    },
    /// Its host died while the manager was away.
    Orphaned {
        /// Who could access it.
        host: HostId,
    },
    /// Nobody's; to be zeroed before it is anybody's.
    Scrubbing {
        /// When that was asked for.
        since: Ns,
    },
    /// Behind an EMC that does not work.
    Failed,
}

impl State {
    /// The host that the EMC's permission table names for this slice (section 4.1).
    #[must_use]
    pub fn owner(&self) -> Option<HostId> {
        match *self {
            Self::Online { host, .. } | Self::Offlining { host, .. } | Self::Stuck { host, .. } | Self::Orphaned { host } => Some(host),
            Self::Free | Self::Scrubbing { .. } | Self::Failed => None,
        }
    }
}
