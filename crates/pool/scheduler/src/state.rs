//! The state of the cluster, and the decisions: pure, without files, clock or network.

mod history;
mod spread;
mod topology;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use placement::{Attempt, Fleet, NODES_MAX, Node, Placement, PoolSpace, Request};
use units::{Bytes, Slices};

pub(crate) use history::Running;
pub(crate) use topology::{DOMAINS_MAX, POOL_HOSTS_MAX, POOLS_MAX};
pub(crate) use view::missing;

use crate::api::{Code, Refusal, Spread, VmRequest};
use crate::event::{Event, Host, Topology};

/// Longest name of a VM or a group, in bytes.
const NAME_MAX: usize = 128;

/// An event does not fit the state: the log was made by another program, or was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Inconsistent(pub(crate) String);

/// A running VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vm {
    pub(crate) id: u64,
    pub(crate) request: VmRequest,
    pub(crate) placement: Placement,
    pub(crate) slices: Slices,
}

/// What is known of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pool {
    /// Slices of the VMs that were placed.
    used: Slices,
    /// What its manager can assign to one VM; `None` if it does not answer.
    grantable: Option<Slices>,
}

/// Hosts, pools and VMs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    topology: Topology,
    /// Hosts by their number in `fleet`; `None` for places of pools with fewer hosts than the largest has.
    names: Vec<Option<String>>,
    numbers: BTreeMap<String, u32>,
    /// The fault domain of each server, by its number.
    domains: Vec<u32>,
    fleet: Fleet,
    pools: Vec<Pool>,
    drained: BTreeSet<String>,
    vms: BTreeMap<String, Vm>,
    /// Running VMs of each group.
    groups: BTreeMap<String, BTreeSet<String>>,
    requests: u64,
    refused: u64,
}

impl State {
    /// Decides a request, and changes nothing.
    ///
    /// # Errors
    /// The request is invalid, or its VM runs with other values. A request that no host can hold is an event, too.
    pub(crate) fn decide(&self, request: &VmRequest) -> Result<Event, Refusal> {
        self.check(request)?;
        if let Some(known) = self.vms.get(&request.vm) {
            let VmRequest { vm, .. } = request;
            return Err(Refusal {
                error: Code::Conflict,
                message: format!(
                    "{vm} runs on {} with other values; end it first, or choose another name",
                    self.name(known.placement.server)
                ),
            });
        }
        let id = self.requests.saturating_add(1);
        Ok(Event::Decided { id, request: request.clone(), on: self.place(id, request) })
    }

    fn check(&self, request: &VmRequest) -> Result<(), Refusal> {
        let refused = |message: String| Err(Refusal { error: Code::BadRequest, message });
        let VmRequest { vm, cores, memory_bytes, pool_bytes, spread } = request;
        let valid = |name: &str| !name.is_empty() && name.len() <= NAME_MAX && !name.chars().any(char::is_control);
        if !valid(vm) {
            return refused(format!("the name of a VM has 1 to {NAME_MAX} bytes without control characters"));
        }
        if let Some(Spread { group, limit, .. }) = spread {
            if !valid(group) {
                return refused(format!("{vm}: the name of its group has not 1 to {NAME_MAX} bytes without control characters"));
            }
            if *limit == 0 {
                return refused(format!("{vm}: the limit of its group is 0; at least the VM itself fails with its host"));
            }
        }
        if *cores == 0 || u64::from(*cores) > self.topology.shape.cores() {
            return refused(format!("{vm}: {cores} cores; a host has {}", self.topology.shape.cores()));
        }
        // A host's memory is below 2^34 MiB, so that the sums of what is requested fit.
        if memory_bytes.0 == 0 || memory_bytes.to_mib_ceil() > u64::from(u32::MAX) {
            return refused(format!("{vm}: {memory_bytes} of memory"));
        }
        if pool_bytes > memory_bytes {
            return refused(format!("{vm}: {pool_bytes} of pool memory exceed its memory, {memory_bytes}"));
        }
        Ok(())
    }

    /// The running VM of the same request.
    pub(crate) fn known(&self, request: &VmRequest) -> Option<&Vm> {
        self.vms.get(&request.vm).filter(|vm| vm.request == *request)
    }

    /// Chooses a host: with the requested slices, else with all memory local, and both within the limit of its group first, as the
    /// simulator does.
    pub(crate) fn place(&self, id: u64, request: &VmRequest) -> Option<Host> {
        let spaces = self.spaces();
        let group = self.group(request.spread.as_ref());
        let attempts = group.attempts(self.slices(request), request.spread.as_ref().map(Spread::limit));
        attempts.into_iter().find_map(|Attempt { slices, most }| {
            let admits = |server| group.admits(self.domains(server, slices), most);
            let dimensions = self.dimensions(id, request, slices);
            let placement = self.fleet.choose_among(&dimensions, &spaces, &self.topology.strategy, &admits)?;
            Some(self.on(&placement, slices))
        })
    }

