//! `thermocline model`: what a fleet would save, and feel, under other parameters.

use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::model::fleet::{self, Account, Model, Source};
use ::model::front::{self, Objective};
use ::model::generate::Fleet;
use ::model::generate::fit::{self, Measured};
use ::model::generate::record::{PAGE_BYTES, SCAN_PERIOD_MS};
use ::model::grid::{Grid, Setup};
use ::model::survey::Survey;
use ::model::tally::{Tally, Total};
use ::model::traces::Traces;
use anyhow::{Context, Result, bail};
use config::Config;
use policy::thresholds::Thresholds;
use policy::units::{Age, RatioPpm};

use self::report::{Answer, FleetAsItIs, Group, Pair, Report};
use crate::arguments::{self, Format};
use crate::print;

mod report;
mod text;
mod waits;

/// What the entries of a source stand for.
#[derive(Clone, Copy, Debug)]
struct Scale {
    thresholds: Thresholds,
    scan_period_ms: u64,
    page_bytes: u64,
}

/// `thermocline model`.
pub(crate) fn model(config: &Config, format: Format, arguments: &arguments::Model) -> Result<()> {
    let threads = match arguments.threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN),
    };
    if let Some(jobs) = arguments.generate {
        let thresholds = Thresholds::log_spaced(usize::try_from(config.cold_age.thresholds)?)?;
        let fleet = Fleet::new(arguments.seed, jobs, arguments.days, thresholds);
        if let Some(directory) = &arguments.record {
            return record(&fleet, directory, threads, format);
        }
        let scale = Scale { thresholds, scan_period_ms: SCAN_PERIOD_MS, page_bytes: PAGE_BYTES };
        if arguments.policy != arguments::Modelled::ColdAge {
            return waits::model(config, arguments, &fleet, scale.page_bytes, threads, format);
        }
        let (mut report, accounts) = replay(config, arguments, &fleet, &scale, threads, format)?;
        report.generated = true;
        report.fleet = accounts.0.as_ref().map(|survey| FleetAsItIs::of(survey, &scale.thresholds, scale.scan_period_ms));
        report.fit = accounts.0.as_ref().and_then(|survey| fitted(&report, survey, &scale, &accounts.1, config));
        print(format, &report, || text::report(&report))
    } else {
        let traces = Traces::open(&arguments.trace)?;
        let basis = traces.basis();
        let scale = Scale { thresholds: basis.thresholds, scan_period_ms: basis.scan_period_ms, page_bytes: basis.page_bytes };
        if arguments.policy != arguments::Modelled::ColdAge {
            return waits::model(config, arguments, &traces, scale.page_bytes, threads, format);
        }
        let (mut report, accounts) = replay(config, arguments, &traces, &scale, threads, format)?;
        report.jobs_without_sample = traces.assumed();
        report.fleet = accounts.0.as_ref().map(|survey| FleetAsItIs::of(survey, &scale.thresholds, scale.scan_period_ms));
        print(format, &report, || text::report(&report))
    }
}

/// The survey if one was asked for, and the totals under the configured limits.
type Accounts = (Option<Survey>, Vec<Total>);

fn replay<S: Source<Error: std::error::Error + Sync + 'static>>(
    config: &Config,
    arguments: &arguments::Model,
    source: &S,
    scale: &Scale,
    threads: NonZero<usize>,
    format: Format,
) -> Result<(Report, Accounts)> {
    let grid = grid(config, arguments)?;
    let setups = setups(config, arguments, scale)?;
    let by = match arguments.by {
        None => fleet::By::Fleet,
        Some(arguments::By::Cluster) => fleet::By::Cluster,
        Some(arguments::By::Class) => fleet::By::Class,
    };
    // Which setups have a threshold old enough does not depend on the thread.
    if let Err(index) = Model::new(&grid, &setups, &scale.thresholds, by) {
        bail!("no threshold is {} scans old; give a lower minimum_age", setups[index].minimum_cold_age.0);
    }
    let open = || (arguments.survey.then(Survey::default), Model::new(&grid, &setups, &scale.thresholds, by).ok());
    let (survey, model) = read(source, threads, open, format)?;
    let model = model.context("no account was kept")?;
    if model.too_many_groups {
        bail!("there are more than {} groups; leave out --by, or give the traces of fewer clusters", fleet::GROUPS_MAX);
    }
    let objective =
        Objective { percentile: arguments.objective_percentile, rate_max: arguments.objective.unwrap_or(config.cold_age.promotion_rate) };
    let configured = (config.cold_age.percentile, millis(config.cold_age.warmup));
    let whole = model.whole();
    let mut answers = Vec::new();
    let mut first = Vec::new();
    for (index, (setup, tally)) in setups.iter().zip(&whole).enumerate() {
        let totals = tally.clone().finish(&grid);
        let of_groups = model.groups.iter().filter(|_| arguments.by.is_some());
        let groups: Vec<(&str, &Tally)> = of_groups.map(|(name, tallies)| (name.as_str(), &tallies[index])).collect();
        answers.push(answer(setup, &totals, &groups, &grid, &objective, configured, scale, arguments.dram_price_per_gib));
        if index == 0 {
            first = totals;
        }
    }
    let base = whole.first().map(|tally| tally.base).unwrap_or_default();
    Ok((Report::new(&base, scale.page_bytes, objective, answers), (survey, first)))
}

