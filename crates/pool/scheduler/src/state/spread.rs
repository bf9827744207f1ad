//! Groups of VMs that should not fail together, in the state.

use std::collections::BTreeSet;

use placement::{Domains, Group};
use units::Slices;

use super::{State, Vm};
use crate::api::{Spread, Together, VmRequest};
use crate::event::Host;

impl State {
    /// The running VMs of a request's group, by fault domain.
    pub(super) fn group(&self, spread: Option<&Spread>) -> Group {
        let mut group = Group::default();
        let members = spread.and_then(|spread| self.groups.get(&spread.group));
        for vm in members.into_iter().flatten().filter_map(|name| self.vms.get(name)) {
            if let Some(of) = &vm.request.spread {
                group.add(self.domains(vm.placement.server, vm.slices), of.limit());
            }
        }
        group
    }

    /// The fault domains of a VM with so many slices on a server.
    pub(super) fn domains(&self, server: u32, slices: Slices) -> Domains {
        let alone = self.domains.get(server as usize).copied().unwrap_or(server);
        Domains { server: alone, pool: (slices > Slices::ZERO).then(|| self.fleet.pool_of(server).0) }
    }

    /// The fault domain of each server, by its number.
    pub(crate) fn server_domains(&self) -> &[u32] {
        &self.domains
    }

    /// A VM of a group has ended.
    pub(super) fn leave(&mut self, vm: &str, spread: Option<&Spread>) {
        let Some(Spread { group, .. }) = spread else { return };
        if let Some(members) = self.groups.get_mut(group) {
            members.remove(vm);
            if members.is_empty() {
                self.groups.remove(group);
            }
        }
    }

    /// The name of a server's fault domain.
    pub(super) fn domain_name(&self, server: u32) -> &str {
        let number = self.domains.get(server as usize).copied().unwrap_or(server);
        self.topology.domains.get(number as usize).map_or_else(|| self.name(server), |domain| &domain.name)
    }

    /// What fails together with a VM.
    pub(super) fn together(&self, vm: &Vm, group: &Group) -> Option<Together> {
        let Spread { group: name, limit, mode } = vm.request.spread.clone()?;
        let (with_domain, with_pool) = group.together(self.domains(vm.placement.server, vm.slices));
        Some(Together { group: name, limit, mode, domain: self.domain_name(vm.placement.server).to_owned(), with_domain, with_pool })
    }

    /// VMs of groups of which more fail together than their limit says.
    pub(super) fn over_limit(&self) -> u64 {
        let of_group = |members: &BTreeSet<String>| {
            let vms = || members.iter().filter_map(|name| self.vms.get(name));
            let group = self.group(vms().next().and_then(|vm| vm.request.spread.as_ref()));
            let over = |vm: &&Vm| self.together(vm, &group).is_some_and(|together| together.is_over());
            vms().filter(over).count() as u64
        };
        self.groups.values().map(of_group).sum()
    }

    /// Whether more of a VM's group than its limit says would fail together with it on a host.
    pub(crate) fn is_over(&self, request: &VmRequest, on: &Host) -> bool {
        let (Some(spread), Ok(server)) = (&request.spread, self.number(&on.host)) else { return false };
        let (server, pool) = self.group(Some(spread)).together(self.domains(server, on.slices));
        let with_pool = if on.slices > Slices::ZERO { pool.saturating_add(1) } else { 0 };
        server.saturating_add(1).max(with_pool) > spread.limit
    }

    /// Hosts that could hold a VM with all its memory local, and are left out by hard limits of its group.
    pub(super) fn left_out(&self, spread: &Spread, holds: impl Fn(u32) -> bool) -> usize {
        let group = self.group(Some(spread));
        let most = group.attempts(Slices::ZERO, Some(spread.limit())).last().map_or(spread.limit, |attempt| attempt.most);
        let of_host = |server: u32| holds(server) && !group.admits(self.domains(server, Slices::ZERO), most);
        self.numbers.iter().filter(|(host, number)| !self.drained.contains(*host) && of_host(**number)).count()
    }
}

impl Together {
    /// Whether more VMs fail together than the limit says.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.with_domain.max(self.with_pool) > self.limit
    }
}
