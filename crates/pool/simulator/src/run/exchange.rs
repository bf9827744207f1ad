//! What a run says to its pools, and what they want done.

use placement::{Placement, Room};
use pool::{Command, Config, Effect, HostId, Ns, Pool, Refusal, SliceId, Turn, VmId};

use super::{End, Event, Run};
use crate::site::Site;

/// A pool of so many slices over its EMCs, as even as they can be.
pub(super) fn pool_of(site: &Site, slices: u32, servers: u32) -> Pool {
    let emcs = u32::from(site.emcs.max(1));
    Pool::new(Config {
        emc_slices: (0..emcs).map(|emc| slices / emcs + u32::from(emc < slices % emcs)).collect(),
        hosts: u16::try_from(servers).unwrap_or(u16::MAX),
        buffer_slices: site.buffer_slices,
        // Simulated hosts answer, late as it may be; only a real manager waits in vain.
        answer_within: Ns(u64::MAX),
        ask_again_after: site.ask_again_after,
    })
}

/// What a pool can give.
pub(super) fn room(pool: &Pool) -> Room {
    Room { grantable: pool.grantable(), capacity: pool.counts().total() }
}

/// Which of [`Answers`], and which pool gets it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pool: u32,
    batch: u32,
}

/// Slices whose release was asked for together and is answered together: when the last of them is done.
#[derive(Debug, Default)]
pub(super) struct Answers {
    batches: Vec<Batch>,
    unused: Vec<u32>,
}

#[derive(Debug, Default)]
struct Batch {
    scrubbed: bool,
    slices: Vec<(SliceId, Turn)>,
}

impl Answers {
    /// A batch without slices, to be filled.
    fn open(&mut self, scrubbed: bool) -> (u32, &mut Vec<(SliceId, Turn)>) {
        let number = self.unused.pop().unwrap_or_else(|| {
            self.batches.push(Batch::default());
            u32::try_from(self.batches.len() - 1).unwrap_or(u32::MAX)
        });
        let batch = &mut self.batches[number as usize];
        batch.scrubbed = scrubbed;
        batch.slices.clear();
        (number, &mut batch.slices)
    }
}

impl Run<'_> {
    /// Asks a pool for slices. Returns whether it gave them.
    pub(super) fn assign(&mut self, vm: u32, placement: &Placement, slices: u32) -> bool {
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

    /// How fast slices had to be released so that this VM could have them: the most, over all its slices, of how many were
    /// given back since that one was, by the time since; a second at least, which is as exact as traces are.
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
            let seconds = (self.now.0.saturating_sub(at) as f64 / super::SECOND as f64).max(1.0);
            slices as f64 / seconds
        });
        let fastest = speeds.fold(0.0, f64::max);
        self.tally.starts_above_1_gib_per_s += u64::from(fastest > 1.0);
        self.tally.starts_above_10_gib_per_s += u64::from(fastest > 10.0);
        self.tally.release_gib_per_s_max = self.tally.release_gib_per_s_max.max(fastest);
    }

    /// Tells a pool something and does what it wants done. What its manager cannot take now is said again when it is back.
    pub(super) fn tell(&mut self, pool: u32, command: Command) {
        let mut effects = Vec::new();
        self.say(pool, command, &mut effects);
        if command == Command::ManagerBack {
            for untold in std::mem::take(&mut self.untold[pool as usize]) {
                self.say(pool, untold, &mut effects);
            }
        }
        self.follow(pool, effects);
        self.pool_changed(pool);
    }

    fn say(&mut self, pool: u32, command: Command, effects: &mut Vec<Effect>) {
        // Every other refusal is of something that a fault has overtaken.
        if self.pools[pool as usize].apply(self.now, command, effects) == Err(Refusal::ManagerAway) && command != Command::Tick {
            self.tally.deferred += 1;
            self.untold[pool as usize].push(command);
        }
    }

    /// Hosts release slices one after the other, each host for itself; a pool zeroes one after the other.
    fn follow(&mut self, pool: u32, effects: Vec<Effect>) {
        let mut offline: Vec<(HostId, SliceId, Turn)> = Vec::new();
        let mut scrub: Vec<(SliceId, Turn)> = Vec::new();
        for effect in effects {
            match effect {
                Effect::Offline { host, slice, turn } => offline.push((host, slice, turn)),
                Effect::Scrub { slice, turn } => scrub.push((slice, turn)),
                Effect::Lost { vm, cause, .. } => self.end(u32::try_from(vm.0).unwrap_or(u32::MAX), End::Lost(cause)),
                Effect::Online { .. } => {}
            }
        }
        offline.sort_by_key(|&(host, ..)| host);
        for of_host in offline.chunk_by(|a, b| a.0 == b.0) {
            let (least, most) = self.site.offline;
            let each = self.random.u64(least.0..=most.0.max(least.0));
            self.later(pool, false, each, of_host.iter().map(|&(_, slice, turn)| (slice, turn)));
        }
        if !scrub.is_empty() {
            self.later(pool, true, self.site.scrub.0, scrub.into_iter());
        }
    }

    fn later(&mut self, pool: u32, scrubbed: bool, each_ns: u64, slices: impl Iterator<Item = (SliceId, Turn)>) {
        let (batch, list) = self.answers.open(scrubbed);
        list.extend(slices);
        let takes = each_ns.saturating_mul(list.len() as u64);
        self.queue.plan(Ns(self.now.0.saturating_add(takes)), Event::Answered(Answer { pool, batch }));
    }

    pub(super) fn answered(&mut self, Answer { pool, batch }: Answer) {
        let Batch { scrubbed, slices } = std::mem::take(&mut self.answers.batches[batch as usize]);
        let mut effects = Vec::new();
        for &(slice, turn) in &slices {
            let fails = !scrubbed && self.site.faults.stuck_ppm > 0 && self.random.u32(0..1_000_000) < self.site.faults.stuck_ppm;
            let command = match (scrubbed, fails) {
                (true, _) => Command::Scrubbed { slice, turn },
                (false, false) => Command::Offlined { slice, turn },
                (false, true) => Command::OfflineFailed { slice, turn },
            };
            self.say(pool, command, &mut effects);
        }
        self.answers.batches[batch as usize].slices = slices;
        self.answers.unused.push(batch);
        self.follow(pool, effects);
        self.pool_changed(pool);
    }

    /// Keeps what is derived from a pool: its room, its peak, and the next look at stuck slices.
    fn pool_changed(&mut self, pool: u32) {
        let at = pool as usize;
        let counts = self.pools[at].counts();
        let peak = &mut self.tally.pool_peaks[at];
        (peak.in_use, peak.online) = (peak.in_use.max(counts.in_use()), peak.online.max(counts.online));
        if counts.stuck > 0 && !self.ticks[at] {
            self.ticks[at] = true;
            self.queue.plan(Ns(self.now.0.saturating_add(self.site.ask_again_after.0.max(1))), Event::Tick { pool });
        }
        self.rooms[at] = room(&self.pools[at]);
    }
}
