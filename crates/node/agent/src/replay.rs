//! Replay: a journal's recorded inputs, fed through the policies again.

use std::collections::HashMap;

use policy::thresholds::Thresholds;
use policy::{background, balance, cold_age, pressure, slowdown};
use serde::Serialize;

use crate::journal::{BackgroundRecord, BackgroundStart, JobRecord, PeriodRecord, PressureRecord, PressureStart, Record};

/// What a replay found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Replay {
    /// Periods fed through the policies.
    pub periods: usize,
    /// Periods whose job had no starting record and so could not be replayed.
    pub skipped: usize,
    /// Periods whose decision came out differently, by index among all periods.
    pub differing: Vec<usize>,
}

/// The controllers of one job.
#[derive(Clone, Copy)]
struct Controllers {
    params: cold_age::Params,
    state: cold_age::State,
    pressure: Option<PressureStart>,
    background: Option<BackgroundStart>,
}

impl From<&JobRecord> for Controllers {
    fn from(job: &JobRecord) -> Self {
        Self { params: job.params, state: job.state, pressure: job.pressure, background: job.background }
    }
}

impl Controllers {
    /// Whether the recorded decision comes out again.
    fn cold_age(&mut self, thresholds: &Thresholds, period: &PeriodRecord) -> bool {
        let (state, step) = cold_age::step(&self.params, thresholds, &self.state, &period.input);
        self.state = state;
        step == period.step
    }

    /// Whether the recorded decision and leaning come out again; `None` where the controller's start is not recorded.
    fn pressure(&mut self, period: &PressureRecord) -> Option<bool> {
        let start = self.pressure.as_mut()?;
        let (state, step) = pressure::step(&start.params, &start.state, &period.input);
        let (balance, lean) = balance::step(&start.balance, &period.balance);
        (start.state, start.balance) = (state, balance);
        Some(step == period.step && lean == period.lean)
    }

    /// Whether the recorded decision comes out again; `None` where the controller's start is not recorded.
    fn background(&mut self, period: &BackgroundRecord) -> Option<bool> {
        let start = self.background.as_mut()?;
        let (state, decision) = background::step(&start.params, &start.state, &period.input);
        start.state = state;
        Some(decision == period.decision)
    }
}

/// Feeds the recorded inputs through the policies and compares their decisions with the recorded ones.
#[must_use]
pub fn replay(records: &[Record]) -> Replay {
    let mut thresholds = None;
    let mut jobs: HashMap<(&str, u64), Controllers> = HashMap::new();
    let mut result = Replay::default();
    for record in records {
        let same = match record {
            Record::Agent(agent) => {
                thresholds = Some(agent.thresholds);
                continue;
            }
            Record::Job(job) => {
                jobs.insert((job.job.as_str(), job.id), job.as_ref().into());
                continue;
            }
            Record::Event { .. } => continue,
            Record::Period(period) => {
                let controllers = jobs.get_mut(&(period.job.as_str(), period.id));
                thresholds.as_ref().zip(controllers).map(|(thresholds, job)| job.cold_age(thresholds, period))
            }
            Record::Pressure(period) => jobs.get_mut(&(period.job.as_str(), period.id)).and_then(|job| job.pressure(period)),
            Record::Slow(period) => Some(slowdown::step(&period.params, &period.input) == period.step),
            Record::Background(period) => jobs.get_mut(&(period.job.as_str(), period.id)).and_then(|job| job.background(period)),
        };
        match same {
            None => {
                result.skipped += 1;
                continue;
            }
            Some(true) => {}
            Some(false) => result.differing.push(result.periods),
        }
        result.periods += 1;
    }
    result
}
