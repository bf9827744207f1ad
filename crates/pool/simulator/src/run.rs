//! One run of one cluster.

mod batches;
mod capacity;
mod events;
mod exchange;
mod groups;
mod recorded;
mod state;

pub(crate) use capacity::proportional_slices;
pub use capacity::{Baseline, Capacity, UniformCapacity};
pub use groups::Member;
pub use recorded::Started;
pub use state::{Change, Run};

use crate::faults::Faults;
use crate::memory::MemoryPolicy;
use crate::site::{Cluster, Setup, Site};
use crate::tally::Tally;

/// Places every VM with all its memory local, on servers of the site's size and without faults. Returns `None` if the
/// servers' shape is invalid (see [`placement::Fleet::new`]).
#[must_use]
pub fn baseline(site: &Site, cluster: &Cluster) -> Option<Baseline> {
    let setup = Setup { pool_sockets: u32::from(site.shape.nodes), memory: MemoryPolicy::AllLocal, added_ns: 0 };
    let without_faults = Site { faults: Faults::default(), ..site.clone() };
    let mut run = Run::new(&without_faults, setup, cluster, None, Capacity::Slices(&[]))?;
    let mut servers = vec![None; cluster.vms.len()];
    while let Some(started) = run.step() {
        if let Some((vm, server)) = started {
            servers[vm as usize] = Some(server);
        }
    }
    Some(Baseline { servers, tally: run.finish() })
}

/// Runs a setup with every VM on its server of the baseline, if it fits there. Returns `None` if the servers' shape is
/// invalid.
#[must_use]
pub fn simulate(site: &Site, setup: Setup<'_>, cluster: &Cluster, baseline: &Baseline, capacity: Capacity<'_>) -> Option<Tally> {
    let mut run = Run::new(site, setup, cluster, Some(baseline), capacity)?;
    while run.step().is_some() {}
    Some(run.finish())
}

/// Returns whether a setup with servers and pools of this size keeps the site's service level. Stops at the VM that breaks it. Returns
/// `None` if the servers' shape is invalid.
pub(crate) fn keeps_service_level(
    site: &Site,
    setup: Setup<'_>,
    cluster: &Cluster,
    baseline: &Baseline,
    capacity: UniformCapacity,
) -> Option<bool> {
    let mut run = Run::new(site, setup, cluster, Some(baseline), Capacity::Uniform(capacity))?;
    while run.step().is_some() {
        if !site.service_level.is_kept(&run.tally, baseline.tally.started) {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests;
