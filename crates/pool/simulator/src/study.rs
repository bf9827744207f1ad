//! Runs many configurations on many clusters in parallel.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::ThreadPoolBuilder;
use rayon::prelude::*;
use serde::Serialize;
use units::RatioPpm;
use vmtrace::Vm;

use crate::provision::{Provisioned, local_only_mib, provision};
use crate::run::{Baseline, Capacity, baseline, simulate};
use crate::site::{Cluster, Setup, Site};
use crate::tally::{Tally, saved};

pub use crate::error::Error;

/// How the VMs of a trace are distributed over clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterAssignment {
    /// The clusters of the trace.
    AsTraced,
    /// A number of clusters, by a hash of the customer, or of the VM if the trace has no customer for it.
    Hashed(NonZero<u32>),
}

/// Number of servers of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Servers {
    /// A fixed number.
    Count(u32),
    /// The least number such that the peak of rented cores is this share of all cores, in parts per million.
    PeakFill(RatioPpm),
}

/// Distributes the VMs of a trace over clusters. `vms` must be ordered by arrival.
#[must_use]
pub fn clusters(vms: Vec<Vm>, ends: i64, assignment: ClusterAssignment, servers: Servers, site: &Site) -> Vec<Cluster> {
    let mut by_cluster: std::collections::BTreeMap<u32, Vec<Vm>> = std::collections::BTreeMap::new();
    for vm in vms {
        let cluster = match assignment {
            ClusterAssignment::AsTraced => vm.cluster,
            // Multiplicative hashing, so that consecutive ids are spread.
            ClusterAssignment::Hashed(clusters) => {
                let hash = vm.customer.unwrap_or(vm.id).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                u32::try_from(hash % u64::from(clusters.get())).unwrap_or(0)
            }
        };
        by_cluster.entry(cluster).or_default().push(vm);
    }
    let clusters = by_cluster.into_values().map(|vms| {
        let servers = match servers {
            Servers::Count(servers) => servers,
            Servers::PeakFill(fill) => servers_for(&vms, u64::from(site.shape.node_cores) * u64::from(site.shape.nodes), fill),
        };
        Cluster { vms, servers, ends }
    });
    clusters.collect()
}

/// Returns the servers needed for the peak of rented cores to fill `fill` of all cores.
fn servers_for(vms: &[Vm], cores: u64, fill: RatioPpm) -> u32 {
    let mut changes: Vec<(i64, i64)> = Vec::with_capacity(vms.len() * 2);
    for vm in vms {
        changes.push((vm.arrival, i64::from(vm.cores)));
        changes.extend(vm.departure.map(|departure| (departure, -i64::from(vm.cores))));
    }
    // Departures come before arrivals of the same second.
    changes.sort_unstable();
    let (mut now, mut most) = (0i64, 0i64);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    let most = u64::try_from(most).unwrap_or(0);
    let rentable = (cores * u64::from(fill.0)).max(1);
    u32::try_from((most * 1_000_000).div_ceil(rentable)).unwrap_or(u32::MAX).max(1)
}

/// The result of one configuration over all clusters.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The run with pools and servers of unlimited size, which measures their peaks.
    pub measured: Tally,
    /// A second run with pools of the measured size.
    pub confirmed: Option<Tally>,
    /// Share of DRAM saved by Pond's rule, over all clusters.
    pub saved_ratio: f64,
    /// Share of DRAM saved if slices were released instantly.
    pub online_saved_ratio: f64,
    /// Share of DRAM saved with all servers and all pools of a cluster alike.
    pub uniform_saved_ratio: f64,
    /// `saved_ratio` of each cluster, in ascending order.
    pub saved_ratio_by_cluster: Vec<f64>,
    /// The least memory to buy with all servers and pools alike; `None` unless requested.
    pub provisioned: Option<Provisioned>,
    /// The same for each cluster; empty unless requested.
    #[serde(skip)]
    pub provisioned_by_cluster: Vec<Provisioned>,
    /// Share of DRAM that this memory saves in each cluster, in the order of the clusters; empty unless requested.
    pub provisioned_saved_by_cluster: Vec<f64>,
    /// Pools with fewer servers than the configuration allows.
    pub pools_not_full: u32,
}

/// Calls `task` for every number below `tasks` on `threads` threads and returns the results in order. Calls `progress` with
/// the number of finished tasks. The first error ends it.
fn run_parallel<T: Send>(
    tasks: usize,
    threads: NonZero<usize>,
    task: impl Fn(usize) -> Result<T, Error> + Sync,
    progress: impl Fn(usize) + Sync,
) -> Result<Vec<T>, Error> {
    let finished = AtomicUsize::new(0);
    let task = |number| {
        let result = task(number);
        progress(finished.fetch_add(1, Ordering::Relaxed) + 1);
        result
    };
    let threads = threads.get().min(tasks);
    let pool = ThreadPoolBuilder::new().num_threads(threads).build().map_err(|_| Error::Threads(threads))?;
    // Tasks take seconds, so each may go to another thread.
    pool.install(|| (0..tasks).into_par_iter().with_max_len(1).map(task).collect())
}

