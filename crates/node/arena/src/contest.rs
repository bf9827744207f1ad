//! Runs contenders on traces, and ranks them as the guest arena does (`lab/arena/result.py`).

use std::collections::BTreeMap;

use serde::Serialize;
use units::Bytes;

use crate::contenders::Contender;
use crate::curves::{Point, geomean, saved_at};
use crate::kernel::Costs;
use crate::oracle::Oracle;
use crate::run::{Outcome, run};
use crate::trace::Trace;

/// Shares of time lost at which contenders are ranked, and their names in results.
pub const LEVELS: [(f64, &str); 3] = [(0.005, "0.005"), (0.01, "0.01"), (0.05, "0.05")];

/// The level that decides which of our policies is the best.
pub const AT_ONE: f64 = 0.01;

/// Savings below this are not distinguished, as in the guest arena.
const LEAST_BYTES: f64 = 1_048_576.0;

/// Below this ratio to the best peer, a workload counts as one on which we are behind.
const BEHIND: f64 = 0.95;

/// What one contender did to one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The law.
    pub contender: String,
    /// Its intensity.
    pub intensity: String,
    /// Bytes saved, the mean over the measured time, net of zswap's pool.
    pub saved_bytes: u64,
    /// Time lost in returns, as a share.
    pub lost_ratio: f64,
    /// The same in the worst tenth of the measured time.
    pub worst_lost_ratio: f64,
    /// Groups that returned from zswap.
    pub zswap_returns: u64,
    /// Groups that returned from a device or a file.
    pub device_returns: u64,
}

/// One workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// What it occupies without far memory, the mean over the measured time.
    pub occupied_bytes: Bytes,
    /// What the oracle saves, by level.
    pub oracle_saved_bytes: BTreeMap<&'static str, f64>,
    /// What each contender did.
    pub points: Vec<Row>,
}

/// A law in the ranking at one level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rank {
    /// What it saves of each workload.
    pub saved_bytes: BTreeMap<String, f64>,
    /// Geometric mean over workloads of its saving as a multiple of the best peer's; `None` if no other law is a peer.
    pub geomean_ratio_to_best_peer: Option<f64>,
    /// Geometric mean over workloads of its saving as a share of the oracle's.
    pub geomean_share_of_oracle: f64,
}

/// All results. Bit for bit the same for the same arguments.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Results {
    /// That this is no measurement of programs.
    pub simulated: bool,
    /// The seed of generated programs, samples and regions.
    pub seed: u64,
    /// What a return costs.
    pub charged_us: Costs,
    /// Each workload.
    pub workloads: Vec<Workload>,
    /// By level and law.
    pub ranking: BTreeMap<&'static str, BTreeMap<String, Rank>>,
    /// Which of our policies has the best mean at 1 % lost; `None` if none or no peer ran.
    pub best_policy_at_1pct: Option<String>,
    /// By workload, what it saves as a multiple of the best peer.
    pub ratio_to_best_peer_at_1pct: BTreeMap<String, f64>,
    /// By workload, that peer.
    pub best_peer_at_1pct: BTreeMap<String, String>,
    /// The geometric mean of these.
    pub geomean_ratio_to_best_peer_at_1pct: Option<f64>,
    /// Workloads on which it is behind by more than 5 %.
    pub workloads_behind_by_5pct: Vec<String>,
}

/// Runs contenders on traces. `progress` is called before each workload.
pub fn compete(traces: &[Trace], contenders: &[Contender], costs: Costs, seed: u64, mut progress: impl FnMut(&str)) -> Results {
    let workloads: Vec<Workload> = traces
        .iter()
        .map(|trace| {
            progress(&trace.name);
            workload(trace, contenders, costs, seed)
        })
        .collect();
    let mut results = Results {
        simulated: true,
        seed,
        charged_us: costs,
        ranking: LEVELS.into_iter().map(|(lost, name)| (name, ranking(&workloads, contenders, lost, name))).collect(),
        workloads,
        best_policy_at_1pct: None,
        ratio_to_best_peer_at_1pct: BTreeMap::new(),
        best_peer_at_1pct: BTreeMap::new(),
        geomean_ratio_to_best_peer_at_1pct: None,
        workloads_behind_by_5pct: Vec::new(),
    };
    let ours = names(contenders, Contender::is_ours);
    let peers = names(contenders, Contender::is_peer);
    if !ours.is_empty() && !peers.is_empty() {
        compare_best(&mut results, &ours, &peers);
    }
    results
}

