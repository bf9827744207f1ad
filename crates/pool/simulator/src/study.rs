//! Many configurations on many clusters, over all cores.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use thiserror::Error;
use vmtrace::Vm;

use crate::provision::{Provisioned, provision};
use crate::run::{Baseline, Capacity, baseline, simulate};
use crate::site::{Cluster, Setup, Site};
use crate::tally::{Tally, saved};

/// Why there is no study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The servers cannot be.
    #[error(
        "a server has 1 to {} NUMA nodes, and cores and memory that 32 bits count; give other sockets, cores or memory",
        placement::NODES_MAX
    )]
    Servers,
    /// A cluster is too large.
    #[error("a cluster has {0} VMs, and at most 4294967294 can be simulated; deal the trace to more clusters")]
    TooManyVms(usize),
}

/// How VMs come to clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Deal {
    /// As the trace says.
    AsTraced,
    /// To so many clusters by customer, or by VM where the trace names no customer.
    Into(NonZero<u32>),
}

/// How many servers a cluster has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Servers {
    /// So many.
    Count(u32),
    /// As few as keep this share of their cores rented when most are, in millionths.
    BusyPpm(u32),
}

/// Makes clusters of a trace. VMs must come by arrival.
#[must_use]
pub fn clusters(vms: Vec<Vm>, ends: i64, deal: Deal, servers: Servers, site: &Site) -> Vec<Cluster> {
    let mut dealt: std::collections::BTreeMap<u32, Vec<Vm>> = std::collections::BTreeMap::new();
    for vm in vms {
        let cluster = match deal {
            Deal::AsTraced => vm.cluster,
            // Whose it is, mixed so that neighbouring numbers come apart.
            Deal::Into(clusters) => {
                let whose = vm.customer.unwrap_or(vm.id).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                u32::try_from(whose % u64::from(clusters.get())).unwrap_or(0)
            }
        };
        dealt.entry(cluster).or_default().push(vm);
    }
    let clusters = dealt.into_values().map(|vms| {
        let servers = match servers {
            Servers::Count(servers) => servers,
            Servers::BusyPpm(busy) => servers_for(&vms, u64::from(site.shape.node_cores) * u64::from(site.shape.nodes), busy),
        };
        Cluster { vms, servers, ends }
    });
    clusters.collect()
}

/// Servers that have so many cores rented when most are.
fn servers_for(vms: &[Vm], cores: u64, busy_ppm: u32) -> u32 {
    let mut changes: Vec<(i64, i64)> = Vec::with_capacity(vms.len() * 2);
    for vm in vms {
        changes.push((vm.arrival, i64::from(vm.cores)));
        changes.extend(vm.departure.map(|departure| (departure, -i64::from(vm.cores))));
    }
    // At the same second those who leave come first.
    changes.sort_unstable();
    let (mut now, mut most) = (0i64, 0i64);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    let most = u64::try_from(most).unwrap_or(0);
    let rentable = (cores * u64::from(busy_ppm)).max(1);
    u32::try_from((most * 1_000_000).div_ceil(rentable)).unwrap_or(u32::MAX).max(1)
}

/// What became of one configuration, over all clusters.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// With pools and servers as large as need be.
    pub measured: Tally,
    /// Again, with pools just as large as was measured.
    pub confirmed: Option<Tally>,
    /// DRAM saved, by the paper's rule, over all clusters together.
    pub saved_ratio: f64,
    /// The same if slices came back at once.
    pub online_saved_ratio: f64,
    /// The first with all servers and pools of a cluster alike.
    pub uniform_saved_ratio: f64,
    /// The first by cluster, in ascending order.
    pub saved_ratio_by_cluster: Vec<f64>,
    /// The least that could be bought, all servers and pools alike; none unless it was asked for.
    pub provisioned: Option<Provisioned>,
    /// Pools that have fewer servers than they could.
    pub pools_not_full: u32,
}

