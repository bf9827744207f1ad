//! How a rollout goes: its stages, its guardrails, and how sure it wants to be. A TOML file of the operator's, or [`Plan::default`].
//!
//! Everything that is wrong with a file is told together. A plan does not change while a rollout runs: the bounds of its test
//! were promised for it.

use serde::{Deserialize, Serialize};
use units::RatioPpm;
use units::quantity::{parse_duration, parse_ratio, print_ratio};

use crate::assignment::ALL_PPM;
use crate::guard::{Guard, Margin, Watched};
use crate::metric::{Better, METRICS, Metric};

/// Stages, and guards, that a plan may have.
const MANY: usize = 100;

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The chance that a bundle which does no harm is rolled back, over all stages and guards together.
    pub false_rollbacks: f64,
    /// Share of the machines that are held back to be compared with, in millionths.
    pub control_ppm: u32,
    /// Machines that each side must have for a guard to say anything.
    pub machines_min: usize,
    /// How far back before the rollout to look at what machines were like, in milliseconds.
    pub baseline_ms: u64,
    /// How long after a stage begins its evidence begins: agents have to fetch the bundle, and jobs to settle.
    pub settle_ms: u64,
    /// A machine that has written no trace for this long, while others have, is silent.
    pub silence_ms: u64,
    /// Share of the treated machines that must be seen to follow the bundle, for a stage to count.
    pub following_min: f64,
    /// The promotion rate that an entry should not exceed: per minute, as a share of the working set.
    pub objective: f64,
    /// Whether the control group gets the bundle, too, when all stages are done.
    pub release_control: bool,
    /// In order.
    pub stages: Vec<Stage>,
    /// All of them are asked at each look.
    pub guards: Vec<Guard>,
}

/// A stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// Share of the machines that have the bundle, in millionths of those in its clusters.
    pub share_ppm: u32,
    /// The clusters that take part; all where none is named.
    pub clusters: Vec<String>,
    /// The evidence must cover at least this much time, in milliseconds.
    pub least_ms: u64,
    /// Whether guards have to show that the bundle does no harm, where otherwise it is enough that they do not show harm.
    pub proof: bool,
}

