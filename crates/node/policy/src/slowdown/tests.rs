use proptest::prelude::*;

use super::*;
use crate::slowdown::rate::Estimate;

mod closed_loop;

/// 3 % at 1 us: 30,000 accesses per second, of which a period's sample of 5 % has 1,500.
const PARAMS: Params = Params { slowdown: RatioPpm(30_000), latency_ns: 1_000, sample: RatioPpm(50_000), bounds: NO_BOUNDS };

const NO_BOUNDS: Bounds = Bounds { fast_min: Bytes::ZERO, fast_share_min: RatioPpm(0), slow_max: None };

const HUGE: Bytes = Bytes::mib(2);

/// Blocks of 2 MiB, so many of each upper bound per second; their means are half of it.
fn blocks(list: &[(u32, Option<u64>)]) -> Runs {
    let run = |&(blocks, upper): &(u32, Option<u64>)| Run {
        bytes: HUGE,
        mean: upper.map_or(AccessRate::per_second(3), |upper| AccessRate(upper * 500_000)),
        upper: upper.map(AccessRate::per_second),
        blocks,
    };
    Runs::from(list.iter().map(run).collect::<Vec<_>>())
}

/// A period with room and moves for a thousand blocks.
fn period(slow: &[(u32, Option<u64>)], sampled: &[(u32, Option<u64>)]) -> Input {
    let most = Bytes(1_000 * HUGE.0);
    Input { slow: blocks(slow), sampled: blocks(sampled), room: most, trackable: 1_000, step_max: most, ..Input::default() }
}

/// The one place that calls the policy for a single period; every case below is data.
fn check(input: &Input, home: u32, place: u32, hold: Option<Hold>) -> Step {
    let step = step(&PARAMS, input);
    assert_eq!((step.home, step.place, step.hold), (home, place, hold), "{input:?}\n{step:?}");
    step
}

#[test]
fn the_budget_is_the_slowdown_over_the_latency() {
    for (slowdown, latency_ns, want) in [
        (30_000, 1_000, 30_000_000_000),
        (30_000, 400, 75_000_000_000),
        (100_000, 250, 400_000_000_000),
        (1, 1_000_000_000_000, 0),
        (0, 1_000, 0),
        (30_000, 0, 0),
        (u32::MAX, 1, 4_294_967_295_000_000_000),
    ] {
        let params = Params { slowdown: RatioPpm(slowdown), latency_ns, ..PARAMS };
        assert_eq!(budget(&params), AccessRate(want), "{slowdown} ppm, {latency_ns} ns");
    }
}

#[test]
fn the_bound_of_a_sum_is_less_than_the_sum_of_bounds() {
    let upper = |list: &[(u32, Option<u64>)]| {
        blocks(list).as_slice().iter().fold(sum::Sum::default(), |sum, run| sum.with(run.estimate(), run.blocks)).upper()
    };
    assert_eq!(upper(&[]), AccessRate::ZERO);
    assert_eq!(upper(&[(1, Some(100))]), AccessRate::per_second(100));
    assert_eq!(upper(&[(100, Some(100))]), AccessRate::per_second(100 * 50 + 10 * 50));
    // 3 and 4 make 5.
    assert_eq!(upper(&[(1, Some(6)), (1, Some(8))]), AccessRate::per_second(3 + 4 + 5));
    assert_eq!(upper(&[(100, Some(1)), (1, None)]), AccessRate(u64::MAX));
}

#[test]
fn the_coldest_are_placed_within_the_sampled_share_of_the_budget() {
    check(&period(&[], &[(10, Some(100)), (5, Some(0))]), 0, 15, None);
    // 25 have a mean of 1,250 and a bound of 1,500.
    check(&period(&[], &[(40, Some(100))]), 0, 25, None);
    let step = check(&period(&[(1, Some(1_000))], &[(1, Some(1_501)), (3, Some(400)), (1, Some(300))]), 0, 4, None);
    assert_eq!((step.rate, step.upper.0 / 1_000_000), (AccessRate::per_second(500), 500 + 3 * 200 + 150 + 626));
}

