//! `thermocline model`: traces replayed under other parameters.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::model::coverage::Coverage;
use ::model::fleet::{self, By, Model, Named, Source};
use ::model::front::{self, Objective};
use ::model::generate::Fleet;
use ::model::generate::fit::{self, FitInput};
use ::model::generate::resample::{Originals, ResampledFleet};
use ::model::grid::{Grid, Setup};
use ::model::partial::{Partial, Setting};
use ::model::resume::{self, Keeper, SavedAccount};
use ::model::survey::Survey;
use ::model::tally::{Tally, Total, ratio};
use ::model::traces::Traces;
use anyhow::{Context, Result, anyhow, bail};
use config::{ColdAge, Config};
use policy::thresholds::Thresholds;
use trace::Basis;
use units::{Age, Bytes, Millis, RatioPpm, millis};

use self::ahead::read;
use self::report::{Answer, FleetAsItIs, Group, Pair, Report, Written};
use crate::fleet::traces::inputs::{Inputs, Local};
use crate::options::Format;
use crate::output::print;
use crate::progress::progress;

mod agents;
mod ahead;
pub(crate) mod arguments;
mod detail;
pub(crate) mod report;
mod resolution;
pub(crate) mod text;
mod tiers;
mod waits;

/// `thermocline model`.
pub(crate) fn model(config: &Config, format: Format, arguments: &arguments::Model) -> Result<()> {
    let threads = match arguments.threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN),
    };
    let found = if !arguments.merge.is_empty() {
        Some((Partial::merged(&arguments.merge)?, Extra::default()))
    } else if let Some(jobs) = arguments.generate {
        let thresholds = Thresholds::log_spaced(usize::try_from(config.cold_age.thresholds)?)?;
        let fleet = Fleet::new(arguments.seed, jobs, arguments.days, thresholds).of_character(arguments.character, arguments.bursts);
        if let Some(directory) = &arguments.record {
            return record(&fleet, directory, threads, format);
        }
        modelled(config, arguments, &fleet, fleet.basis(), threads, format)?
    } else {
        let given = inputs(arguments)?;
        // The copies exist as long as this binding.
        let (paths, _copies) = bring(arguments, given)?;
        let traces = match &arguments.groups {
            Some(groups) => Traces::open_groups(&paths, groups.clone())?,
            None => Traces::open(&paths)?,
        };
        if let Some(workers) = arguments.plan {
            let shares = report::shares(&traces.shares(workers));
            return print(format, &shares, || text::shares(&shares));
        }
        let basis = *traces.basis();
        match arguments.resample {
            None => modelled(config, arguments, &traces, basis, threads, format)?,
            Some(jobs) => {
                let mut originals = read(&traces, &fleet::all(&traces), threads, Originals::default)?;
                if let Some(days) = arguments.worst_days {
                    originals.keep_worst_days(days.get());
                }
                let fleet = ResampledFleet::new(originals, basis.thresholds, arguments.seed, jobs, arguments.days);
                let fleet = fleet.context("the traces hold no job to resample")?;
                modelled(config, arguments, &fleet, basis, threads, format)?
            }
        }
    };
    // Other policies, and an estimate, have printed their own answer.
    let Some((partial, extra)) = found else { return Ok(()) };
    match &arguments.tally {
        Some(file) => {
            partial.write(file)?;
            let written = Written::new(&partial, file)?;
            print(format, &written, || text::written(&written))
        }
        None => {
            let mut report = settle(config, arguments, &partial)?;
            (report.detail, report.agents) = (extra.detail, extra.agents);
            print(format, &report, || text::report(&report))
        }
    }
}

/// Local paths of all sources, and the copies that were fetched.
fn bring(arguments: &arguments::Model, given: Vec<String>) -> Result<(Vec<PathBuf>, Vec<Local>)> {
    let (urls, paths): (Vec<_>, Vec<_>) = given.into_iter().partition(|given| given.contains("://"));
    if urls.is_empty() {
        return Ok((paths.into_iter().map(PathBuf::from).collect(), Vec::new()));
    }
    if arguments.plan.is_some() || arguments.resume.is_some() {
        let url = &urls[0];
        bail!(
            "--plan and --resume need files that stay where they are; make one of {url} with `thermocline trace compact {url} --to FILE`"
        );
    }
    let inputs = Inputs::find(&urls)?;
    let size = inputs.files.iter().fold(Bytes::ZERO, |size, file| size + Bytes(file.bytes));
    log::info!("{} files are read from {}, {size}", inputs.files.len(), urls.join(", "));
    let copies = inputs.all_local()?;
    let paths = paths.into_iter().map(PathBuf::from).chain(copies.iter().map(|copy| copy.path().to_owned())).collect();
    Ok((paths, copies))
}

