//! The file of a plan: its tables, and the checks that concern more than one value.

use std::path::Path;
use std::time::Duration;

use settings::{Document, Group, Invalid, ListExample, Problems, Schema, Section, Unit};
use units::RatioPpm;

use super::{Plan, Stage};
use crate::guard::{Guard, Margin, Watched};
use crate::metric::{Better, METRICS, Metric};

/// The most stages, and the most guards, of a plan.
const LIST_MAX: usize = 100;

/// The longest name of a stage or guard, in bytes.
const NAME_BYTES_MAX: usize = 100;

/// The metric name of agent failures, which are not a figure of the traces.
const AGENT_FAILURES: &str = "agent_failures";

/// The default stages.
const STAGES: &str = include_str!("stages.toml");

/// The default guards.
const GUARDS: &str = include_str!("guards.toml");

settings::tables! {
    /// How a bundle reaches the machines of a fleet.
    pub(crate) struct Rollout = "", Always {
        false_rollbacks: RatioPpm = Unit::Ratio, "5%" in "0.0001%" ..= "99.9999%",
            "The probability that a harmless bundle is rolled back, over all stages and guards together.";
        control: RatioPpm = Unit::Ratio, "10%" in "0.0001%" ..= "99.9999%",
            "The share of the machines in the control group, which keeps the previous bundle for comparison.";
        machines_min: u32 = Unit::Count, "5" in "3" ..= "1000000",
            "How many machines each group needs for a guard to decide. Fewer than three have no usable variance.";
        baseline: Duration = Unit::Duration, "1d" in "0s" ..= "365d",
            "The time before the rollout that is the baseline of each machine; it is subtracted from the machine's values since.";
        settle: Duration = Unit::Duration, "30m" in "0s" ..= "365d",
            "The time from the start of a stage to the start of its evidence: agents have to fetch the bundle, and jobs to settle.";
        silence: Duration = Unit::Duration, "3h" in "1ms" ..= "365d",
            "A machine that has written no trace for this long, while others have, is silent. Use more than twice `trace.file_period`.";
        following_min: RatioPpm = Unit::Ratio, "80%" in "0%" ..= "100%",
            "The share of the treated machines that must be observed to follow the bundle for a stage to count.";
        promotion_rate: RatioPpm = Unit::RatioPerMinute, "0.2%" in "0%" ..= "1000%",
            "The promotion rate that entries should not exceed, as a share of the working set: the objective `cold_age.promotion_rate`.";
        release_control: bool = Unit::Bool, "true",
            "Whether the control group receives the bundle after the last stage.";
    }

    /// A stage. It ends when its evidence covers the time `least` and no guard reports a breach. Without any stage in the file, the
    /// stages of the default plan apply.
    pub(crate) struct StageTable = "stage", List {
        name: String = Unit::Text, required "canary",
            "The name of the stage, unique in the plan.";
        share: RatioPpm = Unit::Ratio, required "3%" in "0.0001%" ..= "100%",
            "The share of the machines in its clusters that have the bundle. It does not decrease from stage to stage.";
        clusters: Vec<String> = Unit::Texts, "",
            "The clusters that take part; all clusters if not set. A stage contains the clusters of the stage before it.";
        least: Duration = Unit::Duration, required "12h" in "1ms" ..= "365d",
            "The time that the evidence must cover at least.";
        proof: bool = Unit::Bool, "false",
            "Whether guards with `proof` must show that the bundle does no harm. A few machines cannot show that; for them it suffices that no harm is shown.";
    }

    /// A guardrail: the treated machines may be worse than the control group by `margin`, or by `margin_of_control` of its value. Within
    /// `limit` nothing counts as worse: a bundle that promotes more and meets the objective does no harm. Without any guard in the
    /// file, the guards of the default plan apply.
    pub(crate) struct GuardTable = "guard", List {
        name: String = Unit::Text, required "stall",
            "The name of the guard, unique in the plan.";
        metric: Option<String> = Unit::Text, "",
            "A metric of the traces, or `agent_failures`. A guard has either a metric or a query.";
        query: Option<String> = Unit::Text, "",
            "A query to Prometheus with one value per machine. `$since` is the time since the stage began.";
        url: Option<String> = Unit::Url, "",
            "The URL of Prometheus, such as `http://prometheus:9090`. Required for a query.";
        machine_label: Option<String> = Unit::Text, "",
            "The label that holds the name of the machine in its trace; a port is removed. For a query; `instance` if not set.";
        better: Option<Better> = Unit::Choice(Better::NAMES), "",
            "Which values are better, for a query; `lower` if not set.";
        margin: Option<RatioPpm> = Unit::Ratio, "",
            "The permitted difference, in the unit of the metric. A guard has either this or `margin_of_control`.";
        margin_of_control: Option<RatioPpm> = Unit::Ratio, "",
            "The permitted difference, as a share of the value of the control group.";
        limit: Option<RatioPpm> = Unit::Ratio, "",
            "The value that is good enough, whatever the control group has.";
        proof: bool = Unit::Bool, "false",
            "Whether a stage with `proof` waits until this guard passes.";
    }
}

