//! A staged rollout, read as by `thermocline rollout status`, in the shape of the page: stages with their last evidence, guards,
//! and the steps so far.

use ::rollout::guard::{Guard, Margin, Watched};
use ::rollout::journal::{Event, Record};
use ::rollout::metric::{Metric, Unit};
use ::rollout::plan::Stage;
use ::rollout::stage::{Action, Decision, Evaluation, Phase, State};
use anyhow::Result;
use config::Config;
use serde::Serialize;
use serde_json::{Value, json};

use crate::fleet::rollout::arguments::Repository;
use crate::fleet::rollout::status::{self, Status};
use crate::fleet::rollout::words;
use crate::output::describe;

/// The most steps that are read and kept: a week of evaluations every five minutes.
const STEPS_MAX: u64 = 2_016;

/// Where a rollout is read.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) repository: Repository,
    /// The log, if it is not in the store.
    pub(crate) log: Option<String>,
}

/// A stage and its last evaluation.
#[derive(Debug, Serialize)]
struct StageRow<'a> {
    #[serde(flatten)]
    stage: &'a Stage,
    /// `done`, `current`, `stopped`, `rolled back`, `waiting` or `not reached`.
    is: &'static str,
    evaluated_unix_ms: Option<u64>,
    evaluation: Option<&'a Evaluation>,
    decision: Option<String>,
}

/// A guard, without the address of a query: it may hold credentials.
#[derive(Debug, Serialize)]
struct GuardRow<'a> {
    name: &'a str,
    watches: &'a str,
    meaning: &'a str,
    unit: &'static str,
    margin: Margin,
    limit: Option<f64>,
    proof: bool,
}

/// One step, or several holds in a row.
#[derive(Debug, Serialize)]
struct Step {
    number: u64,
    unix_ms: u64,
    /// The last one's time.
    until_unix_ms: u64,
    count: u64,
    stage: String,
    what: &'static str,
    /// The last one's reason.
    why: String,
}

/// The newest rollout; `None` if none was started. `known` are the steps that were read before.
pub(crate) fn read(config: &Config, source: &Source, known: &mut Vec<Record>) -> Result<Option<Value>> {
    let read = status::read(config, &source.repository, source.log.as_deref(), STEPS_MAX, known)?;
    let Some(status) = read else { return Ok(None) };
    let shown = shape(&status);
    *known = status.records;
    Ok(Some(shown))
}

fn shape(status: &Status) -> Value {
    let Status { state, place, published_agrees, records, plan, published } = status;
    let bundle = published.as_ref().ok().and_then(|contents| contents.bundles.iter().find(|bundle| bundle.version == state.bundle));
    let stages: Vec<_> = plan.stages.iter().enumerate().map(|(at, stage)| stage_row(at, stage, state, records)).collect();
    let guards: Vec<_> = plan.guards.iter().map(guard_row).collect();
    json!({
        "rollout": state.rollout,
        "bundle": state.bundle,
        "bundle_id": bundle.map(|bundle| &bundle.id),
        "knobs": bundle.map(|bundle| bundle.knobs.iter().map(|(key, value)| (*key, value.to_string())).collect::<Vec<_>>()),
        "previous": state.previous,
        "phase": words::phase(state),
        "is": state.phase,
        "place": place,
        "started_unix_ms": state.started_unix_ms,
        "since_unix_ms": state.since_unix_ms,
        "published_agrees": published_agrees,
        "published_problem": published.as_ref().err().map(describe),
        "control_ppm": plan.control_ppm,
        "machines_min": plan.machines_min,
        "following_min": plan.following_min,
        "false_rollbacks": plan.false_rollbacks,
        "stage": state.stage,
        "stages": stages,
        "guards": guards,
        "steps": steps(records, &plan.stages),
        "steps_left_out": records.first().map_or(0, |first| first.number),
    })
}

/// The stage that an evaluation is about: a promotion's state is already that of the next one.
fn evaluated_stage(record: &Record) -> usize {
    match &record.event {
        Event::Evaluated { decision: Decision::Promote { .. }, .. } => record.after.stage.saturating_sub(1),
        _ => record.after.stage,
    }
}

