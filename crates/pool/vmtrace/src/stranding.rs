//! DRAM that is stranded: nobody can rent it, because the cores of its server are rented (004 section 3.1, figure 2).
//!
//! # Method
//! The trace's VMs are packed onto servers of a stated shape by the scheduler's own `placement`, cluster by cluster, as they come and
//! go ([`servers`]). Once an hour,
//! each cluster is looked at: the share of its cores that are scheduled, and the share of its DRAM that is stranded. The
//! looks are sorted into bins by the first, and each bin's distribution of the second is told.
//!
//! A cluster has as many servers as its peak of cores fills to a stated share. A VM that fits nowhere is refused and counted.
//!
//! # Stranded
//! Of a server's free DRAM, what exceeds the most that its free cores could still rent: free cores times the most memory
//! per core that any VM of the trace asks for. With no core left, that is all of its free DRAM.

pub mod bins;
pub mod servers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use placement::Strategy;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::read::Trace;
use crate::vm::Vm;

use bins::{Bin, Bins};
use servers::{Placed, Refused, Servers};

/// Seconds between two looks.
pub const LOOK_SECONDS: i64 = 3_600;
/// Servers of all clusters.
const SERVERS_MAX: u32 = 1 << 24;

/// What the trace's VMs are packed onto.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shape {
    /// Cores of a server, all sockets together.
    pub cores: u32,
    /// Its DRAM per core, in bytes.
    pub dram_per_core_bytes: u64,
    /// The share of a cluster's cores that its peak fills; the number of servers follows.
    pub peak_fill: f64,
    /// Which server a VM goes to.
    pub strategy: Strategy,
}

/// What a trace asks for, by cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Demand {
    /// VMs.
    pub vms: u64,
    /// Of the smallest VM.
    pub least_cores: u32,
    /// Of the largest VM.
    pub most_cores: u32,
    /// The most memory per core that a VM asks for, in bytes.
    pub most_bytes_per_core: u64,
    /// When the first VM came.
    pub begins: i64,
    /// The most cores, and the most memory in bytes, that were rented at one time, by cluster.
    pub peaks: BTreeMap<u32, (u64, u64)>,
    /// Seconds times cores that were rented, until the trace ended.
    pub core_seconds: f64,
    /// Seconds times bytes.
    pub byte_seconds: f64,
}

impl Demand {
    /// Goes through a trace.
    ///
    /// # Errors
    /// Any error of reading it; [`Error::Damaged`] where it has no VM.
    pub fn of(trace: &Trace, step: &mut dyn FnMut()) -> Result<Self> {
        let mut demand = Self { least_cores: u32::MAX, begins: i64::MAX, ..Self::default() };
        let mut rented: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut leaving = BinaryHeap::new();
        let ends = trace.about().ends;
        for vm in trace.vms() {
            let vm = vm?;
            step();
            while let Some(Reverse((_, cluster, (cores, bytes)))) = leaving.pop_if_due(vm.arrival) {
                if let Some(rented) = rented.get_mut(&cluster) {
                    rented.0 -= u64::from(cores);
                    rented.1 -= bytes;
                }
            }
            demand.count(&vm, ends);
            let rented = rented.entry(vm.cluster).or_default();
            rented.0 += u64::from(vm.cores);
            rented.1 += vm.memory_bytes;
            let peak = demand.peaks.entry(vm.cluster).or_default();
            *peak = (peak.0.max(rented.0), peak.1.max(rented.1));
            if let Some(departure) = vm.departure {
                leaving.push(Reverse((departure, vm.cluster, (vm.cores, vm.memory_bytes))));
            }
        }
        if demand.vms == 0 {
            return Err(Error::damaged(trace.path(), "it has no VMs"));
        }
        Ok(demand)
    }

    #[expect(clippy::cast_precision_loss, reason = "sums for a mean")]
    fn count(&mut self, vm: &Vm, ends: i64) {
        self.vms += 1;
        self.least_cores = self.least_cores.min(vm.cores);
        self.most_cores = self.most_cores.max(vm.cores);
        self.most_bytes_per_core = self.most_bytes_per_core.max(vm.memory_bytes.div_ceil(u64::from(vm.cores)));
        self.begins = self.begins.min(vm.arrival);
        let seconds = (vm.departure.unwrap_or(ends).min(ends).max(vm.arrival) - vm.arrival) as f64;
        self.core_seconds += seconds * f64::from(vm.cores);
        self.byte_seconds += seconds * vm.memory_bytes as f64;
    }

    /// Bytes that are rented with a core, on average over time.
    #[must_use]
    pub fn bytes_per_core(&self) -> f64 {
        if self.core_seconds > 0.0 { self.byte_seconds / self.core_seconds } else { 0.0 }
    }

    /// How many servers each cluster has.
    fn servers(&self, shape: &Shape) -> BTreeMap<u32, u32> {
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of servers")]
        let servers =
            |cores: u64| libm::ceil(cores as f64 / (shape.peak_fill * f64::from(shape.cores))).clamp(1.0, f64::from(SERVERS_MAX)) as u32;
        self.peaks.iter().map(|(&cluster, &(cores, _))| (cluster, servers(cores))).collect()
    }
}

