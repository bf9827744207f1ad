//! The blocks to be moved between nodes. Promotions go first.

use std::collections::VecDeque;

use trackers::rates::blocks::Block;

/// A block to be moved.
#[derive(Clone, Debug)]
pub(super) struct Move {
    /// The job that it belongs to.
    pub(super) job: String,
    /// The block.
    pub(super) block: Block,
    /// The target node.
    pub(super) to: u32,
    /// Whether it is promoted; otherwise it is placed in the slow node.
    pub(super) home: bool,
}

/// The blocks to be moved.
#[derive(Debug, Default)]
pub(super) struct Moves {
    pub(super) promoted: VecDeque<Move>,
    placed: VecDeque<Move>,
}

impl Moves {
    /// Adds a block after those of the same direction.
    pub(super) fn push(&mut self, block: Move) {
        if block.home { self.promoted.push_back(block) } else { self.placed.push_back(block) }
    }

    /// The next block; promotions first.
    pub(super) fn next(&mut self) -> Option<Move> {
        self.promoted.pop_front().or_else(|| self.placed.pop_front())
    }

    /// Whether no block is left.
    pub(super) fn is_empty(&self) -> bool {
        self.promoted.is_empty() && self.placed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use units::Bytes;

    use super::*;

    const BLOCK: Block = Block { pid: 1, start: 0, end: 2 << 20, first: 0, bytes: Bytes(8192), huge: false, node: 0 };

    #[test]
    fn promotions_go_first() {
        let mut moves = Moves::default();
        for (pid, home) in [(1, false), (2, true), (3, false), (4, true)] {
            moves.push(Move { job: "/a".to_owned(), block: Block { pid, ..BLOCK }, to: u32::from(!home), home });
        }
        let order: Vec<i32> = std::iter::from_fn(|| moves.next()).map(|next| next.block.pid).collect();
        assert_eq!((order, moves.is_empty()), (vec![2, 4, 1, 3], true));
    }
}
