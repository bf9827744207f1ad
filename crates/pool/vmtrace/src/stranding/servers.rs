//! The servers of a cluster, and what is stranded on them. Where a VM goes is decided by `placement`.

use placement::{Fleet, Node, Placement, Request, Room, Strategy};

const MIB: u64 = 1 << 20;

/// What a VM takes, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placed {
    pub(super) server: u32,
    pub(super) cores: u32,
    pub(super) mib: u32,
}

/// Why a VM finds no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No server has enough free cores.
    Cores,
    /// Some have, and none of those has enough free DRAM.
    Memory,
}

/// The servers of a cluster, all alike.
#[derive(Clone, Debug)]
pub struct Servers {
    fleet: Fleet,
    strategy: Strategy,
    free_cores: u64,
}

impl Servers {
    /// So many empty servers with so many cores and so much DRAM each. A server counts as one node: a VM may span its sockets.
    /// `None` for more DRAM than there is: 4 PiB and above.
    #[must_use]
    pub fn new(count: u32, cores: u32, dram_bytes: u64, strategy: Strategy) -> Option<Self> {
        let shape = placement::Shape { nodes: 1, node_cores: cores, node_mib: u32::try_from(dram_bytes / MIB).ok()? };
        // All in one pool, of which nobody asks for anything.
        let fleet = Fleet::new(shape, count, count.max(1))?;
        Some(Self { fleet, strategy, free_cores: u64::from(count) * u64::from(cores) })
    }

    /// Places a VM, whose number only a policy by lot looks at.
    ///
    /// # Errors
    /// Where it fits nowhere.
    pub fn place(&mut self, id: u64, cores: u32, bytes: u64) -> Result<Placed, Refused> {
        let local_mib = u32::try_from(bytes.div_ceil(MIB)).unwrap_or(u32::MAX);
        let request = Request { id, cores, local_mib, pool_slices: 0 };
        let Some(chosen) = self.fleet.choose(&request, &[Room::default()], &self.strategy) else {
            let any = (0..self.fleet.servers()).any(|server| self.fleet.free(server).0 >= cores);
            return Err(if any { Refused::Memory } else { Refused::Cores });
        };
        self.fleet.take(&chosen);
        self.free_cores -= u64::from(cores);
        Ok(Placed { server: chosen.server, cores, mib: local_mib })
    }

    /// A VM leaves.
    pub fn free(&mut self, placed: Placed) {
        let Placed { server, cores, mib } = placed;
        let mut nodes = [Node::default(); placement::NODES_MAX];
        nodes[0] = Node { cores, mib };
        self.fleet.give_back(&Placement { server, nodes });
        self.free_cores += u64::from(cores);
    }

    /// The share of all cores that are rented.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn scheduled_ratio(&self) -> f64 {
        let all = u64::from(self.fleet.servers()) * self.fleet.shape().cores();
        1.0 - self.free_cores as f64 / all.max(1) as f64
    }

    /// The share of all DRAM that is stranded, where a core rents at most so many bytes.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn stranded_ratio(&self, most_bytes_per_core: u64) -> f64 {
        let beyond = |server: u32| {
            let (cores, mib) = self.fleet.free(server);
            (mib * MIB).saturating_sub(u64::from(cores).saturating_mul(most_bytes_per_core)) as f64
        };
        let stranded: f64 = (0..self.fleet.servers()).map(beyond).sum();
        let all = f64::from(self.fleet.servers()) * (self.fleet.shape().mib() * MIB) as f64;
        if all > 0.0 { stranded / all } else { 0.0 }
    }
}
