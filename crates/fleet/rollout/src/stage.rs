//! The stages of a rollout: a state machine that advances with each evaluation.
//!
//! ```text
//! start -> running in stage 1 -> running in stage 2 -> ... -> finished
//!              |  ^                                              |
//!         stop |  | resume       a breach, or the operator       | the operator
//!              v  |                    |                         v
//!            stopped ------------------+-------------------> rolled back
//! ```
//!
//! # Invariants
//! - [`step`] and [`act`] are pure: the same state, evaluation and time give the same state and decision.
//! - Nothing is promoted without evidence. A breach rolls the bundle back even if the rollout is pinned: a pin must not
//!   preserve harm.
//! - Holding is a decision and carries its reason.

use serde::{Deserialize, Serialize};
use units::{Millis, RatioPpm, UnixMillis};

use crate::assignment::{Assignment, SCHEMA};
use crate::guard::{Judgement, Verdict};
use crate::plan::Plan;

/// The evaluation of a stage: the judgements of all guards and the evidence behind them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Machines that should have the bundle and have reported.
    pub treated_machines: usize,
    /// Machines of the control group that have reported.
    pub control_machines: usize,
    /// Time of the stage that the evidence covers.
    pub covered_ms: Millis,
    /// Share of the treated machines on which the bundle is, or was, in effect.
    pub following: f64,
    /// Judgements of the guards, in the order of the plan.
    pub judgements: Vec<Judgement>,
}

/// State of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Id of the rollout. Machines derive their places from it.
    pub rollout: String,
    /// Version of the bundle.
    pub bundle: u64,
    /// Version that machines without the bundle follow; `None` is their configuration file.
    pub previous: Option<u64>,
    /// Start of the rollout.
    pub started_unix_ms: UnixMillis,
    /// Phase of the rollout.
    pub phase: Phase,
    /// Index of the current or last stage.
    pub stage: usize,
    /// Start of that stage or of the final phase.
    pub since_unix_ms: UnixMillis,
    /// Whether the operator holds the rollout in this stage. Guards still roll back.
    pub pinned: bool,
}

/// Phase of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It is evaluated.
    Running,
    /// The operator has stopped it: assignments stay, and nothing is decided.
    Stopped,
    /// All machines follow the previous bundle again.
    RolledBack,
    /// All stages are complete.
    Finished,
}

/// Decision after an evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Begin the next stage.
    Promote {
        /// Name of the stage.
        to: String,
    },
    /// All stages are complete.
    Finish,
    /// Stay in the stage.
    Hold {
        /// Reason.
        why: String,
    },
    /// Return all machines to the previous bundle.
    RollBack {
        /// Reason.
        why: String,
    },
    /// Nothing to decide: the rollout is not running.
    Rest {
        /// Reason.
        why: String,
    },
}

/// Action of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Hold the rollout in this stage.
    Pin,
    /// Keep the assignments and decide nothing.
    Stop,
    /// Continue after a pin or a stop.
    Resume,
    /// Roll the bundle back.
    RollBack,
}

impl State {
    /// Creates the state of a rollout that starts now.
    #[must_use]
    pub fn start(rollout: &str, bundle: u64, previous: Option<u64>, now: UnixMillis) -> Self {
        Self {
            rollout: rollout.to_owned(),
            bundle,
            previous,
            started_unix_ms: now,
            phase: Phase::Running,
            stage: 0,
            since_unix_ms: now,
            pinned: false,
        }
    }

    /// Returns the assignment for this state.
    #[must_use]
    pub fn assignment(&self, plan: &Plan) -> Assignment {
        let stage = plan.stages.get(self.stage);
        let (name, share_ppm, clusters) = match (self.phase, stage) {
            (Phase::Finished, _) | (_, None) => ("finished", RatioPpm::ONE, Vec::new()),
            (Phase::RolledBack, _) => ("rolled back", RatioPpm(0), Vec::new()),
            (Phase::Running | Phase::Stopped, Some(stage)) => (stage.name.as_str(), stage.share_ppm, stage.clusters.clone()),
        };
        Assignment {
            schema: SCHEMA,
            rollout: self.rollout.clone(),
            bundle: (self.phase != Phase::RolledBack).then_some(self.bundle),
            previous: self.previous,
            stage: name.to_owned(),
            share_ppm,
            control_ppm: if self.phase == Phase::Finished && plan.release_control { RatioPpm(0) } else { plan.control_ppm },
            clusters,
            pinned: self.pinned,
        }
    }
}

/// Decides after an evaluation. Returns the next state and the decision.
#[must_use]
pub fn step(plan: &Plan, state: &State, evaluation: &Evaluation, now: UnixMillis) -> (State, Decision) {
    let decision = decide(plan, state, evaluation);
    let next = match &decision {
        Decision::Promote { .. } => State { stage: state.stage + 1, since_unix_ms: now, ..state.clone() },
        Decision::Finish => State { phase: Phase::Finished, since_unix_ms: now, ..state.clone() },
        Decision::RollBack { .. } => State { phase: Phase::RolledBack, since_unix_ms: now, ..state.clone() },
        Decision::Hold { .. } | Decision::Rest { .. } => state.clone(),
    };
    (next, decision)
}

