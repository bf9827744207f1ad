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
        warmup_ms: Millis(0),
    };
    Setup { controller: Controller::Pressure(params, Millis(6_000)), latency_ns: LATENCY_NS, page_bytes: Bytes(4096), compressed: false }
}

fn slowdown_setup(slowdown: u32) -> Setup {
    let params = policy::slowdown::Params {
        slowdown: RatioPpm(slowdown),
        latency_ns: 1_000,
        sample: RatioPpm(50_000),
        bounds: policy::slowdown::bounds::Bounds::default(),
    };
    Setup { controller: Controller::Slowdown(params, Millis(30_000)), latency_ns: 1_000, page_bytes: Bytes(4096), compressed: false }
}

/// Returns entries of five minutes, all alike.
fn series(entries: u64, promotions: &[u64], cold: &[u64]) -> Series {
    let mut series = Series::new(&Thresholds::try_from(vec![1, 4, 10]).unwrap());
    for entry in 1..=entries {
        series.push(Millis(entry * 300_000), Millis(300_000), promotions, cold).unwrap();
    }
    series
}

fn waits(setup: Setup, series: &Series) -> Waits {
    let mut waits = Waits::new(setup);
    waits.job(&Label::default(), series);
    waits
}

#[test]
fn the_curve_maps_pages_to_accesses_and_back() {
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
fn pressure_offloads_pages_without_accesses_at_its_ratio() {
    // Half of the job is never accessed: 0.05 % of the resident pages per 6 s are about 2.5 % of the job in an entry.
    let dead = series(1, &[0, 0, 0, 0], &[10_000, 0, 0, 10_000]);
    let first = waits(pressure_setup(1_000), &dead);
    let mean = first.far_page_ms / first.window_ms;
    assert!((220..=260).contains(&mean), "{mean}");
    // The hot half is accessed all the time. After a day the idle half is offloaded, and nothing else.
    let job = series(288, &[2_000_000, 0, 0, 0], &[10_000, 0, 0, 10_000]);
    let day = waits(pressure_setup(1_000), &job);
    let last = day.far_page_ms / day.window_ms;
    assert!((8_000..=10_100).contains(&last), "{last}");
    assert!(day.lost_mean() <= 0.001, "{}", day.lost_mean());
}

#[test]
fn slowdown_stays_within_its_budget_and_places_one_sample_per_period() {
    // 3 % at 1 us allow 30,000 accesses per second: 9 million in an entry.
    let job = series(4, &[40_000_000, 8_000_000, 4_000_000, 1_000_000], &[10_000, 4_000, 4_000, 2_000]);
    let waits = waits(slowdown_setup(30_000), &job);
    // Pages at or above the second threshold have 5 million accesses; half of the pages of the first threshold fit in
    // the budget. Ten samples of a twentieth are half of the job: all is placed after one entry.
    assert_eq!(waits.far_page_ms / 300_000, 4_000 + 3 * 8_000);
    // Three entries at the budget; the first has the 4,000 oldest pages, with half of the second threshold's accesses.
    let lost = (3.0 * 9.0 + 3.0) / 4.0 / 300.0;
    assert!((waits.lost_mean() - lost).abs() < 1e-6, "{} for {lost}", waits.lost_mean());
    assert!(waits.lost(RatioPpm::ONE).unwrap() <= 0.0303);
    // Almost nothing of a uniformly hot job is placed.
    let hot = series(4, &[600_000_000, 0, 0, 0], &[20_000, 0, 0, 0]);
    assert!(self::waits(slowdown_setup(30_000), &hot).coverage().abs() < f64::EPSILON);
}

#[test]
fn slowdown_places_parts_of_a_sample_in_entries_shorter_than_a_period() {
    // A twentieth of 20,000 pages is sampled in 30 s, a third of it in 10 s.
    let mut job = Series::new(&Thresholds::try_from(vec![1, 4, 10]).unwrap());
    (1..=3).for_each(|entry| job.push(Millis(entry * 10_000), Millis(10_000), &[0u64; 4], &[10_000, 0, 0, 10_000]).unwrap());
    let waits = waits(slowdown_setup(30_000), &job);
    assert_eq!(waits.far_page_ms / 10_000, 166 + 499 + 832, "0 to 333, to 666 and to 999");
}

proptest! {
    #[test]
    fn a_larger_budget_places_more_pages(
        rows in prop::collection::vec((prop::array::uniform4(0u64..1 << 22), prop::array::uniform4(0u64..1 << 16)), 1..12),
        low in 0u32..50_000,
        more in 0u32..50_000,
    ) {
        let mut series = Series::new(&Thresholds::try_from(vec![1, 4, 10]).unwrap());
        for (index, (promotions, cold)) in rows.iter().enumerate() {
            series.push(Millis((index as u64 + 1) * 300_000), Millis(300_000), promotions, cold).unwrap();
        }
        let [less, more] = [low, low + more].map(|slowdown| waits(slowdown_setup(slowdown), &series));
        prop_assert!(less.far_page_ms <= more.far_page_ms && more.far_page_ms <= more.used_page_ms);
        prop_assert!(less.lost_mean() <= f64::from(low) / 1e6 + 1e-12, "{} for {low}", less.lost_mean());
        let pressure_state = waits(pressure_setup(low), &series);
        prop_assert!(pressure_state.far_page_ms <= pressure_state.used_page_ms);
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