#[test]
fn why_none_are_placed() {
    check(&period(&[], &[]), 0, 0, Some(Hold::NothingSampled));
    check(&period(&[(186, Some(299))], &[(1, Some(400))]), 0, 0, Some(Hold::BudgetSpent));
    check(&period(&[], &[(1, Some(1_501))]), 0, 0, Some(Hold::NothingCold));
    check(&period(&[], &[(1, None)]), 0, 0, Some(Hold::NothingCold));
    check(&Input { room: HUGE - Bytes(1), ..period(&[], &[(1, Some(1))]) }, 0, 0, Some(Hold::NoRoom));
    check(&Input { step_max: HUGE - Bytes(1), ..period(&[], &[(1, Some(1))]) }, 0, 0, Some(Hold::StepSpent));
    check(&Input { trackable: 0, ..period(&[], &[(1, Some(1))]) }, 0, 0, Some(Hold::NotTrackable));
}

#[test]
fn room_moves_and_the_tracker_are_limits() {
    check(&Input { room: Bytes(3 * HUGE.0), ..period(&[], &[(9, Some(1))]) }, 0, 3, None);
    check(&Input { step_max: Bytes(4 * HUGE.0), ..period(&[], &[(9, Some(1))]) }, 0, 4, None);
    check(&Input { trackable: 5, ..period(&[], &[(3, Some(1)), (6, Some(2))]) }, 0, 5, None);
    check(&Input { step_max: Bytes(4 * HUGE.0), ..period(&[(3, None)], &[(9, Some(1))]) }, 3, 1, None);
    check(&Input { step_max: Bytes(3 * HUGE.0), ..period(&[(3, None)], &[(9, Some(1))]) }, 3, 0, Some(Hold::StepSpent));
}

#[test]
fn promotion_has_no_limit() {
    let step = check(&Input { step_max: HUGE, ..period(&[(300, None), (10, Some(10))], &[(9, Some(1))]) }, 300, 0, Some(Hold::StepSpent));
    assert!(step.upper <= AccessRate::per_second(10 * 10));
}

#[test]
fn the_hottest_blocks_are_promoted_until_the_rest_fits() {
    check(&period(&[(1, Some(30_000))], &[]), 0, 0, Some(Hold::NothingSampled));
    check(&period(&[(1, Some(30_000)), (1, Some(1))], &[]), 1, 0, Some(Hold::NothingSampled));
    check(&period(&[(40, Some(1_000)), (4, Some(100))], &[]), 0, 0, Some(Hold::NothingSampled));
    // 4 * 50 + 52 * 500 + 500 * sqrt(52 + 4 / 100) is 29,807; with one more it is 30,342.
    check(&period(&[(80, Some(1_000)), (4, Some(100))], &[]), 28, 0, Some(Hold::NothingSampled));
}

#[test]
fn a_block_that_turns_hot_is_home_within_one_period() {
    // Whatever else is slow, and with nothing left of the budget to spare.
    for hot in [None, Some(29_000), Some(1_000_000)] {
        let step = check(&period(&[(1_000, Some(2)), (1, hot)], &[(50, Some(1))]), 1, 50, None);
        assert!(step.upper <= step.budget);
    }
}

#[test]
fn a_budget_of_zero_brings_everything_home() {
    for params in [Params { slowdown: RatioPpm(0), ..PARAMS }, Params { latency_ns: 0, ..PARAMS }] {
        let step = step(&params, &period(&[(5, Some(0)), (2, Some(1)), (1, None)], &[(9, Some(0))]));
        assert_eq!((step.home, step.place, step.hold), (8, 0, Some(Hold::NoBudget)));
        assert_eq!(step.upper, AccessRate::ZERO);
    }
}

#[test]
fn a_veto_never_prevents_promotion() {
    for veto in [Veto::ObserveOnly, Veto::OtherPolicy, Veto::NoFarMemory, Veto::BudgetSpent] {
        let input = Input { veto: Some(veto), ..period(&[(5, None), (5, Some(1))], &[(9, Some(1))]) };
        check(&input, 5, 0, Some(Hold::Vetoed(veto)));
    }
}

