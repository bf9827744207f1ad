//! What a fleet's agents did, from their traces: coverage, promotion rates and savings, by cluster and by job.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use model::front::Objective;
use model::rates::{self, BINS};
use serde::Serialize;
use trace::check::{self, Kind};
use trace::{Basis, Entry, JobId, Merge};
use units::RatioPpm;

use super::timeline::{Sums, Timeline};

/// The most jobs that are listed. More of them count in the sums of their cluster and of the fleet.
pub(crate) const JOBS_MAX: usize = 20_000;
/// The most clusters that are shown. Jobs of more of them count in the fleet's sums.
pub(crate) const CLUSTERS_MAX: usize = 256;
/// Steps of a cluster's series: 42 days of hours.
const STEPS_MAX: u64 = 1_024;
/// Steps of a job's series: those of all listed jobs take 100 MB at most.
const JOB_STEPS_MAX: u64 = 96;
/// The longest name in the list, in characters; a job's own page has all of it.
const NAME_MAX: usize = 160;

/// Promotion rates, counted in the model's bins.
#[derive(Clone, Debug)]
struct Rates(Vec<u64>);

impl Rates {
    fn new() -> Self {
        Self(vec![0; BINS])
    }

    /// The rate at or below which this share of the counted entries lies; `None` if none was counted or it is unbounded.
    fn at(&self, share: RatioPpm) -> Option<f64> {
        rates::percentile(&self.0, share).map(rates::upper_edge).filter(|rate| rate.is_finite())
    }

    fn counted(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// A share of the entries and the promotion rate at or below which they lie.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct RatePoint {
    pub(crate) share_ratio: f64,
    /// `null` if unbounded: promotions without a working set.
    pub(crate) rate_ratio_per_min: Option<f64>,
}

/// The sums of a cluster or of the fleet.
#[derive(Clone, Debug)]
struct Part {
    jobs: u64,
    machines: u64,
    sums: Sums,
    rates: Rates,
    timeline: Timeline,
}

impl Part {
    fn new() -> Self {
        Self { jobs: 0, machines: 0, sums: Sums::default(), rates: Rates::new(), timeline: Timeline::new(STEPS_MAX) }
    }

