use policy::cold_age::{Decision, Hold, Input, Params, State, Step, step};
use policy::histogram::Histogram;
use proptest::prelude::*;
use units::{Age, UnixMillis};

use super::*;
use crate::rates;
use crate::sampling::Sampled;
use crate::series::{Compressibility, buckets};
use crate::tally::{Base, Sums, Total, ratio};

/// The share of the entries at whose rate totals are made.
const SHARE: RatioPpm = RatioPpm(980_000);

/// An entry: its duration, the gap before it, and its two histograms.
type Entry = (u32, u32, Vec<u32>, Vec<u32>);

#[derive(Clone, Debug)]
struct Case {
    thresholds: Thresholds,
    grid: Grid,
    setup: Setup,
    series: Series,
}

/// Generates histograms with a varying best threshold: many small counts and few large ones.
fn histogram(len: usize) -> impl Strategy<Value = Vec<u32>> {
    let count = prop_oneof![4 => Just(0u32), 4 => 0u32..50, 2 => 0u32..5_000, 1 => 0u32..1 << 25];
    proptest::collection::vec(count, len)
}

fn cases() -> impl Strategy<Value = Case> {
    (2usize..=64).prop_flat_map(|n| {
        let entry =
            (prop_oneof![2 => Just(0u32), 17 => 1u32..600_000, 1 => any::<u32>()], 0u32..100_000, histogram(n + 1), histogram(n + 1));
        let ks = proptest::collection::vec(0u32..=1_000_000, 1..12);
        let ss = proptest::collection::vec(0u64..20_000_000, 1..6);
        let compressibility = (0u32..=1_000_000, 0u32..=1_000_000);
        let pool = (prop_oneof![2 => Just(0u64), 1 => 1u64..500_000, 2 => 500_000u64..40_000_000], any::<bool>(), any::<bool>());
        (proptest::collection::vec(entry, 0..80), ks, ss, 0u32..200_000, 0u8..40, compressibility, pool).prop_map(
            move |(entries, ks, ss, rate, minimum, compressibility, (half_life_ms, spikes, bound))| {
                let thresholds = Thresholds::log_spaced(n).unwrap();
                let grid = Grid::new(ks.into_iter().map(RatioPpm).collect(), ss.into_iter().map(Millis).collect()).unwrap();
                let setup = Setup {
                    promotion_rate_max: RatioPpm(rate),
                    minimum_cold_age: Age(minimum),
                    half_life_ms: Millis(half_life_ms),
                    spikes,
                    bound,
                    partial: bound,
                };
                let mut series = series_of(&thresholds, &entries);
                series.compressibility =
                    Compressibility { compressible: RatioPpm(compressibility.0), compressed: RatioPpm(compressibility.1) };
                Case { thresholds, grid, setup, series }
            },
        )
    })
}

/// Generates long histories under high percentiles, whose best threshold is mostly one of the first.
fn long_histories() -> impl Strategy<Value = Case> {
    let best = prop_oneof![16 => 0usize..3, 2 => 3usize..6, 1 => 6usize..9];
    let ks = proptest::collection::vec(prop_oneof![9 => 800_000u32..1_000_000, 1 => Just(1_000_000)], 1..9);
    let half_life_ms = prop_oneof![2 => Just(0u64), 1 => 2_000_000u64..20_000_000];
    (proptest::collection::vec(best, 300..700), ks, half_life_ms, any::<bool>()).prop_map(|(bests, ks, half_life_ms, spikes)| {
        let thresholds = Thresholds::log_spaced(8).unwrap();
        // One page is promoted at the ages up to the best threshold, which the objective does not permit.
        let promotions = |best: usize| (0..9).map(|bucket| u32::from(bucket == best)).collect();
        let entry = |best| (60_000, 0, promotions(best), vec![10; 9]);
        let series = series_of(&thresholds, &bests.into_iter().map(entry).collect::<Vec<_>>());
        let grid = Grid::new(ks.into_iter().map(RatioPpm).collect(), vec![Millis::ZERO]).unwrap();
        let setup = Setup { half_life_ms: Millis(half_life_ms), spikes, ..Setup::new(RatioPpm(2_000)) };
        Case { thresholds, grid, setup, series }
    })
}

