//! One pair in detail, as `--detail` prints it.

use std::num::NonZero;

use anyhow::{Context, Result};
use config::Config;
use model::detail::Detail;
use model::fleet::Source;
use model::grid::Grid;
use policy::thresholds::Thresholds;
use serde::Serialize;
use units::RatioPpm;

/// The configured pair, by hour, machine and job.
#[derive(Debug, Serialize)]
pub(crate) struct Detailed {
    /// By cluster and hour.
    pub(crate) hours: Vec<HourRow>,
    /// By machine.
    pub(crate) machines: Vec<MachineRow>,
    /// Rate at the objective's percentile, by day.
    pub(crate) days: Vec<DayRow>,
    /// Rate by percentile of the jobs.
    pub(crate) jobs: Vec<JobsRow>,
}

/// Coverage over time (SDFM figure 5).
#[derive(Debug, Serialize)]
pub(crate) struct HourRow {
    pub(crate) cluster: String,
    /// Start of the hour.
    pub(crate) unix_seconds: u64,
    pub(crate) coverage_ratio: f64,
    /// Weight of the row: cold pages, mean over the hour.
    pub(crate) cold_pages: f64,
}

/// Coverage by machine (SDFM figure 6).
#[derive(Debug, Serialize)]
pub(crate) struct MachineRow {
    pub(crate) cluster: String,
    pub(crate) machine: String,
    pub(crate) coverage_ratio: f64,
}

/// Promotion rate of the entries of a day, in UTC.
#[derive(Debug, Serialize)]
pub(crate) struct DayRow {
    /// Start of the day.
    pub(crate) unix_seconds: u64,
    /// At the objective's percentile of the day's entries with far memory; `null` if unbounded.
    pub(crate) rate_ratio_per_min: Option<f64>,
}

/// Promotion rate by job (SDFM figure 7).
#[derive(Debug, Serialize)]
pub(crate) struct JobsRow {
    pub(crate) jobs_ratio: f64,
    /// `null` if unbounded: promotions without a working set.
    pub(crate) rate_ratio_per_min: Option<f64>,
}

/// Replays a source under the configured parameters only.
pub(crate) fn detailed<S: Source<Error: std::error::Error + Sync + 'static>>(
    config: &Config,
    source: &S,
    thresholds: &Thresholds,
    threads: NonZero<usize>,
    objective_percentile: RatioPpm,
) -> Result<Detailed> {
    let cold_age = &config.cold_age;
    let grid = Grid::new(vec![cold_age.percentile], vec![cold_age.warmup.into()])?;
    let setup = super::configured(config);
    let open = || Detail::new(&grid, &setup, thresholds);
    let detail = super::read(source, &model::fleet::all(source), threads, open)?.context("no account was kept")?;
    let hours = detail.hours.iter().flat_map(|(cluster, hours)| {
        hours.iter().map(|(hour, share)| HourRow {
            cluster: cluster.clone(),
            unix_seconds: hour * 3_600,
            coverage_ratio: share.coverage(),
            cold_pages: model::tally::ratio(share.cold_page_ms, 3_600_000),
        })
    });
    let machines = detail.machines.iter().map(|((cluster, machine), share)| MachineRow {
        cluster: cluster.clone(),
        machine: machine.clone(),
        coverage_ratio: share.coverage(),
    });
    let finite = |rate: Option<f64>| rate.filter(|rate| rate.is_finite());
    let days = detail.rates_of_days(objective_percentile);
    let days = days.map(|(day, rate)| DayRow { unix_seconds: day * 86_400, rate_ratio_per_min: finite(rate) });
    let jobs = (1..=100).map(|percent| {
        let share = RatioPpm(percent * 10_000);
        JobsRow { jobs_ratio: share.as_f64(), rate_ratio_per_min: finite(detail.rate_of_jobs(share)) }
    });
    Ok(Detailed { hours: hours.collect(), machines: machines.collect(), days: days.collect(), jobs: jobs.collect() })
}
