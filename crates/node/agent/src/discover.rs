//! Which cgroups are jobs.

use std::collections::{BTreeSet, HashMap, HashSet};

use config::{Class, Config, JobRule, Kind, Policy, Tier, Tracker};
use globset::{GlobBuilder, GlobMatcher};
use kernel::Roots;
use policy::slowdown::bounds::Bounds;

pub mod container;

use container::{Container, Containers};

/// The operator's rules, ready to match.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Rule>,
    containers: Containers,
    /// Cgroups inside a job whose own rule has no effect, and for which that was reported.
    reported: BTreeSet<String>,
    jobs_max: usize,
    /// The policy of rules that name none.
    policy: Policy,
}

/// One rule: what it matches, and the treatment.
#[derive(Debug)]
struct Rule {
    cgroup: GlobMatcher,
    container: Option<GlobMatcher>,
    /// A key, and a pattern for its value.
    annotation: Option<(String, GlobMatcher)>,
    treatment: Treatment,
}

/// How the operator wants a job treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Treatment {
    /// How much the agent may offload.
    pub class: Class,
    /// What the job is for, in reports.
    pub kind: Kind,
    /// The policy that decides.
    pub policy: Policy,
    /// The tier of its swap-backed memory.
    pub tier: Tier,
    /// The tracker that measures its page ages.
    pub tracker: Tracker,
    /// What it may have in the slow node.
    pub slow: Bounds,
    /// Its weight where jobs compete for the slow node.
    pub slow_weight: u32,
}

impl Treatment {
    /// Whether `other` differs in nothing but what the job may have in the slow node, which the next decision takes in.
    #[must_use]
    pub fn is_same_but_for_slow(&self, other: &Self) -> bool {
        *other == Self { slow: other.slow, slow_weight: other.slow_weight, ..*self }
    }
}

/// The jobs among the cgroups of a machine.
#[derive(Debug, Default)]
pub struct Findings {
    /// The jobs.
    pub jobs: Vec<Found>,
    /// The number of further matches beyond the limit of jobs.
    pub left_out: usize,
    /// Cgroups with an error, and the error; each is reported once.
    pub troubles: Vec<(String, String)>,
}

/// A cgroup that a rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its path relative to the cgroup root.
    pub path: String,
    /// Its treatment.
    pub treatment: Treatment,
}

impl Rules {
    /// Whether a rule names `policy`. While there is no rule, that of the configuration counts: rules may be written later.
    #[must_use]
    pub fn name(&self, policy: Policy) -> bool {
        self.rules.iter().any(|rule| rule.treatment.policy == policy) || (self.rules.is_empty() && self.policy == policy)
    }

    /// Whether the operator excluded a cgroup: class `off`, by the first rule that matches its path. Rules for containers do not
    /// count, because containers have no jobs below.
    #[must_use]
    pub fn is_off(&self, path: &str) -> bool {
        let rule = self.rules.iter().find(|rule| rule.container.is_none() && rule.annotation.is_none() && rule.cgroup.is_match(path));
        rule.is_some_and(|rule| rule.treatment.class == Class::Off)
    }

    /// Compiles the `[[job]]` rules of a configuration.
    ///
    /// # Errors
    /// If a pattern is invalid.
    pub fn new(config: &Config) -> Result<Self, globset::Error> {
        let mut rules = Vec::with_capacity(config.jobs.len());
        for rule in &config.jobs {
            let treatment = Treatment {
                class: rule.class,
                kind: rule.kind,
                policy: rule.policy.unwrap_or(config.agent.policy),
                tier: rule.tier.unwrap_or(config.agent.tier),
                tracker: rule.tracker.unwrap_or(config.agent.tracker),
                slow: rule.slow_bounds(),
                slow_weight: rule.slow_weight(),
            };
            rules.push(Rule::new(rule, treatment)?);
        }
        let keys = rules.iter().filter_map(|rule: &Rule| rule.annotation.as_ref()).map(|(key, _)| key.clone()).collect();
        Ok(Self {
            rules,
            containers: Containers::new(keys),
            reported: BTreeSet::new(),
            jobs_max: usize::try_from(config.agent.jobs_max).unwrap_or(usize::MAX),
            policy: config.agent.policy,
        })
    }

