use proptest::prelude::*;

use super::*;

mod closed_loop;

const PARAMS: Params = Params {
    ratio: RatioPpm(500),
    stall_target: RatioPpm(1_000),
    io_stall_target: RatioPpm(1_000),
    step_max: RatioPpm(10_000),
    floor: Bytes::ZERO,
    warmup_ms: Millis(0),
};

/// 2^32 bytes: 0.05 % of it are 2,147,483 bytes, or 524 whole pages and 1,179 bytes.
const GIB4: Bytes = Bytes(1 << 32);

/// A quiet period of six seconds; the target allows 6,000 us of it.
fn quiet() -> Input {
    Input {
        job_age_ms: Millis(3_600_000),
        elapsed_ms: Millis(6_000),
        resident: GIB4,
        protected: Bytes::ZERO,
        counters: Counters::default(),
        refault_cost_us: 100,
        veto: None,
    }
}

/// A period of six seconds in which this was counted.
fn period(memory_stall_us: u64, io_stall_us: u64, refaults: u64) -> Input {
    Input { counters: Counters { memory_stall_us, io_stall_us, refaults: Pages(refaults) }, ..quiet() }
}

/// A job that has been seen once, with all counters at zero.
fn seen() -> State {
    State { last: Some(Counters::default()), ..State::default() }
}

fn reclaim(pages: u64) -> Decision {
    Decision::Reclaim { bytes: Bytes(pages * PAGE) }
}

fn held(reason: Hold) -> Decision {
    Decision::Hold { reason }
}

/// The one place that calls the controller for a single period; every case below is data.
fn check(params: &Params, input: &Input, want: Decision) {
    assert_eq!(step(params, &seen(), input).1.decision, want, "{params:?} {input:?}");
}

#[test]
fn the_share_falls_as_the_worst_stall_nears_its_target() {
    check(&PARAMS, &period(0, 0, 0), reclaim(524));
    check(&PARAMS, &period(3_000, 0, 0), reclaim(262));
    check(&PARAMS, &period(0, 3_000, 0), reclaim(262));
    check(&PARAMS, &period(0, 0, 30), reclaim(262));
    check(&PARAMS, &period(1_500, 3_000, 15), reclaim(262));
    check(&PARAMS, &period(5_999, 0, 0), reclaim(0));
    check(&Params { io_stall_target: RatioPpm(2_000), ..PARAMS }, &period(3_000, 5_999, 0), reclaim(262));
}

#[test]
fn it_holds_at_once_when_a_stall_reaches_its_target() {
    check(&PARAMS, &period(6_000, 0, 0), held(Hold::MemoryStall));
    check(&PARAMS, &period(0, 6_000, 0), held(Hold::IoStall));
    check(&PARAMS, &period(0, 0, 60), held(Hold::Refaults));
    check(&PARAMS, &period(6_000, 6_001, 0), held(Hold::IoStall));
    check(&PARAMS, &period(6_001, 6_002, 61), held(Hold::Refaults));
    check(&PARAMS, &period(u64::MAX, u64::MAX, u64::MAX), held(Hold::MemoryStall));
    check(&Params { io_stall_target: RatioPpm(500), ..PARAMS }, &period(5_000, 3_000, 0), held(Hold::IoStall));
}

/// Decisions of a run of periods, each with its stall for memory and its pages that came back, of 100 us.
fn after_stalls_and_refaults(stalls: &[(u64, u64)]) -> Vec<Decision> {
    let (mut state, mut stall_us, mut refaults) = (seen(), 0, 0);
    stalls
        .iter()
        .map(|stall| {
            (stall_us, refaults) = (stall_us + stall.0, refaults + stall.1);
            let (next, stepped) = step(&PARAMS, &state, &period(stall_us, 0, refaults));
            state = next;
            stepped.decision
        })
        .collect()
}

fn after_stalls(stalls_us: &[u64]) -> Vec<Decision> {
    after_stalls_and_refaults(&stalls_us.iter().map(|&us| (us, 0)).collect::<Vec<_>>())
}