/// Names of the laws for which something holds.
fn names(contenders: &[Contender], holds: impl Fn(&Contender) -> bool) -> Vec<&'static str> {
    let mut names: Vec<&str> = contenders.iter().filter(|one| holds(one)).map(Contender::name).collect();
    names.dedup();
    names
}

fn compare_best(results: &mut Results, ours: &[&str], peers: &[&str]) {
    let mean = |who: &&&str| {
        let ratios: Vec<f64> = results.workloads.iter().map(|workload| ratio(workload, who, peers, AT_ONE)).collect();
        geomean(&ratios)
    };
    let Some(best) = ours.iter().max_by(|one, other| mean(one).total_cmp(&mean(other))) else { return };
    for workload in &results.workloads {
        results.ratio_to_best_peer_at_1pct.insert(workload.name.clone(), ratio(workload, best, peers, AT_ONE));
        let peer = peers.iter().max_by(|one, other| saved(workload, one, AT_ONE).total_cmp(&saved(workload, other, AT_ONE)));
        results.best_peer_at_1pct.insert(workload.name.clone(), peer.map_or(String::new(), |&peer| peer.to_owned()));
    }
    let ratios: Vec<f64> = results.ratio_to_best_peer_at_1pct.values().copied().collect();
    results.geomean_ratio_to_best_peer_at_1pct = Some(geomean(&ratios));
    let behind = results.ratio_to_best_peer_at_1pct.iter().filter(|(_, ratio)| **ratio < BEHIND);
    results.workloads_behind_by_5pct = behind.map(|(name, _)| name.clone()).collect();
    results.best_policy_at_1pct = Some((*best).to_owned());
}

fn workload(trace: &Trace, contenders: &[Contender], costs: Costs, seed: u64) -> Workload {
    let oracle = Oracle::new(trace, costs);
    let row = |contender: &Contender| {
        let outcome = run(trace, costs, contender.law(trace, seed).as_mut());
        Row {
            contender: contender.name().to_owned(),
            intensity: contender.to_string(),
            saved_bytes: outcome.saved().0,
            lost_ratio: outcome.lost_ratio(),
            worst_lost_ratio: outcome.worst_lost_ratio(),
            zswap_returns: outcome.zswap_returns,
            device_returns: outcome.device_returns,
        }
    };
    Workload {
        name: trace.name.clone(),
        occupied_bytes: trace.occupied(),
        oracle_saved_bytes: LEVELS.into_iter().map(|(lost, name)| (name, oracle.saved_at(lost))).collect(),
        points: contenders.iter().map(row).collect(),
    }
}

/// A point of a curve.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
pub fn point(outcome: &Outcome) -> Point {
    Point { lost_ratio: outcome.lost_ratio(), saved_bytes: outcome.saved().0 as f64 }
}

/// What a law saves of a workload at a loss, in bytes.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
pub fn saved(workload: &Workload, who: &str, lost: f64) -> f64 {
    let rows = workload.points.iter().filter(|row| row.contender == who);
    let points: Vec<Point> = rows.map(|row| Point { lost_ratio: row.lost_ratio, saved_bytes: row.saved_bytes as f64 }).collect();
    saved_at(&points, lost)
}

/// A law's saving as a multiple of the best peer's, other than itself.
fn ratio(workload: &Workload, who: &str, peers: &[&str], lost: f64) -> f64 {
    let best = peers.iter().filter(|&&peer| peer != who).map(|peer| saved(workload, peer, lost)).fold(LEAST_BYTES, f64::max);
    saved(workload, who, lost).max(LEAST_BYTES) / best
}

fn ranking(workloads: &[Workload], contenders: &[Contender], lost: f64, level: &str) -> BTreeMap<String, Rank> {
    let peers = names(contenders, Contender::is_peer);
    let rank = |who: &str| {
        let ratios: Vec<f64> = workloads.iter().map(|workload| ratio(workload, who, &peers, lost)).collect();
        let share = |workload: &Workload| {
            let most = workload.oracle_saved_bytes.get(level).copied().unwrap_or(0.0).max(LEAST_BYTES);
            saved(workload, who, lost).max(LEAST_BYTES) / most
        };
        Rank {
            saved_bytes: workloads.iter().map(|workload| (workload.name.clone(), saved(workload, who, lost))).collect(),
            geomean_ratio_to_best_peer: peers.iter().any(|&peer| peer != who).then(|| geomean(&ratios)),
            geomean_share_of_oracle: geomean(&workloads.iter().map(share).collect::<Vec<_>>()),
        }
    };
    names(contenders, |_| true).into_iter().map(|who| (who.to_owned(), rank(who))).collect()
}
