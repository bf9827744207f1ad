//! Groups of VMs of which one failure should not take along many, in a run.

use placement::Limit;

/// A VM of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Number of the group.
    pub group: u32,
    /// Its limit.
    pub limit: Limit,
}

/// The groups of a run. By default no VM has one, and every server is a fault domain of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    /// The fault domain of each server.
    domains: Vec<u32>,
    /// The group of each VM, by its index in the cluster.
    of_vm: Vec<Option<Member>>,
    /// Running VMs of each group.
    running: Vec<Vec<u32>>,
}

impl Groups {
    pub(super) fn new(domains: Vec<u32>, of_vm: Vec<Option<Member>>) -> Self {
        let groups = of_vm.iter().flatten().map(|member| member.group as usize + 1).max().unwrap_or(0);
        Self { domains, of_vm, running: vec![Vec::new(); groups] }
    }

    pub(super) fn of(&self, vm: u32) -> Option<Member> {
        self.of_vm.get(vm as usize).copied().flatten()
    }

    pub(super) fn limit(&self, vm: u32) -> Option<Limit> {
        self.of(vm).map(|member| member.limit)
    }

    /// The fault domain of a server.
    pub(super) fn domain(&self, server: u32) -> u32 {
        self.domains.get(server as usize).copied().unwrap_or(server)
    }

    /// The running VMs of a VM's group, with their limits.
    pub(super) fn running_with(&self, vm: u32) -> impl Iterator<Item = (u32, Limit)> {
        let running = self.of(vm).and_then(|member| self.running.get(member.group as usize));
        running.into_iter().flatten().filter_map(|&other| Some((other, self.limit(other)?)))
    }

    pub(super) fn start(&mut self, vm: u32) {
        if let Some(Member { group, .. }) = self.of(vm) {
            self.running[group as usize].push(vm);
        }
    }

    pub(super) fn end(&mut self, vm: u32) {
        if let Some(Member { group, .. }) = self.of(vm) {
            self.running[group as usize].retain(|running| *running != vm);
        }
    }
}
