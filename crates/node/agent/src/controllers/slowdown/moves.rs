//! Migrates blocks between nodes. Promotions go first: the blocks concerned slow a job down now.

use std::time::Duration;

use kernel::madvise::PidFd;
use kernel::move_pages::{self, Located, Reason};
use kernel::process;
use trackers::rates::blocks::{self, BLOCK_BYTES, Block};
use units::Bytes;

use super::Slowdown;
use super::machine::SlowdownPolicy;
use super::queue::Move;
use super::record::Moved;
use crate::context::{Context, PACE_WAIT, SLICE};
use crate::controllers::slots::{Entry, Jobs};

impl SlowdownPolicy {
    /// Moves blocks for a slice of time. Returns how long to wait before the next slice; `None` if all are moved.
    pub(super) fn move_some(&mut self, jobs: &mut Jobs, context: &mut Context) -> Option<Duration> {
        if self.moves.is_empty() {
            return None;
        }
        let end = context.clock.now() + SLICE;
        while context.clock.now() < end {
            // Promotions do not wait for the agent's CPU budget.
            if self.moves.promoted.is_empty() {
                let (now, cpu) = (context.clock.now(), context.cpu_time());
                if context.pacing.budget.spent(now, cpu) {
                    context.pacing.budget_spent = true;
                    return Some(PACE_WAIT);
                }
            }
            let next = self.moves.next()?;
            self.move_one(jobs, context, &next);
        }
        Some(Duration::ZERO)
    }

    fn move_one(&self, jobs: &mut Jobs, context: &mut Context, next: &Move) {
        let Move { job: path, block, to, home } = next;
        let Some(node) = self.node else { return };
        let id = jobs.get(path).map_or(0, |entry| entry.job.cgroup.id());
        if !home && let Err(error) = context.undo.add_slow_job(path, id, node.node, node.home) {
            return context.event(Some(path), format!("nothing is placed in slow memory: undo list: {error}"));
        }
        // The number of a process that has exited may be another process's. Promotions are not checked: they take back what was
        // placed, also of a process that left the job. The kernel has no call that moves the pages of a pidfd.
        let roots = &context.kernel.roots;
        let of_job = if *home { Ok(()) } else { process::check_cgroup(roots, block.pid, path) };
        let pages = of_job.and_then(|()| pages(roots, block));
        let located = pages.and_then(|pages| Ok((move_pages::to_node(block.pid, &pages, *to)?, pages.len())));
        let Some(Entry { job, slots }) = jobs.get_mut(path) else { return };
        let moved = match located {
            Ok((located, count)) => outcome(block, &located, count, *to, *home),
            Err(error) if error.is_gone() => Moved { gone: block.bytes, ..Moved::default() },
            Err(error) => {
                context.report_error(job, &error);
                Moved::default()
            }
        };
        if let Some(slowdown) = slots.get_mut::<Slowdown>() {
            slowdown.account(job, &moved);
        }
    }

    /// Collapses huge pages that were split for sampling.
    pub(super) fn collapse(&self, context: &Context, split: &[Block]) {
        for block in split {
            // khugepaged collapses later what the kernel cannot collapse now, for example because no huge page is free.
            let collapsed = self.cost.changes.collapse(&context.clock, || {
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

/// The addresses of a block's pages: one for a huge page, which moves as a whole.
fn pages(roots: &kernel::Roots, block: &Block) -> kernel::Result<Vec<u64>> {
    if block.huge { Ok(vec![block.first]) } else { blocks::present(roots, block) }
}

/// The outcome of moving a block's pages, each of which stands for an equal part of it.
fn outcome(block: &Block, located: &[Located], count: usize, to: u32, home: bool) -> Moved {
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
    fn the_outcome_of_a_block_is_counted_page_by_page() {
        use Located::{Failed, Node};
        let check = |located: &[Located], home: bool, expected: Moved| {
            let to = u32::from(!home);
            assert_eq!(outcome(&BLOCK, located, located.len(), to, home), expected, "{located:?}");
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
}
