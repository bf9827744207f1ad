use proptest::prelude::*;

use super::*;

const BOTH: Input = Input {
    anon_refaults: Pages::ZERO,
    file_refaults: Pages::ZERO,
    anon_cost_us: 40,
    file_cost_us: 400,
    anon: Bytes(1 << 30),
    file: Bytes(1 << 30),
    swap: true,
};

fn returned(anon: u64, file: u64) -> Input {
    Input { anon_refaults: Pages(anon), file_refaults: Pages(file), ..BOTH }
}

/// The one place that calls the balance for a single step; every case below is data.
fn check(input: &Input, want: AnonFileBias) {
    assert_eq!(step(&State::default(), input).1, want, "{input:?}");
}

#[test]
fn each_kind_is_asked_in_inverse_proportion_to_its_cost() {
    check(&returned(0, 0), AnonFileBias::Swappiness(100));
    check(&returned(1_000, 100), AnonFileBias::Swappiness(100));
    // With the prior: 20 ms against 10 ms, so a third of 200, and the mirror of it.
    check(&returned(250, 0), AnonFileBias::Swappiness(66));
    check(&returned(0, 25), AnonFileBias::Swappiness(134));
    check(&returned(0, 225), AnonFileBias::Swappiness(182));
    check(&returned(1, 0), AnonFileBias::Swappiness(99));
    check(&returned(u64::MAX, 0), AnonFileBias::Swappiness(1));
    check(&returned(0, u64::MAX), AnonFileBias::Swappiness(199));
    check(&returned(u64::MAX, u64::MAX), AnonFileBias::Swappiness(100));
}

#[test]
fn what_is_not_there_is_not_asked() {
    check(&Input { swap: false, ..returned(0, 1_000) }, AnonFileBias::FileOnly);
    check(&Input { swap: false, file: Bytes::ZERO, ..BOTH }, AnonFileBias::FileOnly);
    check(&Input { anon: Bytes::ZERO, ..returned(0, 1_000) }, AnonFileBias::FileOnly);
    check(&Input { file: Bytes::ZERO, ..returned(1_000, 0) }, AnonFileBias::Swappiness(200));
    check(&Input { anon: Bytes::ZERO, file: Bytes::ZERO, ..BOTH }, AnonFileBias::Swappiness(100));
}

#[test]
fn costs_are_learnt_while_there_is_no_swap() {
    let (state, _) = step(&State::default(), &Input { swap: false, ..returned(0, 225) });
    assert!(matches!(step(&state, &BOTH).1, AnonFileBias::Swappiness(150..)));
}

#[test]
fn a_cost_is_halved_in_twenty_steps() {
    let (mut state, _) = step(&State::default(), &returned(1_000_000, 0));
    let before = state.anon_cost;
    for _ in 0..20 {
        state = step(&state, &BOTH).0;
    }
    assert!((before * 49 / 100..=before / 2).contains(&state.anon_cost), "{} of {before}", state.anon_cost);
}

/// Of both kinds the same share returns of what is asked; only the waits differ.
#[test]
fn in_a_loop_the_cheaper_kind_gives_more() {
    let (mut state, mut input) = (State::default(), BOTH);
    for _ in 0..500 {
        let (next, lean) = step(&state, &input);
        state = next;
        let AnonFileBias::Swappiness(swappiness) = lean else { panic!("{lean:?}") };
        // A hundredth of each request comes back in the next period.
        input = returned(u64::from(swappiness), u64::from(ANON_ONLY - swappiness));
    }
    // The square root of 400 us against 40 is 3.16 to 1, which is 152 of 200.
    assert!((145..=160).contains(&input.anon_refaults.0), "{input:?}");
}

#[test]
fn state_and_lean_survive_the_journal() {
    let (state, lean) = step(&State::default(), &returned(3, 700));
    let text = serde_json::to_string(&(state, lean)).unwrap();
    assert_eq!(serde_json::from_str::<(State, AnonFileBias)>(&text).unwrap(), (state, lean));
}

/// The lean as one number.
fn swappiness_after(state: &State, input: &Input) -> u8 {
    match step(state, input).1 {
        AnonFileBias::FileOnly => 0,
        AnonFileBias::Swappiness(swappiness) => swappiness,
    }
}

prop_compose! {
    fn any_state()(anon_cost in any::<u64>(), file_cost in any::<u64>(), small in any::<bool>()) -> State {
        let shift = if small { 44 } else { 0 };
        State { anon_cost: anon_cost >> shift, file_cost: file_cost >> shift }
    }
}

proptest! {
    #[test]
    fn exchanging_the_kinds_mirrors_the_lean(state in any_state(), anon in any::<u16>(), file in any::<u16>(), waits in any::<(u32, u32)>()) {
        let input = Input { anon_cost_us: waits.0, file_cost_us: waits.1, ..returned(u64::from(anon), u64::from(file)) };
        let mirrored = Input { anon_cost_us: waits.1, file_cost_us: waits.0, ..returned(u64::from(file), u64::from(anon)) };
        let mirror = State { anon_cost: state.file_cost, file_cost: state.anon_cost };
        prop_assert_eq!(swappiness_after(&state, &input), ANON_ONLY - swappiness_after(&mirror, &mirrored));
    }

    #[test]
    fn it_is_monotone_in_each_cost(state in any_state(), anon in any::<u16>(), file in any::<u16>(), more in any::<u16>()) {
        let at = |anon: u64, file: u64| swappiness_after(&state, &returned(anon, file));
        let (anon, file, more) = (u64::from(anon), u64::from(file), u64::from(more));
        prop_assert!(at(anon + more, file) <= at(anon, file));
        prop_assert!(at(anon, file + more) >= at(anon, file));
    }

    #[test]
    fn it_recovers_to_even_when_refaults_cease(mut state in any_state()) {
        let mut distance = 100;
        for _ in 0..1_500 {
            let (next, _) = step(&state, &BOTH);
            let now = swappiness_after(&state, &BOTH).abs_diff(100);
            prop_assert!(now <= distance);
            (state, distance) = (next, now);
        }
        prop_assert_eq!(state, State::default());
        prop_assert_eq!(distance, 0);
    }

    #[test]
    fn any_input_is_answered(state in any_state(), refaults in any::<(u64, u64)>(), waits in any::<(u32, u32)>(), sizes in any::<(u64, u64)>()) {
        let input = Input {
            anon_cost_us: waits.0, file_cost_us: waits.1, anon: Bytes(sizes.0), file: Bytes(sizes.1), ..returned(refaults.0, refaults.1)
        };
        let (next, lean) = step(&state, &input);
        prop_assert_eq!((next, lean), step(&state, &input));
        if let AnonFileBias::Swappiness(swappiness) = lean {
            prop_assert!((1..=200).contains(&swappiness));
        }
    }
}