/// Everything that is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct Wrong(pub Vec<String>);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Raw {
    false_rollbacks: String,
    control: String,
    machines_min: usize,
    baseline: String,
    settle: String,
    silence: String,
    following_min: String,
    promotion_rate: String,
    release_control: bool,
    stage: Vec<RawStage>,
    guard: Vec<RawGuard>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStage {
    name: String,
    share: String,
    #[serde(default)]
    clusters: Vec<String>,
    least: String,
    #[serde(default)]
    proof: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGuard {
    name: String,
    metric: Option<String>,
    query: Option<String>,
    url: Option<String>,
    machine_label: Option<String>,
    better: Option<Better>,
    margin: Option<String>,
    margin_of_control: Option<String>,
    limit: Option<String>,
    #[serde(default)]
    proof: bool,
}

/// The name by which a guard in a file watches agents.
const AGENT_FAILURES: &str = "agent_failures";

/// What holds where a file does not say otherwise.
const DEFAULT: &str = include_str!("plan/default.toml");

impl Default for Raw {
    fn default() -> Self {
        let words = ["5%", "10%", "1d", "30m", "3h", "80%", "0.2%"].map(ToOwned::to_owned);
        let [false_rollbacks, control, baseline, settle, silence, following_min, promotion_rate] = words;
        Self {
            false_rollbacks,
            control,
            machines_min: 5,
            baseline,
            settle,
            silence,
            following_min,
            promotion_rate,
            release_control: true,
            stage: Vec::new(),
            guard: Vec::new(),
        }
    }
}

impl Plan {
    /// The default plan as a file, to be changed.
    #[must_use]
    pub fn example() -> &'static str {
        DEFAULT
    }

    /// Out of the text of a file. Stages or guards that it does not have are those of the default plan.
    ///
    /// # Errors
    /// [`Wrong`], with everything that is wrong.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        let read = |text: &str| toml::from_str::<Raw>(text).map_err(|error| Wrong(vec![error.to_string().trim_end().to_owned()]));
        let mut raw = read(text)?;
        if raw.stage.is_empty() || raw.guard.is_empty() {
            let default = read(DEFAULT)?;
            raw.stage = if raw.stage.is_empty() { default.stage } else { raw.stage };
            raw.guard = if raw.guard.is_empty() { default.guard } else { raw.guard };
        }
        let mut wrong = Vec::new();
        let plan = raw.checked(&mut wrong);
        plan.check(&mut wrong);
        if wrong.is_empty() { Ok(plan) } else { Err(Wrong(wrong)) }
    }

    /// The chance of a false alarm that each guard has in each stage.
    #[must_use]
    pub fn alpha(&self) -> f64 {
        let tests = self.stages.len() * self.guards.len();
        self.false_rollbacks / crate::contrast::count(tests.max(1))
    }

    fn check(&self, wrong: &mut Vec<String>) {
        let within = |what: &str, value: f64, wrong: &mut Vec<String>| {
            if !(value > 0.0 && value < 1.0) {
                wrong.push(format!("{what}: give a share above 0 and below 100%"));
            }
        };
        within("false_rollbacks", self.false_rollbacks, wrong);
        within("control", f64::from(self.control_ppm) / f64::from(ALL_PPM), wrong);
        if !(0.0..=1.0).contains(&self.following_min) {
            wrong.push("following_min: there are no more than all machines; give at most 100%".to_owned());
        }
        if self.machines_min < 3 {
            wrong.push("machines_min: two machines have no spread to speak of; give 3 or more".to_owned());
        }
        if self.silence_ms == 0 {
            wrong.push("silence: every machine is silent for no time; give more than the agents' trace.file_period".to_owned());
        }
        if self.stages.len() > MANY || self.guards.len() > MANY {
            wrong.push(format!("{} stages and {} guards; {MANY} of each are the most", self.stages.len(), self.guards.len()));
        }
        for (what, names) in [
            ("stage", self.stages.iter().map(|stage| &stage.name).collect::<Vec<_>>()),
            ("guard", self.guards.iter().map(|guard| &guard.name).collect()),
        ] {
            for (at, name) in names.iter().enumerate() {
                if name.is_empty() || name.len() > 100 || name.chars().any(char::is_control) {
                    wrong.push(format!("{what} {}: give it a name of 1 to 100 characters", at + 1));
                } else if names[..at].contains(name) {
                    wrong.push(format!("{what} {name:?}: there are two of that name"));
                }
            }
        }
        for stage in &self.stages {
            if stage.share_ppm == 0 || stage.share_ppm > ALL_PPM {
                wrong.push(format!("stage {:?}: share: give one above 0 and up to 100%", stage.name));
            }
            if stage.least_ms == 0 {
                wrong.push(format!("stage {:?}: least: evidence of no time says nothing; give it some", stage.name));
            }
        }
        for pair in self.stages.windows(2) {
            let [first, second] = pair else { continue };
            let in_second = |cluster: &String| second.clusters.is_empty() || second.clusters.contains(cluster);
            let nested = if first.clusters.is_empty() { second.clusters.is_empty() } else { first.clusters.iter().all(in_second) };
            if !nested {
                wrong.push(format!(
                    "stage {:?}: clusters: it leaves out some of stage {:?}, which have the bundle already",
                    second.name, first.name
                ));
            } else if second.share_ppm < first.share_ppm && first.clusters == second.clusters {
                wrong.push(format!("stage {:?}: share: less than in stage {:?} before it", second.name, first.name));
            }
        }
    }
}

impl Default for Plan {
    fn default() -> Self {
        // A test reads it.
        Self::parse("").unwrap_or_else(|wrong| unreachable!("the default plan is wrong: {wrong}"))
    }
}

