//! Replay: a journal's recorded inputs, run through the policies again.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::journal::{AgentRecord, JobRecord, Record};

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replay {
    /// Decisions repeated.
    pub periods: usize,
    /// The same by controller.
    pub controllers: BTreeMap<&'static str, usize>,
    /// Decisions whose controller has no starting record before them, which therefore cannot be repeated.
    pub skipped: usize,
    /// Decisions that differ from the recorded ones, as indices among all repeated decisions.
    pub differing: Vec<usize>,
}

/// Runs the recorded inputs through the policies and compares their decisions with the recorded ones.
#[must_use]
pub fn replay(records: &[Record]) -> Replay {
    let mut agent: Option<AgentRecord> = None;
    let mut jobs: HashMap<(&str, u64), JobRecord> = HashMap::new();
    let mut result = Replay::default();
    for record in records {
        match record {
            Record::Agent(start) => agent = Some(start.clone()),
            Record::Job(job) => drop(jobs.insert((job.job.as_str(), job.id), (**job).clone())),
            _ => {}
        }
        let Some((controller, job, id)) = record.decision() else { continue };
        match agent.as_mut().and_then(|agent| record.replay(agent, jobs.get_mut(&(job, id)))) {
            None => {
                result.skipped += 1;
                continue;
            }
            Some(true) => {}
            Some(false) => result.differing.push(result.periods),
        }
        result.periods += 1;
        *result.controllers.entry(controller).or_default() += 1;
    }
    result
}
