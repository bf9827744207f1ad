//! The bound for young histories.

use super::super::pooled::Pooled;
use super::*;

const BOUND: Params = Params { bound: true, ..PARAMS };

fn steps(params: &Params, inputs: &[Input]) -> Vec<Option<Age>> {
    run(params, inputs).iter().map(|step| step.threshold).collect()
}

/// Minutes in which pages of nine scans are accessed this often; 200 accesses are permitted.
fn accesses(counts: &[u64]) -> Vec<Input> {
    let minutes = counts.iter().enumerate();
    minutes.map(|(at, &count)| Input { job_age_ms: Millis(60_000) * (at as u64 + 1), ..minute(&[(9, count)]) }).collect()
}

#[test]
fn the_margin_shrinks_with_the_square_root_of_the_observations() {
    // With K = 98 %, 50 observations are needed: the first one must leave a factor of 7.07, the 13th one of 1.96.
    let first_young = |count: u64| steps(&BOUND, &accesses(&vec![count; 60])).iter().position(|&threshold| threshold == Some(Age(1)));
    for (count, first) in [(0, Some(1)), (28, Some(1)), (29, Some(2)), (100, Some(13)), (101, Some(13)), (103, Some(14)), (200, Some(50))] {
        assert_eq!(first_young(count), first.map(|observations| observations - 1), "{count}");
    }
    assert_eq!(first_young(201), None);
    let early = run(&BOUND, &accesses(&[100; 13]));
    assert_eq!(early[0].decision, offload(10, Reason::ShortHistory));
    assert_eq!(early[12].decision, offload(1, Reason::Percentile));
}

#[test]
fn a_threshold_that_no_page_has_reached_is_not_taken() {
    // The working set alone: all pages are accessed in each scan, and the first page of three scans appears in the third minute.
    let young = |oldest: u8| {
        let cold = histogram(&[(0, 100_000), (oldest, 50_000)]);
        Input { cold, resident: cold, ..minute(&[(oldest, 10_000)]) }
    };
    let inputs: Vec<_> = (1..=3).map(|at| Input { job_age_ms: Millis(60_000) * u64::from(at), ..young(at) }).collect();
    let decided: Vec<_> = run(&BOUND, &inputs).iter().map(|step| step.decision).collect();
    assert_eq!(decided, [Decision::Hold { reason: Hold::ShortHistory }; 3]);
    // Without the bound, each new age is taken because it has no promotions yet, and is promoted in the next minute.
    assert_eq!(steps(&PARAMS, &inputs), [Some(Age(2)), Some(Age(3)), Some(Age(4))]);
    // When no threshold at all has met the objective, that is the reason.
    let hopeless = Input { promotions: histogram(&[(255, 10_000)]), ..minute(&[]) };
    assert_eq!(run(&BOUND, &[hopeless])[0].decision, Decision::Hold { reason: Hold::NoThresholdQualifies });
}

#[test]
fn a_history_is_short_until_it_has_the_observations_that_k_needs() {
    let mut state = State::default();
    for (at, input) in accesses(&[1_000; 60]).iter().enumerate() {
        assert_eq!((state.is_short(&BOUND), state.is_short(&PARAMS)), (at < 50, false), "{at}");
        state = step(&BOUND, &set(), &state, input).0;
    }
}

#[test]
fn promotions_that_are_read_twice_are_one_observation() {
    // The controller runs twice per scan of two minutes; 50 observations are 100 minutes.
    let inputs: Vec<_> = accesses(&[400; 110]).iter().map(|input| Input { window_ms: Millis(120_000), ..*input }).collect();
    assert_eq!(steps(&BOUND, &inputs).iter().position(|&threshold| threshold == Some(Age(1))), Some(98));
    // A scan that starts a little early is an observation.
    let early: Vec<_> = accesses(&[400; 110]).iter().map(|input| Input { window_ms: Millis(70_000), ..*input }).collect();
    assert!(steps(&BOUND, &early).iter().all(|&threshold| threshold == Some(Age(10))), "400 in 70 s are over the objective");
}

