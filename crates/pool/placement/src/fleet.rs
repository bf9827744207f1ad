//! Servers, their free resources, and the choice of a server.

use units::Slices;

use groups::{Group, Groups};

use crate::policy::{Candidate, Policy};
use crate::resources::{NODES_MAX, Node, Placement, PoolSpace, Request, Shape};

mod groups;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    up: bool,
    free: [Node; NODES_MAX],
    /// Sums over the nodes, which rule out most servers.
    cores: u32,
    mib: u64,
}

/// Number of servers whose free cores are checked together.
const BLOCK: usize = 64;

/// All servers of a cluster, with their free resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    shape: Shape,
    pool_servers: u32,
    servers: Vec<Server>,
    /// Copy of the free cores of each server, contiguous in memory: a large cluster is mostly full, and is searched for every
    /// VM.
    free_cores: Vec<u32>,
    groups: Groups,
}

/// The cheapest server so far: whether the VM spans there, the cost, and the server's number.
type Best = Option<((bool, u64), u32)>;

impl Fleet {
    /// Creates empty servers. `pool_servers` consecutive servers share a pool; the last pool may have fewer. Returns `None` for
    /// a shape without nodes or with more than [`NODES_MAX`], and for pools without servers.
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
        let groups = Groups::new(servers, cores, shape.mib());
        let servers = servers as usize;
        Some(Self { shape, pool_servers, servers: vec![server; servers], free_cores: vec![cores; servers], groups })
    }

    /// Returns the hardware of the servers.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the number of servers.
    #[must_use]
    pub fn servers(&self) -> u32 {
        u32::try_from(self.servers.len()).unwrap_or(u32::MAX)
    }

    /// Returns the number of pools.
    #[must_use]
    pub fn pools(&self) -> u32 {
        self.servers().div_ceil(self.pool_servers)
    }

    /// Returns the pool of a server, and the server's index within that pool.
    #[must_use]
    pub fn pool_of(&self, server: u32) -> (u32, u32) {
        (server / self.pool_servers, server % self.pool_servers)
    }

    /// Returns the free cores and the free local memory in MiB of a server; zero for a server that is down.
    #[must_use]
    pub fn free(&self, server: u32) -> (u32, u64) {
        self.servers.get(server as usize).filter(|server| server.up).map_or((0, 0), |server| (server.cores, server.mib))
    }

    /// Marks a server as up or down. No VM is placed on a server that is down. Its VMs are released one by one, as usual.
    pub fn set_up(&mut self, server: u32, up: bool) {
        if let Some(server) = self.servers.get_mut(server as usize) {
            server.up = up;
        }
    }

    /// Chooses a server for a VM. Returns `None` if it fits on no server. `pools` has the free space of each pool; a pool
    /// without an entry is full.
    #[must_use]
    pub fn choose(&self, request: &Request, pools: &[PoolSpace], policy: &impl Policy) -> Option<Placement> {
        self.choose_among(request, pools, policy, &|_| true)
    }

    /// As [`Self::choose`], of the servers that `admits` admits.
    #[must_use]
    pub fn choose_among(
        &self,
        request: &Request,
        pools: &[PoolSpace],
        policy: &impl Policy,
        admits: &impl Fn(u32) -> bool,
    ) -> Option<Placement> {
        let best = match policy.cost_min(request, &self.shape, 0, (0, 0)) {
            Some(_) => self.cheapest_by_groups(request, pools, policy, admits),
            None => self.cheapest_in_order(request, pools, policy, admits),
        };
        best.and_then(|(_, server)| self.fit_on(server, request))
    }

    /// Checks the servers of a group only if one of them can be the cheapest.
    fn cheapest_by_groups(&self, request: &Request, pools: &[PoolSpace], policy: &impl Policy, admits: &impl Fn(u32) -> bool) -> Best {
        // A VM that is larger than a node spans wherever it is.
        let spans = request.cores > self.shape.node_cores || request.local_mib > self.shape.node_mib;
        let bound = |group: &Group<'_>| policy.cost_min(request, &self.shape, group.cores, group.mib).unwrap_or(0);
        let groups = || self.groups.with(request.cores, u64::from(request.local_mib)).map(|group| (bound(&group), group));
        let (mut best, mut first_empty): (Best, Option<u32>) = (None, None);
        // The most promising group first: its best server rules out most of the others.
        let first = groups().min_by_key(|(bound, group)| (*bound, group.cores, group.mib));
        let key = |group: &Group<'_>| (group.cores, group.mib);
        let promising = first.as_ref().map(|(_, group)| key(group));
        let others = groups().filter(|(_, group)| Some(key(group)) != promising);
        for (bound, group) in first.into_iter().chain(others) {
            if best.is_some_and(|(least, _)| (spans, bound) > least) {
                continue;
            }
            for &server in group.servers.iter().filter(|&&server| admits(server)) {
                // Empty servers that are admitted are interchangeable, but for their pools.
                if request.pool_slices == Slices::ZERO && self.is_empty(server) {
                    if first_empty.is_some_and(|first| first < server) {
                        continue;
                    }
                    first_empty = Some(server).filter(|_| self.servers[server as usize].up).or(first_empty);
                }
                let Some(cost) = self.cost_of(server, request, pools, policy) else { continue };
                if best.is_none_or(|least| (cost, server) < least) {
                    best = Some((cost, server));
                }
            }
        }
        best
    }

    /// Checks all servers with enough cores, in the order of their numbers.
    fn cheapest_in_order(&self, request: &Request, pools: &[PoolSpace], policy: &impl Policy, admits: &impl Fn(u32) -> bool) -> Best {
        let mut best: Best = None;
        for at in with_cores(&self.free_cores, request.cores) {
            let server = u32::try_from(at).unwrap_or(u32::MAX);
            if !admits(server) {
                continue;
            }
            let Some(cost) = self.cost_of(server, request, pools, policy) else { continue };
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, server));
            }
            if !cost.0 && policy.takes_first_fit() {
                break;
            }
        }
        best
    }

    fn is_empty(&self, server: u32) -> bool {
        let server = &self.servers[server as usize];
        u64::from(server.cores) == self.shape.cores() && server.mib == self.shape.mib()
    }

    /// Returns whether a VM spans on a server and what that server costs; `None` if it does not fit there.
    fn cost_of(&self, index: u32, request: &Request, pools: &[PoolSpace], policy: &impl Policy) -> Option<(bool, u64)> {
        let server = self.servers.get(index as usize).filter(|server| server.fits(request))?;
        let space = pools.get(self.pool_of(index).0 as usize).copied().unwrap_or_default();
        if space.grantable < request.pool_slices {
            return None;
        }
        let spans = server.one_node(request).is_none();
        let free = (server.cores, server.mib);
        Some((spans, policy.cost(&Candidate { request, shape: &self.shape, server: index, free, space, spans })))
    }

    /// Returns how a VM would be placed on one server, or `None` if it does not fit. Ignores the pool.
    #[must_use]
    pub fn fit_on(&self, server: u32, request: &Request) -> Option<Placement> {
        let on = self.servers.get(server as usize).filter(|on| on.fits(request))?;
        let mut nodes = [Node::default(); NODES_MAX];
        match on.one_node(request) {
            Some(at) => nodes[at] = Node { cores: request.cores, mib: request.local_mib },
            None => on.span(request, &mut nodes),
        }
        Some(Placement { server, nodes })
    }

    /// Reserves the resources of a placement. Returns whether they were free; if not, nothing changes.
    pub fn reserve(&mut self, placement: &Placement) -> bool {
        let Some(server) = self.servers.get_mut(placement.server as usize) else { return false };
        let fits = server.free.iter().zip(&placement.nodes).all(|(free, node)| free.cores >= node.cores && free.mib >= node.mib);
        if fits {
            for (free, node) in server.free.iter_mut().zip(&placement.nodes) {
                free.cores -= node.cores;
                free.mib -= node.mib;
                server.cores -= node.cores;
                server.mib -= u64::from(node.mib);
            }
            self.free_cores[placement.server as usize] = server.cores;
            self.groups.update(placement.server, server.cores, server.mib);
        }
        fits
    }

    /// Gives a VM more local memory on its server, on its main node first. Returns whether enough was free; if not, nothing
    /// changes.
    pub fn grow(&mut self, placement: &mut Placement, mib: u32) -> bool {
        let main = placement.main_node();
        let Some(server) = self.servers.get_mut(placement.server as usize).filter(|server| server.mib >= u64::from(mib)) else {
            return false;
        };
        let mut missing = mib;
        for at in std::iter::once(main).chain((0..NODES_MAX).filter(|&at| at != main)) {
            let here = missing.min(server.free[at].mib);
            server.free[at].mib -= here;
            placement.nodes[at].mib += here;
            missing -= here;
        }
        server.mib -= u64::from(mib);
        self.groups.update(placement.server, server.cores, server.mib);
        true
    }

    /// Releases the resources of a placement.
    pub fn release(&mut self, placement: &Placement) {
        let Some(server) = self.servers.get_mut(placement.server as usize) else { return };
        for (free, node) in server.free.iter_mut().zip(&placement.nodes) {
            free.cores += node.cores;
            free.mib += node.mib;
            server.cores += node.cores;
            server.mib += u64::from(node.mib);
        }
        self.free_cores[placement.server as usize] = server.cores;
        self.groups.update(placement.server, server.cores, server.mib);
    }
}

