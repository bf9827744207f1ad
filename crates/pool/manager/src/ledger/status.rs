//! Views of the ledger for the API.

use pool::{EmcId, HostId, Ns, Slices, State};

use super::{Ledger, seconds};
use crate::api::{
    EmcStatus, HostStatus, PermissionTable, Permissions, PoolStatus, SliceCounts, SliceList, SliceState, SliceStatus, StuckSlice,
};

impl Ledger {
    /// Status of the pool. `ledger_error` is why the ledger cannot be written.
    #[must_use]
    pub fn status(&self, now: Ns, ledger_error: Option<String>) -> PoolStatus {
        PoolStatus {
            slice_bytes: self.layout.slice_bytes,
            slices: (*self.pool.counts()).into(),
            grantable: self.pool.grantable(),
            buffer_slices: self.pool.config().buffer_slices,
            ledger_error,
            emcs: self.emcs(),
            hosts: self.host_statuses(now),
            stuck: self.stuck(now),
            group: None,
        }
    }

    fn emcs(&self) -> Vec<EmcStatus> {
        let mut emcs: Vec<EmcStatus> = Vec::new();
        for (slice, record) in self.pool.slices() {
            let emc = slice.emc.0;
            if emcs.last().is_none_or(|last| last.emc != emc) {
                let works = self.pool.emc_works(slice.emc).unwrap_or(false);
                emcs.push(EmcStatus { emc, works, slices: SliceCounts::default() });
            }
            let Some(EmcStatus { slices, .. }) = emcs.last_mut() else { continue };
            *match slice_state(record.state) {
                SliceState::Free => &mut slices.free,
                SliceState::Online => &mut slices.online,
                SliceState::Offlining => &mut slices.offlining,
                SliceState::Stuck => &mut slices.stuck,
                SliceState::Scrubbing => &mut slices.scrubbing,
                SliceState::Failed => &mut slices.failed,
            } += 1;
        }
        emcs
    }

    fn host_statuses(&self, now: Ns) -> Vec<HostStatus> {
        let mut slices = vec![0; self.hosts.len()];
        for (_, record) in self.pool.slices() {
            if let Some(count) = record.state.owner().and_then(|owner| slices.get_mut(usize::from(owner.0))) {
                *count += 1;
            }
        }
        let mut vms = vec![0; self.hosts.len()];
        for vm in self.vms.values() {
            if let Some(count) = vms.get_mut(usize::from(vm.host.0)) {
                *count += 1;
            }
        }
        let hosts = (0u16..).zip(&self.hosts).zip(self.until.iter().zip(vms.into_iter().zip(slices)));
        let shown = hosts.map(|((id, host), (until, (vms, slices)))| HostStatus {
            host: host.name.clone(),
            epoch: host.epoch,
            instance: host.instance.clone(),
            lease_left_seconds: self.has_lease(now, HostId(id)).then(|| seconds(Ns(until.0.saturating_sub(now.0)))),
            vms,
            slices: Slices(slices),
        });
        shown.collect()
    }

    /// Slices that their hosts have not taken offline in time, and slices that a process uses although they must be
    /// zeroed.
    fn stuck(&self, now: Ns) -> Vec<StuckSlice> {
        let late = self.pool.config().answer_within.0;
        let stuck = self.pool.slices().filter_map(|(slice, record)| {
            let returned = record.returned.unwrap_or(now);
            let host = match record.state {
                State::Stuck { host, .. } => Some(host),
                // The host was asked again after a failure; the slice is still overdue.
                State::Offlining { host, .. } if self.failures.contains_key(&slice) => Some(host),
                State::Scrubbing { since } if now.0.saturating_sub(since.0) > late => None,
                _ => return None,
            };
            let failures = self.failures.get(&slice);
            Some(StuckSlice {
                emc: slice.emc.0,
                index: slice.index,
                host: host.map(|host| self.host_name(host).to_owned()),
                since_seconds: seconds(Ns(now.0.saturating_sub(returned.0))),
                failures: failures.map_or(0, |failures| failures.count),
                why: failures.map(|failures| failures.why.clone()),
            })
        });
        stuck.collect()
    }

    /// All slices.
    #[must_use]
    pub fn slice_list(&self) -> SliceList {
        let slices = self.pool.slices().map(|(slice, record)| {
            let vm = match record.state {
                State::Online { vm, .. } => self.vms.get(&vm).map(|vm| vm.name.clone()),
                _ => None,
            };
            SliceStatus {
                emc: slice.emc.0,
                index: slice.index,
                generation: record.generation.0,
                state: slice_state(record.state),
                host: record.state.owner().map(|host| self.host_name(host).to_owned()),
                vm,
            }
        });
        SliceList { slices: slices.collect() }
    }

    /// Permission tables of all EMCs.
    #[must_use]
    pub fn permissions(&self) -> Permissions {
        let name = |owner: Option<HostId>| owner.map(|host| self.host_name(host).to_owned());
        let tables = (0u16..).map_while(|emc| {
            let owners = self.pool.permissions(EmcId(emc))?;
            Some(PermissionTable { emc, owners: owners.map(name).collect() })
        });
        Permissions { emcs: tables.collect() }
    }
}

fn slice_state(state: State) -> SliceState {
    match state {
        State::Free => SliceState::Free,
        State::Online { .. } => SliceState::Online,
        State::Offlining { .. } => SliceState::Offlining,
        State::Stuck { .. } | State::Orphaned { .. } => SliceState::Stuck,
        State::Scrubbing { .. } => SliceState::Scrubbing,
        State::Failed => SliceState::Failed,
    }
}
