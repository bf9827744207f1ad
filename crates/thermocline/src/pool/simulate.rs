//! `thermocline pool simulate`: what pooling would save, at which pool size, at what risk.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::num::NonZero;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use placement::{Shape, Strategy};
use pool::Ns;
use serde::Serialize;
use simulator::faults::Faults;
use simulator::latency::Latency;
use simulator::memory::MemoryPolicy;
use simulator::oracle::{Accuracy, Oracle};
use simulator::predictions::{Predictions, Quality};
use simulator::run::Baseline;
use simulator::site::Cluster;
use simulator::study::{self, ClusterAssignment, ExtraRuns, Outcome, Servers};
use simulator::{Setup, Site};
use vmtrace::{Trace, Vm};

pub(crate) mod arguments;
mod lacking;
mod models;

use crate::options::Format;
use crate::output::print;
use crate::progress::Progress;
use arguments::{Simulate, Split};
use lacking::Lacking;
use models::Asking;

/// What `simulate` tells.
#[derive(Debug, Serialize)]
struct Told<'a> {
    trace: &'a Path,
    origin: &'a str,
    generated: bool,
    /// The second of the trace that what is simulated begins with, where that is not all of it: when the first model came.
    begins: Option<i64>,
    /// What is wrong with models that were left out.
    model_faults: &'a [String],
    /// VMs that are simulated.
    vms: u64,
    /// VMs of which the trace does not tell something.
    lacking: Lacking,
    clusters: usize,
    servers: u64,
    /// VMs that were given untouched memory or slowdowns as published for others, because the trace does not tell theirs.
    assumed: u64,
    /// VMs that no server had room for; they are left out of everything else.
    rejected: u64,
    /// VMs on more than one NUMA node, without pools.
    spanning_ratio: f64,
    /// Memory on another node than its VM's cores, without pools.
    remote_ratio: f64,
    /// DRAM without pools: every server as much as it ever needed.
    required_bytes: u64,
    /// The same with all servers of a cluster alike.
    uniform_required_bytes: u64,
    site: &'a Site,
    /// Events of all runs.
    events: u64,
    /// Of these, events of the runs without pools.
    events_without_pools: u64,
    results: Vec<Row<'a>>,
}

/// One configuration.
#[derive(Debug, Serialize)]
struct Row<'a> {
    pool_sockets: u32,
    memory: String,
    added_ns: u32,
    /// How good the predictions were to be; none but for pond.
    accuracy: Option<Accuracy>,
    /// Accuracy of the trained models; null for other policies.
    prediction_quality: Option<&'a Quality>,
    /// The share of memory that was on pools, over time.
    pool_ratio: f64,
    /// The share of VMs that would exceed the margin.
    mispredicted_ratio: f64,
    #[serde(flatten)]
    outcome: Outcome,
}

/// A configuration before its memory policy is put together: oracles are kept beside.
struct Planned<'a> {
    pool_sockets: u32,
    split: Split,
    added_ns: u32,
    accuracy: Option<Accuracy>,
    oracle: Option<Oracle>,
    predictions: Option<&'a Predictions>,
}

/// Runs `thermocline pool simulate`.
pub(super) fn simulate(format: Format, arguments: &Simulate) -> Result<()> {
    let site = site(arguments)?;
    let trace = Trace::open(&arguments.trace)?;
    let asking = Asking::of(arguments)?;
    let (vms, assumed) = vms(&trace, arguments)?;
    let predictions = asking.as_ref().map(|asking| asking.predict(&vms, &trace, arguments)).unwrap_or_default();
    let vms = match &asking {
        Some(asking) => asking.since_then(vms)?,
        None => vms,
    };
    let clusters = clusters(vms, &trace, &site, arguments);
    let lacking = lacking::check(&clusters, arguments)?;
    let threads = match arguments.threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN),
    };
    let baselines = watched("clusters placed", clusters.len(), |done| study::baselines(&site, &clusters, threads, done))?;
    let planned = plan(arguments, &clusters, &predictions);
    let setups: Vec<Setup<'_>> = planned.iter().map(|planned| planned.setup(arguments.seed)).collect();
    let tasks = setups.len() * clusters.len();
    let also = ExtraRuns { confirm: arguments.confirm, provision: arguments.provision };
    let outcomes = watched("runs", tasks, |done| study::run(&site, &clusters, &baselines, &setups, also, threads, done))?;
    let rows = planned.iter().zip(outcomes).map(|(planned, outcome)| row(planned, outcome)).collect();
    let told = Told {
        assumed,
        lacking,
        begins: asking.as_ref().map(Asking::begins),
        model_faults: asking.as_ref().map_or(&[], Asking::faults),
        ..told(&arguments.trace, &trace, &site, &clusters, &baselines, rows)
    };
    print(format, &told, || text(&told, arguments.confirm))
}