/// What became of a trace on servers of one shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stranding {
    /// The shape.
    pub shape: Shape,
    /// Clusters.
    pub clusters: usize,
    /// Servers of all clusters.
    pub servers: u64,
    /// VMs that found no server with enough free cores.
    pub refused_for_cores: u64,
    /// VMs that found servers with enough free cores, and none of them with enough free DRAM.
    pub refused_for_memory: u64,
    /// Looks at clusters.
    pub looks: u64,
    /// By the share of cores that were scheduled, rising; those that never occurred are left out.
    pub bins: Vec<Bin>,
}

/// Packs a trace and looks at it every hour. `step` is called for each VM.
///
/// # Errors
/// Any error of reading the trace; [`Error::Damaged`] where a VM is larger than a server, or there would be too many servers.
pub fn stranding(trace: &Trace, demand: &Demand, shape: Shape, step: &mut dyn FnMut()) -> Result<Stranding> {
    if demand.most_cores > shape.cores {
        let what = format!("a VM of it has {} cores; servers of {} cannot hold it", demand.most_cores, shape.cores);
        return Err(Error::damaged(trace.path(), what));
    }
    let numbers = demand.servers(&shape);
    let servers: u64 = numbers.values().map(|&servers| u64::from(servers)).sum();
    if servers > u64::from(SERVERS_MAX) {
        return Err(Error::damaged(trace.path(), format!("its peak takes {servers} servers; there may be {SERVERS_MAX}")));
    }
    let dram = shape.dram_per_core_bytes.saturating_mul(u64::from(shape.cores));
    let clusters = numbers.iter().map(|(&cluster, &count)| Some((cluster, Servers::new(count, shape.cores, dram, shape.strategy)?)));
    let too_much = || Error::damaged(trace.path(), format!("it cannot be packed onto servers of {dram} bytes; give less than 4 PiB"));
    let clusters = clusters.collect::<Option<_>>().ok_or_else(too_much)?;
    let mut run = Run { clusters, leaving: BinaryHeap::new(), next_look: first_look(demand.begins), bins: Bins::default(), demand };
    let mut refused = (0, 0);
    for vm in trace.vms() {
        let vm = vm?;
        step();
        run.until(vm.arrival);
        match run.arrive(&vm) {
            Ok(()) => {}
            Err(Refused::Cores) => refused.0 += 1,
            Err(Refused::Memory) => refused.1 += 1,
        }
    }
    run.until(trace.about().ends);
    let looks = run.bins.looks();
    Ok(Stranding {
        shape,
        clusters: numbers.len(),
        servers,
        refused_for_cores: refused.0,
        refused_for_memory: refused.1,
        looks,
        bins: run.bins.told(),
    })
}

/// The first full hour after the trace began.
fn first_look(begins: i64) -> i64 {
    begins.div_euclid(LOOK_SECONDS).saturating_add(1).saturating_mul(LOOK_SECONDS)
}

/// Clusters as time goes by.
struct Run<'a> {
    clusters: BTreeMap<u32, Servers>,
    /// By departure: which cluster, and what goes where.
    leaving: BinaryHeap<Reverse<(i64, u32, Placed)>>,
    next_look: i64,
    bins: Bins,
    demand: &'a Demand,
}

impl Run<'_> {
    /// Time goes on to `now`: VMs leave, and whenever an hour is full, clusters are looked at.
    fn until(&mut self, now: i64) {
        while self.next_look <= now {
            self.leave(self.next_look);
            for servers in self.clusters.values() {
                self.bins.add(servers.scheduled_ratio(), servers.stranded_ratio(self.demand.most_bytes_per_core));
            }
            self.next_look += LOOK_SECONDS;
        }
        self.leave(now);
    }

    fn leave(&mut self, now: i64) {
        while let Some(Reverse((_, cluster, placed))) = self.leaving.pop_if_due(now) {
            if let Some(servers) = self.clusters.get_mut(&cluster) {
                servers.free(placed);
            }
        }
    }

    fn arrive(&mut self, vm: &Vm) -> Result<(), Refused> {
        let servers = self.clusters.get_mut(&vm.cluster).ok_or(Refused::Cores)?;
        let placed = servers.place(vm.id, vm.cores, vm.memory_bytes)?;
        if let Some(departure) = vm.departure {
            self.leaving.push(Reverse((departure, vm.cluster, placed)));
        }
        Ok(())
    }
}

/// A heap of what is due when, soonest first.
trait Due<T> {
    /// Takes out what is due by `now`.
    fn pop_if_due(&mut self, now: i64) -> Option<T>;
}

impl<A: Ord, B: Ord> Due<Reverse<(i64, A, B)>> for BinaryHeap<Reverse<(i64, A, B)>> {
    fn pop_if_due(&mut self, now: i64) -> Option<Reverse<(i64, A, B)>> {
        let due = self.peek().is_some_and(|Reverse((when, ..))| *when <= now);
        if due { self.pop() } else { None }
    }
}

#[cfg(test)]
mod tests;
