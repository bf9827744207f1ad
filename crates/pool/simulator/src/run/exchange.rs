//! The exchange of commands and effects between a run and its pools.

use placement::PoolSpace;
use pool::{Command, Config, Effect, Generation, HostId, Ns, Pool, Refusal, SliceId, Slices, VmId};
use units::RatioPpm;

use super::batches::{Batch, BatchDone};
use super::capacity::{Baseline, Capacity, ample_slices, proportional_slices};
use super::state::{End, Event, Run, SECOND};
use crate::site::Site;
use crate::topology::{Link, Topology};

/// Creates the ledgers of a topology, with the slices of a pool distributed evenly over its devices. `pool_servers` are those of a pool
/// that has all its servers.
pub(super) fn new_pools(
    site: &Site,
    topology: &Topology,
    capacity: Capacity<'_>,
    baseline: Option<&Baseline>,
    pool_servers: u32,
) -> Vec<Pool> {
    let mut pools = Vec::with_capacity(topology.ledgers() as usize);
    for (ledgers, servers) in topology.pools() {
        // Equal for all devices of a pod, because those with more free memory are used first.
        let ample = ledgers.clone().map(|ledger| ample_slices(baseline, topology.servers(ledger))).max().unwrap_or_default();
        for ledger in ledgers.clone() {
            let slices = match capacity {
                Capacity::Ample => ample,
                Capacity::Slices(slices) => slices.get(ledger as usize).copied().unwrap_or_default(),
                Capacity::Uniform(uniform) => {
                    let of_pool = proportional_slices(uniform.pool_slices, servers.end - servers.start, pool_servers);
                    even_part(of_pool, ledger - ledgers.start, ledgers.end - ledgers.start)
                }
            };
            let emcs = u32::from(topology.emcs);
            pools.push(Pool::new(Config {
                emc_slices: (0..emcs).map(|emc| even_part(slices, emc, emcs)).collect(),
                hosts: u16::try_from(topology.servers(ledger).len()).unwrap_or(u16::MAX),
                buffer_slices: site.buffer_slices,
                // Simulated hosts always answer, so there is no timeout.
                answer_within: Ns(u64::MAX),
                ask_again_after: site.ask_again_after,
            }));
        }
    }
    pools
}

/// Returns the slices of one of several equal devices; the first ones get the remainder.
fn even_part(Slices(slices): Slices, device: u32, devices: u32) -> Slices {
    Slices(slices / devices + u32::from(device < slices % devices))
}

/// No limit of what a pool can give to one VM.
pub(super) const UNLIMITED: Slices = Slices(u32::MAX);