fn series_of(thresholds: &Thresholds, entries: &[Entry]) -> Series {
    let mut series = Series::new(thresholds);
    series.start_unix_ms = UnixMillis(1_000_000);
    let mut age_ms = 0;
    for (window_ms, gap_ms, promotions, cold) in entries {
        age_ms += u64::from(*window_ms) + u64::from(*gap_ms) + 1;
        let widen = |list: &[u32]| list.iter().map(|&n| u64::from(n)).collect::<Vec<_>>();
        series.push(Millis(age_ms), Millis(u64::from(*window_ms)), &widen(promotions), &widen(cold)).unwrap();
    }
    series
}

/// Returns the thresholds and the histogram of an agent with this minimum age, which merges the younger buckets.
fn folded(thresholds: &Thresholds, first: usize, sums: &[u32]) -> (Thresholds, Histogram) {
    let ages: Vec<u8> = thresholds.as_slice()[first..].iter().map(|age| age.0).collect();
    let buckets: Vec<u64> = buckets(sums).map(u64::from).collect();
    let young = buckets[..=first].iter().sum();
    let list: Vec<u64> = std::iter::once(young).chain(buckets[first + 1..].iter().copied()).collect();
    (Thresholds::try_from(ages).unwrap(), Histogram::try_from(list).unwrap())
}

/// Replays the entries of one pair through the controller of the agent.
fn agent(case: &Case, percentile: RatioPpm, warmup: Millis) -> Vec<Step> {
    let first = case.setup.first(&case.thresholds).unwrap();
    let Setup { promotion_rate_max, half_life_ms, spikes, bound, partial, .. } = case.setup;
    let params = Params {
        promotion_rate_max,
        percentile,
        warmup_ms: Millis(warmup.0),
        half_life_ms: Millis(half_life_ms.0),
        spikes,
        bound,
        partial,
        returns: false,
        mean: false,
    };
    let mut state = State::default();
    let rows = case.series.rows().map(|row| {
        let (thresholds, cold) = folded(&case.thresholds, first, row.cold);
        let (_, promotions) = folded(&case.thresholds, first, row.promotions);
        let window_ms = row.window_ms.0;
        let input = Input {
            job_age_ms: Millis(row.age_ms.0),
            window_ms: Millis(window_ms),
            cold,
            resident: cold,
            promotions,
            returned: None,
            allowance: None,
            trial_max: None,
            sample: None,
            reach: None,
            veto: None,
        };
        let (next, step) = step(&params, &thresholds, &state, &input);
        state = next;
        step
    });
    rows.collect()
}

/// Computes the totals of one pair entry by entry, with the agent's thresholds.
fn one_by_one(case: &Case, steps: &[Step]) -> (Sums, u64) {
    let compressibility = case.series.compressibility;
    let (mut sums, mut on) = (Sums::default(), 0);
    for (row, step) in case.series.rows().skip(1).zip(steps) {
        let warm = step.decision != Decision::Hold { reason: Hold::WarmingUp };
        let Some(threshold) = step.threshold.filter(|_| warm && row.window_ms > Millis::ZERO) else { continue };
        let index = case.thresholds.as_slice().iter().position(|&age| age == threshold).unwrap();
        let at_or_above = |list: &[u32]| buckets(list).skip(index + 1).map(u64::from).sum::<u64>();
        let stored = compressibility.compressible.share_of(at_or_above(row.cold));
        let window = u128::from(row.window_ms.0);
        sums.stored_page_ms += u128::from(stored) * window;
        sums.pool_page_ms += u128::from(compressibility.compressed.share_of(stored)) * window;
        sums.promotions += u128::from(at_or_above(row.promotions));
        on += 1;
    }
    (sums, on)
}

fn totals(case: &Case) -> Vec<Total> {
    totals_at(case, SHARE)
}

