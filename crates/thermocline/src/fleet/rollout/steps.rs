//! `thermocline rollout start|step|run|status|pin|stop|resume|rollback|plan`: staged rollouts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime};

use ::rollout::evaluation;
use ::rollout::evidence::{EntryRef, Evidence, Reader, Selection};
use ::rollout::guard::{Values, Watched};
use ::rollout::journal::{Event, Journal, Latest};
use ::rollout::plan::Plan;
use ::rollout::prometheus;
use ::rollout::repository::{Change, Contents, Operator};
use ::rollout::stage::{self, Action, Evaluation, Phase, State};
use anyhow::{Context, Result, bail};
use config::Config;
use trace::calendar;
use units::{RatioPpm, UnixMillis};

use super::arguments::{Act, Driver, PlanArguments, Repository, RunArguments, Signing, Start, StatusArguments};
use super::status::{self, NOT_STARTED, Status};
use super::words::{self, Stepped};
use super::{operator, reader, store};
use crate::options::Format;
use crate::output::print;
use crate::signals;

/// Share of the validity of the signatures below which an evaluation without a decision renews them.
const RENEW_AT: f64 = 0.5;

/// `start`: starts the staged rollout of a published bundle.
pub(crate) fn start(config: &Config, format: Format, arguments: &Start) -> Result<()> {
    let driver = &arguments.driver;
    let plan = plan_of(arguments.plan.as_deref())?;
    let operator = operator(config, &driver.signing)?;
    let contents = operator.contents(true)?;
    let version = arguments.version;
    let Some(bundle) = contents.bundles.iter().find(|bundle| bundle.version == version) else {
        let known: Vec<_> = contents.bundles.iter().map(|bundle| bundle.version.to_string()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        bail!("bundle {version} is not published; published are: {known}; see `thermocline rollout publish`");
    };
    let now = now();
    if bundle.expires_unix_s <= now.0 / 1_000 {
        bail!("bundle {version} expired on {}; publish a new one", calendar::time(UnixMillis(bundle.expires_unix_s.saturating_mul(1_000))));
    }
    let previous = arguments.previous.or(followed(&contents)).filter(|&previous| previous != version);
    let named = || format!("bundle-{version}-{}", calendar::time(now).replace([' ', ':'], "-"));
    let state = State::start(&arguments.id.clone().unwrap_or_else(named), version, previous, now);
    let assignment = state.assignment(&plan);
    assignment.check()?;
    if !driver.signing.dry_run {
        journal(config, driver)?.start(&state, &plan)?;
    }
    operator.change(Change::Assign(&assignment), driver.signing.dry_run)?;
    let place = stage::place(&plan, &state);
    let summary = serde_json::json!({ "rollout": state.rollout, "place": place, "after": state, "dry_run": driver.signing.dry_run });
    print(format, &summary, || {
        let would = if driver.signing.dry_run { "dry run, nothing is written: " } else { "" };
        format!("{would}rollout {} of bundle {version} begins in {place}\n", state.rollout)
    })
}

/// The version that all machines follow without a new rollout: the bundle of a finished one, otherwise the one before it.
fn followed(contents: &Contents) -> Option<u64> {
    let last = contents.assignment.as_ref()?;
    if last.share_ppm >= RatioPpm::ONE { last.bundle.or(last.previous) } else { last.previous }
}

/// Why the staged rollout of a bundle should not begin now. `None`: it may.
pub(crate) fn obstacle(config: &Config, repository: &Repository) -> Result<Option<String>> {
    if let Some(Status { state, place, .. }) = status::read(config, repository, None, 1, &[])?
        && matches!(state.phase, Phase::Running | Phase::Stopped)
    {
        let (phase, rollout) = (words::phase(&state), state.rollout);
        return Ok(Some(format!("rollout {rollout} of bundle {} is {phase}, in {place}; see `thermocline rollout status`", state.bundle)));
    }
    let first = "no bundle is assigned yet, so that a control group has none: assign the first one by `thermocline rollout assign`";
    let before = followed(&reader(config, repository)?.contents(true)?);
    Ok(before.is_none().then(|| first.to_owned()))
}

/// `step`: one evaluation.
pub(super) fn step(config: &Config, format: Format, driver: &Driver) -> Result<()> {
    step_by(config, format, driver, &mut Traces::open(config, driver)?)
}

/// One evaluation, by evidence of this source.
pub(crate) fn step_by(config: &Config, format: Format, driver: &Driver, source: &mut dyn Source) -> Result<()> {
    let stepped = Evaluator::new(config, driver, source)?.evaluate()?;
    print(format, &stepped, || words::stepped(&stepped))
}

/// `run`: repeated evaluations until the rollout ends or a signal arrives. A failed evaluation is logged and repeated.
pub(super) fn run(config: &Config, format: Format, arguments: &RunArguments) -> Result<()> {
    let RunArguments { every, driver } = arguments;
    run_by(config, format, driver, *every, &mut Traces::open(config, driver)?)
}

/// As [`run`], by evidence of this source.
pub(crate) fn run_by(config: &Config, format: Format, driver: &Driver, every: Duration, source: &mut dyn Source) -> Result<()> {
    let (_sender, receiver) = signals::messages()?;
    let mut evaluator = Evaluator::new(config, driver, source)?;
    loop {
        let began = Instant::now();
        match evaluator.evaluate() {
            Ok(stepped) => {
                print(format, &stepped, || format!("{} {}", calendar::time(now()), words::stepped(&stepped)))?;
                if matches!(stepped.after.phase, Phase::Finished | Phase::RolledBack) {
                    return Ok(());
                }
            }
            Err(error) => log::error!("evaluation failed, the next one tries again: {}", crate::output::describe(&error)),
        }
        match receiver.recv_timeout(every.saturating_sub(began.elapsed())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// `pin`, `stop`, `resume`, `rollback`.
pub(super) fn act(config: &Config, format: Format, action: Action, arguments: &Act) -> Result<()> {
    let driver = &arguments.driver;
    let dry_run = driver.signing.dry_run;
    let journal = journal(config, driver)?;
    let Latest { plan, record } = latest(&journal)?;
    let now = now();
    let after = stage::act(&plan, &record.after, action, now)
        .map_err(|what| anyhow::anyhow!("rollout {} of bundle {}: {what}", record.after.rollout, record.after.bundle))?;
    let operator = operator(config, &driver.signing)?;
    let assignment = after.assignment(&plan);
    if !dry_run {
        let event = Event::Acted { action, by: user(), why: arguments.why.clone().unwrap_or_default() };
        journal.append(&record, now, event, after.clone())?;
    }
    operator.change(Change::Assign(&assignment), dry_run)?;
    let place = stage::place(&plan, &after);
    let summary = serde_json::json!({ "rollout": after.rollout, "place": place, "after": after, "dry_run": dry_run });
    print(format, &summary, || {
        let would = if dry_run { "dry run, nothing is written: " } else { "" };
        format!("{would}rollout {} of bundle {}: {}, in {place}\n", after.rollout, after.bundle, words::phase(&after))
    })
}

/// `status`.
pub(super) fn status(config: &Config, format: Format, arguments: &StatusArguments) -> Result<()> {
    let read = status::read(config, &arguments.repository, arguments.log.as_deref(), arguments.last, &[])?;
    let shown = read.context(NOT_STARTED)?;
    print(format, &shown, || words::status(&shown.plan, &shown.state, &shown.place, shown.published_agrees, &shown.records))
}

/// `plan`.
pub(super) fn plan(format: Format, arguments: &PlanArguments) -> Result<()> {
    let plan = plan_of(arguments.file.as_deref())?;
    print(format, &plan, || match &arguments.file {
        None => ::rollout::plan::example(),
        Some(file) => format!("{} is sound: {} stages, {} guards\n", file.display(), plan.stages.len(), plan.guards.len()),
    })
}

pub(crate) fn plan_of(file: Option<&Path>) -> Result<Plan> {
    let Some(file) = file else { return Ok(Plan::default()) };
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Plan::parse(file, &text)?)
}

fn journal(config: &Config, driver: &Driver) -> Result<Journal> {
    Ok(Journal::open(&status::log_url(driver.log.as_deref(), store(config, &driver.signing.repository))?)?)
}

fn latest(journal: &Journal) -> Result<Latest> {
    journal.latest()?.context(NOT_STARTED)
}

/// The user's name from the environment; empty if unknown.
fn user() -> String {
    ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default()
}

fn now() -> UnixMillis {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixMillis(units::millis(since))
}

/// Where the evidence of a rollout is read.
pub(crate) trait Source {
    /// Reads what the machines did, by the slots of [`evaluation::slot`].
    fn read(&mut self, plan: &Plan, state: &State) -> Result<Evidence>;
}

/// The traces of agents; sums of files are kept between evaluations.
struct Traces {
    store: ::store::Store,
    reader: Reader,
    /// The rollout, stage and time to which the reader's sums belong.
    read_for: Option<(String, UnixMillis)>,
}

impl Traces {
    fn open(config: &Config, driver: &Driver) -> Result<Self> {
        let traces = match &driver.trace {
            Some(url) => url,
            None if config.trace.store.is_empty() => bail!("name the traces by --trace; none are configured as trace.store"),
            None => &config.trace.store,
        };
        Ok(Self { store: ::store::Store::open(traces)?, reader: Reader::default(), read_for: None })
    }
}

impl Source for Traces {
    fn read(&mut self, plan: &Plan, state: &State) -> Result<Evidence> {
        let read_for = (state.rollout.clone(), state.since_unix_ms);
        if self.read_for.as_ref() != Some(&read_for) {
            self.reader = Reader::default();
            self.read_for = Some(read_for);
        }
        let slot = |entry: &EntryRef| evaluation::slot(plan, state, entry.figures.start_unix_ms);
        let selection = Selection {
            slots: evaluation::SLOTS,
            slot: &slot,
            from_unix_ms: evaluation::baseline_start(plan, state),
            until_unix_ms: UnixMillis(u64::MAX),
            objective: plan.objective,
        };
        Ok(self.reader.read(&self.store, &selection)?)
    }
}

/// Repeated evaluations.
struct Evaluator<'a> {
    journal: Journal,
    operator: Operator,
    source: &'a mut dyn Source,
    dry_run: bool,
    valid: Duration,
}

impl<'a> Evaluator<'a> {
    fn new(config: &Config, driver: &Driver, source: &'a mut dyn Source) -> Result<Self> {
        let Signing { dry_run, valid, .. } = driver.signing;
        Ok(Self { journal: journal(config, driver)?, operator: operator(config, &driver.signing)?, source, dry_run, valid })
    }

    fn evaluate(&mut self) -> Result<Stepped> {
        let Latest { plan, record } = latest(&self.journal)?;
        let state = &record.after;
        let now = now();
        let (evaluation, files, unreadable) =
            if state.phase == Phase::Running { self.weigh(&plan, state, now)? } else { (None, 0, Vec::new()) };
        let (after, decision) = stage::step(&plan, state, &evaluation.clone().unwrap_or_default(), now);
        if let Some(evaluation) = evaluation.as_ref().filter(|_| !self.dry_run) {
            let event =
                Event::Evaluated { decision: decision.clone(), evaluation: evaluation.clone(), files, unreadable: unreadable.clone() };
            self.journal.append(&record, now, event, after.clone())?;
        }
        let published = self.publish(&plan, &after, now)?;
        Ok(Stepped {
            rollout: after.rollout.clone(),
            bundle: after.bundle,
            place: stage::place(&plan, &after),
            decision,
            evaluation,
            after,
            published,
            dry_run: self.dry_run,
            unreadable,
        })
    }

    /// Evaluates the evidence.
    fn weigh(&mut self, plan: &Plan, state: &State, now: UnixMillis) -> Result<(Option<Evaluation>, usize, Vec<String>)> {
        let evidence = self.source.read(plan, state)?;
        let since = now.since(evaluation::evidence_start(plan, state)).to_duration();
        let answers = plan.guards.iter().filter_map(|guard| match &guard.watched {
            Watched::Query { url, query, machine_label, .. } => {
                Some((guard.name.clone(), prometheus::ask(url, query, machine_label, since)))
            }
            Watched::Metric(_) | Watched::AgentFailures => None,
        });
        let answers: BTreeMap<String, Values> = answers.collect();
        let evaluation = evaluation::evaluate(plan, state, &evidence, &answers);
        let mut unreadable = evidence.unreadable;
        if evidence.unreadable_total > unreadable.len() {
            unreadable.push(format!("and {} more", evidence.unreadable_total - unreadable.len()));
        }
        Ok((Some(evaluation), evidence.files, unreadable))
    }

    /// Publishes the state's assignment if another one is published, and renews signatures before they expire.
    fn publish(&self, plan: &Plan, after: &State, now: UnixMillis) -> Result<bool> {
        let contents = self.operator.contents(true)?;
        let assignment = after.assignment(plan);
        if contents.assignment.as_ref() != Some(&assignment) {
            self.operator.change(Change::Assign(&assignment), self.dry_run)?;
            return Ok(!self.dry_run);
        }
        let left = contents
            .roles
            .iter()
            .filter(|role| role.role == "timestamp")
            .map(|role| role.expires_unix_s.saturating_sub(now.0 / 1_000))
            .min();
        if left.is_some_and(|left| Duration::from_secs(left) < self.valid.mul_f64(RENEW_AT)) {
            self.operator.change(Change::Refresh, self.dry_run)?;
        }
        Ok(false)
    }
}
