//! The fleet model compared with only reading the same memory.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hint::black_box;
use std::num::NonZero;

use anyhow::{Context, Result};
use model::fleet::{Account, By, Label, Model, Source, all, run};
use model::generate::Fleet;
use model::grid::{Grid, Setup};
use model::series::Series;
use policy::thresholds::Thresholds;
use serde::Serialize;
use units::{Millis, RatioPpm};

use crate::machine::Machine;
use crate::measure::{self, Effort};

mod forms;

/// Concurrent jobs of the fleet held in memory: a week of them is some 110 MB, which exceeds all caches.
const JOBS: u64 = 200;
const DAYS: u32 = 7;
/// Fleet sizes for the growth of the cost, one day of each.
const GROWTH: [u64; 3] = [1_000, 10_000, 100_000];

/// The largest grid measured: percentiles x warm-ups.
const LARGEST: (u32, u32) = (240, 200);

/// Figures of `make bench-model`. All are per second of CPU time, i.e. per core, except where the name says otherwise.
#[derive(Debug, Serialize)]
pub(crate) struct ModelReport {
    machine: Machine,
    entries: u64,
    bytes_per_entry: u64,
    /// 10 percentiles and 10 warm-ups, with decoded entries in memory.
    entries_per_second_per_core_memory: f64,
    /// One pair of percentile and warm-up.
    entries_per_second_per_core_memory_one_pair: f64,
    /// 10 by 10, from every form on disk.
    #[serde(flatten)]
    forms: forms::Forms,
    /// Entries per second of summing the same columns.
    bound: f64,
    /// Time of 10 by 10 in memory relative to the bound, measured alternately.
    read_bound_ratio: f64,
    /// Time for 10 x 10 pairs relative to one pair.
    cost_ratio_100_configs: f64,
    /// Time for [`LARGEST`] relative to one pair.
    cost_ratio_48000_configs: f64,
    /// The same for other grids: percentiles x warm-ups.
    cost_ratios: BTreeMap<String, f64>,
    /// Generating and replaying a day of fleets, 10 x 10 pairs, on one thread.
    growth: Vec<Growth>,
}

/// One size of fleet.
#[derive(Debug, Serialize)]
struct Growth {
    jobs: u64,
    entries: u64,
    processor_seconds_per_million_entries: f64,
    /// Peak memory of the process so far.
    peak_bytes: u64,
}

/// Jobs held in memory.
#[derive(Default)]
struct Held(Vec<(Label, Series)>);

impl Account for Held {
    fn job(&mut self, label: &Label, series: &Series) {
        self.0.push((label.clone(), series.clone()));
    }

    fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

impl Source for Held {
    type Error = Infallible;

    fn pieces(&self) -> usize {
        1
    }