fn site(arguments: &Simulate) -> Result<Site> {
    let faults = Faults {
        emc_every: arguments.emc_fails.map(nanos),
        host_every: arguments.host_fails.map(nanos),
        manager_every: arguments.manager_fails.map(nanos),
        back_after: nanos(arguments.back_after),
        stuck_ppm: arguments.stuck.0,
    };
    Ok(Site {
        shape: Shape {
            nodes: arguments.sockets,
            node_cores: arguments.socket_cores,
            node_mib: u32::try_from(arguments.socket_memory.0 >> 20)?,
        },
        strategy: Strategy::named(&arguments.placement, arguments.seed)?,
        emcs: arguments.emcs,
        buffer_slices: arguments.buffer,
        offline: (nanos(arguments.offline.0), nanos(arguments.offline.1)),
        scrub: nanos(arguments.scrub),
        faults,
        seed: arguments.seed,
        margin: arguments.margin.as_f64(),
        mitigated_ppm: arguments.mitigated.0,
        ..Site::default()
    })
}

fn nanos(duration: Duration) -> Ns {
    Ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// The VMs by arrival, and of how many of them something was assumed.
fn vms(trace: &Trace, arguments: &Simulate) -> Result<(Vec<Vm>, u64)> {
    let mut progress = Progress::new("VMs read", usize::try_from(trace.len())?);
    let (mut vms, mut assumed) = (Vec::new(), 0);
    for vm in trace.vms() {
        let mut vm = vm?;
        if arguments.assume_published {
            assumed += u64::from(simulator::assumptions::fill_missing(&mut vm, arguments.seed));
        }
        if let Some(over) = arguments.spread {
            simulator::assumptions::spread_times(&mut vm, i64::try_from(over.as_secs())?, arguments.seed);
        }
        vms.push(vm);
        progress.step();
    }
    // Spread, they come in another order.
    vms.sort_by_key(Vm::order);
    if vms.is_empty() {
        bail!("{} has no VMs; there is nothing to simulate", arguments.trace.display());
    }
    Ok((vms, assumed))
}

fn clusters(vms: Vec<Vm>, trace: &Trace, site: &Site, arguments: &Simulate) -> Vec<Cluster> {
    let servers = match arguments.servers {
        Some(servers) => Servers::Count(servers),
        None => Servers::PeakFillPpm(arguments.peak_fill.0),
    };
    let assignment = arguments.clusters.map_or(ClusterAssignment::AsTraced, ClusterAssignment::Hashed);
    study::clusters(vms, trace.about().ends, assignment, servers, site)
}

/// Every pool size with every policy at every latency.
fn plan<'a>(arguments: &Simulate, clusters: &[Cluster], predictions: &'a BTreeMap<u32, Predictions>) -> Vec<Planned<'a>> {
    let margin = arguments.margin.as_f64();
    let mut planned = Vec::new();
    for &latency in &arguments.latency {
        for &split in &arguments.memory {
            for &pool_sockets in &arguments.pool_sizes {
                let added_ns = Latency::added_ns(latency, pool_sockets);
                let accuracy = (split == Split::Pond).then(|| arguments.accuracy.unwrap_or(published(added_ns)));
                let vms = || clusters.iter().flat_map(|cluster| &cluster.vms);
                let oracle = accuracy.map(|accuracy| Oracle::new(vms(), &accuracy, added_ns, margin, arguments.seed));
                let predictions = predictions.get(&added_ns).filter(|_| split == Split::Models);
                planned.push(Planned { pool_sockets, split, added_ns, accuracy, oracle, predictions });
            }
        }
    }
    planned
}

