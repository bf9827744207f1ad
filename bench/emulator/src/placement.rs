//! Slow blocks for a tolerable slowdown: the agent's policy `slowdown`, with counted accesses.
//!
//! In the first period all blocks are *measured*: their pages are parked in alternation, like those of slow blocks, and
//! accesses are counted. Then the policy places the least accessed blocks, as in Thermostat (section 3), which also
//! counts faults. Accesses to slow blocks are always counted, and at the end of each period the most accessed ones are
//! promoted until the rest is within the budget. A block that is fast then stays fast, and so does a block that appears
//! later: measuring it would cost as much as if it were slow.
//!
//! # Rate
//! Only accesses to parked pages are counted, a share `s` of the pages of a block. `K` of them in a time `w` are a rate
//! of `K / (s w)`. The time is the program's processor time in all threads, without the time of faults. Relative to
//! elapsed time, the rate would depend on how long the program waits, and on other work on the machine; relative to its
//! processor time it does not.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use policy::slowdown::bounds::Bounds;
use policy::slowdown::{self, Input, Params, Rank, Runs, rate};
use serde::Serialize;
use units::{Bytes, RatioPpm};

use crate::choice::PAGE;

/// Upper limit of the reported decisions; the last ones are kept.
const DECISIONS_MAX: usize = 1000;

/// The decision at the end of a period.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Processor time of the program in the period, without the time of faults.
    pub own_seconds: f64,
    /// Resident memory in whole blocks, slow or fast.
    pub known_bytes: Bytes,
    /// The part of it that is slow from now on.
    pub slow_bytes: Bytes,
    /// Accesses per second to slow memory in this period; zero in the first.
    pub rate_per_second: f64,
    /// Upper bound, at 95 % confidence, of the accesses per second to memory that is slow from now on.
    pub upper_per_second: f64,
    /// Memory that was promoted.
    pub promoted_bytes: Bytes,
    /// Memory that became slow.
    pub placed_bytes: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Measuring,
    Slow,
    Fast,
}

#[derive(Clone, Copy, Debug)]
struct BlockState {
    state: State,
    /// Accesses counted in this period.
    accesses: u64,
    /// Number of pages with content.
    pages: u64,
}

/// The blocks of one program.
#[derive(Debug)]
pub(crate) struct Placement {
    params: Params,
    blocks: BTreeMap<u64, BlockState>,
    decisions: VecDeque<Decision>,
}

impl Placement {
    /// Creates the placement for a tolerable slowdown and a latency in nanoseconds.
    pub(crate) fn new(slowdown: RatioPpm, latency_ns: u64) -> Self {
        let params = Params { slowdown, latency_ns, sample: RatioPpm::ONE, bounds: Bounds::default() };
        Self { params, blocks: BTreeMap::new(), decisions: VecDeque::new() }
    }

    /// Accesses per second that the slowdown allows.
    pub(crate) fn budget(&self) -> f64 {
        slowdown::budget(&self.params).as_f64()
    }

    /// Adds a new block. `initial` is whether it appeared at the beginning of the first period.
    pub(crate) fn add(&mut self, block: u64, initial: bool) {
        let state = if initial && !self.has_decided() { State::Measuring } else { State::Fast };
        self.blocks.insert(block, BlockState { state, accesses: 0, pages: 0 });
    }

    /// Sets the number of pages with content of a block.
    pub(crate) fn set_pages(&mut self, block: u64, pages: u64) {
        if let Some(row) = self.blocks.get_mut(&block) {
            row.pages = pages;
        }
    }

    /// Counts an access to a block.
    pub(crate) fn count_access(&mut self, block: u64) {
        if let Some(row) = self.blocks.get_mut(&block) {
            row.accesses += 1;
        }
    }

    /// Whether accesses to a block are counted and delayed.
    pub(crate) fn is_watched(&self, block: u64) -> bool {
        self.blocks.get(&block).is_some_and(|row| row.state != State::Fast)
    }

    /// Whether there was a decision.
    pub(crate) fn has_decided(&self) -> bool {
        !self.decisions.is_empty()
    }

