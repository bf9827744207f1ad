//! Which part of a guest's pool memory moves home before the guest is moved whole. Pure.
//!
//! A guest beyond its tolerance mostly owes that to a part of its pool memory. `A` accesses per second of latency `t_s` take a share
//! `A t_s` of the time (Thermostat section 3.4), so that a permitted slowdown `x` (Pond's PDM, section 4.3) permits `x / t_s` accesses per
//! second to the pool. That is the budget of the node agent's slow memory, and [`policy::slowdown`] answers both: the hottest blocks move home
//! until the upper 95 % bound of the accesses to the rest, together, is within it. A block whose rate cannot be determined counts as more
//! than any budget.
//!
//! `t_s` is the whole latency of an access to the pool and not what it adds to a local one, as in Thermostat: it costs savings and no
//! slowdown.

use policy::slowdown::rate::Estimate;
use policy::slowdown::{Input, Params, Runs, Step, rank, step};
use units::{AccessRate, Bytes, RatioPpm};

/// The permitted slowdown, and what an access costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// x: the permitted slowdown (Pond's PDM).
    pub slowdown: RatioPpm,
    /// `t_s`: the latency of one access to pool memory, in nanoseconds. Zero: it is not known, and guests are moved whole.
    pub latency_ns: u64,
}

impl Settings {
    /// Whether there is a budget that part of a guest can be brought within.
    #[must_use]
    pub fn has_budget(&self) -> bool {
        self.latency_ns > 0 && self.slowdown > RatioPpm(0)
    }
}

/// One block of a guest's pool memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// What of it is in the pool.
    pub bytes: Bytes,
    /// How much it is accessed.
    pub estimate: Estimate,
}

/// What is done with a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing: the accesses to its pool memory are within the budget.
    Stay,
    /// These blocks move home, the hottest first; the rest is within the budget.
    Part(Vec<usize>),
    /// It has to be moved whole.
    Whole(Why),
}

/// Why a part does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// A part of it was moved home before.
    #[error("a part was moved home before")]
    MovedBefore,
    /// No block can stay.
    #[error("no block can stay")]
    AllHot,
    /// The part does not fit into free local memory.
    #[error("its hot part does not fit into free local memory")]
    NoRoom,
}

/// A plan, and what it rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What is done.
    pub plan: Plan,
    /// Accesses per second that the permitted slowdown allows.
    pub budget: AccessRate,
    /// The estimated accesses per second to all blocks.
    pub rate: AccessRate,
    /// The upper bound of those to the blocks that stay within the budget.
    pub upper: AccessRate,
    /// The size of the blocks that do not.
    pub bytes: Bytes,
}

/// Decides on a guest by the blocks of its pool memory. `room` is free local memory; `moved_before` says that a part was moved home before:
/// a second one would follow memory that changes, and moves without end.
#[must_use]
pub fn plan(settings: &Settings, blocks: &[Block], room: Bytes, moved_before: bool) -> Decision {
    let params = Params { slowdown: settings.slowdown, latency_ns: settings.latency_ns, sample: RatioPpm(0), bounds: Default::default() };
    let slow: Runs = blocks.iter().map(|block| (block.bytes, block.estimate)).collect();
    let Step { budget, rate, upper, home, .. } = step(&params, &Input { slow, ..Input::default() });
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    // Of equal blocks the first by address, so that a decision depends on nothing but its input.
    order.sort_by_key(|&at| std::cmp::Reverse(rank(blocks[at].bytes, &blocks[at].estimate)));
    order.truncate(usize::try_from(home).unwrap_or(usize::MAX));
    let bytes = order.iter().map(|&at| blocks[at].bytes).sum();
    let plan = match order.len() {
        0 => Plan::Stay,
        _ if moved_before => Plan::Whole(Why::MovedBefore),
        count if count == blocks.len() => Plan::Whole(Why::AllHot),
        _ if bytes > room => Plan::Whole(Why::NoRoom),
        _ => Plan::Part(order),
    };
    Decision { plan, budget, rate, upper, bytes }
}