    fn add(&mut self, step: &Step) {
        self.sums += step.sums;
        self.timeline.add(step.unix_ms, step.sums);
        if let Some(bin) = step.bin {
            self.rates.0[bin] += 1;
        }
    }
}

/// What one entry adds.
struct Step {
    unix_ms: u64,
    sums: Sums,
    /// Bin of its promotion rate; `None` without far memory.
    bin: Option<usize>,
}

#[expect(clippy::cast_precision_loss, reason = "shown to people")]
fn step(entry: &Entry, basis: &Basis) -> Step {
    let figures = &entry.figures;
    let seconds = figures.duration_ms.0 as f64 / 1e3;
    let cold = basis.page_bytes.saturating_mul(entry.cold_pages.iter().skip(1).fold(0, |sum: u64, &pages| sum.saturating_add(pages)));
    let far = figures.zswap_stored_bytes.0 as f64 + figures.swap_bytes.0 as f64;
    let saved = far + figures.file_out_bytes.0 as f64 + figures.slow_node_bytes.0 as f64 - figures.zswap_pool_bytes.0 as f64;
    let bin = (figures.far_periods > 0).then(|| {
        let working_set = figures.working_set_bytes.0 / basis.page_bytes.0.max(1);
        rates::bin(figures.promoted_pages.0, working_set, figures.duration_ms)
    });
    let memory = figures.memory_bytes.0 as f64 * seconds;
    let sums = Sums { seconds, memory, cold: cold.0 as f64 * seconds, far: far * seconds, saved: saved * seconds };
    // An entry belongs to the time of its middle.
    Step { unix_ms: figures.start_unix_ms.0.saturating_add(figures.duration_ms.0 / 2), sums, bin }
}

/// One lifetime of a job.
#[derive(Clone, Debug)]
struct Job {
    id: JobId,
    /// `None` beyond [`CLUSTERS_MAX`].
    cluster: Option<usize>,
    class: String,
    sums: Sums,
    /// At the objective's percentile of its entries with far memory.
    rate: Option<f64>,
    timeline: Timeline,
}

/// What the agents of a fleet did.
#[derive(Debug)]
pub(crate) struct Fleet {
    objective: Objective,
    price_per_gib: Option<f64>,
    begin_ms: u64,
    end_ms: u64,
    entries: u64,
    whole: Part,
    clusters: Vec<(String, Part)>,
    jobs: Vec<Job>,
    /// Clusters beyond [`CLUSTERS_MAX`].
    clusters_left_out: u64,
}

/// Adds up a sorted stream of entries.
struct Collector {
    fleet: Fleet,
    basis: Basis,
    /// The job that is being read, with its rates by bin.
    current: Option<(Job, BTreeMap<usize, u64>)>,
}

impl Fleet {
    /// Reads the traces of these local files.
    pub(crate) fn read(paths: &[PathBuf], objective: Objective, price_per_gib: Option<f64>) -> Result<Self> {
        refuse_compacted(paths)?;
        let mut merge = Merge::of(paths.iter().cloned())?;
        let basis = merge.basis().context("no trace")?;
        let fleet = Self {
            objective,
            price_per_gib,
            begin_ms: u64::MAX,
            end_ms: 0,
            entries: 0,
            whole: Part::new(),
            clusters: Vec::new(),
            jobs: Vec::new(),
            clusters_left_out: 0,
        };
        let mut collector = Collector { fleet, basis, current: None };
        merge.try_for_each(|entry| entry.map(|entry| collector.add(&entry)))?;
        collector.finish_job(None);
        Ok(collector.fleet)
    }
}

/// A compacted file has histograms for the model, and nothing of what agents did.
fn refuse_compacted(paths: &[PathBuf]) -> Result<()> {
    let compacted = |path: &&PathBuf| matches!(check::open(path), Ok(Kind::Compacted(_)));
    if let Some(path) = paths.iter().find(compacted) {
        bail!("{} is compacted: it has ages for the model, but not what agents did; name the traces it was made from", path.display());
    }
    Ok(())
}

impl Collector {
    fn add(&mut self, entry: &Entry) {
        if self.current.as_ref().is_none_or(|(job, _)| job.id != entry.id) {
            self.finish_job(Some(&entry.id));
            let timeline = Timeline::new(JOB_STEPS_MAX);
            let shown = self.fleet.clusters.last().is_some_and(|(name, _)| *name == entry.id.cluster);
            let cluster = self.fleet.clusters.len().checked_sub(1).filter(|_| shown);
            let job = Job { id: entry.id.clone(), cluster, class: String::new(), sums: Sums::default(), rate: None, timeline };
            self.current = Some((job, BTreeMap::new()));
        }
        let step = step(entry, &self.basis);
        let fleet = &mut self.fleet;
        fleet.entries += 1;
        fleet.begin_ms = fleet.begin_ms.min(entry.figures.start_unix_ms.0);
        fleet.end_ms = fleet.end_ms.max(entry.figures.start_unix_ms.0.saturating_add(entry.figures.duration_ms.0));
        fleet.whole.add(&step);
        if let Some((_, part)) = fleet.clusters.last_mut().filter(|(name, _)| *name == entry.id.cluster) {
            part.add(&step);
        }
        if let Some((job, rates)) = &mut self.current {
            job.class.clone_from(&entry.labels.class);
            job.sums += step.sums;
            job.timeline.add(step.unix_ms, step.sums);
            if let Some(bin) = step.bin {
                *rates.entry(bin).or_default() += 1;
            }
        }
    }

    /// Stores the job that was read, and opens the cluster of the next one. Jobs come sorted by cluster, then by machine.
    fn finish_job(&mut self, next: Option<&JobId>) {
        let before = self.current.take();
        let last = before.as_ref().map(|(job, _)| (job.id.cluster.clone(), job.id.machine.clone()));
        let fleet = &mut self.fleet;
        if let Some((mut job, rates)) = before {
            let mut bins = Rates::new();
            rates.into_iter().for_each(|(bin, count)| bins.0[bin] = count);
            job.rate = bins.at(fleet.objective.percentile);
            if fleet.jobs.len() < JOBS_MAX {
                fleet.jobs.push(job);
            }
        }
        let Some(next) = next else { return };
        let new_cluster = last.as_ref().is_none_or(|(cluster, _)| *cluster != next.cluster);
        let new_machine = new_cluster || last.is_none_or(|(_, machine)| machine != next.machine);
        if new_cluster && fleet.clusters.len() < CLUSTERS_MAX {
            fleet.clusters.push((next.cluster.clone(), Part::new()));
        } else if new_cluster {
            fleet.clusters_left_out += 1;
        }
        fleet.whole.jobs += 1;
        fleet.whole.machines += u64::from(new_machine);
        if let Some((_, part)) = fleet.clusters.last_mut().filter(|(name, _)| *name == next.cluster) {
            part.jobs += 1;
            part.machines += u64::from(new_machine);
        }
    }
}

/// The sums of a cluster or of the fleet, as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct PartRow<'a> {
    pub(crate) name: &'a str,
    pub(crate) jobs: u64,
    pub(crate) machines: u64,
    /// Means over the time of the traces.
    pub(crate) memory_bytes: f64,
    pub(crate) cold_bytes: f64,
    pub(crate) far_bytes: f64,
    pub(crate) saved_bytes: f64,
    pub(crate) saved_worth: Option<f64>,
    pub(crate) coverage_ratio: Option<f64>,
    /// Entries with far memory: those that the objective is about.
    pub(crate) entries_on: u64,
    /// At the objective's percentile of these.
    pub(crate) rate_ratio_per_min: Option<f64>,
    /// `null` without far memory.
    pub(crate) holds: Option<bool>,
}

