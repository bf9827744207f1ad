//! Texts of rollout steps.

use std::fmt::Write;

use ::rollout::guard::{Judgement, Verdict};
use ::rollout::journal::{Event, Record};
use ::rollout::plan::Plan;
use ::rollout::stage::{Decision, Evaluation, Phase, State};
use serde::Serialize;
use trace::calendar;

use crate::table::Table;

/// The result of one evaluation.
#[derive(Debug, Serialize)]
pub(super) struct Stepped {
    pub(super) rollout: String,
    pub(super) bundle: u64,
    pub(super) place: String,
    pub(super) decision: Decision,
    pub(super) evaluation: Option<Evaluation>,
    pub(super) after: State,
    pub(super) published: bool,
    pub(super) dry_run: bool,
    pub(super) unreadable: Vec<String>,
}

/// A decision as text.
pub(crate) fn decision(decision: &Decision) -> String {
    match decision {
        Decision::Promote { to } => format!("promote: to {to}"),
        Decision::Finish => "finish: all stages are done".to_owned(),
        Decision::Hold { why } => format!("hold: {why}"),
        Decision::RollBack { why } => format!("roll back: {why}"),
        Decision::Rest { why } => format!("nothing to decide: {why}"),
    }
}

/// The phase of a rollout.
pub(crate) fn phase(state: &State) -> &'static str {
    match state.phase {
        Phase::Running if state.pinned => "running, pinned",
        Phase::Running => "running",
        Phase::Stopped => "stopped",
        Phase::RolledBack => "rolled back",
        Phase::Finished => "finished",
    }
}

pub(super) fn stepped(stepped: &Stepped) -> String {
    let Stepped { rollout, bundle, place, evaluation, dry_run, published, unreadable, .. } = stepped;
    let would = if *dry_run { "dry run, nothing is written: " } else { "" };
    let mut text = format!("{would}rollout {rollout} of bundle {bundle}: {}\n", decision(&stepped.decision));
    if let Some(evaluation) = evaluation {
        text += &judged(evaluation);
    }
    for file in unreadable {
        let _ = writeln!(text, "unreadable: {file}");
    }
    let _ = writeln!(text, "now in {place}{}", if *published { "; published" } else { "" });
    text
}

pub(super) fn judged(evaluation: &Evaluation) -> String {
    let Evaluation { treated_machines, control_machines, covered_ms, following, judgements } = evaluation;
    let text = format!(
        "{treated_machines} machines with the bundle ({:.0} % report it), {control_machines} control machines; evidence covers {}.{} h\n",
        following * 100.0,
        covered_ms.0 / 3_600_000,
        covered_ms.0 % 3_600_000 / 360_000,
    );
    let mut table = Table::new(&["<", "<guard", "control", "bundle", "harm, bounds", "allowed", "<why"]);
    judgements.iter().for_each(|judgement| row(&mut table, judgement));
    text + &table.to_string()
}

fn row(table: &mut Table, judgement: &Judgement) {
    let verdict = match judgement.verdict {
        Verdict::Pass => "pass",
        Verdict::Hold => "hold",
        Verdict::Breach => "BREACH",
    };
    let Judgement { guard, why, measured, .. } = judgement;
    let [control, treated, within, allowed] = measured.map_or_else(
        || ["-", "-", "-", "-"].map(ToOwned::to_owned),
        |m| [number(m.control), number(m.treated), format!("{} to {}", number(m.harm_lower), number(m.harm_upper)), number(m.margin)],
    );
    table.row(&[&verdict, guard, &control, &treated, &within, &allowed, why]);
}

/// With three significant digits.
fn number(value: f64) -> String {
    if value == 0.0 || (0.001..1e6).contains(&value.abs()) { format!("{value:.4}") } else { format!("{value:.2e}") }
}

pub(super) fn status(plan: &Plan, state: &State, place: &str, agrees: Option<bool>, records: &[Record]) -> String {
    let State { rollout, bundle, since_unix_ms, .. } = state;
    let mut text = format!("rollout {rollout} of bundle {bundle}: {}, in {place} since {}\n", phase(state), calendar::time(*since_unix_ms));
    if agrees == Some(false) {
        text += "the published assignment differs; the next `thermocline rollout step` publishes it again\n";
    }
    for (at, stage) in plan.stages.iter().enumerate() {
        let mark = if at == state.stage { ">" } else { " " };
        let clusters = if stage.clusters.is_empty() { String::new() } else { format!(" of {}", stage.clusters.join(", ")) };
        let share = stage.share_ppm.to_string();
        let _ = writeln!(
            text,
            "{mark} {:<16} {share:>6}{clusters}, {} h at least{}",
            stage.name,
            stage.least_ms.0 / 3_600_000,
            if stage.proof { ", with proof" } else { "" }
        );
    }
    let mut last_evaluation = None;
    for record in records {
        let what = match &record.event {
            Event::Started { .. } => "started".to_owned(),
            Event::Evaluated { decision: decided, evaluation, .. } => {
                last_evaluation = Some(evaluation);
                decision(decided)
            }
            Event::Acted { action, by, why } => {
                let because = if why.is_empty() { String::new() } else { format!(": {why}") };
                format!("{action:?} by {}{because}", if by.is_empty() { "unknown user" } else { by })
            }
        };
        let _ = writeln!(text, "{} {what}", calendar::time(record.unix_ms));
    }
    if let Some(evaluation) = last_evaluation {
        text += &judged(evaluation);
    }
    text
}
