use proptest::prelude::*;

use super::*;

const PARAMS: Params = Params { after_min_ms: Millis(60_000), pages_max: Pages(16_384) };

/// A job whose pages shrink to a third; a device read takes ten times as long as one of zswap.
fn input() -> Input {
    Input {
        elapsed_ms: Millis(60_000),
        threshold_ms: Some(Millis(120_000)),
        latencies_us: [100, 1_000],
        compressed: RatioPpm(333_333),
        stall_target: RatioPpm(1_000),
        writable: Pages(1 << 20),
        oldest_ms: Some(Millis(86_400_000)),
        written_rate: 0,
        expected: 0,
        returned: Pages::ZERO,
        written: Pages::ZERO,
        spilled: false,
        obstacle: None,
        veto: None,
    }
}

fn after(input: &Input) -> u64 {
    step(&PARAMS, &State::default(), input).1.after_ms.unwrap().0
}

fn decide_from(state: &State, input: &Input) -> Decision {
    step(&PARAMS, state, input).1.decision
}

fn hold(reason: Hold) -> Decision {
    Decision::Hold { reason }
}

#[test]
fn the_second_threshold_is_never_below_the_first_nor_the_minimum() {
    // 120 s * 9 * 2.
    assert_eq!(after(&input()) / 1_000, 2_160);
    assert_eq!(after(&Input { latencies_us: [100, 100], ..input() }), 120_000, "a device as fast as zswap");
    assert_eq!(after(&Input { threshold_ms: Some(Millis(1)), ..input() }), 60_000);
    assert_eq!(step(&PARAMS, &State::default(), &Input { threshold_ms: None, ..input() }).1.after_ms, None);
    let nothing_in_zswap = Input { compressed: RatioPpm(0), ..input() };
    assert_eq!(decide_from(&State::default(), &nothing_in_zswap), hold(Hold::NoThreshold));
    assert_eq!(decide_from(&State::default(), &Input { oldest_ms: Some(Millis(2_159_000)), ..input() }), hold(Hold::NothingOld));
    assert_eq!(decide_from(&State::default(), &Input { oldest_ms: None, ..input() }), hold(Hold::NothingOld));
}

#[test]
fn a_page_is_expected_once_in_twice_the_time_that_it_was_far() {
    // 16 pages, each with 1 / 200 s.
    assert_eq!(expected_rate(Pages(16), Millis(100_000)), 80_000);
    assert_eq!(expected_rate(Pages(1), Millis(0)), 500_000_000, "no time is a millisecond");
    assert_eq!(expected_rate(Pages(u64::MAX), Millis(u64::MAX)), 1);
}

#[test]
fn it_grows_with_the_devices_latency_and_falls_with_the_compressed_size() {
    assert!(after(&Input { latencies_us: [100, 2_000], ..input() }) > 2 * after(&input()));
    assert!(after(&Input { compressed: RatioPpm(500_000), ..input() }) < after(&input()));
    assert_eq!(after(&Input { compressed: RatioPpm(1_000_000), ..input() }), 120_000, "what does not shrink saves most there");
}

#[test]
fn returns_beyond_the_estimate_raise_it() {
    let mut state = State::default();
    let more = Input { expected: 100_000, returned: Pages(400), ..input() };
    let as_expected = Input { expected: 100_000, returned: Pages(100), ..input() };
    assert_eq!(after(&as_expected), after(&input()));
    for _ in 0..100 {
        state = step(&PARAMS, &state, &more).0;
    }
    let raised = step(&PARAMS, &state, &input()).1.after_ms.unwrap().0;
    assert!((3.9..4.1).contains(&(raised as f64 / after(&input()) as f64)), "{raised}");
    for _ in 0..1_000 {
        state = step(&PARAMS, &state, &Input { expected: 100_000, ..input() }).0;
    }
    assert_eq!(step(&PARAMS, &state, &input()).1.after_ms.unwrap().0, after(&input()), "old returns are forgotten");
}