    /// The jobs among `cgroups`, in which parents precede their children.
    ///
    /// The first rule that matches a cgroup decides. A job includes all cgroups below it, so that no page is counted twice; with class
    /// `off` the cgroup is no job, and cgroups below may still be jobs.
    #[must_use]
    pub fn find(&mut self, roots: &Roots, cgroups: &[String]) -> Findings {
        let mut found = Findings::default();
        let mut owned: HashMap<&str, Treatment> = HashMap::new();
        self.containers.keep(cgroups);
        if !self.reported.is_empty() {
            let existing: HashSet<&String> = cgroups.iter().collect();
            self.reported.retain(|path| existing.contains(path));
        }
        for path in cgroups {
            let mut container = || self.containers.of(roots, path, &mut found.troubles).cloned();
            let Some(rule) = self.rules.iter().find(|rule| rule.matches(path, &mut container)) else { continue };
            let treatment = rule.treatment;
            let owner = path.match_indices('/').filter(|&(at, _)| at > 0).find_map(|(at, _)| owned.get_key_value(&path[..at]));
            if let Some((owner, owners)) = owner {
                if *owners != treatment && self.reported.insert(path.clone()) {
                    let what =
                        format!("a rule names it, but it is inside the job {owner} and treated as part of it; remove the rule for {owner}");
                    found.troubles.push((path.clone(), what));
                }
                continue;
            }
            if treatment.class == Class::Off {
                continue;
            }
            if found.jobs.len() >= self.jobs_max {
                found.left_out += 1;
                continue;
            }
            owned.insert(path.as_str(), treatment);
            found.jobs.push(Found { path: path.clone(), treatment });
        }
        found
    }
}

impl Rule {
    fn new(rule: &JobRule, treatment: Treatment) -> Result<Self, globset::Error> {
        // `*` matches within one level, as in systemd and the shell; `**` matches across levels.
        let cgroup = GlobBuilder::new(&rule.cgroup).literal_separator(true).backslash_escape(true).build()?.compile_matcher();
        // Names and values have no levels.
        let pattern = |text: &str| Ok(GlobBuilder::new(text).backslash_escape(true).build()?.compile_matcher());
        let container = rule.container.as_deref().map(pattern).transpose()?;
        let annotation = rule.annotation.as_deref().and_then(|text| text.split_once('='));
        let annotation = annotation.map(|(key, value)| Ok((key.to_owned(), pattern(value)?))).transpose()?;
        Ok(Self { cgroup, container, annotation, treatment })
    }

