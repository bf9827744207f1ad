//! Guardrails: whether the machines with a new bundle do worse than those that are held back.
//!
//! # Verdicts
//! A guard compares one figure of the treated machines with that of the control group, over the time since the stage began, and
//! bounds the harm `h`: the difference, positive where the treated do worse. It allows a margin `m` (non-inferiority).
//!
//! | verdict | when |
//! |---|---|
//! | breach | `h` is above `m` surely: its lower bound is |
//! | pass | `h` is below `m` surely: its upper bound is |
//! | hold | neither, or there are too few machines to tell |
//!
//! With a `limit` nothing is a breach while the treated group's own figure keeps it, and keeping it surely is a pass: a
//! tuned bundle may well promote more than the old one, as long as it meets the objective.
//!
//! "Surely" holds at all looks of a stage together ([`crate::sequential`]).
//!
//! # Few machines
//! Machines that all report zero have no spread, and would prove anything. So no standard error is below what one more machine,
//! that is off by the margin, would make of it. Failures are yes or no per machine; a failed and a sound machine are added to
//! each group (Agresti and Caffo, *Simple and effective confidence intervals for proportions and differences of proportions
//! result from adding two successes and two failures*, The American Statistician 2000).

use serde::{Deserialize, Serialize};

use crate::contrast::{Part, Unit, contrast, count};
use crate::evidence::{MachineId, Slot};
use crate::metric::{Better, METRICS, Metric};
use crate::sequential::Look;

/// How much worse the treated may do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Margin {
    /// By so much, in the figure's own unit.
    Absolute(f64),
    /// By this share of the control group's figure.
    Relative(f64),
}

/// What a guard looks at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Watched {
    /// A figure of the traces, by its name in [`METRICS`].
    Metric(String),
    /// The share of machines whose agent fell silent, started anew, or went back to the bundle before by itself.
    AgentFailures,
    /// One value per machine, by a query to Prometheus.
    Query {
        /// Where its HTTP API is, such as `http://prometheus:9090`.
        url: String,
        /// What is asked; `$since` stands for the time since the stage began, as in `rate(errors_total[$since])`.
        query: String,
        /// The label that names the machine as its trace does; what follows a colon in it is a port.
        machine_label: String,
        /// Which way the value should go.
        better: Better,
    },
}

/// A guardrail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// What people call it.
    pub name: String,
    /// What it looks at.
    pub watched: Watched,
    /// How much worse the treated may do.
    pub margin: Margin,
    /// What is good enough, whatever the control group does.
    pub limit: Option<f64>,
    /// Whether a stage that asks for proof waits for it to pass, and not only for no breach.
    pub proof: bool,
}

impl Guard {
    /// Which way its figure should go.
    #[must_use]
    pub fn better(&self) -> Better {
        match &self.watched {
            Watched::Metric(name) => Metric::named(name).map_or(Better::Lower, |metric| metric.better),
            Watched::AgentFailures => Better::Lower,
            Watched::Query { better, .. } => *better,
        }
    }
}

/// Which side of the comparison a machine is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Held back.
    Control,
    /// Has the new bundle, or should have.
    Treated,
}

/// What one machine says.
#[derive(Clone, Debug)]
pub struct Witness<'a> {
    /// Which one.
    pub id: &'a MachineId,
    /// On which side.
    pub side: Side,
    /// What it did before the rollout.
    pub before: &'a Slot,
    /// What it has done since the stage began.
    pub since: &'a Slot,
    /// What is wrong with its agent, if anything is.
    pub failure: Option<Failure>,
}

/// What is wrong with a machine's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// It wrote traces, and does no more.
    Silent,
    /// It started anew.
    Restarted,
    /// It had the bundle and went back by itself.
    Reverted,
}

/// What a guard says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No worse than allowed, surely.
    Pass,
    /// Not known.
    Hold,
    /// Worse than allowed, surely.
    Breach,
}

/// What a guard says, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// Which guard.
    pub guard: String,
    /// Its verdict.
    pub verdict: Verdict,
    /// Why, in words.
    pub why: String,
    /// The figures, where there are enough machines to tell.
    pub measured: Option<Measured>,
}

/// The figures behind a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The control group's figure.
    pub control: f64,
    /// The treated group's.
    pub treated: f64,
    /// By how much the treated do worse, with what machines were like before taken off.
    pub harm: f64,
    /// It is above this.
    pub harm_lower: f64,
    /// It is below this.
    pub harm_upper: f64,
    /// What is allowed.
    pub margin: f64,
    /// A harm beyond the margin by this much is seen at this look with a chance of 80 %.
    pub detectable: f64,
    /// Machines that say something of it.
    pub control_machines: usize,
    /// The same of the treated.
    pub treated_machines: usize,
}

/// The power that [`Measured::detectable`] is told for.
const POWER: f64 = 0.8;

