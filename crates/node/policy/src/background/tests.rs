use proptest::prelude::*;

use super::*;

const PARAMS: Params = Params {
    settle_ms: Millis(10_000),
    idle_ms: Millis(0),
    pressure_max: RatioPpm(10_000),
    available_min: RatioPpm(100_000),
    prefetch: true,
};
const INFERRED: Params = Params { idle_ms: Millis(60_000), ..PARAMS };

const FOREGROUND: Decision = Decision::Nothing { reason: Reason::Foreground };
const SETTLING: Decision = Decision::Nothing { reason: Reason::Settling };
const DONE: Decision = Decision::Nothing { reason: Reason::Done };
const PRESSURE: Decision = Decision::Nothing { reason: Reason::MachineUnderPressure };

/// A job without a hint, on a machine with plenty of memory.
fn at(seconds: u64) -> Input {
    Input {
        now_ms: Millis(seconds * 1000),
        hint: None,
        frozen: false,
        cpu_usage_us: 0,
        machine_stall: RatioPpm(0),
        available: RatioPpm(500_000),
        veto: None,
    }
}

fn background(seconds: u64) -> Input {
    Input { hint: Some(Hint::Background), ..at(seconds) }
}

fn foreground(seconds: u64) -> Input {
    Input { hint: Some(Hint::Foreground), ..at(seconds) }
}

fn frozen(seconds: u64) -> Input {
    Input { frozen: true, ..at(seconds) }
}

fn used(seconds: u64, cpu_usage_us: u64) -> Input {
    Input { cpu_usage_us, ..at(seconds) }
}

fn vetoed(veto: Veto, input: Input) -> Input {
    Input { veto: Some(veto), ..input }
}

fn run(params: &Params, inputs: &[Input]) -> Vec<Decision> {
    let mut state = State::default();
    inputs
        .iter()
        .map(|input| {
            let (next, decision) = step(params, &state, input);
            state = next;
            decision
        })
        .collect()
}

/// The one place that runs a job; every case below is data.
fn check(params: &Params, periods: &[(Input, Decision)]) {
    let (inputs, expected): (Vec<_>, Vec<_>) = periods.iter().copied().unzip();
    assert_eq!(run(params, &inputs), expected, "{inputs:#?}");
}

#[test]
fn compacted_once_per_stay() {
    check(
        &PARAMS,
        &[
            (at(0), FOREGROUND),
            (background(5), SETTLING),
            (background(14), SETTLING),
            (background(15), Decision::Compact),
            (background(16), DONE),
            (background(10_000), DONE),
            (foreground(10_001), Decision::Prefetch),
            (background(10_002), SETTLING),
            (foreground(10_003), FOREGROUND),
            (background(10_004), SETTLING),
            (background(10_014), Decision::Compact),
            (at(10_015), Decision::Prefetch),
        ],
    );
    check(&Params { settle_ms: Millis(0), ..PARAMS }, &[(background(0), Decision::Compact), (background(1), DONE)]);
}

#[test]
fn the_operators_word_wins() {
    let frozen_but = |hint, seconds| Input { hint: Some(hint), ..frozen(seconds) };
    check(&INFERRED, &[(foreground(0), FOREGROUND), (foreground(100), FOREGROUND), (frozen_but(Hint::Foreground, 200), FOREGROUND)]);
    let busy = |seconds| Input { cpu_usage_us: seconds, ..background(seconds) };
    check(&INFERRED, &[(busy(0), SETTLING), (busy(10), Decision::Compact), (busy(11), DONE)]);
    check(&PARAMS, &[(frozen(0), SETTLING), (frozen(10), Decision::Compact), (frozen_but(Hint::Foreground, 11), Decision::Prefetch)]);
}

#[test]
fn what_is_frozen_is_in_the_background() {
    check(&PARAMS, &[(frozen(0), SETTLING), (frozen(10), Decision::Compact), (frozen(11), DONE), (at(12), Decision::Prefetch)]);
    check(&PARAMS, &[(frozen(0), SETTLING), (background(10), Decision::Compact), (frozen(11), DONE)]);
}

#[test]
fn no_cpu_time_for_a_while_is_the_background() {
    check(
        &INFERRED,
        &[
            (used(0, 5), FOREGROUND),
            (used(30, 6), FOREGROUND),
            (used(89, 6), FOREGROUND),
            (used(90, 6), SETTLING),
            (used(100, 6), Decision::Compact),
            (used(200, 6), DONE),
            (used(201, 7), Decision::Prefetch),
            (used(202, 7), FOREGROUND),
        ],
    );
    check(&PARAMS, &[(used(0, 5), FOREGROUND), (used(1_000_000, 5), FOREGROUND)]);
}

#[test]
fn never_under_pressure_but_put_off() {
    let stalled = |input| Input { machine_stall: RatioPpm(10_000), ..input };
    let short = |input| Input { available: RatioPpm(99_999), ..input };
    let nearly = |input| Input { machine_stall: RatioPpm(9_999), available: RatioPpm(100_000), ..input };
    check(
        &PARAMS,
        &[
            (stalled(background(0)), SETTLING),
            (stalled(background(10)), PRESSURE),
            (short(background(500)), PRESSURE),
            (nearly(background(501)), Decision::Compact),
            (stalled(background(502)), DONE),
        ],
    );
    check(&Params { pressure_max: RatioPpm(0), ..PARAMS }, &[(background(0), SETTLING), (background(10), PRESSURE)]);
    let gone = [(background(0), SETTLING), (stalled(background(10)), PRESSURE), (foreground(11), FOREGROUND)];
    check(&PARAMS, &gone);
}

