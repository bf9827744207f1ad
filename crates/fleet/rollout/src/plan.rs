//! The plan of a rollout: its stages, its guardrails, and the confidence that they require. A TOML file, or
//! [`Plan::default`].
//!
//! A plan does not change while a rollout runs, because the bounds of its sequential test hold for one plan only.

use serde::{Deserialize, Serialize};
use units::{Millis, RatioPpm};

use crate::guard::Guard;

mod file;

pub use file::{SCHEMA, example, reference};

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The probability that a harmless bundle is rolled back, over all stages and guards together.
    pub false_rollbacks: f64,
    /// Share of the machines in the control group.
    pub control_ppm: RatioPpm,
    /// Machines that each group needs for a guard to decide.
    pub machines_min: usize,
    /// The time before the rollout that is the baseline of each machine.
    pub baseline_ms: Millis,
    /// Time from the start of a stage to the start of its evidence: agents have to fetch the bundle, and jobs to
    /// settle.
    pub settle_ms: Millis,
    /// A machine that has written no trace for this long, while others have, is silent.
    pub silence_ms: Millis,
    /// Share of the treated machines that must be observed to follow the bundle for a stage to count.
    pub following_min: f64,
    /// The promotion rate that an entry should not exceed: per minute, as a share of the working set.
    pub objective: f64,
    /// Whether the control group receives the bundle after the last stage.
    pub release_control: bool,
    /// Stages, in order.
    pub stages: Vec<Stage>,
    /// Guards; all are judged in each evaluation.
    pub guards: Vec<Guard>,
}

/// A stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// Share of the machines that have the bundle, of those in its clusters.
    pub share_ppm: RatioPpm,
    /// The clusters that take part; all clusters if empty.
    pub clusters: Vec<String>,
    /// The evidence must cover at least this much time.
    pub least_ms: Millis,
    /// Whether guards have to show that the bundle does no harm; otherwise it suffices that they do not show harm.
    pub proof: bool,
}

impl Plan {
    /// Returns the probability of a false alarm of each guard in each stage.
    #[must_use]
    pub fn alpha(&self) -> f64 {
        let tests = self.stages.len() * self.guards.len();
        self.false_rollbacks / crate::contrast::count(tests.max(1))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::guard::{Margin, Watched};
    use crate::metric::Better;

    #[test]
    fn the_example_is_valid_and_equals_the_default() {
        let plan = Plan::default();
        assert_eq!(plan, Plan::parse(Path::new("plan.toml"), &example()).unwrap());
        assert_eq!(plan.stages.first().map(|stage| &*stage.name), Some("qualification"));
        assert_eq!(plan.stages.last().map(|stage| stage.share_ppm), Some(RatioPpm::ONE));
        assert!((plan.alpha() * (plan.stages.len() * plan.guards.len()) as f64 - 0.05).abs() < 1e-12);
    }

    #[test]
    fn a_plan_reads_back_from_json() {
        let text = format!(
            "{}\n[[guard]]\nname = \"errors\"\nquery = \"rate(e[$since])\"\nurl = \"http://p:9090\"\nbetter = \"higher\"\nmargin_of_control = \"10%\"\nlimit = \"5%\"\n",
            example()
        );
        let plan = Plan::parse(Path::new("plan.toml"), &text).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&serde_json::to_string(&plan).unwrap()).unwrap(), plan);
        let Some(Guard { watched: Watched::Query { machine_label, better, .. }, margin, .. }) = plan.guards.last() else { panic!() };
        assert_eq!((machine_label.as_str(), *better, *margin), ("instance", Better::Higher, Margin::Relative(0.1)));
    }

    #[test]
    fn all_problems_are_reported_together() {
        let check = |text: &str, pieces: &[&str]| {
            let problems = Plan::parse(Path::new("plan.toml"), text).unwrap_err().to_string();
            assert!(pieces.iter().all(|piece| problems.contains(piece)), "{text}: {problems}");
        };
        check("controll = \"5%\"", &["unknown key", "perhaps control is meant"]);
        check("control = \"5\"\nsettle = \"5\"\nmachines_min = 1", &["control = \"5\"", "settle = \"5\"", "machines_min"]);
        check(
            "control = \"100%\"\nfalse_rollbacks = \"0%\"\nsilence = \"0s\"\nfollowing_min = \"101%\"",
            &["control = ", "false_rollbacks = ", "silence = ", "following_min = "],
        );
        check(
            "[[stage]]\nname = \"a\"\nshare = \"0%\"\nleast = \"0s\"\n[[stage]]\nname = \"a\"\nshare = \"1%\"\nleast = \"1h\"",
            &["stage.share = ", "stage.least = ", "two stages have the name"],
        );
        let stages = |first: &str, second: &str| {
            format!("[[stage]]\nname = \"a\"\nleast = \"1h\"\n{first}\n[[stage]]\nname = \"b\"\nleast = \"1h\"\n{second}\n")
        };
        check(&stages("share = \"2%\"", "share = \"1%\""), &["stage.share", "less than that of stage \"a\""]);
        check(
            &stages("share = \"1%\"\nclusters = [\"x\"]", "share = \"2%\"\nclusters = [\"y\"]"),
            &["stage.clusters", "excludes clusters of stage \"a\""],
        );
        check(&stages("share = \"1%\"", "share = \"2%\"\nclusters = [\"y\"]"), &["excludes clusters"]);
        assert!(Plan::parse(Path::new("plan.toml"), &stages("share = \"100%\"\nclusters = [\"x\"]", "share = \"1%\"")).is_ok());
        let guard = |text: &str| format!("[[guard]]\nname = \"g\"\n{text}\n");
        check(&guard("metric = \"nonesuch\"\nmargin = \"1%\""), &["nonesuch", "agent_failures, coverage"]);
        check(&guard("metric = \"saved\""), &["neither or both of margin"]);
        check(&guard("margin = \"1%\""), &["neither or both of metric"]);
        check(&guard("query = \"q\"\nmargin = \"1%\""), &["guard.url", "missing"]);
        check(&guard("metric = \"saved\"\nurl = \"http://x\"\nmargin = \"1%\""), &["guard.url", "only for a query"]);
    }
}