/// A job whose promotions at ten scans vary by a log-normal factor of e^0.55 in each minute, as the generated fleet's do.
fn noisy_job(random: &mut fastrand::Rng, minutes: usize) -> Vec<Input> {
    let counts: Vec<u64> = (0..minutes)
        .map(|_| {
            let normal: f64 = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a test")]
            let count = (2_000.0 * (0.55 * normal).exp()) as u64;
            count
        })
        .collect();
    // The number of promotions at an age falls with its square, so that every threshold is the best one at times.
    let at = |count: u64| (1..=40u8).map(|age| (age, count / (u64::from(age) * u64::from(age)))).collect::<Vec<_>>();
    counts.iter().enumerate().map(|(i, &count)| Input { job_age_ms: Millis(60_000) * (i as u64 + 1), ..minute(&at(count)) }).collect()
}

#[test]
fn a_young_history_violates_the_slo_no_more_often_than_a_long_one() {
    let mut random = fastrand::Rng::with_seed(4);
    let mut over = [[0u32; 2]; 4];
    let jobs = 1_500;
    for _ in 0..jobs {
        let inputs = noisy_job(&mut random, 101);
        for (rule, params) in [PARAMS, BOUND].iter().enumerate() {
            let params = Params { percentile: RatioPpm(990_000), ..*params };
            for (at, pair) in run(&params, &inputs).windows(2).enumerate() {
                // The threshold in effect was below the period's best.
                let violated = pair[0].threshold.is_some() && pair[0].threshold < pair[1].best;
                over[[1, 10, 50, 101].iter().position(|&end| at < end).unwrap()][rule] += u32::from(violated);
            }
        }
    }
    // Violations in the 2nd period, the 3rd to 11th, to the 51st, and to the 101st.
    let per_period = |periods: f64, count: u32| f64::from(count) / (f64::from(jobs) * periods);
    let ratios: Vec<_> = over.iter().zip([1.0, 9.0, 40.0, 50.0]).map(|(count, n)| count.map(|count| per_period(n, count))).collect();
    for [before, bound] in &ratios {
        assert!(*bound <= 0.01, "{ratios:?}");
        assert!(bound < before, "{ratios:?}");
    }
    assert!(ratios[0][0] > 0.2 && ratios[1][0] > 0.1, "the rule without the bound is what it was: {ratios:?}");
}

#[test]
fn a_long_history_decides_nearly_as_without_the_bound() {
    let inputs = stationary_job(7, 20_000);
    let inputs: Vec<_> = inputs.iter().enumerate().map(|(at, input)| Input { job_age_ms: Millis(60_000) * at as u64, ..*input }).collect();
    let (before, bound) = (run(&PARAMS, &inputs), run(&BOUND, &inputs));
    let differing = before.iter().zip(&bound).skip(1_000).filter(|(before, bound)| before.threshold != bound.threshold).count();
    assert!(differing < 200, "{differing} of 19,000");
    assert!(before.iter().zip(&bound).all(|(before, bound)| bound.threshold.is_none() || bound.threshold >= before.threshold));
}

#[test]
fn observations_needed_follow_from_the_percentile() {
    for (percentile, needed) in
        [(0, 1), (500_000, 2), (950_000, 20), (980_000, 50), (990_000, 100), (999_000, 500), (1_000_000, 500), (u32::MAX, 500)]
    {
        assert_eq!(observations_needed(RatioPpm(percentile)), needed, "{percentile} ppm");
    }
}

