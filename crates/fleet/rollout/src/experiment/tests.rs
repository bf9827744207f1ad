use trace::{Figures, JobId};

use super::*;
use crate::evidence::MachineId;
use crate::random::normal;

#[test]
fn an_entry_belongs_to_a_group_if_all_terms_hold() {
    let check = |text: &str, expected: bool| {
        let group = Group::parse(text).unwrap();
        let id = JobId::new("eu-1", "web-17", "/j", "boot", 1);
        let figures = Figures { bundle_version: 7, ..Figures::default() };
        assert_eq!(group.holds(&EntryRef { id: &id, class: "batch", figures: &figures }), expected, "{text}");
        assert_eq!(group.to_string(), text);
    };
    check("bundle=7", true);
    check("bundle=0", false);
    check("cluster=eu-*,class=batch,machine=web-1?", true);
    check("cluster=eu-*,class=service", false);
    check("machine=db-*", false);
    check("hash=0..100%", true);
    let place = place_ppm("june", "web-17");
    check(&format!("hash=0%..{}%@june", f64::from(place.0) / 1e4), false);
    check(&format!("hash={}%..100%@june", f64::from(place.0) / 1e4), true);
}

#[test]
fn invalid_groups_are_rejected() {
    let check = |text: &str, piece: &str| {
        let error = Group::parse(text).unwrap_err();
        assert!(error.contains(piece), "{error}");
    };
    check("eu-1", "there are bundle=VERSION");
    check("colour=red", "there are bundle=VERSION");
    check("bundle=new", "version");
    check("cluster=[", "[");
    check("hash=50%", "two shares");
    check("hash=50%..20%", "two shares");
    check("hash=50%..120%", "two shares");
}

fn question(seed: u64) -> Question {
    let [a, b] = ["hash=0%..50%", "hash=50%..100%"].map(|text| Group::parse(text).unwrap());
    Question { a, b, from_unix_ms: UnixMillis::EPOCH, until_unix_ms: UnixMillis(u64::MAX), before_ms: Millis::ZERO, objective: 0.002, seed }
}

/// Returns machines of very different sizes and levels; those of group B stall more by `factor`.
fn fleet(machines: usize, factor: f64, seed: u64) -> Evidence {
    let random = &mut Rng::with_seed(seed);
    let mut evidence = Evidence::default();
    for at in 0..machines {
        let id = MachineId { cluster: "c".to_owned(), machine: format!("m-{at}") };
        let group = usize::from(random.bool());
        let mut slots = vec![Slot::default(); 3];
        let size = (0.5 * normal(random)).exp();
        let own = (0.4 * normal(random)).exp();
        for slot in [2, group] {
            let at = if slot == 1 { own * factor } else { own };
            let Slot { entries, sums, .. } = &mut slots[slot];
            *entries = 12;
            sums.time_ms = 1e6 * size;
            sums.memory_stall_us = 1e6 * size * at * (0.2 * normal(random)).exp();
            (0..30).for_each(|_| sums.rates.add(0.001 * at * (0.5 * normal(random)).exp()));
        }
        evidence.machines.insert(id, slots);
    }
    evidence
}

fn row(report: &Report, metric: &str) -> Row {
    report.rows.iter().find(|row| row.metric == metric).unwrap().clone()
}

/// In many experiments without a difference, 95 % of the intervals contain zero, and so does the noise.
#[test]
fn no_difference_is_found_where_there_is_none() {
    let (mut stalls, mut percentiles, mut noises) = (0, 0, 0);
    for seed in 0..200 {
        let report = report(&fleet(80, 1.0, seed), &question(seed)).unwrap();
        let [stall, percentile] = ["memory_stall", "promotion_rate_p98"].map(|metric| row(&report, metric));
        stalls += usize::from(stall.lower <= 0.0 && stall.upper >= 0.0);
        percentiles += usize::from(percentile.finding == Finding::WithinNoise);
        noises += usize::from(stall.difference.abs() <= stall.noise.unwrap());
    }
    println!("of 200: stall {stalls}, p98 {percentiles}, within noise {noises}");
    // 190, with three standard deviations of 3.1.
    assert!((181..=199).contains(&stalls), "{stalls}");
    assert!((178..=200).contains(&percentiles), "{percentiles}");
    assert!((178..=200).contains(&noises), "{noises}");
}

/// A known difference is inside its interval, exceeds the noise and is found.
#[test]
fn a_difference_is_found() {
    let (mut found, mut percentiles, mut covered) = (0, 0, 0);
    for seed in 0..60 {
        let report = report(&fleet(150, 1.5, seed), &question(seed)).unwrap();
        let [stall, percentile] = ["memory_stall", "promotion_rate_p98"].map(|metric| row(&report, metric));
        // The mean of `own`, and of the noise on it.
        let mean = 1e-3 * (0.4f64.powi(2) / 2.0 + 0.2f64.powi(2) / 2.0).exp();
        found += usize::from(stall.finding == Finding::Worse);
        covered += usize::from((stall.lower..=stall.upper).contains(&(0.5 * mean)));
        percentiles += usize::from(percentile.finding == Finding::Worse);
    }
    println!("of 60: stall found {found}, covered {covered}, p98 found {percentiles}");
    assert!(found >= 57 && covered >= 51 && percentiles >= 36, "{found} {covered} {percentiles}");
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let fleet = fleet(40, 1.2, 1);
    assert_eq!(report(&fleet, &question(1)).unwrap(), report(&fleet, &question(1)).unwrap());
    assert_ne!(report(&fleet, &question(1)).unwrap(), report(&fleet, &question(2)).unwrap());
}

#[test]
fn values_from_before_make_intervals_narrower() {
    let with = fleet(80, 1.0, 1);
    let mut without = with.clone();
    without.machines.values_mut().for_each(|slots| slots[2] = Slot::default());
    let width = |evidence: &Evidence| {
        let row = row(&report(evidence, &question(1)).unwrap(), "memory_stall");
        row.upper - row.lower
    };
    assert!(width(&with) < 0.8 * width(&without), "{} {}", width(&with), width(&without));
}

#[test]
fn too_few_machines_are_an_error() {
    let error = report(&fleet(3, 1.0, 1), &question(1)).unwrap_err().to_string();
    assert!(error.contains("machines in group hash="), "{error}");
}
