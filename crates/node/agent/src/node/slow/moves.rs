//! Moving blocks between nodes: the way home first, for what is there slows a job down now.

use std::collections::VecDeque;
use std::time::Duration;

use kernel::madvise::PidFd;
use kernel::move_pages::{self, Located, Reason};
use units::Bytes;

use super::super::Agent;
use super::super::act::{PACE_WAIT, SLICE};
use crate::job::slowed::Moved;
use trackers::rates::blocks::{self, BLOCK_BYTES, Block};

/// A block on its way.
#[derive(Clone, Debug)]
pub(super) struct Move {
    /// The job that it is of.
    pub(super) job: String,
    /// What is moved.
    pub(super) block: Block,
    /// Where to.
    pub(super) to: u32,
    /// Whether that is the way home.
    pub(super) home: bool,
}

/// What is to be moved.
#[derive(Debug, Default)]
pub(super) struct Moves {
    home: VecDeque<Move>,
    away: VecDeque<Move>,
}

impl Moves {
    /// Adds one at the end of those that go the same way.
    pub(super) fn push(&mut self, block: Move) {
        if block.home { self.home.push_back(block) } else { self.away.push_back(block) }
    }

    fn next(&mut self) -> Option<Move> {
        self.home.pop_front().or_else(|| self.away.pop_front())
    }

    fn is_empty(&self) -> bool {
        self.home.is_empty() && self.away.is_empty()
    }
}

impl Agent {
    /// Moves blocks for a slice of time. Returns how long to wait before there is more to do; `None` where all are moved.
    pub(super) fn move_some(&mut self) -> Option<Duration> {
        if self.slow.moves.is_empty() {
            return None;
        }
        let end = self.clock.now() + SLICE;
        while self.clock.now() < end {
            // What comes home is not made to wait for the agent's own budget.
            if self.slow.moves.home.is_empty() && self.budget.spent(self.clock.now(), self.cpu_time()) {
                self.budget_spent = true;
                return Some(PACE_WAIT);
            }
            let next = self.slow.moves.next()?;
            self.move_one(&next);
        }
        Some(Duration::ZERO)
    }

    fn move_one(&mut self, next: &Move) {
        let Move { job: path, block, to, home } = next;
        let Some(node) = self.slow.node else { return };
        if !home
            && let Err(error) = self.undo.add_slow_job(path, self.jobs.get(path).map_or(0, |job| job.cgroup.id()), node.node, node.home)
        {
            return self.event(Some(path), format!("nothing is placed in slow memory: undo list: {error}"));
        }
        let located = pages(&self.roots, block).and_then(|pages| Ok((move_pages::to_node(block.pid, &pages, *to)?, pages.len())));
        let moved = match located {
            Ok((located, count)) => sort_out(block, &located, count, *to, *home),
            Err(error) if error.is_gone() => Moved { gone: block.bytes, ..Moved::default() },
            Err(error) => {
                self.trouble(path, &error);
                Moved::default()
            }
        };
        if let Some(slowed) = self.jobs.get_mut(path).and_then(|job| job.slowed.as_mut()) {
            slowed.note(&moved);
        }
    }

    /// Makes huge pages of what was split to be looked at.
    pub(super) fn collapse(&mut self, split: &[Block]) {
        for block in split {
            // What the kernel cannot collapse now, for want of a huge page say, khugepaged finds later.
            let collapsed = self.slow.looking.changes.collapse(|| {
                let done = PidFd::open(block.pid).and_then(|process| process.advise_collapse(&[block.range()]))?;
                Ok::<_, kernel::Error>(done.0 / BLOCK_BYTES)
            });
            if let Err(error) = collapsed
                && !error.is_gone()
            {
                log::debug!("collapsing {:#x} of process {}: {error}", block.start, block.pid);
            }
        }
    }
}

/// The addresses by which the kernel is asked for a block: one for a huge page, which moves as a whole.
fn pages(roots: &kernel::Roots, block: &Block) -> kernel::Result<Vec<u64>> {
    if block.huge { Ok(vec![block.first]) } else { blocks::present(roots, block) }
}

/// What became of a block's pages, each of which stands for the same part of it.
fn sort_out(block: &Block, located: &[Located], count: usize, to: u32, home: bool) -> Moved {
    let each = block.bytes.0 / u64::try_from(count).unwrap_or(1).max(1);
    let mut moved = Moved::default();
    for page in located {
        let sum = match page {
            Located::Node(node) if *node == to && home => &mut moved.home,
            Located::Node(node) if *node == to => &mut moved.placed,
            Located::Failed(Reason::NodeFull) => &mut moved.no_room,
            Located::Failed(Reason::Absent | Reason::Unmapped) => &mut moved.gone,
            Located::Node(_) | Located::Failed(_) => &mut moved.pinned,
        };
        *sum += Bytes(each);
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Block = Block { pid: 1, start: 0, end: 2 << 20, first: 0, bytes: Bytes(8192), huge: false, node: 0 };

    #[test]
    fn what_became_of_a_block_is_told_page_by_page() {
        use Located::{Failed, Node};
        let check = |located: &[Located], home: bool, want: Moved| {
            let to = u32::from(!home);
            assert_eq!(sort_out(&BLOCK, located, located.len(), to, home), want, "{located:?}");
        };
        let whole = BLOCK.bytes;
        let half = Bytes(whole.0 / 2);
        check(&[Node(1)], false, Moved { placed: whole, ..Moved::default() });
        check(&[Node(0)], true, Moved { home: whole, ..Moved::default() });
        check(&[Node(1), Node(0)], false, Moved { placed: half, pinned: half, ..Moved::default() });
        check(&[Failed(Reason::NodeFull), Failed(Reason::Absent)], false, Moved { no_room: half, gone: half, ..Moved::default() });
        check(&[Failed(Reason::Busy), Failed(Reason::Shared)], true, Moved { pinned: whole, ..Moved::default() });
        check(&[], false, Moved::default());
    }

    #[test]
    fn the_way_home_comes_first() {
        let mut moves = Moves::default();
        for (pid, home) in [(1, false), (2, true), (3, false), (4, true)] {
            moves.push(Move { job: "/a".to_owned(), block: Block { pid, ..BLOCK }, to: u32::from(!home), home });
        }
        let order: Vec<i32> = std::iter::from_fn(|| moves.next()).map(|next| next.block.pid).collect();
        assert_eq!((order, moves.is_empty()), (vec![2, 4, 1, 3], true));
    }
}