/// The fleet's own figures and those of its clusters.
#[derive(Debug, Serialize)]
pub(crate) struct Summary<'a> {
    pub(crate) begins_unix_seconds: u64,
    pub(crate) ends_unix_seconds: u64,
    pub(crate) entries: u64,
    pub(crate) objective_ratio_per_min: f64,
    pub(crate) objective_percentile_ratio: f64,
    pub(crate) price_per_gib: Option<f64>,
    pub(crate) fleet: PartRow<'a>,
    pub(crate) clusters: Vec<PartRow<'a>>,
    pub(crate) clusters_left_out: u64,
    pub(crate) jobs_listed: usize,
}

/// A series of a cluster, the fleet or a job. Columns of equal length.
#[derive(Debug, Serialize)]
pub(crate) struct Series {
    pub(crate) step_seconds: u64,
    pub(crate) unix_seconds: Vec<u64>,
    pub(crate) memory_bytes: Vec<f64>,
    pub(crate) cold_bytes: Vec<f64>,
    pub(crate) far_bytes: Vec<f64>,
    pub(crate) saved_bytes: Vec<f64>,
    pub(crate) coverage_ratio: Vec<Option<f64>>,
}

/// A cluster's or the fleet's series and promotion rates.
#[derive(Debug, Serialize)]
pub(crate) struct PartDetail {
    pub(crate) series: Series,
    /// Cumulative distribution of the promotion rates of entries with far memory.
    pub(crate) rates: Vec<RatePoint>,
}

/// The jobs as columns of equal length, in the order of `/api/fleet/job`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct JobColumns {
    pub(crate) job: Vec<String>,
    /// Index of the cluster in the summary; `null` beyond the clusters that are shown.
    pub(crate) cluster: Vec<Option<usize>>,
    pub(crate) machine: Vec<String>,
    pub(crate) class: Vec<String>,
    pub(crate) seconds: Vec<f64>,
    pub(crate) memory_bytes: Vec<f64>,
    pub(crate) far_bytes: Vec<f64>,
    pub(crate) saved_bytes: Vec<f64>,
    pub(crate) coverage_ratio: Vec<Option<f64>>,
    pub(crate) rate_ratio_per_min: Vec<Option<f64>>,
    /// Jobs that are not in this list.
    pub(crate) left_out: u64,
}

/// One job.
#[derive(Debug, Serialize)]
pub(crate) struct JobDetail<'a> {
    #[serde(flatten)]
    pub(crate) id: &'a JobId,
    pub(crate) class: &'a str,
    pub(crate) series: Series,
}

/// A name of bounded length: its end distinguishes cgroups better than its beginning.
fn shortened(name: &str) -> String {
    let length = name.chars().count();
    if length <= NAME_MAX { name.to_owned() } else { format!("…{}", name.chars().skip(length - NAME_MAX + 1).collect::<String>()) }
}

