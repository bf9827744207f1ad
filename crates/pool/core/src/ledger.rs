//! The state of a pool: slices, owners and failures, and how commands change it.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use units::Slices;

use crate::command::{Cause, Command, Effect, Refusal};
use crate::slice::{EmcId, Generation, HostId, Ns, SliceId, State, VmId};

mod audit;
mod kept;

pub use audit::Broken;
pub use kept::Kept;

/// Configuration of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Number of slices of each EMC.
    pub emc_slices: Vec<Slices>,
    /// Number of hosts, each connected to all EMCs.
    pub hosts: u16,
    /// Slices that are never assigned, so that VMs need not wait for slices that are being released.
    pub buffer_slices: Slices,
    /// How long a host, or scrubbing, may take for one slice.
    pub answer_within: Ns,
    /// How long a slice is stuck before its host is asked again.
    pub ask_again_after: Ns,
}

/// Numbers of slices by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Without owner, zeroed.
    pub free: u32,
    /// Memory of VMs.
    pub online: u32,
    /// Being taken offline.
    pub offlining: u32,
    /// Not taken offline in time.
    pub stuck: u32,
    /// Of hosts that failed while the manager was down.
    pub orphaned: u32,
    /// Being zeroed.
    pub scrubbing: u32,
    /// At an EMC that has failed.
    pub failed: u32,
}

impl Counts {
    /// All slices.
    #[must_use]
    pub fn total(&self) -> Slices {
        self.in_use() + Slices(self.free) + Slices(self.failed)
    }

    /// Slices that cannot be assigned: those of VMs, and those being released.
    #[must_use]
    pub fn in_use(&self) -> Slices {
        Slices(self.online) + self.releasing()
    }

    /// Slices that are being released, in any state of that.
    #[must_use]
    pub fn releasing(&self) -> Slices {
        Slices(self.offlining + self.stuck + self.orphaned + self.scrubbing)
    }

    fn of(&mut self, state: State) -> &mut u32 {
        match state {
            State::Free => &mut self.free,
            State::Online { .. } => &mut self.online,
            State::Offlining { .. } => &mut self.offlining,
            State::Stuck { .. } => &mut self.stuck,
            State::Orphaned { .. } => &mut self.orphaned,
            State::Scrubbing { .. } => &mut self.scrubbing,
            State::Failed => &mut self.failed,
        }
    }
}

/// A slice's state and history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Current state.
    pub state: State,
    /// Ownership generation.
    pub generation: Generation,
    /// When its last VM released it.
    pub returned: Option<Ns>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Emc {
    works: bool,
    slices: Vec<Record>,
    /// Free slices, the one that was returned first before the others. The order follows from the slices' records, so that a pool that
    /// was restored from them assigns the same slices as one that was not: the members of a group apply the same commands.
    free: VecDeque<u32>,
}

impl Emc {
    /// By which free slices are ordered.
    fn free_order(&self, index: u32) -> (Option<Ns>, u32) {
        (self.slices.get(index as usize).and_then(|record| record.returned), index)
    }

    /// The free slices by the records, in their order.
    fn free_by_records(&self) -> VecDeque<u32> {
        let free = (0u32..).zip(&self.slices).filter(|(_, record)| record.state == State::Free);
        let mut free: Vec<u32> = free.map(|(index, _)| index).collect();
        free.sort_unstable_by_key(|index| self.free_order(*index));
        free.into()
    }

    fn add_free(&mut self, index: u32) {
        let order = self.free_order(index);
        let at = self.free.partition_point(|other| self.free_order(*other) < order);
        self.free.insert(at, index);
    }
}

/// The slices of a VM, all of one EMC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Host that the VM runs on.
    pub host: HostId,
    /// EMC of its slices.
    pub emc: EmcId,
    /// Indices of its slices.
    pub slices: Vec<u32>,
}

/// The pool. Starts with all slices free and all hosts up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    config: Config,
    manager_works: bool,
    hosts_up: Vec<bool>,
    emcs: Vec<Emc>,
    leases: BTreeMap<VmId, Lease>,
    counts: Counts,
}