/// Judges one guard. `values` are those of a query, one per machine; other guards do not look at them.
#[must_use]
pub fn judge(guard: &Guard, witnesses: &[Witness], values: Option<&Values>, look: Look, machines_min: usize) -> Judgement {
    let told = |verdict, why: String, measured| Judgement { guard: guard.name.clone(), verdict, why, measured };
    if let Some(Err(what)) = values {
        return told(Verdict::Hold, format!("the query failed: {what}"), None);
    }
    if look.multiplier().is_infinite() {
        return told(Verdict::Hold, "the stage has no evidence yet".to_owned(), None);
    }
    let values = values.and_then(|values| values.as_ref().ok());
    let mut units: Vec<Unit> = witnesses.iter().map(|witness| unit(guard, witness, values)).collect();
    let heard =
        [Side::Control, Side::Treated].map(|side| units.iter().filter(|unit| unit.groups[side as usize].is_some_and(counts)).count());
    if heard[0] < machines_min || heard[1] < machines_min {
        let why = format!(
            "not enough machines: {} of control and {} treated say something of it, {machines_min} each are needed",
            heard[0], heard[1]
        );
        return told(Verdict::Hold, why, None);
    }
    if guard.watched == Watched::AgentFailures {
        for (side, failed) in [(0, 0.0), (0, 1.0), (1, 0.0), (1, 1.0)] {
            let mut unit = Unit::default();
            unit.groups[side] = Some(Part { numerator: failed, denominator: 1.0 });
            units.push(unit);
        }
    }
    let Some(found) = contrast(&units) else {
        return told(Verdict::Hold, "not enough machines say something of it".to_owned(), None);
    };
    let [control, treated] = shares(guard, &units, heard).unwrap_or(found.values);
    let worse = if guard.better() == Better::Lower { 1.0 } else { -1.0 };
    let margin = match guard.margin {
        Margin::Absolute(margin) => margin,
        Margin::Relative(share) => share * control.abs(),
    };
    let floor = (margin / count(heard[0])).hypot(margin / count(heard[1]));
    let error = found.standard_error.hypot(floor);
    let bounds = look.bounds(worse * found.difference, error, found.degrees_of_freedom);
    let own = look.bounds(worse * treated, found.standard_errors[1].hypot(margin / count(heard[1])), count(heard[1]) - 1.0);
    let limit = guard.limit.map(|limit| worse * limit);
    let measured = Measured {
        control,
        treated,
        harm: worse * found.difference,
        harm_lower: bounds.lower,
        harm_upper: bounds.upper,
        margin,
        detectable: look.detectable(error, found.degrees_of_freedom, POWER),
        control_machines: heard[0],
        treated_machines: heard[1],
    };
    let (verdict, why) = if bounds.lower > margin && limit.is_none_or(|limit| worse * treated > limit) {
        (Verdict::Breach, "worse than allowed, surely")
    } else if bounds.upper < margin {
        (Verdict::Pass, "no worse than allowed, surely")
    } else if limit.is_some_and(|limit| own.upper <= limit) {
        (Verdict::Pass, "within the limit, surely")
    } else {
        (Verdict::Hold, "too early to tell")
    };
    let why = if guard.watched == Watched::AgentFailures { format!("{why}: {}", failures(witnesses)) } else { why.to_owned() };
    told(verdict, why, Some(measured))
}

/// The values of a query by machine, or why there are none.
pub type Values = std::result::Result<std::collections::BTreeMap<String, f64>, String>;

fn unit(guard: &Guard, witness: &Witness, values: Option<&std::collections::BTreeMap<String, f64>>) -> Unit {
    let whole = |numerator| Some(Part { numerator, denominator: 1.0 });
    let (part, before) = match &guard.watched {
        Watched::Metric(name) => match METRICS.iter().find(|metric| metric.name == name) {
            Some(metric) => (Some(metric.part(&witness.since.sums)), Some(metric.part(&witness.before.sums))),
            None => (None, None),
        },
        Watched::AgentFailures => (whole(f64::from(u8::from(witness.failure.is_some()))), None),
        Watched::Query { .. } => {
            let value = values.and_then(|values| values.get(&witness.id.machine)).copied();
            (value.filter(|value| value.is_finite()).and_then(whole), None)
        }
    };
    let mut unit = Unit { before, ..Unit::default() };
    unit.groups[witness.side as usize] = part;
    unit
}

fn counts(part: Part) -> bool {
    part.denominator > 0.0
}

/// The shares of failed machines as they are, without those that were added.
fn shares(guard: &Guard, units: &[Unit], heard: [usize; 2]) -> Option<[f64; 2]> {
    (guard.watched == Watched::AgentFailures).then(|| {
        [0, 1].map(|side| {
            let failed: f64 = units.iter().filter_map(|unit| unit.groups[side]).map(|part| part.numerator).sum();
            (failed - 1.0) / count(heard[side])
        })
    })
}

fn failures(witnesses: &[Witness]) -> String {
    let of = |side: Side| {
        let with = |failure: Failure| witnesses.iter().filter(|witness| witness.side == side && witness.failure == Some(failure)).count();
        let [silent, restarted, reverted] = [Failure::Silent, Failure::Restarted, Failure::Reverted].map(with);
        format!("{silent} silent, {restarted} restarted, {reverted} reverted")
    };
    format!("treated {}; control {}", of(Side::Treated), of(Side::Control))
}

#[cfg(test)]
mod tests;