impl Fleet {
    #[expect(clippy::cast_precision_loss, reason = "shown to people")]
    fn row<'a>(&self, name: &'a str, part: &Part) -> PartRow<'a> {
        let span = self.end_ms.saturating_sub(self.begin_ms).max(1) as f64 / 1e3;
        let saved_bytes = part.sums.saved / span;
        let counted = part.rates.counted();
        let rate = rates::percentile(&part.rates.0, self.objective.percentile).map(rates::upper_edge);
        PartRow {
            name,
            jobs: part.jobs,
            machines: part.machines,
            memory_bytes: part.sums.memory / span,
            cold_bytes: part.sums.cold / span,
            far_bytes: part.sums.far / span,
            saved_bytes,
            saved_worth: self.price_per_gib.map(|price| saved_bytes / f64::from(1 << 30) * price),
            coverage_ratio: part.sums.coverage(),
            entries_on: counted,
            rate_ratio_per_min: rate.filter(|rate| rate.is_finite()),
            holds: rate.map(|rate| rate <= self.objective.rate_max.as_f64()),
        }
    }

    pub(crate) fn summary(&self) -> Summary<'_> {
        Summary {
            begins_unix_seconds: self.begin_ms.min(self.end_ms) / 1_000,
            ends_unix_seconds: self.end_ms / 1_000,
            entries: self.entries,
            objective_ratio_per_min: self.objective.rate_max.as_f64(),
            objective_percentile_ratio: self.objective.percentile.as_f64(),
            price_per_gib: self.price_per_gib,
            fleet: self.row("", &self.whole),
            clusters: self.clusters.iter().map(|(name, part)| self.row(name, part)).collect(),
            clusters_left_out: self.clusters_left_out,
            jobs_listed: self.jobs.len(),
        }
    }

    /// The series of a cluster by its index, or of the fleet.
    pub(crate) fn part(&self, cluster: Option<usize>) -> Option<PartDetail> {
        let part = match cluster {
            None => &self.whole,
            Some(index) => &self.clusters.get(index)?.1,
        };
        Some(PartDetail { series: self.series(&part.timeline), rates: distribution(&part.rates) })
    }

    pub(crate) fn jobs(&self) -> JobColumns {
        let mut columns = JobColumns { left_out: self.whole.jobs - self.jobs.len() as u64, ..JobColumns::default() };
        for job in &self.jobs {
            let mean = |sum: f64| sum / job.sums.seconds.max(1e-3);
            columns.job.push(shortened(&job.id.job));
            columns.cluster.push(job.cluster);
            columns.machine.push(shortened(&job.id.machine));
            columns.class.push(shortened(&job.class));
            columns.seconds.push(job.sums.seconds.round());
            columns.memory_bytes.push(mean(job.sums.memory).round());
            columns.far_bytes.push(mean(job.sums.far).round());
            columns.saved_bytes.push(mean(job.sums.saved).round());
            columns.coverage_ratio.push(job.sums.coverage());
            columns.rate_ratio_per_min.push(job.rate);
        }
        columns
    }

    pub(crate) fn job(&self, index: usize) -> Option<JobDetail<'_>> {
        let job = self.jobs.get(index)?;
        Some(JobDetail { id: &job.id, class: &job.class, series: self.series(&job.timeline) })
    }

    /// Means over each step. The first and the last step may lie partly outside of the traces' time.
    #[expect(clippy::cast_precision_loss, reason = "shown to people")]
    fn series(&self, timeline: &Timeline) -> Series {
        let step_seconds = timeline.step_seconds();
        let mut series = Series {
            step_seconds,
            unix_seconds: Vec::new(),
            memory_bytes: Vec::new(),
            cold_bytes: Vec::new(),
            far_bytes: Vec::new(),
            saved_bytes: Vec::new(),
            coverage_ratio: Vec::new(),
        };
        for (start, sums) in timeline.steps() {
            let (from, to) = (start.max(self.begin_ms / 1_000), (start + step_seconds).min(self.end_ms.div_ceil(1_000)));
            let covered = to.saturating_sub(from).max(1) as f64;
            series.unix_seconds.push(start);
            series.memory_bytes.push((sums.memory / covered).round());
            series.cold_bytes.push((sums.cold / covered).round());
            series.far_bytes.push((sums.far / covered).round());
            series.saved_bytes.push((sums.saved / covered).round());
            series.coverage_ratio.push(sums.coverage());
        }
        series
    }
}

/// The cumulative distribution: every half percent, and the tail in finer steps.
fn distribution(rates: &Rates) -> Vec<RatePoint> {
    if rates.counted() == 0 {
        return Vec::new();
    }
    let shares = (1..=199u32).map(|step| step * 5_000).chain([996_000, 997_000, 998_000, 999_000, 999_500, 999_900, 1_000_000]);
    let point = |share| RatePoint { share_ratio: RatioPpm(share).as_f64(), rate_ratio_per_min: rates.at(RatioPpm(share)) };
    shares.map(point).collect()
}
