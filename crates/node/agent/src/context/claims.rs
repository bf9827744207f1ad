//! What protected jobs claim of `memory.low`, and which cgroups above them have a value of the agent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use units::Bytes;

/// Control periods whose most page cache in use is claimed: the time in which a machine that runs short gets rid of what no process uses.
const CACHE_PERIODS: usize = 10;

/// Claims by the job's path, and the ancestors that were given protection for them.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    jobs: BTreeMap<String, Bytes>,
    /// Page cache that each job used in its last control periods.
    caches: BTreeMap<String, VecDeque<Bytes>>,
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

    /// Notes the page cache that a job uses in this control period; returns the most of the last ones. When the machine is short, the
    /// kernel ages its lists by the second, and pages in use are found old: what was in use shortly before must stay protected then.
    pub fn cache(&mut self, path: &str, used: Bytes) -> Bytes {
        let caches = self.caches.entry(path.to_owned()).or_default();
        if caches.len() == CACHE_PERIODS {
            caches.pop_front();
        }
        caches.push_back(used);
        caches.iter().copied().max().unwrap_or_default()
    }

    /// A job claims nothing any more.
    pub fn remove(&mut self, path: &str) {
        self.jobs.remove(path);
        self.caches.remove(path);
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
    fn page_cache_in_use_is_claimed_for_some_periods() {
        let mut claims = Claims::default();
        assert_eq!(claims.cache("/a", Bytes(48)), Bytes(48));
        for _ in 1..CACHE_PERIODS {
            assert_eq!(claims.cache("/a", Bytes(12)), Bytes(48));
        }
        assert_eq!(claims.cache("/a", Bytes(12)), Bytes(12));
        assert_eq!((claims.cache("/a", Bytes(30)), claims.cache("/b", Bytes(1))), (Bytes(30), Bytes(1)));
        claims.remove("/a");
        assert_eq!(claims.cache("/a", Bytes(2)), Bytes(2));
    }

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
