//! The trace, and what the simulator does with it.

use fastrand::Rng;
use placement::{Shape, Strategy};
use pool::{Ns, SLICE, Slices};
use simulator::memory::MemoryPolicy;
use simulator::run::{Capacity, Run, Started, UniformCapacity};
use simulator::service_level::{Rule, ServiceLevel};
use simulator::site::{Cluster, Setup, Site};
use units::{Bytes, RatioPpm};
use vmtrace::Vm;

use super::Size;

pub(crate) const NODES: u8 = 2;
pub(crate) const NODE_CORES: u32 = 10;
pub(crate) const NODE_MIB: u32 = 24 << 10;
pub(crate) const STRATEGY: Strategy = Strategy::PoolBalance;
/// Slices that VMs may have, per host of a pool.
const SLICES_PER_HOST: u32 = 6;
const POOL_SHARE: RatioPpm = RatioPpm(200_000);

/// A VM with its fate in the simulation.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) vm: Vm,
    /// The slices that it may have.
    pub(crate) wanted: Slices,
    /// The number of its server; `None` if it was refused.
    pub(crate) server: Option<u32>,
    /// The slices that it got.
    pub(crate) slices: Slices,
}

impl Planned {
    /// Whether it runs with less pool memory than it could have had.
    pub(crate) fn fell_back(&self) -> bool {
        self.server.is_some() && self.slices < self.wanted
    }
}

/// Slices of a pool with so many hosts.
pub(crate) fn pool_slices(hosts: u32) -> u32 {
    hosts * SLICES_PER_HOST
}

/// VMs that arrive in even seconds and leave in odd ones, so that what a VM frees is free before the next one arrives.
fn vms(size: &Size) -> Vec<Vm> {
    let mut random = Rng::with_seed(7);
    // About as many cores are rented as there are, at the peak.
    let seconds = 10_000;
    let lifetime = seconds * i64::from(size.hosts) * 11 / i64::try_from(size.vms).unwrap();
    let mut vms: Vec<Vm> = (0..size.vms)
        .map(|id| {
            let arrival = 2 * random.i64(0..seconds);
            let cores = 1 << random.u32(0..4);
            let memory_bytes = Bytes(u64::from(cores) * random.u64(2..13) * SLICE.0 / 2);
            Vm { id, arrival, departure: Some(arrival + 1 + 2 * random.i64(0..lifetime)), cores, memory_bytes, ..Vm::default() }
        })
        .collect();
    vms.sort_by_key(Vm::order);
    vms
}

/// Simulates the trace.
pub(crate) fn plan(size: &Size) -> Vec<Planned> {
    let vms = vms(size);
    let site = Site {
        shape: Shape { nodes: NODES, node_cores: NODE_CORES, node_mib: NODE_MIB },
        strategy: STRATEGY,
        offline: (Ns(0), Ns(0)),
        scrub: Ns(0),
        service_level: ServiceLevel { rule: Rule::Scheduled, ..ServiceLevel::default() },
        ..Site::default()
    };
    let memory = MemoryPolicy::Static { share: POOL_SHARE, seed: 1 };
    let setup = Setup { pool_sockets: size.per_pool * u32::from(NODES), memory, added_ns: 0 };
    let ends = vms.iter().filter_map(|vm| vm.departure).max().unwrap();
    let cluster = Cluster { vms, servers: size.hosts, ends };
    let uniform = UniformCapacity { node_mib: NODE_MIB, pool_slices: Slices(pool_slices(size.per_pool)) };
    let run = Run::new(&site, setup, &cluster, None, Capacity::Uniform(uniform)).unwrap();
    let planned = |(vm, started): (&Vm, Option<Started>)| {
        let (server, slices) = started.map_or((None, Slices::ZERO), |started| (Some(started.placement.server), started.slices));
        Planned { vm: vm.clone(), wanted: memory.slices(vm), server, slices }
    };
    cluster.vms.iter().zip(run.placements()).map(planned).collect()
}
