use super::*;
use crate::slowdown::{Hold, Input, Params, Run, Step, allowance, step};
use units::AccessRate;

const MIB: u64 = 1 << 20;

const PARAMS: Params = Params {
    slowdown: RatioPpm(30_000),
    latency_ns: 1_000,
    sample: RatioPpm(1_000_000),
    bounds: Bounds { fast_min: Bytes::ZERO, fast_share_min: RatioPpm(0), slow_max: None },
};

fn blocks(list: &[(u64, u32, u64)]) -> Runs {
    let run = |&(mib, blocks, upper): &(u64, u32, u64)| Run {
        bytes: Bytes::mib(mib),
        mean: AccessRate::per_second(upper),
        upper: Some(AccessRate::per_second(upper)),
        blocks,
    };
    list.iter().map(run).collect::<Vec<_>>().into()
}

/// A job of 100 MiB whose memory is cold, with so many huge pages of it in the slow node.
fn job(slow: u32) -> Input {
    let most = Bytes(u64::MAX);
    let sampled = blocks(&[(2, 50 - slow, 1)]);
    let memory = Bytes::mib(100);
    Input { slow: blocks(&[(2, slow, 1)]), sampled, room: most, trackable: u32::MAX, step_max: most, memory, ..Input::default() }
}

fn with(bounds: Bounds) -> Params {
    Params { bounds, ..PARAMS }
}

fn check(params: &Params, input: &Input, promoted: u32, placed: u32, hold: Option<Hold>) -> Step {
    let step = step(params, input);
    assert_eq!((step.home, step.place, step.hold), (promoted, placed, hold), "{params:?} {input:?}");
    step
}

fn floor(mib: u64) -> Bounds {
    Bounds { fast_min: Bytes::mib(mib), ..Bounds::default() }
}

fn share(percent: u32) -> Bounds {
    Bounds { fast_share_min: RatioPpm(percent * 10_000), ..Bounds::default() }
}

fn most(mib: u64) -> Bounds {
    Bounds { slow_max: Some(Bytes::mib(mib)), ..Bounds::default() }
}

#[test]
fn blocks_are_placed_up_to_the_lowest_bound_and_none_crosses_it() {
    for (bounds, placed) in [
        (Bounds::default(), 50),
        (floor(40), 30),
        // Half a block stays free.
        (floor(41), 29),
        (floor(200), 0),
        (share(25), 37),
        (share(100), 0),
        (most(10), 5),
        (most(0), 0),
        (most(11), 5),
        // The larger floor and the lower bound count.
        (Bounds { fast_min: Bytes::mib(40), fast_share_min: RatioPpm(700_000), slow_max: Some(Bytes::mib(20)) }, 10),
        (Bounds { fast_min: Bytes::mib(40), fast_share_min: RatioPpm(700_000), slow_max: Some(Bytes::mib(90)) }, 15),
    ] {
        let hold = (placed == 0).then_some(Hold::Bounded(if bounds.slow_max.is_some() { Bound::SlowMax } else { Bound::FastMin }));
        let step = check(&with(bounds), &job(0), 0, placed, hold);
        assert_eq!(step.excess, None);
    }
}

#[test]
fn a_job_that_has_reached_a_bound_holds_with_its_name() {
    check(&with(floor(60)), &job(20), 0, 0, Some(Hold::Bounded(Bound::FastMin)));
    check(&with(most(40)), &job(20), 0, 0, Some(Hold::Bounded(Bound::SlowMax)));
    check(&PARAMS, &Input { share: Some(Bytes::mib(40)), ..job(20) }, 0, 0, Some(Hold::Bounded(Bound::Share)));
    // A bound is a better answer than a full node, but not than a lack of cold memory.
    check(&with(most(40)), &Input { room: Bytes::ZERO, ..job(20) }, 0, 0, Some(Hold::Bounded(Bound::SlowMax)));
    let hot = Input { sampled: blocks(&[(2, 1, 100_000)]), ..job(20) };
    check(&with(most(40)), &hot, 0, 0, Some(Hold::NothingCold));
}

