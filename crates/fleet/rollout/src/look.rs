//! One look at a rollout: out of what machines did, what each guard says.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::assignment::{Which, assigned};
use crate::evidence::{Evidence, MachineId, Sight, Slot};
use crate::guard::{Failure, Judgement, Side, Values, Watched, Witness, judge};
use crate::plan::Plan;
use crate::sequential::Look;
use crate::stage::State;

/// Slots of a machine's evidence.
pub const SLOTS: usize = 3;
const BEFORE: usize = 0;
const SETTLING: usize = 1;
const SINCE: usize = 2;

/// What a look saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Machines that should have the bundle, and were heard of.
    pub treated_machines: usize,
    /// Machines of the control group that were heard of.
    pub control_machines: usize,
    /// How much of the stage the evidence covers, in milliseconds.
    pub covered_ms: u64,
    /// Share of the treated machines that are seen to follow the bundle, or did.
    pub following: f64,
    /// What each guard says.
    pub judgements: Vec<Judgement>,
}

/// When the evidence of a state's stage begins.
#[must_use]
pub fn begins(plan: &Plan, state: &State) -> u64 {
    state.since_unix_ms.saturating_add(plan.settle_ms)
}

/// When evidence of what machines were like before the rollout begins.
#[must_use]
pub fn baseline_begins(plan: &Plan, state: &State) -> u64 {
    state.started_unix_ms.saturating_sub(plan.baseline_ms)
}

/// The slot that an entry belongs to. What lies between the rollout's start and its current stage belongs to none: some of the
/// machines had the bundle then.
#[must_use]
pub fn slot(plan: &Plan, state: &State, sight: &Sight) -> Option<usize> {
    let start = sight.figures.start_unix_ms;
    if start >= begins(plan, state) {
        Some(SINCE)
    } else if start >= state.since_unix_ms {
        Some(SETTLING)
    } else {
        (start < state.started_unix_ms && start >= baseline_begins(plan, state)).then_some(BEFORE)
    }
}

/// Looks. Pure: `evidence` was read with [`slot`], `values` are what the queries of guards answered, by guard.
#[must_use]
pub fn look(plan: &Plan, state: &State, evidence: &Evidence, values: &BTreeMap<String, Values>) -> Seen {
    let Some(stage) = plan.stages.get(state.stage) else { return Seen::default() };
    let assignment = state.assignment(plan);
    let sided = evidence.machines.iter().filter_map(|(id, slots)| {
        let [before, settling, since] = slots.as_slice() else { return None };
        let included = stage.clusters.is_empty() || stage.clusters.contains(&id.cluster);
        match assigned(&assignment, &id.machine, &id.cluster) {
            Which::Bundle(_) => Some(Sided { id, side: Side::Treated, before, settling, since }),
            Which::Control if included => Some(Sided { id, side: Side::Control, before, settling, since }),
            Which::Control | Which::Previous => None,
        }
    });
    let sided: Vec<Sided> = sided.collect();
    let frontier = [Side::Control, Side::Treated].iter().map(|&side| median_last(&sided, side)).max().unwrap_or(0);
    // A machine that had fallen silent before the stage began is not its concern.
    let alive = |sided: &&Sided| sided.last() >= state.since_unix_ms.saturating_sub(plan.silence_ms);
    let sided: Vec<&Sided> = sided.iter().filter(alive).collect();
    let witnesses: Vec<Witness> = sided.iter().map(|sided| sided.witness(plan, state, frontier)).collect();

    let covered_ms = frontier.saturating_sub(begins(plan, state));
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a rollout")]
    let elapsed = covered_ms as f64 / stage.least_ms.max(1) as f64;
    let test = Look { alpha: plan.alpha(), elapsed };
    let judgements = plan.guards.iter().map(|guard| {
        let missing = || Err("it was not asked".to_owned());
        let values = matches!(guard.watched, Watched::Query { .. }).then(|| values.get(&guard.name).cloned().unwrap_or_else(missing));
        judge(guard, &witnesses, values.as_ref(), test, plan.machines_min)
    });
    let judgements = judgements.collect();
    let of = |side: Side| witnesses.iter().filter(|witness| witness.side == side).count();
    let treated: Vec<&&Sided> = sided.iter().filter(|sided| sided.side == Side::Treated && sided.since.entries > 0).collect();
    let following = treated.iter().filter(|sided| sided.has_had(state.bundle)).count();
    Seen {
        treated_machines: of(Side::Treated),
        control_machines: of(Side::Control),
        covered_ms,
        following: if treated.is_empty() { 0.0 } else { crate::contrast::count(following) / crate::contrast::count(treated.len()) },
        judgements,
    }
}

/// A machine with its side and slots.
struct Sided<'a> {
    id: &'a MachineId,
    side: Side,
    before: &'a Slot,
    settling: &'a Slot,
    since: &'a Slot,
}

impl<'a> Sided<'a> {
    /// When it was last heard of.
    fn last(&self) -> u64 {
        [self.before, self.settling, self.since].iter().map(|slot| slot.last_unix_ms).max().unwrap_or(0)
    }

    fn has_had(&self, bundle: u64) -> bool {
        self.settling.bundles.contains(&bundle) || self.since.bundles.contains(&bundle)
    }

    fn witness(&self, plan: &Plan, state: &State, frontier: u64) -> Witness<'a> {
        let started = |slot: &Slot| slot.starts_unix_ms.iter().any(|&start| start >= state.since_unix_ms);
        let latest = self.settling.latest_bundle.max(self.since.latest_bundle);
        let failure = if self.last() < frontier.saturating_sub(plan.silence_ms) {
            Some(Failure::Silent)
        } else if self.side == Side::Treated && self.has_had(state.bundle) && latest.1 != state.bundle {
            Some(Failure::Reverted)
        } else if started(self.settling) || started(self.since) {
            Some(Failure::Restarted)
        } else {
            None
        };
        Witness { id: self.id, side: self.side, before: self.before, since: self.since, failure }
    }
}

/// Up to when most of a side's machines have been heard of. A few that are early or late do not move it; a side that has fallen
/// silent as a whole does not hold up the other.
fn median_last(sided: &[Sided], side: Side) -> u64 {
    let mut lasts: Vec<u64> = sided.iter().filter(|sided| sided.side == side).map(Sided::last).collect();
    lasts.sort_unstable();
    lasts.get(lasts.len() / 2).copied().unwrap_or(0)
}
