//! The least memory that could be bought.
//!
//! The peak demand of every server is an upper bound that a scheduler does not need to meet: a VM that does not fit on one
//! server is placed on another (Pond section 6.1). The sum of peaks is also a statistic of extremes, which grows with the
//! length of the trace. Here all servers of a cluster have the same local memory and all pools the same slices, and the
//! search finds the least memory with which a stated share of the VMs fits, without pools and with them.

use pool::{SLICE, Slices};
use serde::Serialize;
use units::Bytes;

use crate::error::Error;
use crate::memory::MemoryPolicy;
use crate::run::{Baseline, Capacity, UniformCapacity, keeps_service_level, proportional_slices, simulate};
use crate::service_level::ServiceLevel;
use crate::site::{Cluster, Setup, Site};
use crate::tally::Tally;
use crate::topology::Topology;

/// Resolution of the local memory of a NUMA node: 0.2 % of a server with 2 nodes and 256 GiB.
const UNIT_MIB: u32 = 256;
/// A node's memory that no VM exceeds: 1 PiB. Sums over nodes do not overflow.
const AMPLE_UNITS: u32 = (1 << 30) / UNIT_MIB;
/// Shares of the local memory without pools that are tried first, in percent. The best is then refined by halving the step.
const FIRST_PERCENT: [u32; 14] = [95, 90, 85, 80, 75, 70, 65, 60, 55, 50, 45, 40, 35, 30];
/// The step between these shares, in percent.
const FIRST_STEP: u32 = 5;

/// Memory to buy. Results of several clusters can be added.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Provisioned {
    /// Total without pools.
    pub local_only_bytes: Bytes,
    /// Total with pools: local and pool memory.
    pub bytes: Bytes,
    /// The most memory that the VMs rent at one time: the lower bound of `bytes`, if no VM is refused.
    pub rented_at_peak_bytes: Bytes,
    /// Pool memory, as part of `bytes`.
    pub pool_bytes: Bytes,
    /// Servers.
    pub servers: u64,
    /// Servers whose pool has any memory.
    pub pooled_servers: u64,
    /// Pools that have any memory.
    pub pools: u64,
    /// Controllers of these pools, or devices of these sparse pods.
    pub devices: u64,
    /// The run with this memory.
    pub tally: Tally,
}

impl Provisioned {
    /// Adds the result of another cluster.
    pub fn add(&mut self, other: &Self) {
        self.local_only_bytes += other.local_only_bytes;
        self.bytes += other.bytes;
        self.rented_at_peak_bytes += other.rented_at_peak_bytes;
        self.pool_bytes += other.pool_bytes;
        self.servers += other.servers;
        self.pooled_servers += other.pooled_servers;
        self.pools += other.pools;
        self.devices += other.devices;
        self.tally.add(&other.tally);
    }
}

/// Returns the least local memory of a NUMA node with which a cluster without pools keeps the service level, in MiB.
///
/// The search rises from the memory that the VMs rent at their peak in steps of 2 %, and then bisects the last step. It does not
/// bisect from above: with far more memory than cores, policies that balance the two spread VMs, no server has many free cores
/// left, and larger VMs are refused.
///
/// # Errors
/// [`Error::Servers`]: the servers' shape is invalid. [`Error::ServiceLevel`]: no amount of memory is enough.
pub fn local_only_mib(site: &Site, cluster: &Cluster, baseline: &Baseline) -> Result<u32, Error> {
    let setup = Setup { pool_sockets: u32::from(site.shape.nodes), memory: MemoryPolicy::AllLocal, added_ns: 0 };
    let enough = |units: u32| keeps_service_level(site, setup, cluster, baseline, local(units * UNIT_MIB));
    let nodes = u64::from(cluster.servers.max(1)) * u64::from(site.shape.nodes.max(1));
    let floor = rented_at_peak(cluster, baseline).to_mib_ceil() / nodes / u64::from(UNIT_MIB);
    let floor = u32::try_from(floor).unwrap_or(AMPLE_UNITS).min(AMPLE_UNITS);
    let (mut below, mut units) = (0, floor.max(1));
    while !enough(units).ok_or(Error::Servers)? {
        if units == AMPLE_UNITS {
            let ServiceLevel { share, .. } = site.service_level;
            return Err(Error::ServiceLevel { servers: cluster.servers, vms: baseline.tally.started, share });
        }
        below = units;
        // Beyond four times the floor, memory is not what VMs lack; a few large steps verify that.
        units = if units < floor.saturating_mul(4) { units + units.div_ceil(50) } else { units.saturating_mul(2) }.min(AMPLE_UNITS);
    }
    Ok(least(below + 1, units, enough).ok_or(Error::Servers)? * UNIT_MIB)
}

/// Returns the most memory that the VMs of the run without pools rent at one time: no server has less in sum, whatever is pooled, but
/// for the VMs that the service level permits to refuse.
fn rented_at_peak(cluster: &Cluster, baseline: &Baseline) -> Bytes {
    let placed = cluster.vms.iter().zip(&baseline.servers).filter(|(_, server)| server.is_some());
    let changes = placed.flat_map(|(vm, _)| {
        let bytes = i128::from(vm.memory_bytes.0);
        [(vm.arrival, bytes), (vm.departure.unwrap_or(i64::MAX), -bytes)]
    });
    // Departures come before arrivals of the same second.
    let mut changes: Vec<_> = changes.collect();
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    Bytes(u64::try_from(most).unwrap_or(u64::MAX))
}