impl Raw {
    fn checked(&self, wrong: &mut Vec<String>) -> Plan {
        let stages = self.stage.iter().map(|stage| {
            let at = |key: &str| format!("stage {:?}: {key}", stage.name);
            Stage {
                name: stage.name.clone(),
                share_ppm: ratio(&at("share"), &stage.share, wrong).0,
                clusters: stage.clusters.clone(),
                least_ms: millis(&at("least"), &stage.least, wrong),
                proof: stage.proof,
            }
        });
        let stages = stages.collect();
        let guards = self.guard.iter().map(|guard| guard.checked(wrong)).collect();
        Plan {
            false_rollbacks: ratio("false_rollbacks", &self.false_rollbacks, wrong).as_f64(),
            control_ppm: ratio("control", &self.control, wrong).0,
            machines_min: self.machines_min,
            baseline_ms: millis("baseline", &self.baseline, wrong),
            settle_ms: millis("settle", &self.settle, wrong),
            silence_ms: millis("silence", &self.silence, wrong),
            following_min: ratio("following_min", &self.following_min, wrong).as_f64(),
            objective: ratio("promotion_rate", &self.promotion_rate, wrong).as_f64(),
            release_control: self.release_control,
            stages,
            guards,
        }
    }
}

impl RawGuard {
    fn checked(&self, wrong: &mut Vec<String>) -> Guard {
        let at = |key: &str| format!("guard {:?}: {key}", self.name);
        let watched = match (&self.metric, &self.query) {
            (Some(metric), None) if metric == AGENT_FAILURES => Watched::AgentFailures,
            (Some(metric), None) => {
                if Metric::named(metric).is_none() {
                    let names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
                    wrong.push(format!("{} = {metric:?} is not known; there are {AGENT_FAILURES}, {}", at("metric"), names.join(", ")));
                }
                Watched::Metric(metric.clone())
            }
            (None, Some(query)) => {
                let url = self.url.clone().unwrap_or_default();
                if !(url.starts_with("http://") || url.starts_with("https://")) {
                    wrong.push(format!("{}: say where Prometheus answers, such as \"http://prometheus:9090\"", at("url")));
                }
                let machine_label = self.machine_label.clone().unwrap_or_else(|| "instance".to_owned());
                Watched::Query { url, query: query.clone(), machine_label, better: self.better.unwrap_or(Better::Lower) }
            }
            _ => {
                wrong.push(format!("guard {:?}: give it either a metric or a query", self.name));
                Watched::AgentFailures
            }
        };
        let of_query = self.url.is_some() || self.machine_label.is_some() || self.better.is_some();
        if self.metric.is_some() && of_query {
            wrong.push(format!("guard {:?}: url, machine_label and better belong to queries", self.name));
        }
        let margin = match (&self.margin, &self.margin_of_control) {
            (Some(margin), None) => Margin::Absolute(ratio(&at("margin"), margin, wrong).as_f64()),
            (None, Some(margin)) => Margin::Relative(ratio(&at("margin_of_control"), margin, wrong).as_f64()),
            _ => {
                wrong.push(format!("guard {:?}: say what is allowed: either margin, or margin_of_control", self.name));
                Margin::Absolute(0.0)
            }
        };
        let limit = self.limit.as_ref().map(|limit| ratio(&at("limit"), limit, wrong).as_f64());
        Guard { name: self.name.clone(), watched, margin, limit, proof: self.proof }
    }
}

fn ratio(key: &str, text: &str, wrong: &mut Vec<String>) -> RatioPpm {
    parse_ratio(text).unwrap_or_else(|invalid| {
        wrong.push(format!("{key} = {text:?}: {invalid}"));
        RatioPpm::ONE
    })
}

/// A share as it is written.
#[must_use]
pub fn share(ppm: u32) -> String {
    print_ratio(RatioPpm(ppm))
}

