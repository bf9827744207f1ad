use std::num::NonZero;

use units::RatioPpm;

use super::*;
use crate::fleet::{self, By, Model};
use crate::generate::Fleet;
use crate::grid::{Grid, Setup};

const P: RatioPpm = RatioPpm(2_000);
const K: RatioPpm = RatioPpm(980_000);
/// As long as any entry: each is one scan.
const ENTRY: Millis = Millis(600_000);
const S: Millis = Millis(600_000);

#[test]
fn without_parts_far_memory_is_that_of_the_replay() {
    let thresholds = Thresholds::log_spaced(32).unwrap();
    let source = Fleet::new(7, 80, 2, thresholds);
    let grid = Grid::new(vec![K], vec![S]).unwrap();
    let two = NonZero::new(2).unwrap();
    for bound in [false, true] {
        let params = Params { bound, ..Params::new(P, K, S) };
        let setup = Setup { bound, ..Setup::new(P) };
        let open = || (Agents::new(params, thresholds, ENTRY), Model::new(&grid, &[setup], &thresholds, By::Fleet).unwrap());
        let (agents, model) = fleet::run(&source, &fleet::all(&source), two, open, |_| {}).unwrap();
        let total = &model.whole()[0].clone().finish(&grid, RatioPpm(980_000))[0];
        assert!(agents.far_page_ms > 0 && agents.part_page_ms == 0);
        assert_eq!((agents.far_page_ms, agents.pool_page_ms), (total.sums.stored_page_ms, total.sums.pool_page_ms), "bound: {bound}");
        assert_eq!(
            (agents.entries, agents.entries_on, agents.cold_page_ms),
            (total.base.entries, total.entries_on, total.base.cold_page_ms)
        );
    }
}

/// A job of 100,000 pages in use and 100,000 cold ones, of which `accesses` return in each entry of a minute, whatever their age.
fn at_random(thresholds: &Thresholds, accesses: u64) -> Series {
    let mut series = Series::new(thresholds);
    let mut cold = vec![0u64; thresholds.len() + 1];
    (cold[0], cold[thresholds.len()]) = (100_000, 100_000);
    let mut promotions = vec![0u64; thresholds.len() + 1];
    promotions[thresholds.len()] = accesses;
    for entry in 1..=2_000 {
        series.push(Millis(60_000 * entry), Millis(60_000), &promotions, &cold).unwrap();
    }
    series
}

fn replayed(params: Params, accesses: u64) -> Agents {
    let thresholds = Thresholds::log_spaced(32).unwrap();
    let mut agents = Agents::new(params, thresholds, ENTRY);
    agents.job(&Label::default(), &at_random(&thresholds, accesses));
    agents
}

#[test]
fn a_part_of_what_is_accessed_at_random_is_far() {
    // 200 promotions are permitted in a minute.
    let whole = Params { bound: true, ..Params::new(P, K, S) };
    let parts = Params { partial: true, ..whole };
    assert_eq!(replayed(whole, 600).far_page_ms, 0, "no threshold qualifies");
    let third = replayed(parts, 600);
    assert_eq!(third.part_page_ms, third.far_page_ms);
    let share = ratio(third.far_page_ms, third.cold_page_ms);
    assert!((0.15..=0.34).contains(&share), "{share}");
    let rate = third.rate().unwrap();
    assert!((0.0009..=0.002).contains(&rate), "{rate}");
    assert!(ratio(third.entries_over.into(), third.entries_on.into()) < 0.02);
}

#[test]
fn a_short_history_of_scans_permits_more_than_one_of_entries() {
    let thresholds = Thresholds::log_spaced(32).unwrap();
    // Two hours of entries of five minutes.
    let far = |scan_period| {
        let mut series = Series::new(&thresholds);
        let mut promotions = vec![0u64; 33];
        promotions[32] = 500;
        let mut cold = vec![0u64; 33];
        (cold[0], cold[32]) = (100_000, 100_000);
        (1..=24).for_each(|entry| series.push(Millis(300_000 * entry), Millis(300_000), &promotions, &cold).unwrap());
        let mut agents = Agents::new(Params { bound: true, partial: true, ..Params::new(P, K, S) }, thresholds, scan_period);
        agents.job(&Label::default(), &series);
        assert_eq!((agents.entries, agents.window_ms), (24, 24 * 300_000));
        agents.far_page_ms
    };
    let (by_entry, by_scan) = (far(ENTRY), far(Millis(100_000)));
    assert!(by_scan > by_entry, "{by_scan} {by_entry}");
}

#[test]
fn the_interval_contains_the_rate_of_further_traces() {
    // A generator of its own: rates of stretches vary by a third.
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut trace = || {
        let mut stretches = Stretches::default();
        (0..STRETCHES).for_each(|_| stretches.add(700 + random() % 600, 60_000 * 100_000));
        stretches
    };
    let within = (0..1_000).filter(|_| {
        let ([low, high], next) = (trace().interval().unwrap(), trace().rate().unwrap());
        (low..=high).contains(&next)
    });
    let within = within.count();
    assert!((930..=970).contains(&within), "{within} of 1000");
}

#[test]
fn too_few_entries_have_no_interval() {
    let mut stretches = Stretches::default();
    assert_eq!((stretches.rate(), stretches.interval()), (None, None));
    stretches.add(7, 60_000 * 700);
    assert_eq!((stretches.rate(), stretches.interval()), (Some(0.01), None));
    stretches.add(7, 60_000 * 700);
    assert_eq!(stretches.interval(), Some([0.01, 0.01]));
}
