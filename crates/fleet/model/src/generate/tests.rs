use std::num::NonZero;

use super::*;
use crate::fleet::{By, Model, all, run};
use crate::grid::{Grid, Setup};
use crate::series::buckets;
use crate::survey::Survey;

fn fleet(seed: u64, jobs: u64) -> Fleet {
    Fleet::new(seed, jobs, 1, Thresholds::log_spaced(32).unwrap())
}

/// A job: label, start, compressibility, promotions and cold ages.
type Job = (Label, UnixMillis, Compressibility, Vec<u32>, Vec<u32>);

/// Returns the jobs of a slot, in order.
fn slot(fleet: &Fleet, slot: u64) -> Vec<Job> {
    let mut jobs = Vec::new();
    fleet.slot(slot, &mut Series::new(fleet.thresholds()), &mut |label, series| {
        let promotions = series.rows().flat_map(|row| buckets(row.promotions)).collect();
        let cold = series.rows().flat_map(|row| buckets(row.cold)).collect();
        jobs.push((label.clone(), series.start_unix_ms, series.compressibility, promotions, cold));
    });
    jobs
}

#[test]
fn the_same_seed_gives_the_same_fleet() {
    assert_eq!(slot(&fleet(1, 50), 3), slot(&fleet(1, 50), 3));
    assert_ne!(slot(&fleet(1, 50), 3), slot(&fleet(2, 50), 3));
    assert_ne!(slot(&fleet(1, 50), 3), slot(&fleet(1, 50), 4));
}

#[test]
fn the_fleet_does_not_depend_on_the_machine() {
    // A hash of all pages and accesses, computed once: no step may depend on the machine's mathematical library.
    let mut sum = 0u64;
    for index in 0..10 {
        for (_, _, compressibility, promotions, cold) in slot(&fleet(1, 50), index) {
            let counts = promotions.iter().chain(&cold).chain([&compressibility.compressed.0, &compressibility.compressible.0]);
            sum = counts.fold(sum, |sum, &n| sum.rotate_left(5).wrapping_mul(31).wrapping_add(u64::from(n)));
        }
    }
    assert_eq!(sum, 13_928_782_598_020_925_801);
}

#[test]
fn histograms_are_consistent_with_the_age_of_the_job() {
    let fleet = fleet(1, 200);
    let mut followed_by_another = 0;
    for index in 0..100 {
        let jobs = slot(&fleet, index);
        followed_by_another += usize::from(jobs.len() > 1);
        for (place, (_, _, compressibility, promotions, cold)) in jobs.iter().enumerate() {
            assert!(compressibility.compressible <= RatioPpm::ONE && compressibility.compressed.0 > 160_000);
            // A job that has just started has no old pages: no page is older than its job.
            if place > 0 {
                assert!(cold[3..33].iter().all(|&n| n == 0), "{:?}", &cold[..33]);
            }
            for (entry, rows) in cold.chunks(33).zip(promotions.chunks(33)).enumerate() {
                let pages: u64 = rows.0.iter().map(|&n| u64::from(n)).sum();
                assert!(pages > 0 || entry < 3);
                // In two and a half scans no page is promoted three times.
                let returned: u64 = rows.1[1..].iter().map(|&n| u64::from(n)).sum();
                assert!(returned <= 3 * pages);
            }
        }
    }
    assert!(followed_by_another > 10);
}

#[test]
fn totals_do_not_depend_on_the_number_of_threads() {
    let fleet = fleet(7, 120);
    let grid = Grid::new(vec![RatioPpm(900_000), RatioPpm(980_000), RatioPpm::ONE], vec![Millis::ZERO, Millis(600_000)]).unwrap();
    let setups = [Setup::new(RatioPpm(2_000))];
    let on = |threads| {
        let threads = NonZero::new(threads).unwrap();
        let model =
            run(&fleet, &all(&fleet), threads, || Model::new(&grid, &setups, fleet.thresholds(), By::Class).unwrap(), |_| {}).unwrap();
        (model.groups.clone(), model.whole())
    };
    let (groups, whole) = on(1);
    assert!(whole[0].base.jobs >= 120 && groups.len() > 3);
    assert_eq!((groups, whole), on(3));
}

#[test]
fn the_fleet_is_about_as_cold_as_published_fleets() {
    let fleet = fleet(1, 1_000);
    let survey = run(&fleet, &all(&fleet), NonZero::<usize>::MIN, Survey::default, |_| {}).unwrap();
    let check = |what: &str, share: f64, low: f64, high: f64| assert!((low..high).contains(&share), "{what}: {share}");
    check("cold at 120 s (32 %)", survey.fleet.cold_ratio(0), 0.27, 0.37);
    check("accessed per minute at 120 s (15 %)", survey.fleet.accessed_per_minute(0), 0.11, 0.19);
    check("coldest tenth of the jobs (43 %)", survey.cold_ratio_of_jobs(RatioPpm(900_000)).unwrap(), 0.36, 0.55);
    check("warmest tenth of the jobs (9 %)", survey.cold_ratio_of_jobs(RatioPpm(100_000)).unwrap(), 0.06, 0.13);
}