#[test]
fn a_samples_bound_covers_the_whole_in_95_of_100_samples() {
    // Of `of` pages `accessed` are accessed, and `pages` of them are sampled without replacement. They are as many as permitted.
    let mut random = fastrand::Rng::with_seed(9);
    for (pages, of, accessed) in [(100, 10_000, 300), (100, 10_000, 3_000), (1_000, 10_000, 40), (9_000, 10_000, 900)] {
        let sample = Sample { pages: Pages(pages), of: Pages(of) };
        let (mut covered, runs) = (0, 2_000);
        for _ in 0..runs {
            let (mut left, mut found) = (accessed, 0);
            for seen in 0..pages {
                let hit = random.u64(0..of - seen) < left;
                left -= u64::from(hit);
                found += u64::from(hit);
            }
            let mut pooled = Pooled::default();
            pooled.add(0, sample, found * of / pages, accessed);
            covered += u32::from(pooled.upper_ppm(0) >= 1_000_000);
        }
        assert!(covered * 100 >= runs * 95, "{accessed} of {of}, sample of {pages}: {covered} of {runs}");
    }
}

#[test]
fn a_samples_bound_is_no_wider_than_needed_and_shrinks_with_the_sum() {
    let hundredth = Sample { pages: Pages(1_000), of: Pages(100_000) };
    let upper = |observations: u64, promotions: u64, allowed: u64| {
        let mut pooled = Pooled::default();
        (0..observations).for_each(|_| pooled.add(0, hundredth, promotions, allowed));
        pooled.upper_ppm(0)
    };
    // Exact: 2.996 for no page, 118.08 for a hundred.
    assert!((299_600..310_000).contains(&upper(1, 0, 1_000)), "{}", upper(1, 0, 1_000));
    assert!((590_400..605_000).contains(&upper(1, 10_000, 20_000)), "{}", upper(1, 10_000, 20_000));
    assert!((2_996_000..3_100_000).contains(&upper(1, 0, 100)), "three sampled pages are more than one permitted");
    assert!(upper(30, 0, 100) < 110_000, "but not more than thirty");
    let mut whole = Pooled::default();
    whole.add(0, Sample { pages: Pages(7), of: Pages(7) }, 5, 1);
    assert_eq!((whole.upper_ppm(0), Pooled::default().upper_ppm(1)), (0, 0), "nothing is uncertain");
    let mut largest = Pooled::default();
    largest.add(0, Sample { pages: Pages(u64::MAX - 1), of: Pages(u64::MAX) }, u64::MAX, u64::MAX);
    largest.add(64, Sample { pages: Pages(0), of: Pages(0) }, 1, 1);
    assert!(largest.upper_ppm(0) >= 1_000_000);
}

#[test]
fn a_sample_needs_a_longer_history_than_all_pages() {
    let first = |sample: Option<Sample>, count: u64| {
        let inputs: Vec<_> = accesses(&[count; 60]).iter().map(|input| Input { sample, ..*input }).collect();
        steps(&BOUND, &inputs).iter().position(|&threshold| threshold == Some(Age(1)))
    };
    let of = Pages(200_000);
    let part = |pages: u64| first(Some(Sample { pages: Pages(pages), of }), 10);
    assert_eq!((first(None, 10), part(200_000)), (Some(0), Some(0)));
    assert_eq!((part(50_000), part(1_000)), (Some(7), Some(15)), "one observation, and two");
    assert_eq!(part(100), Some(47), "a page stands for 2,000, and 200 a period are permitted");
    // A small job: a sampled page is eight, 6 are permitted in a period. None is ever accessed at ten scans or later.
    let inputs: Vec<_> = (0..60)
        .map(|at| Input {
            job_age_ms: Millis(60_000) * (at + 1),
            allowance: Some(Pages(6)),
            sample: Some(Sample { pages: Pages(1_500), of: Pages(12_000) }),
            ..minute(&[(9, 20)])
        })
        .collect();
    let taken = steps(&BOUND, &inputs).iter().position(|&threshold| threshold == Some(Age(10)));
    assert_eq!(taken, Some(15), "3 sqrt(7 / 8) sqrt(50 / n) are within 0.75 n at the second observation");
}

/// What a sample of one page in a hundred finds of these promotions, scaled to all pages.
fn thinned(random: &mut fastrand::Rng, promotions: &Histogram) -> Histogram {
    let found = promotions.buckets().iter().map(|&count| 100 * (0..count).filter(|_| random.u8(0..100) == 0).count() as u64);
    Histogram::try_from(found.collect::<Vec<_>>()).unwrap()
}

