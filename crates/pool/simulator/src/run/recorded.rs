//! What a scheduler recorded, in a run: the VMs that ran before, drained hosts, what managers could assign, and groups of VMs.

use placement::{Domains, Group, Placement};
use pool::{Ns, Slices};

use super::events::seconds;
use super::groups::{Groups, Member};
use super::state::{Change, Event, Run};

/// A VM at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// Its server, with its cores and local memory there.
    pub placement: Placement,
    /// The slices that it got.
    pub slices: Slices,
}

impl Run<'_> {
    /// Puts a VM, by its index in the cluster, where it ran before the first step, whatever the policy would choose. Returns whether it
    /// fits there; if not, nothing changes.
    #[must_use]
    pub fn keep(&mut self, vm: u32, placement: Placement, slices: Slices) -> bool {
        let fits = self.running.get(vm as usize).is_some_and(Option::is_none) && self.fleet.reserve(&placement);
        if !fits {
            return false;
        }
        if slices > Slices::ZERO && !self.assign(vm, placement.server, slices) {
            self.fleet.release(&placement);
            return false;
        }
        self.start(vm, placement, slices);
        true
    }

    /// Applies a change at once.
    pub fn change(&mut self, change: Change) {
        match change {
            Change::Server { server, up } => self.fleet.set_up(server, up),
            Change::Grantable { pool, slices } => {
                if let Some(limit) = self.limits.get_mut(pool as usize) {
                    *limit = slices;
                    self.pool_changed(pool);
                }
            }
        }
    }

    /// Gives VMs groups, by their index in the cluster, and servers fault domains, by their number. Before the first VM starts.
    pub fn set_groups(&mut self, domains: Vec<u32>, of_vm: Vec<Option<Member>>) {
        self.groups = Groups::new(domains, of_vm);
    }

    /// The running VMs of a VM's group, by fault domain.
    pub(super) fn group(&self, vm: u32) -> Group {
        let mut group = Group::default();
        for (other, limit) in self.groups.running_with(vm) {
            if let Some(state) = self.running[other as usize] {
                group.add(self.domains(state.placement.server, state.slices), limit);
            }
        }
        group
    }

    /// The fault domains of a VM with so many slices on a server. A sparse pod counts as one pool, although its devices fail one by one.
    pub(super) fn domains(&self, server: u32, slices: Slices) -> Domains {
        let pool = server / self.setup.pool_servers(&self.site.shape);
        Domains { server: self.groups.domain(server), pool: (slices > Slices::ZERO).then_some(pool) }
    }

    /// Schedules a change for a second of the trace, with its number among the recorded events.
    pub fn schedule_change(&mut self, at: i64, recorded: u64, change: Change) {
        let at: Ns = seconds(at, self.begins());
        self.queue.schedule_recorded(at, recorded, Event::Change(change));
    }

    /// Runs to the end. Returns every VM at its start, by its index in the cluster; `None` for those that no server could hold, and
    /// those that ran before.
    #[must_use]
    pub fn placements(mut self) -> Vec<Option<Started>> {
        let mut placements = vec![None; self.cluster.vms.len()];
        while let Some(started) = self.step() {
            if let Some((vm, _)) = started {
                let at = vm as usize;
                placements[at] = self.running[at].map(|vm| Started { placement: vm.placement, slices: vm.slices });
            }
        }
        placements
    }
}
