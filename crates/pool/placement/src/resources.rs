//! The resources of servers, pools and VMs.

use serde::{Deserialize, Serialize};
use units::Slices;

/// The largest number of NUMA nodes of a server.
pub const NODES_MAX: usize = 4;

/// The hardware of every server of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Number of NUMA nodes (sockets), 1 to [`NODES_MAX`].
    pub nodes: u8,
    /// Cores of a NUMA node.
    pub node_cores: u32,
    /// Local memory of a NUMA node, in MiB.
    pub node_mib: u32,
}

impl Shape {
    /// Returns the cores of a server.
    #[must_use]
    pub fn cores(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.node_cores)
    }

    /// Returns the local memory of a server, in MiB.
    #[must_use]
    pub fn mib(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.node_mib)
    }
}

/// The resources that a VM requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Identifier of the VM. Only randomized policies use it.
    pub id: u64,
    /// Cores.
    pub cores: u32,
    /// Local memory, in MiB.
    pub local_mib: u32,
    /// Slices of pool memory.
    pub pool_slices: Slices,
}

/// The free space of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSpace {
    /// The largest number of slices that one VM can get now.
    pub grantable: Slices,
    /// All slices of the pool.
    pub capacity: Slices,
}

/// An amount of resources of one NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Cores.
    pub cores: u32,
    /// Local memory, in MiB.
    pub mib: u32,
}

/// The server of a VM and its resources there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Number of the server.
    pub server: u32,
    /// The VM's resources on each of the server's nodes.
    pub nodes: [Node; NODES_MAX],
}

impl Placement {
    /// Returns whether the VM has cores or memory on more than one node.
    #[must_use]
    pub fn spans(&self) -> bool {
        self.nodes.iter().filter(|node| node.cores > 0 || node.mib > 0).count() > 1
    }

    /// Returns the local memory on other nodes than the main node, in MiB.
    #[must_use]
    pub fn remote_mib(&self) -> u64 {
        let main = self.main_node();
        let others = self.nodes.iter().enumerate().filter(|&(at, _)| at != main);
        others.map(|(_, node)| u64::from(node.mib)).sum()
    }

    /// Returns the node with the most of the VM's cores, the first in case of a tie.
    #[must_use]
    pub fn main_node(&self) -> usize {
        (1..NODES_MAX).fold(0, |best, at| if self.nodes[at].cores > self.nodes[best].cores { at } else { best })
    }
}
