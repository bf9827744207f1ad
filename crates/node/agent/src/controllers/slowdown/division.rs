//! The room of the slow node, handed out job by job ([`policy::slowdown::division`] is the rule).
//!
//! What is divided is the free memory of the node, or what the tracker can still sample there if that is less: a block takes a point of it.
//! A job places whole blocks. What it leaves of its part is passed on to the next job, or a part smaller than a block would be of use to
//! none; the first job is another one in each period.

use policy::slowdown::division::{Claim, divide};
use trackers::rates::blocks::BLOCK_BYTES;
use units::Bytes;

/// A job's part of the slow node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// What it may have there; `None` if there is room for all.
    pub(super) share: Option<Bytes>,
    /// What it may place now.
    pub(super) room: Bytes,
    /// The blocks that it may place now.
    pub(super) trackable: u32,
}

/// What is left of the slow node, and the jobs that have had no part of it.
#[derive(Debug)]
pub(super) struct Division<'a> {
    free: Bytes,
    trackable: u32,
    /// Whether the tracker limits what can be placed, and not the node.
    by_tracker: bool,
    /// The jobs, the next one last, with their shares and their parts of the room.
    left: Vec<(&'a str, Option<Bytes>, Bytes)>,
    /// What the jobs so far were given and did not use.
    spare: Bytes,
    /// What the current job was given.
    given: Bytes,
}

impl<'a> Division<'a> {
    pub(super) fn new(free: Bytes, trackable: u32, claims: Vec<(&'a str, Claim)>, period: u64) -> Self {
        let sampled = Bytes(u64::from(trackable).saturating_mul(BLOCK_BYTES));
        let (paths, claims): (Vec<_>, Vec<_>) = claims.into_iter().unzip();
        let divisible = free.min(sampled);
        let portions = divide(divisible, &claims);
        let given: Bytes = portions.iter().map(|portion| portion.room).sum();
        let mut left: Vec<_> = paths.into_iter().zip(portions).map(|(path, portion)| (path, portion.share, portion.room)).collect();
        let first = usize::try_from(period % left.len().max(1) as u64).unwrap_or(0);
        left.rotate_left(first);
        left.reverse();
        Self { free, trackable, by_tracker: sampled < free, left, spare: divisible - given, given: Bytes::ZERO }
    }

    /// The next job, and its part.
    pub(super) fn next(&mut self) -> Option<(&'a str, Part)> {
        let (path, share, room) = self.left.pop()?;
        self.spare += room;
        self.given = self.spare;
        let blocks = u32::try_from(self.given.0 / BLOCK_BYTES).unwrap_or(u32::MAX);
        let part = if self.by_tracker {
            Part { share, room: self.free, trackable: self.trackable.min(blocks) }
        } else {
            Part { share, room: self.free.min(self.given), trackable: self.trackable }
        };
        Some((path, part))
    }

    /// Takes what that job placed.
    pub(super) fn take(&mut self, placed: Bytes, blocks: u32) {
        let used = if self.by_tracker { Bytes(u64::from(blocks).saturating_mul(BLOCK_BYTES)) } else { placed };
        self.spare = self.given - used;
        self.free = self.free - placed;
        self.trackable -= blocks.min(self.trackable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: u64 = BLOCK_BYTES;

    fn claim(has: u64, demand: u64) -> Claim {
        Claim { has: Bytes(has * HUGE), demand: Bytes(demand * HUGE), weight: 100 }
    }

    /// Jobs that place all that they may and demand, in whole blocks: how many each places.
    fn place(free: u64, trackable: u32, claims: &[(&'static str, Claim)], period: u64) -> Vec<(&'static str, u64)> {
        let mut division = Division::new(Bytes(free), trackable, claims.to_vec(), period);
        let mut placed = Vec::new();
        while let Some((path, part)) = division.next() {
            let (_, claim) = claims.iter().find(|(other, _)| *other == path).unwrap();
            let below_share = part.share.map_or(u64::MAX, |share| (share - claim.has).0.div_ceil(HUGE));
            let wanted = (claim.demand - claim.has).0 / HUGE;
            let blocks = wanted.min(below_share).min(part.room.0 / HUGE).min(part.trackable.into());
            division.take(Bytes(blocks * HUGE), u32::try_from(blocks).unwrap());
            placed.push((path, blocks));
        }
        placed.sort_unstable();
        placed
    }

    #[test]
    fn free_room_is_divided_and_not_given_to_the_first() {
        let jobs = [("/a", claim(0, 10)), ("/b", claim(0, 10))];
        for period in 0..4 {
            assert_eq!(place(10 * HUGE, 100, &jobs, period), [("/a", 5), ("/b", 5)]);
            assert_eq!(place(30 * HUGE, 100, &jobs, period), [("/a", 10), ("/b", 10)]);
            assert_eq!(place(30 * HUGE, 6, &jobs, period), [("/a", 3), ("/b", 3)], "the tracker's points");
            assert_eq!(place(0, 100, &jobs, period), [("/a", 0), ("/b", 0)]);
        }
    }

    #[test]
    fn parts_smaller_than_a_block_are_added_up_and_each_job_is_the_first_once() {
        let jobs = [("/a", claim(0, 1)), ("/b", claim(0, 1)), ("/c", claim(0, 1))];
        let mut placed = [0; 3];
        for period in 0..3 {
            let round = place(HUGE + HUGE / 2, 100, &jobs, period);
            assert_eq!(round.iter().map(|(_, blocks)| blocks).sum::<u64>(), 1, "{round:?}");
            for (sum, (_, blocks)) in placed.iter_mut().zip(&round) {
                *sum += blocks;
            }
        }
        assert_eq!(placed, [1, 1, 1]);
    }

    #[test]
    fn a_job_that_has_its_share_leaves_the_free_room_to_others() {
        let jobs = [("/a", claim(8, 12)), ("/b", claim(0, 4))];
        // Ten blocks: four are demanded by the second job, two are free now.
        assert_eq!(place(2 * HUGE, 100, &jobs, 0), [("/a", 0), ("/b", 2)]);
    }

    #[test]
    fn no_jobs_are_no_problem() {
        assert!(Division::new(Bytes(HUGE), 1, Vec::new(), 7).next().is_none());
    }
}
