//! The least memory that could be bought.
//!
//! The peak demand of every server is an upper bound that a scheduler does not need to meet: a VM that does not fit on one
//! server is placed on another (Pond section 6.1). Here all servers of a cluster have the same local memory and all pools
//! the same slices. The search finds the least memory with which VMs fit, without pools and with them.

use pool::{SLICE, Slices};
use serde::Serialize;
use units::Bytes;

use crate::memory::MemoryPolicy;
use crate::run::{Baseline, Capacity, UniformCapacity, simulate};
use crate::site::{Cluster, Setup, Site};

/// VMs that may be rejected, in parts per million: one VM of a rare size must not determine the memory of a whole cluster.
const REJECTED_MAX_PPM: u64 = 1_000;
/// Sizes of local memory to try, in percent of what a server needs without pools.
const LOCAL_PERCENT: [u32; 9] = [95, 90, 85, 80, 75, 70, 65, 60, 55];

/// Memory to buy. Results of several clusters can be added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Provisioned {
    /// Total without pools.
    pub local_only_bytes: Bytes,
    /// Total with pools: local and pool memory.
    pub bytes: Bytes,
    /// Pool memory, as part of `bytes`.
    pub pool_bytes: Bytes,
}

impl Provisioned {
    /// Adds the result of another cluster.
    pub fn add(&mut self, other: &Self) {
        self.local_only_bytes += other.local_only_bytes;
        self.bytes += other.bytes;
        self.pool_bytes += other.pool_bytes;
    }
}

/// Returns the least memory to buy for a setup, or `None` if the servers' shape is invalid.
///
/// Tries local memory in steps of 5 % of what a server needs without pools, and finds the pool size for each step by
/// bisection. More memory can, in rare cases, cause more rejections, so the result is sufficient and close to minimal.
#[must_use]
pub fn provision(site: &Site, setup: Setup<'_>, cluster: &Cluster, baseline: &Baseline) -> Option<Provisioned> {
    let enough = |setup: Setup<'_>, capacity: UniformCapacity| {
        let tally = simulate(site, setup, cluster, baseline, Capacity::Uniform(capacity))?;
        Some(u128::from(tally.rejected) * 1_000_000 <= u128::from(tally.rejected + tally.started) * u128::from(REJECTED_MAX_PPM))
    };
    let nodes = u64::from(site.shape.nodes);
    let most = baseline.tally.server_peaks_mib.iter().max().copied().unwrap_or(0).div_ceil(nodes).div_ceil(1_024);
    let most_gib = u32::try_from(most).ok()?.saturating_mul(2).max(1);
    let local_only = Setup { memory: MemoryPolicy::AllLocal, ..setup };
    let node_gib = least(most_gib, |node_gib| enough(local_only, uniform(node_gib, 0)))?;
    let cost = |capacity: UniformCapacity| {
        let local = Bytes::mib(nodes * u64::from(capacity.node_mib));
        (local + capacity.slices_per_server.bytes(SLICE)).saturating_mul(u64::from(cluster.servers))
    };
    let without = cost(uniform(node_gib, 0));
    let mut best = (without, Bytes::ZERO);
    if matches!(setup.memory, MemoryPolicy::AllLocal) {
        return Some(Provisioned { local_only_bytes: without, bytes: without, pool_bytes: Bytes::ZERO });
    }
    for percent in LOCAL_PERCENT {
        let local = u32::try_from(u64::from(node_gib) * u64::from(percent) / 100).ok()?;
        // The largest pool that keeps the total below the best result so far.
        let affordable = u32::try_from((best.0 - cost(uniform(local, 0))).0 / SLICE.0 / u64::from(cluster.servers)).ok()?;
        let Some(slices) = affordable.checked_sub(1) else { continue };
        if enough(setup, uniform(local, slices))? {
            let slices = least(slices, |slices| enough(setup, uniform(local, slices)))?;
            best = (cost(uniform(local, slices)), Slices(slices).bytes(SLICE).saturating_mul(u64::from(cluster.servers)));
        }
    }
    Some(Provisioned { local_only_bytes: without, bytes: best.0, pool_bytes: best.1 })
}

fn uniform(node_gib: u32, slices_per_server: u32) -> UniformCapacity {
    UniformCapacity { node_mib: node_gib.saturating_mul(1_024), slices_per_server: Slices(slices_per_server) }
}

/// Returns the least number that is enough, by bisection. `most` must be enough.
fn least(most: u32, enough: impl Fn(u32) -> Option<bool>) -> Option<u32> {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low) / 2;
        if enough(middle)? {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(high)
}
