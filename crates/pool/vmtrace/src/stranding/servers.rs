//! The servers of a cluster and their stranded DRAM. `placement` chooses the server of a VM.

use placement::{Fleet, Node, Placement, PoolSpace, Request, Strategy};
use units::{Bytes, Slices};

/// The resources that a VM takes on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Allocation {
    pub(super) server: u32,
    pub(super) cores: u32,
    pub(super) mib: u32,
}

/// Why a VM does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No server has enough free cores.
    Cores,
    /// No server with enough free cores has enough free DRAM.
    Memory,
}

/// The servers of a cluster, all of one shape.
#[derive(Clone, Debug)]
pub struct Servers {
    fleet: Fleet,
    strategy: Strategy,
    free_cores: u64,
}

impl Servers {
    /// Creates empty servers. Each counts as one NUMA node, so that a VM may span its sockets. Returns `None` for 4 PiB of
    /// DRAM or more.
    #[must_use]
    pub fn new(count: u32, cores: u32, dram: Bytes, strategy: Strategy) -> Option<Self> {
        let shape = placement::Shape { nodes: 1, node_cores: cores, node_mib: u32::try_from(dram.0 >> 20).ok()? };
        // All servers share one pool, which no VM uses.
        let fleet = Fleet::new(shape, count, count.max(1))?;
        Some(Self { fleet, strategy, free_cores: u64::from(count) * u64::from(cores) })
    }

    /// Places a VM. Only a randomized policy uses `id`.
    ///
    /// # Errors
    /// [`Refused`] if no server can hold it.
    pub fn place(&mut self, id: u64, cores: u32, memory: Bytes) -> Result<Allocation, Refused> {
        let local_mib = u32::try_from(memory.to_mib_ceil()).unwrap_or(u32::MAX);
        let request = Request { id, cores, local_mib, pool_slices: Slices::ZERO };
        let Some(chosen) = self.fleet.choose(&request, &[PoolSpace::default()], &self.strategy) else {
            let any = (0..self.fleet.servers()).any(|server| self.fleet.free(server).0 >= cores);
            return Err(if any { Refused::Memory } else { Refused::Cores });
        };
        self.fleet.reserve(&chosen);
        self.free_cores -= u64::from(cores);
        Ok(Allocation { server: chosen.server, cores, mib: local_mib })
    }

    /// Releases the resources of a VM.
    pub fn free(&mut self, allocation: Allocation) {
        let Allocation { server, cores, mib } = allocation;
        let mut nodes = [Node::default(); placement::NODES_MAX];
        nodes[0] = Node { cores, mib };
        self.fleet.release(&Placement { server, nodes });
        self.free_cores += u64::from(cores);
    }

    /// Returns the share of all cores that are rented.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn scheduled_ratio(&self) -> f64 {
        let all = u64::from(self.fleet.servers()) * self.fleet.shape().cores();
        1.0 - self.free_cores as f64 / all.max(1) as f64
    }

    /// Returns the share of all DRAM that is stranded, if a VM has at most `most_bytes_per_core`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn stranded_ratio(&self, most_bytes_per_core: Bytes) -> f64 {
        let stranded_bytes = |server: u32| {
            let (cores, mib) = self.fleet.free(server);
            (Bytes::mib(mib) - most_bytes_per_core.saturating_mul(u64::from(cores))).0 as f64
        };
        let stranded: f64 = (0..self.fleet.servers()).map(stranded_bytes).sum();
        let all = f64::from(self.fleet.servers()) * Bytes::mib(self.fleet.shape().mib()).0 as f64;
        if all > 0.0 { stranded / all } else { 0.0 }
    }
}