/// The published accuracy at the nearer of the two latencies that there are figures for.
fn published(added_ns: u32) -> Accuracy {
    if added_ns <= 102 { Accuracy::AT_182 } else { Accuracy::AT_222 }
}

impl Planned<'_> {
    fn setup(&self, seed: u64) -> Setup<'_> {
        let memory = match (self.split, &self.oracle, self.predictions) {
            (Split::Static(share), ..) => MemoryPolicy::Static { share_ppm: share.0, seed },
            (Split::Pond, Some(oracle), _) => MemoryPolicy::Pond(oracle),
            (Split::Models, _, Some(predictions)) => MemoryPolicy::Pond(predictions),
            (Split::AllLocal | Split::Pond | Split::Models, ..) => MemoryPolicy::AllLocal,
        };
        Setup { pool_sockets: self.pool_sockets, memory, added_ns: self.added_ns }
    }

    fn name(&self) -> String {
        match self.split {
            Split::AllLocal => "all_local".to_owned(),
            Split::Static(share) => format!("static={}%", share.as_f64() * 100.0),
            Split::Pond => "pond".to_owned(),
            Split::Models => "models".to_owned(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "ratios")]
fn row<'a>(planned: &Planned<'a>, outcome: Outcome) -> Row<'a> {
    Row {
        pool_sockets: planned.pool_sockets,
        memory: planned.name(),
        added_ns: planned.added_ns,
        accuracy: planned.accuracy,
        prediction_quality: planned.predictions.map(|predictions| &predictions.quality),
        pool_ratio: outcome.measured.pool_ratio(),
        mispredicted_ratio: outcome.measured.mispredicted as f64 / outcome.measured.started.max(1) as f64,
        outcome,
    }
}

#[expect(clippy::cast_precision_loss, reason = "ratios")]
fn told<'a>(
    path: &'a Path,
    trace: &'a Trace,
    site: &'a Site,
    clusters: &[Cluster],
    baselines: &[Baseline],
    results: Vec<Row<'a>>,
) -> Told<'a> {
    let mut without = simulator::tally::Tally::default();
    baselines.iter().for_each(|baseline| without.add(&baseline.tally));
    let of_runs = |row: &Row<'_>| row.outcome.measured.events + row.outcome.confirmed.as_ref().map_or(0, |again| again.events);
    Told {
        trace: path,
        origin: &trace.about().origin,
        generated: trace.about().generated,
        lacking: Lacking::default(),
        begins: None,
        model_faults: &[],
        vms: clusters.iter().map(|cluster| cluster.vms.len() as u64).sum(),
        clusters: clusters.len(),
        servers: clusters.iter().map(|cluster| u64::from(cluster.servers)).sum(),
        assumed: 0,
        rejected: without.rejected,
        spanning_ratio: without.spanning as f64 / without.started.max(1) as f64,
        remote_ratio: without.remote_gib_hours / without.memory_gib_hours.max(f64::MIN_POSITIVE),
        required_bytes: without.required.bytes(),
        uniform_required_bytes: without.required.uniform_bytes(),
        site,
        events_without_pools: without.events,
        events: without.events + results.iter().map(of_runs).sum::<u64>(),
        results,
    }
}

/// Does something that takes long and says how far it is.
fn watched<T>(what: &'static str, total: usize, work: impl FnOnce(&(dyn Fn(usize) + Sync)) -> Result<T, study::Error>) -> Result<T> {
    let progress = Mutex::new(Progress::new(what, total));
    work(&|_| progress.lock().unwrap_or_else(PoisonError::into_inner).step()).context("cannot simulate")
}

