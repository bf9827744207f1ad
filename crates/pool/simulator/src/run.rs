//! One run of one cluster.

use fastrand::Rng;
use placement::{Fleet, Placement, Request, Room};
use pool::{Command, HostId, Ns, Pool, SLICE_BYTES, VmId};
use serde::Serialize;
use vmtrace::Vm;

use crate::faults::{self, Thing};
use crate::memory::{Memory, exceeds, mib};
use crate::queue::Queue;
use crate::site::{Cluster, Setup, Site};
use crate::tally::{PoolPeak, Required, Tally};

mod exchange;

use exchange::{Answer, Answers};

/// Nanoseconds of a second, which traces count in.
const SECOND: u64 = 1_000_000_000;

/// A cluster without pools.
#[derive(Clone, Debug)]
pub struct Baseline {
    /// Where every VM is: its server, or none if no server had room.
    pub servers: Vec<Option<u32>>,
    /// What was needed.
    pub tally: Tally,
}

/// Slices of a pool that is to be measured, at least: for VMs that come from elsewhere when something fails.
const AMPLE_LEAST: u64 = 256;

/// How large pools are.
#[derive(Clone, Copy, Debug)]
pub enum Capacity<'a> {
    /// Large enough for anything: what they need is to be found out. Servers have as much local memory as they need, too.
    Ample,
    /// So many slices each; servers as before.
    Slices(&'a [u32]),
    /// All servers alike, and all pools: what was bought is what there is.
    Bought(Bought),
}

/// What servers and pools have, if all of them are alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bought {
    /// Local memory of a NUMA node, in MiB.
    pub node_mib: u32,
    /// Slices of a pool for each of its servers.
    pub slices_per_server: u32,
}

/// What may happen.
#[derive(Clone, Copy, Debug)]
enum Event {
    Arrives(u32),
    Leaves(u32),
    /// The monitor has noticed that a VM is slow.
    Noticed(u32),
    /// A VM's memory has been copied; its slices may go.
    Copied(u32),
    Answered(Answer),
    Tick {
        pool: u32,
    },
    Fault {
        thing: Thing,
        fails: bool,
    },
}

/// A VM that runs.
#[derive(Clone, Copy, Debug)]
struct Alive {
    placement: Placement,
    slices: u32,
    /// Since when it has been as it is.
    since: Ns,
}

/// Why a VM ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Left,
    Lost(pool::Cause),
}

/// A run, event by event.
#[derive(Debug)]
pub struct Run<'a> {
    site: &'a Site,
    setup: Setup<'a>,
    cluster: &'a Cluster,
    /// Where VMs are without a pool, which is where they go first.
    servers: Option<&'a [Option<u32>]>,
    pool_servers: u32,
    bounded: bool,
    random: Rng,
    queue: Queue<Event>,
    fleet: Fleet,
    pools: Vec<Pool>,
    rooms: Vec<Room>,
    alive: Vec<Option<Alive>>,
    answers: Answers,
    /// What each pool's manager has not been told because it was away.
    untold: Vec<Vec<Command>>,
    /// Whether a tick of a pool is planned.
    ticks: Vec<bool>,
    /// Local memory in use on each server, in MiB.
    used_mib: Vec<u64>,
    now: Ns,
    tally: Tally,
}

/// Places every VM with all its memory local, on servers as they are. `None` for servers that cannot be: see [`Fleet::new`].
#[must_use]
pub fn baseline(site: &Site, cluster: &Cluster) -> Option<Baseline> {
    let setup = Setup { pool_sockets: u32::from(site.shape.nodes), memory: Memory::AllLocal, added_ns: 0 };
    let without_faults = Site { faults: faults::Faults::default(), ..site.clone() };
    let mut run = Run::new(&without_faults, setup, cluster, None, Capacity::Slices(&[]))?;
    let mut servers = vec![None; cluster.vms.len()];
    while let Some(started) = run.step() {
        if let Some((vm, server)) = started {
            servers[vm as usize] = Some(server);
        }
    }
    Some(Baseline { servers, tally: run.finish() })
}

/// Runs a setup with every VM where the baseline put it, if it can be there. `None` as for [`baseline`].
#[must_use]
pub fn simulate(site: &Site, setup: Setup<'_>, cluster: &Cluster, baseline: &Baseline, capacity: Capacity<'_>) -> Option<Tally> {
    let mut run = Run::new(site, setup, cluster, Some(baseline), capacity)?;
    while run.step().is_some() {}
    Some(run.finish())
}