    /// The decisions, oldest first.
    pub(crate) fn decisions(&self) -> Vec<Decision> {
        self.decisions.iter().copied().collect()
    }

    /// Number of blocks that are placed in slow memory.
    pub(crate) fn slow_blocks(&self) -> u64 {
        self.blocks.values().filter(|row| row.state == State::Slow).count() as u64
    }

    /// Decides after a period in which the program used the processor time `own` and a share `sample` of pages was
    /// parked. `exists` returns whether a block still exists.
    pub(crate) fn end_period(&mut self, own: Duration, sample: RatioPpm, exists: impl Fn(u64) -> bool) {
        self.blocks.retain(|block, _| exists(*block));
        let exposure_us = u64::try_from(own.as_micros() * u128::from(sample.0) / 1_000_000).unwrap_or(u64::MAX);
        let of = |rows: &BTreeMap<u64, BlockState>, state: State| -> Vec<(Rank, u64, Bytes)> {
            let rows = rows.iter().filter(|(_, row)| row.state == state && row.pages > 0);
            rows.map(|(block, row)| {
                let bytes = Bytes(row.pages * PAGE);
                (slowdown::rank(bytes, &rate::counted(row.accesses, exposure_us)), *block, bytes)
            })
            .collect()
        };
        let runs = |rows: &BTreeMap<u64, BlockState>, blocks: &[(Rank, u64, Bytes)]| -> Runs {
            blocks.iter().map(|&(_, block, bytes)| (bytes, rate::counted(rows[&block].accesses, exposure_us))).collect()
        };
        let (mut slow, mut measured) = (of(&self.blocks, State::Slow), of(&self.blocks, State::Measuring));
        let everything = Bytes(u64::MAX);
        let input = Input {
            slow: runs(&self.blocks, &slow),
            sampled: runs(&self.blocks, &measured),
            room: everything,
            trackable: u32::MAX,
            step_max: everything,
            veto: None,
            memory: everything,
            share: None,
        };
        let step = slowdown::step(&self.params, &input);
        slow.sort_unstable_by_key(|&(rank, block, _)| Reverse((rank, block)));
        measured.sort_unstable_by_key(|&(rank, block, _)| (rank, block));
        let promoted_bytes = self.assign(&slow, step.home, State::Fast, State::Slow);
        let placed_bytes = self.assign(&measured, step.place, State::Slow, State::Fast);
        for row in self.blocks.values_mut() {
            row.accesses = 0;
            if row.state == State::Measuring {
                // It has no content.
                row.state = State::Fast;
            }
        }
        let known =
            |states: &[State]| self.blocks.values().filter(|row| states.contains(&row.state)).map(|row| Bytes(row.pages * PAGE)).sum();
        let decision = Decision {
            own_seconds: own.as_secs_f64(),
            known_bytes: known(&[State::Slow, State::Fast]),
            slow_bytes: known(&[State::Slow]),
            rate_per_second: step.rate.as_f64(),
            upper_per_second: step.upper.as_f64(),
            promoted_bytes,
            placed_bytes,
        };
        if self.decisions.len() == DECISIONS_MAX {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision);
    }

