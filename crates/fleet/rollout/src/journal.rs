//! The log of a rollout: its state after each step, with the evidence for every decision.
//!
//! One JSON object per file, in a store, beside the repository or elsewhere:
//!
//! ```text
//! log/head.json                           the rollout, and the number of a recent record
//! log/bundle-7-20261121/00000000.json     the start, with the plan
//! log/bundle-7-20261121/00000001.json     an evaluation: the judgement of each guard, the decision and the state after it
//! ```
//!
//! # Invariants
//! - A record is written once, under a new number: of two programs that evaluate at the same time, one fails and
//!   changes nothing.
//! - The state is that of the last record. It is written before it is published; a program that finds another
//!   assignment published publishes that of the state.
//!
//! Records are not signed. A process that can write them, or the traces, can promote or roll back a rollout; it cannot
//! make machines follow anything that was not published under the keys.

use serde::{Deserialize, Serialize};
use store::Store;
use units::{Bytes, UnixMillis};

use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::stage::{Action, Decision, Evaluation, Phase, State};

/// Version of a record. Readers reject any other.
const SCHEMA: u32 = 1;
const HEAD: &str = "log/head.json";
/// Maximum size of a record.
const SIZE_MAX: Bytes = Bytes(1 << 20);
/// Maximum number of records newer than the head, which is written after each record.
const AHEAD_MAX: u64 = 1_000;

/// A step of a rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`] at the time of writing.
    schema: u32,
    /// Number within the rollout, from 0.
    pub number: u64,
    /// Time of the step, in milliseconds of Unix time.
    pub unix_ms: UnixMillis,
    /// The event.
    pub event: Event,
    /// The state after it.
    pub after: State,
}

/// An event of a rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The rollout started.
    Started {
        /// Its plan.
        plan: Plan,
    },
    /// The stage was evaluated.
    Evaluated {
        /// The decision.
        decision: Decision,
        /// The evaluation behind the decision.
        evaluation: Evaluation,
        /// Number of trace files with evidence.
        files: usize,
        /// Trace files that could not be read, some of them by name.
        unreadable: Vec<String>,
    },
    /// The operator acted.
    Acted {
        /// The action.
        action: Action,
        /// User name, if known.
        by: String,
        /// Reason given by the operator.
        why: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Head {
    rollout: String,
    number: u64,
}

/// The newest rollout of a log.
#[derive(Clone, Debug, PartialEq)]
pub struct Latest {
    /// Its plan.
    pub plan: Plan,
    /// Its last record.
    pub record: Record,
}

/// A log.
#[derive(Debug)]
pub struct Journal {
    store: Store,
}

impl Journal {
    /// Opens the log of a store.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn open(url: &str) -> Result<Self> {
        Ok(Self { store: Store::open(url)? })
    }

    /// Returns the newest rollout; `None` if there has been none.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::Evidence`] for an invalid record, or one of another version.
    pub fn latest(&self) -> Result<Option<Latest>> {
        let Some(head) = self.store.block_on(self.store.read(HEAD, SIZE_MAX))? else { return Ok(None) };
        let Head { rollout, number } = parse(HEAD, &head)?;
        let mut record = self
            .record(&rollout, number)?
            .ok_or_else(|| damaged(&path(&rollout, number), "missing, although log/head.json refers to it"))?;
        for number in number + 1..=number.saturating_add(AHEAD_MAX) {
            let Some(next) = self.record(&rollout, number)? else { break };
            record = next;
        }
        let first = path(&rollout, 0);
        match self.record(&rollout, 0)?.map(|record| record.event) {
            Some(Event::Started { plan }) => Ok(Some(Latest { plan, record })),
            _ => Err(damaged(&first, "not the start of a rollout")),
        }
    }

    /// Returns at most `many` records of a rollout, oldest first, up to number `last`.
    ///
    /// # Errors
    /// Those of [`Self::latest`].
    pub fn records(&self, rollout: &str, last: u64, many: u64) -> Result<Vec<Record>> {
        let first = (last + 1).saturating_sub(many);
        let records = (first..=last).map(|number| self.record(rollout, number)).collect::<Result<Vec<_>>>()?;
        Ok(records.into_iter().flatten().collect())
    }

    /// Starts a rollout.
    ///
    /// # Errors
    /// [`Error::Publish`] if a rollout is running, or this id was used before; [`Error::Store`].
    pub fn start(&self, state: &State, plan: &Plan) -> Result<Record> {
        if let Some(Latest { record, .. }) = self.latest()?
            && matches!(record.after.phase, Phase::Running | Phase::Stopped)
        {
            let what = format!("rollout {} of bundle {} is running", record.after.rollout, record.after.bundle);
            return Err(Error::publish(what, "wait until it is finished, or end it with `thermocline rollout rollback`"));
        }
        let event = Event::Started { plan: plan.clone() };
        let record = Record { schema: SCHEMA, number: 0, unix_ms: state.started_unix_ms, event, after: state.clone() };
        self.write(&record)?;
        Ok(record)
    }

    /// Appends a step.
    ///
    /// # Errors
    /// [`Error::Publish`] if another program has appended a step; [`Error::Store`].
    pub fn append(&self, last: &Record, unix_ms: UnixMillis, event: Event, after: State) -> Result<Record> {
        let record = Record { schema: SCHEMA, number: last.number + 1, unix_ms, event, after };
        self.write(&record)?;
        Ok(record)
    }

    fn write(&self, record: &Record) -> Result<()> {
        let (rollout, number) = (&record.after.rollout, record.number);
        let path = path(rollout, number);
        if !self.store.block_on(self.store.write(&path, line(&path, record)?, true))? {
            let remedy = if number == 0 { "use another id for the rollout" } else { "run only one program that evaluates; try again" };
            return Err(Error::publish(format!("{path} exists"), remedy));
        }
        self.store.block_on(self.store.write(HEAD, line(HEAD, &Head { rollout: rollout.clone(), number })?, false))?;
        Ok(())
    }

    fn record(&self, rollout: &str, number: u64) -> Result<Option<Record>> {
        let path = path(rollout, number);
        let Some(bytes) = self.store.block_on(self.store.read(&path, SIZE_MAX))? else { return Ok(None) };
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let Version { schema } = parse(&path, &bytes)?;
        if schema != SCHEMA {
            return Err(damaged(&path, &format!("schema {schema}; this program knows {SCHEMA}; use the program that wrote it")));
        }
        let record: Record = parse(&path, &bytes)?;
        if record.number != number || record.after.rollout != rollout {
            return Err(damaged(&path, "the record of another rollout or number"));
        }
        Ok(Some(record))
    }
}