/// Returns the least memory to buy for a setup, or `None` if the servers' shape is invalid. `node_mib` is the local memory without
/// pools ([`local_only_mib`]).
///
/// Local memory is searched in steps of 5 % of what a server needs without pools, then in halved steps around the best, down to
/// 256 MiB for each NUMA node. For each, bisection finds the slices of a pool. More memory can, in rare cases, cause more VMs to be
/// refused, so the result is sufficient and close to minimal.
#[must_use]
pub fn provision(site: &Site, setup: Setup<'_>, cluster: &Cluster, baseline: &Baseline, node_mib: u32) -> Option<Provisioned> {
    let search = Search { site, setup, cluster, baseline };
    let without = search.bytes(local(node_mib));
    let mut best = local(node_mib);
    if !matches!(setup.memory, MemoryPolicy::AllLocal) {
        for percent in FIRST_PERCENT {
            search.improve(&mut best, whole_units(node_mib, percent))?;
        }
        let mut step = whole_units(node_mib, FIRST_STEP) / 2;
        while step >= UNIT_MIB {
            let around = best.node_mib;
            for node_mib in [around.saturating_sub(step), around.saturating_add(step)] {
                search.improve(&mut best, node_mib)?;
            }
            step /= 2;
        }
    }
    let pool_bytes = search.pool_bytes(best.pool_slices);
    let pooled = best.pool_slices > Slices::ZERO;
    let topology = Topology::new(site, &setup, cluster.servers);
    let tally = simulate(site, setup, cluster, baseline, Capacity::Uniform(best))?;
    Some(Provisioned {
        local_only_bytes: without,
        bytes: search.bytes(best),
        rented_at_peak_bytes: rented_at_peak(cluster, baseline),
        pool_bytes,
        servers: u64::from(cluster.servers),
        pooled_servers: if pooled { u64::from(cluster.servers) } else { 0 },
        pools: if pooled { topology.pools().len() as u64 } else { 0 },
        devices: if pooled { u64::from(topology.ledgers()) * u64::from(topology.emcs) } else { 0 },
        tally,
    })
}

/// Sizes of servers and pools for one setup on one cluster.
struct Search<'a> {
    site: &'a Site,
    setup: Setup<'a>,
    cluster: &'a Cluster,
    baseline: &'a Baseline,
}

impl Search<'_> {
    /// Replaces the best size if a smaller total with this local memory keeps the service level. Returns `None` if the servers' shape
    /// is invalid.
    fn improve(&self, best: &mut UniformCapacity, node_mib: u32) -> Option<()> {
        let size = |slices: u32| UniformCapacity { node_mib, pool_slices: Slices(slices) };
        // The largest pools that keep the total below the best one.
        let affordable = self.bytes(*best).saturating_sub(self.bytes(size(0))).0 / SLICE.0 * u64::from(self.pool_servers());
        let mut most = u32::try_from(affordable / u64::from(self.cluster.servers.max(1))).ok()?;
        while most > 0 && self.bytes(size(most)) >= self.bytes(*best) {
            most -= 1;
        }
        let enough = |slices: u32| keeps_service_level(self.site, self.setup, self.cluster, self.baseline, size(slices));
        if self.bytes(size(most)) < self.bytes(*best) && enough(most)? {
            *best = size(least(0, most, enough)?);
        }
        Some(())
    }

    fn pool_servers(&self) -> u32 {
        self.setup.pool_servers(&self.site.shape)
    }

    /// Memory of all pools of the cluster.
    fn pool_bytes(&self, slices: Slices) -> Bytes {
        let (servers, of_pool) = (self.cluster.servers, self.pool_servers());
        let pool = |servers: u32| u64::from(proportional_slices(slices, servers, of_pool).0);
        let last = servers % of_pool;
        Bytes((u64::from(servers / of_pool) * pool(of_pool) + pool(last)).saturating_mul(SLICE.0))
    }

    /// Memory of all servers and pools of the cluster.
    fn bytes(&self, size: UniformCapacity) -> Bytes {
        let local = Bytes::mib(u64::from(self.site.shape.nodes) * u64::from(size.node_mib));
        local.saturating_mul(u64::from(self.cluster.servers)) + self.pool_bytes(size.pool_slices)
    }
}

fn local(node_mib: u32) -> UniformCapacity {
    UniformCapacity { node_mib, pool_slices: Slices::ZERO }
}

/// Returns a share of a node's memory, rounded down to whole units.
fn whole_units(node_mib: u32, percent: u32) -> u32 {
    node_mib / UNIT_MIB * percent / 100 * UNIT_MIB
}

/// Returns the least number of a range that is enough, by bisection. `most` must be enough.
fn least(mut low: u32, most: u32, enough: impl Fn(u32) -> Option<bool>) -> Option<u32> {
    let mut high = most;
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
