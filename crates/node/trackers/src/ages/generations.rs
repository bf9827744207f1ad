//! Generations of MGLRU as trackers use them: which are how old, and opening new ones.
//!
//! A page in generation `g` was last accessed before generation `g + 1` was created, and has been idle for at least that
//! generation's `age_ms`, whether the agent or the kernel created it.

use std::collections::HashMap;
use std::time::Duration;

use kernel::lru_gen::{Gen, LruGen as Files, Memcg, Node};
use kernel::{Result, Roots};
use units::{Age, Pages};

use super::{EVICTED_MIN, Generation, Target};

/// The youngest threshold that generations are opened for before a job's first decision.
const THRESHOLD_FIRST: Age = Age(4);

/// The page cache that may go with anonymous memory is one part in this many of it, at most.
const CACHE_PARTS: u64 = 8;

/// The generations of all memory cgroups at the last reading.
#[derive(Debug)]
pub(super) struct Generations {
    files: Files,
    scan_period: Duration,
    latest: Vec<Memcg>,
}

impl Generations {
    /// Opens the debugfs file.
    ///
    /// # Errors
    /// `Unsupported` if the kernel lacks MGLRU, it is switched off, or debugfs is not mounted.
    pub(super) fn open(roots: &Roots, scan_period: Duration) -> Result<Self> {
        Ok(Self { files: Files::probe(roots)?, scan_period, latest: Vec::new() })
    }

    /// Reads the generations.
    ///
    /// # Errors
    /// Any error of the file.
    pub(super) fn read(&mut self) -> Result<()> {
        self.latest = living(self.files.read()?);
        Ok(())
    }

    /// Creates a new generation in every memory cgroup and node for which `due` holds, and reads the result.
    ///
    /// # Errors
    /// Any error of the file but those of cgroups that are gone.
    pub(super) fn age(&mut self, due: impl Fn(&Memcg, &Node) -> bool) -> Result<()> {
        let mut aged = false;
        for memcg in &self.latest {
            for node in memcg.nodes.iter().filter(|node| due(memcg, node)) {
                let Some(youngest) = node.max_seq() else { continue };
                aged = true;
                // `Gone`: the cgroup was removed, or the kernel aged it in between. The next read shows its state.
                match self.files.age(memcg.id, node.nid, youngest) {
                    Err(error) if !error.is_gone() => return Err(error),
                    _ => {}
                }
            }
        }
        if aged { self.read() } else { Ok(()) }
    }

    /// Opens the generations that are due at the pace of each job's threshold ([`pace`]); `observed` is how long a job, by its id, has
    /// been observed.
    ///
    /// # Errors
    /// Any error of the file.
    pub(super) fn keep_pace(&mut self, targets: &[Target], observed: impl Fn(u64) -> Duration) -> Result<()> {
        self.read()?;
        let scan = self.scan_period;
        let jobs: HashMap<&str, &Target> = targets.iter().map(|target| (target.path.as_str(), target)).collect();
        self.age(|memcg, node| {
            let Some(target) = above(&memcg.path).find_map(|path| jobs.get(path)) else { return false };
            let pace = pace(target.threshold, observed(target.id), scan);
            let youngest = node.gens.iter().max_by_key(|generation| generation.seq);
            // Scans may be slightly early; a generation that is a quarter of a scan early costs less than one that is a scan late.
            youngest.is_some_and(|youngest| Duration::from_millis(youngest.age_ms) + scan / 4 >= pace)
        })
    }

    /// The memory cgroups of a job.
    pub(super) fn of_job(&self, job: &str) -> impl Iterator<Item = &Memcg> {
        self.latest.iter().filter(move |memcg| memcg.belongs(job))
    }

