//! Simulates the objective of the cold-age controller: how often a period's promotions exceed it, from a job's first minute on.
//!
//! # Method
//! Every entry of a job is one control period: the threshold that was decided at the end of one entry is in effect in the next.
//! A period is over its objective if the accesses at or above that threshold exceed what the objective permits in it. Only
//! periods with a threshold in effect count. Where a part of the pages at a threshold is far, that part of the accesses are
//! promotions: as if pages were accessed at random.
//!
//! An agent that starts to observe a job knows no ages: a page that was idle before has the age of the observation. So ages
//! beyond the time observed are removed from generated and recorded traces (not from journals, whose ages an agent measured).
//!
//! Each fourth job of a machine continues the history of the job before it: its behaviour changes in a step, to that of another
//! job, in addition to the phases that generated jobs have of their own.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Instant;

use agent::journal::{self, Record};
use anyhow::{Context, Result};
use config::{Class, Config};
use model::agents::{self, Controller};
use model::fleet::{self, Account, Label, Source};
use model::generate::Fleet;
use model::series::{Row, Series};
use model::tally::ratio;
use model::traces::Traces;
use policy::cold_age::{Input, Params};
use policy::thresholds::Thresholds;
use serde::Serialize;
use units::{Millis, RatioPpm};

/// Days of the generated fleet.
const DAYS: u32 = 14;
const DAY_MS: u64 = 86_400_000;
/// Periods of history from which on a job counts as in steady state: 3.5 days of the generated entries of five minutes.
const STEADY_PERIODS: u64 = 1_000;
/// Upper ends of the ranges of history lengths that are reported, in periods.
const RANGES: [u64; 6] = [10, 30, 100, 300, STEADY_PERIODS, u64::MAX];
/// Each job of this number continues the history of the one before it.
const CONTINUES: u64 = 4;

/// The classes whose order is checked, the most conservative first. Each is simulated with its own parameters.
const CLASSES: [Class; 3] = [Class::Conservative, Class::Standard, Class::Aggressive];
/// Index of the class with K = 99 %.
const STANDARD: usize = 1;

/// Sums over periods.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    on: u64,
    over: u64,
    stored_page_ms: u128,
    cold_page_ms: u128,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.on += other.on;
        self.over += other.over;
        self.stored_page_ms += other.stored_page_ms;
        self.cold_page_ms += other.cold_page_ms;
    }

    fn total<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut total = Self::default();
        parts.into_iter().for_each(|part| total.add(part));
        total
    }

    fn over_ratio(&self) -> f64 {
        ratio(u128::from(self.over), u128::from(self.on))
    }

    fn coverage(&self) -> f64 {
        ratio(self.stored_page_ms, self.cold_page_ms)
    }
}

/// One rule for a job.
#[derive(Clone, Debug)]
struct Rule {
    controller: Controller,
    /// By length of the history ([`RANGES`]).
    sums: [Sums; RANGES.len()],
}

impl Rule {
    fn new(params: Params) -> Self {
        Self { controller: Controller::new(params), sums: [Sums::default(); RANGES.len()] }
    }

    fn period(&mut self, thresholds: &Thresholds, input: &Input, range: usize) {
        let sums = &mut self.sums[range];
        let window_ms = u128::from(input.window_ms.0);
        sums.cold_page_ms += u128::from(input.cold.at_or_above(0).0) * window_ms;
        let period = self.controller.period(thresholds, input);
        if period.on {
            sums.on += 1;
            sums.over += u64::from(period.promoted > period.allowed);
            sums.stored_page_ms += u128::from(period.far.0) * window_ms;
        }
    }
}

/// All rules for the jobs of one source.
#[derive(Clone, Debug)]
struct Simulation {
    thresholds: Thresholds,
    /// Milliseconds per scan, if ages beyond the observed time are removed.
    scan_ms: Option<u64>,
    /// The bound for each of [`CLASSES`], then the rule without it for the standard class.
    rules: [Rule; CLASSES.len() + 1],
    jobs: u64,
    /// Jobs of the current piece.
    nth: u64,
    continued: u64,
    periods: u64,
    observed_ms: u128,
    /// Of the current history.
    history_periods: u64,
    history_ms: u64,
    /// Periods in which a more conservative class had the lower threshold.
    out_of_order: u64,
}

impl Simulation {
    fn new(thresholds: Thresholds, scan_ms: Option<u64>, classes: [Params; CLASSES.len()]) -> Self {
        let [conservative, standard, aggressive] = classes;
        let before = Params { bound: false, partial: false, ..standard };
        let rules = [conservative, standard, aggressive, before].map(Rule::new);
        let (jobs, nth, continued, periods, observed_ms, history_periods, history_ms, out_of_order) = (0, 0, 0, 0, 0, 0, 0, 0);
        Self { thresholds, scan_ms, rules, jobs, nth, continued, periods, observed_ms, history_periods, history_ms, out_of_order }
    }