/// Runs every cluster without pools.
///
/// # Errors
/// [`Error`]: the servers' shape is invalid, or a cluster has too many VMs.
pub fn baselines(
    site: &Site,
    clusters: &[Cluster],
    threads: NonZero<usize>,
    progress: impl Fn(usize) + Sync,
) -> Result<Vec<Baseline>, Error> {
    if let Some(cluster) = clusters.iter().find(|cluster| u32::try_from(cluster.vms.len() + 1).is_err()) {
        return Err(Error::TooManyVms(cluster.vms.len()));
    }
    run_parallel(clusters.len(), threads, |cluster| baseline(site, &clusters[cluster]).ok_or(Error::Servers), progress)
}

/// Additional runs for every setup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraRuns {
    /// Runs the setup again with pools of the measured size.
    pub confirm: bool,
    /// Searches for the least memory to buy.
    pub provision: bool,
}

/// The result of one setup on one cluster.
struct ClusterOutcome {
    measured: Tally,
    confirmed: Option<Tally>,
    provisioned: Option<Provisioned>,
}

/// Runs every setup on every cluster, one task for each pair.
///
/// # Errors
/// [`Error::Servers`]: the servers' shape is invalid. [`Error::ServiceLevel`]: no amount of memory keeps the service level.
pub fn run(
    site: &Site,
    clusters: &[Cluster],
    baselines: &[Baseline],
    setups: &[Setup<'_>],
    extra: ExtraRuns,
    threads: NonZero<usize>,
    progress: impl Fn(usize) + Sync,
) -> Result<Vec<Outcome>, Error> {
    let per_setup = clusters.len();
    // Memory without pools does not depend on the setup.
    let local_only = if extra.provision {
        let task = |cluster: usize| local_only_mib(site, &clusters[cluster], &baselines[cluster]).map(Some);
        run_parallel(clusters.len(), threads, task, |_| {})?
    } else {
        vec![None; clusters.len()]
    };
    let task = |number: usize| {
        let (setup, cluster, baseline) = (setups[number / per_setup], &clusters[number % per_setup], &baselines[number % per_setup]);
        let measured = simulate(site, setup, cluster, baseline, Capacity::Ample)?;
        let peaks: Vec<pool::Slices> = measured.pool_peaks.iter().map(|peak| peak.in_use + site.buffer_slices).collect();
        let confirmed = if extra.confirm { Some(simulate(site, setup, cluster, baseline, Capacity::Slices(&peaks))?) } else { None };
        let provisioned = match local_only[number % per_setup] {
            Some(node_mib) => Some(provision(site, setup, cluster, baseline, node_mib)?),
            None => None,
        };
        Some(ClusterOutcome { measured, confirmed, provisioned })
    };
    let results = run_parallel(setups.len() * per_setup, threads, |number| task(number).ok_or(Error::Servers), progress)?;
    let outcomes = setups.iter().enumerate().map(|(at, setup)| {
        let of_clusters = results.get(at * per_setup..(at + 1) * per_setup).unwrap_or_default();
        outcome(site, setup, clusters, baselines, of_clusters)
    });
    Ok(outcomes.collect())
}

fn outcome(site: &Site, setup: &Setup<'_>, clusters: &[Cluster], baselines: &[Baseline], results: &[ClusterOutcome]) -> Outcome {
    let (mut reference, mut measured, mut confirmed) = (Tally::default(), Tally::default(), None::<Tally>);
    let mut by_cluster = Vec::with_capacity(results.len());
    let mut provisioned = None::<Provisioned>;
    for (baseline, ClusterOutcome { measured: of_cluster, confirmed: again, provisioned: least }) in baselines.iter().zip(results) {
        reference.add(&baseline.tally);
        measured.add(of_cluster);
        if let Some(again) = again {
            confirmed.get_or_insert_default().add(again);
        }
        if let Some(least) = least {
            provisioned.get_or_insert_default().add(least);
        }
        by_cluster.push(saved(of_cluster.required.bytes(), baseline.tally.required.bytes()));
    }
    by_cluster.sort_by(f64::total_cmp);
    let pool_servers = setup.pool_servers(&site.shape);
    let provisioned_by_cluster: Vec<Provisioned> = results.iter().filter_map(|of| of.provisioned.clone()).collect();
    Outcome {
        saved_ratio: saved(measured.required.bytes(), reference.required.bytes()),
        online_saved_ratio: saved(measured.required.online_bytes(), reference.required.bytes()),
        uniform_saved_ratio: saved(measured.required.uniform_bytes(), reference.required.uniform_bytes()),
        saved_ratio_by_cluster: by_cluster,
        pools_not_full: clusters.iter().map(|cluster| u32::from(cluster.servers % pool_servers != 0)).sum(),
        measured,
        confirmed,
        provisioned,
        provisioned_saved_by_cluster: provisioned_by_cluster.iter().map(|of| saved(of.bytes, of.local_only_bytes)).collect(),
        provisioned_by_cluster,
    }
}
