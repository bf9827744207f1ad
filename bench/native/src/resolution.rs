//! The effect of longer entries: the same jobs, replayed by single entries and by sums of several entries.

use std::num::NonZero;
use std::path::Path;

use agent::journal::{self, Record};
use anyhow::{Context, Result};
use model::generate::{ENTRY, Fleet};
use model::grid::{Grid, Setup};
use model::replay::Replay;
use model::series::Series;
use model::tally::{Tally, Total};
use policy::thresholds::Thresholds;
use serde::Serialize;
use units::{Millis, RatioPpm};

/// Entries are sums of five control periods by default.
const SUMMED: NonZero<usize> = NonZero::<usize>::MIN.saturating_add(4);
/// Concurrent jobs of the generated fleet, and its days.
const JOBS: u64 = 240;
const DAYS: u32 = 7;
/// Percentile of the fleet's promotion rate (SDFM section 5.3).
const PERCENTILE: RatioPpm = RatioPpm(980_000);

/// One source of jobs at both resolutions.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    source: String,
    jobs: u64,
    entry_seconds: f64,
    fine: Outcome,
    summed: Outcome,
    /// Share of the summed entries at whose end both resolutions have the same threshold in effect.
    same_threshold_ratio: f64,
    /// Share with equal or adjacent thresholds.
    near_threshold_ratio: f64,
    /// Share in which the summed entries have the lower threshold, which stores more.
    lower_threshold_ratio: f64,
}

/// Result of one resolution.
#[derive(Debug, Serialize)]
struct Outcome {
    entries: u64,
    coverage_ratio: f64,
    /// Promotion rate at the 98th percentile of the entries with far memory; null if unbounded.
    rate_ratio_per_min: Option<f64>,
}

impl Outcome {
    fn of(total: &Total) -> Self {
        let rate = total.rates.on.filter(|rate| rate.is_finite());
        Self { entries: total.base.entries, coverage_ratio: total.coverage(), rate_ratio_per_min: rate }
    }
}

/// Replays of a source at both resolutions, with one pair of percentile and warm-up.
struct Both {
    grid: Grid,
    replay: Replay,
    thresholds: Thresholds,
    fine: Tally,
    summed: Tally,
    moments: u64,
    same: u64,
    near: u64,
    lower: u64,
}

impl Both {
    fn new(setup: &Setup, percentile: RatioPpm, warmup: Millis, thresholds: Thresholds) -> Result<Self> {
        let grid = Grid::new(vec![percentile], vec![warmup])?;
        let replay = Replay::new(&grid, setup, &thresholds).context("no threshold is old enough")?;
        let (fine, summed) = (Tally::new(&grid), Tally::new(&grid));
        Ok(Self { grid, replay, thresholds, fine, summed, moments: 0, same: 0, near: 0, lower: 0 })
    }

    fn job(&mut self, series: &Series) -> Result<()> {
        let none = self.thresholds.len();
        let mut decided = |series: &Series, tally: &mut Tally| {
            let mut list = Vec::with_capacity(series.len());
            self.replay.job_observed(series, tally, &mut |row, spans, _| {
                list.push((row.age_ms, spans.first().map_or(none, |span| span.threshold)))
            });
            list
        };
        let fine = decided(series, &mut self.fine);
        let summed = decided(&series.summed(SUMMED)?, &mut self.summed);
        for (age_ms, threshold) in summed {
            let at = fine.partition_point(|&(fine_ms, _)| fine_ms <= age_ms);
            let Some(&(_, then)) = at.checked_sub(1).and_then(|at| fine.get(at)) else { continue };
            self.moments += 1;
            self.same += u64::from(threshold == then);
            self.near += u64::from(threshold.abs_diff(then) <= 1);
            self.lower += u64::from(threshold < then);
        }
        Ok(())
    }

    fn difference(self, source: String, entry: Millis) -> Result<Difference> {
        let one = |tally: Tally| tally.finish(&self.grid, PERCENTILE).into_iter().next().context("the grid has one pair");
        let (fine, summed) = (one(self.fine)?, one(self.summed)?);
        let share = |count: u64| model::tally::ratio(u128::from(count), u128::from(self.moments));
        Ok(Difference {
            source,
            jobs: fine.base.jobs,
            entry_seconds: model::tally::ratio(u128::from(entry.0), 1_000),
            fine: Outcome::of(&fine),
            summed: Outcome::of(&summed),
            same_threshold_ratio: share(self.same),
            near_threshold_ratio: share(self.near),
            lower_threshold_ratio: share(self.lower),
        })
    }
}

/// Compares a journal's periods, with the parameters of its first job, and a generated fleet, with the defaults.
///
/// # Errors
/// The journal cannot be read.
pub(crate) fn bench(path: &Path) -> Result<Vec<Difference>> {
    Ok(vec![of_journal(path)?, generated()?])
}

fn of_journal(path: &Path) -> Result<Difference> {
    let records = journal::read(path)?;
    let agent = records.iter().find_map(|record| if let Record::Agent(agent) = record { Some(agent) } else { None });
    let thresholds = agent.context("the journal has no thresholds")?.thresholds;
    let jobs = || records.iter().filter_map(|record| if let Record::Job(job) = record { Some(job) } else { None });
    let params = jobs().next().context("the journal has no job")?.params;
    let policy::cold_age::Params { promotion_rate_max, half_life_ms, spikes, bound, .. } = params;
    let setup = Setup { half_life_ms: Millis(half_life_ms.0), spikes, bound, ..Setup::new(promotion_rate_max) };
    let mut both = Both::new(&setup, params.percentile, Millis(params.warmup_ms.0), thresholds)?;
    let (mut done, mut periods, mut time_ms) = (Vec::new(), 0, 0);
    for job in jobs() {
        // A restarted agent records its jobs again.
        if done.contains(&(&job.job, job.id)) {
            continue;
        }
        done.push((&job.job, job.id));
        let mut series = Series::new(&thresholds);
        for record in &records {
            let Record::Period(period) = record else { continue };
            if (&period.job, period.id) == (&job.job, job.id) {
                let input = &period.input;
                series.push_histograms(input.job_age_ms, input.window_ms, &input.promotions, &input.cold)?;
                periods += 1;
                time_ms += input.window_ms.0;
            }
        }
        both.job(&series)?;
    }
    both.difference(format!("journal {}", path.display()), Millis(time_ms / u64::max(periods, 1)))
}

fn generated() -> Result<Difference> {
    let thresholds = Thresholds::log_spaced(32)?;
    let fleet = Fleet::new(1, JOBS, DAYS, thresholds);
    let mut both = Both::new(&Setup::new(RatioPpm(2_000)), RatioPpm(990_000), Millis(600_000), thresholds)?;
    let mut series = Series::new(&thresholds);
    for slot in 0..JOBS {
        let mut failed = None;
        fleet.slot(slot, &mut series, &mut |_, series| failed = failed.take().or(both.job(series).err()));
        failed.map_or(Ok(()), Err)?;
    }
    both.difference(format!("generated, seed 1, {JOBS} jobs at any time, {DAYS} days, entries of five minutes in place of periods"), ENTRY)
}