impl<'a> Run<'a> {
    /// A run that has not begun. `None` for servers that cannot be: see [`Fleet::new`].
    #[must_use]
    pub fn new(
        site: &'a Site,
        setup: Setup<'a>,
        cluster: &'a Cluster,
        baseline: Option<&'a Baseline>,
        capacity: Capacity<'_>,
    ) -> Option<Self> {
        let pool_servers = setup.pool_servers(&site.shape);
        let mut shape = site.shape;
        if let Capacity::Bought(bought) = capacity {
            shape.node_mib = bought.node_mib;
        } else if baseline.is_some() {
            // What servers need is to be found out; what is free is never the limit. Halved, so that sums do not overflow.
            shape.node_mib = u32::MAX / 2;
        }
        let fleet = Fleet::new(shape, cluster.servers, pool_servers)?;
        let without_pools = matches!(setup.memory, Memory::AllLocal);
        let count = if without_pools { 0 } else { fleet.pools() };
        let pools = (0..count).map(|pool| {
            let slices = match capacity {
                Capacity::Ample => ample(baseline, pool, pool_servers),
                Capacity::Slices(slices) => slices.get(pool as usize).copied().unwrap_or(0),
                Capacity::Bought(bought) => {
                    let servers = pool_servers.min(cluster.servers - pool * pool_servers);
                    bought.slices_per_server.saturating_mul(servers)
                }
            };
            exchange::pool_of(site, slices, pool_servers)
        });
        let pools: Vec<Pool> = pools.collect();
        let begins = cluster.vms.first().map_or(0, |vm| vm.arrival);
        let until = Ns(seconds(cluster.ends, begins).0.saturating_add(1));
        let mut run = Self {
            random: Rng::with_seed(site.seed),
            queue: Queue::default(),
            rooms: pools.iter().map(exchange::room).collect(),
            untold: vec![Vec::new(); pools.len()],
            ticks: vec![false; pools.len()],
            alive: vec![None; cluster.vms.len()],
            answers: Answers::default(),
            used_mib: vec![0; cluster.servers as usize],
            now: Ns(0),
            tally: Tally {
                server_peaks_mib: vec![0; cluster.servers as usize],
                pool_peaks: vec![PoolPeak::default(); pools.len()],
                ..Tally::default()
            },
            bounded: !matches!(capacity, Capacity::Ample),
            servers: baseline.map(|baseline| &baseline.servers[..]),
            site,
            setup,
            cluster,
            pool_servers,
            fleet,
            pools,
        };
        for (at, thing, fails) in faults::plan(&site.faults, site.seed, cluster.servers, count, site.emcs.max(1), until) {
            run.queue.plan(at, Event::Fault { thing, fails });
        }
        run.plan_arrival(0);
        Some(run)
    }

    /// The pools, for those who want to look into them.
    #[must_use]
    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// Slices that running VMs have, by pool.
    #[must_use]
    pub fn slices_in_use(&self) -> Vec<u32> {
        let mut sums = vec![0; self.pools.len()];
        for alive in self.alive.iter().flatten().filter(|alive| alive.slices > 0) {
            if let Some(sum) = sums.get_mut(self.fleet.pool_of(alive.placement.server).0 as usize) {
                *sum += alive.slices;
            }
        }
        sums
    }

    /// Handles the next event. `None` when nothing more happens; else which VM started where, if one did.
    pub fn step(&mut self) -> Option<Option<(u32, u32)>> {
        let (now, event) = self.queue.pop()?;
        self.now = now;
        self.tally.events += 1;
        match event {
            Event::Arrives(vm) => {
                self.plan_arrival(vm as usize + 1);
                return Some(self.arrive(vm).map(|server| (vm, server)));
            }
            Event::Leaves(vm) => self.end(vm, End::Left),
            Event::Noticed(vm) => self.noticed(vm),
            Event::Copied(vm) => self.copied(vm),
            Event::Answered(answer) => self.answered(answer),
            Event::Tick { pool } => {
                self.ticks[pool as usize] = false;
                self.tell(pool, Command::Tick);
            }
            Event::Fault { thing, fails } => self.fault(thing, fails),
        }
        Some(None)
    }

