//! Stranded DRAM: memory that cannot be rented because the cores of its server are rented (Pond section 3.1, figure 2).
//!
//! # Method
//! The VMs of a trace are packed onto servers of a given shape by the scheduler's own `placement`, cluster by cluster, as they
//! arrive and leave ([`servers`]). Each cluster is sampled once per hour: the share of its cores that are scheduled, and the
//! share of its DRAM that is stranded. Samples are grouped into bins by the first share, and the distribution of the second
//! is computed for each bin.
//!
//! The number of servers of a cluster follows from the share of its cores that the peak fills. A VM that fits on no server is
//! refused and counted.
//!
//! # Definition
//! The stranded DRAM of a server is its free DRAM above the maximum that its free cores could rent: free cores times the
//! largest memory per core of any VM of the trace. Without free cores, all free DRAM is stranded.

pub mod bins;
pub mod servers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use placement::Strategy;
use serde::Serialize;
use units::Bytes;

use crate::error::{Error, Result};
use crate::read::Trace;
use crate::vm::Vm;

use bins::{Bin, Bins};
use servers::{Allocation, Refused, Servers};

/// Seconds between two samples.
pub const SAMPLING_PERIOD_SECONDS: i64 = 3_600;
/// The largest number of servers of all clusters.
const SERVERS_MAX: u32 = 1 << 24;

/// The servers that a trace's VMs are packed onto.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shape {
    /// Cores of a server, all sockets together.
    pub cores: u32,
    /// DRAM per core.
    pub dram_per_core_bytes: Bytes,
    /// Share of a cluster's cores that its peak fills, which determines the number of servers.
    pub peak_fill: f64,
    /// Placement policy.
    pub strategy: Strategy,
}

/// The demand of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Demand {
    /// Number of VMs.
    pub vms: u64,
    /// Cores of the smallest VM.
    pub least_cores: u32,
    /// Cores of the largest VM.
    pub most_cores: u32,
    /// Largest memory per core of a VM.
    pub most_bytes_per_core: Bytes,
    /// Arrival of the first VM.
    pub begins: i64,
    /// Peaks of rented cores and of rented memory, by cluster.
    pub peaks: BTreeMap<u32, (u64, Bytes)>,
    /// Rented cores, integrated over seconds until the end of the trace.
    pub core_seconds: f64,
    /// Rented bytes, integrated over seconds until the end of the trace.
    pub byte_seconds: f64,
}

impl Demand {
    /// Reads a trace and computes its demand. Calls `step` for each VM.
    ///
    /// # Errors
    /// Any error of reading the trace; [`Error::Damaged`] if it has no VMs.
    pub fn of(trace: &Trace, step: &mut dyn FnMut()) -> Result<Self> {
        let mut demand = Self { least_cores: u32::MAX, begins: i64::MAX, ..Self::default() };
        let mut rented: BTreeMap<u32, (u64, Bytes)> = BTreeMap::new();
        let mut leaving = BinaryHeap::new();
        let ends = trace.about().ends;
        for vm in trace.vms() {
            let vm = vm?;
            step();
            while let Some(Reverse((_, cluster, (cores, bytes)))) = leaving.pop_if_due(vm.arrival) {
                if let Some(rented) = rented.get_mut(&cluster) {
                    rented.0 -= u64::from(cores);
                    rented.1 = rented.1 - bytes;
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
            return Err(Error::damaged(trace.path(), "the trace has no VMs"));
        }
        Ok(demand)
    }

    #[expect(clippy::cast_precision_loss, reason = "sums for a mean")]
    fn count(&mut self, vm: &Vm, ends: i64) {
        self.vms += 1;
        self.least_cores = self.least_cores.min(vm.cores);
        self.most_cores = self.most_cores.max(vm.cores);
        self.most_bytes_per_core = self.most_bytes_per_core.max(Bytes(vm.memory_bytes.0.div_ceil(u64::from(vm.cores))));
        self.begins = self.begins.min(vm.arrival);
        let seconds = (vm.departure.unwrap_or(ends).min(ends).max(vm.arrival) - vm.arrival) as f64;
        self.core_seconds += seconds * f64::from(vm.cores);
        self.byte_seconds += seconds * vm.memory_bytes.0 as f64;
    }

    /// Returns the mean rented bytes per rented core, over time.
    #[must_use]
    pub fn bytes_per_core(&self) -> f64 {
        if self.core_seconds > 0.0 { self.byte_seconds / self.core_seconds } else { 0.0 }
    }

    /// Returns the number of servers of each cluster.
    fn servers(&self, shape: &Shape) -> BTreeMap<u32, u32> {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to a valid number of servers"
        )]
        let servers =
            |cores: u64| libm::ceil(cores as f64 / (shape.peak_fill * f64::from(shape.cores))).clamp(1.0, f64::from(SERVERS_MAX)) as u32;
        self.peaks.iter().map(|(&cluster, &(cores, _))| (cluster, servers(cores))).collect()
    }
}

