//! Evaluates the current stage of a rollout: judges every guard by the evidence of its machines. Pure.

use std::collections::BTreeMap;

use units::{Millis, UnixMillis};

use crate::assignment::{Group, assigned};
use crate::evidence::{Evidence, MachineId, Slot};
use crate::guard::{Failure, MachineEvidence, Side, Values, Watched, judge};
use crate::plan::Plan;
use crate::sequential::SequentialTest;
use crate::stage::{Evaluation, State};

/// Slots of a machine's evidence.
pub const SLOTS: usize = 3;
/// Before the rollout.
const BEFORE: usize = 0;
/// From the start of the stage until its evidence counts.
const SETTLING: usize = 1;
/// Since the evidence of the stage counts.
const SINCE: usize = 2;

/// Returns the time from which the evidence of the current stage counts.
#[must_use]
pub fn evidence_start(plan: &Plan, state: &State) -> UnixMillis {
    state.since_unix_ms + plan.settle_ms
}

/// Returns the start of the baseline period before the rollout.
#[must_use]
pub fn baseline_start(plan: &Plan, state: &State) -> UnixMillis {
    state.started_unix_ms - plan.baseline_ms
}

/// Returns the slot of what began at this time. What began between the start of the rollout and its current stage has none: some
/// of the machines had the bundle then.
#[must_use]
pub fn slot(plan: &Plan, state: &State, start: UnixMillis) -> Option<usize> {
    if start >= evidence_start(plan, state) {
        Some(SINCE)
    } else if start >= state.since_unix_ms {
        Some(SETTLING)
    } else {
        (start < state.started_unix_ms && start >= baseline_start(plan, state)).then_some(BEFORE)
    }
}

/// Evaluates the current stage. `evidence` was read with [`slot`]; `values` are the results of the guards' queries, by
/// guard.
#[must_use]
pub fn evaluate(plan: &Plan, state: &State, evidence: &Evidence, values: &BTreeMap<String, Values>) -> Evaluation {
    let Some(stage) = plan.stages.get(state.stage) else { return Evaluation::default() };
    let assignment = state.assignment(plan);
    let participants = evidence.machines.iter().filter_map(|(id, slots)| {
        let [before, settling, since] = slots.as_slice() else { return None };
        let included = stage.clusters.is_empty() || stage.clusters.contains(&id.cluster);
        match assigned(&assignment, &id.machine, &id.cluster) {
            Group::Bundle(_) => Some(Participant { id, side: Side::Treated, before, settling, since }),
            Group::Control if included => Some(Participant { id, side: Side::Control, before, settling, since }),
            Group::Control | Group::Previous => None,
        }
    });
    let participants: Vec<Participant> = participants.collect();
    let frontier = [Side::Control, Side::Treated].iter().map(|&side| median_last(&participants, side)).max().unwrap_or_default();
    // A machine that was silent before the stage began does not count.
    let alive = |participant: &&Participant| participant.last() >= state.since_unix_ms - plan.silence_ms;
    let participants: Vec<&Participant> = participants.iter().filter(alive).collect();
    let machines: Vec<MachineEvidence> = participants.iter().map(|participant| participant.evidence(plan, state, frontier)).collect();

    let covered_ms = frontier.since(evidence_start(plan, state));
    let elapsed = covered_ms.as_f64() / stage.least_ms.max(Millis(1)).as_f64();
    let test = SequentialTest { alpha: plan.alpha(), elapsed };
    let judgements = plan.guards.iter().map(|guard| {
        let missing = || Err("it was not sent".to_owned());
        let values = matches!(guard.watched, Watched::Query { .. }).then(|| values.get(&guard.name).cloned().unwrap_or_else(missing));
        judge(guard, &machines, values.as_ref(), test, plan.machines_min)
    });
    let judgements = judgements.collect();
    let of = |side: Side| machines.iter().filter(|machine| machine.side == side).count();
    let reporting = |participant: &&&Participant| participant.side == Side::Treated && participant.since.entries > 0;
    let treated: Vec<&&Participant> = participants.iter().filter(reporting).collect();
    let following = treated.iter().filter(|participant| participant.had_bundle(state.bundle)).count();
    Evaluation {
        treated_machines: of(Side::Treated),
        control_machines: of(Side::Control),
        covered_ms,
        following: if treated.is_empty() { 0.0 } else { crate::contrast::count(following) / crate::contrast::count(treated.len()) },
        judgements,
    }
}

/// A machine of one side, with its slots.
struct Participant<'a> {
    id: &'a MachineId,
    side: Side,
    before: &'a Slot,
    settling: &'a Slot,
    since: &'a Slot,
}

impl<'a> Participant<'a> {
    /// Returns the end of its last entry.
    fn last(&self) -> UnixMillis {
        [self.before, self.settling, self.since].iter().map(|slot| slot.last_unix_ms).max().unwrap_or_default()
    }

    /// Returns whether the bundle was in effect on the machine at any time of the stage.
    fn had_bundle(&self, bundle: u64) -> bool {
        self.settling.bundles.contains(&bundle) || self.since.bundles.contains(&bundle)
    }

    fn evidence(&self, plan: &Plan, state: &State, frontier: UnixMillis) -> MachineEvidence<'a> {
        let started = |slot: &Slot| slot.starts_unix_ms.iter().any(|&start| start >= state.since_unix_ms);
        let latest = self.settling.latest_bundle.max(self.since.latest_bundle);
        let failure = if self.last() < frontier - plan.silence_ms {
            Some(Failure::Silent)
        } else if self.side == Side::Treated && self.had_bundle(state.bundle) && latest.1 != state.bundle {
            Some(Failure::Reverted)
        } else if started(self.settling) || started(self.since) {
            Some(Failure::Restarted)
        } else {
            None
        };
        MachineEvidence { id: self.id, side: self.side, before: self.before, since: self.since, failure }
    }
}

/// Returns the median of the ends of the last entries of a side's machines. A few early or late machines do not move
/// it, and a side that is silent as a whole does not delay the other.
fn median_last(participants: &[Participant], side: Side) -> UnixMillis {
    let mut lasts: Vec<UnixMillis> = participants.iter().filter(|participant| participant.side == side).map(Participant::last).collect();
    lasts.sort_unstable();
    lasts.get(lasts.len() / 2).copied().unwrap_or_default()
}