    /// Ends the run: what still runs is counted until the end of the trace.
    #[must_use]
    pub fn finish(mut self) -> Tally {
        self.now = seconds(self.cluster.ends, self.begins());
        for vm in 0..self.alive.len() {
            if let Some(alive) = self.alive[vm] {
                self.book(vm, &alive);
            }
        }
        let (peaks, pools) = (&self.tally.server_peaks_mib, &self.tally.pool_peaks);
        self.tally.required = Required::of(peaks, pools, self.site.buffer_slices, self.pool_servers);
        self.tally
    }

    fn begins(&self) -> i64 {
        self.cluster.vms.first().map_or(0, |vm| vm.arrival)
    }

    /// Plans the next arrival of a VM that is to run, so that only one is planned at a time.
    fn plan_arrival(&mut self, from: usize) {
        let wanted = |vm: &usize| self.servers.is_none_or(|servers| servers.get(*vm).is_some_and(Option::is_some));
        let Some(next) = (from..self.cluster.vms.len()).find(wanted) else { return };
        let at = seconds(self.cluster.vms[next].arrival, self.begins());
        self.queue.plan(at, Event::Arrives(u32::try_from(next).unwrap_or(u32::MAX)));
    }

    fn arrive(&mut self, index: u32) -> Option<u32> {
        let vm = &self.cluster.vms[index as usize];
        let slices = if self.pools.is_empty() { 0 } else { self.setup.memory.slices(vm) };
        let Some((placement, slices)) = self.place(index, vm, slices) else {
            self.tally.rejected += 1;
            return None;
        };
        self.tally.started += 1;
        self.tally.spanning += u64::from(placement.spans());
        self.tally.pooled += u64::from(slices > 0);
        self.alive[index as usize] = Some(Alive { placement, slices, since: self.now });
        self.use_local(placement.server, placement.nodes.iter().map(|node| u64::from(node.mib)).sum());
        if let Some(departure) = vm.departure {
            self.queue.plan(seconds(departure, self.begins()).max(self.now), Event::Leaves(index));
        }
        if exceeds(vm, slices, self.setup.added_ns, self.site.margin) {
            self.tally.mispredicted += 1;
            self.queue.plan(Ns(self.now.0.saturating_add(self.site.noticed_after.0)), Event::Noticed(index));
        }
        Some(placement.server)
    }