#[test]
fn with_a_sample_the_promotions_of_all_pages_keep_the_objective() {
    // 200 promotions are permitted in a period, which are two of the sample.
    let mut random = fastrand::Rng::with_seed(11);
    let sample = Some(Sample { pages: Pages(2_000), of: Pages(200_000) });
    let params = Params { percentile: RatioPpm(990_000), ..BOUND };
    let ends = [100, 400, 1_200];
    let (mut over, mut periods, mut age) = ([[0u32; 2]; 3], [[0u32; 2]; 3], [[0u32; 2]; 3]);
    for _ in 0..40 {
        let all = noisy_job(&mut random, 1_200);
        let sampled: Vec<_> =
            all.iter().map(|input| Input { sample, promotions: thinned(&mut random, &input.promotions), ..*input }).collect();
        let best: Vec<_> = run(&params, &all).iter().map(|step| step.best).collect();
        for rule in 0..2 {
            let (mut state, mut effect) = (State::default(), None::<Age>);
            for at in 0..all.len() {
                let part = ends.iter().position(|&end| at < end).unwrap();
                let mut input = if rule == 0 { all[at] } else { sampled[at] };
                if let Some(threshold) = effect {
                    over[part][rule] += u32::from(Some(threshold) < best[at]);
                    periods[part][rule] += 1;
                    age[part][rule] += u32::from(threshold.0);
                }
                if rule == 1 {
                    let index = (0..32).find(|&index| set().get(index) == effect).unwrap_or(32);
                    let mut far = all[at].promotions.buckets().to_vec();
                    far[..=index].fill(0);
                    input.returned = Some(Histogram::try_from(far).unwrap());
                }
                let (next, step) = step(&params, &set(), &state, &input);
                (state, effect) = (next, step.threshold);
            }
        }
    }
    let ratio = |part: usize, rule: usize| f64::from(over[part][rule]) / f64::from(periods[part][rule]);
    assert!(ratio(0, 1) <= 0.02 && ratio(1, 1) <= 0.01 && ratio(2, 1) <= 0.01, "{over:?} of {periods:?}");
    let sum = |of: &[[u32; 2]; 3]| f64::from(of.iter().map(|part| part[1]).sum::<u32>());
    assert!(sum(&over) <= 0.01 * sum(&periods), "{over:?} of {periods:?}");
    // As low as if all pages were counted.
    assert!((1..3).all(|part| age[part][1] <= age[part][0]), "{age:?}");
}

#[test]
fn single_sampled_pages_do_not_decide() {
    // 100 promotions of 200 permitted, of which a sample of one page in 400 finds one in each fourth scan.
    let sample = Some(Sample { pages: Pages(500), of: Pages(200_000) });
    let inputs: Vec<_> = accesses(&[400, 0, 0, 0].repeat(50)).iter().map(|input| Input { sample, ..*input }).collect();
    let last = |params: &Params| run(params, &inputs)[199].threshold;
    assert_eq!((last(&BOUND), last(&PARAMS)), (Some(Age(1)), Some(Age(10))));
    // Within the objective on average of the history; then one observation is far above what it permits, and none after it.
    let mut spike = inputs.clone();
    spike[163].promotions = histogram(&[(60, 4_000)]);
    let steps = run(&BOUND, &spike);
    let found: Vec<_> = steps[162..169].iter().map(|step| step.threshold).collect();
    let (before, raised) = (Some(Age(1)), Some(Age(61)));
    assert_eq!(found, [before, raised, raised, raised, raised, raised, before], "at once, until the observation is complete");
}

