//! Servers and pools: a state from nothing, changes of the configuration, and the events that make the same state again.

use std::collections::{BTreeMap, BTreeSet};

use placement::Fleet;
use units::Slices;

use super::{Inconsistent, Pool, State, Vm};
use crate::event::{Domain, Event, Topology};

/// The most hosts of a pool, as of its manager.
pub(crate) const POOL_HOSTS_MAX: usize = 1024;
/// The most pools; each has a thread that reads its manager.
pub(crate) const POOLS_MAX: usize = 256;
/// The most fault domains: each has hosts.
pub(crate) const DOMAINS_MAX: usize = POOLS_MAX * POOL_HOSTS_MAX;
/// The most cores of a NUMA node: servers are grouped by their free cores.
pub(crate) const NODE_CORES_MAX: u32 = 1024;

impl State {
    /// A cluster without VMs.
    ///
    /// # Errors
    /// The topology is not one of hosts in pools.
    pub(crate) fn new(topology: Topology) -> Result<Self, Inconsistent> {
        if topology.pools.len() > POOLS_MAX || topology.pools.iter().any(|pool| pool.hosts.len() > POOL_HOSTS_MAX) {
            return Err(Inconsistent(format!("a cluster has at most {POOLS_MAX} pools with {POOL_HOSTS_MAX} hosts each")));
        }
        if topology.shape.node_cores > NODE_CORES_MAX {
            return Err(Inconsistent(format!(
                "{} cores of a NUMA node; at most {NODE_CORES_MAX} are supported",
                topology.shape.node_cores
            )));
        }
        // Servers of a pool are consecutive in a fleet, and all pools are alike: a pool with fewer hosts has places that are
        // never up.
        let places = topology.pools.iter().map(|pool| pool.hosts.len()).max().unwrap_or(0);
        let count = |number: usize| u32::try_from(number).map_err(|_| Inconsistent(format!("{number} hosts are too many")));
        let (servers, per_pool) = (count(places * topology.pools.len())?, count(places)?);
        let fleet = Fleet::new(topology.shape, servers, per_pool);
        let mut fleet = fleet.ok_or_else(|| Inconsistent("a cluster has hosts with one to four NUMA nodes".to_owned()))?;
        let names: Vec<Option<String>> = topology.pools.iter().flat_map(|pool| (0..places).map(|at| pool.hosts.get(at).cloned())).collect();
        let mut numbers = BTreeMap::new();
        for (number, name) in (0..).zip(&names) {
            match name {
                Some(name) if numbers.insert(name.clone(), number).is_some() => {
                    return Err(Inconsistent(format!("{name} is in two pools")));
                }
                Some(_) => {}
                None => fleet.set_up(number, false),
            }
        }
        let domains = domains(&topology.domains, &numbers, servers)?;
        let pools = vec![Pool { used: Slices::ZERO, grantable: None }; topology.pools.len()];
        let (drained, vms, groups) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self { topology, names, numbers, domains, fleet, pools, drained, vms, groups, requests: 0, refused: 0 })
    }

    /// Continues with other hosts, pools or another policy. Every VM stays on its host.
    ///
    /// # Errors
    /// A host with VMs is missing, or is too small for them now.
    pub(super) fn change_topology(&mut self, topology: Topology) -> Result<(), Inconsistent> {
        let mut next = Self::new(topology)?;
        for event in self.running() {
            next.apply(&event)?;
        }
        for host in &self.drained {
            // A host that was removed since has no VMs.
            if next.numbers.contains_key(host) {
                next.drain(host, true)?;
            }
        }
        (next.requests, next.refused) = (self.requests, self.refused);
        *self = next;
        Ok(())
    }

    /// The events that make the same state again from nothing.
    pub(crate) fn events(&self) -> Vec<Event> {
        let mut events = vec![Event::Topology(self.topology.clone())];
        events.extend(self.running());
        events.extend(self.drained.iter().map(|host| Event::Drained { host: host.clone(), drained: true }));
        let known = self.topology.pools.iter().zip(&self.pools).filter(|(_, pool)| pool.grantable.is_some());
        events.extend(known.map(|(of, pool)| Event::Grantable { pool: of.name.clone(), slices: pool.grantable }));
        events
    }

    fn running(&self) -> Vec<Event> {
        let kept = |vm: &Vm| Event::Kept { id: vm.id, request: vm.request.clone(), on: self.on(&vm.placement, vm.slices) };
        self.vms.values().map(kept).collect()
    }
}

/// The fault domain of each server: the number of a configured one, and behind those one for each host that is in none.
fn domains(configured: &[Domain], numbers: &BTreeMap<String, u32>, servers: u32) -> Result<Vec<u32>, Inconsistent> {
    let count = u32::try_from(configured.len()).ok().filter(|_| configured.len() <= DOMAINS_MAX);
    let count = count.ok_or_else(|| Inconsistent(format!("{} fault domains; at most {DOMAINS_MAX} are supported", configured.len())))?;
    let mut domains: Vec<u32> = (0..servers).map(|server| count.saturating_add(server)).collect();
    for (number, Domain { name, hosts }) in (0..).zip(configured) {
        for host in hosts {
            let server =
                numbers.get(host).ok_or_else(|| Inconsistent(format!("the domain {name} has the host {host}, which is in no pool")))?;
            let domain = &mut domains[*server as usize];
            if *domain < count {
                return Err(Inconsistent(format!("{host} is in two domains")));
            }
            *domain = number;
        }
    }
    Ok(domains)
}