fn decide(plan: &Plan, state: &State, evaluation: &Evaluation) -> Decision {
    let rest = |why: &str| Decision::Rest { why: why.to_owned() };
    match state.phase {
        Phase::Running => {}
        Phase::Stopped => return rest("stopped; `thermocline rollout resume` continues it"),
        Phase::RolledBack => return rest("rolled back; fix the bundle and start a new rollout"),
        Phase::Finished => return rest("finished"),
    }
    let breaches: Vec<String> = evaluation
        .judgements
        .iter()
        .filter(|judgement| judgement.verdict == Verdict::Breach)
        .map(|judgement| format!("{}: {}", judgement.guard, judgement.why))
        .collect();
    if !breaches.is_empty() {
        return Decision::RollBack { why: breaches.join("; ") };
    }
    let Some(stage) = plan.stages.get(state.stage) else { return rest("the plan has no such stage") };
    let missing = missing(plan, state, evaluation);
    if !missing.is_empty() {
        return Decision::Hold { why: missing.join("; ") };
    }
    if state.pinned {
        return Decision::Hold { why: format!("pinned in {}; `thermocline rollout resume` continues it", stage.name) };
    }
    plan.stages.get(state.stage + 1).map_or(Decision::Finish, |next| Decision::Promote { to: next.name.clone() })
}

/// Returns the conditions for the end of the stage that are not met yet.
fn missing(plan: &Plan, state: &State, evaluation: &Evaluation) -> Vec<String> {
    let Some(stage) = plan.stages.get(state.stage) else { return Vec::new() };
    let mut missing = Vec::new();
    let hours = |Millis(ms): Millis| format!("{}.{} h", ms / 3_600_000, ms % 3_600_000 / 360_000);
    if evaluation.covered_ms < stage.least_ms {
        missing.push(format!("evidence covers {} of {}", hours(evaluation.covered_ms), hours(stage.least_ms)));
    }
    for (what, machines) in [("with the bundle", evaluation.treated_machines), ("of control", evaluation.control_machines)] {
        if machines < plan.machines_min {
            missing.push(format!("{machines} machines {what} have reported, {} are needed", plan.machines_min));
        }
    }
    if evaluation.treated_machines >= plan.machines_min && evaluation.following < plan.following_min {
        let [following, expected] = [evaluation.following, plan.following_min].map(|share| format!("{:.0} %", share * 100.0));
        missing.push(format!("{following} of the machines that should have bundle {} follow it, {expected} are needed", state.bundle));
    }
    for (judgement, _) in evaluation.judgements.iter().zip(&plan.guards).filter(|(_, guard)| guard.proof) {
        // Without `proof` in the stage, the guard must still have measured something.
        if if stage.proof { judgement.verdict != Verdict::Pass } else { judgement.measured.is_none() } {
            missing.push(format!("{}: {}", judgement.guard, judgement.why));
        }
    }
    missing
}

/// Applies an action of the operator. Returns the next state.
///
/// # Errors
/// The reason why the action is not possible, and what to do.
pub fn act(plan: &Plan, state: &State, action: Action, now: UnixMillis) -> Result<State, String> {
    let name = plan.stages.get(state.stage).map_or("its last stage", |stage| &stage.name);
    match (action, state.phase) {
        (Action::RollBack, Phase::RolledBack) => Err("it is rolled back already".to_owned()),
        (Action::RollBack, _) => Ok(State { phase: Phase::RolledBack, since_unix_ms: now, ..state.clone() }),
        (_, Phase::RolledBack) => Err("it is rolled back; start a new rollout".to_owned()),
        (_, Phase::Finished) => Err("it is finished; `thermocline rollout rollback` takes the bundle back".to_owned()),
        (Action::Pin, Phase::Stopped) => Err("it is stopped, which is more than pinned".to_owned()),
        (Action::Pin, Phase::Running) if state.pinned => Err(format!("it is pinned in {name} already")),
        (Action::Pin, Phase::Running) => Ok(State { pinned: true, ..state.clone() }),
        (Action::Stop, Phase::Stopped) => Err("it is stopped already".to_owned()),
        (Action::Stop, Phase::Running) => Ok(State { phase: Phase::Stopped, ..state.clone() }),
        // The evidence has a gap: the test of the stage starts over.
        (Action::Resume, Phase::Stopped) => Ok(State { phase: Phase::Running, pinned: false, since_unix_ms: now, ..state.clone() }),
        (Action::Resume, Phase::Running) if state.pinned => Ok(State { pinned: false, ..state.clone() }),
        (Action::Resume, Phase::Running) => Err(format!("it is running in {name}; there is nothing to resume")),
    }
}

/// Describes the current stage, such as `canary (3% of the machines)`.
#[must_use]
pub fn place(plan: &Plan, state: &State) -> String {
    let assignment = state.assignment(plan);
    let clusters = if assignment.clusters.is_empty() { String::new() } else { format!(" in {}", assignment.clusters.join(", ")) };
    format!("{} ({} of the machines{clusters})", assignment.stage, assignment.share_ppm)
}

#[cfg(test)]
mod tests;