/// The file of a plan.
pub static SCHEMA: Schema = Schema {
    name: "rollout-plan",
    tables: &[Rollout::TABLE, StageTable::TABLE, GuardTable::TABLE],
    lists: &[ListExample { table: "stage", toml: STAGES, active: true }, ListExample { table: "guard", toml: GUARDS, active: true }],
    remedy: |_| None,
};

const EXAMPLE_HEAD: &str = "\
# How a bundle reaches the machines of a fleet. `thermocline rollout plan` prints this file; keys that are not set have these defaults.
";

const REFERENCE_HEAD: &str = "\
# Rollout plans

<!-- Generated from crates/fleet/rollout/src/plan/file.rs: UPDATE_DOCS=1 cargo test -p thermocline-rollout --test generated -->

`thermocline rollout plan` prints the default plan; `thermocline rollout plan FILE` checks a file. See [rollouts](../rollout.md).
";

/// Returns the default plan as a file.
#[must_use]
pub fn example() -> String {
    settings::example(&SCHEMA, EXAMPLE_HEAD)
}

/// Returns the reference page, `docs/reference/rollout-plan.md`.
#[must_use]
pub fn reference() -> String {
    settings::reference(&SCHEMA, REFERENCE_HEAD, "")
}

impl Plan {
    /// Reads a plan; `path` is its file in messages. Stages or guards that the text does not contain are those of the
    /// default plan.
    ///
    /// # Errors
    /// All problems of the text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Problems> {
        let mut document = Document::read(&SCHEMA, path, text);
        let rollout: Rollout = document.get();
        let stages = list(&mut document, "stage", STAGES);
        let guards = list(&mut document, "guard", GUARDS);
        check_names(&mut document, &stages);
        check_names(&mut document, &guards);
        let plan = Plan {
            false_rollbacks: rollout.false_rollbacks.as_f64(),
            control_ppm: rollout.control,
            machines_min: rollout.machines_min as usize,
            baseline_ms: rollout.baseline.into(),
            settle_ms: rollout.settle.into(),
            silence_ms: rollout.silence.into(),
            following_min: rollout.following_min.as_f64(),
            objective: rollout.promotion_rate.as_f64(),
            release_control: rollout.release_control,
            stages: stages.iter().map(stage).collect(),
            guards: guards.iter().map(|section| guard(&mut document, section)).collect(),
        };
        check_stages(&mut document, &stages, &plan.stages);
        document.finish(plan)
    }
}

impl Default for Plan {
    fn default() -> Self {
        // A test parses it.
        Self::parse(Path::new("default plan"), "").unwrap_or_else(|problems| unreachable!("{problems}"))
    }
}

/// Returns the sections of a list, or those of the default plan if the file has none.
fn list(document: &mut Document, table: &str, default: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = document.list(table).cloned().collect();
    if sections.is_empty() {
        let default = Document::read(&SCHEMA, Path::new("default plan"), default);
        sections = default.list(table).cloned().collect();
    }
    if sections.len() > LIST_MAX {
        let place = document.section(&Rollout::TABLE).place(table);
        document.report(place, Invalid::new(format!("{} tables", sections.len()), format!("write at most {LIST_MAX}")));
    }
    sections
}

