//! Generations of MGLRU as trackers use them: which are how old, and opening new ones.
//!
//! A page in generation `g` was last accessed before generation `g + 1` was created, and has been idle for at least that
//! generation's `age_ms`, whether the agent or the kernel created it.

use std::collections::HashMap;
use std::time::Duration;

use kernel::lru_gen::{Gen, LruGen as Files, Memcg, Node};
use kernel::{Result, Roots};
use units::{Age, Pages};

use super::Generation;

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

    /// For each cgroup and node of a job the youngest generation that is at least `age` old; evicting it evicts all older ones too.
    pub(super) fn old(&self, job: &str, age: Age) -> Vec<Generation> {
        let mut generations = Vec::new();
        for memcg in self.of_job(job) {
            for node in &memcg.nodes {
                let old = || self.ages(node).filter(|(a, _)| *a >= age).map(|(_, g)| g);
                if let Some(youngest) = old().max_by_key(|g| g.seq) {
                    let pages = old().map(|g| Pages(g.anon_pages)).sum();
                    generations.push(Generation { memcg: memcg.id, node: node.nid, seq: youngest.seq, pages });
                }
            }
        }
        generations
    }
}

/// Drops removed cgroups whose path is in use again: the kernel lists a cgroup under its former path as long as pages
/// are charged to it. Siblings are listed in the order of their creation, so the existing cgroup comes last. (Its id
/// cannot be compared with the cgroup's own, which only Linux 7.2 reports.)
fn living(listed: Vec<Memcg>) -> Vec<Memcg> {
    let last: HashMap<String, usize> = listed.iter().enumerate().map(|(at, memcg)| (memcg.path.clone(), at)).collect();
    listed.into_iter().enumerate().filter(|(at, memcg)| last.get(&memcg.path) == Some(at)).map(|(_, memcg)| memcg).collect()
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
    fn only_the_newest_cgroup_of_a_path_is_kept() {
        let listed = ["/a", "/b", "/a/x", "/a", "/c"].map(str::to_owned);
        let listed = listed.into_iter().zip(1..).map(|(path, id)| Memcg { id, path, nodes: Vec::new() }).collect();
        let ids: Vec<_> = living(listed).iter().map(|memcg| memcg.id).collect();
        assert_eq!(ids, [2, 3, 4, 5]);
    }
}
