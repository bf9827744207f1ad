//! The answer of `thermocline model` in base units: printed as JSON, and the source of the tables.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use model::front::Objective;
use model::generate::fit;
use model::partial::Partial;
use model::survey::Survey;
use model::tally::{Base, Total, ratio};
use model::traces::Share;
use policy::thresholds::Thresholds;
use serde::Serialize;
use units::{Bytes, Millis, RatioPpm};

use super::agents::AsAgents;
use super::detail::Detailed;
use super::tiers::TierRow;

/// The answer to one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Whether the fleet was generated.
    pub(crate) generated: bool,
    pub(crate) jobs: u64,
    pub(crate) entries: u64,
    pub(crate) span_seconds: f64,
    /// Mean over the span.
    pub(crate) used_bytes: f64,
    pub(crate) cold_bytes: f64,
    /// Jobs without sampled compressibility, for which a ratio was assumed.
    pub(crate) jobs_without_sample: u64,
    /// Missing parts of files that were replayed partially.
    pub(crate) row_groups_missing: u64,
    /// How the ages of the entries were obtained.
    pub(crate) trackers: Vec<TrackerRow>,
    /// What the answer cannot be sure of.
    pub(crate) warnings: Vec<String>,
    pub(crate) objective_percentile_ratio: f64,
    pub(crate) objective_ratio_per_min: f64,
    /// The configured limits first, then each what-if.
    pub(crate) answers: Vec<Answer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fleet: Option<FleetAsItIs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fit: Option<Vec<fit::Row>>,
    /// The configured limits in other tiers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tiers: Vec<TierRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<Detailed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) agents: Option<AsAgents>,
}

impl Report {
    pub(crate) fn new(base: &Base, page_bytes: Bytes, objective: Objective, answers: Vec<Answer>) -> Self {
        let bytes = |page_ms: u128| ratio(page_ms * u128::from(page_bytes.0), u128::from(base.span().0));
        Self {
            generated: false,
            jobs: base.jobs,
            entries: base.entries,
            span_seconds: ratio(u128::from(base.span().0), 1_000),
            used_bytes: bytes(base.used_page_ms),
            cold_bytes: bytes(base.cold_page_ms),
            jobs_without_sample: base.jobs_assumed,
            row_groups_missing: 0,
            trackers: Vec::new(),
            warnings: Vec::new(),
            objective_percentile_ratio: objective.percentile.as_f64(),
            objective_ratio_per_min: objective.rate_max.as_f64(),
            answers,
            fleet: None,
            fit: None,
            tiers: Vec::new(),
            detail: None,
            agents: None,
        }
    }
}

/// The entries of one tracker.
#[derive(Debug, Serialize)]
pub(crate) struct TrackerRow {
    pub(crate) tracker: String,
    pub(crate) entries: u64,
    pub(crate) entries_ratio: f64,
    /// Entries that do not show which ages were distinguished.
    pub(crate) unknown_entries: u64,
    /// Entries that do not resolve every threshold.
    pub(crate) limited_entries: u64,
    /// Entries whose ages are those of a sample.
    pub(crate) sampled_entries: u64,
    /// The lowest age above which such an entry resolves none; `null` without any.
    pub(crate) resolved_to_seconds: Option<f64>,
}

/// The file written for `--merge`.
#[derive(Debug, Serialize)]
pub(crate) struct Written {
    pub(crate) tally: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) jobs: u64,
    pub(crate) entries: u64,
}

impl Written {
    pub(crate) fn new(partial: &Partial, file: &Path) -> Result<Self> {
        let base = partial.whole()?.first().map(|tally| tally.base).unwrap_or_default();
        let bytes = std::fs::metadata(file).with_context(|| format!("cannot read the size of {}", file.display()))?.len();
        Ok(Self { tally: file.to_owned(), bytes, jobs: base.jobs, entries: base.entries })
    }
}

/// The share of one worker.
#[derive(Debug, Serialize)]
pub(crate) struct Worker {
    pub(crate) trace: Vec<PathBuf>,
    /// `FROM..TO`, for `--groups`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) groups: Option<String>,
}

pub(crate) fn shares(shares: &[Share]) -> Vec<Worker> {
    let worker = |share: &Share| Worker {
        trace: share.files.clone(),
        groups: share.groups.as_ref().map(|groups| format!("{}..{}", groups.start, groups.end)),
    };
    shares.iter().map(worker).collect()
}

/// The result under one set of limits.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    pub(crate) promotion_rate_max_ratio_per_min: f64,
    pub(crate) minimum_age_seconds: f64,
    /// 0 if past periods do not decay.
    pub(crate) half_life_seconds: f64,
    pub(crate) spikes: bool,
    pub(crate) bound: bool,
    /// The configured pair.
    pub(crate) configured: Option<Pair>,
    /// The pair that stores most within the objective.
    pub(crate) best: Option<Pair>,
    /// The Pareto front, most stored first.
    pub(crate) front: Vec<Pair>,
    /// All pairs, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) pairs: Vec<Pair>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) groups: Vec<Group>,
}