#[test]
fn a_veto_puts_off_with_its_reason() {
    for veto in [Veto::ObserveOnly, Veto::AtLimit, Veto::NoFarMemory, Veto::Incompressible, Veto::BudgetSpent, Veto::WritesSpent] {
        let why = Decision::Nothing { reason: Reason::Vetoed(veto) };
        let periods = [(background(0), SETTLING), (vetoed(veto, background(10)), why), (background(11), Decision::Compact)];
        check(&PARAMS, &periods);
    }
}

#[test]
fn prefetched_once_and_only_what_was_compacted() {
    let compacted = [(background(0), SETTLING), (background(10), Decision::Compact)];
    let then = |params: &Params, rest: &[(Input, Decision)]| check(params, &[&compacted, rest].concat());
    then(&PARAMS, &[(foreground(11), Decision::Prefetch), (foreground(12), FOREGROUND)]);
    then(&Params { prefetch: false, ..PARAMS }, &[(foreground(11), FOREGROUND), (foreground(12), FOREGROUND)]);
    let short = Input { available: RatioPpm(0), ..foreground(11) };
    then(&PARAMS, &[(short, PRESSURE), (foreground(12), FOREGROUND)]);
    for veto in [Veto::NoFarMemory, Veto::Incompressible, Veto::WritesSpent, Veto::Stalled] {
        then(&PARAMS, &[(vetoed(veto, foreground(11)), Decision::Prefetch)]);
    }
    for veto in [Veto::ObserveOnly, Veto::AtLimit, Veto::BudgetSpent] {
        let why = Decision::Nothing { reason: Reason::Vetoed(veto) };
        then(&PARAMS, &[(vetoed(veto, foreground(11)), why), (foreground(12), FOREGROUND)]);
    }
}

#[test]
fn a_clock_or_a_counter_that_goes_back_is_tolerated() {
    check(&PARAMS, &[(background(100), SETTLING), (background(50), SETTLING), (background(60), Decision::Compact), (background(1), DONE)]);
    let periods = [(used(100, 9), FOREGROUND), (used(50, 9), FOREGROUND), (used(109, 9), FOREGROUND), (used(110, 9), SETTLING)];
    check(&INFERRED, &periods);
    check(&INFERRED, &[(used(0, 9), FOREGROUND), (used(60, 0), FOREGROUND), (used(119, 0), FOREGROUND), (used(120, 0), SETTLING)]);
}

prop_compose! {
    fn any_period()(
        wait_ms in 0u64..30_000, hint in 0u8..4, frozen in any::<bool>(), cpu_usage_us in 0u64..2, stall in 0u32..20_000,
        available in 0u32..400_000, at_limit in 0u8..4,
    ) -> (u64, Input) {
        let hint = match hint { 0 => Some(Hint::Foreground), 1 => Some(Hint::Background), _ => None };
        let (machine_stall, available) = (RatioPpm(stall), RatioPpm(available));
        let veto = (at_limit == 0).then_some(Veto::AtLimit);
        (wait_ms, Input { hint, frozen, cpu_usage_us, machine_stall, available, veto, ..at(0) })
    }
}

proptest! {
    #[test]
    fn in_any_run_compactions_and_prefetches_keep_the_rules(
        periods in proptest::collection::vec(any_period(), 1..80), idle_ms in 0u64..60_000, settle_ms in 0u64..30_000, prefetch in any::<bool>(),
    ) {
        let params = Params { idle_ms: Millis(idle_ms), settle_ms: Millis(settle_ms), prefetch, ..PARAMS };
        let mut now_ms = 0;
        let inputs: Vec<_> = periods.into_iter().map(|(wait_ms, input)| { now_ms += wait_ms; Input { now_ms: Millis(now_ms), ..input } }).collect();
        let decisions = run(&params, &inputs);
        prop_assert_eq!(&decisions, &run(&params, &inputs), "deterministic");
        let mut compacted = false;
        for (input, decision) in inputs.iter().zip(&decisions) {
            let plenty = input.machine_stall < params.pressure_max && input.available >= params.available_min;
            match decision {
                Decision::Compact => {
                    prop_assert!(plenty && input.veto.is_none() && input.hint != Some(Hint::Foreground) && !compacted, "{input:?}");
                    compacted = true;
                }
                Decision::Prefetch => {
                    prop_assert!(plenty && input.veto.is_none() && input.hint != Some(Hint::Background) && compacted && prefetch, "{input:?}");
                    compacted = false;
                }
                Decision::Nothing { reason: Reason::Done } => prop_assert!(compacted),
                Decision::Nothing { reason: Reason::Settling } => prop_assert!(!compacted),
                Decision::Nothing { reason: Reason::Foreground | Reason::MachineUnderPressure | Reason::Vetoed(_) } => compacted = false,
            }
        }
    }

    #[test]
    fn state_and_decision_survive_the_journal(periods in proptest::collection::vec(any_period(), 1..40)) {
        let (mut state, mut now_ms) = (State::default(), 0);
        for (wait_ms, input) in periods {
            now_ms += wait_ms;
            let (next, decision) = step(&INFERRED, &state, &Input { now_ms: Millis(now_ms), ..input });
            let text = serde_json::to_string(&(next, decision)).unwrap();
            prop_assert_eq!(serde_json::from_str::<(State, Decision)>(&text).unwrap(), (next, decision));
            state = next;
        }
    }
}