fn totals_at(case: &Case, share: RatioPpm) -> Vec<Total> {
    let mut tally = Tally::new(&case.grid);
    if let Some(mut replay) = Replay::new(&case.grid, &case.setup, &case.thresholds) {
        replay.job(&case.series, &mut tally);
    }
    tally.finish(&case.grid, share)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn thresholds_agree_with_the_agent_in_every_entry(case in cases()) {
        let first = case.setup.first(&case.thresholds);
        // An agent has at least two thresholds.
        prop_assume!(first.is_some_and(|first| case.thresholds.len() - first >= 2));
        let mut replay = Replay::new(&case.grid, &case.setup, &case.thresholds).unwrap();
        let mut observed = Vec::new();
        let mut tally = Tally::new(&case.grid);
        replay.job_observed(&case.series, &mut tally, &mut |_, spans, warm| observed.push((spans.to_vec(), warm)));
        let totals = tally.finish(&case.grid, SHARE);
        let pairs = case.grid.percentiles().iter().enumerate()
            .flat_map(|(k, &percentile)| case.grid.warmups().iter().enumerate().map(move |(s, &warmup)| (k, percentile, s, warmup)));
        for ((k, percentile, s, warmup), total) in pairs.zip(&totals) {
            let steps = agent(&case, percentile, warmup);
            for (step, (spans, warm)) in steps.iter().zip(&observed) {
                let threshold = spans.iter().find(|span| span.percentiles.contains(&k)).and_then(|span| case.thresholds.get(span.threshold));
                prop_assert_eq!(threshold, step.threshold);
                let warming = step.decision == Decision::Hold { reason: Hold::WarmingUp };
                let known = step.decision != Decision::Hold { reason: Hold::NoHistory };
                prop_assert!(!known || warming == (*warm <= s));
            }
            let (sums, on) = one_by_one(&case, &steps);
            prop_assert_eq!((total.percentile, total.warmup, total.sums, total.entries_on), (percentile, warmup, sums, on));
        }
    }

    #[test]
    fn bests_that_change_no_threshold_are_counted(case in long_histories()) {
        let mut replay = Replay::new(&case.grid, &case.setup, &case.thresholds).unwrap();
        let (mut tally, mut observed) = (Tally::new(&case.grid), Vec::new());
        replay.job_observed(&case.series, &mut tally, &mut |_, spans, _| observed.push(spans.to_vec()));
        for (k, &percentile) in case.grid.percentiles().iter().enumerate() {
            for (step, spans) in agent(&case, percentile, Millis::ZERO).iter().zip(&observed) {
                let threshold = spans.iter().find(|span| span.percentiles.contains(&k)).and_then(|span| case.thresholds.get(span.threshold));
                prop_assert_eq!(threshold, step.threshold);
            }
        }
    }

    #[test]
    fn any_split_of_the_work_gives_the_same_totals(case in cases(), jobs in 1usize..6) {
        prop_assume!(case.setup.first(&case.thresholds).is_some());
        let mut replay = Replay::new(&case.grid, &case.setup, &case.thresholds).unwrap();
        let mut whole = Tally::new(&case.grid);
        let mut parts = Tally::new(&case.grid);
        for _ in 0..jobs {
            replay.job(&case.series, &mut whole);
            let mut part = Tally::new(&case.grid);
            replay.job(&case.series, &mut part);
            // Merged in the opposite order.
            part.merge(&parts);
            parts = part;
        }
        prop_assert_eq!(&whole, &parts);
        prop_assert_eq!(whole.finish(&case.grid, SHARE), parts.finish(&case.grid, SHARE));
    }
}

/// Returns a job with thresholds at one and four scans, and entries of one minute with a working set of a million pages.
fn job(promotions: &[[u32; 3]]) -> Case {
    let thresholds = Thresholds::try_from(vec![1, 4]).unwrap();
    let entries: Vec<Entry> = promotions.iter().map(|list| (60_000, 0, list.to_vec(), vec![1_000_000, 600, 300])).collect();
    let mut series = Series::new(&thresholds);
    series.compressibility = Compressibility { compressible: RatioPpm(500_000), compressed: RatioPpm(200_000) };
    for (index, (window_ms, _, promotions, cold)) in entries.iter().enumerate() {
        let widen = |list: &[u32]| list.iter().map(|&n| u64::from(n)).collect::<Vec<_>>();
        series.push(Millis((index as u64 + 1) * 60_000), Millis(u64::from(*window_ms)), &widen(promotions), &widen(cold)).unwrap();
    }
    let grid = Grid::new(vec![RatioPpm(500_000), RatioPpm::ONE], vec![Millis::ZERO, Millis(120_000)]).unwrap();
    let setup = Setup::new(RatioPpm(2_000));
    Case { thresholds, grid, setup, series }
}

