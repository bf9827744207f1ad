//! `thermocline rollout start` and what follows, as an operator meets it: a bundle's way to the machines of a small fleet.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;

use rollout::assignment::place_ppm;
use serde_json::Value;
use trace::Writer;
use units::Bytes;

use rollouts::program::{check, refused};
use rollouts::{SIGNED, json, published, since, traced};

mod rollouts;

#[test]
fn a_good_bundle_goes_all_the_way() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    published(at);
    let step = format!("rollout step {SIGNED} --trace traces");
    refused(at, &step, &["no rollout was started"]);
    refused(at, &format!("rollout start 8 {SIGNED}"), &["bundle 8 is not published; published are: 7"]);
    check(at, "rollout plan plan.toml", &["plan.toml is sound: 2 stages, 2 guards"]);
    std::fs::write(at.join("default.toml"), check(at, "rollout plan", &["qualification"])).unwrap();
    check(at, "rollout plan default.toml", &["default.toml is sound"]);
    let start = format!("rollout start 7 --plan plan.toml --id r {SIGNED}");
    check(at, &format!("{start} --dry-run"), &["dry run, nothing is written: rollout r of bundle 7 begins in first (30% of the machines)"]);
    check(at, "rollout list --store store --root root.json", &["nothing is assigned"]);
    check(at, &start, &["begins in first (30% of the machines)"]);
    refused(at, &start, &["rollout r of bundle 7 is running"]);
    check(at, "rollout list --store store --root root.json", &["rollout r, stage first: 30% follow bundle 7"]);

    check(at, &step, &["hold: evidence covers 0.0 h of 0.1 h", "0 machines with the bundle"]);
    let began = since(at);
    traced(at, "r", began - 1_800_000, 0, 0.0);
    traced(at, "r", began + 2_000, 300_000, 0.001);
    check(at, &format!("rollout pin --why inspection {SIGNED}"), &["running, pinned, in first"]);
    check(at, &step, &["hold: pinned in first", "100 % report it", "pass  stall"]);
    check(at, &format!("rollout resume {SIGNED}"), &["running, in first"]);
    check(at, &format!("{step} --dry-run"), &["dry run, nothing is written", "promote: to all"]);
    check(at, &step, &["promote: to all", "now in all (100% of the machines); published"]);
    check(at, "rollout list --store store --root root.json", &["stage all: 100% follow bundle 7", "40% held back"]);
    traced(at, "r", since(at) + 2_000, 600_000, 0.001);
    check(at, &step, &["finish: all stages are done"]);
    check(at, "rollout which m01 --store store --root root.json", &["follows bundle 7"]);
    let status =
        check(at, "rollout status --store store --root root.json", &["finished", "Pin by", "inspection", "promote: to all", "finish"]);
    assert!(!status.contains("publishes it again"), "{status}");
    check(at, &step, &["nothing to decide: finished"]);
    // Every step is a line with its evidence.
    let log = std::fs::read_to_string(at.join("store/log/r/00000005.json")).unwrap();
    assert!(log.contains("harm_lower") && log.contains("\"promote\"") && log.lines().count() == 1, "{log}");
    refused(at, &format!("rollout stop {SIGNED}"), &["it is finished"]);
    check(at, &format!("rollout rollback --why regret {SIGNED}"), &["rolled back"]);
    check(at, "rollout which m01 --store store --root root.json", &["follows its configuration file"]);
}

#[test]
fn a_bad_bundle_is_taken_back() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    published(at);
    check(at, &format!("rollout start 7 --plan plan.toml --id r {SIGNED}"), &[]);
    traced(at, "r", since(at) + 2_000, 300_000, 0.2);
    // The loop evaluates, rolls back, and exits.
    check(
        at,
        &format!("rollout run --every 1s {SIGNED} --trace traces"),
        &["roll back: stall: worse than allowed", "BREACH  stall", "rolled back"],
    );
    check(at, "rollout which m01 --store store --root root.json", &["follows its configuration file"]);
    refused(at, &format!("rollout resume {SIGNED}"), &["start a new rollout"]);
    // A manual assignment is corrected by the next evaluation.
    check(at, &format!("rollout assign --rollout r --bundle 7 --share 100% --control 0% {SIGNED}"), &[]);
    check(at, "rollout status --store store --root root.json", &["publishes it again"]);
    check(at, &format!("rollout step {SIGNED} --trace traces"), &["nothing to decide", "published"]);
    check(at, "rollout which m01 --store store --root root.json", &["follows its configuration file"]);
}

/// A generated fleet, of which those of the upper half by hash have so much more of their cold memory in far memory.
fn generated(at: &Path) {
    check(at, "model --generate 240 --days 1 --seed 3 --record plain", &["files below plain"]);
    let store = store::Store::open(at.join("plain").to_str().unwrap()).unwrap();
    for object in store.list(trace::EXTENSION).unwrap() {
        let read = trace::Trace::open(store.fetch(&object.path).unwrap().path()).unwrap();
        let mut writer = Writer::create(&at.join("changed").join(&object.path), *read.basis()).unwrap();
        for mut entry in read.rows().flat_map(|rows| rows.unwrap().entries().collect::<Vec<_>>()) {
            let share = if place_ppm("s", &entry.id.machine).0 < 500_000 { 30 } else { 40 };
            let cold: u64 = entry.cold_pages.iter().skip(1).sum();
            entry.figures.zswap_stored_bytes = Bytes(cold * 4096 * share / 100);
            writer.push(&entry).unwrap();
        }
        writer.finish().unwrap();
    }
}

#[test]
fn experiments_find_what_differs_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    generated(at);
    let row = |arguments: &str, metric: &str| {
        let report = json(at, &format!("experiment {arguments}"));
        let rows = report["rows"].as_array().unwrap();
        rows.iter().find(|row| row["metric"] == metric).unwrap_or_else(|| panic!("no {metric} in {report}")).clone()
    };
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap();
    // A/B: ten points more, and no other difference.
    let changed = row("--trace changed --a hash=0%..50%@s --b hash=50%..100%@s", "coverage");
    assert_eq!(changed["finding"], "better", "{changed}");
    assert!((number(&changed, "difference") - 0.1).abs() < 0.001 && number(&changed, "lower") > 0.09, "{changed}");
    check(at, "experiment --trace changed --a hash=0%..50%@s --b hash=50%..100%@s", &["B is better", "A/A noise", "+-"]);
    // A/A: other halves differ by chance only. At 95 %, four of ten are outside in one of a thousand sets of ten.
    let within = (0..10).filter(|salt| {
        let halves = format!("--trace plain --a hash=0%..50%@{salt} --b hash=50%..100%@{salt}");
        row(&halves, "cold")["finding"] == "within_noise"
    });
    let within = within.count();
    assert!(within >= 7, "{within} of 10");
    // One group of jobs against another, on the same machines.
    let classes = check(at, "experiment --trace plain --a class=service --b class=cache", &["machines are in both"]);
    assert!(classes.contains("cold"), "{classes}");
    refused(at, "experiment --trace plain --a class=service --b cluster=*", &["are in both groups"]);
    refused(at, "experiment --trace plain --a machine=none --b cluster=*", &["0 machines in group machine=none"]);
    refused(at, "experiment --trace plain --a colour=red --b cluster=*", &["there are bundle=VERSION"]);
    refused(at, "experiment --trace plain --a cluster=* --b class=web --from yesterday", &["2026-11-20T12:00:00Z"]);
}
