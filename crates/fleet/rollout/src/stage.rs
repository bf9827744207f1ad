//! The stages of a rollout: a state, and what becomes of it at each look.
//!
//! ```text
//! start -> running in stage 1 -> running in stage 2 -> ... -> finished
//!              |  ^                                              |
//!         stop |  | resume       a breach, or a human            | a human
//!              v  |                    |                         v
//!            stopped ------------------+-------------------> rolled back
//! ```
//!
//! # Invariants
//! - [`step`] and [`act`] are pure: the same state, sight and time give the same state and decision.
//! - Without evidence nothing is promoted. With a breach, whatever is pinned, the bundle is taken back: what holds machines in
//!   place must not hold harm in place.
//! - Holding is a decision and carries its reason.

use serde::{Deserialize, Serialize};

use crate::assignment::{ALL_PPM, Assignment, SCHEMA};
use crate::guard::Verdict;
use crate::look::Seen;
use crate::plan::{Plan, share};

/// Where a rollout is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Its id. Machines draw their places by it.
    pub rollout: String,
    /// The bundle's version.
    pub bundle: u64,
    /// What machines have that do not have the bundle; none is their configuration file.
    pub previous: Option<u64>,
    /// When it began, in milliseconds of Unix time.
    pub started_unix_ms: u64,
    /// What it is doing.
    pub phase: Phase,
    /// The stage that it is in, or ended in.
    pub stage: usize,
    /// When that stage began.
    pub since_unix_ms: u64,
    /// A human holds it in this stage. Guards still roll back.
    pub pinned: bool,
}

/// What a rollout is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It is looked at.
    Running,
    /// A human has stopped it: machines keep what they have, and nobody decides.
    Stopped,
    /// Every machine is back at what it had.
    RolledBack,
    /// All stages are done.
    Finished,
}

/// What a look decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// On to this stage.
    Promote {
        /// Its name.
        to: String,
    },
    /// All stages are done.
    Finish,
    /// The stage goes on.
    Hold {
        /// Why.
        why: String,
    },
    /// Every machine goes back to what it had.
    RollBack {
        /// Why.
        why: String,
    },
    /// There is nothing to decide.
    Rest {
        /// Why.
        why: String,
    },
}

/// What a human does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Stay in this stage.
    Pin,
    /// Stay as it is, and decide nothing.
    Stop,
    /// Go on after a pin or a stop.
    Resume,
    /// Take the bundle back.
    RollBack,
}

impl State {
    /// A rollout that begins now.
    #[must_use]
    pub fn start(rollout: &str, bundle: u64, previous: Option<u64>, now_unix_ms: u64) -> Self {
        Self {
            rollout: rollout.to_owned(),
            bundle,
            previous,
            started_unix_ms: now_unix_ms,
            phase: Phase::Running,
            stage: 0,
            since_unix_ms: now_unix_ms,
            pinned: false,
        }
    }

    /// Who follows what, in this state.
    #[must_use]
    pub fn assignment(&self, plan: &Plan) -> Assignment {
        let stage = plan.stages.get(self.stage);
        let (name, share_ppm, clusters) = match (self.phase, stage) {
            (Phase::Finished, _) | (_, None) => ("finished", ALL_PPM, Vec::new()),
            (Phase::RolledBack, _) => ("rolled back", 0, Vec::new()),
            (Phase::Running | Phase::Stopped, Some(stage)) => (stage.name.as_str(), stage.share_ppm, stage.clusters.clone()),
        };
        Assignment {
            schema: SCHEMA,
            rollout: self.rollout.clone(),
            bundle: (self.phase != Phase::RolledBack).then_some(self.bundle),
            previous: self.previous,
            stage: name.to_owned(),
            share_ppm,
            control_ppm: if self.phase == Phase::Finished && plan.release_control { 0 } else { plan.control_ppm },
            clusters,
            pinned: self.pinned,
        }
    }
}

/// What becomes of a rollout at a look.
#[must_use]
pub fn step(plan: &Plan, state: &State, seen: &Seen, now_unix_ms: u64) -> (State, Decision) {
    let decision = decide(plan, state, seen);
    let next = match &decision {
        Decision::Promote { .. } => State { stage: state.stage + 1, since_unix_ms: now_unix_ms, ..state.clone() },
        Decision::Finish => State { phase: Phase::Finished, since_unix_ms: now_unix_ms, ..state.clone() },
        Decision::RollBack { .. } => State { phase: Phase::RolledBack, since_unix_ms: now_unix_ms, ..state.clone() },
        Decision::Hold { .. } | Decision::Rest { .. } => state.clone(),
    };
    (next, decision)
}