#[test]
fn a_decision_applies_to_the_next_entry() {
    // Bests: 1, 1, 4, 1. The third entry promotes 3,000 pages of an age of 1 to 3 scans, which is 0.3 % of the
    // working set.
    let case = job(&[[9, 0, 0], [9, 1_000, 0], [9, 3_000, 100], [9, 0, 500]]);
    let totals = totals(&case);
    let minute = 60_000u128;
    let check = |index: usize, expected: (u32, u64), stored: u128, promotions: u128, on: u64| {
        let total = &totals[index];
        assert_eq!((total.percentile, total.warmup), (RatioPpm(expected.0), Millis(expected.1)));
        assert_eq!((total.sums.stored_page_ms, total.sums.promotions, total.entries_on), (stored * minute, promotions, on));
        assert_eq!(total.sums.pool_page_ms, stored / 5 * minute);
    };
    // Entries 2 and 3 under a threshold of one scan; entry 4 under four, by the rule for spikes.
    check(0, (500_000, 0), 450 + 450 + 150, 1_000 + 3_100 + 500, 3);
    check(2, (1_000_000, 0), 450 + 450 + 150, 1_000 + 3_100 + 500, 3);
    check(1, (500_000, 120_000), 450 + 150, 3_100 + 500, 2);
    assert_eq!(
        totals[0].base,
        Base {
            jobs: 1,
            jobs_assumed: 0,
            entries: 4,
            used_page_ms: 4 * 1_000_900 * minute,
            cold_page_ms: 4 * 900 * minute,
            cold_accesses: 1_000 + 3_100 + 500,
            start_unix_ms: UnixMillis::EPOCH,
            end_unix_ms: UnixMillis(240_000),
            sampled: Sampled::default(),
        }
    );
    assert!((totals[0].coverage() - ratio(1_050, 3_600)).abs() < 1e-12);
    // The highest of three rates is 3,100 of a million, reported as the upper edge of its bin.
    let highest = totals[0].rates.on.unwrap();
    assert!((0.0031..0.0031 * 1.008).contains(&highest), "{highest}");
    // The first entry has no far memory and counts as a rate of zero among all four.
    assert_eq!(totals[0].rates.tail, totals[0].rates.on);
    let at = |share| totals_at(&case, RatioPpm(share))[0].rates;
    assert_eq!(at(340_000).on.map(|rate| rate > 0.000_9), Some(true));
    assert_eq!(at(250_000).all, Some(rates::upper_edge(0)));
}

#[test]
fn outcomes_that_the_tracker_did_not_resolve_are_counted() {
    // The same series as above: its thresholds in effect are 1, 1 and, by the rule for spikes, 4 scans.
    let check = |resolved_to: u8, expected: [u128; 2]| {
        let mut case = job(&[[9, 0, 0], [9, 1_000, 0], [9, 3_000, 100], [9, 0, 500]]);
        let mut series = Series::new(&case.thresholds);
        for row in case.series.rows() {
            series.push_row(row.age_ms, &row).unwrap();
            series.set_origin("lru_gen", Age(resolved_to), 0);
        }
        case.series = series;
        let totals = totals(&case);
        assert_eq!([0, 1].map(|index| totals[index].sums.unresolved), expected, "{resolved_to}");
        assert_eq!(totals[0].answers(), expected[0] < 3);
    };
    check(4, [0, 0]);
    check(3, [1, 1]);
    check(1, [1, 1]);
    // Unknown.
    check(0, [0, 0]);
}

#[test]
fn a_series_with_other_thresholds_is_ignored() {
    let case = job(&[[1, 2, 3]; 4]);
    let wider = Thresholds::log_spaced(8).unwrap();
    let mut tally = Tally::new(&case.grid);
    Replay::new(&case.grid, &case.setup, &wider).unwrap().job(&case.series, &mut tally);
    assert_eq!(tally, Tally::new(&case.grid));
}
