//! Moving the hot part of a guest's pool memory home (`move_pages(2)`), while the guest runs and keeps its slices.
//!
//! The memory policy of the modules stays: a page that is not in memory, such as one that the host swapped out, comes back to the pool, and is
//! moved with the rest if the guest is moved whole. Pages that other processes map too are not moved by address, and count as not moved.

use std::ops::Range;
use std::time::{Duration, Instant};

use kernel::move_pages::{self, Located, Reason};
use kernel::smaps::Mapping;
use kernel::{numa, numa_maps, page_size, smaps};
use units::Bytes;

use super::connection::Connection;
use super::mitigate;
use crate::accesses::{self, Blocks};
use crate::driver::{Error, Machine};
use crate::drivers::sampling::is_memfd;
use crate::process::Process;

/// Pages of one step: 2 MiB of small pages.
const STEP: usize = 512;

/// How much each block of the modules is accessed that is in the pool.
pub(super) fn see(connection: &Connection, process: &Process, window: Duration) -> Result<Blocks, Error> {
    let (roots, pool) = (&connection.roots, connection.settings.pool_node);
    let policies = numa_maps::read(roots, process.pid)?.unwrap_or_default();
    let is_module = |mapping: &Mapping| {
        let of = |policy: &numa_maps::Policy| policy.start == mapping.vma.start && mitigate::is_module(policy, pool);
        is_memfd(&mapping.vma.path) && policies.iter().any(of)
    };
    let modules: Vec<_> = smaps::read(roots, process.pid)?.into_iter().filter(is_module).collect();
    if modules.iter().any(|module| module.hugetlb) {
        return Ok(Blocks::none("its memory is in huge pages of hugetlbfs, which are not moved one by one"));
    }
    let in_pool = |pages: &[u64]| {
        let located = move_pages::locate(process.pid, pages)?;
        Ok(located.into_iter().map(|page| page == Located::Node(pool)).collect())
    };
    Ok(accesses::blocks(roots, process.pid, &modules, in_pool, window, std::thread::sleep)?)
}

/// Operations of the kernel on pages of one process.
trait Pages {
    fn locate(&self, pages: &[u64]) -> Result<Vec<Located>, kernel::Error>;
    fn to_node(&self, pages: &[u64], node: u32) -> Result<Vec<Located>, kernel::Error>;
}

struct Real(i32);

impl Pages for Real {
    fn locate(&self, pages: &[u64]) -> Result<Vec<Located>, kernel::Error> {
        move_pages::locate(self.0, pages)
    }

    fn to_node(&self, pages: &[u64], node: u32) -> Result<Vec<Located>, kernel::Error> {
        move_pages::to_node(self.0, pages, node)
    }
}

/// Moves blocks home, up to `limit`, to the node with most available memory first.
pub(super) fn move_home(
    connection: &Connection,
    machine: &Machine,
    process: &Process,
    blocks: &[Range<u64>],
    limit: Bytes,
    timeout: Duration,
) -> Result<Bytes, Error> {
    let begin = Instant::now();
    let failed = |why: String| Error::Move { guest: machine.name.clone(), why };
    let pool = connection.settings.pool_node;
    let nodes = numa::nodes(&connection.roots)?;
    let targets = mitigate::nodes_for(&nodes, pool, connection.settings.local_nodes.as_deref(), limit).map_err(failed)?;
    let mut home = Home { pages: &Real(process.pid), pool, targets, left: limit, moved: Bytes::ZERO };
    for block in blocks {
        if !home.take(block.clone())? {
            break;
        }
        if begin.elapsed() >= timeout {
            log::warn!("guest {}: {} of {} bytes were moved home in {timeout:?}", machine.name, home.moved.0, limit.0);
            break;
        }
    }
    Ok(home.moved)
}

/// A move of blocks that is under way.
struct Home<'a, P> {
    pages: &'a P,
    pool: u32,
    /// Nodes that are not full, the next one first.
    targets: Vec<u32>,
    /// How much may still be moved.
    left: Bytes,
    moved: Bytes,
}

