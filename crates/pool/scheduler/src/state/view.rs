//! What the scheduler says of its state.

use std::collections::BTreeMap;

use placement::Group;
use units::{Bytes, Slices};

use super::{State, Vm};
use crate::api::{Code, HostView, Placed, PoolView, Refusal, Spread, Status, Together, VmList, VmRequest};
use crate::event::Topology;

impl State {
    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The answer to the request of a VM that runs.
    pub(crate) fn placed(&self, vm: &Vm) -> Placed {
        self.placed_in(vm, &self.group(vm.request.spread.as_ref()))
    }

    fn placed_in(&self, vm: &Vm, group: &Group) -> Placed {
        let together = self.together(vm, group);
        Placed {
            vm: vm.request.vm.clone(),
            host: self.name(vm.placement.server).to_owned(),
            local_bytes: Bytes(vm.placement.nodes.iter().map(|node| u64::from(node.mib) << 20).sum()),
            pool_slices: vm.slices,
            nodes: vm.placement.nodes[..usize::from(self.topology.shape.nodes)].to_vec(),
            reason: self.reason(vm, together.as_ref()),
            spread: together,
        }
    }

    /// What a pool's manager can assign to one VM, `None` if it does not answer; `None` if there is no such pool.
    pub(crate) fn grantable(&self, pool: &str) -> Option<Option<Slices>> {
        self.pool_number(pool).map(|of| self.pools[of].grantable)
    }

    /// The answer for a VM by its name.
    pub(crate) fn vm(&self, name: &str) -> Result<Placed, Refusal> {
        self.vms.get(name).map(|vm| self.placed(vm)).ok_or_else(|| missing(&format!("VM {name}")))
    }

    /// Why a VM is where it is. What was so when it was placed is in the past tense: it is asked for later as well.
    fn reason(&self, vm: &Vm, together: Option<&Together>) -> String {
        let server = vm.placement.server;
        let pool = self.topology.pools.get(self.fleet.pool_of(server).0 as usize).map_or("", |pool| &pool.name);
        let mut reason = if self.drained.contains(self.name(server)) {
            "the host is drained".to_owned()
        } else {
            let (cores, mib) = self.fleet.free(server);
            format!("{}: {cores} cores and {} are free there now", self.topology.strategy, Bytes(mib << 20))
        };
        if vm.placement.spans() {
            reason += "; it fitted on no single NUMA node";
        }
        let wanted = self.slices(&vm.request);
        if vm.slices < wanted {
            let within = if together.is_some() { " within the limit of its group" } else { "" };
            reason += &format!("; no host that could hold it had a pool that could give {wanted} slices{within}, so its memory is local");
        } else if vm.slices > Slices::ZERO {
            reason += &format!("; {} slices of {pool}", vm.slices);
        }
        if let Some(Together { group, limit, domain, with_domain, with_pool, .. }) = together {
            let of_pool = if vm.slices > Slices::ZERO { format!(" and {with_pool} with {pool}") } else { String::new() };
            reason += &format!("; of {group} {with_domain} VMs fail with {domain}{of_pool} now, and at most {limit} should");
        }
        reason
    }

    /// Why no host can hold a VM.
    pub(crate) fn full(&self, request: &VmRequest) -> Refusal {
        let all_local = self.dimensions(0, request, Slices::ZERO);
        let mut lacking = [(0u32, "free cores"), (0, "free local memory")];
        let holds = |number| self.fleet.fit_on(number, &all_local).is_some();
        let up = self.numbers.iter().filter(|(host, number)| !self.drained.contains(*host) && !holds(**number));
        for (_, &number) in up {
            let (cores, _) = self.fleet.free(number);
            lacking[usize::from(cores >= all_local.cores)].0 += 1;
        }
        let mut parts: Vec<String> =
            lacking.iter().filter(|(hosts, _)| *hosts > 0).map(|(hosts, what)| format!("{hosts} hosts have not enough {what}")).collect();
        let mut remedy = "end other VMs, or add hosts";
        if let Some(spread @ Spread { group, .. }) = &request.spread {
            let hosts = self.left_out(spread, holds);
            if hosts > 0 {
                parts.push(format!("{hosts} hosts are in domains where one more VM of {group} would exceed a hard limit"));
                remedy = "end other VMs, add hosts or domains, or raise the limit";
            }
        }
        if !self.drained.is_empty() {
            parts.push(format!("{} are drained", self.drained.len()));
        }
        let message = format!("no host can hold {}: {}; {remedy}", request.vm, parts.join(", "));
        Refusal { error: Code::Full, message }
    }

    pub(crate) fn list(&self) -> VmList {
        // Each group is counted once.
        let mut groups: BTreeMap<Option<&str>, Group> = BTreeMap::new();
        let mut vms = Vec::with_capacity(self.vms.len());
        for vm in self.vms.values() {
            let spread = vm.request.spread.as_ref();
            let group = groups.entry(spread.map(|spread| spread.group.as_str())).or_insert_with(|| self.group(spread));
            vms.push(self.placed_in(vm, group));
        }
        VmList { vms }
    }

    /// Status of one host.
    pub(crate) fn host(&self, name: &str) -> Result<HostView, Refusal> {
        let number = *self.numbers.get(name).ok_or_else(|| missing(&format!("host {name}")))?;
        let vms = self.vms.values().filter(|vm| vm.placement.server == number).count();
        Ok(self.host_view(name, number, u32::try_from(vms).unwrap_or(u32::MAX)))
    }

    fn host_view(&self, name: &str, number: u32, vms: u32) -> HostView {
        let pool = self.topology.pools.get(self.fleet.pool_of(number).0 as usize);
        let (free_cores, mib) = self.fleet.free(number);
        HostView {
            host: name.to_owned(),
            pool: pool.map(|pool| pool.name.clone()).unwrap_or_default(),
            domain: self.domain_name(number).to_owned(),
            drained: self.drained.contains(name),
            vms,
            free_cores,
            free_bytes: Bytes(mib << 20),
        }
    }

    pub(crate) fn status(&self, log_error: Option<String>) -> Status {
        let mut counts = vec![0u32; self.names.len()];
        for vm in self.vms.values() {
            counts[vm.placement.server as usize] += 1;
        }
        let pools = self.topology.pools.iter().zip(&self.pools).zip(self.spaces());
        Status {
            strategy: self.topology.strategy.to_string(),
            vms: self.vms.len() as u64,
            refused: self.refused,
            groups: self.groups.len() as u64,
            over_limit: self.over_limit(),
            pools: pools
                .map(|((of, pool), space)| PoolView {
                    pool: of.name.clone(),
                    slices: of.slices,
                    used: pool.used,
                    grantable: space.grantable,
                    answers: !of.managed || pool.grantable.is_some(),
                })
                .collect(),
            hosts: self.numbers.iter().map(|(name, &number)| self.host_view(name, number, counts[number as usize])).collect(),
            log_error,
        }
    }
}

/// The refusal of a request about what does not exist.
pub(crate) fn missing(what: &str) -> Refusal {
    Refusal { error: Code::NotFound, message: format!("there is no {what}") }
}
