//! Guardrails: whether the machines with a new bundle do worse than the control group.
//!
//! # Verdicts
//! A guard compares one figure of the treated machines with that of the control group, over the time since the stage
//! began, and bounds the harm `h`: the difference, positive if the treated machines do worse. It allows a margin `m`
//! (non-inferiority).
//!
//! | verdict | condition |
//! |---|---|
//! | breach | the lower bound of `h` is above `m` |
//! | pass | the upper bound of `h` is below `m` |
//! | hold | neither, or too few machines |
//!
//! With a `limit`, nothing is a breach while the figure of the treated group is within the limit, and an upper bound of
//! that figure within the limit is a pass: a tuned bundle may promote more than the old one as long as it meets the
//! objective.
//!
//! The bounds hold jointly over all evaluations of a stage ([`crate::sequential`]).
//!
//! # Few machines
//! Machines that all report zero have no spread, which would prove anything. A standard error is therefore at least the
//! one that a further machine, different by the margin, would cause. Failures are a binary value per machine; one
//! failed and one working machine are added to each group (Agresti and Caffo, *Simple and effective confidence
//! intervals for proportions and differences of proportions result from adding two successes and two failures*, The
//! American Statistician 2000).

use serde::{Deserialize, Serialize};

use crate::contrast::{Part, Unit, contrast, count};
use crate::evidence::{MachineId, Slot};
use crate::metric::{Better, Metric};
use crate::sequential::SequentialTest;

/// How much worse the treated machines may do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Margin {
    /// In the unit of the figure.
    Absolute(f64),
    /// As a share of the control group's figure.
    Relative(f64),
}

/// The figure that a guard watches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Watched {
    /// A figure of the traces, by its name in [`crate::metric::METRICS`].
    Metric(String),
    /// Share of machines whose agent became silent, restarted, or reverted to the previous bundle by itself.
    AgentFailures,
    /// One value per machine, from a Prometheus query.
    Query {
        /// URL of the HTTP API, such as `http://prometheus:9090`.
        url: String,
        /// The query; `$since` is replaced by the time since the stage began, as in `rate(errors_total[$since])`.
        query: String,
        /// Label with the machine's name as in its trace; a colon and a port after it are removed.
        machine_label: String,
        /// Which direction of the value is better.
        better: Better,
    },
}

/// A guardrail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// Name for display.
    pub name: String,
    /// The figure it watches.
    pub watched: Watched,
    /// How much worse the treated machines may do.
    pub margin: Margin,
    /// Value that is good enough, whatever the control group does.
    pub limit: Option<f64>,
    /// Whether a stage with `proof` waits for a pass of this guard; otherwise it only waits for the absence of a
    /// breach.
    pub proof: bool,
}

impl Guard {
    /// Returns which direction of the figure is better.
    #[must_use]
    pub fn better(&self) -> Better {
        match &self.watched {
            Watched::Metric(name) => Metric::named(name).map_or(Better::Lower, |metric| metric.better),
            Watched::AgentFailures => Better::Lower,
            Watched::Query { better, .. } => *better,
        }
    }
}

/// The side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The control group.
    Control,
    /// The machines that have, or should have, the new bundle.
    Treated,
}

/// Evidence of one machine.
#[derive(Clone, Debug)]
pub struct MachineEvidence<'a> {
    /// The machine.
    pub id: &'a MachineId,
    /// Its side.
    pub side: Side,
    /// Its entries before the rollout.
    pub before: &'a Slot,
    /// Its entries since the stage began.
    pub since: &'a Slot,
    /// The failure of its agent, if any.
    pub failure: Option<Failure>,
}

/// A failure of a machine's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// It stopped writing traces.
    Silent,
    /// It restarted.
    Restarted,
    /// It had the bundle and reverted by itself.
    Reverted,
}

/// Verdict of a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Not worse than allowed.
    Pass,
    /// Undecided.
    Hold,
    /// Worse than allowed.
    Breach,
}

/// Verdict of a guard with its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// Name of the guard.
    pub guard: String,
    /// Its verdict.
    pub verdict: Verdict,
    /// Reason, in words.
    pub why: String,
    /// The figures, if there are enough machines.
    pub measured: Option<Measurement>,
}

/// The figures behind a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Figure of the control group.
    pub control: f64,
    /// Figure of the treated group.
    pub treated: f64,
    /// How much worse the treated machines do, adjusted for the values from before.
    pub harm: f64,
    /// Lower bound of the harm.
    pub harm_lower: f64,
    /// Upper bound of the harm.
    pub harm_upper: f64,
    /// Allowed harm.
    pub margin: f64,
    /// A harm beyond the margin by this much is detected in this evaluation with a probability of 80 %.
    pub detectable: f64,
    /// Machines of the control group with a value.
    pub control_machines: usize,
    /// Treated machines with a value.
    pub treated_machines: usize,
}

/// Statistical power for [`Measurement::detectable`].
const POWER: f64 = 0.8;