/// A pair of percentile and warm-up with its result.
#[derive(Debug, Serialize)]
pub(crate) struct Pair {
    pub(crate) percentile_ratio: f64,
    pub(crate) warmup_seconds: f64,
    pub(crate) stored_bytes: f64,
    pub(crate) saved_bytes: f64,
    pub(crate) saved_ratio: f64,
    pub(crate) coverage_ratio: f64,
    /// At the objective's percentile of the entries with far memory; `null` if unbounded or never on.
    pub(crate) rate_ratio_per_min: Option<f64>,
    /// The same at 99.5 % of these entries.
    pub(crate) tail_ratio_per_min: Option<f64>,
    /// The rate at the objective's percentile of all entries.
    pub(crate) rate_of_all_ratio_per_min: Option<f64>,
    pub(crate) holds: bool,
    pub(crate) on_ratio: f64,
    /// Over the whole fleet.
    pub(crate) promotions_pages_per_second: f64,
    /// Share of the entries with far memory whose tracker did not distinguish the threshold in effect.
    pub(crate) unresolved_ratio: f64,
    /// 95 % interval of the sampling error; absent if all pages were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) coverage_interval_ratio: Option<[f64; 2]>,
    /// The same of `promotions_pages_per_second`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) promotions_interval_pages_per_second: Option<[f64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) saved_worth: Option<f64>,
}

impl Pair {
    pub(crate) fn new(total: &Total, objective: &Objective, page_bytes: Bytes, price_per_gib: Option<f64>) -> Self {
        let span_ms = u128::from(total.base.span().0);
        let bytes = |page_ms: u128| ratio(page_ms * u128::from(page_bytes.0), span_ms);
        let saved_bytes = bytes(total.sums.stored_page_ms - total.sums.pool_page_ms);
        let finite = |rate: Option<f64>| rate.filter(|rate| rate.is_finite());
        Self {
            percentile_ratio: total.percentile.as_f64(),
            warmup_seconds: ratio(u128::from(total.warmup.0), 1_000),
            stored_bytes: bytes(total.sums.stored_page_ms),
            saved_bytes,
            saved_ratio: total.saved_ratio(),
            coverage_ratio: total.coverage(),
            rate_ratio_per_min: finite(total.rates.on),
            tail_ratio_per_min: finite(total.rates.tail),
            rate_of_all_ratio_per_min: finite(total.rates.all),
            holds: objective.holds(total),
            on_ratio: ratio(u128::from(total.entries_on), u128::from(total.base.entries)),
            promotions_pages_per_second: ratio(total.sums.promotions * 1_000, span_ms),
            unresolved_ratio: total.unresolved(),
            coverage_interval_ratio: total.coverage_interval(),
            promotions_interval_pages_per_second: total
                .promotions_interval()
                .map(|bounds| bounds.map(|pages| pages / ratio(span_ms, 1_000))),
            saved_worth: price_per_gib.map(|price| saved_bytes / f64::from(1 << 30) * price),
        }
    }
}

/// A cluster or a class.
#[derive(Debug, Serialize)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) jobs: u64,
    /// The result of the fleet's best pair in this group.
    pub(crate) at_fleets_best: Option<Pair>,
    /// The best pair for this group alone.
    pub(crate) own_best: Option<Pair>,
    /// All pairs, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) pairs: Vec<Pair>,
}

/// The fleet before anything is moved.
#[derive(Debug, Serialize)]
pub(crate) struct FleetAsItIs {
    /// By threshold.
    pub(crate) ages: Vec<AgeRow>,
    /// By cluster.
    pub(crate) clusters: Vec<ClusterRow>,
    /// Cold share of memory by percentile of the jobs.
    pub(crate) jobs: Vec<JobsRow>,
}

/// SDFM figure 1.
#[derive(Debug, Serialize)]
pub(crate) struct AgeRow {
    pub(crate) threshold_seconds: f64,
    pub(crate) cold_ratio: f64,
    pub(crate) accessed_ratio_per_min: f64,
}

/// Cold share of memory over a cluster's machines (SDFM figure 2).
#[derive(Debug, Serialize)]
pub(crate) struct ClusterRow {
    pub(crate) cluster: String,
    pub(crate) machines: usize,
    pub(crate) least: f64,
    pub(crate) lower_quartile: f64,
    pub(crate) median: f64,
    pub(crate) upper_quartile: f64,
    pub(crate) most: f64,
}

/// SDFM figure 3.
#[derive(Debug, Serialize)]
pub(crate) struct JobsRow {
    pub(crate) jobs_ratio: f64,
    pub(crate) cold_ratio: f64,
}

impl FleetAsItIs {
    pub(crate) fn of(survey: &Survey, thresholds: &Thresholds, scan_period_ms: Millis) -> Self {
        let ages = thresholds.as_slice().iter().enumerate().map(|(index, age)| AgeRow {
            threshold_seconds: ratio(u128::from(age.0) * u128::from(scan_period_ms.0), 1_000),
            cold_ratio: survey.fleet.cold_ratio(index),
            accessed_ratio_per_min: survey.fleet.accessed_per_minute(index),
        });
        let clusters = survey.clusters().into_iter().map(|cluster| {
            let shares = survey.cold_ratio_of_machines(cluster);
            // The nearest rank among the machines.
            let at = |quarters: usize| shares.get((shares.len().saturating_sub(1)) * quarters / 4).copied().unwrap_or(0.0);
            ClusterRow {
                cluster: cluster.to_owned(),
                machines: shares.len(),
                least: at(0),
                lower_quartile: at(1),
                median: at(2),
                upper_quartile: at(3),
                most: at(4),
            }
        });
        let jobs = (1..=9u32).map(|tenths| {
            let share = RatioPpm(tenths * 100_000);
            JobsRow { jobs_ratio: share.as_f64(), cold_ratio: survey.cold_ratio_of_jobs(share).unwrap_or(0.0) }
        });
        Self { ages: ages.collect(), clusters: clusters.collect(), jobs: jobs.collect() }
    }
}