    fn of_entry(&mut self, row: &Row<'_>) {
        self.history_ms += row.window_ms.0;
        let observed_scans = self.scan_ms.map_or(u64::MAX, |scan_ms| self.history_ms / scan_ms.max(1));
        // The first number counts all pages.
        let reached = self.thresholds.as_slice().iter().filter(|age| u64::from(age.0) <= observed_scans).count() + 1;
        if let Some(input) = agents::input(row, Millis(self.history_ms), reached) {
            self.period(&input);
        }
    }

    fn period(&mut self, input: &Input) {
        if input.window_ms == Millis(0) {
            return;
        }
        let range = RANGES.iter().position(|&end| self.history_periods < end).unwrap_or(0);
        self.rules.iter_mut().for_each(|rule| rule.period(&self.thresholds, input, range));
        // Parts are compared by no threshold: they stay until they return, while thresholds rise at once.
        let whole = |rule: &Rule| rule.controller.whole(&self.thresholds);
        let classes = self.rules[..CLASSES.len()].windows(2);
        let pairs = classes.into_iter().filter_map(|pair| Some((whole(&pair[0])?, whole(&pair[1])?)));
        self.out_of_order += u64::from(pairs.into_iter().any(|(careful, bold)| careful < bold));
        self.history_periods += 1;
        self.periods += 1;
        self.observed_ms += u128::from(input.window_ms.0);
    }

    /// Starts a new history.
    fn begin(&mut self) {
        (self.history_periods, self.history_ms) = (0, 0);
        self.rules.iter_mut().for_each(|rule| rule.controller.reset());
    }

    fn outcome(&self, source: String, seconds: f64) -> Outcome {
        let [conservative, standard, aggressive, before] = [0, 1, 2, 3].map(|rule: usize| Sums::total(&self.rules[rule].sums));
        let steady = |rule: usize| self.rules[rule].sums.last().copied().unwrap_or_default();
        let mut from = 0;
        let by_history = RANGES.iter().enumerate().map(|(range, &to)| {
            let (bound, before) = (self.rules[STANDARD].sums[range], self.rules[CLASSES.len()].sums[range]);
            let by = ByHistory {
                from_periods: from,
                periods_on: bound.on,
                over_ratio: bound.over_ratio(),
                over_ratio_before: before.over_ratio(),
                coverage_ratio: bound.coverage(),
                coverage_ratio_before: before.coverage(),
            };
            from = to;
            by
        });
        Outcome {
            source,
            jobs: self.jobs,
            jobs_continued: self.continued,
            job_days: ratio(self.observed_ms, u128::from(DAY_MS)),
            periods: self.periods,
            periods_over_objective_ratio: standard.over_ratio(),
            periods_over_objective_ratio_before: before.over_ratio(),
            periods_over_objective_ratio_conservative: conservative.over_ratio(),
            periods_over_objective_ratio_aggressive: aggressive.over_ratio(),
            coverage_ratio_to_before: steady(STANDARD).coverage() / steady(CLASSES.len()).coverage().max(f64::MIN_POSITIVE),
            coverage_ratio_to_before_with_young: standard.coverage() / before.coverage().max(f64::MIN_POSITIVE),
            periods_out_of_class_order: self.out_of_order,
            by_history: by_history.collect(),
            seconds,
        }
    }
}

impl Account for Simulation {
    fn job(&mut self, _: &Label, series: &Series) {
        self.jobs += 1;
        self.nth += 1;
        if self.nth.is_multiple_of(CONTINUES) {
            self.continued += 1;
        } else {
            self.begin();
        }
        series.rows().for_each(|row| self.of_entry(&row));
    }

    fn piece_done(&mut self, _: usize) {
        self.nth = 0;
    }

    fn merge(&mut self, other: Self) {
        for (mine, theirs) in self.rules.iter_mut().zip(&other.rules) {
            mine.sums.iter_mut().zip(&theirs.sums).for_each(|(mine, theirs)| mine.add(theirs));
        }
        self.jobs += other.jobs;
        self.continued += other.continued;
        self.periods += other.periods;
        self.observed_ms += other.observed_ms;
        self.out_of_order += other.out_of_order;
    }
}

/// The outcome for histories of at least so many periods.
#[derive(Debug, Serialize)]
struct ByHistory {
    from_periods: u64,
    /// Periods with a threshold in effect.
    periods_on: u64,
    over_ratio: f64,
    over_ratio_before: f64,
    coverage_ratio: f64,
    coverage_ratio_before: f64,
}