/// Calls `task` for every number below `tasks`, on so many threads, and returns what came out in order. `done` hears how many
/// are done.
pub fn each<T: Send>(tasks: usize, threads: NonZero<usize>, task: impl Fn(usize) -> T + Sync, done: impl Fn(usize) + Sync) -> Vec<T> {
    let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results = Mutex::new(Vec::with_capacity(tasks));
    std::thread::scope(|scope| {
        for _ in 0..threads.get().min(tasks) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= tasks {
                        return;
                    }
                    let result = task(number);
                    // A thread that panics ends the scope with its panic, so what another left is never used.
                    results.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((number, result));
                    done(finished.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|&(number, _)| number);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Every cluster without pools.
///
/// # Errors
/// When servers or clusters cannot be simulated.
pub fn baselines(site: &Site, clusters: &[Cluster], threads: NonZero<usize>, done: impl Fn(usize) + Sync) -> Result<Vec<Baseline>, Error> {
    if let Some(cluster) = clusters.iter().find(|cluster| u32::try_from(cluster.vms.len() + 1).is_err()) {
        return Err(Error::TooManyVms(cluster.vms.len()));
    }
    let all = each(clusters.len(), threads, |cluster| baseline(site, &clusters[cluster]).ok_or(Error::Servers), done);
    all.into_iter().collect()
}

/// What is asked of every setup beside what it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Also {
    /// Run it again with pools just as large as it needed.
    pub confirm: bool,
    /// Find the least that could be bought.
    pub provision: bool,
}

/// What came out of one setup on one cluster.
struct Pair {
    measured: Tally,
    confirmed: Option<Tally>,
    provisioned: Option<Provisioned>,
}

/// Every setup on every cluster, one task for each pair.
///
/// # Errors
/// When servers cannot be simulated.
pub fn run(
    site: &Site,
    clusters: &[Cluster],
    baselines: &[Baseline],
    setups: &[Setup<'_>],
    also: Also,
    threads: NonZero<usize>,
    done: impl Fn(usize) + Sync,
) -> Result<Vec<Outcome>, Error> {
    let pairs = clusters.len();
    let task = |number: usize| {
        let (setup, cluster, baseline) = (setups[number / pairs], &clusters[number % pairs], &baselines[number % pairs]);
        let measured = simulate(site, setup, cluster, baseline, Capacity::Ample)?;
        let just: Vec<u32> = measured.pool_peaks.iter().map(|peak| peak.in_use.saturating_add(site.buffer_slices)).collect();
        let confirmed = if also.confirm { Some(simulate(site, setup, cluster, baseline, Capacity::Slices(&just))?) } else { None };
        let provisioned = if also.provision { Some(provision(site, setup, cluster, baseline)?) } else { None };
        Some(Pair { measured, confirmed, provisioned })
    };
    let results = each(setups.len() * pairs, threads, task, done);
    let results: Vec<Pair> = results.into_iter().map(|result| result.ok_or(Error::Servers)).collect::<Result<_, _>>()?;
    let outcomes = setups.iter().enumerate().map(|(at, setup)| {
        let of_clusters = results.get(at * pairs..(at + 1) * pairs).unwrap_or_default();
        outcome(site, setup, clusters, baselines, of_clusters)
    });
    Ok(outcomes.collect())
}

fn outcome(site: &Site, setup: &Setup<'_>, clusters: &[Cluster], baselines: &[Baseline], results: &[Pair]) -> Outcome {
    let (mut reference, mut measured, mut confirmed) = (Tally::default(), Tally::default(), None::<Tally>);
    let mut by_cluster = Vec::with_capacity(results.len());
    let mut provisioned = None::<Provisioned>;
    for (baseline, Pair { measured: of_cluster, confirmed: again, provisioned: least }) in baselines.iter().zip(results) {
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
    Outcome {
        saved_ratio: saved(measured.required.bytes(), reference.required.bytes()),
        online_saved_ratio: saved(measured.required.online_bytes(), reference.required.bytes()),
        uniform_saved_ratio: saved(measured.required.uniform_bytes(), reference.required.uniform_bytes()),
        saved_ratio_by_cluster: by_cluster,
        pools_not_full: clusters.iter().map(|cluster| u32::from(cluster.servers % pool_servers != 0)).sum(),
        measured,
        confirmed,
        provisioned,
    }
}