#[test]
fn a_young_state_survives_a_restart() {
    let mut random = fastrand::Rng::with_seed(1);
    for half_life_ms in [0, 600_000] {
        let params = Params { half_life_ms: Millis(half_life_ms), ..BOUND };
        let mut state = State::default();
        for (at, input) in noisy_job(&mut random, 600).iter().enumerate() {
            state = step(&params, &set(), &state, input).0;
            let text = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state, "{text}");
            assert_eq!(state.early.is_none(), at >= 499, "{at}");
            assert_eq!(text.contains("worst_ppm"), at < 499);
        }
    }
    let sampled =
        noisy_job(&mut random, 19).into_iter().map(|input| Input { sample: Some(Sample { pages: Pages(9), of: Pages(90) }), ..input });
    let state = sampled.fold(State::default(), |state, input| step(&BOUND, &set(), &state, &input).0);
    let text = serde_json::to_string(&state).unwrap();
    assert!(text.contains("pooled") && text.contains("\"scans\":3"), "{text}");
    assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
    let long = format!(r#"{{"bests":[1],"observations":{:?},"worst_ppm":[],"last_ms":0}}"#, [1; THRESHOLDS_MAX + 1]);
    assert!(serde_json::from_str::<State>(&long).is_err());
    // A history of an older version has begun, and counts as long.
    let old: State = serde_json::from_str("[40]").unwrap();
    assert_eq!(step(&BOUND, &set(), &old, &minute(&[(4, 200)])).1.threshold, Some(Age(1)));
    assert_eq!(serde_json::from_str::<State>("[]").unwrap(), State::default());
}

/// A class: P, K, S and the allowance of its stall target.
fn class(p: u32, k: u32, s: u64, params: Params) -> Params {
    Params { promotion_rate_max: RatioPpm(p), percentile: RatioPpm(k), warmup_ms: Millis(s), ..params }
}

proptest! {
    #[test]
    fn a_more_conservative_class_never_takes_more(
        minutes in proptest::collection::vec((any::<u8>(), 0u64..600, any::<u8>(), 0u64..600, any::<u8>(), 0u64..200_000), 1..160),
        p in 0u32..20_000, less_p in 0u32..20_000, k in 500_000u32..=1_000_000, more_k in 0u32..500_000,
        (s, more_s) in (0u64..4_000_000, 0u64..4_000_000), (allowance, less) in (proptest::option::of(0u64..800), 0u64..400),
        (bound, spikes, half_life_ms) in (any::<bool>(), any::<bool>(), prop_oneof![Just(0u64), 60_000u64..9_000_000]),
        sample in proptest::option::of(1u64..200_000),
    ) {
        let params = Params { bound, spikes, half_life_ms: Millis(half_life_ms), ..PARAMS };
        let bold = class(p, k, s, params);
        let careful = class(p.saturating_sub(less_p), (k + more_k).min(1_000_000), s + more_s, params);
        let inputs = |allowance: Option<u64>| {
            let inputs = minutes.iter().enumerate().map(|(at, &(a, n, b, m, oldest, gap_ms))| Input {
                job_age_ms: Millis(60_000) * (at as u64 + 1) + Millis(gap_ms),
                cold: histogram(&[(0, 100_000), (oldest, 100_000)]),
                resident: histogram(&[(0, 100_000), (oldest, 100_000)]),
                allowance: allowance.map(Pages),
                sample: sample.map(|pages| Sample { pages: Pages(pages), of: Pages(200_000) }),
                ..minute(&[(a, n), (b, m)])
            });
            inputs.collect::<Vec<_>>()
        };
        let taken = |params: &Params, allowance: Option<u64>| {
            let taken = |step: &Step| match step.decision {
                Decision::Offload { threshold, pages, .. } => (255 - threshold.0, pages.0),
                Decision::Hold { .. } => (0, 0),
            };
            run(params, &inputs(allowance)).iter().map(taken).collect::<Vec<_>>()
        };
        let (bold, careful) = (taken(&bold, allowance), taken(&careful, allowance.map(|pages| pages.saturating_sub(less))));
        for (bold, careful) in bold.iter().zip(careful) {
            prop_assert!(careful.1 <= bold.1 && careful.0 <= bold.0);
        }
    }
}
