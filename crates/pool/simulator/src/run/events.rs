//! The events of a run and their effects on VMs and servers.

use fastrand::Rng;
use placement::{Attempt, Fleet, Placement, Request};
use pool::{Command, Ns, Pool, SLICE, Slices, VmId};
use vmtrace::Vm;

use super::batches::Batches;
use super::capacity::{Baseline, Capacity};
use super::exchange;
use super::groups::Groups;
use super::state::{End, Event, Run, RunningVm, SECOND};
use crate::faults::{self, Component, Components, FaultEvent};
use crate::memory::mib;
use crate::queue::Queue;
use crate::service_level::Rule;
use crate::site::{Cluster, Setup, Site};
use crate::tally::{PoolPeak, Required, Tally};
use crate::topology::{Link, Topology};

impl<'a> Run<'a> {
    /// Creates a run at its beginning. Returns `None` if the servers' shape is invalid (see [`Fleet::new`]).
    #[must_use]
    pub fn new(
        site: &'a Site,
        setup: Setup<'a>,
        cluster: &'a Cluster,
        baseline: Option<&'a Baseline>,
        capacity: Capacity<'_>,
    ) -> Option<Self> {
        let mut shape = site.shape;
        if let Capacity::Uniform(uniform) = capacity {
            shape.node_mib = uniform.node_mib;
        } else if baseline.is_some() {
            // The run measures what servers need, so their memory must not limit it. Halved, so that sums do not overflow.
            shape.node_mib = u32::MAX / 2;
        }
        // Servers of one pool may reach different memory, so each has its own free space.
        let fleet = Fleet::new(shape, cluster.servers, 1)?;
        let topology = Topology::new(site, &setup, cluster.servers);
        let pools = exchange::new_pools(site, &topology, capacity, baseline, setup.pool_servers(&site.shape));
        let begins = cluster.vms.first().map_or(0, |vm| vm.arrival);
        let until = Ns(seconds(cluster.ends, begins).0.saturating_add(1));
        let mut run = Self {
            random: Rng::with_seed(site.seed),
            queue: Queue::default(),
            spaces: (0..cluster.servers).map(|server| topology.space(server, &pools)).collect(),
            limits: vec![exchange::UNLIMITED; pools.len()],
            deferred: vec![Vec::new(); pools.len()],
            ticks: vec![false; pools.len()],
            running: vec![None; cluster.vms.len()],
            batches: Batches::default(),
            groups: Groups::default(),
            used_mib: vec![0; cluster.servers as usize],
            now: Ns(0),
            tally: Tally {
                server_peaks_mib: vec![0; cluster.servers as usize],
                pool_peaks: vec![PoolPeak::default(); pools.len()],
                ..Tally::default()
            },
            bounded: !matches!(capacity, Capacity::Ample),
            scheduled: matches!(capacity, Capacity::Uniform(_)) && site.service_level.rule == Rule::Scheduled,
            servers: baseline.map(|baseline| &baseline.servers[..]),
            site,
            setup,
            cluster,
            topology,
            fleet,
            pools,
        };
        for fault in faults::schedule(&site.faults, site.seed, run.components(), until) {
            run.queue.schedule(fault.at, Event::Fault(fault));
        }
        run.schedule_arrival(0);
        Some(run)
    }

    fn components(&self) -> Components {
        let pools = u32::try_from(self.topology.pools().len()).unwrap_or(u32::MAX);
        Components { servers: self.cluster.servers, pools, ledgers: self.topology.ledgers(), emcs: self.topology.emcs }
    }

    /// Returns the pools; of sparse pods, the devices.
    #[must_use]
    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// Returns the slices of running VMs, by pool; of sparse pods, by device.
    #[must_use]
    pub fn slices_in_use(&self) -> Vec<Slices> {
        let mut sums = vec![Slices::ZERO; self.pools.len()];
        for (number, vm) in (0u64..).zip(&self.running).filter_map(|(number, vm)| Some((number, vm.as_ref()?))) {
            match self.topology.links(vm.placement.server) {
                [link] => sums[link.ledger as usize] = sums[link.ledger as usize] + vm.slices,
                links => {
                    for &Link { ledger, .. } in links {
                        sums[ledger as usize] = sums[ledger as usize] + self.pools[ledger as usize].slices_of(VmId(number));
                    }
                }
            }
        }
        sums
    }

    /// Handles the next event. Returns `None` after the last event, and otherwise the VM that started, if any, and its server.
    pub fn step(&mut self) -> Option<Option<(u32, u32)>> {
        let (now, event) = self.queue.pop()?;
        self.now = now;
        self.tally.events += 1;
        match event {
            Event::Arrives(vm) => {
                self.schedule_arrival(vm as usize + 1);
                return Some(self.arrive(vm).map(|server| (vm, server)));
            }
            Event::Leaves(vm) => self.end(vm, End::Left),
            Event::SlowdownDetected(vm) => self.mitigate(vm),
            Event::CopyDone(vm) => self.copy_done(vm),
            Event::BatchDone(done) => self.batch_done(done),
            Event::Tick { ledger } => {
                self.ticks[ledger as usize] = false;
                self.send(ledger, Command::Tick);
            }
            Event::Fault(fault) => self.fault(fault),
            Event::Change(change) => self.change(change),
        }
        Some(None)
    }

