//! `thermocline pool simulate`: savings and risks of pooling by pool size and policy.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use placement::{Shape, Strategy};
use pool::Ns;
use simulator::faults::Faults;
use simulator::memory::MemoryPolicy;
use simulator::oracle::{Accuracy, Oracle};
use simulator::predictions::Predictions;
use simulator::run::Baseline;
use simulator::service_level::{Rule, ServiceLevel};
use simulator::site::Cluster;
use simulator::spill::Spill;
use simulator::study::{self, ClusterAssignment, ExtraRuns, Outcome, Servers};
use simulator::{Setup, Site};
use vmtrace::{Trace, Vm};

pub(crate) mod arguments;
mod missing;
mod models;
pub(crate) mod money;
mod pods;
mod report;
mod text;

use crate::options::Format;
use crate::output::print;
use crate::progress::progress;
use arguments::{Simulate, Split};
use missing::Missing;
use models::TrainedModels;
use money::{Money, Prices};
use report::{Report, Row};

/// A configuration with its oracle or predictions, from which the memory policy is made.
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
    pods::check(&site, &arguments.pool_sizes, &arguments.latency)?;
    let trace = Trace::open(&arguments.trace)?;
    let trained = TrainedModels::of(arguments)?;
    let (vms, assumed) = vms(&trace, arguments)?;
    let predictions = trained.as_ref().map(|trained| trained.predict(&vms, &trace, arguments)).unwrap_or_default();
    let vms = match &trained {
        Some(trained) => trained.since_first_model(vms)?,
        None => vms,
    };
    let clusters = clusters(vms, &trace, &site, arguments);
    let missing = missing::check(&clusters, arguments)?;
    let threads = match arguments.threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN),
    };
    let baselines = with_progress("clusters placed", clusters.len(), |done| study::baselines(&site, &clusters, threads, done))?;
    let planned = plan(arguments, &clusters, &predictions);
    let setups: Vec<Setup<'_>> = planned.iter().map(|planned| planned.setup(arguments.seed)).collect();
    let tasks = setups.len() * clusters.len();
    let also = ExtraRuns { confirm: arguments.confirm, provision: arguments.provision.is_some() };
    let outcomes = with_progress("runs", tasks, |done| study::run(&site, &clusters, &baselines, &setups, also, threads, done))?;
    let rows = planned.iter().zip(outcomes).map(|(planned, outcome)| row(planned, outcome, &site, arguments.prices.as_ref())).collect();
    let report = Report {
        assumed,
        missing,
        begins: trained.as_ref().map(TrainedModels::begins),
        model_faults: trained.as_ref().map_or(&[], TrainedModels::faults),
        ..summarise(&arguments.trace, &trace, &site, &clusters, &baselines, rows)
    };
    print(format, &report, || text::text(&report, arguments.confirm))
}

fn site(arguments: &Simulate) -> Result<Site> {
    let faults = Faults {
        emc_every: arguments.emc_fails.map(nanos),
        host_every: arguments.host_fails.map(nanos),
        manager_every: arguments.manager_fails.map(nanos),
        back_after: nanos(arguments.back_after),
        stuck_ppm: arguments.stuck,
    };
    Ok(Site {
        shape: Shape {
            nodes: arguments.sockets,
            node_cores: arguments.socket_cores,
            node_mib: u32::try_from(arguments.socket_memory.0 >> 20)?,
        },
        strategy: Strategy::named(&arguments.placement, arguments.seed)?,
        emcs: arguments.emcs,
        pod: arguments.pod,
        buffer_slices: pool::Slices(arguments.buffer),
        offline: (nanos(arguments.offline.0), nanos(arguments.offline.1)),
        scrub: nanos(arguments.scrub),
        faults,
        seed: arguments.seed,
        margin: arguments.margin.as_f64(),
        spill: Spill(arguments.spill),
        mitigated_ppm: arguments.mitigated,
        service_level: ServiceLevel {
            rule: arguments.provision.as_deref().and_then(Rule::named).unwrap_or_default(),
            share: arguments.service_level,
        },
        ..Site::default()
    })
}

fn nanos(duration: Duration) -> Ns {
    Ns(units::nanos(duration))
}

/// The VMs by arrival, and the number of those with assumed properties.
fn vms(trace: &Trace, arguments: &Simulate) -> Result<(Vec<Vm>, u64)> {
    let progress = progress("VMs read", trace.len());
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
        progress.inc(1);
    }
    // Spreading changes the order of arrival.
    vms.sort_by_key(Vm::order);
    if vms.is_empty() {
        bail!("{} has no VMs", arguments.trace.display());
    }
    Ok((vms, assumed))
}

