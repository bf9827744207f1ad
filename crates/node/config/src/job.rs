//! `[[job]]`: which cgroups are jobs, and how each is treated.

use serde::{Serialize, Serializer};
use settings::{Document, Invalid, Section, Unit, toml_string};
use units::{Bytes, RatioPpm, quantity};

use crate::choice::{Class, Kind, Policy, Tier, Tracker};

settings::tables! {
    /// Which cgroups are jobs, and how each is treated. The first rule that matches a cgroup applies. Rules of later files are tried
    /// before those of earlier ones, so that a file in `conf.d/` can make an exception.
    pub struct JobTable = "job", List {
        cgroup: Option<String> = Unit::Glob, "",
            "Which cgroups the rule applies to: a pattern for the path below the cgroup2 root, such as \"/system.slice/*.service\". `*` and `?` stand for any characters but /, `**` for any number of levels, `[ab]` for one of a few characters, `{a,b}` for one of several texts. Required unless `container` or `annotation` is set: then the default is every cgroup.";
        container: Option<String> = Unit::NameGlob, "",
            "Only containers with this name in their pod, such as \"istio-proxy\" or \"*-exporter\": the name that containerd or CRI-O records for cgroups named `cri-containerd-ID.scope` or `crio-ID.scope`.";
        annotation: Option<String> = Unit::Annotation, "",
            "Only containers with this annotation, a key and a pattern for its value, such as \"example.com/tier=batch*\". The runtime must pass it on: see `pod_annotations` of containerd, `allowed_annotations` of CRI-O.";
        class: Option<Class> = Unit::Choice(Class::NAMES), "",
            "How the jobs are treated: `off` ignores them, `observe` observes and never acts, `conservative`, `standard` and `aggressive` act with the parameters of their class. The default is `observe`, or `aggressive` for a memory tax.";
        policy: Option<Policy> = Unit::Choice(Policy::NAMES), "",
            "The policy of these jobs, if it differs from `agent.policy`.";
        tier: Option<Tier> = Unit::Choice(Tier::NAMES), "",
            "Where their swap-backed memory goes, if it differs from `agent.tier`.";
        kind: Kind = Unit::Choice(Kind::NAMES), "application",
            "The purpose of these jobs: `application`, or memory tax, `datacenter_tax` or `application_tax`. Savings are summed by it.";
        tracker: Option<Tracker> = Unit::Choice(Tracker::NAMES), "",
            "The tracker of these jobs, if it differs from `agent.tracker`.";
        fast_min: Option<Bytes> = Unit::Bytes, "" in "0B" ..= "1PiB",
            "Under policy `slowdown`: how much of its memory that can be moved each of these jobs keeps in fast memory. Without it, `slow.slowdown` alone limits what is placed. A job that is below it, because the rule changed or the job shrank, gets its most accessed slow memory back, within `slow.move_rate`.";
        fast_share_min: Option<RatioPpm> = Unit::Ratio, "" in "0%" ..= "100%",
            "The same, as a share of the job's memory that can be moved. If both are set, the larger counts.";
        slow_max: Option<Bytes> = Unit::Bytes, "" in "0B" ..= "1PiB",
            "Under policy `slowdown`: how much each of these jobs may have in the slow node. Without it, up to all of its memory. A job that has more gets the rest back, within `slow.move_rate`.";
        slow_weight: Option<u32> = Unit::Count, "" in "1" ..= "10000",
            "Under policy `slowdown`: the weight of each of these jobs where several compete for a slow node that is too small for all; 100 without it. A job gets what it can use, or at least the part of the node that is its weight's part of all weights; jobs that can use more get room in proportion to their weights.";
    }
}

/// Keys that policy `slowdown` alone uses.
const SLOW_KEYS: [&str; 4] = ["fast_min", "fast_share_min", "slow_max", "slow_weight"];

/// The weight of a job whose rule states none.
const SLOW_WEIGHT: u32 = 100;

/// How the jobs that match a pattern are treated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobRule {
    /// A pattern for the cgroup's path, relative to the cgroup2 root: starts with `/`, brackets balanced. `*` does not
    /// match `/`, `**` does.
    pub cgroup: String,
    /// A pattern for the name of a container in its pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// An annotation of the container: a key, `=`, and a pattern for its value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotation: Option<String>,
    /// The class of the jobs that match.
    pub class: Class,
    /// Their policy, where it is not [`crate::Agent::policy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Their tier, where it is not [`crate::Agent::tier`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// What they are for.
    pub kind: Kind,
    /// Their tracker, where it is not [`crate::Agent::tracker`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracker: Option<Tracker>,
    /// What they keep in fast memory.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_written")]
    pub fast_min: Option<Bytes>,
    /// The same, as a share of what can be moved.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_written")]
    pub fast_share_min: Option<RatioPpm>,
    /// What they may have in the slow node.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_written")]
    pub slow_max: Option<Bytes>,
    /// Their weight where jobs compete for the slow node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_weight: Option<u32>,
}

/// Writes a value as a user writes it.
fn as_written<T: Written, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    value.as_ref().map(Written::written).serialize(serializer)
}

/// A quantity of a rule.
trait Written {
    /// As a user writes it.
    fn written(&self) -> String;
}

