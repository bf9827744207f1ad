//! Which cgroups are jobs.

use config::{Class, Config, Kind, Policy, Tier, Tracker};
use globset::{GlobBuilder, GlobMatcher};

/// The operator's rules, ready to match.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<(GlobMatcher, Treatment)>,
    jobs_max: usize,
}

/// How a rule wants its jobs treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Treatment {
    /// How much may be asked of them.
    pub class: Class,
    /// What they are for.
    pub kind: Kind,
    /// What decides for them.
    pub policy: Policy,
    /// Where their swap-backed memory goes.
    pub tier: Tier,
    /// What observes them.
    pub tracker: Tracker,
}

/// A cgroup that a rule made a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its path relative to the cgroup root.
    pub path: String,
    /// How it is to be treated.
    pub treatment: Treatment,
}

impl Rules {
    /// Compiles the `[[job]]` rules of a configuration.
    ///
    /// # Errors
    /// The pattern that is none, with the reason.
    pub fn new(config: &Config) -> Result<Self, globset::Error> {
        let mut rules = Vec::with_capacity(config.jobs.len());
        for rule in &config.jobs {
            // `*` stays within one level, as operators know it from systemd and the shell; `**` crosses levels.
            let glob = GlobBuilder::new(&rule.cgroup).literal_separator(true).backslash_escape(true).build()?;
            let treatment = Treatment {
                class: rule.class,
                kind: rule.kind,
                policy: rule.policy.unwrap_or(config.agent.policy),
                tier: rule.tier.unwrap_or(config.agent.tier),
                tracker: rule.tracker.unwrap_or(config.agent.tracker),
            };
            rules.push((glob.compile_matcher(), treatment));
        }
        Ok(Self { rules, jobs_max: usize::try_from(config.agent.jobs_max).unwrap_or(usize::MAX) })
    }

    /// The jobs among `cgroups`, which come parents first; and how many were left out by the limit on jobs.
    ///
    /// The first rule that matches a cgroup decides. A job owns everything below it, so that no page is counted
    /// twice; class `off` makes no job, and what is below may still be one.
    #[must_use]
    pub fn find(&self, cgroups: &[String]) -> (Vec<Found>, usize) {
        let mut jobs: Vec<Found> = Vec::new();
        let mut owned = std::collections::HashSet::new();
        let mut left_out = 0;
        for path in cgroups {
            let inside = path.match_indices('/').any(|(at, _)| at > 0 && owned.contains(&path[..at]));
            if inside {
                continue;
            }
            let Some((_, treatment)) = self.rules.iter().find(|(glob, _)| glob.is_match(path)) else { continue };
            if treatment.class == Class::Off {
                continue;
            }
            if jobs.len() >= self.jobs_max {
                left_out += 1;
                continue;
            }
            owned.insert(path.as_str());
            jobs.push(Found { path: path.clone(), treatment: *treatment });
        }
        (jobs, left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rules: &[(&str, &str)], cgroups: &[&str], want: &[(&str, Class)]) {
        let mut text = String::new();
        for (glob, class) in rules {
            text += &format!("[[job]]\ncgroup = \"{glob}\"\nclass = \"{class}\"\n");
        }
        let config = Config::from_str("test", &text).unwrap();
        let cgroups: Vec<_> = cgroups.iter().map(ToString::to_string).collect();
        let (found, left_out) = Rules::new(&config).unwrap().find(&cgroups);
        let got: Vec<_> = found.iter().map(|f| (f.path.as_str(), f.treatment.class)).collect();
        assert_eq!((got.as_slice(), left_out), (want, 0));
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
    fn a_job_owns_what_is_below_it() {
        check(
            &[("/a", "standard"), ("/a/**", "aggressive"), ("/ab/*", "observe")],
            &["/a", "/ab", "/a/b", "/ab/c", "/a/b/d"],
            &[("/a", Class::Standard), ("/ab/c", Class::Observe)],
        );
    }

    #[test]
    fn one_star_is_one_level_and_no_rule_is_no_job() {
        check(&[("/kube/*", "standard")], &["/kube", "/kube/a", "/other/a/b"], &[("/kube/a", Class::Standard)]);
        check(&[], &["/a"], &[]);
    }

    #[test]
    fn jobs_are_bounded() {
        let config = Config::from_str("test", "[agent]\njobs_max = 2\n[[job]]\ncgroup = \"/*\"\nclass = \"standard\"\n").unwrap();
        let cgroups: Vec<_> = (0..5).map(|i| format!("/j{i}")).collect();
        let (found, left_out) = Rules::new(&config).unwrap().find(&cgroups);
        assert_eq!((found.len(), left_out), (2, 3));
    }
}