    /// Ends the run. VMs that still run are counted until the end of the trace.
    #[must_use]
    pub fn finish(mut self) -> Tally {
        self.now = seconds(self.cluster.ends, self.begins());
        for vm in 0..self.running.len() {
            if let Some(state) = self.running[vm] {
                self.account(vm, &state);
            }
        }
        let (peaks, pools) = (&self.tally.server_peaks_mib, &self.tally.pool_peaks);
        self.tally.required = Required::of(peaks, pools, self.site.buffer_slices, self.topology.ratio);
        self.tally
    }

    pub(super) fn begins(&self) -> i64 {
        self.cluster.vms.first().map_or(0, |vm| vm.arrival)
    }

    /// Schedules the next arrival of a VM that the baseline placed. Only one arrival is scheduled at a time.
    fn schedule_arrival(&mut self, from: usize) {
        let placed = |vm: &usize| self.servers.is_none_or(|servers| servers.get(*vm).is_some_and(Option::is_some));
        let Some(next) = (from..self.cluster.vms.len()).find(placed) else { return };
        let vm = &self.cluster.vms[next];
        let (at, recorded) = (seconds(vm.arrival, self.begins()), vm.recorded.as_ref().map_or(0, |recorded| recorded.arrival_event));
        self.queue.schedule_recorded(at, recorded, Event::Arrives(u32::try_from(next).unwrap_or(u32::MAX)));
    }

    fn schedule_departure(&mut self, index: u32) {
        let vm = &self.cluster.vms[index as usize];
        let Some(departure) = vm.departure else { return };
        let at = seconds(departure, self.begins()).max(self.now);
        let recorded = vm.recorded.as_ref().and_then(|recorded| recorded.departure_event).unwrap_or(0);
        self.queue.schedule_recorded(at, recorded, Event::Leaves(index));
    }

    fn arrive(&mut self, index: u32) -> Option<u32> {
        if self.running[index as usize].is_some() {
            // It ran before ([`Run::keep`]).
            return None;
        }
        let vm = &self.cluster.vms[index as usize];
        let slices = if self.pools.is_empty() { Slices::ZERO } else { self.setup.memory.slices(vm) };
        let Some((placement, slices)) = self.place(index, vm, slices) else {
            self.tally.rejected += 1;
            return None;
        };
        self.tally.started += 1;
        self.tally.spanning += u64::from(placement.spans());
        self.tally.pooled += u64::from(slices > Slices::ZERO);
        self.start(index, placement, slices);
        if self.site.spill.exceeds(vm, slices, self.setup.added_ns, self.site.margin) {
            self.tally.mispredicted += 1;
            self.queue.schedule(Ns(self.now.0.saturating_add(self.site.noticed_after.0)), Event::SlowdownDetected(index));
        }
        Some(placement.server)
    }

    /// A VM runs from now on.
    pub(super) fn start(&mut self, index: u32, placement: Placement, slices: Slices) {
        self.running[index as usize] = Some(RunningVm { placement, slices, since: self.now });
        self.groups.start(index);
        self.use_local(placement.server, placement.nodes.iter().map(|node| u64::from(node.mib)).sum());
        self.schedule_departure(index);
    }

    /// Places a VM and takes its memory: on its server of the baseline, else on any server, else on any with all memory
    /// local; within the limit of its group first.
    fn place(&mut self, index: u32, vm: &Vm, requested: Slices) -> Option<(Placement, Slices)> {
        let own = self.servers.filter(|_| !self.scheduled).and_then(|servers| servers.get(index as usize).copied().flatten());
        let group = self.group(index);
        for Attempt { slices, most } in group.attempts(requested, self.groups.limit(index)) {
            let admits = |server| group.admits(self.domains(server, slices), most);
            let pooled_mib = u32::try_from(slices.bytes(SLICE).0 >> 20).unwrap_or(u32::MAX);
            let request = Request { id: vm.id, cores: vm.cores, local_mib: mib(vm).saturating_sub(pooled_mib), pool_slices: slices };
            let on_own = own.filter(|&server| slices == Slices::ZERO || self.spaces[server as usize].grantable >= slices);
            let on_own = on_own.filter(|&server| admits(server));
            let on_own = on_own.and_then(|server| self.fleet.fit_on(server, &request));
            let placement = match on_own {
                Some(placement) => placement,
                None => match self.fleet.choose_among(&request, &self.spaces, &self.site.strategy, &admits) {
                    Some(placement) => placement,
                    None => continue,
                },
            };
            if slices > Slices::ZERO && !self.assign(index, placement.server, slices) {
                continue;
            }
            self.fleet.reserve(&placement);
            self.tally.moved += u64::from(own.is_some_and(|own| own != placement.server));
            self.tally.fell_back += u64::from(slices < requested);
            return Some((placement, slices));
        }
        None
    }