fn stage_row<'a>(at: usize, stage: &'a Stage, state: &State, records: &'a [Record]) -> StageRow<'a> {
    let is = match (at.cmp(&state.stage), state.phase) {
        (std::cmp::Ordering::Less, _) | (std::cmp::Ordering::Equal, Phase::Finished) => "done",
        (std::cmp::Ordering::Equal, Phase::Running) => "current",
        (std::cmp::Ordering::Equal, Phase::Stopped) => "stopped",
        (std::cmp::Ordering::Equal, Phase::RolledBack) => "rolled back",
        (std::cmp::Ordering::Greater, Phase::Running | Phase::Stopped) => "waiting",
        (std::cmp::Ordering::Greater, _) => "not reached",
    };
    let evaluated = records.iter().rev().filter(|record| evaluated_stage(record) == at).find_map(|record| match &record.event {
        // Later evaluations of a rollout that is over have no evidence.
        Event::Evaluated { decision, evaluation, .. } if !matches!(decision, Decision::Rest { .. }) => Some((record, decision, evaluation)),
        _ => None,
    });
    StageRow {
        stage,
        is,
        evaluated_unix_ms: evaluated.map(|(record, ..)| record.unix_ms.0),
        evaluation: evaluated.map(|(.., evaluation)| evaluation),
        decision: evaluated.map(|(_, decision, _)| words::decision(decision)),
    }
}

fn guard_row(guard: &Guard) -> GuardRow<'_> {
    let (watches, meaning, unit) = match &guard.watched {
        Watched::Metric(name) => {
            let metric = Metric::named(name);
            let unit = match metric.map(|metric| &metric.unit) {
                Some(Unit::Ratio) => "ratio",
                Some(Unit::RatioPerMinute) => "ratio_per_min",
                Some(Unit::PerJobDay) => "per_job_day",
                Some(Unit::Query) | None => "number",
            };
            (name.as_str(), metric.map_or("", |metric| metric.meaning), unit)
        }
        Watched::AgentFailures => ("agent failures", "machines whose agent stopped reporting, restarted, or left the bundle", "ratio"),
        Watched::Query { query, .. } => (query.as_str(), "one value per machine, from Prometheus", "number"),
    };
    GuardRow { name: &guard.name, watches, meaning, unit, margin: guard.margin, limit: guard.limit, proof: guard.proof }
}

/// The steps, oldest first; holds of one stage in a row are one.
fn steps(records: &[Record], stages: &[Stage]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for record in records {
        let (what, why) = match &record.event {
            Event::Started { .. } => ("started", format!("bundle {}", record.after.bundle)),
            Event::Evaluated { decision, .. } => decided(decision),
            Event::Acted { action, by, why } => {
                let by = if by.is_empty() { "an unknown user" } else { by };
                (acted(*action), if why.is_empty() { format!("by {by}") } else { format!("by {by}: {why}") })
            }
        };
        let stage = stages.get(evaluated_stage(record)).map_or_else(String::new, |stage| stage.name.clone());
        let unix_ms = record.unix_ms.0;
        match steps.last_mut() {
            Some(last) if matches!(what, "hold" | "nothing to decide") && last.what == what && last.stage == stage => {
                (last.until_unix_ms, last.why) = (unix_ms, why);
                last.count += 1;
            }
            _ => steps.push(Step { number: record.number, unix_ms, until_unix_ms: unix_ms, count: 1, stage, what, why }),
        }
    }
    steps
}

fn decided(decision: &Decision) -> (&'static str, String) {
    match decision {
        Decision::Promote { to } => ("promoted", format!("to {to}")),
        Decision::Finish => ("finished", "all stages are done".to_owned()),
        Decision::Hold { why } => ("hold", why.clone()),
        Decision::RollBack { why } => ("rolled back", why.clone()),
        Decision::Rest { why } => ("nothing to decide", why.clone()),
    }
}

fn acted(action: Action) -> &'static str {
    match action {
        Action::Pin => "pinned",
        Action::Stop => "stopped",
        Action::Resume => "resumed",
        Action::RollBack => "rolled back",
    }
}

#[cfg(test)]
mod tests {
    use ::rollout::metric::Better;

    use super::*;

    #[test]
    fn the_address_of_a_query_stays_on_the_server() {
        let watched = Watched::Query {
            url: "http://reader:secret@prometheus:9090".to_owned(),
            query: "rate(errors_total[$since])".to_owned(),
            machine_label: "instance".to_owned(),
            better: Better::Lower,
        };
        let guard = Guard { name: "errors".to_owned(), watched, margin: Margin::Relative(0.1), limit: None, proof: false };
        let shown = serde_json::to_string(&guard_row(&guard)).unwrap();
        assert!(shown.contains("rate(errors_total[$since])") && shown.contains(r#""margin":{"relative":0.1}"#), "{shown}");
        assert!(!shown.contains("secret") && !shown.contains("prometheus:9090"), "{shown}");
    }
}
