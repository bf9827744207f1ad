//! The kernel's own lists as actuators: by generation, or by `memory.reclaim`.

use kernel::cgroup::{Cgroup, CgroupRoot, ReclaimOutcome, Swappiness};
use kernel::lru_gen::{LruGen, Node, Outcome};
use kernel::{Result, Roots};
use units::{Age, Bytes, Pages};

use super::Asked;
use trackers::ages::{EVICTED_MIN, Tracker};

/// The swappiness for anonymous memory, which zswap can store.
pub const ANON_FIRST: u8 = 200;

/// Evicts up to `limit` pages from the generations of a job that are at least `threshold` old. Generations with very few are left
/// alone.
///
/// # Errors
/// Any error except the end of the job, or a generation that has become too young in the meantime.
pub fn evict_step(files: &LruGen, tracker: &dyn Tracker, path: &str, threshold: Age, limit: Pages) -> Result<Asked> {
    let mut left = limit;
    let mut asked = Asked { finished: true, ..Asked::default() };
    for generation in tracker.generations(path, threshold) {
        let pages = generation.pages.min(left);
        if pages < EVICTED_MIN {
            continue;
        }
        match files.evict(generation.memcg, generation.node, generation.seq, ANON_FIRST, pages.0) {
            Ok(Outcome::Done) => {
                asked.pages += pages;
                left = left - pages;
            }
            Ok(Outcome::Refused) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(asked)
}

/// The youngest generations, from which the kernel evicts nothing (`MIN_NR_GENS`).
const KEPT: usize = 2;

/// Evicts up to `limit` pages of swap-backed memory from the oldest generation of a job, in each of its cgroups. Where that does not
/// hold `least` of it, a generation is opened instead, and nothing is evicted. Once there are four, the oldest pages go to the next
/// generation, until what was not accessed meanwhile is in the oldest one.
///
/// The kernel takes no anonymous memory from a younger generation than the oldest one with page cache, but takes that page cache
/// (`mm/vmscan.c`, `try_to_inc_min_seq`, `isolate_folios`).
///
/// # Errors
/// Any error except the end of a cgroup.
pub fn evict_oldest(files: &LruGen, path: &str, least: Pages, limit: Pages) -> Result<Asked> {
    let mut left = limit;
    for memcg in files.read()?.iter().filter(|memcg| memcg.belongs(path)) {
        for node in &memcg.nodes {
            let oldest = node.gens.first().filter(|oldest| node.gens.len() > KEPT && oldest.anon_pages >= least.0);
            let Some(oldest) = oldest else {
                if node.gens.iter().any(|generation| generation.anon_pages > 0) {
                    open_generation(files, memcg.id, node)?;
                }
                continue;
            };
            let pages = Pages(oldest.anon_pages).min(left);
            if pages == Pages::ZERO {
                continue;
            }
            match files.evict(memcg.id, node.nid, oldest.seq, ANON_FIRST, pages.0) {
                Ok(Outcome::Done) => left = left - pages,
                Ok(Outcome::Refused) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
    }
    let pages = limit - left;
    Ok(Asked { pages, finished: pages == Pages::ZERO, ..Asked::default() })
}

fn open_generation(files: &LruGen, memcg: u64, node: &Node) -> Result<()> {
    let Some(youngest) = node.max_seq() else { return Ok(()) };
    match files.age(memcg, node.nid, youngest) {
        Err(error) if !error.is_gone() => Err(error),
        _ => Ok(()),
    }
}

/// Has the kernel reclaim up to `amount` from a job with `swappiness` (0: only page cache, 200: anonymous memory first) if it
/// supports that (Linux 6.9). May take more than a minute: see [`super::reclaimer`].
///
/// A kernel without swappiness is not asked for page cache while there is swap space: it would swap.
///
/// # Errors
/// [`kernel::Error::Gone`] if the cgroup with that id no longer exists, even if there is another with its path; any error of
/// `memory.reclaim`.
pub fn reclaim(roots: &Roots, cgroup: &str, id: u64, amount: Bytes, swappiness: u8) -> Result<ReclaimOutcome> {
    let cgroup = Cgroup::open(&CgroupRoot::probe(roots)?, cgroup)?;
    if cgroup.id() != id {
        return Err(kernel::Error::Gone { path: cgroup.path().to_owned() });
    }
    match cgroup.reclaim(amount, Some(Swappiness::Value(swappiness))) {
        Err(error) if error.is_unsupported() => {
            // `thermocline doctor` reports the missing feature; here it would be reported in every period.
            if swappiness == 0 && !kernel::swap::read(roots)?.is_empty() {
                return Ok(ReclaimOutcome::Partial);
            }
            cgroup.reclaim(amount, None)
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    #[test]
    fn a_cgroup_that_was_made_again_is_not_asked() {
        let machine = Machine::new();
        machine.put("sys/fs/cgroup/a/memory.reclaim", "");
        let id = Cgroup::open(&CgroupRoot::probe(&machine.roots).unwrap(), "/a").unwrap().id();
        let error = reclaim(&machine.roots, "/a", id + 1, Bytes(4096), 200).unwrap_err();
        assert!(error.is_gone(), "{error}");
        assert_eq!(machine.get("sys/fs/cgroup/a/memory.reclaim"), "");
        assert_eq!(reclaim(&machine.roots, "/a", id, Bytes(4096), 200).unwrap(), ReclaimOutcome::Done);
        assert_eq!(machine.get("sys/fs/cgroup/a/memory.reclaim"), "4096 swappiness=200");
    }

    #[test]
    fn the_oldest_pages_are_evicted_or_become_old() {
        let machine = Machine::new();
        let file = "sys/kernel/debug/lru_gen";
        let check = |pages: [u64; 3], command: Option<&str>, asked: u64| {
            let rows: Vec<_> = (7..).zip(pages).map(|(seq, anon)| format!("  {seq}  1000  {anon}  50")).collect();
            let text =
                format!("memcg 3 /other\n node 0\n  1 1 90 1\n  2 1 90 1\n  3 1 90 1\nmemcg 5 /job/part\n node 0\n{}\n", rows.join("\n"));
            machine.put("sys/kernel/mm/lru_gen/enabled", "0x0007\n");
            machine.put(file, &text);
            let files = LruGen::probe(&machine.roots).unwrap();
            let found = evict_oldest(&files, "/job", Pages(64), Pages(256)).unwrap();
            assert_eq!((found.pages, found.finished), (Pages(asked), asked == 0), "{pages:?}");
            assert_eq!(machine.get(file), command.unwrap_or(text.trim()), "{pages:?}");
        };
        check([1000, 0, 9], Some("- 5 0 7 200 256"), 256);
        check([100, 0, 9], Some("- 5 0 7 200 100"), 100);
        check([63, 500, 9], Some("+ 5 0 9 1 1"), 0);
        // The kernel would take page cache instead.
        check([0, 500, 9], Some("+ 5 0 9 1 1"), 0);
        check([0, 0, 0], None, 0);
    }
}