/// Judges one guard. `values` are the results of a query, one per machine; other guards ignore them.
#[must_use]
pub fn judge(guard: &Guard, machines: &[MachineEvidence], values: Option<&Values>, test: SequentialTest, machines_min: usize) -> Judgement {
    let judgement = |verdict, why: String, measured| Judgement { guard: guard.name.clone(), verdict, why, measured };
    if let Some(Err(error)) = values {
        return judgement(Verdict::Hold, format!("the query failed: {error}"), None);
    }
    if test.multiplier().is_infinite() {
        return judgement(Verdict::Hold, "the stage has no evidence yet".to_owned(), None);
    }
    let values = values.and_then(|values| values.as_ref().ok());
    let mut units: Vec<Unit> = machines.iter().map(|machine| unit(guard, machine, values)).collect();
    let counted =
        [Side::Control, Side::Treated].map(|side| units.iter().filter(|unit| unit.groups[side as usize].is_some_and(counts)).count());
    if counted[0] < machines_min || counted[1] < machines_min {
        let why = format!(
            "not enough machines: {} of control and {} treated have a value, {machines_min} each are needed",
            counted[0], counted[1]
        );
        return judgement(Verdict::Hold, why, None);
    }
    if guard.watched == Watched::AgentFailures {
        for (side, failed) in [(0, 0.0), (0, 1.0), (1, 0.0), (1, 1.0)] {
            let mut unit = Unit::default();
            unit.groups[side] = Some(Part { numerator: failed, denominator: 1.0 });
            units.push(unit);
        }
    }
    let Some(found) = contrast(&units) else {
        return judgement(Verdict::Hold, "not enough machines have a value".to_owned(), None);
    };
    let [control, treated] = shares(guard, &units, counted).unwrap_or(found.values);
    let worse = if guard.better() == Better::Lower { 1.0 } else { -1.0 };
    let margin = match guard.margin {
        Margin::Absolute(margin) => margin,
        Margin::Relative(share) => share * control.abs(),
    };
    let floor = (margin / count(counted[0])).hypot(margin / count(counted[1]));
    let error = found.standard_error.hypot(floor);
    let bounds = test.bounds(worse * found.difference, error, found.degrees_of_freedom);
    let own = test.bounds(worse * treated, found.standard_errors[1].hypot(margin / count(counted[1])), count(counted[1]) - 1.0);
    let limit = guard.limit.map(|limit| worse * limit);
    let measured = Measurement {
        control,
        treated,
        harm: worse * found.difference,
        harm_lower: bounds.lower,
        harm_upper: bounds.upper,
        margin,
        detectable: test.detectable(error, found.degrees_of_freedom, POWER),
        control_machines: counted[0],
        treated_machines: counted[1],
    };
    let (verdict, why) = verdict(&measured, limit.map(|limit| (limit, worse * treated, own.upper)));
    let why = if guard.watched == Watched::AgentFailures { format!("{why}: {}", failures(machines)) } else { why.to_owned() };
    judgement(verdict, why, Some(measured))
}

/// The verdict of a measurement. With a limit on the treated group alone, `limit` is that limit, the group's value and its upper bound.
fn verdict(measured: &Measurement, limit: Option<(f64, f64, f64)>) -> (Verdict, &'static str) {
    if measured.harm_lower > measured.margin && limit.is_none_or(|(limit, value, _)| value > limit) {
        (Verdict::Breach, "worse than allowed: the lower bound is above the margin")
    } else if measured.harm_upper < measured.margin {
        (Verdict::Pass, "no worse than allowed: the upper bound is below the margin")
    } else if limit.is_some_and(|(limit, _, upper)| upper <= limit) {
        (Verdict::Pass, "within the limit: the upper bound meets it")
    } else {
        (Verdict::Hold, "too early to decide")
    }
}

/// The values of a query by machine, or the error of the query.
pub type Values = std::result::Result<std::collections::BTreeMap<String, f64>, String>;

fn unit(guard: &Guard, machine: &MachineEvidence, values: Option<&std::collections::BTreeMap<String, f64>>) -> Unit {
    let whole = |numerator| Some(Part { numerator, denominator: 1.0 });
    let (part, before) = match &guard.watched {
        Watched::Metric(name) => match Metric::named(name) {
            Some(metric) => (Some(metric.part(&machine.since.sums)), Some(metric.part(&machine.before.sums))),
            None => (None, None),
        },
        Watched::AgentFailures => (whole(f64::from(u8::from(machine.failure.is_some()))), None),
        Watched::Query { .. } => {
            let value = values.and_then(|values| values.get(&machine.id.machine)).copied();
            (value.filter(|value| value.is_finite()).and_then(whole), None)
        }
    };
    let mut unit = Unit { before, ..Unit::default() };
    unit.groups[machine.side as usize] = part;
    unit
}

fn counts(part: Part) -> bool {
    part.denominator > 0.0
}

/// Returns the shares of failed machines without those that were added.
fn shares(guard: &Guard, units: &[Unit], counted: [usize; 2]) -> Option<[f64; 2]> {
    (guard.watched == Watched::AgentFailures).then(|| {
        [0, 1].map(|side| {
            let failed: f64 = units.iter().filter_map(|unit| unit.groups[side]).map(|part| part.numerator).sum();
            (failed - 1.0) / count(counted[side])
        })
    })
}

fn failures(machines: &[MachineEvidence]) -> String {
    let of = |side: Side| {
        let with = |failure: Failure| machines.iter().filter(|machine| machine.side == side && machine.failure == Some(failure)).count();
        let [silent, restarted, reverted] = [Failure::Silent, Failure::Restarted, Failure::Reverted].map(with);
        format!("{silent} silent, {restarted} restarted, {reverted} reverted")
    };
    format!("treated {}; control {}", of(Side::Treated), of(Side::Control))
}

#[cfg(test)]
mod tests;
