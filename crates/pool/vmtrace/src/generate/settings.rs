//! The settings of a generated trace.

use serde::Serialize;

use super::kinds::{GUEST_SYSTEMS, TYPES};
use crate::about::{About, CategoryNames};

/// Mean number of clusters of a region: 100 clusters are in 20 regions.
const CLUSTERS_PER_REGION: u32 = 5;

/// The settings of a generated trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Seed of all random draws.
    pub seed: u64,
    /// Approximate number of VMs that arrive. VMs that run at the beginning of the trace come in addition.
    pub vms: u64,
    /// Number of clusters.
    pub clusters: u32,
    /// Length of the trace in days.
    pub days: u32,
}

impl Settings {
    /// Returns the number of regions.
    #[must_use]
    pub fn regions(&self) -> u32 {
        self.clusters.div_ceil(CLUSTERS_PER_REGION).max(1)
    }

    pub(super) fn ends(&self) -> i64 {
        i64::from(self.days) * 86_400
    }

    pub(super) fn about(&self) -> About {
        let names = CategoryNames {
            vm_types: TYPES.iter().map(|of| of.name()).collect(),
            guest_os: GUEST_SYSTEMS.iter().map(|of| of.name.to_owned()).collect(),
            locations: (1..=self.regions()).map(|region| format!("region-{region:02}")).collect(),
        };
        let Self { seed, vms, clusters, days } = self;
        let origin = format!("generated: {vms} VMs, {clusters} clusters, {days} days, seed {seed}");
        About { origin, generated: true, ends: self.ends(), unix_time: false, names }
    }
}