    /// Assigns the first `count` blocks one state and the rest another. Returns the size of the first ones.
    fn assign(&mut self, blocks: &[(Rank, u64, Bytes)], count: u32, first: State, rest: State) -> Bytes {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(blocks.len());
        for (at, (_, block, _)) in blocks.iter().enumerate() {
            if let Some(row) = self.blocks.get_mut(block) {
                row.state = if at < count { first } else { rest };
            }
        }
        blocks[..count].iter().map(|&(_, _, bytes)| bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::BLOCK;

    const SECONDS: Duration = Duration::from_secs(100);
    const ALL: RatioPpm = RatioPpm::ONE;

    /// Simulates a period: block number, pages and accesses of each block.
    fn period(placement: &mut Placement, blocks: &[(u64, u64, u64)]) {
        for &(block, pages, accesses) in blocks {
            placement.set_pages(block * BLOCK, pages);
            (0..accesses).for_each(|_| placement.count_access(block * BLOCK));
        }
        placement.end_period(SECONDS, ALL, |block| block < 100 * BLOCK);
    }

    /// 1 % at 100 us: 100 accesses per second, 10,000 per period.
    fn placement(blocks: u64) -> Placement {
        let mut placement = Placement::new(RatioPpm(10_000), 100_000);
        (0..blocks).for_each(|block| placement.add(block * BLOCK, true));
        assert_eq!((placement.budget(), placement.has_decided()), (100.0, false));
        placement
    }

    fn watched(placement: &Placement) -> Vec<u64> {
        (0..200).filter(|block| placement.is_watched(block * BLOCK)).collect()
    }

    #[test]
    fn the_least_accessed_blocks_are_slow_within_the_budget() {
        let mut placement = placement(5);
        assert_eq!(watched(&placement), [0, 1, 2, 3, 4]);
        period(&mut placement, &[(0, 512, 4_000), (1, 512, 30_000), (2, 512, 3_000), (3, 0, 0), (4, 100, 10)]);
        // Block 3 has no content. The sum of the bounds exceeds the sum of the counts.
        assert_eq!(watched(&placement), [0, 2, 4]);
        let decision = placement.decisions()[0];
        assert_eq!(
            (decision.slow_bytes, decision.known_bytes, decision.promoted_bytes),
            (Bytes(1124 * PAGE), Bytes(1636 * PAGE), Bytes::ZERO)
        );
        assert!((70.1..80.0).contains(&decision.upper_per_second) && decision.own_seconds == 100.0, "{decision:?}");
        assert_eq!((decision.rate_per_second, decision.placed_bytes, placement.slow_blocks()), (0.0, decision.slow_bytes, 3));
    }

    #[test]
    fn a_block_that_becomes_hot_is_promoted_and_stays_fast() {
        let mut placement = placement(3);
        period(&mut placement, &[(0, 512, 10), (1, 512, 20), (2, 512, 30)]);
        assert_eq!(watched(&placement), [0, 1, 2]);
        period(&mut placement, &[(1, 512, 20_000)]);
        assert_eq!(watched(&placement), [0, 2]);
        let decision = placement.decisions()[1];
        assert_eq!((decision.promoted_bytes, decision.rate_per_second), (Bytes(BLOCK), 200.0));
        period(&mut placement, &[]);
        assert_eq!(watched(&placement), [0, 2]);
    }

    #[test]
    fn blocks_that_appear_later_stay_fast() {
        let mut placement = placement(1);
        placement.add(7 * BLOCK, false);
        placement.add(150 * BLOCK, true);
        period(&mut placement, &[(0, 512, 10), (7, 512, 0), (150, 512, 0)]);
        assert_eq!((watched(&placement), placement.slow_blocks()), (vec![0], 1), "block 150 no longer exists");
        placement.add(8 * BLOCK, true);
        period(&mut placement, &[(8, 512, 0)]);
        assert_eq!(watched(&placement), [0]);
        assert_eq!(placement.decisions()[1].known_bytes, Bytes(3 * BLOCK));
    }

    #[test]
    fn rates_refer_to_the_parked_share_and_the_programs_processor_time() {
        let check = |own: u64, sample: u32, placed: bool| {
            let mut placement = placement(1);
            placement.set_pages(0, 512);
            (0..5_000).for_each(|_| placement.count_access(0));
            placement.end_period(Duration::from_secs(own), RatioPpm(sample), |_| true);
            assert_eq!(placement.slow_blocks() == 1, placed, "{own} {sample}");
        };
        // 100 per second are allowed; the upper bound of 5,000 accesses is about 5,120.
        check(52, 1_000_000, true);
        check(51, 1_000_000, false);
        check(104, 500_000, true);
        check(102, 500_000, false);
        // Without processor time there is no rate.
        check(0, 1_000_000, false);
    }

    #[test]
    fn the_number_of_reported_decisions_is_limited() {
        let mut placement = placement(1);
        (0..DECISIONS_MAX + 5).for_each(|_| period(&mut placement, &[]));
        assert_eq!(placement.decisions().len(), DECISIONS_MAX);
    }
}
