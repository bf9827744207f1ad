//! The memory that servers and pools have in a run.

use pool::Slices;
use serde::Serialize;

use crate::tally::Tally;

/// The result of a run without pools.
#[derive(Clone, Debug)]
pub struct Baseline {
    /// The server of every VM; `None` if no server could hold it.
    pub servers: Vec<Option<u32>>,
    /// The counters of the run.
    pub tally: Tally,
}

/// Sizes of pools and servers.
#[derive(Clone, Copy, Debug)]
pub enum Capacity<'a> {
    /// Pools and servers are large enough for any demand, to measure what they need.
    Ample,
    /// Slices of each pool, or of each device of sparse pods. Servers are as with [`Capacity::Ample`].
    Slices(&'a [Slices]),
    /// All servers are alike and all pools are alike.
    Uniform(UniformCapacity),
}

/// The memory of servers and pools that are all alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UniformCapacity {
    /// Local memory of a NUMA node, in MiB.
    pub node_mib: u32,
    /// Slices of a pool with all its servers. The last pool of a cluster may have fewer servers, and gets a proportional part, rounded
    /// up.
    pub pool_slices: Slices,
}

/// Slices that an ample pool has in addition, for VMs that are moved to its servers after a fault.
const AMPLE_MIN_SLICES: u64 = 256;

/// Returns slices that suffice for any demand on a ledger: twice the peak of all memory of its servers, because slices may
/// still be in release when others are assigned.
pub(crate) fn ample_slices(baseline: Option<&Baseline>, servers: &[u32]) -> Slices {
    let peaks = baseline.map_or(&[][..], |baseline| &baseline.tally.server_peaks_mib);
    let mib: u64 = servers.iter().filter_map(|&server| peaks.get(server as usize)).sum();
    Slices(u32::try_from((mib >> 10) * 2 + AMPLE_MIN_SLICES).unwrap_or(u32::MAX / 2).min(u32::MAX / 2))
}

/// Returns the slices of a pool with `servers` servers if one with `pool_servers` has `slices`, rounded up.
pub(crate) fn proportional_slices(Slices(slices): Slices, servers: u32, pool_servers: u32) -> Slices {
    let part = (u64::from(slices) * u64::from(servers)).div_ceil(u64::from(pool_servers.max(1)));
    Slices(u32::try_from(part).unwrap_or(u32::MAX))
}
