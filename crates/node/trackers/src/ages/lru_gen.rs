//! Ages from the multi-generational LRU's debugfs file, per cgroup.
//!
//! Ageing (`+` command) walks the page tables of the cgroup's processes once, moves every page found accessed into
//! the generation that was the youngest, and opens a new one. A page in generation `g` was therefore last seen
//! accessed before generation `g + 1` was born, and has been idle for at least that generation's `age_ms`: after
//! our own ageing, or the kernel's under pressure, alike.
//!
//! # What it cannot resolve
//! The kernel keeps four generations. Right after ageing the newest is empty and the oldest holds "two scan periods
//! or more", so ages 0, 1 and "2 and up" are measured. For ages beyond 2 the tracker keeps its own history: pages
//! entering the oldest generation become a cohort that grows older scan by scan. When pages leave that generation,
//! the kernel does not say which. As accesses they count at the youngest ages, the likeliest to be touched. From what
//! stays they are taken at the oldest ages, so that nothing passes for old that may not be: were it the other way
//! round, a few pages that come and go would leave a cohort of the same size behind that seems to grow ever older, and
//! evicting that many would take warm ones. Pages that are freed look like pages that were accessed; that errs towards
//! a higher threshold. Cached file pages that are only read with `read(2)` are not seen accessed by ageing at all.

use std::collections::HashMap;
use std::time::Duration;

use config::Tracker as Kind;
use kernel::lru_gen::{Gen, LruGen as Files, Memcg};
use kernel::{Error, Result, Roots};
use policy::histogram::AgeCounts;
use units::{Age, Pages};

use super::{Generation, Scan, Target, Tracker};

/// The oldest age that the generations themselves tell: two or more.
const RESOLVED_TO: Age = Age(2);

/// The tracker by generations.
#[derive(Debug)]
pub struct LruGen {
    files: Files,
    scan_period: Duration,
    history: HashMap<u64, History>,
    latest: Vec<Memcg>,
}

/// One job's pages at its last scan.
#[derive(Clone, Debug, Default)]
struct History {
    scanned_at: Duration,
    anon: AgeCounts,
}

impl LruGen {
    /// Opens the debugfs file.
    ///
    /// # Errors
    /// `Unsupported` where the kernel lacks MGLRU, it is switched off, or debugfs is not mounted.
    pub fn open(roots: &Roots, scan_period: Duration) -> Result<Self> {
        Ok(Self { files: Files::probe(roots)?, scan_period, history: HashMap::new(), latest: Vec::new() })
    }

