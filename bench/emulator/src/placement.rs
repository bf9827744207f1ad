//! Which blocks are slow, where a tolerable slowdown decides: the agent's own policy, by accesses that were counted.
//!
//! In the first period all blocks are *learned*: their pages are parked by turns, like those of slow blocks, and accesses are
//! counted. Then policy `slowdown` places the least accessed blocks, as in *Thermostat* (section 3), which counts faults, too.
//! What is slow is counted all the time, and at the end of each period the most accessed blocks come home until the rest fits.
//! A block that is not slow after that stays fast, and so does one that comes later: to learn of it would cost as much as if it
//! were slow.
//!
//! # The rate
//! Of an access to a block only those are seen that meet a parked page, a share `s`. `K` of them in a time `w` make a rate of
//! `K / (s w)`. The time that counts is the program's own: the processor time that it used, in all threads, without what faults took. Without waiting it
//! would access its memory more often, and on a busy machine less often than by itself; a share of its processor time is the
//! same on both.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use policy::slowdown::{self, Input, Params, Rank, Runs, rate};
use serde::Serialize;
use units::{Bytes, RatioPpm};

use crate::choice::PAGE;

/// Periods that are told of, at most: the last ones.
const TOLD_MAX: usize = 1000;

/// What was decided at the end of a period.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Told {
    /// The processor time that the program used in it, without what faults took.
    pub own_seconds: f64,
    /// Resident memory in whole blocks, slow or fast.
    pub known_bytes: Bytes,
    /// Of that, what is slow from now on.
    pub slow_bytes: Bytes,
    /// Accesses per second to what was slow in this period; zero in the first.
    pub rate_per_second: f64,
    /// The 95 % bound on the accesses to what is slow from now on.
    pub upper_per_second: f64,
    /// Bytes that came home.
    pub home_bytes: Bytes,
    /// Bytes that became slow.
    pub placed_bytes: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Learning,
    Slow,
    Fast,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    state: State,
    /// Accesses counted in this period.
    counted: u64,
    /// Its pages that have content.
    pages: u64,
}

/// The blocks of one program.
#[derive(Debug)]
pub(crate) struct Placement {
    params: Params,
    rows: BTreeMap<u64, Row>,
    told: VecDeque<Told>,
}

impl Placement {
    /// For a tolerable slowdown and a latency in nanoseconds.
    pub(crate) fn new(slowdown: RatioPpm, latency_ns: u64) -> Self {
        let params = Params { slowdown, latency_ns, sample: RatioPpm::ONE };
        Self { params, rows: BTreeMap::new(), told: VecDeque::new() }
    }

    /// Accesses per second that are allowed.
    pub(crate) fn budget(&self) -> f64 {
        slowdown::budget(&self.params).as_f64()
    }

    /// A block has appeared, at the beginning of all or later.
    pub(crate) fn meet(&mut self, block: u64, at_the_beginning: bool) {
        let state = if at_the_beginning && !self.has_decided() { State::Learning } else { State::Fast };
        self.rows.insert(block, Row { state, counted: 0, pages: 0 });
    }

    /// A block has so many pages with content now.
    pub(crate) fn measure(&mut self, block: u64, pages: u64) {
        if let Some(row) = self.rows.get_mut(&block) {
            row.pages = pages;
        }
    }

    /// A page of a block was accessed.
    pub(crate) fn book(&mut self, block: u64) {
        if let Some(row) = self.rows.get_mut(&block) {
            row.counted += 1;
        }
    }

    /// Whether accesses to a block are to be counted, and delayed.
    pub(crate) fn is_watched(&self, block: u64) -> bool {
        self.rows.get(&block).is_some_and(|row| row.state != State::Fast)
    }

    /// Whether something was decided yet.
    pub(crate) fn has_decided(&self) -> bool {
        !self.told.is_empty()
    }

    /// The decisions, oldest first.
    pub(crate) fn told(&self) -> Vec<Told> {
        self.told.iter().copied().collect()
    }

    /// Blocks that are slow for good.
    pub(crate) fn slow_blocks(&self) -> u64 {
        self.rows.values().filter(|row| row.state == State::Slow).count() as u64
    }

    /// Decides, after a period of so much of the program's own time, with a share `sample` of pages parked. Blocks that are gone
    /// are no longer `there`.
    pub(crate) fn end_period(&mut self, own: Duration, sample: RatioPpm, there: impl Fn(u64) -> bool) {
        self.rows.retain(|block, _| there(*block));
        let exposure_us = u64::try_from(own.as_micros() * u128::from(sample.0) / 1_000_000).unwrap_or(u64::MAX);
        let of = |rows: &BTreeMap<u64, Row>, state: State| -> Vec<(Rank, u64, Bytes)> {
            let rows = rows.iter().filter(|(_, row)| row.state == state && row.pages > 0);
            rows.map(|(block, row)| {
                let bytes = Bytes(row.pages * PAGE);
                (slowdown::rank(bytes, &rate::counted(row.counted, exposure_us)), *block, bytes)
            })
            .collect()
        };
        let runs = |rows: &BTreeMap<u64, Row>, blocks: &[(Rank, u64, Bytes)]| -> Runs {
            blocks.iter().map(|&(_, block, bytes)| (bytes, rate::counted(rows[&block].counted, exposure_us))).collect()
        };
        let (mut slow, mut learned) = (of(&self.rows, State::Slow), of(&self.rows, State::Learning));
        let everything = Bytes(u64::MAX);
        let input = Input {
            slow: runs(&self.rows, &slow),
            sampled: runs(&self.rows, &learned),
            room: everything,
            step_max: everything,
            veto: None,
        };
        let step = slowdown::step(&self.params, &input);
        slow.sort_unstable_by_key(|&(rank, block, _)| Reverse((rank, block)));
        learned.sort_unstable_by_key(|&(rank, block, _)| (rank, block));
        let home_bytes = self.settle(&slow, step.home, State::Fast, State::Slow);
        let placed_bytes = self.settle(&learned, step.place, State::Slow, State::Fast);
        for row in self.rows.values_mut() {
            row.counted = 0;
            if row.state == State::Learning {
                // It had no content.
                row.state = State::Fast;
            }
        }
        let known =
            |states: &[State]| self.rows.values().filter(|row| states.contains(&row.state)).map(|row| Bytes(row.pages * PAGE)).sum();
        let told = Told {
            own_seconds: own.as_secs_f64(),
            known_bytes: known(&[State::Slow, State::Fast]),
            slow_bytes: known(&[State::Slow]),
            rate_per_second: step.rate.as_f64(),
            upper_per_second: step.upper.as_f64(),
            home_bytes,
            placed_bytes,
        };
        if self.told.len() == TOLD_MAX {
            self.told.pop_front();
        }
        self.told.push_back(told);
    }