    /// Finds a server and takes what the VM needs: its own server, then any with room, then any with all memory local.
    fn place(&mut self, index: u32, vm: &Vm, wanted: u32) -> Option<(Placement, u32)> {
        let own = self.servers.and_then(|servers| servers.get(index as usize).copied().flatten());
        for slices in [Some(wanted), (wanted > 0).then_some(0)].into_iter().flatten() {
            let pooled_mib = u32::try_from(u64::from(slices) * (SLICE_BYTES >> 20)).unwrap_or(u32::MAX);
            let request = Request { id: vm.id, cores: vm.cores, local_mib: mib(vm).saturating_sub(pooled_mib), pool_slices: slices };
            let at_home = own.filter(|&server| slices == 0 || self.rooms[self.fleet.pool_of(server).0 as usize].grantable >= slices);
            let at_home = at_home.and_then(|server| self.fleet.place_on(server, &request));
            let placement = match at_home {
                Some(placement) => placement,
                None => match self.fleet.choose(&request, &self.rooms, &self.site.strategy) {
                    Some(placement) => placement,
                    None => continue,
                },
            };
            if slices > 0 && !self.assign(index, &placement, slices) {
                continue;
            }
            self.fleet.take(&placement);
            self.tally.moved += u64::from(own.is_some_and(|own| own != placement.server));
            self.tally.fell_back += u64::from(slices < wanted);
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

    /// Books what a VM has had since it last changed.
    #[expect(clippy::cast_precision_loss, reason = "sums for people")]
    fn book(&mut self, vm: usize, alive: &Alive) {
        let hours = self.now.0.saturating_sub(alive.since.0) as f64 / SECOND as f64 / 3_600.0;
        self.tally.memory_gib_hours += hours * self.cluster.vms[vm].memory_bytes as f64 / SLICE_BYTES as f64;
        self.tally.pool_gib_hours += hours * f64::from(alive.slices);
        self.tally.remote_gib_hours += hours * alive.placement.remote_mib() as f64 / 1_024.0;
    }

    fn end(&mut self, vm: u32, why: End) {
        let Some(alive) = self.alive.get_mut(vm as usize).and_then(Option::take) else { return };
        self.book(vm as usize, &alive);
        self.fleet.give_back(&alive.placement);
        let server = alive.placement.server;
        self.used_mib[server as usize] -= alive.placement.nodes.iter().map(|node| u64::from(node.mib)).sum::<u64>();
        match why {
            End::Left if alive.slices > 0 => self.tell(self.fleet.pool_of(server).0, Command::Return { vm: VmId(u64::from(vm)) }),
            End::Left => {}
            End::Lost(pool::Cause::Host) => self.tally.lost_with_host += 1,
            End::Lost(pool::Cause::Emc) => self.tally.lost_with_emc += 1,
        }
    }

    /// A VM is slower than it may be: it gets local memory, if that is still allowed and there is room.
    fn noticed(&mut self, vm: u32) {
        let allowed = u128::from(self.tally.started) * u128::from(self.site.mitigated_ppm) / 1_000_000;
        let Some(mut alive) = self.alive[vm as usize].filter(|alive| alive.slices > 0) else { return };
        let mib = u32::try_from(u64::from(alive.slices) * (SLICE_BYTES >> 20)).unwrap_or(u32::MAX);
        if u128::from(self.tally.mitigated) >= allowed || !self.fleet.grow(&mut alive.placement, mib) {
            self.tally.left_slow += 1;
            return;
        }
        self.tally.mitigated += 1;
        self.use_local(alive.placement.server, u64::from(mib));
        self.alive[vm as usize] = Some(alive);
        let copying = u64::from(alive.slices).saturating_mul(self.site.copy.0);
        self.queue.plan(Ns(self.now.0.saturating_add(copying)), Event::Copied(vm));
    }

    fn copied(&mut self, vm: u32) {
        let Some(alive) = self.alive[vm as usize] else { return };
        self.book(vm as usize, &alive);
        self.alive[vm as usize] = Some(Alive { slices: 0, since: self.now, ..alive });
        self.tell(self.fleet.pool_of(alive.placement.server).0, Command::Return { vm: VmId(u64::from(vm)) });
    }

    fn fault(&mut self, thing: Thing, fails: bool) {
        self.tally.faults += u64::from(fails);
        match thing {
            Thing::Emc { pool, emc } => {
                let emc = pool::EmcId(emc);
                self.tell(pool, if fails { Command::EmcFailed(emc) } else { Command::EmcRepaired(emc) });
            }
            Thing::Manager { pool } => self.tell(pool, if fails { Command::ManagerFailed } else { Command::ManagerBack }),
            Thing::Host { server } => {
                let (pool, host) = self.fleet.pool_of(server);
                let host = HostId(u16::try_from(host).unwrap_or(u16::MAX));
                self.fleet.set_up(server, !fails);
                if !self.pools.is_empty() {
                    self.tell(pool, if fails { Command::HostFailed(host) } else { Command::HostBack(host) });
                }
                if fails {
                    // Those with pool memory are gone already; the others go with their host as well.
                    for vm in 0..u32::try_from(self.alive.len()).unwrap_or(u32::MAX) {
                        if self.alive[vm as usize].is_some_and(|alive| alive.placement.server == server) {
                            self.end(vm, End::Lost(pool::Cause::Host));
                        }
                    }
                }
            }
        }
    }
}

/// A time of a trace as a time of the run.
fn seconds(at: i64, begins: i64) -> Ns {
    Ns(u64::try_from(at.saturating_sub(begins)).unwrap_or(0).saturating_mul(SECOND))
}

/// Slices that are more than enough for a pool: twice what its servers ever needed of all memory, because slices are still
/// on their way back when others are wanted.
fn ample(baseline: Option<&Baseline>, pool: u32, pool_servers: u32) -> u32 {
    let peaks = baseline.map_or(&[][..], |baseline| &baseline.tally.server_peaks_mib);
    let mib: u64 = peaks.chunks(pool_servers as usize).nth(pool as usize).unwrap_or_default().iter().sum();
    u32::try_from((mib >> 10) * 2 + AMPLE_LEAST).unwrap_or(u32::MAX / 2).min(u32::MAX / 2)
}

#[cfg(test)]
mod tests;