impl<P: Pages> Home<'_, P> {
    /// Moves what of a block is in the pool. Returns whether more can be moved.
    fn take(&mut self, block: Range<u64>) -> Result<bool, kernel::Error> {
        let page = page_size().bytes();
        let all: Vec<u64> = (block.start..block.end).step_by(usize::try_from(page).unwrap_or(usize::MAX)).collect();
        for step in all.chunks(STEP) {
            let located = self.pages.locate(step)?;
            let there = step.iter().zip(located).filter(|(_, at)| *at == Located::Node(self.pool)).map(|(page, _)| *page);
            let fits = usize::try_from(self.left.0 / page).unwrap_or(usize::MAX);
            let mut there: Vec<u64> = there.take(fits).collect();
            while let Some(&target) = self.targets.first().filter(|_| !there.is_empty()) {
                let moved = self.pages.to_node(&there, target)?;
                let count = moved.iter().filter(|at| **at == Located::Node(target)).count() as u64;
                self.moved += Bytes(count * page);
                self.left = self.left - Bytes(count * page);
                if !moved.contains(&Located::Failed(Reason::NodeFull)) {
                    break;
                }
                self.targets.remove(0);
                there = there.iter().zip(moved).filter(|(_, at)| *at == Located::Failed(Reason::NodeFull)).map(|(page, _)| *page).collect();
            }
            if self.left < Bytes(page) || self.targets.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;

    const POOL: u32 = 2;

    /// Pages by their node, how many each node still takes, and pages that are pinned.
    #[derive(Default)]
    struct Simulated {
        at: RefCell<BTreeMap<u64, u32>>,
        free: RefCell<BTreeMap<u32, usize>>,
        pinned: Vec<u64>,
    }

    impl Pages for Simulated {
        fn locate(&self, pages: &[u64]) -> Result<Vec<Located>, kernel::Error> {
            let at = self.at.borrow();
            Ok(pages.iter().map(|page| at.get(page).map_or(Located::Failed(Reason::Absent), |node| Located::Node(*node))).collect())
        }

        fn to_node(&self, pages: &[u64], node: u32) -> Result<Vec<Located>, kernel::Error> {
            let (mut at, mut free) = (self.at.borrow_mut(), self.free.borrow_mut());
            let free = free.entry(node).or_default();
            let mut of = |page: &u64| {
                if self.pinned.contains(page) {
                    return Located::Failed(Reason::Busy);
                }
                if *free == 0 {
                    return Located::Failed(Reason::NodeFull);
                }
                *free -= 1;
                assert_eq!(at.insert(*page, node), Some(POOL), "only pages of the pool are moved");
                Located::Node(node)
            };
            Ok(pages.iter().map(&mut of).collect())
        }
    }

    fn simulated(pages: u64, free: &[(u32, usize)]) -> Simulated {
        let page = page_size().bytes();
        // Every tenth page is not in memory, and every ninth is local.
        let at = (0..pages).filter(|at| at % 10 != 5).map(|at| (at * page, if at % 9 == 4 { 0 } else { POOL })).collect();
        Simulated { at: RefCell::new(at), free: RefCell::new(free.iter().copied().collect()), pinned: Vec::new() }
    }

    fn in_pool(simulated: &Simulated) -> usize {
        simulated.at.borrow().values().filter(|node| **node == POOL).count()
    }

    fn pages(count: usize) -> Bytes {
        Bytes(count as u64 * page_size().bytes())
    }

    /// Moves all pages of the memory; returns what was moved, and whether more could be.
    fn taken(simulated: &Simulated, count: u64, limit: Bytes) -> (Bytes, bool) {
        let mut home = Home { pages: simulated, pool: POOL, targets: vec![1, 0], left: limit, moved: Bytes::ZERO };
        let more = home.take(0..count * page_size().bytes()).unwrap();
        (home.moved, more)
    }

    #[test]
    fn what_is_in_the_pool_moves_home_and_nothing_else() {
        let memory = simulated(1_200, &[(1, 5_000)]);
        let before = in_pool(&memory);
        assert_eq!((taken(&memory, 1_200, Bytes::gib(1)), in_pool(&memory)), ((pages(before), true), 0));
        assert_eq!(taken(&memory, 1_200, Bytes::gib(1)), (Bytes::ZERO, true), "nothing is left to move");
    }

    #[test]
    fn a_full_node_a_pinned_page_and_the_limit_end_a_move() {
        let memory = simulated(1_200, &[(1, 100), (0, 50)]);
        let before = in_pool(&memory);
        assert_eq!((taken(&memory, 1_200, Bytes::gib(1)), in_pool(&memory)), ((pages(150), false), before - 150));
        let memory = simulated(1_200, &[(1, 5_000)]);
        assert_eq!((taken(&memory, 1_200, pages(70)), in_pool(&memory)), ((pages(70), false), before - 70));
        let memory = Simulated { pinned: vec![0, page_size().bytes()], ..simulated(1_200, &[(1, 5_000)]) };
        assert_eq!((taken(&memory, 1_200, Bytes::gib(1)), in_pool(&memory)), ((pages(before - 2), true), 2));
    }
}
