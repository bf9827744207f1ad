//! What protected jobs claim of `memory.low` and `memory.min`, and which cgroups above them have a value of the agent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use units::Bytes;

/// Control periods whose most page cache in use is claimed: the time in which a machine that runs short gets rid of what no process uses.
const CACHE_PERIODS: usize = 10;

/// How firmly the kernel keeps what is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// `memory.low`: while other memory can be reclaimed.
    Soft,
    /// `memory.min`: always.
    Hard,
}

impl Strength {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Soft, Self::Hard];

    /// The file of a cgroup.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::Soft => "memory.low",
            Self::Hard => "memory.min",
        }
    }
}

/// Claims by the job's path, and the ancestors that were given protection for them.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    soft: Claimed,
    hard: Claimed,
    /// Page cache that each job used in its last control periods.
    caches: BTreeMap<String, VecDeque<Bytes>>,
}

/// The same, of one strength.
#[derive(Clone, Debug, Default)]
struct Claimed {
    jobs: BTreeMap<String, Bytes>,
    covered: BTreeSet<String>,
}

/// The cgroup above `path`; `None` for a cgroup directly below the root, whose own setting is in effect as it is.
#[must_use]
fn parent_of(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(parent, _)| parent).filter(|parent| !parent.is_empty())
}

/// The cgroups above `path`, from the bottom up, without the root.
pub fn above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(parent_of(path), |path| parent_of(path))
}

impl Claims {
    const fn at(&self, strength: Strength) -> &Claimed {
        match strength {
            Strength::Soft => &self.soft,
            Strength::Hard => &self.hard,
        }
    }

    const fn at_mut(&mut self, strength: Strength) -> &mut Claimed {
        match strength {
            Strength::Soft => &mut self.soft,
            Strength::Hard => &mut self.hard,
        }
    }

    /// Notes what a job claims.
    pub fn insert(&mut self, strength: Strength, path: &str, claimed: Bytes) {
        self.at_mut(strength).jobs.insert(path.to_owned(), claimed);
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

    /// A job claims nothing of this strength any more; of none, if it is soft. Returns whether it did.
    pub fn remove(&mut self, strength: Strength, path: &str) -> bool {
        if strength == Strength::Soft {
            self.hard.jobs.remove(path);
            self.caches.remove(path);
        }
        self.at_mut(strength).jobs.remove(path).is_some()
    }

    /// What a job claims.
    #[must_use]
    pub fn of(&self, strength: Strength, path: &str) -> Option<Bytes> {
        self.at(strength).jobs.get(path).copied()
    }

    /// The jobs that claim anything.
    pub fn jobs(&self, strength: Strength) -> impl Iterator<Item = &str> {
        self.at(strength).jobs.keys().map(String::as_str)
    }

    /// The cgroups above the jobs, each before its own ancestors.
    #[must_use]
    pub fn ancestors(&self, strength: Strength) -> Vec<String> {
        let all: BTreeSet<&str> = self.jobs(strength).flat_map(above).collect();
        // An ancestor's path is the beginning of the paths below it.
        all.into_iter().rev().map(str::to_owned).collect()
    }

    /// Replaces the ancestors that have a value of the agent; returns those that no longer need theirs.
    pub fn cover(&mut self, strength: Strength, covered: impl Iterator<Item = String>) -> Vec<String> {
        let claimed = self.at_mut(strength);
        let before = std::mem::replace(&mut claimed.covered, covered.collect());
        before.difference(&claimed.covered).cloned().collect()
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
        claims.remove(Strength::Soft, "/a");
        assert_eq!(claims.cache("/a", Bytes(2)), Bytes(2));
    }

    #[test]
    fn ancestors_follow_what_is_below_them() {
        use Strength::{Hard, Soft};
        let mut claims = Claims::default();
        for path in ["/a", "/s/db", "/s/t/web", "/s-t/x"] {
            claims.insert(Soft, path, Bytes(1));
        }
        claims.insert(Hard, "/s/t/web", Bytes(2));
        assert_eq!((claims.ancestors(Soft), claims.ancestors(Hard)), (strings(&["/s/t", "/s-t", "/s"]), strings(&["/s/t", "/s"])));
        for strength in Strength::ALL {
            assert_eq!(claims.cover(strength, claims.clone().ancestors(strength).into_iter()), strings(&[]));
        }
        assert!(claims.remove(Soft, "/s/t/web"));
        assert!(!claims.remove(Hard, "/s/t/web"), "without a soft claim there is no hard one");
        assert_eq!(claims.cover(Soft, claims.clone().ancestors(Soft).into_iter()), ["/s/t"]);
        assert_eq!(claims.cover(Hard, claims.clone().ancestors(Hard).into_iter()), ["/s", "/s/t"]);
        assert_eq!((claims.of(Soft, "/s/db"), claims.of(Soft, "/s/t/web")), (Some(Bytes(1)), None));
    }

    fn strings(of: &[&str]) -> Vec<String> {
        of.iter().map(|&text| text.to_owned()).collect()
    }
}
