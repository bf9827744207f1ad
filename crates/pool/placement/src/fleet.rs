//! Servers, what is free on them, and the choice among them.

use serde::{Deserialize, Serialize};

use crate::policy::{Candidate, Policy};

/// NUMA nodes that a server may have.
pub const NODES_MAX: usize = 4;

/// What every server of a fleet is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// NUMA nodes (sockets), 1 to [`NODES_MAX`].
    pub nodes: u8,
    /// Cores of a node.
    pub node_cores: u32,
    /// Local memory of a node, in MiB.
    pub node_mib: u32,
}

impl Shape {
    /// Cores of a server.
    #[must_use]
    pub fn cores(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.node_cores)
    }

    /// Local memory of a server, in MiB.
    #[must_use]
    pub fn mib(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.node_mib)
    }
}

/// What a VM asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Which VM: only a policy that draws lots looks at it.
    pub id: u64,
    /// Cores.
    pub cores: u32,
    /// Local memory, in MiB.
    pub local_mib: u32,
    /// Slices of pool memory.
    pub pool_slices: u32,
}

/// What a pool can give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The most slices that one VM could get now.
    pub grantable: u32,
    /// Slices of the whole pool.
    pub capacity: u32,
}

/// What is taken, or free, on one NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Cores.
    pub cores: u32,
    /// Local memory, in MiB.
    pub mib: u32,
}

/// Where a VM goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The server.
    pub server: u32,
    /// What it takes on each of the server's nodes.
    pub nodes: [Node; NODES_MAX],
}

impl Placement {
    /// Whether it has cores or memory on more than one node.
    #[must_use]
    pub fn spans(&self) -> bool {
        self.nodes.iter().filter(|node| node.cores > 0 || node.mib > 0).count() > 1
    }

    /// Local memory that is on another node than the most of its cores, in MiB.
    #[must_use]
    pub fn remote_mib(&self) -> u64 {
        let home = self.home();
        let others = self.nodes.iter().enumerate().filter(|&(at, _)| at != home);
        others.map(|(_, node)| u64::from(node.mib)).sum()
    }

    /// The node with the most of its cores, the first of equals.
    #[must_use]
    pub fn home(&self) -> usize {
        (1..NODES_MAX).fold(0, |best, at| if self.nodes[at].cores > self.nodes[best].cores { at } else { best })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    up: bool,
    free: [Node; NODES_MAX],
    /// The sums of the nodes', which most servers are ruled out by.
    cores: u32,
    mib: u64,
}

/// Servers that are looked at together when it is asked which have enough free cores.
const RUN: usize = 64;

/// All servers of a cluster, with what is free on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    shape: Shape,
    pool_servers: u32,
    servers: Vec<Server>,
    /// Free cores of each server once more, side by side: a large cluster is mostly full, and is gone through for every VM.
    free_cores: Vec<u32>,
}

impl Fleet {
    /// Empty servers, of which so many in a row share a pool; the last pool may have fewer. `None` for a shape without
    /// nodes, or with more than [`NODES_MAX`], or for pools of no servers.
    #[must_use]
    pub fn new(shape: Shape, servers: u32, pool_servers: u32) -> Option<Self> {
        let nodes = usize::from(shape.nodes);
        if nodes == 0 || nodes > NODES_MAX || pool_servers == 0 {
            return None;
        }
        let mut free = [Node::default(); NODES_MAX];
        free[..nodes].fill(Node { cores: shape.node_cores, mib: shape.node_mib });
        let cores = u32::try_from(shape.cores()).ok()?;
        let server = Server { up: true, free, cores, mib: shape.mib() };
        let servers = servers as usize;
        Some(Self { shape, pool_servers, servers: vec![server; servers], free_cores: vec![cores; servers] })
    }

    /// What its servers are like.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// How many servers there are.
    #[must_use]
    pub fn servers(&self) -> u32 {
        u32::try_from(self.servers.len()).unwrap_or(u32::MAX)
    }

    /// How many pools there are.
    #[must_use]
    pub fn pools(&self) -> u32 {
        self.servers().div_ceil(self.pool_servers)
    }

    /// The pool of a server, and the server's number among those of that pool.
    #[must_use]
    pub fn pool_of(&self, server: u32) -> (u32, u32) {
        (server / self.pool_servers, server % self.pool_servers)
    }

    /// Cores and local memory in MiB that are free on a server; nothing on one that is down.
    #[must_use]
    pub fn free(&self, server: u32) -> (u32, u64) {
        self.servers.get(server as usize).filter(|server| server.up).map_or((0, 0), |server| (server.cores, server.mib))
    }

    /// Takes a server out of the choice, or puts it back. VMs on it are given back one by one, as ever.
    pub fn set_up(&mut self, server: u32, up: bool) {
        if let Some(server) = self.servers.get_mut(server as usize) {
            server.up = up;
        }
    }