    /// The whole slices in the part of a VM's memory that may come from a pool.
    pub(crate) fn slices(&self, request: &VmRequest) -> Slices {
        Slices(u32::try_from(request.pool_bytes.0 / self.topology.slice_bytes.0.max(1)).unwrap_or(u32::MAX))
    }

    fn dimensions(&self, id: u64, request: &VmRequest, slices: Slices) -> Request {
        let local = Bytes(request.memory_bytes.0.saturating_sub(slices.bytes(self.topology.slice_bytes).0));
        let local_mib = u32::try_from(local.to_mib_ceil()).unwrap_or(u32::MAX);
        Request { id, cores: request.cores, local_mib, pool_slices: slices }
    }

    fn name(&self, server: u32) -> &str {
        self.names.get(server as usize).and_then(Option::as_deref).unwrap_or("no host")
    }

    /// Applies an event: a decision just made, or one of the log.
    ///
    /// # Errors
    /// [`Inconsistent`]; the state is then of no further use.
    pub(crate) fn apply(&mut self, event: &Event) -> Result<(), Inconsistent> {
        match event {
            Event::Topology(topology) => self.change_topology(topology.clone())?,
            Event::Kept { id, request, on } => self.start(*id, request, on)?,
            Event::Decided { id, request, on } => {
                self.requests = *id;
                match on {
                    Some(on) => self.start(*id, request, on)?,
                    None => self.refused = self.refused.saturating_add(1),
                }
            }
            Event::Ended { vm } => self.end(vm)?,
            Event::Drained { host, drained } => self.drain(host, *drained)?,
            Event::Grantable { pool, slices } => {
                let of = self.pool_number(pool).ok_or_else(|| Inconsistent(format!("there is no pool {pool}")))?;
                self.pools[of].grantable = *slices;
            }
        }
        Ok(())
    }

    fn start(&mut self, id: u64, request: &VmRequest, on: &Host) -> Result<(), Inconsistent> {
        let VmRequest { vm, .. } = request;
        let server = self.number(&on.host)?;
        if on.nodes.len() > NODES_MAX || self.vms.contains_key(vm) {
            return Err(Inconsistent(format!("{vm} was placed twice, or on {} nodes", on.nodes.len())));
        }
        let mut nodes = [Node::default(); NODES_MAX];
        nodes[..on.nodes.len()].copy_from_slice(&on.nodes);
        let placement = Placement { server, nodes };
        if !self.fleet.reserve(&placement) {
            return Err(Inconsistent(format!("{vm} does not fit on {}", on.host)));
        }
        self.use_pool(server, |used| used + on.slices);
        self.requests = self.requests.max(id);
        if let Some(Spread { group, .. }) = &request.spread {
            self.groups.entry(group.clone()).or_default().insert(vm.clone());
        }
        self.vms.insert(vm.clone(), Vm { id, request: request.clone(), placement, slices: on.slices });
        Ok(())
    }

    fn end(&mut self, vm: &str) -> Result<(), Inconsistent> {
        let Vm { placement, slices, request, .. } = self.vms.remove(vm).ok_or_else(|| Inconsistent(format!("{vm} does not run")))?;
        self.leave(vm, request.spread.as_ref());
        self.fleet.release(&placement);
        self.use_pool(placement.server, |used| used.saturating_sub(slices));
        Ok(())
    }

    fn drain(&mut self, host: &str, drained: bool) -> Result<(), Inconsistent> {
        let server = self.number(host)?;
        self.fleet.set_up(server, !drained);
        if drained {
            self.drained.insert(host.to_owned());
        } else {
            self.drained.remove(host);
        }
        Ok(())
    }

    fn number(&self, host: &str) -> Result<u32, Inconsistent> {
        self.numbers.get(host).copied().ok_or_else(|| Inconsistent(format!("there is no host {host}")))
    }

    fn use_pool(&mut self, server: u32, change: impl Fn(Slices) -> Slices) {
        let pool = self.fleet.pool_of(server).0 as usize;
        if let Some(of) = self.pools.get_mut(pool) {
            of.used = change(of.used);
        }
    }

    fn pool_number(&self, name: &str) -> Option<usize> {
        self.topology.pools.iter().position(|pool| pool.name == name)
    }

    /// The free space of each pool. Slices in release are missing from what a manager can assign, and a VM that was placed a
    /// moment ago is not: the smaller of both counts.
    fn spaces(&self) -> Vec<PoolSpace> {
        let pools = self.topology.pools.iter().zip(&self.pools);
        let space = pools.map(|(of, Pool { used, grantable })| {
            let counted = of.slices.saturating_sub(*used);
            let grantable = if of.managed { grantable.unwrap_or(Slices::ZERO).min(counted) } else { counted };
            PoolSpace { grantable, capacity: of.slices }
        });
        space.collect()
    }
}

#[cfg(test)]
mod cost;
#[cfg(test)]
mod tests;
