//! The pooling simulator compared with its event queue only.

use std::hint::black_box;

use anyhow::{Context, Result};
use fastrand::Rng;
use serde::Serialize;
use simulator::memory::MemoryPolicy;
use simulator::oracle::{Accuracy, Oracle};
use simulator::queue::Queue;
use simulator::run::{Capacity, baseline, simulate};
use simulator::site::Cluster;
use simulator::study::{self, ClusterAssignment, Servers};
use simulator::{Setup, Site};
use units::RatioPpm;
use vmtrace::Vm;

use crate::machine::Machine;
use crate::measure::{self, Effort};

/// VMs of the simulated cluster and length of the trace: some 120 servers at the peak.
const VMS: u64 = 100_000;
const SECONDS: i64 = 1_000_000;
/// Mean lifetime of a VM in seconds.
const LIFE: i64 = 10_000;

/// Figures of `make bench-pool`. All are per second of CPU time, i.e. per core.
#[derive(Debug, Serialize)]
pub(crate) struct PoolReport {
    machine: Machine,
    vms: u64,
    servers: u32,
    /// Pond with pools of 16 sockets, each VM on its server without pools: most of the work of a study.
    events_per_second_per_core: f64,
    /// Placement of each VM by best fit, without pools: done once per cluster in a study.
    events_per_second_per_core_placing: f64,
    /// The same arrivals and departures through the event queue, without any action.
    bound: f64,
    /// Ratio of the first to the bound, measured alternately.
    ratio_to_bound: f64,
}

/// Generates VMs of 1 to 16 cores with 1 to 8 GiB per core.
fn cluster(site: &Site) -> Result<Cluster> {
    let mut random = Rng::with_seed(1);
    let mut vms: Vec<Vm> = (0..VMS)
        .map(|id| {
            let (arrival, cores) = (random.i64(0..SECONDS), 1 << random.u32(0..5));
            Vm {
                id,
                arrival,
                departure: Some(arrival + random.i64(0..2 * LIFE)),
                cores,
                memory_bytes: pool::SLICE.saturating_mul(u64::from(cores) * random.u64(1..=8)),
                untouched_ratio: Some(random.f64()),
                slowdown_64ns: Some(random.f64() * 0.12),
                ..Vm::default()
            }
        })
        .collect();
    vms.sort_by_key(Vm::order);
    let clusters = study::clusters(vms, SECONDS, ClusterAssignment::AsTraced, Servers::PeakFill(RatioPpm(850_000)), site);
    clusters.into_iter().next().context("a trace without VMs")
}

/// Passes arrivals and departures through the queue, as the simulator plans them.
fn through_the_queue(cluster: &Cluster) -> u64 {
    let at = |second: i64| pool::Ns(u64::try_from(second).unwrap_or(0).saturating_mul(1_000_000_000));
    let mut queue = Queue::default();
    let mut events = 0;
    let mut vms = cluster.vms.iter();
    let mut next = vms.next();
    if let Some(vm) = next {
        queue.schedule(at(vm.arrival), true);
    }
    while let Some((_, arrives)) = queue.pop() {
        events += 1;
        let Some(vm) = next.filter(|_| arrives) else { continue };
        queue.schedule(at(vm.departure.unwrap_or(vm.arrival)), false);
        next = vms.next();
        if let Some(vm) = next {
            queue.schedule(at(vm.arrival), true);
        }
    }
    black_box(events)
}

/// Measures the simulator.
///
/// # Errors
/// The kernel does not report CPU time.
pub(crate) fn bench(machine: Machine, effort: Effort) -> Result<PoolReport> {
    let site = Site::default();
    let cluster = cluster(&site)?;
    let without = baseline(&site, &cluster).context("invalid servers")?;
    let oracle = Oracle::new(&cluster.vms, &Accuracy::AT_182, 64, site.margin, 1);
    let setup = Setup { pool_sockets: 16, memory: MemoryPolicy::Pond(&oracle), added_ns: 64 };
    let mut pond = || simulate(&site, setup, &cluster, &without, Capacity::Ample).map_or(0, |tally| black_box(tally).events);
    eprintln!("measuring {VMS} VMs on {} servers", cluster.servers);
    let (events_per_second_per_core, bound, ratio_to_bound) = measure::compare(effort, &mut pond, &mut || through_the_queue(&cluster))?;
    let few = Effort { runs: effort.runs.min(3) };
    let placing = measure::median_rate(few, &mut || baseline(&site, &cluster).map_or(0, |without| black_box(without).tally.events))?;
    Ok(PoolReport {
        machine,
        vms: VMS,
        servers: cluster.servers,
        events_per_second_per_core,
        events_per_second_per_core_placing: placing,
        bound,
        ratio_to_bound,
    })
}
