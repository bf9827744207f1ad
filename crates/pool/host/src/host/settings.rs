//! Settings of a host, its totals, and the error of a request.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use units::{Bytes, RatioPpm};

use crate::{accesses, free_memory, hot, monitor};

/// Settings of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Host name, as the manager knows it.
    pub name: String,
    /// Local memory for guests.
    pub local: Bytes,
    /// Least local memory of a guest.
    pub local_min: Bytes,
    /// Sampling period of the monitor.
    pub period: Duration,
    /// How the monitor sees accesses.
    pub accesses: accesses::Settings,
    /// A guest that ran for less is no history of its customer, and its counters say nothing of its workload.
    pub least_life: Duration,
    /// So many of the latest guests of a workload must be insensitive by their counters for the next one to count as such.
    pub counters_agree: usize,
    /// Tolerances of the monitor, and limits of mitigation.
    pub monitor: monitor::Settings,
    /// Which part of a guest moves home before the whole.
    pub hot: hot::Settings,
    /// Least time between two mitigations.
    pub cooldown: Duration,
    /// How long a mitigation may take.
    pub mitigation_timeout: Duration,
    /// Memory that must stay free in a guest that gives up its slices.
    pub margin: free_memory::Margin,
    /// How long a guest may take to release one slice.
    pub release_timeout: Duration,
}

/// What a guest with pool memory may do, and how long it must have run to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tolerated {
    /// The share of its pool memory that a guest may touch (`monitor.touched`).
    pub touched: RatioPpm,
    /// `monitor.least_life`
    pub least_life: Duration,
}

impl Settings {
    /// What guests with pool memory may do.
    pub(super) fn tolerated(&self) -> Tolerated {
        Tolerated { touched: self.monitor.touched, least_life: self.least_life }
    }
}

/// Totals since the host was set up, over restarts of its daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Guests started.
    pub started: u64,
    /// Guests moved to local memory.
    pub mitigated: u64,
    /// Time of the last mitigation, in seconds since 1970.
    pub last_mitigation: Option<f64>,
}

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

impl Refused {
    pub(super) fn because(why: impl std::fmt::Display) -> Self {
        Self(why.to_string())
    }
}