#[test]
fn nothing_of_a_uniformly_hot_job_is_placed() {
    // A thousand blocks, 50 of them sampled, each accessed in every sample; or so often that one is over the share.
    for hot in [None, Some(1_600)] {
        check(&period(&[], &[(50, hot)]), 0, 0, Some(Hold::NothingCold));
    }
}

#[test]
fn runs_survive_the_journal() {
    let runs = blocks(&[(3, Some(5)), (2, None), (7, Some(0))]);
    let text = serde_json::to_string(&runs).unwrap();
    assert_eq!(
        text,
        r#"[{"bytes":2097152,"mean":0,"upper":0,"blocks":7},{"bytes":2097152,"mean":2500000,"upper":5000000,"blocks":3},{"bytes":2097152,"mean":3000000,"blocks":2}]"#
    );
    assert_eq!(serde_json::from_str::<Runs>(&text).unwrap(), runs);
    assert_eq!((runs.blocks(), runs.bytes(), runs.mean()), (12, Bytes(12 * HUGE.0), AccessRate::per_second(21) - AccessRate(7_500_000)));
    assert_eq!(serde_json::from_str::<Hold>("\"home_cut_short\"").unwrap(), Hold::StepSpent, "of an earlier version");
    // By someone else's hand: out of order, in parts, and with nothing.
    let scattered = r#"[{"bytes":4096,"mean":2,"blocks":4294967295},{"bytes":1,"mean":1,"upper":1,"blocks":0},{"bytes":4096,"mean":1,"upper":2,"blocks":1},{"bytes":4096,"mean":2,"blocks":1}]"#;
    let runs: Runs = serde_json::from_str(scattered).unwrap();
    assert_eq!(runs.blocks(), 1 + u64::from(u32::MAX) + 1);
    assert_eq!(runs.as_slice()[0].upper, Some(AccessRate(2)));
}

/// Numbers of any size, the ends of the range among them.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>(), 0..10_000_000_000u64]
}

fn any_blocks() -> impl Strategy<Value = Vec<(Bytes, Estimate)>> {
    let block = (prop_oneof![Just(HUGE.0), number()], number(), prop::option::of(number()));
    let block = block.prop_map(|(bytes, mean, upper)| (Bytes(bytes), Estimate { mean: AccessRate(mean), upper: upper.map(AccessRate) }));
    prop::collection::vec(block, 0..20)
}

prop_compose! {
    fn any_input()(slow in any_blocks(), sampled in any_blocks(), room in number(), trackable in 0..20u32, step_max in number(), vetoed: bool)
        -> (Vec<(Bytes, Estimate)>, Vec<(Bytes, Estimate)>, Input)
    {
        let veto = vetoed.then_some(Veto::NoFarMemory);
        let (room, step_max) = (Bytes(room), Bytes(step_max));
        let (slow_runs, sampled_runs) = (slow.iter().copied().collect(), sampled.iter().copied().collect());
        let input = Input { slow: slow_runs, sampled: sampled_runs, room, trackable, step_max, veto, ..Input::default() };
        (slow, sampled, input)
    }
}

/// What is slow after a step, by hand: sorted block by block, without runs.
fn left(slow: &[(Bytes, Estimate)], home: u32) -> Vec<(Bytes, Estimate)> {
    let mut slow = slow.to_vec();
    slow.sort_by_key(|(bytes, estimate)| rank(*bytes, estimate));
    slow.truncate(slow.len() - home as usize);
    slow
}

/// The bound of a sum, block by block; `None` if the rate of a block cannot be determined.
fn upper_of(blocks: &[(Bytes, Estimate)]) -> Option<u128> {
    let (mut means, mut squares) = (0u128, 0u128);
    for (_, estimate) in blocks {
        let half_width = u128::from((estimate.upper? - estimate.mean).0);
        means += u128::from(estimate.mean.0);
        squares = squares.saturating_add(half_width * half_width);
    }
    Some(means + squares.isqrt() + u128::from(squares.isqrt().pow(2) < squares))
}