    /// Each generation of a node with the minimum age of its pages: the time since the next one was created, in scans.
    ///
    /// Rounded to the nearest scan, because the agent's scans may be slightly early or late; the youngest has age 0.
    pub(super) fn ages<'a>(&self, node: &'a Node) -> impl Iterator<Item = (Age, &'a Gen)> + use<'a> {
        ages(&node.gens, self.scan_period)
    }

    /// The age of a job's oldest generation that is worth evicting; zero if there is none.
    pub(super) fn reach(&self, job: &str) -> Age {
        let nodes = self.of_job(job).flat_map(|memcg| &memcg.nodes);
        let old = nodes.flat_map(|node| self.evictable(node)).filter(|(_, generation)| generation.anon_pages >= EVICTED_MIN.0);
        old.map(|(age, _)| age).max().unwrap_or(Age(0))
    }

    /// For each cgroup and node of a job the youngest generation that is at least `age` old and can be evicted; evicting it evicts all older
    /// ones too.
    pub(super) fn old(&self, job: &str, age: Age) -> Vec<Generation> {
        let mut generations = Vec::new();
        for memcg in self.of_job(job) {
            for node in &memcg.nodes {
                let old: Vec<_> = self.evictable(node).filter(|(a, _)| *a >= age).map(|(_, generation)| generation).collect();
                if let Some(youngest) = old.last() {
                    let pages = old.iter().map(|generation| Pages(generation.anon_pages)).sum();
                    generations.push(Generation { memcg: memcg.id, node: node.nid, seq: youngest.seq, pages });
                }
            }
        }
        generations
    }

    /// The generations of a node whose anonymous memory the kernel evicts if it is asked to, with their ages, the oldest first.
    ///
    /// It evicts none of a younger generation than the oldest one with page cache, but that page cache in its place (`mm/vmscan.c`,
    /// `try_to_inc_min_seq`, `isolate_folios`). A little of it may go; where there is much, what is younger waits until it is old: as
    /// generations are opened, of four the oldest two are united. Kernels whose `try_to_inc_min_seq` has `for_each_evictable_type` would
    /// evict it from all but the youngest two; there it waits longer than it must.
    fn evictable<'a>(&self, node: &'a Node) -> impl Iterator<Item = (Age, &'a Gen)> + use<'a> {
        let mut gens: Vec<_> = self.ages(node).collect();
        gens.sort_unstable_by_key(|(_, generation)| generation.seq);
        let (mut anon, mut older_cache, mut count) = (0_u64, 0_u64, 0);
        for (index, (_, generation)) in gens.iter().enumerate() {
            anon = anon.saturating_add(generation.anon_pages);
            if older_cache.saturating_mul(CACHE_PARTS) <= anon {
                count = index + 1;
            }
            older_cache = older_cache.saturating_add(generation.file_pages);
        }
        gens.truncate(count);
        gens.into_iter()
    }
}

/// Drops removed cgroups whose path is in use again: the kernel lists a cgroup under its former path as long as pages
/// are charged to it. Siblings are listed in the order of their creation, so the existing cgroup comes last. (Its id
/// cannot be compared with the cgroup's own, which only Linux 7.2 reports.)
fn living(listed: Vec<Memcg>) -> Vec<Memcg> {
    let last: HashMap<String, usize> = listed.iter().enumerate().map(|(at, memcg)| (memcg.path.clone(), at)).collect();
    listed.into_iter().enumerate().filter(|(at, memcg)| last.get(&memcg.path) == Some(at)).map(|(_, memcg)| memcg).collect()
}

/// A cgroup's path and those of the cgroups above it, without the root.
fn above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| path.rfind('/').filter(|&at| at > 0).map(|at| &path[..at]))
}

/// How old a job's youngest generation becomes before the next one is opened.
///
/// Half of the threshold; without one, a quarter of the time `observed` so far. The first threshold is somewhere between the age that
/// a scan distinguishes and that time, and something must be as old when it comes: with openings that far apart, the four
/// generations always distinguish what has been idle for a quarter and for 7/16 of the time, however long it becomes.
fn pace(threshold: Option<Age>, observed: Duration, scan: Duration) -> Duration {
    match threshold {
        Some(threshold) => threshold.idle_time(scan) / 2,
        None => (observed / 4).max(THRESHOLD_FIRST.idle_time(scan) / 2),
    }
}

