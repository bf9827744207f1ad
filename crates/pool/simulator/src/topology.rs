//! Which servers reach which pool memory.

use std::cmp::Reverse;
use std::ops::Range;

use placement::PoolSpace;
use pool::{HostId, Pool, Slices};

use crate::memory::MemoryPolicy;
use crate::site::{Setup, Site};

/// A server's connection to pool memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// Number of the ledger that it reaches.
    pub(crate) ledger: u32,
    /// The server's number there.
    pub(crate) host: HostId,
}

/// The connections of a cluster's servers.
///
/// A ledger ([`Pool`]) holds memory that the same servers reach: all controllers of a pool if all its servers reach them, or one device
/// of a sparse pod.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    /// Connections of each server.
    links: Vec<Vec<Link>>,
    /// Servers of each ledger, by their number there.
    servers: Vec<Vec<u32>>,
    /// Ledgers and servers of each pool. A pool has one manager.
    pools: Vec<(Range<u32>, Range<u32>)>,
    /// Ledgers that one VM has slices of, at most.
    per_vm: usize,
    /// EMCs of each ledger.
    pub(crate) emcs: u16,
    /// Ledgers, for so many servers.
    pub(crate) ratio: (u32, u32),
}

impl Topology {
    /// The connections of a cluster with so many servers: of consecutive servers to one pool each. The last pool may have fewer servers.
    /// There is none if all memory is local.
    pub(crate) fn new(site: &Site, setup: &Setup<'_>, servers: u32) -> Self {
        let pool_servers = setup.pool_servers(&site.shape);
        let mut topology = Self {
            links: vec![Vec::new(); servers as usize],
            servers: Vec::new(),
            pools: Vec::new(),
            per_vm: site.pod.map_or(1, |pod| usize::from(pod.per_vm)),
            emcs: if site.pod.is_some() { 1 } else { site.emcs.max(1) },
            ratio: site.pod.map_or((1, pool_servers), |pod| (u32::from(pod.per_server), u32::from(pod.ports.max(1)))),
        };
        if matches!(setup.memory, MemoryPolicy::AllLocal) {
            return topology;
        }
        let mut full = None;
        for first in (0..servers).step_by(pool_servers as usize) {
            let size = pool_servers.min(servers - first);
            let design = match site.pod {
                None => vec![(0..size).collect()],
                Some(pod) if size == pool_servers => full.get_or_insert_with(|| pod.design(size, site.seed)).clone(),
                Some(pod) => pod.design(size, site.seed),
            };
            topology.add(first..first + size, design);
        }
        topology
    }

    /// Adds a pool by the servers of each of its ledgers, which are counted from its first server.
    fn add(&mut self, servers: Range<u32>, design: Vec<Vec<u32>>) {
        let from = self.ledgers();
        for mut members in design {
            let ledger = self.ledgers();
            for (server, host) in members.iter_mut().zip(0u16..) {
                *server += servers.start;
                self.links[*server as usize].push(Link { ledger, host: HostId(host) });
            }
            self.servers.push(members);
        }
        self.pools.push((from..self.ledgers(), servers));
    }

    /// Number of ledgers.
    pub(crate) fn ledgers(&self) -> u32 {
        u32::try_from(self.servers.len()).unwrap_or(u32::MAX)
    }

    /// The ledgers and the servers of each pool.
    pub(crate) fn pools(&self) -> &[(Range<u32>, Range<u32>)] {
        &self.pools
    }

    /// The connections of a server.
    pub(crate) fn links(&self, server: u32) -> &[Link] {
        self.links.get(server as usize).map_or(&[], Vec::as_slice)
    }

    /// The servers that reach a ledger.
    pub(crate) fn servers(&self, ledger: u32) -> &[u32] {
        self.servers.get(ledger as usize).map_or(&[], Vec::as_slice)
    }

    /// Divides a VM's slices over the ledgers that its server reaches, each slice at the one with most free memory. Returns nothing if
    /// they do not have enough.
    ///
    /// The free memory of a device limits the next VM of each of its servers, so levels should be equal. A device with no free memory
    /// is a loss for all its servers, whatever the others have.
    pub(crate) fn divide(&self, server: u32, pools: &[Pool], slices: Slices) -> Vec<(Link, Slices)> {
        let mut most_free = self.most_free(server, pools);
        if most_free.iter().map(|&(free, _)| free).sum::<Slices>() < slices {
            return Vec::new();
        }
        if let [(_, link)] = most_free[..] {
            return vec![(link, slices)];
        }
        let mut parts: Vec<(Link, Slices)> = most_free.iter().map(|&(_, link)| (link, Slices::ZERO)).collect();
        for _ in 0..slices.0 {
            let most = most_free.iter_mut().zip(&mut parts).rev().max_by_key(|((free, _), _)| *free);
            let Some(((free, _), (_, part))) = most else { break };
            (*free, *part) = (free.saturating_sub(Slices(1)), *part + Slices(1));
        }
        parts.retain(|&(_, part)| part > Slices::ZERO);
        parts
    }