    /// Puts the first `count` blocks into one state and the rest into another; what the first hold.
    fn settle(&mut self, blocks: &[(Rank, u64, Bytes)], count: u32, first: State, rest: State) -> Bytes {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(blocks.len());
        for (at, (_, block, _)) in blocks.iter().enumerate() {
            if let Some(row) = self.rows.get_mut(block) {
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

    /// Blocks of so many pages with so many accesses each in a period.
    fn period(placement: &mut Placement, blocks: &[(u64, u64, u64)]) {
        for &(block, pages, accesses) in blocks {
            placement.measure(block * BLOCK, pages);
            (0..accesses).for_each(|_| placement.book(block * BLOCK));
        }
        placement.end_period(SECONDS, ALL, |block| block < 100 * BLOCK);
    }

    /// 1 % at 100 us: 100 accesses per second, 10,000 in a period.
    fn placement(blocks: u64) -> Placement {
        let mut placement = Placement::new(RatioPpm(10_000), 100_000);
        (0..blocks).for_each(|block| placement.meet(block * BLOCK, true));
        assert_eq!((placement.budget(), placement.has_decided()), (100.0, false));
        placement
    }

    fn watched(placement: &Placement) -> Vec<u64> {
        (0..200).filter(|block| placement.is_watched(block * BLOCK)).collect()
    }

    #[test]
    fn the_least_accessed_are_slow_until_the_budget_is_spent() {
        let mut placement = placement(5);
        assert_eq!(watched(&placement), [0, 1, 2, 3, 4]);
        period(&mut placement, &[(0, 512, 4_000), (1, 512, 30_000), (2, 512, 3_000), (3, 0, 0), (4, 100, 10)]);
        // Block 3 has no content. Bounds add up to more than what was counted.
        assert_eq!(watched(&placement), [0, 2, 4]);
        let told = placement.told()[0];
        assert_eq!((told.slow_bytes, told.known_bytes, told.home_bytes), (Bytes(1124 * PAGE), Bytes(1636 * PAGE), Bytes::ZERO));
        assert!((70.1..80.0).contains(&told.upper_per_second) && told.own_seconds == 100.0, "{told:?}");
        assert_eq!((told.rate_per_second, told.placed_bytes, placement.slow_blocks()), (0.0, told.slow_bytes, 3));
    }

    #[test]
    fn what_turns_hot_comes_home_and_stays_there() {
        let mut placement = placement(3);
        period(&mut placement, &[(0, 512, 10), (1, 512, 20), (2, 512, 30)]);
        assert_eq!(watched(&placement), [0, 1, 2]);
        period(&mut placement, &[(1, 512, 20_000)]);
        assert_eq!(watched(&placement), [0, 2]);
        let told = placement.told()[1];
        assert_eq!((told.home_bytes, told.rate_per_second), (Bytes(BLOCK), 200.0));
        period(&mut placement, &[]);
        assert_eq!(watched(&placement), [0, 2]);
    }

    #[test]
    fn what_comes_later_stays_fast() {
        let mut placement = placement(1);
        placement.meet(7 * BLOCK, false);
        placement.meet(150 * BLOCK, true);
        period(&mut placement, &[(0, 512, 10), (7, 512, 0), (150, 512, 0)]);
        assert_eq!((watched(&placement), placement.slow_blocks()), (vec![0], 1), "150 is gone");
        placement.meet(8 * BLOCK, true);
        period(&mut placement, &[(8, 512, 0)]);
        assert_eq!(watched(&placement), [0]);
        assert_eq!(placement.told()[1].known_bytes, Bytes(3 * BLOCK));
    }

    #[test]
    fn a_rate_is_of_the_parked_share_and_of_the_programs_own_time() {
        let check = |own: u64, sample: u32, placed: bool| {
            let mut placement = placement(1);
            placement.measure(0, 512);
            (0..5_000).for_each(|_| placement.book(0));
            placement.end_period(Duration::from_secs(own), RatioPpm(sample), |_| true);
            assert_eq!(placement.slow_blocks() == 1, placed, "{own} {sample}");
        };
        // 100 per second are allowed; of 5,000 accesses the bound is some 5,120.
        check(52, 1_000_000, true);
        check(51, 1_000_000, false);
        check(104, 500_000, true);
        check(102, 500_000, false);
        // One that used no processor time has no rate.
        check(0, 1_000_000, false);
    }

    #[test]
    fn the_periods_told_of_are_bounded() {
        let mut placement = placement(1);
        (0..TOLD_MAX + 5).for_each(|_| period(&mut placement, &[]));
        assert_eq!(placement.told().len(), TOLD_MAX);
    }
}