/// The outcome of one source. `before` is the rule without the bound.
#[derive(Debug, Serialize)]
struct Outcome {
    source: String,
    jobs: u64,
    /// Jobs that continued the history of another one.
    jobs_continued: u64,
    job_days: f64,
    periods: u64,
    /// Share of the periods with a threshold in effect, at K = 99 %.
    periods_over_objective_ratio: f64,
    periods_over_objective_ratio_before: f64,
    periods_over_objective_ratio_conservative: f64,
    periods_over_objective_ratio_aggressive: f64,
    /// In steady state.
    coverage_ratio_to_before: f64,
    /// In all periods.
    coverage_ratio_to_before_with_young: f64,
    periods_out_of_class_order: u64,
    by_history: Vec<ByHistory>,
    seconds: f64,
}

/// Figures of `make simulate-objective`: the generated fleet at the top, recorded sources beside it.
#[derive(Debug, Serialize)]
pub(crate) struct ObjectiveReport {
    #[serde(flatten)]
    generated: Outcome,
    recorded: Vec<Outcome>,
}

/// What to simulate.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    /// Days that jobs of the generated fleet are observed for, at least.
    pub(crate) job_days: u64,
    /// Trace files.
    pub(crate) traces: &'a [PathBuf],
    /// Journals.
    pub(crate) journals: &'a [PathBuf],
}

/// Simulates a generated fleet, traces and journals.
///
/// # Errors
/// A file cannot be read, or the default configuration is invalid.
pub(crate) fn simulate(sources: &Sources<'_>) -> Result<ObjectiveReport> {
    let config = Config::default();
    let classes = CLASSES.map(|class| config.cold_age_for(class).params());
    let thresholds = Thresholds::log_spaced(usize::try_from(config.cold_age.thresholds)?)?;
    let concurrent = sources.job_days.div_ceil(u64::from(DAYS));
    let fleet = Fleet::new(1, concurrent, DAYS, thresholds);
    let name = format!("generated, seed 1, {concurrent} jobs at any time, {DAYS} days, entries of five minutes in place of periods");
    let basis = fleet.basis();
    let generated = of_source(name, &fleet, Simulation::new(thresholds, Some(basis.scan_period_ms.0), classes))?;
    let mut recorded = Vec::new();
    if !sources.traces.is_empty() {
        let traces = Traces::open(sources.traces)?;
        let basis = *traces.basis();
        let simulation = Simulation::new(basis.thresholds, Some(basis.scan_period_ms.0), classes);
        recorded.push(of_source(format!("traces {:?}", sources.traces), &traces, simulation)?);
    }
    for path in sources.journals {
        recorded.push(of_journal(path, classes)?);
    }
    Ok(ObjectiveReport { generated, recorded })
}

fn of_source<S: Source<Error: std::error::Error + Sync + 'static>>(name: String, source: &S, empty: Simulation) -> Result<Outcome> {
    let begin = Instant::now();
    let threads = std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    let whole = fleet::run(source, &fleet::all(source), threads, || empty.clone(), |_| {})?;
    Ok(whole.outcome(name, begin.elapsed().as_secs_f64()))
}

/// The periods of a journal, with the objective and the warm-up that its jobs had; classes scale them as they scale the default.
fn of_journal(path: &Path, classes: [Params; CLASSES.len()]) -> Result<Outcome> {
    let begin = Instant::now();
    let records = journal::read(path)?;
    let agent = records.iter().find_map(|record| if let Record::Agent(agent) = record { Some(agent) } else { None });
    let thresholds = agent.context("the journal has no thresholds")?.thresholds;
    let mut done = Vec::new();
    let mut whole: Option<Simulation> = None;
    for job in records.iter().filter_map(|record| if let Record::Job(job) = record { Some(job) } else { None }) {
        // A restarted agent records its jobs again.
        if done.contains(&(&job.job, job.id)) {
            continue;
        }
        done.push((&job.job, job.id));
        let scaled = classes.map(|class| {
            let scale = |own: u64, of: u64, standard: u64| own * of / standard.max(1);
            let rate = scale(
                job.params.promotion_rate_max.0.into(),
                class.promotion_rate_max.0.into(),
                classes[STANDARD].promotion_rate_max.0.into(),
            );
            let warmup_ms = scale(job.params.warmup_ms.0, class.warmup_ms.0, classes[STANDARD].warmup_ms.0);
            Params { promotion_rate_max: RatioPpm(u32::try_from(rate).unwrap_or(u32::MAX)), warmup_ms: Millis(warmup_ms), ..class }
        });
        let mut simulation = Simulation::new(thresholds, None, scaled);
        simulation.jobs = 1;
        for record in &records {
            let Record::Period(period) = record else { continue };
            if (&period.job, period.id) == (&job.job, job.id) {
                simulation.period(&Input { veto: None, ..period.input });
            }
        }
        match &mut whole {
            Some(whole) => whole.merge(simulation),
            None => whole = Some(simulation),
        }
    }
    Ok(whole.context("the journal has no job")?.outcome(format!("journal {}", path.display()), begin.elapsed().as_secs_f64()))
}
