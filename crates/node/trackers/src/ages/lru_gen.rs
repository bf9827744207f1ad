//! Ages from the multi-generational LRU's debugfs file, per cgroup.
//!
//! Ageing (the `+` command) walks the page tables of the cgroup's processes once, moves every accessed page into the
//! generation that was the youngest, and creates a new one. A page in generation `g` was therefore last accessed before
//! generation `g + 1` was created, and has been idle for at least that generation's `age_ms`, whether the agent or the
//! kernel started the ageing.
//!
//! # Limitations
//! The kernel keeps four generations. Right after ageing the newest is empty and the oldest holds "two scan periods or
//! more", so ages 0, 1 and "2 and above" are measured. For ages beyond 2 the tracker keeps its own history: pages that
//! enter the oldest generation form a cohort that ages with every scan. When pages leave that generation, the kernel
//! does not report which. As accesses they count at the youngest ages, which are the most likely to be accessed. From
//! the history they are removed at the oldest ages, so that no page is reported older than it may be: otherwise a few
//! pages that enter and leave would leave behind a cohort of the same size that seems to grow ever older, and evicting
//! as many pages would evict warm ones. Freed pages appear as accessed pages, which raises the threshold, the safe
//! direction. Ageing does not see accesses to cached file pages by `read(2)`.

use std::collections::HashMap;
use std::time::Duration;

use config::Tracker as Kind;
use kernel::{Error, Result, Roots};
use policy::histogram::AgeCounts;
use units::{Age, Pages};

use super::generations::Generations;
use super::{Generation, Scan, Target, Tracker};

/// The oldest age that generations distinguish: two or more.
const RESOLVED_TO: Age = Age(2);

/// The tracker based on generations.
#[derive(Debug)]
pub struct LruGen {
    generations: Generations,
    history: HashMap<u64, History>,
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
    /// `Unsupported` if the kernel lacks MGLRU, it is switched off, or debugfs is not mounted.
    pub fn open(roots: &Roots, scan_period: Duration) -> Result<Self> {
        Ok(Self { generations: Generations::open(roots, scan_period)?, history: HashMap::new() })
    }

    fn scan_target(&mut self, now: Duration, target: &Target) -> Result<Scan> {
        let mut anon = [Pages::ZERO; 3];
        let mut file = AgeCounts::default();
        let mut found = false;
        for memcg in self.generations.of_job(&target.path) {
            found = true;
            for node in &memcg.nodes {
                for (age, g) in self.generations.ages(node) {
                    anon[usize::from(age.0.min(RESOLVED_TO.0))] += Pages(g.anon_pages);
                    file.add(age.min(RESOLVED_TO), Pages(g.file_pages));
                }
            }
        }
        if !found {
            return Err(Error::Gone { path: target.path.clone().into() });
        }
        let before = self.history.remove(&target.id);
        let window = before.as_ref().map_or(Duration::ZERO, |b| now.saturating_sub(b.scanned_at));
        let (resident, accesses) = advance(before.map(|b| b.anon).unwrap_or_default(), anon);
        self.history.insert(target.id, History { scanned_at: now, anon: resident.clone() });
        Ok(Scan { taken_at: now, resident, file, accesses, window, resolved_to: RESOLVED_TO, ..Scan::default() })
    }
}

/// Computes the pages by age now and the accesses since the last scan, from the pages by age at the last scan and the
/// kernel's counts for ages 0, 1 and "2 and above" now.
///
/// Pages at age 1 now were at age 0 then; the rest of age 0 was accessed again. Pages at 2 and above were at 1 and
/// above.
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
    // More pages than before: a merge of generations, or ageing by the kernel, made them old at once.
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

    fn scan(&mut self, now: Duration, targets: &[Target]) -> Result<Vec<Result<Scan>>> {
        self.generations.read()?;
        self.generations.age(|memcg, _| targets.iter().any(|target| memcg.belongs(&target.path)))?;
        let scans = targets.iter().map(|target| self.scan_target(now, target)).collect();
        self.history.retain(|id, _| targets.iter().any(|target| target.id == *id));
        Ok(scans)
    }

    /// Evicted pages were neither accessed nor freed: they are removed from the history at its oldest ages, as the
    /// kernel removes them from the lists.
    fn swapped_out(&mut self, job: u64, pages: Pages) {
        if let Some(history) = self.history.get_mut(&job) {
            history.anon.take_oldest(pages);
        }
    }

    fn generations(&self, path: &str, age: Age) -> Vec<Generation> {
        self.generations.old(path, age.min(RESOLVED_TO))
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
    fn pages_leaving_the_oldest_generation_are_accessed_young_and_removed_old() {
        check(&[(0, 10), (1, 20), (9, 40)], [25, 10, 35], &[(0, 25), (1, 10), (2, 20), (10, 15)], &[(1, 20), (9, 5)]);
    }

    #[test]
    fn a_first_scan_and_pages_made_old_at_once_start_at_two() {
        check(&[], [5, 6, 7], &[(0, 5), (1, 6), (2, 7)], &[]);
        check(&[(5, 10)], [0, 0, 30], &[(2, 20), (6, 10)], &[]);
    }
}