fn decide(plan: &Plan, state: &State, seen: &Seen) -> Decision {
    let rest = |why: &str| Decision::Rest { why: why.to_owned() };
    match state.phase {
        Phase::Running => {}
        Phase::Stopped => return rest("stopped; `thermocline rollout resume` goes on"),
        Phase::RolledBack => return rest("rolled back; fix the bundle and start a new rollout"),
        Phase::Finished => return rest("finished"),
    }
    let breaches: Vec<String> = seen
        .judgements
        .iter()
        .filter(|judged| judged.verdict == Verdict::Breach)
        .map(|judged| format!("{}: {}", judged.guard, judged.why))
        .collect();
    if !breaches.is_empty() {
        return Decision::RollBack { why: breaches.join("; ") };
    }
    let Some(stage) = plan.stages.get(state.stage) else { return rest("there is no such stage in the plan") };
    let waits = waits(plan, state, seen);
    if !waits.is_empty() {
        return Decision::Hold { why: waits.join("; ") };
    }
    if state.pinned {
        return Decision::Hold { why: format!("pinned in {}; `thermocline rollout resume` goes on", stage.name) };
    }
    plan.stages.get(state.stage + 1).map_or(Decision::Finish, |next| Decision::Promote { to: next.name.clone() })
}

/// Everything that a stage still waits for.
fn waits(plan: &Plan, state: &State, seen: &Seen) -> Vec<String> {
    let Some(stage) = plan.stages.get(state.stage) else { return Vec::new() };
    let mut waits = Vec::new();
    let hours = |ms: u64| format!("{}.{} h", ms / 3_600_000, ms % 3_600_000 / 360_000);
    if seen.covered_ms < stage.least_ms {
        waits.push(format!("evidence covers {} of {}", hours(seen.covered_ms), hours(stage.least_ms)));
    }
    for (what, machines) in [("with the bundle", seen.treated_machines), ("of control", seen.control_machines)] {
        if machines < plan.machines_min {
            waits.push(format!("{machines} machines {what} were heard of, {} are needed", plan.machines_min));
        }
    }
    if seen.treated_machines >= plan.machines_min && seen.following < plan.following_min {
        let [following, wanted] = [seen.following, plan.following_min].map(|share| format!("{:.0} %", share * 100.0));
        waits
            .push(format!("{following} of the machines that should have bundle {} are seen to have it, {wanted} are needed", state.bundle));
    }
    for (judged, _) in seen.judgements.iter().zip(&plan.guards).filter(|(_, guard)| guard.proof) {
        // Where no proof is asked for, something must have been measured all the same.
        if if stage.proof { judged.verdict != Verdict::Pass } else { judged.measured.is_none() } {
            waits.push(format!("{}: {}", judged.guard, judged.why));
        }
    }
    waits
}

/// What becomes of a rollout when a human acts.
///
/// # Errors
/// What is in the way, and what to do.
pub fn act(plan: &Plan, state: &State, action: Action, now_unix_ms: u64) -> Result<State, String> {
    let name = plan.stages.get(state.stage).map_or("its last stage", |stage| &stage.name);
    match (action, state.phase) {
        (Action::RollBack, Phase::RolledBack) => Err("it is rolled back already".to_owned()),
        (Action::RollBack, _) => Ok(State { phase: Phase::RolledBack, since_unix_ms: now_unix_ms, ..state.clone() }),
        (_, Phase::RolledBack) => Err("it is rolled back; start a new rollout".to_owned()),
        (_, Phase::Finished) => Err("it is finished; `thermocline rollout rollback` takes the bundle back".to_owned()),
        (Action::Pin, Phase::Stopped) => Err("it is stopped, which is more than pinned".to_owned()),
        (Action::Pin, Phase::Running) if state.pinned => Err(format!("it is pinned in {name} already")),
        (Action::Pin, Phase::Running) => Ok(State { pinned: true, ..state.clone() }),
        (Action::Stop, Phase::Stopped) => Err("it is stopped already".to_owned()),
        (Action::Stop, Phase::Running) => Ok(State { phase: Phase::Stopped, ..state.clone() }),
        // Nobody looked in the meantime: the stage's test begins anew.
        (Action::Resume, Phase::Stopped) => Ok(State { phase: Phase::Running, pinned: false, since_unix_ms: now_unix_ms, ..state.clone() }),
        (Action::Resume, Phase::Running) if state.pinned => Ok(State { pinned: false, ..state.clone() }),
        (Action::Resume, Phase::Running) => Err(format!("it goes on in {name}; there is nothing to resume")),
    }
}

/// In words: `canary (3% of the machines)`.
#[must_use]
pub fn place(plan: &Plan, state: &State) -> String {
    let assignment = state.assignment(plan);
    let clusters = if assignment.clusters.is_empty() { String::new() } else { format!(" in {}", assignment.clusters.join(", ")) };
    format!("{} ({} of the machines{clusters})", assignment.stage, share(assignment.share_ppm))
}

#[cfg(test)]
mod tests;