/// The result of packing a trace onto servers of one shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stranding {
    /// The servers.
    pub shape: Shape,
    /// Number of clusters.
    pub clusters: usize,
    /// Number of servers of all clusters.
    pub servers: u64,
    /// VMs refused because no server had enough free cores.
    pub refused_for_cores: u64,
    /// VMs refused because servers with enough free cores did not have enough free DRAM.
    pub refused_for_memory: u64,
    /// Number of samples of clusters.
    pub samples: u64,
    /// Bins by the share of scheduled cores, in ascending order, without empty bins.
    pub bins: Vec<Bin>,
}

/// Packs a trace and samples the clusters every hour. Calls `step` for each VM.
///
/// # Errors
/// Any error of reading the trace; [`Error::Damaged`] if a VM is larger than a server or too many servers are needed.
pub fn stranding(trace: &Trace, demand: &Demand, shape: Shape, step: &mut dyn FnMut()) -> Result<Stranding> {
    if demand.most_cores > shape.cores {
        let problem = format!("a VM has {} cores and does not fit on servers of {} cores", demand.most_cores, shape.cores);
        return Err(Error::damaged(trace.path(), problem));
    }
    let numbers = demand.servers(&shape);
    let servers: u64 = numbers.values().map(|&servers| u64::from(servers)).sum();
    if servers > u64::from(SERVERS_MAX) {
        return Err(Error::damaged(trace.path(), format!("the peak requires {servers} servers; the limit is {SERVERS_MAX}")));
    }
    let dram = shape.dram_per_core_bytes.saturating_mul(u64::from(shape.cores));
    let clusters = numbers.iter().map(|(&cluster, &count)| Some((cluster, Servers::new(count, shape.cores, dram, shape.strategy)?)));
    let too_large = || Error::damaged(trace.path(), format!("cannot pack onto servers of {} bytes; the limit is 4 PiB", dram.0));
    let clusters = clusters.collect::<Option<_>>().ok_or_else(too_large)?;
    let mut run = Run { clusters, leaving: BinaryHeap::new(), next_sample: first_sample(demand.begins), bins: Bins::default(), demand };
    let mut refused = (0, 0);
    for vm in trace.vms() {
        let vm = vm?;
        step();
        run.advance(vm.arrival);
        match run.arrive(&vm) {
            Ok(()) => {}
            Err(Refused::Cores) => refused.0 += 1,
            Err(Refused::Memory) => refused.1 += 1,
        }
    }
    run.advance(trace.about().ends);
    let samples = run.bins.samples();
    Ok(Stranding {
        shape,
        clusters: numbers.len(),
        servers,
        refused_for_cores: refused.0,
        refused_for_memory: refused.1,
        samples,
        bins: run.bins.summarize(),
    })
}

/// Returns the first full hour after the trace began.
fn first_sample(begins: i64) -> i64 {
    begins.div_euclid(SAMPLING_PERIOD_SECONDS).saturating_add(1).saturating_mul(SAMPLING_PERIOD_SECONDS)
}

/// The state of all clusters at one time.
struct Run<'a> {
    clusters: BTreeMap<u32, Servers>,
    /// Running VMs by departure: cluster and allocation.
    leaving: BinaryHeap<Reverse<(i64, u32, Allocation)>>,
    next_sample: i64,
    bins: Bins,
    demand: &'a Demand,
}

impl Run<'_> {
    /// Advances to `now`: removes VMs that leave, and samples the clusters at every full hour.
    fn advance(&mut self, now: i64) {
        while self.next_sample <= now {
            self.leave(self.next_sample);
            for servers in self.clusters.values() {
                self.bins.add(servers.scheduled_ratio(), servers.stranded_ratio(self.demand.most_bytes_per_core));
            }
            self.next_sample += SAMPLING_PERIOD_SECONDS;
        }
        self.leave(now);
    }

    fn leave(&mut self, now: i64) {
        while let Some(Reverse((_, cluster, allocation))) = self.leaving.pop_if_due(now) {
            if let Some(servers) = self.clusters.get_mut(&cluster) {
                servers.free(allocation);
            }
        }
    }

    fn arrive(&mut self, vm: &Vm) -> Result<(), Refused> {
        let servers = self.clusters.get_mut(&vm.cluster).ok_or(Refused::Cores)?;
        let allocation = servers.place(vm.id, vm.cores, vm.memory_bytes)?;
        if let Some(departure) = vm.departure {
            self.leaving.push(Reverse((departure, vm.cluster, allocation)));
        }
        Ok(())
    }
}

/// A heap of events, the earliest first.
trait Due<T> {
    /// Removes and returns the next event at or before `now`.
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
