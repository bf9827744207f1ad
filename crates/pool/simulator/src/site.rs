//! The parameters of a run: hardware, times, faults and the policy under study.

use placement::{Shape, Strategy};
use pool::{Ns, Slices};
use serde::Serialize;
use units::RatioPpm;
use vmtrace::Vm;

use crate::faults::Faults;
use crate::memory::MemoryPolicy;
use crate::pod::Pod;
use crate::service_level::ServiceLevel;
use crate::spill::{PUBLISHED, Spill};

/// Parameters that all runs of a study share.
#[derive(Clone, Debug, Serialize)]
pub struct Site {
    /// The servers' hardware.
    pub shape: Shape,
    /// The policy that chooses a server for a VM.
    pub strategy: Strategy,
    /// Memory controllers of each pool, which all its servers reach.
    pub emcs: u16,
    /// Connects the servers of a pool to devices of few ports instead.
    pub pod: Option<Pod>,
    /// Slices of each pool, or of each device of a sparse pod, that are kept free: no VM gets them.
    pub buffer_slices: Slices,
    /// Time that a host takes to release one slice: minimum and maximum. Drawn for every release.
    pub offline: (Ns, Ns),
    /// Time to zero one slice.
    pub scrub: Ns,
    /// Time until the release of a stuck slice is retried.
    pub ask_again_after: Ns,
    /// Failure rates.
    pub faults: Faults,
    /// Seed of all random draws.
    pub seed: u64,
    /// The largest slowdown that a VM may have (performance degradation margin), as a ratio.
    pub margin: f64,
    /// How a slowdown depends on the share of touched memory that is on the pool.
    pub spill: Spill,
    /// VMs that may be moved to local memory because they exceed the margin, in parts per million (Pond section 6.4.3: 1 %).
    pub mitigated_ppm: RatioPpm,
    /// Time that the monitor takes to detect such a VM.
    pub noticed_after: Ns,
    /// Time to copy one slice to local memory (Pond section 4.2: 50 ms).
    pub copy: Ns,
    /// What provisioned memory must achieve ([`crate::provision`]). Other runs ignore it.
    pub service_level: ServiceLevel,
}

impl Default for Site {
    fn default() -> Self {
        const MS: u64 = 1_000_000;
        Self {
            shape: Shape { nodes: 2, node_cores: 24, node_mib: 384 << 10 },
            strategy: Strategy::BestFit,
            emcs: 1,
            pod: None,
            buffer_slices: Slices::ZERO,
            offline: (Ns(10 * MS), Ns(100 * MS)),
            scrub: Ns(30 * MS),
            ask_again_after: Ns(10_000 * MS),
            faults: Faults::default(),
            seed: 1,
            margin: 0.05,
            spill: PUBLISHED,
            mitigated_ppm: RatioPpm(10_000),
            noticed_after: Ns(1_800_000 * MS),
            copy: Ns(50 * MS),
            service_level: ServiceLevel::default(),
        }
    }
}

/// The VMs of a cluster and its servers.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The VMs, ordered by arrival.
    pub vms: Vec<Vm>,
    /// Number of servers.
    pub servers: u32,
    /// The last second of the trace.
    pub ends: i64,
}

/// One configuration to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Number of sockets that share a pool.
    pub pool_sockets: u32,
    /// How memory is split between the server and the pool.
    pub memory: MemoryPolicy<'a>,
    /// Added latency of an access to pool memory, in nanoseconds.
    pub added_ns: u32,
}

impl Setup<'_> {
    /// Returns the number of servers that share a pool, at least one.
    #[must_use]
    pub fn pool_servers(&self, shape: &Shape) -> u32 {
        (self.pool_sockets / u32::from(shape.nodes).max(1)).max(1)
    }
}