#[test]
fn a_job_above_a_bound_promotes_its_hottest_blocks_within_the_move_rate() {
    let mut input = job(20);
    // Half of what is slow is accessed more often.
    input.slow = blocks(&[(2, 10, 1), (2, 10, 2)]);
    for (bounds, step_max, promoted, over) in [
        (most(30), u64::MAX, 5, (Bound::SlowMax, 10)),
        (most(29), u64::MAX, 6, (Bound::SlowMax, 11)),
        (floor(90), u64::MAX, 15, (Bound::FastMin, 30)),
        (share(100), u64::MAX, 20, (Bound::FastMin, 40)),
        (most(0), 7 * MIB, 3, (Bound::SlowMax, 40)),
        // At least one, or a job with a small part of the move rate would never get there.
        (most(0), MIB, 1, (Bound::SlowMax, 40)),
        (most(0), 0, 1, (Bound::SlowMax, 40)),
    ] {
        let limited = Input { step_max: Bytes(step_max), ..input.clone() };
        let step = check(&with(bounds), &limited, promoted, 0, Some(Hold::Bounded(over.0)));
        assert_eq!(step.excess, Some(Excess { bound: over.0, bytes: Bytes::mib(over.1), blocks: promoted }), "{bounds:?}");
        assert_eq!(step.upper, AccessRate::per_second(10 + 2 * u64::from(10 - promoted.min(10)) - u64::from(promoted.max(10) - 10)));
    }
}

#[test]
fn hot_blocks_are_promoted_first_and_count_for_the_bound() {
    let slow = blocks(&[(2, 18, 1), (2, 2, 100_000)]);
    let input = Input { slow, ..job(20) };
    check(&with(most(40)), &input, 2, 2, None);
    assert_eq!(step(&with(most(36)), &input).excess, None, "what is too hot is promoted anyway");
    let step = check(&with(most(30)), &input, 5, 0, Some(Hold::Bounded(Bound::SlowMax)));
    assert_eq!(step.excess, Some(Excess { bound: Bound::SlowMax, bytes: Bytes::mib(6), blocks: 3 }));
    // Hot memory uses up the step: of the rest one block is promoted.
    let limited = Input { step_max: Bytes::mib(4), ..input };
    check(&with(most(30)), &limited, 3, 0, Some(Hold::Bounded(Bound::SlowMax)));
}

#[test]
fn a_share_is_met_within_one_block() {
    let of = |mib| Input { share: Some(Bytes::mib(mib)), ..job(20) };
    // 40 MiB are slow. The last block placed may cross the share, and one that crosses it stays.
    for (mib, promoted, placed) in
        [(39, 0, 0), (38, 1, 0), (37, 1, 0), (36, 2, 0), (0, 20, 0), (41, 0, 1), (42, 0, 1), (43, 0, 2), (60, 0, 10)]
    {
        let hold = (placed == 0).then_some(Hold::Bounded(Bound::Share));
        check(&PARAMS, &of(mib), promoted, placed, hold);
    }
}

#[test]
fn a_job_that_shrinks_gives_back_and_stays_there() {
    // Half of the job's memory is to be fast. It had 100 MiB, of which 50 were slow, and has 60 now.
    let shrunk = Input { memory: Bytes::mib(60), sampled: blocks(&[(2, 5, 1)]), ..job(25) };
    let first = check(&with(share(50)), &shrunk, 10, 0, Some(Hold::Bounded(Bound::FastMin)));
    assert_eq!(first.excess.map(|excess| excess.bytes), Some(Bytes::mib(20)));
    let after = Input { memory: Bytes::mib(60), ..job(15) };
    check(&with(share(50)), &after, 0, 0, Some(Hold::Bounded(Bound::FastMin)));
}

#[test]
fn what_a_job_may_have_is_reported() {
    assert_eq!(allowance(&PARAMS, &job(0)), None);
    assert_eq!(allowance(&with(floor(40)), &job(0)), Some((Bytes::mib(60), Bound::FastMin)));
    let shared = Input { share: Some(Bytes::mib(20)), ..job(0) };
    assert_eq!(allowance(&with(floor(40)), &shared), Some((Bytes::mib(20), Bound::Share)));
}

#[test]
fn an_unknown_amount_of_memory_of_an_old_record_bounds_nothing() {
    let old = Input { memory: Bytes::ZERO, ..job(20) };
    check(&PARAMS, &old, 0, 30, None);
}

#[test]
fn bounds_are_written_only_where_they_are_set() {
    let text = serde_json::to_string(&PARAMS).unwrap();
    assert_eq!(text, r#"{"slowdown":30000,"latency_ns":1000,"sample":1000000}"#);
    let bounds = Bounds { fast_min: Bytes(7), fast_share_min: RatioPpm(5), slow_max: Some(Bytes(0)) };
    let text = serde_json::to_string(&with(bounds)).unwrap();
    assert!(text.ends_with(r#""bounds":{"fast_min":7,"fast_share_min":5,"slow_max":0}}"#), "{text}");
    assert_eq!(serde_json::from_str::<Params>(&text).unwrap(), with(bounds));
    assert_eq!(serde_json::to_string(&Hold::Bounded(Bound::FastMin)).unwrap(), r#"{"bounded":"fast_min"}"#);
}