    /// Where a VM should go; `None` where it fits nowhere. `pools` tells each pool's room; a pool beyond it has none.
    #[must_use]
    pub fn choose(&self, request: &Request, pools: &[Room], policy: &impl Policy) -> Option<Placement> {
        let mut best: Option<((bool, u64), u32)> = None;
        let each = self.pool_servers as usize;
        for (pool, free_cores) in (0usize..).zip(self.free_cores.chunks(each)) {
            let room = pools.get(pool).copied().unwrap_or_default();
            if room.grantable < request.pool_slices {
                continue;
            }
            let mut empty_seen = false;
            for at in with_cores(free_cores, request.cores).map(|at| pool * each + at) {
                let server = &self.servers[at];
                if !server.has_room(request) {
                    continue;
                }
                // Of the empty servers of a pool one is like the other, and the first is taken.
                let empty = u64::from(server.cores) == self.shape.cores() && server.mib == self.shape.mib();
                if empty && empty_seen && !policy.tells_servers_apart() {
                    continue;
                }
                empty_seen |= empty;
                let index = u32::try_from(at).unwrap_or(u32::MAX);
                let spans = server.one_node(request).is_none();
                let free = (server.cores, server.mib);
                let cost = policy.cost(&Candidate { request, shape: &self.shape, server: index, free, room, spans });
                if best.is_none_or(|(least, _)| (spans, cost) < least) {
                    best = Some(((spans, cost), index));
                }
                if !spans && policy.any_will_do() {
                    return self.place_on(index, request);
                }
            }
        }
        best.and_then(|(_, server)| self.place_on(server, request))
    }

    /// How a VM would lie on one server; `None` where it does not fit. Asks no pool.
    #[must_use]
    pub fn place_on(&self, server: u32, request: &Request) -> Option<Placement> {
        let on = self.servers.get(server as usize).filter(|on| on.has_room(request))?;
        let mut nodes = [Node::default(); NODES_MAX];
        match on.one_node(request) {
            Some(at) => nodes[at] = Node { cores: request.cores, mib: request.local_mib },
            None => on.span(request, &mut nodes),
        }
        Some(Placement { server, nodes })
    }

    /// Puts a VM where it was decided. Returns whether it still fitted; if not, nothing has changed.
    pub fn take(&mut self, placement: &Placement) -> bool {
        let Some(server) = self.servers.get_mut(placement.server as usize) else { return false };
        let fits = server.free.iter().zip(&placement.nodes).all(|(free, want)| free.cores >= want.cores && free.mib >= want.mib);
        if fits {
            for (free, want) in server.free.iter_mut().zip(&placement.nodes) {
                free.cores -= want.cores;
                free.mib -= want.mib;
                server.cores -= want.cores;
                server.mib -= u64::from(want.mib);
            }
            self.free_cores[placement.server as usize] = server.cores;
        }
        fits
    }

    /// Gives a VM more local memory on its server, near most of its cores first. Returns whether there was room; if not,
    /// nothing has changed.
    pub fn grow(&mut self, placement: &mut Placement, mib: u32) -> bool {
        let home = placement.home();
        let Some(server) = self.servers.get_mut(placement.server as usize).filter(|server| server.mib >= u64::from(mib)) else {
            return false;
        };
        let mut missing = mib;
        for at in std::iter::once(home).chain((0..NODES_MAX).filter(|&at| at != home)) {
            let here = missing.min(server.free[at].mib);
            server.free[at].mib -= here;
            placement.nodes[at].mib += here;
            missing -= here;
        }
        server.mib -= u64::from(mib);
        true
    }

    /// Takes a VM away from where it was.
    pub fn give_back(&mut self, placement: &Placement) {
        let Some(server) = self.servers.get_mut(placement.server as usize) else { return };
        for (free, had) in server.free.iter_mut().zip(&placement.nodes) {
            free.cores += had.cores;
            free.mib += had.mib;
            server.cores += had.cores;
            server.mib += u64::from(had.mib);
        }
        self.free_cores[placement.server as usize] = server.cores;
    }
}

/// Places in a list of free cores that have enough, in order.
fn with_cores(free: &[u32], wanted: u32) -> impl Iterator<Item = usize> + '_ {
    // Asked of a run at once, without a branch for each: that is some ten times faster, and most runs have none.
    let runs =
        (0usize..).step_by(RUN).zip(free.chunks(RUN)).filter(move |(_, run)| run.iter().fold(false, |any, &has| any | (has >= wanted)));
    runs.flat_map(move |(first, run)| (first..).zip(run).filter(move |&(_, &has)| has >= wanted).map(|(at, _)| at))
}

impl Server {
    fn has_room(&self, request: &Request) -> bool {
        self.up && self.cores >= request.cores && self.mib >= u64::from(request.local_mib)
    }

    /// The node that has room for all of a VM and is left with the fewest cores, then the least memory.
    fn one_node(&self, request: &Request) -> Option<usize> {
        let fitting = self.free.iter().enumerate().filter(|(_, free)| free.cores >= request.cores && free.mib >= request.local_mib);
        fitting.min_by_key(|(_, free)| (free.cores, free.mib)).map(|(at, _)| at)
    }

    /// Spreads a VM over nodes that have room for it together: from the node that keeps the most of it together on.
    fn span(&self, request: &Request, nodes: &mut [Node; NODES_MAX]) {
        let mut order: [usize; NODES_MAX] = std::array::from_fn(|at| at);
        // All cores on one node if they fit, with as much memory as possible; else where most cores are.
        order.sort_by_key(|&at| {
            let free = self.free[at];
            (free.cores < request.cores, std::cmp::Reverse(if free.cores < request.cores { free.cores } else { free.mib }), at)
        });
        let (mut cores, mut mib) = (request.cores, request.local_mib);
        for at in order {
            let node = Node { cores: cores.min(self.free[at].cores), mib: mib.min(self.free[at].mib) };
            (cores, mib) = (cores - node.cores, mib - node.mib);
            nodes[at] = node;
        }
    }
}

#[cfg(test)]
mod tests;