#[test]
fn no_more_than_the_budget_the_period_and_the_stall_target_permit() {
    let state = State::default();
    // 500 us per second may be lost, 900 us per page: 0.555 pages per second, each with 1 / 4,320 s.
    assert_eq!(decide_from(&state, &input()), Decision::Write { pages: Pages(2_400) });
    assert_eq!(decide_from(&state, &Input { stall_target: RatioPpm(100_000), ..input() }), Decision::Write { pages: PARAMS.pages_max });
    assert_eq!(decide_from(&state, &Input { writable: Pages(7), ..input() }), Decision::Write { pages: Pages(7) });
    assert_eq!(decide_from(&state, &Input { writable: Pages::ZERO, ..input() }), hold(Hold::WritesSpent));
    let full = Input { written_rate: 555_556, ..input() };
    assert_eq!(decide_from(&state, &full), hold(Hold::StallTarget));
    // Nothing of what was expected to return did.
    let mut quiet = state;
    for _ in 0..1_000 {
        quiet = step(&PARAMS, &quiet, &Input { expected: 100_000, ..input() }).0;
    }
    let Decision::Write { pages } = decide_from(&quiet, &full) else { panic!("there is room again") };
    assert!(pages > Pages(16_000), "{pages:?}");
}

#[test]
fn a_veto_an_obstacle_or_a_stall_target_of_zero_writes_nothing() {
    let state = State::default();
    for veto in [Veto::ObserveOnly, Veto::AtLimit, Veto::Stalled, Veto::BudgetSpent] {
        assert_eq!(decide_from(&state, &Input { veto: Some(veto), ..input() }), hold(Hold::Vetoed(veto)));
    }
    for obstacle in [Obstacle::NoZswap, Obstacle::NoDevice, Obstacle::NoWriteback, Obstacle::OperatorsLimit, Obstacle::ShortOfMemory] {
        assert_eq!(decide_from(&state, &Input { obstacle: Some(obstacle), ..input() }), hold(Hold::Obstacle(obstacle)));
    }
    assert_eq!(decide_from(&state, &Input { stall_target: RatioPpm(0), ..input() }), hold(Hold::StallTarget));
}

#[test]
fn other_memory_written_delays_the_next_period() {
    let mut state = State::default();
    // Periods until the next write, after a batch of some pages.
    let mut held_after = |spilled: bool| {
        let mut next = Input { spilled, written: Pages(16), ..input() };
        for held in 0.. {
            let (after, decided) = step(&PARAMS, &state, &next);
            state = after;
            (next.spilled, next.written) = (false, Pages::ZERO);
            if decided.decision != hold(Hold::OthersWritten) {
                return held;
            }
        }
        unreachable!("the wait ends");
    };
    let waits: Vec<u32> = (0..8).map(|_| held_after(true)).collect();
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64], "each write wrote other memory again");
    assert_eq!(held_after(false), 0, "this one did not");
    assert_eq!((held_after(true), held_after(true)), (1, 2));
}

proptest! {
    #[test]
    fn any_input_is_answered(
        numbers in proptest::array::uniform6(any::<u64>()),
        small in proptest::array::uniform4(any::<u32>()),
        spilled: bool,
        expected: u64,
        returned: u64,
        spills in 0..=SPILLS_MAX,
        wait: u32,
    ) {
        let input = Input {
            elapsed_ms: Millis(numbers[0]),
            threshold_ms: Some(Millis(numbers[1])),
            latencies_us: [small[0], small[1]],
            compressed: RatioPpm(small[2]),
            stall_target: RatioPpm(small[3]),
            writable: Pages(numbers[2]),
            oldest_ms: Some(Millis(numbers[3])),
            written_rate: numbers[4],
            expected: numbers[5],
            returned: Pages(numbers[0]),
            written: Pages(numbers[0]),
            spilled,
            obstacle: None,
            veto: None,
        };
        let (_, step) = step(&PARAMS, &State { expected, returned, spills, wait }, &input);
        if let Decision::Write { pages } = step.decision {
            prop_assert!(pages > Pages::ZERO && pages <= input.writable && pages <= PARAMS.pages_max);
            prop_assert!(input.oldest_ms >= step.after_ms && step.after_ms >= input.threshold_ms);
        }
    }
}