    /// What a VM could get on a server, and all memory that it reaches.
    pub(crate) fn space<'a>(&'a self, server: u32, pools: &'a [Pool]) -> PoolSpace {
        let of = |links: &'a [Link]| links.iter().map(|link| &pools[link.ledger as usize]);
        PoolSpace {
            grantable: match self.links(server) {
                links if links.len() <= self.per_vm => of(links).map(Pool::grantable).sum(),
                _ => self.most_free(server, pools).iter().map(|&(free, _)| free).sum(),
            },
            capacity: of(self.links(server)).map(|pool| pool.counts().total()).sum(),
        }
    }

    /// The ledgers that a VM would get slices of, with what they could grant; the first in case of a tie.
    fn most_free(&self, server: u32, pools: &[Pool]) -> Vec<(Slices, Link)> {
        let mut free: Vec<_> = self.links(server).iter().map(|link| (pools[link.ledger as usize].grantable(), *link)).collect();
        if free.len() > self.per_vm {
            free.sort_by_key(|&(free, _)| Reverse(free));
            free.truncate(self.per_vm);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use pool::{Command, Config, EmcId, Ns, VmId};

    use super::*;
    use crate::pod::Pod;
    use units::RatioPpm;

    const HALF: MemoryPolicy<'static> = MemoryPolicy::Static { share: RatioPpm(500_000), seed: 1 };

    fn topology(pod: Option<Pod>, pool_sockets: u32, servers: u32, memory: MemoryPolicy<'_>) -> Topology {
        Topology::new(&Site { pod, ..Site::default() }, &Setup { pool_sockets, memory, added_ns: 0 }, servers)
    }

    fn pools(topology: &Topology, slices: &[u32]) -> Vec<Pool> {
        let pool = |(ledger, &slices): (u32, &u32)| {
            Pool::new(Config {
                emc_slices: vec![Slices(slices)],
                hosts: u16::try_from(topology.servers(ledger).len()).unwrap(),
                buffer_slices: Slices::ZERO,
                answer_within: Ns(1),
                ask_again_after: Ns(1),
            })
        };
        (0..).zip(slices).map(pool).collect()
    }

    #[test]
    fn all_servers_of_a_pool_reach_its_only_ledger() {
        let topology = topology(None, 8, 10, HALF);
        assert_eq!(topology.pools(), [(0..1, 0..4), (1..2, 4..8), (2..3, 8..10)]);
        assert_eq!((topology.links(6), topology.servers(2)), (&[Link { ledger: 1, host: HostId(2) }][..], &[8, 9][..]));
        assert!(super::tests::topology(None, 8, 10, MemoryPolicy::AllLocal).pools().is_empty());
    }

    #[test]
    fn links_and_servers_of_a_pod_agree() {
        let pod = Pod { ports: 4, per_server: 8, per_vm: 8 };
        // A pod of 32 servers, and one of 13.
        let topology = topology(Some(pod), 64, 45, HALF);
        assert_eq!(topology.pools(), [(0..64, 0..32), (64..90, 32..45)]);
        for server in 0..45 {
            let links = topology.links(server);
            assert_eq!(links.len(), 8, "server {server}");
            for link in links {
                assert_eq!(topology.servers(link.ledger)[usize::from(link.host.0)], server);
                assert_eq!(link.ledger < 64, server < 32, "no device is of two pods");
            }
        }
    }

    #[test]
    fn slices_come_from_the_devices_with_most_free_memory() {
        let of_vm = |per_vm| topology(Some(Pod { ports: 2, per_server: 3, per_vm }), 4, 2, HALF);
        let divided = |topology: &Topology, pools: &[Pool], slices| {
            topology.divide(0, pools, Slices(slices)).into_iter().map(|(link, part)| (link.ledger, part.0)).collect::<Vec<_>>()
        };
        let all = of_vm(3);
        let mut some = pools(&all, &[4, 7, 6]);
        assert_eq!(divided(&all, &some, 1), [(1, 1)]);
        assert_eq!(divided(&all, &some, 6), [(0, 1), (1, 3), (2, 2)], "4, 4 and 4 stay free but for one");
        assert_eq!(divided(&all, &some, 17), [(0, 4), (1, 7), (2, 6)]);
        assert_eq!((divided(&all, &some, 18), all.space(0, &some).grantable), (vec![], Slices(17)));
        let two = of_vm(2);
        assert_eq!(divided(&two, &some, 13), [(1, 7), (2, 6)]);
        assert_eq!((divided(&two, &some, 14), two.space(0, &some).grantable), (vec![], Slices(13)));
        assert_eq!(divided(&of_vm(1), &some, 7), [(1, 7)]);
        // Neither a full device nor a failed one is used.
        let mut effects = Vec::new();
        some[1].apply(Ns(0), Command::Assign { vm: VmId(1), host: HostId(1), slices: Slices(7) }, &mut effects).unwrap();
        some[2].apply(Ns(0), Command::EmcFailed(EmcId(0)), &mut effects).unwrap();
        assert_eq!((divided(&all, &some, 4), divided(&all, &some, 5)), (vec![(0, 4)], vec![]));
        assert_eq!(all.space(0, &some), PoolSpace { grantable: Slices(4), capacity: Slices(17) });
    }
}