fn text(told: &Told<'_>, confirmed: bool) -> String {
    let percent = |share: f64| format!("{:.1}%", share * 100.0);
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let gib = |bytes: u64| format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30));
    let mut text = String::new();
    if told.generated {
        text += "a generated trace: nothing in it was measured\n";
    }
    let _ = writeln!(
        text,
        "{} VMs on {} servers in {} clusters; {} found no room and are left out",
        told.vms, told.servers, told.clusters, told.rejected
    );
    let _ = writeln!(
        text,
        "without pools: {} of DRAM; {} of the VMs span NUMA nodes, with {:.2}% of all memory",
        gib(told.required_bytes),
        percent(told.spanning_ratio),
        told.remote_ratio * 100.0
    );
    let _ = writeln!(
        text,
        "\n{:<12} {:>7} {:>7} {:>8} {:>7} {:>8} {:>10} {:>9} {:>8} {:>6} {:>7}",
        "memory", "latency", "sockets", "on pools", "saved", "at once", "all alike", "too slow", "moved", "local", "lost"
    );
    for row in &told.results {
        let measured = &row.outcome.measured;
        let _ = writeln!(
            text,
            "{:<12} {:>7} {:>7} {:>8} {:>7} {:>8} {:>10} {:>9} {:>8} {:>6} {:>7}",
            row.memory,
            format!("{} ns", row.added_ns),
            row.pool_sockets,
            percent(row.pool_ratio),
            percent(row.outcome.saved_ratio),
            percent(row.outcome.online_saved_ratio),
            percent(row.outcome.uniform_saved_ratio),
            format!("{:.2}%", row.mispredicted_ratio * 100.0),
            measured.moved,
            measured.fell_back,
            measured.lost_with_host + measured.lost_with_emc,
        );
    }
    models::text(&mut text, &told.results);
    if told.results.iter().any(|row| row.outcome.provisioned.is_some()) {
        text += "\nthe least with which 999 of 1,000 VMs find room, all servers and pools of a cluster alike:\n";
        let _ = writeln!(
            text,
            "{:<12} {:>7} {:>7} {:>12} {:>12} {:>12} {:>7}",
            "memory", "latency", "sockets", "no pools", "local", "pools", "saved"
        );
        for (row, least) in told.results.iter().filter_map(|row| Some((row, row.outcome.provisioned.as_ref()?))) {
            let latency = format!("{} ns", row.added_ns);
            let [without, local, pools] = [least.local_only_bytes, least.bytes - least.pool_bytes, least.pool_bytes].map(gib);
            let saved = percent(simulator::tally::saved(least.bytes, least.local_only_bytes));
            let _ =
                writeln!(text, "{:<12} {latency:>7} {:>7} {without:>12} {local:>12} {pools:>12} {saved:>7}", row.memory, row.pool_sockets);
        }
    }
    if confirmed {
        text += "\nagain, with pools just as large:\n";
        let _ = writeln!(
            text,
            "{:<12} {:>7} {:>7} {:>8} {:>6} {:>11} {:>12} {:>12}",
            "memory", "latency", "sockets", "moved", "local", ">1 GiB/s", ">10 GiB/s", "most GiB/s"
        );
        for (row, again) in told.results.iter().filter_map(|row| Some((row, row.outcome.confirmed.as_ref()?))) {
            #[expect(clippy::cast_precision_loss, reason = "a ratio")]
            let of_starts = |starts: u64| format!("{:.4}%", starts as f64 / again.started.max(1) as f64 * 100.0);
            let _ = writeln!(
                text,
                "{:<12} {:>7} {:>7} {:>8} {:>6} {:>11} {:>12} {:>12.1}",
                row.memory,
                format!("{} ns", row.added_ns),
                row.pool_sockets,
                again.moved,
                again.fell_back,
                of_starts(again.starts_above_1_gib_per_s),
                of_starts(again.starts_above_10_gib_per_s),
                again.release_gib_per_s_max
            );
        }
    }
    text
}