fn stage(section: &Section) -> Stage {
    let StageTable { name, share, clusters, least, proof } = Group::read(section);
    Stage { name, share_ppm: share, clusters, least_ms: least.into(), proof }
}

fn guard(document: &mut Document, section: &Section) -> Guard {
    let table: GuardTable = Group::read(section);
    let watched = match (&table.metric, &table.query) {
        (Some(metric), None) => watched_metric(document, section, metric),
        (None, Some(query)) => {
            if table.url.is_none() && !section.sets("url") {
                let remedy = "write the URL of Prometheus, such as \"http://prometheus:9090\"";
                document.report(section.place("url"), Invalid::new("missing", remedy));
            }
            let machine_label = table.machine_label.clone().unwrap_or_else(|| "instance".to_owned());
            let url = table.url.clone().unwrap_or_default();
            Watched::Query { url, query: query.clone(), machine_label, better: table.better.unwrap_or(Better::Lower) }
        }
        _ => {
            document.report(section.place("metric"), Invalid::new("neither or both of metric and query are set", "set one of them"));
            Watched::AgentFailures
        }
    };
    for key in ["url", "machine_label", "better"] {
        if table.metric.is_some() && section.sets(key) {
            document.report(section.place(key), Invalid::new("only for a query", "remove it, or replace metric by query"));
        }
    }
    let margin = match (table.margin, table.margin_of_control) {
        (Some(margin), None) => Margin::Absolute(margin.as_f64()),
        (None, Some(margin)) => Margin::Relative(margin.as_f64()),
        _ => {
            if !section.sets("margin") || section.sets("margin_of_control") {
                let message = "neither or both of margin and margin_of_control are set";
                document.report(section.place("margin"), Invalid::new(message, "set one of them"));
            }
            Margin::Absolute(0.0)
        }
    };
    Guard { name: table.name, watched, margin, limit: table.limit.map(RatioPpm::as_f64), proof: table.proof }
}

fn watched_metric(document: &mut Document, section: &Section, metric: &str) -> Watched {
    if metric == AGENT_FAILURES {
        return Watched::AgentFailures;
    }
    if Metric::named(metric).is_none() {
        let names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
        let remedy = format!("write one of {AGENT_FAILURES}, {}", names.join(", "));
        document.report(section.place("metric"), Invalid::new("unknown metric", remedy));
    }
    Watched::Metric(metric.to_owned())
}

/// Reports names that are too long, and names that occur twice in a list.
fn check_names(document: &mut Document, sections: &[Section]) {
    for (at, section) in sections.iter().enumerate().filter(|(_, section)| section.sets("name")) {
        let name: String = section.typed("name");
        if name.len() > NAME_BYTES_MAX {
            let remedy = format!("write at most {NAME_BYTES_MAX} bytes");
            document.report(section.place("name"), Invalid::new("too long", remedy));
        }
        if sections[..at].iter().any(|other| other.sets("name") && other.typed::<String>("name") == name) {
            let message = format!("two {}s have the name {name:?}", section.table().name);
            document.report(section.place("name"), Invalid::new(message, "write another name"));
        }
    }
}

/// Reports stages that have fewer machines than the stage before them.
fn check_stages(document: &mut Document, sections: &[Section], stages: &[Stage]) {
    for (pair, section) in stages.windows(2).zip(sections.iter().skip(1)) {
        let [first, second] = pair else { continue };
        let in_second = |cluster: &String| second.clusters.is_empty() || second.clusters.contains(cluster);
        let nested = if first.clusters.is_empty() { second.clusters.is_empty() } else { first.clusters.iter().all(in_second) };
        if !nested {
            let message = format!("excludes clusters of stage {:?}, which have the bundle already", first.name);
            document.report(section.place("clusters"), Invalid::new(message, "include them"));
        } else if second.share_ppm < first.share_ppm && first.clusters == second.clusters {
            let message = format!("less than that of stage {:?}", first.name);
            document.report(section.place("share"), Invalid::new(message, "write at least as much"));
        }
    }
}