fn clusters(vms: Vec<Vm>, trace: &Trace, site: &Site, arguments: &Simulate) -> Vec<Cluster> {
    let servers = match arguments.servers {
        Some(servers) => Servers::Count(servers),
        None => Servers::PeakFill(arguments.peak_fill),
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
                let added_ns = arguments.added_ns(latency, pool_sockets);
                let accuracy = match split {
                    Split::Pond => Some(arguments.accuracy.unwrap_or(published(added_ns))),
                    Split::Oracle => Some(Accuracy::PERFECT),
                    Split::AllLocal | Split::Static(_) | Split::Models | Split::Recorded | Split::Requested => None,
                };
                let vms = || clusters.iter().flat_map(|cluster| &cluster.vms);
                let oracle = accuracy.map(|accuracy| Oracle::new(vms(), &accuracy, added_ns, margin, arguments.seed));
                let predictions = predictions.get(&added_ns).filter(|_| split == Split::Models);
                planned.push(Planned { pool_sockets, split, added_ns, accuracy, oracle, predictions });
            }
        }
    }
    planned
}

/// The published accuracy at the nearer of the two published latencies.
fn published(added_ns: u32) -> Accuracy {
    if added_ns <= 102 { Accuracy::AT_182 } else { Accuracy::AT_222 }
}

impl Planned<'_> {
    fn setup(&self, seed: u64) -> Setup<'_> {
        let memory = match (self.split, &self.oracle, self.predictions) {
            (Split::Static(share), ..) => MemoryPolicy::Static { share, seed },
            (Split::Pond | Split::Oracle, Some(oracle), _) => MemoryPolicy::Pond(oracle),
            (Split::Models, _, Some(predictions)) => MemoryPolicy::Pond(predictions),
            (Split::Recorded, ..) => MemoryPolicy::Recorded,
            (Split::Requested, ..) => MemoryPolicy::Requested,
            (Split::AllLocal | Split::Pond | Split::Oracle | Split::Models, ..) => MemoryPolicy::AllLocal,
        };
        Setup { pool_sockets: self.pool_sockets, memory, added_ns: self.added_ns }
    }

    fn name(&self) -> String {
        match self.split {
            Split::AllLocal => "all_local".to_owned(),
            Split::Static(share) => format!("static={}%", share.as_f64() * 100.0),
            Split::Pond => "pond".to_owned(),
            Split::Oracle => "oracle".to_owned(),
            Split::Models => "models".to_owned(),
            Split::Recorded => "recorded".to_owned(),
            Split::Requested => "requested".to_owned(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "ratios")]
fn row<'a>(planned: &Planned<'a>, outcome: Outcome, site: &Site, prices: Option<&Prices>) -> Row<'a> {
    Row {
        pool_sockets: planned.pool_sockets,
        pod: pods::overlap(planned.pool_sockets, site),
        memory: planned.name(),
        added_ns: planned.added_ns,
        accuracy: planned.accuracy,
        prediction_quality: planned.predictions.map(|predictions| &predictions.quality),
        pool_ratio: outcome.measured.pool_ratio(),
        mispredicted_ratio: outcome.measured.mispredicted as f64 / outcome.measured.started.max(1) as f64,
        money: prices.map(|prices| Money::of(prices, &outcome.provisioned_by_cluster)),
        outcome,
    }
}

#[expect(clippy::cast_precision_loss, reason = "ratios")]
fn summarise<'a>(
    path: &'a Path,
    trace: &'a Trace,
    site: &'a Site,
    clusters: &[Cluster],
    baselines: &[Baseline],
    results: Vec<Row<'a>>,
) -> Report<'a> {
    let mut without = simulator::tally::Tally::default();
    baselines.iter().for_each(|baseline| without.add(&baseline.tally));
    let of_runs = |row: &Row<'_>| row.outcome.measured.events + row.outcome.confirmed.as_ref().map_or(0, |again| again.events);
    Report {
        trace: path,
        origin: &trace.about().origin,
        generated: trace.about().generated,
        missing: Missing::default(),
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

/// Runs a long task and prints its progress.
fn with_progress<T>(what: &'static str, total: usize, work: impl FnOnce(&(dyn Fn(usize) + Sync)) -> Result<T, study::Error>) -> Result<T> {
    let progress = progress(what, total as u64);
    work(&|_| progress.inc(1)).context("cannot simulate")
}