impl std::fmt::Display for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { plan, budget, rate, upper, bytes } = self;
        write!(f, "its pool memory is accessed {rate}, where the permitted slowdown allows {budget}; ")?;
        match plan {
            Plan::Stay => write!(f, "the bound is {upper}"),
            Plan::Part(blocks) => {
                write!(f, "{} bytes in {} blocks move home, and the bound of the rest is {upper}", bytes.0, blocks.len())
            }
            Plan::Whole(why) => write!(f, "{} bytes would have to move home, but {why}", bytes.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 5 % at 200 ns: 250,000 accesses per second.
    const SETTINGS: Settings = Settings { slowdown: RatioPpm(50_000), latency_ns: 200 };
    const ROOM: Bytes = Bytes::gib(1);

    fn block(mib: u64, rate: u64, upper: Option<u64>) -> Block {
        let estimate = Estimate { mean: AccessRate::per_second(rate), upper: upper.map(AccessRate::per_second) };
        Block { bytes: Bytes::mib(mib), estimate }
    }

    #[test]
    fn the_hottest_blocks_move_until_the_rest_is_within_the_budget() {
        let blocks = [block(2, 10, Some(20)), block(2, 200_000, Some(210_000)), block(2, 90_000, Some(95_000)), block(2, 4_000, None)];
        let decision = plan(&SETTINGS, &blocks, ROOM, false);
        assert_eq!((decision.budget, decision.plan.clone()), (AccessRate::per_second(250_000), Plan::Part(vec![3, 1])));
        assert!(decision.upper <= AccessRate::per_second(95_100) && decision.bytes == Bytes::mib(4), "{decision:?}");
        let text = decision.to_string();
        assert!(text.contains("accessed 294010/s") && text.contains("4194304 bytes in 2 blocks move home"), "{text}");
        let check = |blocks: &[Block], room, before, expected| assert_eq!(plan(&SETTINGS, blocks, room, before).plan, expected);
        check(&blocks, Bytes::mib(4), false, Plan::Part(vec![3, 1]));
        check(&blocks, Bytes::mib(4) - Bytes(1), false, Plan::Whole(Why::NoRoom));
        check(&blocks, ROOM, true, Plan::Whole(Why::MovedBefore));
        check(&blocks[3..], ROOM, false, Plan::Whole(Why::AllHot));
        check(&blocks[..1], ROOM, true, Plan::Stay);
        check(&[], ROOM, false, Plan::Stay);
    }

    #[test]
    fn without_a_latency_or_a_permitted_slowdown_there_is_no_budget() {
        assert!(SETTINGS.has_budget());
        assert!(!Settings { latency_ns: 0, ..SETTINGS }.has_budget());
        assert!(!Settings { slowdown: RatioPpm(0), ..SETTINGS }.has_budget());
    }

    proptest! {
        #[test]
        fn a_part_is_less_than_the_whole_hottest_first_and_leaves_the_rest_within_the_budget(
            rates in prop::collection::vec((1u64..4, 0u64..200_000, prop::option::weighted(0.9, 0u64..50_000)), 0..40),
            room_mib in 0u64..100,
        ) {
            let blocks: Vec<_> = rates.iter().map(|(mib, rate, more)| block(*mib, *rate, more.map(|more| rate + more))).collect();
            let decision = plan(&SETTINGS, &blocks, Bytes::mib(room_mib), false);
            prop_assert_eq!(&decision, &plan(&SETTINGS, &blocks, Bytes::mib(room_mib), false));
            let size = |of: &mut dyn Iterator<Item = usize>| of.map(|at| blocks[at].bytes).sum::<Bytes>();
            // Left alone, what stays is within the budget: summed here by the definition, apart from the policy.
            let within = |stays: &dyn Fn(usize) -> bool| {
                let left: Vec<_> = (0..blocks.len()).filter(|&at| stays(at)).map(|at| blocks[at].estimate).collect();
                left.iter().all(|estimate| estimate.upper.is_some()) && {
                    let mean: f64 = left.iter().map(|estimate| estimate.mean.as_f64()).sum();
                    let squares: f64 = left.iter().map(|estimate| (estimate.upper.unwrap().as_f64() - estimate.mean.as_f64()).powi(2)).sum();
                    mean + squares.sqrt() <= 250_000.001
                }
            };
            match &decision.plan {
                Plan::Stay => prop_assert!(within(&|_| true)),
                Plan::Part(part) => {
                    prop_assert!(!within(&|_| true) && within(&|at| !part.contains(&at)));
                    let bytes = size(&mut part.iter().copied());
                    prop_assert!(bytes == decision.bytes && bytes <= Bytes::mib(room_mib) && bytes < size(&mut (0..blocks.len())));
                    let upper = |at: usize| blocks[at].estimate.upper.unwrap_or(AccessRate(u64::MAX));
                    let coldest = part.iter().map(|&at| upper(at)).min().unwrap();
                    prop_assert!((0..blocks.len()).filter(|at| !part.contains(at)).all(|at| upper(at) <= coldest));
                    prop_assert!(part.is_sorted_by_key(|&at| std::cmp::Reverse(upper(at))));
                }
                Plan::Whole(why) => prop_assert!(!within(&|_| true) && *why != Why::MovedBefore),
            }
        }
    }
}