fn millis(key: &str, text: &str, wrong: &mut Vec<String>) -> u64 {
    let duration = parse_duration(text).unwrap_or_else(|invalid| {
        wrong.push(format!("{key} = {text:?}: {invalid}"));
        std::time::Duration::from_secs(1)
    });
    units::millis(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_sound_and_is_what_the_example_says() {
        let plan = Plan::default();
        assert_eq!(plan, Plan::parse(Plan::example()).unwrap());
        assert_eq!(plan.stages.first().map(|stage| &*stage.name), Some("qualification"));
        assert_eq!(plan.stages.last().map(|stage| stage.share_ppm), Some(ALL_PPM));
        assert!((plan.alpha() * (plan.stages.len() * plan.guards.len()) as f64 - 0.05).abs() < 1e-12);
    }

    #[test]
    fn a_plan_survives_being_written_down() {
        let text = format!(
            "{}\n[[guard]]\nname = \"errors\"\nquery = \"rate(e[$since])\"\nurl = \"http://p:9090\"\nbetter = \"higher\"\nmargin_of_control = \"10%\"\nlimit = \"5%\"\n",
            Plan::example()
        );
        let plan = Plan::parse(&text).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&serde_json::to_string(&plan).unwrap()).unwrap(), plan);
        let Some(Guard { watched: Watched::Query { machine_label, better, .. }, margin, .. }) = plan.guards.last() else { panic!() };
        assert_eq!((machine_label.as_str(), *better, *margin), ("instance", Better::Higher, Margin::Relative(0.1)));
    }

    #[test]
    fn all_that_is_wrong_is_told_together() {
        let check = |text: &str, pieces: &[&str]| {
            let told = Plan::parse(text).unwrap_err().to_string();
            assert!(pieces.iter().all(|piece| told.contains(piece)), "{text}: {told}");
        };
        check("controll = \"5%\"", &["unknown field", "controll"]);
        check("control = \"5\"\nsettle = \"5\"\nmachines_min = 1", &["control = \"5\"", "settle = \"5\"", "machines_min"]);
        check(
            "control = \"100%\"\nfalse_rollbacks = \"0%\"\nsilence = \"0s\"\nfollowing_min = \"101%\"",
            &["control:", "false_rollbacks:", "silence:", "following_min:"],
        );
        check(
            "[[stage]]\nname = \"a\"\nshare = \"0%\"\nleast = \"0s\"\n[[stage]]\nname = \"a\"\nshare = \"1%\"\nleast = \"1h\"",
            &["share: give one", "least: evidence", "two of that name"],
        );
        let stages = |first: &str, second: &str| {
            format!("[[stage]]\nname = \"a\"\nleast = \"1h\"\n{first}\n[[stage]]\nname = \"b\"\nleast = \"1h\"\n{second}\n")
        };
        check(&stages("share = \"2%\"", "share = \"1%\""), &["stage \"b\": share: less than in stage \"a\""]);
        check(
            &stages("share = \"1%\"\nclusters = [\"x\"]", "share = \"2%\"\nclusters = [\"y\"]"),
            &["stage \"b\": clusters: it leaves out"],
        );
        check(&stages("share = \"1%\"", "share = \"2%\"\nclusters = [\"y\"]"), &["it leaves out"]);
        assert!(Plan::parse(&stages("share = \"100%\"\nclusters = [\"x\"]", "share = \"1%\"")).is_ok());
        let guard = |text: &str| format!("[[guard]]\nname = \"g\"\n{text}\n");
        check(&guard("metric = \"nonesuch\"\nmargin = \"1%\""), &["nonesuch", "agent_failures, coverage"]);
        check(&guard("metric = \"saved\""), &["either margin"]);
        check(&guard("margin = \"1%\""), &["either a metric or a query"]);
        check(&guard("query = \"q\"\nmargin = \"1%\""), &["where Prometheus answers"]);
        check(&guard("metric = \"saved\"\nurl = \"http://x\"\nmargin = \"1%\""), &["belong to queries"]);
    }
}