fn ages(gens: &[Gen], scan_period: Duration) -> impl Iterator<Item = (Age, &Gen)> {
    let half = scan_period / 2;
    gens.iter().map(move |g| {
        let next = gens.iter().filter(|other| other.seq > g.seq).min_by_key(|other| other.seq);
        let idle = next.map_or(Duration::ZERO, |next| Duration::from_millis(next.age_ms));
        (Age::from_idle_time(idle.saturating_add(half), scan_period), g)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_a_generation_is_the_time_since_the_next_one_was_created() {
        let gen_of = |seq, age_ms| Gen { seq, age_ms, anon_pages: 0, file_pages: 0 };
        let gens = [gen_of(4, 370_000), gen_of(5, 241_000), gen_of(6, 119_000), gen_of(7, 3)];
        let got: Vec<_> = ages(&gens, Duration::from_secs(120)).map(|(age, g)| (g.seq, age.0)).collect();
        assert_eq!(got, [(4, 2), (5, 1), (6, 0), (7, 0)]);
    }

    #[test]
    fn a_job_reaches_as_far_as_its_oldest_generation_with_pages() {
        let gen_of = |seq, age_ms, anon_pages| Gen { seq, age_ms, anon_pages, file_pages: 0 };
        let machine = crate::testing::Machine::new();
        machine.put("sys/kernel/mm/lru_gen/enabled", b"0x0007\n");
        machine.put("sys/kernel/debug/lru_gen", b"");
        let memcg = |path: &str, gens| Memcg { id: 1, path: path.to_owned(), nodes: vec![Node { nid: 0, gens }] };
        let mut generations = Generations::open(&machine.roots, Duration::from_secs(120)).unwrap();
        let few = vec![gen_of(4, 900_000, 63), gen_of(5, 610_000, 64), gen_of(6, 241_000, 5_000), gen_of(7, 3, 5_000)];
        generations.latest = vec![memcg("/job/part", few), memcg("/other", vec![gen_of(1, 90_000_000, 5_000), gen_of(2, 80_000_000, 0)])];
        assert_eq!(generations.reach("/job"), Age(2), "the pages of generation 5 were accessed before 6 was opened");
        assert_eq!(generations.old("/job", Age(2)), [Generation { memcg: 1, node: 0, seq: 5, pages: Pages(127) }]);
        assert_eq!(generations.reach("/new"), Age(0));
    }

    #[test]
    fn no_generation_is_evicted_for_which_the_kernel_would_take_page_cache() {
        let gen_of = |seq, age_ms, anon_pages, file_pages| Gen { seq, age_ms, anon_pages, file_pages };
        let machine = crate::testing::Machine::new();
        machine.put("sys/kernel/mm/lru_gen/enabled", b"0x0007\n");
        machine.put("sys/kernel/debug/lru_gen", b"");
        let mut generations = Generations::open(&machine.roots, Duration::from_secs(120)).unwrap();
        let mut check = |cached_in: u64, pages: u64, reach: Age, old: &[(u64, u64)]| {
            let file = |seq| if seq == cached_in { pages } else { 0 };
            let gens = [(4, 900_000, 0), (5, 610_000, 400), (6, 241_000, 5_000), (7, 3, 5_000)];
            let gens = gens.map(|(seq, age_ms, anon)| gen_of(seq, age_ms, anon, file(seq))).to_vec();
            generations.latest = vec![Memcg { id: 1, path: "/job".to_owned(), nodes: vec![Node { nid: 0, gens }] }];
            let found: Vec<_> = generations.old("/job", Age(2)).iter().map(|found| (found.seq, found.pages.0)).collect();
            assert_eq!((generations.reach("/job"), found.as_slice()), (reach, old), "{pages} of page cache in {cached_in}");
        };
        check(4, 9_000, Age(0), &[(4, 0)]);
        check(5, 9_000, Age(2), &[(5, 400)]);
        check(6, 9_000, Age(2), &[(5, 400)]);
        // An eighth of what is sought.
        check(4, 50, Age(2), &[(5, 400)]);
        check(4, 51, Age(2), &[(5, 400)]);
    }

    #[test]
    fn a_cgroup_belongs_to_those_above_it() {
        assert_eq!(above("/a/b/c").collect::<Vec<_>>(), ["/a/b/c", "/a/b", "/a"]);
        assert_eq!(above("/").collect::<Vec<_>>(), ["/"]);
    }

    #[test]
    fn only_the_newest_cgroup_of_a_path_is_kept() {
        let listed = ["/a", "/b", "/a/x", "/a", "/c"].map(str::to_owned);
        let listed = listed.into_iter().zip(1..).map(|(path, id)| Memcg { id, path, nodes: Vec::new() }).collect();
        let ids: Vec<_> = living(listed).iter().map(|memcg| memcg.id).collect();
        assert_eq!(ids, [2, 3, 4, 5]);
    }

    #[test]
    fn a_first_threshold_finds_a_generation_as_old() {
        let scan = Duration::from_secs(2);
        // When each generation was opened, the oldest first; the kernel has four of them.
        let mut opened = vec![0_u64];
        for now in (0..10_000).step_by(2) {
            let age = |at: u64| now - at;
            if Duration::from_secs(age(*opened.last().unwrap())) >= pace(None, Duration::from_secs(now), scan) {
                opened.push(now);
                opened = opened.split_off(opened.len().saturating_sub(4));
            }
            // What is in a generation has been idle since the next one was opened.
            let idle: Vec<u64> = opened.iter().skip(1).map(|&at| age(at)).collect();
            if now >= 100 {
                assert_eq!(opened.len(), 4, "{now}");
                assert!(idle[0] * 2 > now * 4 / 5 && idle[0] < now * 2 / 3, "the oldest at {now}: {idle:?}");
                assert!(idle[1] * 5 >= now, "the one before at {now}: {idle:?}");
            }
        }
        assert_eq!(pace(Some(Age(30)), Duration::ZERO, scan), Duration::from_secs(30));
        assert_eq!(pace(None, Duration::ZERO, scan), Duration::from_secs(4));
    }
}