/// Returns the positions in a list of free cores with at least `required`, in order.
fn with_cores(free: &[u32], required: u32) -> impl Iterator<Item = usize> + '_ {
    // Most blocks have no match. Checking a block at once, without a branch per server, is about ten times faster.
    let blocks = (0usize..)
        .step_by(BLOCK)
        .zip(free.chunks(BLOCK))
        .filter(move |(_, block)| block.iter().fold(false, |any, &cores| any | (cores >= required)));
    blocks.flat_map(move |(first, block)| (first..).zip(block).filter(move |&(_, &cores)| cores >= required).map(|(at, _)| at))
}

impl Server {
    fn fits(&self, request: &Request) -> bool {
        self.up && self.cores >= request.cores && self.mib >= u64::from(request.local_mib)
    }

    /// Returns the node that can hold the whole VM and has the fewest free cores, then the least free memory.
    fn one_node(&self, request: &Request) -> Option<usize> {
        let fitting = self.free.iter().enumerate().filter(|(_, free)| free.cores >= request.cores && free.mib >= request.local_mib);
        fitting.min_by_key(|(_, free)| (free.cores, free.mib)).map(|(at, _)| at)
    }

    /// Spreads a VM over nodes, beginning with the one that holds the largest part of it.
    fn span(&self, request: &Request, nodes: &mut [Node; NODES_MAX]) {
        let mut order: [usize; NODES_MAX] = std::array::from_fn(|at| at);
        // Prefer a node that holds all cores, with the most free memory; otherwise the one with the most free cores.
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