fn grid(config: &Config, arguments: &arguments::Model) -> Result<Grid> {
    let mut percentiles = arguments.percentiles.clone();
    percentiles.push(config.cold_age.percentile);
    let mut warmups: Vec<u64> = arguments.warmups.iter().map(|&warmup| millis(warmup)).collect();
    warmups.push(millis(config.cold_age.warmup));
    Ok(Grid::new(percentiles, warmups)?)
}

/// The configured limits first, then one for each what-if.
fn setups(config: &Config, arguments: &arguments::Model, scale: &Scale) -> Result<Vec<Setup>> {
    let mut setups = vec![Setup { promotion_rate_max: config.cold_age.promotion_rate, minimum_cold_age: Age(1) }];
    for limits in &arguments.what_if {
        // A page is at least as old as asked for: scans are rounded up.
        let scans = limits.minimum_age.map_or(1, |age| millis(age).div_ceil(scale.scan_period_ms.max(1)).max(1));
        let Ok(scans) = u8::try_from(scans) else {
            bail!("minimum_age is above 255 scans of {} ms; give a lower one", scale.scan_period_ms);
        };
        let promotion_rate_max = limits.promotion_rate.unwrap_or(config.cold_age.promotion_rate);
        setups.push(Setup { promotion_rate_max, minimum_cold_age: Age(scans) });
    }
    Ok(setups)
}

#[expect(clippy::too_many_arguments, reason = "what an answer rests on, each used once")]
fn answer(
    setup: &Setup,
    totals: &[Total],
    groups: &[(&str, &Tally)],
    grid: &Grid,
    objective: &Objective,
    configured: (RatioPpm, u64),
    scale: &Scale,
    price: Option<f64>,
) -> Answer {
    let pair = |total: &Total| Pair::new(total, objective, scale.page_bytes, price);
    let best = front::best(totals, objective);
    let at =
        |totals: &[Total], (k, s): (RatioPpm, u64)| totals.iter().find(|total| (total.percentile, total.warmup_ms) == (k, s)).map(pair);
    let groups = groups.iter().map(|(name, tally)| {
        let totals = (*tally).clone().finish(grid);
        Group {
            name: (*name).to_owned(),
            jobs: tally.base.jobs,
            at_fleets_best: best.and_then(|best| at(&totals, (best.percentile, best.warmup_ms))),
            own_best: front::best(&totals, objective).map(pair),
        }
    });
    Answer {
        promotion_rate_max_ratio_per_min: setup.promotion_rate_max.as_f64(),
        #[expect(clippy::cast_precision_loss, reason = "at most 255 scans")]
        minimum_age_seconds: (u64::from(setup.minimum_cold_age.0) * scale.scan_period_ms) as f64 / 1e3,
        configured: at(totals, configured),
        best: best.map(pair),
        front: front::front(totals, objective).into_iter().map(pair).collect(),
        groups: groups.collect(),
    }
}

/// How a generated fleet fits.
fn fitted(report: &Report, survey: &Survey, scale: &Scale, totals: &[Total], config: &Config) -> Option<Vec<fit::Row>> {
    let objective = report.objective();
    let configured = (config.cold_age.percentile, millis(config.cold_age.warmup));
    let hand_tuned = totals.iter().find(|total| (total.percentile, total.warmup_ms) == configured)?;
    let best = front::best(totals, &objective);
    Some(fit::rows(&Measured { survey, thresholds: &scale.thresholds, hand_tuned, best, objective }))
}

/// Reads a source and says how far it is.
fn read<S: Source<Error: std::error::Error + Sync + 'static>, A: Account>(
    source: &S,
    threads: NonZero<usize>,
    open: impl Fn() -> A + Sync,
    format: Format,
) -> Result<A> {
    let progress = Progress::new(source.pieces(), format);
    let account = fleet::run(source, threads, open, |done| progress.show(done));
    progress.end();
    Ok(account?)
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
    read(&recorder, threads, || None::<Survey>, format)?;
    let entries = recorder.2.into_inner();
    let done = serde_json::json!({ "generated": true, "directory": directory, "files": fleet.machines(), "entries": entries });
    print(format, &done, || format!("{entries} generated entries in {} files below {}\n", fleet.machines(), directory.display()))
}

/// Tells on standard error how much is done, in whole percent.
struct Progress {
    pieces: usize,
    shown: AtomicUsize,
    silent: bool,
}

impl Progress {
    fn new(pieces: usize, format: Format) -> Self {
        use std::io::IsTerminal;
        Self { pieces, shown: AtomicUsize::new(0), silent: format == Format::Json || !std::io::stderr().is_terminal() }
    }

    fn show(&self, done: usize) {
        let percent = done * 100 / self.pieces.max(1);
        if !self.silent && self.shown.fetch_max(percent, Ordering::Relaxed) < percent {
            eprint!("\r{percent}% ");
        }
    }

    fn end(&self) {
        if !self.silent {
            eprint!("\r     \r");
        }
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