    /// Opens a new generation in every memory cgroup of the targets.
    fn age_all(&self, targets: &[Target<'_>]) -> Result<()> {
        for memcg in living(self.files.read()?).iter().filter(|m| targets.iter().any(|t| belongs(&m.path, t.path))) {
            for node in &memcg.nodes {
                let Some(youngest) = node.max_seq() else { continue };
                // Refused: it ended, or the kernel aged it in between. It is read below as it then is.
                match self.files.age(memcg.id, node.nid, youngest) {
                    Err(error) if !error.is_gone() => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn scan_target(&mut self, now: Duration, target: &Target<'_>) -> Result<Scan> {
        let mut anon = [Pages::ZERO; 3];
        let mut file = AgeCounts::default();
        let mut found = false;
        for memcg in self.latest.iter().filter(|m| belongs(&m.path, target.path)) {
            found = true;
            for node in &memcg.nodes {
                for (age, g) in ages(&node.gens, self.scan_period) {
                    anon[usize::from(age.0.min(RESOLVED_TO.0))] += Pages(g.anon_pages);
                    file.add(age.min(RESOLVED_TO), Pages(g.file_pages));
                }
            }
        }
        if !found {
            return Err(Error::Gone { path: target.path.into() });
        }
        let before = self.history.remove(&target.id);
        let window = before.as_ref().map_or(Duration::ZERO, |b| now.saturating_sub(b.scanned_at));
        let (resident, accesses) = advance(before.map(|b| b.anon).unwrap_or_default(), anon);
        self.history.insert(target.id, History { scanned_at: now, anon: resident.clone() });
        Ok(Scan { taken_at: now, resident, file, accesses, window, resolved_to: RESOLVED_TO, remark: None })
    }
}

/// Without the cgroups that were removed and made anew: the kernel lists one for as long as pages are charged to it, under
/// the path that it had. It lists siblings in the order of their making, so that the living one comes last; its id is the
/// cgroup's own on 7.2 only.
fn living(listed: Vec<Memcg>) -> Vec<Memcg> {
    let last: HashMap<String, usize> = listed.iter().enumerate().map(|(at, memcg)| (memcg.path.clone(), at)).collect();
    listed.into_iter().enumerate().filter(|(at, memcg)| last.get(&memcg.path) == Some(at)).map(|(_, memcg)| memcg).collect()
}

/// Whether the memory cgroup at `path` is the job's, or lies below it.
fn belongs(path: &str, job: &str) -> bool {
    path.strip_prefix(job).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Each generation with the age that its pages have at least: the time since the next one was born, in scans.
///
/// Rounded to the nearest scan, because the agent's own scans come a little early or late; the youngest is age 0.
fn ages(gens: &[Gen], scan_period: Duration) -> impl Iterator<Item = (Age, &Gen)> {
    let half = scan_period / 2;
    gens.iter().map(move |g| {
        let next = gens.iter().filter(|other| other.seq > g.seq).min_by_key(|other| other.seq);
        let idle = next.map_or(Duration::ZERO, |next| Duration::from_millis(next.age_ms));
        (Age::from_idle_time(idle.saturating_add(half), scan_period), g)
    })
}

/// From the pages by age at the last scan, and the kernel's counts for ages 0, 1 and "2 and up" now, the pages by
/// age now and the accesses in between.
///
/// Pages at age 1 now were at age 0 then; the rest of age 0 was accessed again. Pages at 2 and up were at 1 and up.
fn advance(before: AgeCounts, now: [Pages; 3]) -> (AgeCounts, AgeCounts) {
    let [young, middle, old_total] = now;
    let mut accesses = AgeCounts::default();
    accesses.add(Age(0), before.at(Age(0)) - middle);

    let mut old = before;
    let zero = old.at(Age(0));
    old.take_youngest(zero);
    let left = old.total() - old_total;
    accesses.merge(&old.clone().take_youngest(left));
    old.take_oldest(left);
    old.grow_older();
    // More than were there: pages that a merge of generations, or an ageing by the kernel, made old at once.
    let surplus = old_total - old.total();
    old.add(RESOLVED_TO, surplus);
    old.add(Age(0), young);
    old.add(Age(1), middle);
    (old, accesses)
}

impl Tracker for LruGen {
    fn kind(&self) -> Kind {
        Kind::LruGen
    }

    fn scan(&mut self, now: Duration, targets: &[Target<'_>]) -> Result<Vec<Result<Scan>>> {
        self.age_all(targets)?;
        self.latest = living(self.files.read()?);
        let scans = targets.iter().map(|target| self.scan_target(now, target)).collect();
        self.history.retain(|id, _| targets.iter().any(|target| target.id == *id));
        Ok(scans)
    }

    /// What we evicted was neither accessed nor freed: it leaves the history from its old end, as the kernel takes it
    /// from the lists.
    fn went_out(&mut self, job: u64, pages: Pages) {
        if let Some(history) = self.history.get_mut(&job) {
            history.anon.take_oldest(pages);
        }
    }

    fn generations(&self, path: &str, age: Age) -> Vec<Generation> {
        let wanted = age.min(RESOLVED_TO);
        let mut generations = Vec::new();
        for memcg in self.latest.iter().filter(|m| belongs(&m.path, path)) {
            for node in &memcg.nodes {
                // Evicting a generation takes all older ones with it, so the youngest that qualifies is named.
                let old = || ages(&node.gens, self.scan_period).filter(|(a, _)| *a >= wanted).map(|(_, g)| g);
                if let Some(youngest) = old().max_by_key(|g| g.seq) {
                    let pages = old().map(|g| Pages(g.anon_pages)).sum();
                    generations.push(Generation { memcg: memcg.id, node: node.nid, seq: youngest.seq, pages });
                }
            }
        }
        generations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pairs: &[(u8, u64)]) -> AgeCounts {
        let mut counts = AgeCounts::default();
        for &(age, n) in pairs {
            counts.add(Age(age), Pages(n));
        }
        counts
    }

    fn check(before: &[(u8, u64)], now: [u64; 3], resident: &[(u8, u64)], accesses: &[(u8, u64)]) {
        let got = advance(counts(before), now.map(Pages));
        assert_eq!(got, (counts(resident), counts(accesses)));
    }

    #[test]
    fn cohorts_keep_ageing_beyond_the_generations() {
        check(&[(0, 10), (1, 20), (2, 30), (9, 40)], [10, 0, 90], &[(0, 10), (2, 20), (3, 30), (10, 40)], &[(0, 10)]);
    }

    #[test]
    fn what_leaves_the_old_generation_is_accessed_young_and_missing_old() {
        check(&[(0, 10), (1, 20), (9, 40)], [25, 10, 35], &[(0, 25), (1, 10), (2, 20), (10, 15)], &[(1, 20), (9, 5)]);
    }

    #[test]
    fn a_first_scan_and_pages_made_old_at_once_start_at_two() {
        check(&[], [5, 6, 7], &[(0, 5), (1, 6), (2, 7)], &[]);
        check(&[(5, 10)], [0, 0, 30], &[(2, 20), (6, 10)], &[]);
    }

    #[test]
    fn a_generation_is_as_old_as_the_next_ones_birth() {
        let gen_of = |seq, age_ms| Gen { seq, age_ms, anon_pages: 0, file_pages: 0 };
        let gens = [gen_of(4, 370_000), gen_of(5, 241_000), gen_of(6, 119_000), gen_of(7, 3)];
        let got: Vec<_> = ages(&gens, Duration::from_secs(120)).map(|(age, g)| (g.seq, age.0)).collect();
        assert_eq!(got, [(4, 2), (5, 1), (6, 0), (7, 0)]);
    }

    #[test]
    fn a_cgroup_that_was_made_anew_is_not_its_predecessor() {
        let listed = ["/a", "/b", "/a/x", "/a", "/c"].map(str::to_owned);
        let listed = listed.into_iter().zip(1..).map(|(path, id)| Memcg { id, path, nodes: Vec::new() }).collect();
        let ids: Vec<_> = living(listed).iter().map(|memcg| memcg.id).collect();
        assert_eq!(ids, [2, 3, 4, 5]);
    }

    #[test]
    fn nested_cgroups_belong_to_the_job_and_namesakes_do_not() {
        assert!(belongs("/a", "/a") && belongs("/a/b", "/a"));
        assert!(!belongs("/ab", "/a") && !belongs("/", "/a"));
    }
}