    /// Whether the rule matches a cgroup; `container` is called only if the rule depends on it, because it may read a file.
    fn matches(&self, path: &str, container: &mut dyn FnMut() -> Option<Container>) -> bool {
        if !self.cgroup.is_match(path) {
            return false;
        }
        if self.container.is_none() && self.annotation.is_none() {
            return true;
        }
        let Some(container) = container() else { return false };
        let named = self.container.as_ref().is_none_or(|glob| container.name.is_some_and(|name| glob.is_match(name)));
        let value = |key: &str| container.annotations.get(key);
        named && self.annotation.as_ref().is_none_or(|(key, glob)| value(key).is_some_and(|value| glob.is_match(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rules: &[(&str, &str)], cgroups: &[&str], expected: &[(&str, Class)]) {
        let mut text = String::new();
        for (glob, class) in rules {
            text += &format!("[[job]]\ncgroup = \"{glob}\"\nclass = \"{class}\"\n");
        }
        let config = Config::from_str("test", &text).unwrap();
        let cgroups: Vec<_> = cgroups.iter().map(ToString::to_string).collect();
        let found = Rules::new(&config).unwrap().find(&Roots::host(), &cgroups);
        let got: Vec<_> = found.jobs.iter().map(|f| (f.path.as_str(), f.treatment.class)).collect();
        assert_eq!((got.as_slice(), found.left_out), (expected, 0));
    }

    #[test]
    fn without_a_rule_the_policy_of_the_configuration_counts() {
        let names = |rule: &str| {
            let config = Config::from_str("test", &format!("agent.policy = \"slowdown\"\n{rule}")).unwrap();
            Rules::new(&config).unwrap().name(Policy::Slowdown)
        };
        assert!(names("") && names("[[job]]\ncgroup = \"/a\"\nclass = \"standard\"\n"));
        assert!(!names("[[job]]\ncgroup = \"/a\"\nclass = \"standard\"\npolicy = \"pressure\"\n"));
    }

    #[test]
    fn the_first_matching_rule_decides() {
        check(
            &[("/system.slice/sshd.service", "off"), ("/system.slice/*.service", "standard"), ("/system.slice/*", "observe")],
            &["/system.slice", "/system.slice/sshd.service", "/system.slice/redis.service", "/system.slice/x.scope"],
            &[("/system.slice/redis.service", Class::Standard), ("/system.slice/x.scope", Class::Observe)],
        );
    }

    #[test]
    fn a_job_includes_the_cgroups_below_it() {
        check(
            &[("/a", "standard"), ("/a/**", "aggressive"), ("/ab/*", "observe")],
            &["/a", "/ab", "/a/b", "/ab/c", "/a/b/d"],
            &[("/a", Class::Standard), ("/ab/c", Class::Observe)],
        );
    }

    #[test]
    fn a_rule_inside_a_job_is_reported_once() {
        let text = "[[job]]\ncgroup = \"/a\"\nclass = \"standard\"\n[[job]]\ncgroup = \"/a/**\"\nclass = \"off\"\n";
        let mut rules = Rules::new(&Config::from_str("test", text).unwrap()).unwrap();
        let cgroups = ["/a", "/a/b"].map(str::to_owned);
        let roots = Roots::under(std::path::Path::new("/nowhere"));
        let reported = rules.find(&roots, &cgroups).troubles;
        assert!(matches!(reported.as_slice(), [(path, what)] if path == "/a/b" && what.contains("inside the job /a")), "{reported:?}");
        assert!(rules.find(&roots, &cgroups).troubles.is_empty());
    }

    #[test]
    fn one_star_is_one_level_and_without_rules_there_are_no_jobs() {
        check(&[("/kube/*", "standard")], &["/kube", "/kube/a", "/other/a/b"], &[("/kube/a", Class::Standard)]);
        check(&[], &["/a"], &[]);
    }

    #[test]
    fn jobs_are_bounded() {
        let config = Config::from_str("test", "[agent]\njobs_max = 2\n[[job]]\ncgroup = \"/*\"\nclass = \"standard\"\n").unwrap();
        let cgroups: Vec<_> = (0..5).map(|i| format!("/j{i}")).collect();
        let found = Rules::new(&config).unwrap().find(&Roots::host(), &cgroups);
        assert_eq!((found.jobs.len(), found.left_out), (2, 3));
    }

    #[test]
    fn containers_are_known_by_name_and_annotation() {
        const POD: &str = "/kubepods.slice/pod1.slice";
        let machine = crate::testing::Machine::new();
        let container = |id: &str, name: &str, tier: &str| {
            let path = format!("run/containers/storage/overlay-containers/{id}/userdata/config.json");
            let annotations = format!("{{\"io.kubernetes.container.name\": \"{name}\", \"example.com/tier\": \"{tier}\"}}");
            machine.put(&path, &format!("{{\"annotations\": {annotations}}}"));
            format!("{POD}/crio-{id}.scope")
        };
        let proxy = container("01", "istio-proxy", "web");
        let app = container("02", "app", "batch-small");
        let other = container("03", "app", "web");
        let mut cgroups = vec![POD.to_owned(), proxy.clone(), app.clone(), other, format!("{POD}/crio-04.scope"), "/a".to_owned()];
        let text = "[[job]]\ncontainer = \"*-proxy\"\nkind = \"application_tax\"\n\
                    [[job]]\ncgroup = \"/kubepods.slice/**\"\nannotation = \"example.com/tier=batch*\"\nclass = \"conservative\"\n";
        let mut rules = Rules::new(&Config::from_str("test", text).unwrap()).unwrap();
        let mut check = |cgroups: &[String], expected: &[(&String, Class)], troubles: usize| {
            let found = rules.find(&machine.roots, cgroups);
            let got: Vec<_> = found.jobs.iter().map(|found| (&found.path, found.treatment.class)).collect();
            assert_eq!((got.as_slice(), found.troubles.len()), (expected, troubles), "{:?}", found.troubles);
        };
        let both = [(&proxy, Class::Aggressive), (&app, Class::Conservative)];
        check(&cgroups, &both, 1);
        check(&cgroups, &both, 0);
        cgroups.truncate(2);
        check(&cgroups, &both[..1], 0);
    }
}
