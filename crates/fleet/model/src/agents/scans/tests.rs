use policy::thresholds::Thresholds;
use units::Pages;

use super::super::input;
use super::*;
use crate::series::Series;

/// An entry of a job of five minutes, with these pages by bucket; in older buckets there are none.
fn entry(cold: &[u64], promotions: &[u64]) -> Input {
    let mut series = Series::new(&Thresholds::log_spaced(32).unwrap());
    let all = |pages: &[u64]| pages.iter().copied().chain(std::iter::repeat(0)).take(33).collect::<Vec<u64>>();
    series.push(Millis(900_000), Millis(300_000), &all(promotions), &all(cold)).unwrap();
    input(&series.rows().next().unwrap(), Millis(900_000), usize::MAX).unwrap()
}

fn division() -> Division {
    Division::new(Millis(100_000))
}

#[test]
fn the_accesses_of_an_entry_are_those_of_its_scans() {
    let promotions: Vec<u64> = (0..33).map(|at| at * at).collect();
    let entry = entry(&[1_000; 33], &promotions);
    let scans = Division { oldest: 32, ..division() }.divide(&entry);
    assert_eq!(scans.iter().map(|scan| scan.job_age_ms.0).collect::<Vec<_>>(), [700_000, 800_000, 900_000]);
    assert!(scans.iter().all(|scan| scan.window_ms == Millis(100_000) && scan.cold == entry.cold));
    for (at, &all) in promotions.iter().enumerate() {
        let of: Vec<u64> = scans.iter().map(|scan| scan.promotions.buckets()[at]).collect();
        assert_eq!(of.iter().sum::<u64>(), all);
        assert!(of.iter().all(|&count| count.abs_diff(all / 3) <= 30), "{of:?} of {all}");
    }
    let again = Division { oldest: 32, ..division() }.divide(&entry);
    assert!(again.iter().zip(&scans).all(|(again, scan)| again.promotions == scan.promotions), "chance is the same each time");
}

#[test]
fn no_scan_has_ages_that_it_did_not_reach() {
    // A job of which nothing is accessed: after scans 4, 5 and 6 they have these ages, and the mean has a third of them each.
    let mut division = Division { oldest: 3, ..division() };
    let scans = division.divide(&entry(&[50, 0, 0, 0, 100, 100, 100], &[9, 9, 9, 9, 9, 9, 9]));
    let cold: Vec<_> = scans.iter().map(|scan| scan.cold.buckets()[..8].to_vec()).collect();
    assert_eq!(cold[0], [50, 0, 0, 0, 300, 0, 0, 0]);
    assert_eq!(cold[1], [50, 0, 0, 0, 100, 200, 0, 0]);
    assert_eq!(cold[2], [50, 0, 0, 0, 100, 100, 100, 0]);
    assert_eq!(scans[0].promotions.at_or_above(4), Pages::ZERO);
    assert_eq!((scans[1].promotions.at_or_above(5), scans[2].promotions.buckets()[6]), (Pages::ZERO, 9));
    assert_eq!(division.oldest, 6);
    // A bucket of several ages, reached in the second scan.
    let mut reached = |oldest: u64| division.divide(&entry(&[50, 0, 0, 0, 0, 0, 300 - oldest, oldest], &[]));
    let oldest = |scans: Vec<Input>| scans.iter().map(|scan| super::oldest(&scan.cold)).collect::<Vec<_>>();
    assert_eq!(oldest(reached(200)), [6, 7, 7]);
    // What is as old as in the entry before is that old in each scan; what was all accessed has no older age.
    assert_eq!(oldest(reached(300)), [7, 7, 7]);
    assert_eq!(oldest(Division { oldest: 20, ..self::division() }.divide(&entry(&[50, 60], &[]))), [1, 1, 1]);
}

#[test]
fn an_entry_of_one_scan_is_that_scan() {
    let entry = entry(&[5, 4, 3, 2, 1], &[500, 400, 300, 200, 100]);
    let scans = Division::new(Millis(300_000)).divide(&entry);
    assert_eq!(scans.len(), 1);
    assert_eq!((scans[0].cold, scans[0].promotions, scans[0].window_ms), (entry.cold, entry.promotions, entry.window_ms));
}
