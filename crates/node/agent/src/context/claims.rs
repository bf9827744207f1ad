//! What protected jobs claim of `memory.low`, and which cgroups above them have a value of the agent.

use std::collections::{BTreeMap, BTreeSet};

use units::Bytes;

/// Claims by the job's path, and the ancestors that were given protection for them.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    jobs: BTreeMap<String, Bytes>,
    covered: BTreeSet<String>,
}

/// The cgroup above `path`; `None` for a cgroup directly below the root, whose own setting is in effect as it is.
#[must_use]
fn parent_of(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(parent, _)| parent).filter(|parent| !parent.is_empty())
}

impl Claims {
    /// Notes what a job claims.
    pub fn insert(&mut self, path: &str, claimed: Bytes) {
        self.jobs.insert(path.to_owned(), claimed);
    }

    /// A job claims nothing any more.
    pub fn remove(&mut self, path: &str) {
        self.jobs.remove(path);
    }

    /// What a job claims.
    #[must_use]
    pub fn of(&self, path: &str) -> Option<Bytes> {
        self.jobs.get(path).copied()
    }

    /// The cgroups above the jobs, each before its own ancestors.
    #[must_use]
    pub fn ancestors(&self) -> Vec<String> {
        let above = |path| std::iter::successors(parent_of(path), |path| parent_of(path));
        let all: BTreeSet<&str> = self.jobs.keys().flat_map(|path| above(path)).collect();
        // An ancestor's path is the beginning of the paths below it.
        all.into_iter().rev().map(str::to_owned).collect()
    }

    /// Replaces the ancestors that have a value of the agent; returns those that no longer need theirs.
    pub fn cover(&mut self, covered: impl Iterator<Item = String>) -> Vec<String> {
        let before = std::mem::replace(&mut self.covered, covered.collect());
        before.difference(&self.covered).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_follow_what_is_below_them() {
        let mut claims = Claims::default();
        for path in ["/a", "/s/db", "/s/t/web", "/s-t/x"] {
            claims.insert(path, Bytes(1));
        }
        assert_eq!(claims.ancestors(), ["/s/t", "/s-t", "/s"]);
        assert_eq!(claims.cover(claims.clone().ancestors().into_iter()), Vec::<String>::new());
        claims.remove("/s/t/web");
        assert_eq!(claims.cover(claims.clone().ancestors().into_iter()), ["/s/t"]);
        assert_eq!((claims.of("/s/db"), claims.of("/s/t/web")), (Some(Bytes(1)), None));
    }
}
