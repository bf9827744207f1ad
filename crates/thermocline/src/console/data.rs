//! What the console shows: read by a thread of its own, and kept as JSON for the server.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Result;
use config::Config;
use model::front::Objective;
use serde::Serialize;
use serde_json::{Value, json};

use super::fleet::Fleet;
use super::machine::Machine;
use super::{rollout, what_if};
use crate::fleet::traces::inputs::{Inputs, Local};
use crate::output::describe;
use crate::pool::status::Reach;

/// What the console reads.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) config: Config,
    /// Journal files; none: those in the state directory.
    pub(crate) journals: Vec<PathBuf>,
    /// Stores of traces; none: no fleet is shown.
    pub(crate) traces: Vec<String>,
    pub(crate) objective: Objective,
    pub(crate) price_per_gib: Option<f64>,
    /// `None`: no rollout is shown.
    pub(crate) rollout: Option<rollout::Source>,
    /// `None`: no pool is shown.
    pub(crate) pool: Option<Reach>,
}

/// One source, and what was read from it.
#[derive(Debug, Default)]
pub(super) enum View<T> {
    /// Not named, or with nothing in it yet: the text says what to do.
    Absent(String),
    #[default]
    Loading,
    /// Cannot be read.
    Failed(String),
    Ready(Arc<T>),
}

/// A view, and when it was read.
#[derive(Debug)]
pub(super) struct Timed<T> {
    view: View<T>,
    read_unix_ms: Option<u64>,
}

impl<T> Default for Timed<T> {
    fn default() -> Self {
        Self { view: View::Loading, read_unix_ms: None }
    }
}

impl<T> Timed<T> {
    pub(super) fn now(view: View<T>) -> Self {
        Self { view, read_unix_ms: Some(now_unix_ms()) }
    }

    /// The state, as the page shows it.
    fn state(&self) -> Value {
        let mut state = self.view.state();
        state["read_unix_ms"] = json!(self.read_unix_ms);
        state
    }
}

/// A fleet, with the answers that are the same for every request as JSON.
struct FleetAnswers {
    fleet: Fleet,
    summary: Vec<u8>,
    jobs: Vec<u8>,
}

#[derive(Default)]
pub(super) struct Views {
    machine: View<(Machine, Vec<u8>)>,
    fleet: View<FleetAnswers>,
    what_if: View<Vec<u8>>,
    pub(super) rollout: Timed<Vec<u8>>,
    pub(super) pool: Timed<Vec<u8>>,
    read_unix_ms: Option<u64>,
}

/// What was read, shared with the server.
#[derive(Default)]
pub(crate) struct Data(RwLock<Views>);

/// An answer of the API: JSON, or why there is none.
#[derive(Debug)]
pub(crate) enum Found {
    Json(Vec<u8>),
    /// No view, job or cluster has this name.
    Unknown,
    /// The view has nothing, yet.
    NotReady(Value),
}

impl<T> View<T> {
    /// The state, as the page shows it.
    pub(super) fn state(&self) -> Value {
        match self {
            Self::Absent(why) => json!({ "state": "absent", "why": why }),
            Self::Loading => json!({ "state": "loading" }),
            Self::Failed(why) => json!({ "state": "failed", "why": why }),
            Self::Ready(_) => json!({ "state": "ready" }),
        }
    }

    fn ready(&self, answer: impl FnOnce(&T) -> Option<Vec<u8>>) -> Found {
        match self {
            Self::Ready(value) => answer(value).map_or(Found::Unknown, Found::Json),
            other => Found::NotReady(other.state()),
        }
    }

    pub(super) fn of(read: Result<T>) -> Self {
        match read {
            Ok(value) => Self::Ready(Arc::new(value)),
            Err(error) => {
                let why = describe(&error);
                log::warn!("{why}");
                Self::Failed(why)
            }
        }
    }
}

pub(super) fn json_of(value: &impl Serialize) -> Vec<u8> {
    // Plain structures with text keys: serde_json has no reason to fail.
    serde_json::to_vec(value).unwrap_or_default()
}