impl Run<'_> {
    /// Requests slices for a VM on a server. Returns whether they were assigned; if not, nothing is.
    pub(super) fn assign(&mut self, vm: u32, server: u32, slices: Slices) -> bool {
        let parts = self.topology.divide(server, &self.pools, slices);
        let (mut effects, mut returned) = (Vec::new(), Vec::new());
        for &(Link { ledger, host }, slices) in &parts {
            effects.clear();
            let pool = &mut self.pools[ledger as usize];
            if pool.apply(self.now, Command::Assign { vm: VmId(u64::from(vm)), host, slices }, &mut effects).is_err() {
                self.give_back(vm, server);
                return false;
            }
            if self.bounded {
                let pool = &self.pools[ledger as usize];
                returned.extend(effects.iter().filter_map(|effect| match effect {
                    Effect::Online { slice, .. } => pool.returned(*slice).map(|at| at.0),
                    _ => None,
                }));
            }
            self.pool_changed(ledger);
        }
        if self.bounded {
            self.release_speed(&mut returned);
        }
        !parts.is_empty()
    }

    /// Returns a VM's slices to the ledgers that its server reaches.
    pub(super) fn give_back(&mut self, vm: u32, server: u32) {
        let vm = VmId(u64::from(vm));
        for at in 0..self.topology.links(server).len() {
            let ledger = self.topology.links(server)[at].ledger;
            if self.pools[ledger as usize].slices_of(vm) > Slices::ZERO {
                self.send(ledger, Command::Return { vm });
            }
        }
    }

    /// Records the release speed that this VM start required: the maximum, over its slices, of the number of slices returned
    /// since that one was, divided by the time since. The time is at least one second, the resolution of traces.
    #[expect(clippy::cast_precision_loss, reason = "a speed")]
    fn release_speed(&mut self, returned: &mut [u64]) {
        returned.sort_unstable_by(|a, b| b.cmp(a));
        let speeds = returned.iter().zip(1u64..).map(|(&at, slices)| {
            let seconds = (self.now.0.saturating_sub(at) as f64 / SECOND as f64).max(1.0);
            slices as f64 / seconds
        });
        let fastest = speeds.fold(0.0, f64::max);
        self.tally.starts_above_1_gib_per_s += u64::from(fastest > 1.0);
        self.tally.starts_above_10_gib_per_s += u64::from(fastest > 10.0);
        self.tally.release_gib_per_s_max = self.tally.release_gib_per_s_max.max(fastest);
    }

    /// Submits a command to a ledger and carries out the effects. Commands for a failed manager are deferred until it works
    /// again.
    pub(super) fn send(&mut self, ledger: u32, command: Command) {
        let mut effects = Vec::new();
        self.submit(ledger, command, &mut effects);
        if command == Command::ManagerBack {
            for deferred in std::mem::take(&mut self.deferred[ledger as usize]) {
                self.submit(ledger, deferred, &mut effects);
            }
        }
        self.carry_out(ledger, effects);
        self.pool_changed(ledger);
    }

    fn submit(&mut self, ledger: u32, command: Command, effects: &mut Vec<Effect>) {
        // Any other refusal concerns a VM or slice that a fault has removed in the meantime.
        if self.pools[ledger as usize].apply(self.now, command, effects) == Err(Refusal::ManagerAway) && command != Command::Tick {
            self.tally.deferred += 1;
            self.deferred[ledger as usize].push(command);
        }
    }

    /// Carries out the effects of commands. Each host releases its slices one after the other; so does a pool that zeroes them.
    fn carry_out(&mut self, ledger: u32, effects: Vec<Effect>) {
        let mut offline: Vec<(HostId, SliceId, Generation)> = Vec::new();
        let mut scrub: Vec<(SliceId, Generation)> = Vec::new();
        for effect in effects {
            match effect {
                Effect::Offline { host, slice, generation } => offline.push((host, slice, generation)),
                Effect::Scrub { slice, generation } => scrub.push((slice, generation)),
                Effect::Lost { vm, cause, .. } => self.end(u32::try_from(vm.0).unwrap_or(u32::MAX), End::Lost(cause)),
                Effect::Online { .. } => {}
            }
        }
        offline.sort_by_key(|&(host, ..)| host);
        for of_host in offline.chunk_by(|a, b| a.0 == b.0) {
            let (least, most) = self.site.offline;
            let each = self.random.u64(least.0..=most.0.max(least.0));
            self.start_batch(ledger, false, each, of_host.iter().map(|&(_, slice, generation)| (slice, generation)));
        }
        if !scrub.is_empty() {
            self.start_batch(ledger, true, self.site.scrub.0, scrub.into_iter());
        }
    }

    fn start_batch(&mut self, ledger: u32, scrub: bool, each_ns: u64, slices: impl Iterator<Item = (SliceId, Generation)>) {
        let (batch, list) = self.batches.open(scrub);
        list.extend(slices);
        let duration = each_ns.saturating_mul(list.len() as u64);
        self.queue.schedule(Ns(self.now.0.saturating_add(duration)), Event::BatchDone(BatchDone { ledger, batch }));
    }

    pub(super) fn batch_done(&mut self, BatchDone { ledger, batch: number }: BatchDone) {
        let Batch { scrub, slices } = self.batches.take(number);
        let mut effects = Vec::new();
        for &(slice, generation) in &slices {
            let fails = !scrub && self.site.faults.stuck_ppm > RatioPpm(0) && self.random.u32(0..1_000_000) < self.site.faults.stuck_ppm.0;
            let command = match (scrub, fails) {
                (true, _) => Command::Scrubbed { slice, generation },
                (false, false) => Command::Offlined { slice, generation },
                (false, true) => Command::OfflineFailed { slice, generation },
            };
            self.submit(ledger, command, &mut effects);
        }
        self.batches.recycle(number, Batch { scrub, slices });
        self.carry_out(ledger, effects);
        self.pool_changed(ledger);
    }

    /// Updates the values derived from a ledger: the free space of its servers, its peak, and the next retry of stuck slices.
    pub(super) fn pool_changed(&mut self, ledger: u32) {
        let at = ledger as usize;
        let limit = self.limits[at];
        let counts = self.pools[at].counts();
        let peak = &mut self.tally.pool_peaks[at];
        (peak.in_use, peak.online) = (peak.in_use.max(counts.in_use()), peak.online.max(Slices(counts.online)));
        if counts.stuck > 0 && !self.ticks[at] {
            self.ticks[at] = true;
            self.queue.schedule(Ns(self.now.0.saturating_add(self.site.ask_again_after.0.max(1))), Event::Tick { ledger });
        }
        // Servers that reach nothing else have the same free space.
        let mut shared = None;
        for &server in self.topology.servers(ledger) {
            let space = || {
                let PoolSpace { grantable, capacity } = self.topology.space(server, &self.pools);
                PoolSpace { grantable: grantable.min(limit), capacity }
            };
            self.spaces[server as usize] = match self.topology.links(server) {
                [_] => *shared.get_or_insert_with(space),
                _ => space(),
            };
        }
    }
}