    fn use_local(&mut self, server: u32, mib: u64) {
        let used = &mut self.used_mib[server as usize];
        *used += mib;
        let peak = &mut self.tally.server_peaks_mib[server as usize];
        *peak = (*peak).max(*used);
    }

    /// Counts a VM's memory over the time since its last change.
    #[expect(clippy::cast_precision_loss, reason = "sums for display")]
    fn account(&mut self, vm: usize, state: &RunningVm) {
        let hours = self.now.0.saturating_sub(state.since.0) as f64 / SECOND as f64 / 3_600.0;
        self.tally.memory_gib_hours += hours * self.cluster.vms[vm].memory_bytes.0 as f64 / SLICE.0 as f64;
        self.tally.pool_gib_hours += hours * f64::from(state.slices.0);
        self.tally.remote_gib_hours += hours * state.placement.remote_mib() as f64 / 1_024.0;
    }

    pub(super) fn end(&mut self, vm: u32, why: End) {
        let Some(state) = self.running.get_mut(vm as usize).and_then(Option::take) else { return };
        self.account(vm as usize, &state);
        self.groups.end(vm);
        self.fleet.release(&state.placement);
        let server = state.placement.server;
        self.used_mib[server as usize] -= state.placement.nodes.iter().map(|node| u64::from(node.mib)).sum::<u64>();
        match why {
            End::Left if state.slices > Slices::ZERO => self.give_back(vm, server),
            End::Left => {}
            // The host has failed for all ledgers that it reaches.
            End::Lost(pool::Cause::Host) => self.tally.lost_with_host += 1,
            End::Lost(pool::Cause::Emc) => {
                self.tally.lost_with_emc += 1;
                // Other devices may still have memory of this VM.
                if state.slices > Slices::ZERO {
                    self.give_back(vm, server);
                }
            }
        }
    }

    /// Moves a VM that exceeds its margin to local memory, if the limit of mitigations and the free memory allow it.
    fn mitigate(&mut self, vm: u32) {
        let allowed = self.site.mitigated_ppm.share_of(self.tally.started);
        let Some(mut state) = self.running[vm as usize].filter(|state| state.slices > Slices::ZERO) else { return };
        let mib = u32::try_from(state.slices.bytes(SLICE).0 >> 20).unwrap_or(u32::MAX);
        if self.tally.mitigated >= allowed || !self.fleet.grow(&mut state.placement, mib) {
            self.tally.left_slow += 1;
            return;
        }
        self.tally.mitigated += 1;
        self.use_local(state.placement.server, u64::from(mib));
        self.running[vm as usize] = Some(state);
        let copying = u64::from(state.slices.0).saturating_mul(self.site.copy.0);
        self.queue.schedule(Ns(self.now.0.saturating_add(copying)), Event::CopyDone(vm));
    }

    fn copy_done(&mut self, vm: u32) {
        let Some(state) = self.running[vm as usize] else { return };
        self.account(vm as usize, &state);
        self.running[vm as usize] = Some(RunningVm { slices: Slices::ZERO, since: self.now, ..state });
        self.give_back(vm, state.placement.server);
    }

    fn fault(&mut self, FaultEvent { component, fails, .. }: FaultEvent) {
        self.tally.faults += u64::from(fails);
        match component {
            Component::Emc { ledger, emc } => {
                let (emc, lost) = (pool::EmcId(emc), self.tally.lost_with_emc);
                self.send(ledger, if fails { Command::EmcFailed(emc) } else { Command::EmcRepaired(emc) });
                self.tally.emc_failures += u64::from(fails);
                self.tally.lost_with_emc_max = self.tally.lost_with_emc_max.max(self.tally.lost_with_emc - lost);
            }
            Component::Manager { pool } => {
                for ledger in self.topology.pools()[pool as usize].0.clone() {
                    self.send(ledger, if fails { Command::ManagerFailed } else { Command::ManagerBack });
                }
            }
            Component::Host { server } => {
                self.fleet.set_up(server, !fails);
                for Link { ledger, host } in self.topology.links(server).to_vec() {
                    self.send(ledger, if fails { Command::HostFailed(host) } else { Command::HostBack(host) });
                }
                if fails {
                    // The ledgers reported the VMs with pool memory as lost; the others on this host are lost as well.
                    for vm in 0..u32::try_from(self.running.len()).unwrap_or(u32::MAX) {
                        if self.running[vm as usize].is_some_and(|state| state.placement.server == server) {
                            self.end(vm, End::Lost(pool::Cause::Host));
                        }
                    }
                }
            }
        }
    }
}

/// Converts a time of the trace to a time of the run.
pub(super) fn seconds(at: i64, begins: i64) -> Ns {
    Ns(u64::try_from(at.saturating_sub(begins)).unwrap_or(0).saturating_mul(SECOND))
}