/// Replays the grid of K and S over a source, and the configured pair in detail if requested; `None` for other policies and an
/// estimate, which print their own answer.
fn modelled<S: Named<Error: std::error::Error + Sync + 'static>>(
    config: &Config,
    arguments: &arguments::Model,
    source: &S,
    basis: Basis,
    threads: NonZero<usize>,
    format: Format,
) -> Result<Option<(Partial, Extra)>> {
    if arguments.policy != arguments::Modelled::ColdAge {
        waits::model(config, arguments, source, basis.page_bytes, threads, format)?;
        return Ok(None);
    }
    let detailed = || detail::detailed(config, source, &basis.thresholds, threads, arguments.objective_percentile);
    let detail = arguments.detail.then(detailed).transpose()?;
    let as_agents = || agents::replayed(config, source, &basis, threads);
    let as_agents = arguments.agents.then(as_agents).transpose()?;
    let Some(partial) = replay(config, arguments, source, basis, threads, format)? else { return Ok(None) };
    let span_ms = partial.whole()?.first().map_or(0, |tally| tally.base.span().0);
    let agents = as_agents.map(|agents| agents::AsAgents::new(&agents, &basis, span_ms));
    Ok(Some((partial, Extra { detail, agents })))
}

/// Answers of the configured parameters alone.
#[derive(Default)]
struct Extra {
    detail: Option<detail::Detailed>,
    agents: Option<agents::AsAgents>,
}

/// The sources from --trace and --trace-list.
fn inputs(arguments: &arguments::Model) -> Result<Vec<String>> {
    let Some(list) = &arguments.trace_list else { return Ok(arguments.trace.clone()) };
    let text = if list.as_os_str() == "-" { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(list) };
    let text = text.with_context(|| format!("cannot read {}", list.display()))?;
    let paths: Vec<_> = text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if paths.is_empty() {
        bail!("{} names no file; write one path on each line", list.display());
    }
    for (number, path) in text.lines().enumerate().filter(|(_, path)| !path.is_empty() && !path.contains("://")) {
        if !Path::new(path).exists() {
            bail!("{}, line {}: cannot read {path}: no such file or directory", list.display(), number + 1);
        }
    }
    Ok(paths)
}

/// Time between two saves of a thread: the most that a killed worker loses.
const KEPT_EVERY: Duration = Duration::from_secs(15);

/// Replays a source, or the rest of it after a resume. `None` for an estimate, which is printed.
fn replay<S: Named<Error: std::error::Error + Sync + 'static>>(
    config: &Config,
    arguments: &arguments::Model,
    source: &S,
    basis: Basis,
    threads: NonZero<usize>,
    format: Format,
) -> Result<Option<Partial>> {
    let grid = grid(config, arguments)?;
    let setups = setups(config, arguments, &basis)?;
    let by = match arguments.by {
        None => By::Fleet,
        Some(arguments::By::Cluster) => By::Cluster,
        Some(arguments::By::Class) => By::Class,
    };
    let setting = Setting::new(basis, arguments.generate.is_some() || arguments.resample.is_some(), &grid, setups, by, arguments.survey);
    let counted = || Model::new(&grid, &setting.setups, &basis.thresholds, by).map(|model| (arguments.survey.then(Survey::default), model));
    // The check is the same for every thread.
    let model = counted()
        .map_err(|index| anyhow!("no threshold is {} scans old; give a lower minimum_age", setting.setups[index].minimum_cold_age.0))?;
    let open = || counted().unwrap_or_else(|_| model.clone());
    let found = arguments.resume.as_deref().map(|directory| resume::find(directory, source, &setting)).transpose()?;
    let pieces = found.as_ref().map_or_else(|| fleet::all(source), |found| found.pieces.clone());
    if arguments.estimate {
        let estimate = ahead::measure(source, &pieces, threads, open)?;
        print(format, &ahead::Estimated::of(&estimate), || ahead::sentence(&estimate) + "\n")?;
        return Ok(None);
    }
    if let (Some(directory), Some(found)) = (&arguments.resume, &found) {
        print_resumed(directory, found, source.pieces());
    }
    let before = found.map_or_else(|| Partial::empty(setting.clone()), |found| found.partial);
    let asked = Asked { config, arguments, setting: &setting };
    let (survey, model) = count(&asked, source, &pieces, &before, threads, open)?;
    if model.too_many_groups {
        bail!("there are more than {} groups; leave out --by, or give the traces of fewer clusters", fleet::GROUPS_MAX);
    }
    let mut coverage = Coverage::default();
    pieces.iter().try_for_each(|&piece| coverage.add(&source.part(piece)))?;
    let mut whole = before;
    whole.merge(Partial::of(setting.clone(), coverage, survey, model))?;
    Ok(Some(whole))
}