impl Written for Bytes {
    fn written(&self) -> String {
        quantity::print_bytes(*self)
    }
}

impl Written for RatioPpm {
    fn written(&self) -> String {
        quantity::print_ratio(*self)
    }
}

impl JobRule {
    /// A rule for cgroups alone, with everything but the class as it is by default.
    #[must_use]
    pub fn new(cgroup: impl Into<String>, class: Class) -> Self {
        Self {
            cgroup: cgroup.into(),
            container: None,
            annotation: None,
            class,
            policy: None,
            tier: None,
            kind: Kind::Application,
            tracker: None,
            fast_min: None,
            fast_share_min: None,
            slow_max: None,
            slow_weight: None,
        }
    }

    /// Returns the bounds of these jobs in the slow node.
    #[must_use]
    pub fn slow_bounds(&self) -> policy::slowdown::bounds::Bounds {
        policy::slowdown::bounds::Bounds {
            fast_min: self.fast_min.unwrap_or_default(),
            fast_share_min: self.fast_share_min.unwrap_or_default(),
            slow_max: self.slow_max,
        }
    }

    /// Returns their weight where jobs compete for the slow node.
    #[must_use]
    pub fn slow_weight(&self) -> u32 {
        self.slow_weight.unwrap_or(SLOW_WEIGHT)
    }
}

/// Reports the keys of a rule that have no effect under its policy.
fn check_slow_keys(document: &mut Document, section: &Section, policy: Option<Policy>) {
    let Some(policy) = policy.filter(|policy| *policy != Policy::Slowdown) else { return };
    for key in SLOW_KEYS.into_iter().filter(|key| section.sets(key)) {
        let what = format!("has no effect under policy {}", policy.as_str());
        document.report(section.place(key), Invalid::new(what, "remove it, or write policy = \"slowdown\""));
    }
}

/// Reads the rules of a file, and reports rules without a cgroup pattern and rules that are never reached.
pub(crate) fn read_rules(document: &mut Document) -> Vec<JobRule> {
    let sections: Vec<Section> = document.list("job").cloned().collect();
    let mut rules: Vec<(Option<usize>, JobRule)> = Vec::new();
    for section in &sections {
        let JobTable { cgroup, container, annotation, class, policy, tier, kind, tracker, .. } = settings::Group::read(section);
        let JobTable { fast_min, fast_share_min, slow_max, slow_weight, .. } = settings::Group::read(section);
        check_slow_keys(document, section, policy);
        let everywhere = || (container.is_some() || annotation.is_some()).then(|| "/**".to_owned());
        let Some(cgroup) = cgroup.or_else(|| if section.sets("cgroup") { None } else { everywhere() }) else {
            if !section.sets("cgroup") {
                let remedy = "write which cgroups the rule applies to: cgroup = \"/system.slice/*.service\"";
                document.report(section.place("cgroup"), Invalid::new("missing", remedy));
            }
            continue;
        };
        let class = class.unwrap_or(if kind == Kind::Application { Class::Observe } else { Class::Aggressive });
        let slow = JobRule { fast_min, fast_share_min, slow_max, slow_weight, ..JobRule::new(cgroup, class) };
        let rule = JobRule { container, annotation, policy, tier, kind, tracker, ..slow };
        let same =
            |other: &JobRule| (&other.cgroup, &other.container, &other.annotation) == (&rule.cgroup, &rule.container, &rule.annotation);
        if let Some((first, _)) = rules.iter().find(|(_, other)| same(other)) {
            let remedy = format!("merge it with the rule for the same cgroups in line {}", first.unwrap_or_default());
            document.report(section.place("cgroup"), Invalid::new("never reached: the first rule that matches applies", remedy));
        }
        rules.push((section.line(), rule));
    }
    rules.into_iter().map(|(_, rule)| rule).collect()
}

impl JobRule {
    /// Returns the rule as a `[[job]]` table.
    pub(crate) fn to_toml(&self) -> String {
        let choice = |name: Option<&'static str>| name.map(ToOwned::to_owned);
        let keys = [
            ("cgroup", Some(self.cgroup.clone())),
            ("class", choice(Some(self.class.as_str()))),
            ("container", self.container.clone()),
            ("annotation", self.annotation.clone()),
            ("policy", choice(self.policy.map(Policy::as_str))),
            ("tier", choice(self.tier.map(Tier::as_str))),
            ("kind", choice((self.kind != Kind::Application).then(|| self.kind.as_str()))),
            ("tracker", choice(self.tracker.map(Tracker::as_str))),
            ("fast_min", self.fast_min.as_ref().map(Written::written)),
            ("fast_share_min", self.fast_share_min.as_ref().map(Written::written)),
            ("slow_max", self.slow_max.as_ref().map(Written::written)),
        ];
        let lines = keys.iter().filter_map(|(key, value)| Some(format!("{key} = {}\n", toml_string(value.as_ref()?))));
        let weight = self.slow_weight.map(|weight| format!("slow_weight = {weight}\n"));
        format!("\n[[job]]\n{}", lines.chain(weight).collect::<String>())
    }
}

/// Returns rules as the text of a file of job rules.
#[must_use]
pub fn rules_to_toml(rules: &[JobRule]) -> String {
    rules.iter().map(JobRule::to_toml).collect()
}