    fn read(&self, _: usize, each: &mut dyn FnMut(&Label, &Series)) -> Result<(), Infallible> {
        self.0.iter().for_each(|(label, series)| each(label, series));
        Ok(())
    }
}

/// Returns a grid of percentiles from 90 % and warm-ups from zero to four hours.
fn grid(percentiles: u32, warmups: u32) -> Result<Grid> {
    let ks = (0..percentiles).map(|k| RatioPpm(900_000 + k * 100_000 / percentiles.max(1)));
    let ss = (0..warmups).map(|s| Millis(u64::from(s) * 14_400_000 / u64::from(warmups.max(1))));
    Ok(Grid::new(ks.collect(), ss.collect())?)
}

const SETUPS: [Setup; 1] = [Setup::new(RatioPpm(2_000))];

/// The objective's share of the entries (SDFM section 5.3).
const SHARE: RatioPpm = RatioPpm(980_000);

/// Replays a source on this thread and computes the totals of every pair; returns the number of entries.
fn replay<S: Source<Error: std::fmt::Debug>>(source: &S, grid: &Grid, thresholds: &Thresholds) -> u64 {
    let open = || Model::new(grid, &SETUPS, thresholds, By::Fleet).ok();
    let model = run(source, &all(source), NonZero::<usize>::MIN, open, |_| {}).ok().flatten();
    let Some(tally) = model.and_then(|model| model.whole().into_iter().next()) else { return 0 };
    black_box(tally.finish(grid, SHARE)).first().map_or(0, |total| total.base.entries)
}

/// Measures the model.
///
/// # Errors
/// The kernel does not report CPU time, or there is not enough space for the trace.
pub(crate) fn bench(machine: Machine, effort: Effort) -> Result<ModelReport> {
    let thresholds = Thresholds::log_spaced(32)?;
    let fleet = Fleet::new(1, JOBS, DAYS, thresholds);
    let Ok(held) = run(&fleet, &all(&fleet), NonZero::<usize>::MIN, Held::default, |_| {});
    let (entries, bytes) = held.0.iter().fold((0u64, 0u64), |sum, (_, series)| (sum.0 + series.len() as u64, sum.1 + series.size() as u64));
    let hundred = grid(10, 10)?;
    let mut sum_up = || {
        let mut sum = 0u64;
        for (_, series) in &held.0 {
            sum = sum.wrapping_add(black_box(series.sums()).iter().map(|&n| u64::from(n)).sum::<u64>());
        }
        black_box(sum);
        entries
    };
    eprintln!("measuring {entries} entries in memory");
    let (memory, bound, speed) = measure::compare(effort, &mut || replay(&held, &hundred, &thresholds), &mut sum_up)?;
    let one = grid(1, 1)?;
    let (mut cost_ratios, mut rates_of_one) = (BTreeMap::new(), Vec::new());
    for (k, s) in [(10, 10), (100, 1), (1, 100), (100, 100), LARGEST] {
        eprintln!("measuring {k} x {s} pairs");
        let many = grid(k, s)?;
        let (_, rate, speed) =
            measure::compare(effort, &mut || replay(&held, &many, &thresholds), &mut || replay(&held, &one, &thresholds))?;
        cost_ratios.insert(format!("{k}x{s}"), 1.0 / speed);
        rates_of_one.push(rate);
    }
    drop(held);
    let forms = forms::bench(effort, &fleet, &hundred)?;
    let growth = GROWTH.iter().map(|&jobs| grow(jobs, &hundred, thresholds)).collect::<Result<_>>()?;
    let cost_ratio = |(k, s): (u32, u32)| cost_ratios.get(&format!("{k}x{s}")).copied().unwrap_or_default();
    Ok(ModelReport {
        machine,
        entries,
        bytes_per_entry: bytes / entries.max(1),
        entries_per_second_per_core_memory: memory,
        entries_per_second_per_core_memory_one_pair: rates_of_one.first().copied().unwrap_or_default(),
        forms,
        bound,
        read_bound_ratio: 1.0 / speed,
        cost_ratio_100_configs: cost_ratio((10, 10)),
        cost_ratio_48000_configs: cost_ratio(LARGEST),
        cost_ratios,
        growth,
    })
}

/// Generates and replays one day of a fleet of this size.
fn grow(jobs: u64, grid: &Grid, thresholds: Thresholds) -> Result<Growth> {
    eprintln!("generating and replaying {jobs} jobs");
    let before = kernel::process::own_cpu_time()?;
    let entries = replay(&Fleet::new(1, jobs, 1, thresholds), grid, &thresholds);
    let spent = kernel::process::own_cpu_time()?.saturating_sub(before);
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let millions = entries as f64 / 1e6;
    Ok(Growth { jobs, entries, processor_seconds_per_million_entries: spent.as_secs_f64() / millions, peak_bytes: peak()? })
}

/// Returns `VmHWM` of `/proc/self/status`: the peak memory of this process, in bytes.
fn peak() -> Result<u64> {
    let path = kernel::Roots::host().proc.join("self/status");
    let status = kernel::file::read(&path, kernel::file::LARGE)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("/proc/self/status has no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim_end().parse().context("VmHWM is not a number")?;
    Ok(kib * 1024)
}