/// What a replay was asked for.
struct Asked<'a> {
    config: &'a Config,
    arguments: &'a arguments::Model,
    setting: &'a Setting,
}

/// Counts pieces, which are saved for a resume and shown as partial answers, if that is requested.
fn count<'g, S: Named<Error: std::error::Error + Sync + 'static>>(
    &Asked { config, arguments, setting }: &Asked<'_>,
    source: &S,
    pieces: &[usize],
    before: &Partial,
    threads: NonZero<usize>,
    open: impl Fn() -> resume::Counts<'g> + Send + Sync + Copy,
) -> Result<resume::Counts<'g>> {
    let (directory, every) = (arguments.resume.as_deref(), ahead::partial_every(arguments));
    if directory.is_none() && every.is_none() {
        return ahead::read(source, pieces, threads, open);
    }
    let progress = progress("pieces", pieces.len() as u64);
    let so_far = ahead::SoFar::new(before.clone(), source.pieces() - pieces.len());
    let answer = |partial: &Partial| settle(config, arguments, partial);
    let answers =
        every.map(|every| ahead::PartialAnswers { answer: &answer, setting, pieces: source.pieces(), every, progress: &progress, so_far });
    let publish = answers.as_ref().map(|answers| move |counts: &resume::Counts<'_>, pieces: &[usize]| answers.add(counts, pieces));
    let publish = publish.as_ref().map(|publish| publish as &resume::Publish<'_>);
    let parts = (0..source.pieces()).map(|piece| source.part(piece)).collect();
    let every = if directory.is_some() { KEPT_EVERY } else { every.unwrap_or(KEPT_EVERY).min(KEPT_EVERY) };
    let keeper = Keeper { directory, publish, setting, parts, every };
    // What was read so far is then of all machines.
    let pieces = ::model::estimate::spread(pieces);
    let (counted, failed) = ahead::read_with(&progress, source, &pieces, threads, || SavedAccount::new(&keeper, open))?.finish();
    if let Some(error) = failed {
        log::warn!("the result is complete, but could not be saved completely: {error}");
    }
    Ok(counted)
}

/// Prints what was found in the directory of --resume.
fn print_resumed(directory: &Path, found: &resume::ResumeState, pieces: usize) {
    let kept = pieces - found.pieces.len();
    if kept > 0 {
        log::info!("{kept} of {pieces} pieces were counted before, according to {}", directory.display());
    }
    if !found.stale.is_empty() {
        log::info!("{} files in {} belong to other trace files and are not used", found.stale.len(), directory.display());
    }
}

/// The answer from the sums.
fn settle(config: &Config, arguments: &arguments::Model, partial: &Partial) -> Result<Report> {
    let (setting, grid) = (&partial.setting, partial.setting.grid()?);
    let basis = &setting.basis;
    let question = Question {
        grid: &grid,
        objective: Objective {
            percentile: arguments.objective_percentile,
            rate_max: arguments.objective.unwrap_or(config.cold_age.promotion_rate),
        },
        configured: (config.cold_age.percentile, config.cold_age.warmup.into()),
        basis,
        price: arguments.dram_price_per_gib,
        every_pair: arguments.pairs,
        unresolved: arguments.allow_unresolved,
    };
    let whole = partial.whole()?;
    let mut answers = Vec::new();
    let mut first = Vec::new();
    for (index, (setup, tally)) in setting.setups.iter().zip(&whole).enumerate() {
        let totals = tally.clone().finish(&grid, question.objective.percentile);
        let of_groups = partial.groups.iter().filter(|_| setting.by != By::Fleet);
        let groups: Vec<(&str, &Tally)> = of_groups.map(|(name, tallies)| (name.as_str(), &tallies[index])).collect();
        if !arguments.allow_unresolved {
            resolution::check(setup, &totals, &partial.trackers, basis.scan_period_ms)?;
        }
        answers.push(question.answer(setup, &totals, &groups));
        if index == 0 {
            first = totals;
        }
    }
    let base = whole.first().map(|tally| tally.base).unwrap_or_default();
    let mut report = Report::new(&base, basis.page_bytes, question.objective, answers);
    report.generated = setting.generated;
    report.trackers = resolution::rows(&partial.trackers, basis.scan_period_ms);
    report.warnings = resolution::warnings(&partial.trackers, &report.answers);
    report.row_groups_missing = partial.coverage.missing();
    report.fleet = partial.survey.as_ref().map(|survey| FleetAsItIs::of(survey, &basis.thresholds, basis.scan_period_ms));
    if arguments.tiers || !arguments.tier.is_empty() {
        report.tiers = question.in_tiers(&first, &arguments.tier);
    }
    report.fit = partial.survey.as_ref().filter(|_| setting.generated).and_then(|survey| question.fitted(survey, &first));
    Ok(report)
}

fn grid(config: &Config, arguments: &arguments::Model) -> Result<Grid> {
    let mut percentiles = arguments.percentiles.clone();
    percentiles.push(config.cold_age.percentile);
    let mut warmups: Vec<Millis> = arguments.warmups.iter().map(|&warmup| warmup.into()).collect();
    warmups.push(config.cold_age.warmup.into());
    Ok(Grid::new(percentiles, warmups)?)
}

/// The configured limits.
pub(crate) fn configured(config: &Config) -> Setup {
    let ColdAge { promotion_rate, half_life, spikes, bound, partial, .. } = config.cold_age;
    Setup { half_life_ms: half_life.into(), spikes, bound, partial, ..Setup::new(promotion_rate) }
}

/// The configured limits first, then one for each what-if.
fn setups(config: &Config, arguments: &arguments::Model, basis: &Basis) -> Result<Vec<Setup>> {
    let configured = configured(config);
    let mut setups = vec![configured];
    for limits in &arguments.what_if {
        // Scans are rounded up, so that a page is at least as old as requested.
        let scans = limits.minimum_age.map_or(1, |age| millis(age).div_ceil(basis.scan_period_ms.0.max(1)).max(1));
        let Ok(scans) = u8::try_from(scans) else {
            bail!("minimum_age is above 255 scans of {} ms; give a lower one", basis.scan_period_ms.0);
        };
        setups.push(Setup {
            promotion_rate_max: limits.promotion_rate.unwrap_or(configured.promotion_rate_max),
            minimum_cold_age: Age(scans),
            half_life_ms: limits.half_life.map_or(configured.half_life_ms, Millis::from),
            spikes: limits.spikes.unwrap_or(configured.spikes),
            bound: limits.bound.unwrap_or(configured.bound),
            partial: configured.partial,
        });
    }
    Ok(setups)
}

/// The question that totals answer.
struct Question<'a> {
    grid: &'a Grid,
    objective: Objective,
    /// The configured percentile and warm-up.
    configured: (RatioPpm, Millis),
    basis: &'a Basis,
    price: Option<f64>,
    /// Whether every pair is in the answer.
    every_pair: bool,
    /// Whether pairs that no entry measured can be the best.
    unresolved: bool,
}

