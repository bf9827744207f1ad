//! How little could be bought.
//!
//! What every server ever needed for itself is a bound that no scheduler is held to: a VM that does not fit on one server
//! goes to another (004 section 6.1). Here all servers of a cluster have the same local memory, all pools the same
//! slices, and the least is sought with which VMs find room, without pools and with them.

use serde::Serialize;

use crate::memory::Memory;
use crate::run::{Baseline, Bought, Capacity, simulate};
use crate::site::{Cluster, Setup, Site};

/// Of a million VMs, how many may find no room: one VM of rare size does not decide what a whole cluster buys.
const REFUSED_PPM: u64 = 1_000;
/// Local memory that is tried, in percent of what a server needs without pools.
const LOCAL_PERCENT: [u32; 9] = [95, 90, 85, 80, 75, 70, 65, 60, 55];

/// What would be bought. Those of clusters add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Provisioned {
    /// Without pools.
    pub local_only_bytes: u64,
    /// With pools: local and pool memory.
    pub bytes: u64,
    /// Pool memory of that.
    pub pool_bytes: u64,
}

impl Provisioned {
    /// Adds another cluster's.
    pub fn add(&mut self, other: &Self) {
        self.local_only_bytes += other.local_only_bytes;
        self.bytes += other.bytes;
        self.pool_bytes += other.pool_bytes;
    }
}

/// The least that could be bought for a setup. `None` for servers that cannot be.
///
/// Local memory is tried in steps of 5 % of what a server needs without pools; the pools that go with each are found by
/// halving. More memory seldom refuses more VMs, but it can: what is found is enough, and least to that extent.
#[must_use]
pub fn provision(site: &Site, setup: Setup<'_>, cluster: &Cluster, baseline: &Baseline) -> Option<Provisioned> {
    let enough = |setup: Setup<'_>, bought: Bought| {
        let tally = simulate(site, setup, cluster, baseline, Capacity::Bought(bought))?;
        Some(u128::from(tally.rejected) * 1_000_000 <= u128::from(tally.rejected + tally.started) * u128::from(REFUSED_PPM))
    };
    let nodes = u64::from(site.shape.nodes);
    let most = baseline.tally.server_peaks_mib.iter().max().copied().unwrap_or(0).div_ceil(nodes).div_ceil(1_024);
    let most_gib = u32::try_from(most).ok()?.saturating_mul(2).max(1);
    let local_only = Setup { memory: Memory::AllLocal, ..setup };
    let node_gib = least(most_gib, |node_gib| enough(local_only, bought(node_gib, 0)))?;
    let cost = |bought: Bought| {
        let local = (nodes * u64::from(bought.node_mib)) << 20;
        (local + u64::from(bought.slices_per_server) * pool::SLICE_BYTES) * u64::from(cluster.servers)
    };
    let without = cost(bought(node_gib, 0));
    let mut best = (without, 0);
    if matches!(setup.memory, Memory::AllLocal) {
        return Some(Provisioned { local_only_bytes: without, bytes: without, pool_bytes: 0 });
    }
    for percent in LOCAL_PERCENT {
        let local = u32::try_from(u64::from(node_gib) * u64::from(percent) / 100).ok()?;
        // No more pool than leaves it cheaper than what is known.
        let affordable =
            u32::try_from(best.0.saturating_sub(cost(bought(local, 0))) / pool::SLICE_BYTES / u64::from(cluster.servers)).ok()?;
        let Some(slices) = affordable.checked_sub(1) else { continue };
        if enough(setup, bought(local, slices))? {
            let slices = least(slices, |slices| enough(setup, bought(local, slices)))?;
            best = (cost(bought(local, slices)), u64::from(slices) * pool::SLICE_BYTES * u64::from(cluster.servers));
        }
    }
    Some(Provisioned { local_only_bytes: without, bytes: best.0, pool_bytes: best.1 })
}

fn bought(node_gib: u32, slices_per_server: u32) -> Bought {
    Bought { node_mib: node_gib.saturating_mul(1_024), slices_per_server }
}

/// The least number that is enough, if `most` is: by halving.
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