/// Bytes, wide enough for any sum.
fn moved(blocks: &[(Bytes, Estimate)]) -> u128 {
    blocks.iter().map(|&(bytes, _)| u128::from(bytes.0)).sum()
}

proptest! {
    #[test]
    fn the_bound_of_what_is_slow_never_exceeds_the_budget(
        (slow, sampled, input) in any_input(), slowdown: u32, latency_ns in number(), sample: u32,
    ) {
        let params = Params { slowdown: RatioPpm(slowdown), latency_ns, sample: RatioPpm(sample), bounds: NO_BOUNDS };
        let step = step(&params, &input);
        let stays = left(&slow, step.home);
        let mut coldest = sampled.clone();
        coldest.sort_by_key(|(bytes, estimate)| rank(*bytes, estimate));
        let placed = &coldest[..step.place as usize];
        let bound = upper_of(&[&stays, placed].concat());
        prop_assert!(bound.is_some_and(|bound| bound <= u128::from(step.budget.0)), "{step:?}");
        prop_assert_eq!(Some(u128::from(step.upper.0)), bound);
        // Not one block more could have stayed.
        let one_more = left(&slow, step.home.saturating_sub(1));
        let fits = upper_of(&one_more).is_some_and(|bound| bound <= u128::from(step.budget.0));
        prop_assert!(step.home == 0 || step.budget == AccessRate::ZERO || !fits, "{step:?}");
        prop_assert!(upper_of(placed).is_some_and(|bound| bound <= params.sample.share_of(step.budget.0).into()));
        let home = &left(&slow, 0)[stays.len()..];
        prop_assert!(moved(placed) <= input.room.0.into() && step.place <= input.trackable);
        prop_assert!(moved(placed) == 0 || moved(placed) + moved(home) <= input.step_max.0.into());
        prop_assert_eq!(step.place == 0, step.hold.is_some());
    }

    #[test]
    fn the_order_of_blocks_does_not_matter((slow, sampled, input) in any_input(), by in 0usize..20) {
        let turned = |blocks: &[(Bytes, Estimate)]| {
            let mut blocks: Vec<_> = blocks.iter().rev().copied().collect();
            let by = by % blocks.len().max(1);
            blocks.rotate_left(by);
            blocks.into_iter().collect::<Runs>()
        };
        let other = Input { slow: turned(&slow), sampled: turned(&sampled), ..input.clone() };
        prop_assert_eq!(&other, &input);
        prop_assert_eq!(step(&PARAMS, &other), step(&PARAMS, &input));
    }

    #[test]
    fn any_input_is_answered(runs in prop::collection::vec((number(), number(), prop::option::of(number()), any::<u32>()), 0..9)) {
        let run = |(bytes, mean, upper, blocks): (u64, u64, Option<u64>, u32)| {
            Run { bytes: Bytes(bytes), mean: AccessRate(mean), upper: upper.map(AccessRate), blocks }
        };
        let runs = Runs::from(runs.into_iter().map(run).collect::<Vec<_>>());
        let most = Bytes(u64::MAX);
        let input = Input { slow: runs.clone(), sampled: runs, room: most, trackable: u32::MAX, step_max: most, ..Input::default() };
        let params = Params { slowdown: RatioPpm(u32::MAX), latency_ns: 1, sample: RatioPpm(u32::MAX), bounds: NO_BOUNDS };
        let bounds = Bounds { slow_max: Some(Bytes(1)), ..NO_BOUNDS };
        for (params, share) in [(params, None), (Params { bounds, ..params }, None), (params, Some(Bytes(1)))] {
            let input = Input { share, ..input.clone() };
            let step = step(&params, &input);
            prop_assert!(u64::from(step.place) <= input.sampled.blocks() && u64::from(step.home) <= input.slow.blocks());
        }
    }
}
