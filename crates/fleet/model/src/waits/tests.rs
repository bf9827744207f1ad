use policy::thresholds::Thresholds;
use proptest::prelude::*;

use super::*;

const LATENCY_NS: u64 = 40_000;

fn pressure_setup(stall_target: u32) -> Setup {
    let params = pressure::Params {
        ratio: RatioPpm(500),
        stall_target: RatioPpm(stall_target),
        io_stall_target: RatioPpm(stall_target),
        step_max: RatioPpm(10_000),
        floor: Bytes(0),
        warmup_ms: 0,
    };
    Setup { controller: Controller::Pressure(params, 6_000), latency_ns: LATENCY_NS, page_bytes: 4096, compressed: false }
}

fn slowdown_setup(slowdown: u32) -> Setup {
    let params = policy::slowdown::Params { slowdown: RatioPpm(slowdown), latency_ns: 1_000, sample: RatioPpm(50_000) };
    Setup { controller: Controller::Slowdown(params, 30_000), latency_ns: 1_000, page_bytes: 4096, compressed: false }
}

/// Entries of five minutes, all alike.
fn series(entries: u64, promotions: &[u64], cold: &[u64]) -> Series {
    let mut series = Series::new(&Thresholds::try_from(vec![1, 4, 10]).unwrap());
    for entry in 1..=entries {
        series.push(entry * 300_000, 300_000, promotions, cold).unwrap();
    }
    series
}

fn waits(setup: Setup, series: &Series) -> Waits {
    let mut waits = Waits::new(setup);
    waits.job(&Label::default(), series);
    waits
}

#[test]
fn the_curve_goes_both_ways() {
    let series = series(1, &[1_000, 300, 80, 20], &[4_000, 300, 200, 500]);
    let curve = Curve::of(&series.rows().next().unwrap());
    let check = |pages, accesses| assert_eq!((curve.accesses(pages), curve.pages(accesses)), (accesses, pages));
    check(500, 20);
    check(600, 60);
    check(700, 100);
    check(1_000, 400);
    assert_eq!((curve.accesses(0), curve.accesses(250), curve.accesses(9_999), curve.pages(9_999)), (0, 10, 400, 1_000));
    let untouched = Curve::of(&self::series(1, &[9, 0, 0, 0], &[10, 0, 0, 100]).rows().next().unwrap());
    assert_eq!((untouched.accesses(100), untouched.pages(0)), (0, 100));
}

#[test]
fn pressure_takes_what_is_never_accessed_and_its_ratio_says_how_fast() {
    // Half of the job is dead: 0.05 % each 6 s of what is resident are about 2.5 % of the job in an entry.
    let dead = series(1, &[0, 0, 0, 0], &[10_000, 0, 0, 10_000]);
    let first = waits(pressure_setup(1_000), &dead);
    let mean = first.far_page_ms / first.window_ms;
    assert!((220..=260).contains(&mean), "{mean}");
    // The hot half is accessed all the time. A day later the dead half is gone, and no more.
    let job = series(288, &[2_000_000, 0, 0, 0], &[10_000, 0, 0, 10_000]);
    let day = waits(pressure_setup(1_000), &job);
    let last = day.far_page_ms / day.window_ms;
    assert!((8_000..=10_100).contains(&last), "{last}");
    assert!(day.lost_mean() <= 0.001, "{}", day.lost_mean());
}

#[test]
fn slowdown_stays_within_its_budget_and_places_a_sample_at_a_time() {
    // 3 % at 1 us allow 30,000 accesses per second: 9 million in an entry.
    let job = series(4, &[40_000_000, 8_000_000, 4_000_000, 1_000_000], &[10_000, 4_000, 4_000, 2_000]);
    let waits = waits(slowdown_setup(30_000), &job);
    // Those at or above the second threshold are accessed 5 million times; half of those of the first are within.
    // Ten samples of a twentieth make half of the job: all is there after one entry.
    assert_eq!(waits.far_page_ms / 300_000, 4_000 + 3 * 8_000);
    // Three entries at the budget; in the first, of the 4,000 oldest pages, half of the second threshold's accesses.
    let lost = (3.0 * 9.0 + 3.0) / 4.0 / 300.0;
    assert!((waits.lost_mean() - lost).abs() < 1e-6, "{} for {lost}", waits.lost_mean());
    assert!(waits.lost(RatioPpm::ONE).unwrap() <= 0.0303);
    // A job that is hot all over gets nothing placed worth the name.
    let hot = series(4, &[600_000_000, 0, 0, 0], &[20_000, 0, 0, 0]);
    assert!(self::waits(slowdown_setup(30_000), &hot).coverage().abs() < f64::EPSILON);
}

proptest! {
    #[test]
    fn more_is_placed_where_more_is_allowed(
        rows in prop::collection::vec((prop::array::uniform4(0u64..1 << 22), prop::array::uniform4(0u64..1 << 16)), 1..12),
        low in 0u32..50_000,
        more in 0u32..50_000,
    ) {
        let mut series = Series::new(&Thresholds::try_from(vec![1, 4, 10]).unwrap());
        for (index, (promotions, cold)) in rows.iter().enumerate() {
            series.push((index as u64 + 1) * 300_000, 300_000, promotions, cold).unwrap();
        }
        let [less, more] = [low, low + more].map(|slowdown| waits(slowdown_setup(slowdown), &series));
        prop_assert!(less.far_page_ms <= more.far_page_ms && more.far_page_ms <= more.used_page_ms);
        prop_assert!(less.lost_mean() <= f64::from(low) / 1e6 + 1e-12, "{} for {low}", less.lost_mean());
        let pressed = waits(pressure_setup(low), &series);
        prop_assert!(pressed.far_page_ms <= pressed.used_page_ms);
    }

    #[test]
    fn parts_add_up(jobs in prop::collection::vec(1u64..20, 1..6), split in 0usize..6) {
        let all: Vec<_> = jobs.iter().map(|&n| series(n, &[900, 50 * n, 7, n], &[4_000, 300 * n, 200, 500])).collect();
        for setup in [pressure_setup(1_000), slowdown_setup(30)] {
            let sum = |part: &[Series]| part.iter().fold(Waits::new(setup), |mut sum, job| { sum.job(&Label::default(), job); sum });
            let (left, right) = all.split_at(split.min(all.len()));
            let mut merged = sum(right);
            merged.merge(sum(left));
            prop_assert_eq!(merged, sum(&all));
        }
    }
}
