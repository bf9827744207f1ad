//! What a run is about: hardware, times, faults, and the policy in question.

use placement::{Shape, Strategy};
use pool::Ns;
use serde::Serialize;
use vmtrace::Vm;

use crate::faults::Faults;
use crate::memory::Memory;

/// What all runs of a study share.
#[derive(Clone, Debug, Serialize)]
pub struct Site {
    /// The servers.
    pub shape: Shape,
    /// Which server a VM goes to.
    pub strategy: Strategy,
    /// Memory controllers of each pool.
    pub emcs: u16,
    /// Slices of each pool that are promised to nobody.
    pub buffer_slices: u32,
    /// How long a host takes to release one slice: at least, at most. Drawn for every release.
    pub offline: (Ns, Ns),
    /// How long it takes to zero one slice.
    pub scrub: Ns,
    /// How long a stuck slice is left alone.
    pub ask_again_after: Ns,
    /// What fails.
    pub faults: Faults,
    /// Of everything that is drawn.
    pub seed: u64,
    /// The slowdown that a VM may have (the performance degradation margin).
    pub margin: f64,
    /// Of a million VMs, how many may be moved to local memory when they exceed the margin (004 section 6.4.3: 1 %).
    pub mitigated_ppm: u32,
    /// How long the monitor takes to notice one.
    pub noticed_after: Ns,
    /// How long it takes to copy one slice to local memory (004 section 4.2: 50 ms).
    pub copy: Ns,
}

impl Default for Site {
    fn default() -> Self {
        const MS: u64 = 1_000_000;
        Self {
            shape: Shape { nodes: 2, node_cores: 24, node_mib: 384 << 10 },
            strategy: Strategy::BestFit,
            emcs: 1,
            buffer_slices: 0,
            offline: (Ns(10 * MS), Ns(100 * MS)),
            scrub: Ns(30 * MS),
            ask_again_after: Ns(10_000 * MS),
            faults: Faults::default(),
            seed: 1,
            margin: 0.05,
            mitigated_ppm: 10_000,
            noticed_after: Ns(1_800_000 * MS),
            copy: Ns(50 * MS),
        }
    }
}

/// The VMs of a cluster by arrival, and its servers.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// By arrival.
    pub vms: Vec<Vm>,
    /// How many servers.
    pub servers: u32,
    /// The last second that the trace tells of.
    pub ends: i64,
}

/// One configuration.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Sockets that share a pool.
    pub pool_sockets: u32,
    /// How memory is split.
    pub memory: Memory<'a>,
    /// What an access to the pool takes longer.
    pub added_ns: u32,
}

impl Setup<'_> {
    /// Servers that share a pool: at least one.
    #[must_use]
    pub fn pool_servers(&self, shape: &Shape) -> u32 {
        (self.pool_sockets / u32::from(shape.nodes).max(1)).max(1)
    }
}