#[test]
fn a_stall_beyond_the_target_is_made_up_for() {
    let stalled = held(Hold::MemoryStall);
    assert_eq!(after_stalls(&[6_000, 0]), [stalled, reclaim(524)]);
    assert_eq!(after_stalls(&[9_000, 0, 0]), [stalled, reclaim(262), reclaim(524)]);
    assert_eq!(after_stalls(&[9_000, 3_000, 0]), [stalled, stalled, reclaim(524)]);
    assert_eq!(after_stalls(&[12_000, 0, 0]), [stalled, stalled, reclaim(524)]);
    let returned = held(Hold::Refaults);
    assert_eq!(after_stalls_and_refaults(&[(0, 90), (0, 0), (0, 0)]), [returned, reclaim(262), reclaim(524)]);
    assert_eq!(after_stalls_and_refaults(&[(0, 120), (0, 0), (0, 0)]), [returned, returned, reclaim(524)]);
    assert_eq!(after_stalls_and_refaults(&[(9_000, 120), (0, 0), (0, 0)]), [returned, returned, reclaim(524)], "not twice");
    let mut long = vec![stalled; 11];
    long.push(reclaim(524));
    assert_eq!(after_stalls(&[1 << 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), long, "ten periods' worth is the most");
}

#[test]
fn a_target_of_zero_never_reclaims() {
    check(&Params { stall_target: RatioPpm(0), ..PARAMS }, &period(0, 0, 0), held(Hold::MemoryStall));
    check(&Params { stall_target: RatioPpm(0), ..PARAMS }, &period(0, 7_000, 0), held(Hold::MemoryStall));
    check(&Params { io_stall_target: RatioPpm(0), ..PARAMS }, &period(0, 0, 0), held(Hold::IoStall));
    check(&Params { ratio: RatioPpm(0), ..PARAMS }, &period(0, 0, 0), reclaim(0));
}

#[test]
fn the_first_period_and_an_empty_one_give_no_history() {
    let (state, first) = step(&PARAMS, &State::default(), &period(9, 9, 9));
    assert_eq!(first.decision, held(Hold::NoHistory));
    assert_eq!(step(&PARAMS, &state, &period(9, 9, 9)).1.decision, reclaim(524), "the first period was remembered");
    check(&PARAMS, &Input { elapsed_ms: Millis(0), ..quiet() }, held(Hold::NoHistory));
}

#[test]
fn a_counter_that_goes_back_holds() {
    let high = State { last: Some(period(100, 100, 100).counters), carry: Bytes(100), memory_owed_us: 100_000, refault_owed_us: 100_000 };
    for input in [period(99, 100, 100), period(100, 99, 100), period(100, 100, 99)] {
        let (state, stepped) = step(&PARAMS, &high, &input);
        assert_eq!(stepped.decision, held(Hold::CounterWentBack));
        assert_eq!(step(&PARAMS, &state, &input).1.decision, reclaim(524), "the new counters are taken");
    }
}

#[test]
fn the_most_fundamental_reason_is_reported() {
    let at_floor = Input { protected: GIB4, ..quiet() };
    check(&PARAMS, &at_floor, held(Hold::AtFloor));
    check(&PARAMS, &Input { protected: Bytes(GIB4.0 - PAGE), ..quiet() }, reclaim(1));
    check(&PARAMS, &Input { protected: Bytes(GIB4.0 - PAGE + 1), ..quiet() }, held(Hold::AtFloor));
    check(&Params { floor: Bytes(u64::MAX), ..PARAMS }, &quiet(), held(Hold::AtFloor));
    check(&Params { warmup_ms: Millis(3_600_000), ..PARAMS }, &quiet(), reclaim(524));
    let young = Params { warmup_ms: Millis(3_600_001), ..PARAMS };
    check(&young, &Input { counters: period(9_000, 0, 0).counters, ..at_floor }, held(Hold::WarmingUp));
    check(&PARAMS, &Input { veto: Some(Veto::AtLimit), ..at_floor }, held(Hold::AtFloor));
    for veto in [Veto::ObserveOnly, Veto::AtLimit, Veto::NoFarMemory, Veto::Incompressible, Veto::BudgetSpent, Veto::WritesSpent] {
        check(&PARAMS, &Input { veto: Some(veto), ..quiet() }, held(Hold::Vetoed(veto)));
        let first = if veto == Veto::ObserveOnly { Hold::Vetoed(veto) } else { Hold::WarmingUp };
        check(&young, &Input { veto: Some(veto), ..quiet() }, held(first));
    }
}

#[test]
fn a_decision_reports_its_numbers() {
    let (_, stepped) = step(&PARAMS, &seen(), &period(6_000, 12_000, 30));
    assert_eq!((stepped.memory_stall, stepped.io_stall, stepped.refault_stall), (RatioPpm(1_000), RatioPpm(2_000), RatioPpm(500)));
}

/// Pages asked for in so many quiet periods, of a job that stays as large as it is.
fn asked_pages(resident: Bytes, periods: usize, hold_every: usize) -> u64 {
    let mut state = seen();
    let mut bytes = 0;
    for n in 1..=periods {
        let veto = (n % hold_every == 0).then_some(Veto::BudgetSpent);
        let (next, stepped) = step(&PARAMS, &state, &Input { resident, veto, ..quiet() });
        state = next;
        if let Decision::Reclaim { bytes: asked } = stepped.decision {
            assert_eq!(asked.0 % PAGE, 0, "the kernel would drop the rest");
            bytes += asked.0;
        }
    }
    bytes / PAGE
}

#[test]
fn small_jobs_move() {
    // 0.05 % of 1 MiB are 524 bytes: a page in eight periods.
    assert_eq!(asked_pages(Bytes::mib(1), 7, usize::MAX), 0);
    assert_eq!(asked_pages(Bytes::mib(1), 8, usize::MAX), 1);
    assert_eq!(asked_pages(Bytes::mib(1), 800, usize::MAX), 800 * 524 / PAGE);
    assert_eq!(asked_pages(Bytes::mib(1), 800, 8), 0, "a hold drops what was carried");
    assert_eq!(asked_pages(Bytes(PAGE), 8_000, usize::MAX), 8_000 * 2 / PAGE);
}

#[test]
fn state_and_step_survive_the_journal() {
    let (state, stepped) = step(&PARAMS, &seen(), &period(1_000, 0, 3));
    let state_text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<State>(&state_text).unwrap(), state);
    let step_text = serde_json::to_string(&stepped).unwrap();
    assert_eq!(serde_json::from_str::<Step>(&step_text).unwrap(), stepped);
    let held = serde_json::to_string(&held(Hold::Vetoed(Veto::AtLimit))).unwrap();
    assert_eq!(held, r#"{"action":"hold","reason":{"vetoed":"at_limit"}}"#);
}

prop_compose! {
    fn any_params()(
        ratio in any::<u32>(), stall_target in any::<u32>(), io_stall_target in any::<u32>(), step_max in 0u32..=1_000_000,
        floor in any::<u64>(), warmup_ms in any::<u64>(),
    ) -> Params {
        Params {
            ratio: RatioPpm(ratio), stall_target: RatioPpm(stall_target), io_stall_target: RatioPpm(io_stall_target),
            step_max: RatioPpm(step_max), floor: Bytes(floor), warmup_ms: Millis(warmup_ms),
        }
    }
}

prop_compose! {
    /// Counters that grow slowly enough for some periods to stay under the target.
    fn any_input()(
        elapsed_ms in 0u64..20_000, resident in 0u64..1 << 40, protected in 0u64..1 << 40, counters in any::<(u16, u16, u8)>(),
        refault_cost_us in 0u32..10_000, at_limit in any::<bool>(),
    ) -> Input {
        let (memory, io, refaults) = counters;
        Input {
            elapsed_ms: Millis(elapsed_ms), resident: Bytes(resident), protected: Bytes(protected), refault_cost_us,
            veto: at_limit.then_some(Veto::AtLimit),
            ..period(u64::from(memory), u64::from(io), u64::from(refaults))
        }
    }
}

/// Every period of a run with its answer.
fn run(params: &Params, inputs: &[Input]) -> Vec<(Input, Step)> {
    let mut state = State::default();
    inputs
        .iter()
        .map(|input| {
            let (next, stepped) = step(params, &state, input);
            state = next;
            (*input, stepped)
        })
        .collect()
}

proptest! {
    #[test]
    fn never_above_the_step(params in any_params(), inputs in proptest::collection::vec(any_input(), 1..40)) {
        let params = Params { floor: Bytes::ZERO, warmup_ms: Millis(0), ..params };
        let (mut asked, mut allowed) = (0u128, 0u128);
        for (input, stepped) in run(&params, &inputs) {
            let step_max = params.step_max.share_of(input.resident.0);
            allowed += u128::from(step_max);
            if let Decision::Reclaim { bytes } = stepped.decision {
                asked += u128::from(bytes.0);
                prop_assert!(bytes.0 < step_max + PAGE, "{bytes:?} of {input:?}");
            }
            prop_assert!(asked <= allowed);
        }
    }

    #[test]
    fn never_below_the_floor(params in any_params(), floor in 0u64..1 << 40, inputs in proptest::collection::vec(any_input(), 1..40)) {
        let params = Params { floor: Bytes(floor), warmup_ms: Millis(0), ..params };
        for (input, stepped) in run(&params, &inputs) {
            if let Decision::Reclaim { bytes } = stepped.decision {
                prop_assert!(input.resident - bytes >= params.floor.max(input.protected), "{stepped:?} of {input:?}");
            }
        }
    }

    #[test]
    fn more_stall_never_reclaims_more(counters in any::<(u16, u16, u8)>(), more in any::<(u16, u16, u8)>()) {
        let wide = Params { stall_target: RatioPpm(20_000), io_stall_target: RatioPpm(20_000), ..PARAMS };
        let asked = |memory: u64, io: u64, refaults: u64| match step(&wide, &seen(), &period(memory, io, refaults)).1.decision {
            Decision::Reclaim { bytes } => bytes,
            Decision::Hold { .. } => Bytes::ZERO,
        };
        let (memory, io, refaults) = (u64::from(counters.0), u64::from(counters.1), u64::from(counters.2));
        let calm = asked(memory, io, refaults);
        let worse = asked(memory + u64::from(more.0), io + u64::from(more.1), refaults + u64::from(more.2));
        prop_assert!(worse <= calm);
    }

    #[test]
    fn it_is_deterministic_and_answers_any_input(
        params in any_params(), mut input in any_input(), counters in any::<(u64, u64, u64)>(),
        elapsed_ms in any::<u64>(), resident in any::<u64>(), refault_cost_us in any::<u32>(),
    ) {
        input = Input { elapsed_ms: Millis(elapsed_ms), resident: Bytes(resident), refault_cost_us, ..input };
        input.counters = Counters { memory_stall_us: counters.0, io_stall_us: counters.1, refaults: Pages(counters.2) };
        prop_assert_eq!(step(&params, &seen(), &input), step(&params, &seen(), &input));
    }
}