impl Question<'_> {
    fn pair(&self, total: &Total) -> Pair {
        Pair::new(total, &self.objective, self.basis.page_bytes, self.price)
    }

    fn at(&self, totals: &[Total], (k, s): (RatioPpm, Millis)) -> Option<Pair> {
        totals.iter().find(|total| (total.percentile, total.warmup) == (k, s)).map(|total| self.pair(total))
    }

    fn pairs(&self, totals: &[Total]) -> Vec<Pair> {
        totals.iter().filter(|_| self.every_pair).map(|total| self.pair(total)).collect()
    }

    /// The totals that some entry measured.
    fn measured(&self, totals: &[Total]) -> Vec<Total> {
        totals.iter().filter(|total| self.unresolved || total.answers()).cloned().collect()
    }

    fn answer(&self, setup: &Setup, totals: &[Total], groups: &[(&str, &Tally)]) -> Answer {
        let measured = self.measured(totals);
        let best = front::best(&measured, &self.objective);
        let groups = groups.iter().map(|(name, tally)| {
            let totals = (*tally).clone().finish(self.grid, self.objective.percentile);
            Group {
                name: (*name).to_owned(),
                jobs: tally.base.jobs,
                at_fleets_best: best.and_then(|best| self.at(&totals, (best.percentile, best.warmup))),
                own_best: front::best(&self.measured(&totals), &self.objective).map(|total| self.pair(total)),
                pairs: self.pairs(&totals),
            }
        });
        Answer {
            promotion_rate_max_ratio_per_min: setup.promotion_rate_max.as_f64(),
            #[expect(clippy::cast_precision_loss, reason = "at most 255 scans")]
            minimum_age_seconds: (u64::from(setup.minimum_cold_age.0) * self.basis.scan_period_ms.0) as f64 / 1e3,
            half_life_seconds: ratio(u128::from(setup.half_life_ms.0), 1_000),
            spikes: setup.spikes,
            bound: setup.bound,
            configured: self.at(totals, self.configured),
            best: best.map(|total| self.pair(total)),
            front: front::front(&measured, &self.objective).into_iter().map(|total| self.pair(total)).collect(),
            pairs: self.pairs(totals),
            groups: groups.collect(),
        }
    }

    /// The best pair in other tiers, or without one the configured one.
    fn in_tiers(&self, totals: &[Total], given: &[tiers::GivenTier]) -> Vec<tiers::TierRow> {
        let measured = self.measured(totals);
        let configured = || totals.iter().find(|total| (total.percentile, total.warmup) == self.configured);
        let at = front::best(&measured, &self.objective).or_else(configured);
        at.map(|at| tiers::rows(&measured, at, self.basis.page_bytes, given)).unwrap_or_default()
    }

    /// How a generated fleet matches the published figures.
    fn fitted(&self, survey: &Survey, totals: &[Total]) -> Option<Vec<fit::Row>> {
        let hand_tuned = totals.iter().find(|total| (total.percentile, total.warmup) == self.configured)?;
        let (best, objective) = (front::best(totals, &self.objective), self.objective);
        Some(fit::rows(&FitInput { survey, thresholds: &self.basis.thresholds, hand_tuned, best, objective }))
    }
}

/// Writes a generated fleet as trace files.
fn record(fleet: &Fleet, directory: &Path, threads: NonZero<usize>, format: Format) -> Result<()> {
    struct Recorder<'a>(&'a Fleet, &'a Path, std::sync::atomic::AtomicU64);
    impl Source for Recorder<'_> {
        type Error = trace::Error;

        fn pieces(&self) -> usize {
            self.0.pieces()
        }

        fn read(&self, piece: usize, _: &mut dyn FnMut(&fleet::Label, &::model::series::Series)) -> trace::Result<()> {
            let written = self.0.record(piece as u64, self.1)?;
            self.2.fetch_add(written.map_or(0, |written| written.entries), Ordering::Relaxed);
            Ok(())
        }
    }
    let recorder = Recorder(fleet, directory, 0.into());
    read(&recorder, &fleet::all(&recorder), threads, || None::<Survey>)?;
    let entries = recorder.2.into_inner();
    let done = serde_json::json!({ "generated": true, "directory": directory, "files": fleet.machines(), "entries": entries });
    print(format, &done, || format!("{entries} generated entries in {} files below {}\n", fleet.machines(), directory.display()))
}
