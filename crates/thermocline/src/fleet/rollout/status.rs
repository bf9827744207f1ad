//! The newest rollout of a store, as `thermocline rollout status` and the console show it.

use ::rollout::journal::{Journal, Latest, Record};
use ::rollout::plan::Plan;
use ::rollout::repository::Contents;
use ::rollout::stage::{self, State};
use anyhow::Result;
use config::Config;
use serde::Serialize;

use super::arguments::Repository;
use super::{reader, store};

/// Why there is nothing to show, and what to do.
pub(crate) const NOT_STARTED: &str = "no rollout was started; see `thermocline rollout start VERSION`";

/// A rollout and its last steps.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    /// After the last step.
    pub(crate) state: State,
    /// The current stage, such as `canary (3% of the machines)`.
    pub(crate) place: String,
    /// Whether the published assignment is that of the state; `None` if it could not be read.
    pub(crate) published_agrees: Option<bool>,
    /// The last steps, oldest first.
    pub(crate) records: Vec<Record>,
    pub(crate) plan: Plan,
    /// What is published, or why it cannot be verified.
    #[serde(skip)]
    pub(crate) published: Result<Contents>,
}

/// Reads the newest rollout and its last steps; `None` if none was started.
///
/// `known` are steps that were read before, oldest first. A step is written once, so they are not read again.
pub(crate) fn read(config: &Config, repository: &Repository, log: Option<&str>, last: u64, known: &[Record]) -> Result<Option<Status>> {
    let journal = Journal::open(&log_url(log, store(config, repository))?)?;
    let Some(Latest { plan, record }) = journal.latest()? else { return Ok(None) };
    let first = (record.number + 1).saturating_sub(last);
    let same = |step: &&Record| step.after.rollout == record.after.rollout && (first..=record.number).contains(&step.number);
    let mut records: Vec<Record> = known.iter().filter(same).cloned().collect();
    let next = records.last().map_or(first, |step| step.number + 1);
    records.extend(journal.records(&record.after.rollout, record.number, record.number + 1 - next)?);
    let published = reader(config, repository).and_then(|operator| Ok(operator.contents(true)?));
    let agrees = published.as_ref().ok().map(|contents| contents.assignment.as_ref() == Some(&record.after.assignment(&plan)));
    let place = stage::place(&plan, &record.after);
    Ok(Some(Status { state: record.after, place, published_agrees: agrees, records, plan, published }))
}

/// The URL of the log; by default the bundle store.
pub(super) fn log_url(log: Option<&str>, store: Result<String>) -> Result<String> {
    log.map_or(store, |log| Ok(log.to_owned()))
}
