//! The exchange of commands and effects between a run and its pools.

use placement::{Placement, PoolSpace};
use pool::{Command, Config, Effect, Generation, HostId, Ns, Pool, Refusal, SliceId, Slices, VmId};
use units::RatioPpm;

use super::batches::{Batch, BatchDone};
use super::state::{End, Event, Run, SECOND};
use crate::site::Site;

/// Creates a pool with its slices distributed evenly over its EMCs.
pub(super) fn new_pool(site: &Site, Slices(slices): Slices, servers: u32) -> Pool {
    let emcs = u32::from(site.emcs.max(1));
    Pool::new(Config {
        emc_slices: (0..emcs).map(|emc| Slices(slices / emcs + u32::from(emc < slices % emcs))).collect(),
        hosts: u16::try_from(servers).unwrap_or(u16::MAX),
        buffer_slices: site.buffer_slices,
        // Simulated hosts always answer, so there is no timeout.
        answer_within: Ns(u64::MAX),
        ask_again_after: site.ask_again_after,
    })
}

/// Returns the free space of a pool.
pub(super) fn space(pool: &Pool) -> PoolSpace {
    PoolSpace { grantable: pool.grantable(), capacity: pool.counts().total() }
}

impl Run<'_> {
    /// Requests slices of a pool for a VM. Returns whether the pool assigned them.
    pub(super) fn assign(&mut self, vm: u32, placement: &Placement, slices: Slices) -> bool {
        let (pool, host) = self.fleet.pool_of(placement.server);
        let host = HostId(u16::try_from(host).unwrap_or(u16::MAX));
        let Some(of) = self.pools.get_mut(pool as usize) else { return false };
        let mut effects = Vec::new();
        if of.apply(self.now, Command::Assign { vm: VmId(u64::from(vm)), host, slices }, &mut effects).is_err() {
            return false;
        }
        if self.bounded {
            self.release_speed(pool, &effects);
        }
        self.pool_changed(pool);
        true
    }

    /// Records the release speed that this VM start required: the maximum, over its slices, of the number of slices returned
    /// since that one was, divided by the time since. The time is at least one second, the resolution of traces.
    #[expect(clippy::cast_precision_loss, reason = "a speed")]
    fn release_speed(&mut self, pool: u32, effects: &[Effect]) {
        let pool = &self.pools[pool as usize];
        let mut returned: Vec<u64> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Online { slice, .. } => pool.returned(*slice).map(|at| at.0),
                _ => None,
            })
            .collect();
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

    /// Submits a command to a pool and carries out the effects. Commands for a failed manager are deferred until it works
    /// again.
    pub(super) fn send(&mut self, pool: u32, command: Command) {
        let mut effects = Vec::new();
        self.submit(pool, command, &mut effects);
        if command == Command::ManagerBack {
            for deferred in std::mem::take(&mut self.deferred[pool as usize]) {
                self.submit(pool, deferred, &mut effects);
            }
        }
        self.carry_out(pool, effects);
        self.pool_changed(pool);
    }

    fn submit(&mut self, pool: u32, command: Command, effects: &mut Vec<Effect>) {
        // Any other refusal concerns a VM or slice that a fault has removed in the meantime.
        if self.pools[pool as usize].apply(self.now, command, effects) == Err(Refusal::ManagerAway) && command != Command::Tick {
            self.tally.deferred += 1;
            self.deferred[pool as usize].push(command);
        }
    }

    /// Carries out the effects of commands. Each host releases its slices one after the other; so does a pool that zeroes them.
    fn carry_out(&mut self, pool: u32, effects: Vec<Effect>) {
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
            self.start_batch(pool, false, each, of_host.iter().map(|&(_, slice, generation)| (slice, generation)));
        }
        if !scrub.is_empty() {
            self.start_batch(pool, true, self.site.scrub.0, scrub.into_iter());
        }
    }

    fn start_batch(&mut self, pool: u32, scrub: bool, each_ns: u64, slices: impl Iterator<Item = (SliceId, Generation)>) {
        let (batch, list) = self.batches.open(scrub);
        list.extend(slices);
        let duration = each_ns.saturating_mul(list.len() as u64);
        self.queue.schedule(Ns(self.now.0.saturating_add(duration)), Event::BatchDone(BatchDone { pool, batch }));
    }

    pub(super) fn batch_done(&mut self, BatchDone { pool, batch: number }: BatchDone) {
        let Batch { scrub, slices } = self.batches.take(number);
        let mut effects = Vec::new();
        for &(slice, generation) in &slices {
            let fails = !scrub && self.site.faults.stuck_ppm > RatioPpm(0) && self.random.u32(0..1_000_000) < self.site.faults.stuck_ppm.0;
            let command = match (scrub, fails) {
                (true, _) => Command::Scrubbed { slice, generation },
                (false, false) => Command::Offlined { slice, generation },
                (false, true) => Command::OfflineFailed { slice, generation },
            };
            self.submit(pool, command, &mut effects);
        }
        self.batches.recycle(number, Batch { scrub, slices });
        self.carry_out(pool, effects);
        self.pool_changed(pool);
    }

    /// Updates the values derived from a pool: its free space, its peak, and the next retry of stuck slices.
    fn pool_changed(&mut self, pool: u32) {
        let at = pool as usize;
        let counts = self.pools[at].counts();
        let peak = &mut self.tally.pool_peaks[at];
        (peak.in_use, peak.online) = (peak.in_use.max(counts.in_use()), peak.online.max(Slices(counts.online)));
        if counts.stuck > 0 && !self.ticks[at] {
            self.ticks[at] = true;
            self.queue.schedule(Ns(self.now.0.saturating_add(self.site.ask_again_after.0.max(1))), Event::Tick { pool });
        }
        self.spaces[at] = space(&self.pools[at]);
    }
}