impl Pool {
    /// A pool without assignments.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let record = Record { state: State::Free, generation: Generation(0), returned: None };
        let emc = |&Slices(slices): &Slices| Emc { works: true, slices: vec![record; slices as usize], free: (0..slices).collect() };
        let emcs: Vec<Emc> = config.emc_slices.iter().map(emc).collect();
        let counts = Counts { free: config.emc_slices.iter().copied().sum::<Slices>().0, ..Counts::default() };
        Self { manager_works: true, hosts_up: vec![true; usize::from(config.hosts)], emcs, leases: BTreeMap::new(), counts, config }
    }

    /// Numbers of slices by state.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Most slices that one VM could be assigned now.
    #[must_use]
    pub fn grantable(&self) -> Slices {
        if !self.manager_works {
            return Slices::ZERO;
        }
        let unreserved = Slices(self.counts.free) + self.counts.releasing();
        self.emc_with_most_free().map_or(Slices::ZERO, |(_, free)| free).min(unreserved.saturating_sub(self.config.buffer_slices))
    }

    /// Whether the manager is up.
    #[must_use]
    pub fn manager_works(&self) -> bool {
        self.manager_works
    }

    /// Number of slices of a VM.
    #[must_use]
    pub fn slices_of(&self, vm: VmId) -> Slices {
        self.leases.get(&vm).map_or(Slices::ZERO, |lease| Slices::count(lease.slices.len()))
    }

    /// State of a slice.
    #[must_use]
    pub fn state(&self, slice: SliceId) -> Option<State> {
        self.record(slice).ok().map(|record| record.state)
    }

    /// Ownership generation of a slice.
    #[must_use]
    pub fn generation(&self, slice: SliceId) -> Option<Generation> {
        self.record(slice).ok().map(|record| record.generation)
    }

    /// When a slice's last VM released it; `None` if it had none.
    #[must_use]
    pub fn returned(&self, slice: SliceId) -> Option<Ns> {
        self.record(slice).ok()?.returned
    }

    /// All slices with their records, EMC by EMC.
    pub fn slices(&self) -> impl Iterator<Item = (SliceId, &Record)> {
        (0u16..)
            .zip(&self.emcs)
            .flat_map(|(emc, of)| (0u32..).zip(&of.slices).map(move |(index, record)| (SliceId { emc: EmcId(emc), index }, record)))
    }

    /// The slices of every VM.
    #[must_use]
    pub fn leases(&self) -> &BTreeMap<VmId, Lease> {
        &self.leases
    }

    /// Whether an EMC works; `None` if there is no such EMC.
    #[must_use]
    pub fn emc_works(&self, emc: EmcId) -> Option<bool> {
        self.emcs.get(usize::from(emc.0)).map(|emc| emc.works)
    }

    /// Configuration of this pool.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The permission table of an EMC: which host may access each slice (Pond section 4.1).
    #[must_use]
    pub fn permissions(&self, emc: EmcId) -> Option<impl Iterator<Item = Option<HostId>> + '_> {
        let emc = self.emcs.get(usize::from(emc.0))?;
        Some(emc.slices.iter().map(|record| record.state.owner()))
    }

    /// Applies a command, and appends the effects that must be carried out to `effects`.
    ///
    /// # Errors
    /// Why it was refused; nothing has changed then.
    pub fn apply(&mut self, now: Ns, command: Command, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        use Command as C;
        // Failures happen whether or not the manager is up.
        match command {
            C::EmcFailed(emc) => return self.emc_failed(emc, effects),
            C::HostFailed(host) => return self.host_failed(now, host, effects),
            C::ManagerFailed => {
                self.manager_works = false;
                return Ok(());
            }
            C::ManagerBack => {
                self.manager_back(now, effects);
                return Ok(());
            }
            _ if !self.manager_works => return Err(Refusal::ManagerAway),
            _ => {}
        }
        match command {
            C::Assign { vm, host, slices } => self.assign(vm, host, slices, effects),
            C::Return { vm } => self.give_back(now, vm, effects),
            C::Offlined { slice, generation } => self.offlined(now, slice, generation, effects),
            C::OfflineFailed { slice, generation } => self.offline_failed(now, slice, generation),
            C::Abandoned { slice, generation } => self.abandoned(now, slice, generation, effects),
            C::Scrubbed { slice, generation } => self.scrubbed(slice, generation),
            C::EmcRepaired(emc) => self.emc_repaired(now, emc, effects),
            C::HostBack(host) => {
                *self.hosts_up.get_mut(usize::from(host.0)).ok_or(Refusal::NoHost(host))? = true;
                Ok(())
            }
            C::Tick => {
                self.tick(now, effects);
                Ok(())
            }
            C::EmcFailed(_) | C::HostFailed(_) | C::ManagerFailed | C::ManagerBack => Ok(()),
        }
    }

    /// The working EMC with most free slices; the first one if several have as many.
    fn emc_with_most_free(&self) -> Option<(EmcId, Slices)> {
        let mut best: Option<(EmcId, Slices)> = None;
        for (index, emc) in (0u16..).zip(&self.emcs) {
            let free = Slices::count(emc.free.len());
            if emc.works && best.is_none_or(|(_, most)| free > most) {
                best = Some((EmcId(index), free));
            }
        }
        best
    }

    fn record(&self, slice: SliceId) -> Result<&Record, Refusal> {
        let emc = self.emcs.get(usize::from(slice.emc.0)).ok_or(Refusal::NoEmc(slice.emc))?;
        emc.slices.get(slice.index as usize).ok_or(Refusal::Stale(slice))
    }

    /// Sets a slice's state and updates the counts.
    fn set_state(&mut self, slice: SliceId, state: State) {
        let emc = self.emcs.get_mut(usize::from(slice.emc.0));
        let Some(record) = emc.and_then(|emc| emc.slices.get_mut(slice.index as usize)) else { return };
        *self.counts.of(record.state) -= 1;
        *self.counts.of(state) += 1;
        record.state = state;
    }

    fn assign(&mut self, vm: VmId, host: HostId, slices: Slices, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        if slices == Slices::ZERO {
            return Err(Refusal::Nothing);
        }
        if self.leases.contains_key(&vm) {
            return Err(Refusal::VmKnown(vm));
        }
        if !self.hosts_up.get(usize::from(host.0)).is_some_and(|&up| up) {
            return Err(Refusal::NoHost(host));
        }
        let short = Refusal::Short { requested: slices, grantable: self.grantable(), releasing: self.counts.releasing() };
        let Some((emc, _)) = self.emc_with_most_free().filter(|_| slices <= self.grantable()) else { return Err(short) };
        let Some(of) = self.emcs.get_mut(usize::from(emc.0)) else { return Err(short) };
        let mut taken = Vec::with_capacity(slices.0 as usize);
        for index in of.free.drain(..slices.0 as usize) {
            if let Some(record) = of.slices.get_mut(index as usize) {
                record.state = State::Online { host, vm };
                record.generation = Generation(record.generation.0.wrapping_add(1));
                effects.push(Effect::Online { host, slice: SliceId { emc, index }, generation: record.generation });
            }
            taken.push(index);
        }
        self.counts.free -= slices.0;
        self.counts.online += slices.0;
        self.leases.insert(vm, Lease { host, emc, slices: taken });
        Ok(())
    }

    fn give_back(&mut self, now: Ns, vm: VmId, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let Lease { host, emc, slices } = self.leases.remove(&vm).ok_or(Refusal::VmUnknown(vm))?;
        for index in slices {
            let slice = SliceId { emc, index };
            self.set_state(slice, State::Offlining { host, since: now });
            let record = self.emcs.get_mut(usize::from(emc.0)).and_then(|emc| emc.slices.get_mut(index as usize));
            if let Some(record) = record {
                record.returned = Some(now);
                effects.push(Effect::Offline { host, slice, generation: record.generation });
            }
        }
        Ok(())
    }

    fn offlined(&mut self, now: Ns, slice: SliceId, generation: Generation, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let record = self.record(slice)?;
        // A late report is accepted after the slice became stuck.
        if record.generation != generation || !matches!(record.state, State::Offlining { .. } | State::Stuck { .. }) {
            return Err(Refusal::Stale(slice));
        }
        self.scrub(now, slice, effects);
        Ok(())
    }

    fn offline_failed(&mut self, now: Ns, slice: SliceId, generation: Generation) -> Result<(), Refusal> {
        match *self.record(slice)? {
            Record { state: State::Offlining { host, .. }, generation: asked, .. } if asked == generation => {
                self.set_state(slice, State::Stuck { host, since: now });
                Ok(())
            }
            _ => Err(Refusal::Stale(slice)),
        }
    }

    fn abandoned(&mut self, now: Ns, slice: SliceId, generation: Generation, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let record = self.record(slice)?;
        if record.generation != generation || record.state.owner().is_none() {
            return Err(Refusal::Stale(slice));
        }
        if let State::Online { vm, .. } = record.state {
            // The VM's other slices may still be in use.
            if let Some(lease) = self.leases.get_mut(&vm) {
                lease.slices.retain(|&index| index != slice.index);
            }
            self.leases.retain(|_, lease| !lease.slices.is_empty());
            if let Some(record) = self.emcs.get_mut(usize::from(slice.emc.0)).and_then(|emc| emc.slices.get_mut(slice.index as usize)) {
                record.returned = Some(now);
            }
        }
        self.scrub(now, slice, effects);
        Ok(())
    }

    fn scrub(&mut self, now: Ns, slice: SliceId, effects: &mut Vec<Effect>) {
        self.set_state(slice, State::Scrubbing { since: now });
        if let Ok(record) = self.record(slice) {
            effects.push(Effect::Scrub { slice, generation: record.generation });
        }
    }

    fn scrubbed(&mut self, slice: SliceId, generation: Generation) -> Result<(), Refusal> {
        let record = self.record(slice)?;
        if record.generation != generation || !matches!(record.state, State::Scrubbing { .. }) {
            return Err(Refusal::Stale(slice));
        }
        self.set_state(slice, State::Free);
        if let Some(emc) = self.emcs.get_mut(usize::from(slice.emc.0)) {
            emc.add_free(slice.index);
        }
        Ok(())
    }

    /// All slices with their states.
    fn all(&self) -> Vec<(SliceId, State)> {
        self.slices().map(|(slice, record)| (slice, record.state)).collect()
    }

    fn emc_failed(&mut self, emc: EmcId, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let Some(of) = self.emcs.get_mut(usize::from(emc.0)) else { return Err(Refusal::NoEmc(emc)) };
        of.works = false;
        of.free.clear();
        let slices = u32::try_from(of.slices.len()).unwrap_or(u32::MAX);
        for index in 0..slices {
            self.set_state(SliceId { emc, index }, State::Failed);
        }
        self.leases.retain(|&vm, lease| {
            if lease.emc == emc {
                effects.push(Effect::Lost { vm, host: lease.host, cause: Cause::Emc });
            }
            lease.emc != emc
        });
        Ok(())
    }

    fn emc_repaired(&mut self, now: Ns, emc: EmcId, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let Some(of) = self.emcs.get_mut(usize::from(emc.0)) else { return Err(Refusal::NoEmc(emc)) };
        if of.works {
            return Ok(());
        }
        of.works = true;
        for record in &mut of.slices {
            // Reports about effects before the failure must not match effects after it.
            record.generation = Generation(record.generation.0.wrapping_add(1));
        }
        let slices = u32::try_from(of.slices.len()).unwrap_or(u32::MAX);
        for index in 0..slices {
            self.scrub(now, SliceId { emc, index }, effects);
        }
        Ok(())
    }

    fn host_failed(&mut self, now: Ns, host: HostId, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        *self.hosts_up.get_mut(usize::from(host.0)).ok_or(Refusal::NoHost(host))? = false;
        self.leases.retain(|&vm, lease| {
            if lease.host == host {
                effects.push(Effect::Lost { vm, host, cause: Cause::Host });
            }
            lease.host != host
        });
        for (slice, state) in self.all() {
            if state.owner() != Some(host) {
                continue;
            }
            if self.manager_works {
                self.scrub(now, slice, effects);
            } else {
                self.set_state(slice, State::Orphaned { host });
            }
        }
        Ok(())
    }

    fn manager_back(&mut self, now: Ns, effects: &mut Vec<Effect>) {
        self.manager_works = true;
        for (slice, state) in self.all() {
            if matches!(state, State::Orphaned { .. }) {
                self.scrub(now, slice, effects);
            }
        }
    }

    fn tick(&mut self, now: Ns, effects: &mut Vec<Effect>) {
        let (answer_within, ask_again_after) = (self.config.answer_within.0, self.config.ask_again_after.0);
        let older = |since: Ns, span: u64| now.0.saturating_sub(since.0) >= span;
        for (slice, state) in self.all() {
            match state {
                State::Offlining { host, since } if older(since, answer_within) => self.set_state(slice, State::Stuck { host, since: now }),
                State::Stuck { host, since } if older(since, ask_again_after) => {
                    self.set_state(slice, State::Offlining { host, since: now });
                    if let Ok(record) = self.record(slice) {
                        effects.push(Effect::Offline { host, slice, generation: record.generation });
                    }
                }
                State::Scrubbing { since } if older(since, answer_within) => self.scrub(now, slice, effects),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