fn path(rollout: &str, number: u64) -> String {
    format!("log/{rollout}/{number:08}.json")
}

fn line(path: &str, value: &impl Serialize) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value).map_err(|error| damaged(path, &error.to_string()))?;
    line.push(b'\n');
    Ok(line)
}

fn parse<'a, T: Deserialize<'a>>(path: &str, bytes: &'a [u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| damaged(path, &error.to_string()))
}

fn damaged(path: &str, what: &str) -> Error {
    Error::Evidence { what: format!("{path}: {what}") }
}

#[cfg(test)]
mod tests {
    use units::Millis;

    use super::*;

    const T: UnixMillis = UnixMillis(1_795_132_800_000);

    fn open(dir: &std::path::Path) -> Journal {
        Journal::open(dir.to_str().unwrap()).unwrap()
    }

    #[test]
    fn records_are_read_back_and_the_last_one_is_current() {
        let dir = tempfile::tempdir().unwrap();
        let journal = open(dir.path());
        assert_eq!(journal.latest().unwrap(), None);
        let (plan, state) = (Plan::default(), State::start("r-1", 7, Some(6), T));
        let mut last = journal.start(&state, &plan).unwrap();
        for minute in 1..=3 {
            let decision = Decision::Hold { why: format!("evaluation {minute}") };
            let event = Event::Evaluated { decision, evaluation: Evaluation::default(), files: 1, unreadable: Vec::new() };
            last = journal.append(&last, T + Millis(minute), event, state.clone()).unwrap();
        }
        let stopped = State { phase: Phase::Stopped, ..state };
        let event = Event::Acted { action: Action::Stop, by: "ann".to_owned(), why: "the weekend".to_owned() };
        last = journal.append(&last, T + Millis(4), event, stopped.clone()).unwrap();
        let latest = open(dir.path()).latest().unwrap().unwrap();
        assert_eq!((latest.record.clone(), latest.plan), (last, plan));
        assert_eq!(journal.records("r-1", 4, 2).unwrap().iter().map(|record| record.number).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(journal.records("r-1", 4, 100).unwrap().len(), 5);
        // A record that the head does not include yet is found.
        std::fs::write(dir.path().join(HEAD), r#"{"rollout":"r-1","number":1}"#).unwrap();
        assert_eq!(journal.latest().unwrap().unwrap().record, latest.record);
        let text = std::fs::read_to_string(dir.path().join("log/r-1/00000004.json")).unwrap();
        assert!(text.ends_with("}\n") && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn of_two_concurrent_programs_one_fails() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (open(dir.path()), open(dir.path()));
        let state = State::start("r-1", 7, None, T);
        let first = one.start(&state, &Plan::default()).unwrap();
        let event = || Event::Acted { action: Action::Pin, by: String::new(), why: String::new() };
        one.append(&first, T + Millis(1), event(), state.clone()).unwrap();
        let error = other.append(&first, T + Millis(1), event(), state.clone()).unwrap_err().to_string();
        assert!(error.contains("00000001.json exists") && error.contains("try again"), "{error}");
        let error = one.start(&State::start("r-2", 8, None, T), &Plan::default()).unwrap_err().to_string();
        assert!(error.contains("rollout r-1 of bundle 7 is running") && error.contains("rollback"), "{error}");
        let last = one.latest().unwrap().unwrap().record;
        one.append(&last, T + Millis(2), event(), State { phase: Phase::RolledBack, ..state.clone() }).unwrap();
        let error = one.start(&state, &Plan::default()).unwrap_err().to_string();
        assert!(error.contains("another id"), "{error}");
        one.start(&State::start("r-2", 8, None, T), &Plan::default()).unwrap();
        assert_eq!(one.latest().unwrap().unwrap().record.after.rollout, "r-2");
    }

    #[test]
    fn invalid_records_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let journal = open(dir.path());
        journal.start(&State::start("r", 7, None, T), &Plan::default()).unwrap();
        let path = dir.path().join("log/r/00000000.json");
        let sound = std::fs::read_to_string(&path).unwrap();
        let check = |text: &str, piece: &str| {
            std::fs::write(&path, text).unwrap();
            let error = journal.latest().unwrap_err().to_string();
            assert!(error.contains("00000000.json") && error.contains(piece), "{error}");
        };
        check("rubbish", "expected");
        check(&sound.replace("\"schema\":1,\"number\"", "\"schema\":2,\"number\""), "schema 2; this program knows 1");
        check(&sound.replace("\"number\":0", "\"number\":3"), "another rollout or number");
        for end in (0..sound.len() - 1).step_by(7) {
            std::fs::write(&path, &sound[..end]).unwrap();
            assert!(journal.latest().is_err(), "{end}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(journal.latest().unwrap_err().to_string().contains("missing"));
    }
}
