//! What the fleet would save under other parameters: every combination of percentile K, warm-up S and objective P, replayed once.
//!
//! The model replays all percentiles and warm-ups in one pass, and one more limit costs one more controller in the same pass. The
//! page then selects among the outcomes and asks nothing: a slider answers at once, however large the fleet is.

use std::num::NonZero;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use config::Config;
use model::fleet::{self, By, Model};
use model::front::{self, Objective};
use model::grid::{Grid, Setup};
use model::tally::Total;
use model::traces::Traces;
use serde::Serialize;
use units::{Millis, RatioPpm};

use crate::fleet::model::configured;
use crate::fleet::model::report::Pair;

/// Percentiles K beside the configured one.
const PERCENTILES: [u32; 12] =
    [500_000, 700_000, 800_000, 900_000, 940_000, 960_000, 970_000, 980_000, 985_000, 990_000, 995_000, 1_000_000];
/// Warm-ups S beside the configured one, in minutes.
const WARMUPS_MIN: [u64; 8] = [0, 5, 10, 20, 30, 60, 120, 240];
/// Objectives P beside the configured one.
const OBJECTIVES: [u32; 8] = [200, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000];

/// The outcomes of all combinations.
#[derive(Debug, Serialize)]
pub(crate) struct WhatIf {
    pub(crate) jobs: u64,
    pub(crate) entries: u64,
    /// Mean over the time of the traces.
    pub(crate) used_bytes: f64,
    pub(crate) percentiles_ratio: Vec<f64>,
    pub(crate) warmups_seconds: Vec<u64>,
    pub(crate) objectives_ratio_per_min: Vec<f64>,
    /// The configured objective, percentile and warm-up, as indices.
    pub(crate) configured: [usize; 3],
    pub(crate) objective_percentile_ratio: f64,
    /// By objective, then percentile, then warm-up: as `thermocline model --format json` prints them.
    pub(crate) pairs: Vec<Pair>,
    /// By objective: the index of the pair that stores most within it; `null` if none meets it.
    pub(crate) best: Vec<Option<usize>>,
}

/// Replays the traces of these local files under every combination.
pub(crate) fn replay(config: &Config, paths: &[PathBuf], percentile: RatioPpm, price_per_gib: Option<f64>) -> Result<WhatIf> {
    let traces = Traces::open(paths)?;
    let basis = *traces.basis();
    let cold_age = &config.cold_age;
    let percentiles = PERCENTILES.map(RatioPpm).into_iter().chain([cold_age.percentile]).collect();
    let warmups = WARMUPS_MIN.map(|minutes| Millis::seconds(minutes * 60)).into_iter().chain([cold_age.warmup.into()]).collect();
    let grid = Grid::new(percentiles, warmups)?;
    let mut objectives: Vec<RatioPpm> = OBJECTIVES.map(RatioPpm).into_iter().chain([cold_age.promotion_rate]).collect();
    objectives.sort_unstable();
    objectives.dedup();
    let setups: Vec<Setup> = objectives.iter().map(|&rate| Setup { promotion_rate_max: rate, ..configured(config) }).collect();
    let open = || Model::new(&grid, &setups, &basis.thresholds, By::Fleet);
    // The check is the same for every thread.
    let empty = open().map_err(|index| anyhow!("no threshold of the traces is as old as {}", setups[index]))?;
    let threads = std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    let model = fleet::run(&traces, &fleet::all(&traces), threads, || open().unwrap_or_else(|_| empty.clone()), |_| {})?;
    let tallies = model.whole();
    let base = tallies.first().map(|tally| tally.base).unwrap_or_default();
    let mut answer = WhatIf {
        jobs: base.jobs,
        entries: base.entries,
        used_bytes: model::tally::ratio(base.used_page_ms * u128::from(basis.page_bytes.0), u128::from(base.span().0)),
        percentiles_ratio: grid.percentiles().iter().map(|percentile| percentile.as_f64()).collect(),
        warmups_seconds: grid.warmups().iter().map(|warmup| warmup.0 / 1_000).collect(),
        objectives_ratio_per_min: objectives.iter().map(|objective| objective.as_f64()).collect(),
        configured: [
            index_of(&objectives, cold_age.promotion_rate)?,
            index_of(grid.percentiles(), cold_age.percentile)?,
            index_of(grid.warmups(), cold_age.warmup.into())?,
        ],
        objective_percentile_ratio: percentile.as_f64(),
        pairs: Vec::new(),
        best: Vec::new(),
    };
    for (tally, &rate_max) in tallies.into_iter().zip(&objectives) {
        let objective = Objective { percentile, rate_max };
        let totals = tally.finish(&grid, percentile);
        answer.best.push(best(&totals, &objective).map(|index| answer.pairs.len() + index));
        answer.pairs.extend(totals.iter().map(|total| Pair::new(total, &objective, basis.page_bytes, price_per_gib)));
    }
    Ok(answer)
}

/// The pair that stores most within the objective, of those that some entry measured.
fn best(totals: &[Total], objective: &Objective) -> Option<usize> {
    let measured: Vec<Total> = totals.iter().filter(|total| total.answers()).cloned().collect();
    let best = front::best(&measured, objective)?;
    totals.iter().position(|total| (total.percentile, total.warmup) == (best.percentile, best.warmup))
}

fn index_of<T: PartialEq + std::fmt::Debug>(values: &[T], value: T) -> Result<usize> {
    values.iter().position(|found| *found == value).with_context(|| format!("{value:?} is not in its own grid"))
}