impl Data {
    pub(super) fn set(&self, change: impl FnOnce(&mut Views)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Reads everything; what was read before is shown until then.
    pub(crate) fn read(&self, sources: &Sources) {
        let machine = read_machine(sources);
        self.set(|views| views.machine = machine);
        self.read_traces(sources);
    }

    /// Reads what is named only: without journals no machine, whatever is in the state directory.
    pub(super) fn read_named(&self, sources: &Sources) {
        let absent = || View::Absent("it was not named".to_owned());
        let machine = if sources.journals.is_empty() { absent() } else { read_machine(sources) };
        self.set(|views| views.machine = machine);
        self.read_traces(sources);
    }

    fn read_traces(&self, sources: &Sources) {
        if sources.traces.is_empty() {
            let why = "no traces are named; start the console with --traces and a directory or store, such as --traces /srv/traces: agents \
                       write them where trace.store says";
            self.set(|views| (views.fleet, views.what_if) = (View::Absent(why.to_owned()), View::Absent(why.to_owned())));
        } else {
            self.read_fleet(sources);
        }
        self.set(|views| views.read_unix_ms = Some(now_unix_ms()));
    }

    fn read_fleet(&self, sources: &Sources) {
        // The copies exist as long as this binding.
        let copies: Vec<Local> = match Inputs::list(&sources.traces).and_then(|inputs| inputs.all_local()) {
            Ok(copies) if copies.is_empty() => {
                let why = Inputs::nothing(&sources.traces);
                return self.set(|views| (views.fleet, views.what_if) = (View::Absent(why.clone()), View::Absent(why)));
            }
            Ok(copies) => copies,
            Err(error) => {
                let why = describe(&error);
                log::warn!("{why}");
                return self.set(|views| (views.fleet, views.what_if) = (View::Failed(why.clone()), View::Failed(why)));
            }
        };
        let paths: Vec<PathBuf> = copies.iter().map(|copy| copy.path().to_owned()).collect();
        let fleet = Fleet::read(&paths, sources.objective, sources.price_per_gib).map(|fleet| {
            let (summary, jobs) = (json_of(&fleet.summary()), json_of(&fleet.jobs()));
            FleetAnswers { fleet, summary, jobs }
        });
        self.set(|views| views.fleet = View::of(fleet));
        let answers = what_if::replay(&sources.config, &paths, sources.objective.percentile, sources.price_per_gib);
        self.set(|views| views.what_if = View::of(answers.map(|answers| json_of(&answers))));
    }

    /// Answers a path below `/api/`.
    pub(crate) fn find(&self, path: &str) -> Found {
        let views = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let parts: Vec<&str> = path.split('/').collect();
        match parts.as_slice() {
            ["status"] => Found::Json(json_of(&json!({
                "version": env!("CARGO_PKG_VERSION"),
                "read_unix_ms": views.read_unix_ms,
                "machine": views.machine.state(),
                "fleet": views.fleet.state(),
                "what_if": views.what_if.state(),
                "rollout": views.rollout.state(),
                "pool": views.pool.state(),
            }))),
            ["machine"] => views.machine.ready(|(_, summary)| Some(summary.clone())),
            ["machine", "job", index] => views.machine.ready(|(machine, _)| Some(json_of(&machine.job(index.parse().ok()?)?))),
            ["fleet"] => views.fleet.ready(|answers| Some(answers.summary.clone())),
            ["fleet", "series"] => views.fleet.ready(|answers| answers.fleet.part(None).as_ref().map(json_of)),
            ["fleet", "cluster", index] => views.fleet.ready(|answers| answers.fleet.part(Some(index.parse().ok()?)).as_ref().map(json_of)),
            ["fleet", "jobs"] => views.fleet.ready(|answers| Some(answers.jobs.clone())),
            ["fleet", "job", index] => views.fleet.ready(|answers| answers.fleet.job(index.parse().ok()?).as_ref().map(json_of)),
            ["rollout"] => views.rollout.view.ready(|answer| Some(answer.clone())),
            ["pool"] => views.pool.view.ready(|answer| Some(answer.clone())),
            ["what-if"] => views.what_if.ready(|answers| Some(answers.clone())),
            _ => Found::Unknown,
        }
    }
}

/// Now, in milliseconds since the epoch.
pub(super) fn now_unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn read_machine(sources: &Sources) -> View<(Machine, Vec<u8>)> {
    use advise::report::ReportError;
    match Machine::read(&sources.journals, &sources.config.agent.state_dir) {
        Ok(machine) => {
            let summary = json_of(&machine.summary(sources.price_per_gib));
            View::Ready(Arc::new((machine, summary)))
        }
        Err(error @ (ReportError::NoJournal(_) | ReportError::Empty)) => View::Absent(error.to_string()),
        Err(error) => View::of(Err(error.into())),
    }
}
