//! Replay identity of every controller, as `golden.rs` for `cold_age`: recorded journals give the same decisions, and each
//! altered parameter changes at least one of them.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;

use agent::controllers::tiering::decide::TieringStart;
use agent::journal::{self, JobRecord, Record};
use agent::replay;
use units::{Bytes, Millis, RatioPpm};

/// A 6.12 kernel with idle page tracking: jobs under `auto`, `pressure` (incompressible) and `background`, a bundle that comes
/// into effect, hints, and an agent that is killed and started again. Recorded by the lab's scenario `golden_journals`.
const POLICIES: &str = "journal-6.12-idle-policies.jsonl";

/// The same kernel with a slow memory node: a job under `slowdown` whose accesses change. Recorded by the same scenario.
const SLOWDOWN: &str = "journal-6.12-idle-slowdown.jsonl";

/// Version 8 of the records, from a fake machine: a job under `auto` with `writeback.enabled`, and decisions of each kind. Recorded by
/// `UPDATE_JOURNAL=1 cargo test -p thermocline-agent --lib decisions_of_each_kind`.
const WRITEBACK: &str = "journal-v8-writeback.jsonl";

/// Version 3 of the records, from a fake machine: a job under policy `auto`.
const VERSION_3: &str = "journal-v3.jsonl";

fn read(file: &str) -> Vec<Record> {
    journal::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file)).unwrap()
}

/// The number of decisions by controller; all of them are the recorded ones.
fn replayed(file: &str) -> Vec<(&'static str, usize)> {
    let replay = replay::replay(&read(file));
    assert_eq!((replay.skipped, &replay.differing), (0, &vec![]), "{file}");
    replay.controllers.into_iter().collect()
}

/// Replays a journal after a change to every job's starting record.
fn check(file: &str, what: &str, change: impl Fn(&mut JobRecord)) {
    let mut records = read(file);
    for record in &mut records {
        if let Record::Job(job) = record {
            change(job);
        }
    }
    assert_ne!(records, read(file), "{file}, {what}: nothing was changed");
    assert!(!replay::replay(&records).differing.is_empty(), "{file}, {what}: no decision differs");
}

/// Checks each parameter of the pressure controller.
fn check_pressure(file: &str) {
    let pressure = |what: &str, change: &dyn Fn(&mut policy::pressure::Params)| {
        check(file, what, |job| {
            if let Some(start) = &mut job.pressure {
                change(&mut start.params);
            }
        });
    };
    pressure("ratio", &|params| params.ratio = RatioPpm(params.ratio.0 * 2));
    pressure("stall_target", &|params| params.stall_target = RatioPpm(params.stall_target.0 / 50));
    pressure("io_stall_target", &|params| params.io_stall_target = RatioPpm(params.io_stall_target.0 / 500));
    pressure("step_max", &|params| params.step_max = RatioPpm(params.step_max.0 / 20));
    pressure("floor", &|params| params.floor = Bytes::mib(1 << 20));
    pressure("warmup", &|params| params.warmup_ms += Millis(60_000));
}

#[test]
fn records_of_version_3_read_and_replay() {
    assert_eq!(replayed(VERSION_3), [("background", 12), ("cold_age", 12), ("pressure", 24)]);
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(VERSION_3)).unwrap();
    for (line, record) in text.lines().zip(read(VERSION_3)) {
        assert_eq!(serde_json::to_string(&record).unwrap(), line, "written as it was read");
    }
}

#[test]
fn any_altered_parameter_of_version_3_changes_a_decision() {
    check_pressure(VERSION_3);
    check(VERSION_3, "settle", |job| {
        if let Some(start) = &mut job.background {
            start.params.settle_ms += Millis(600_000);
        }
    });
}

#[test]
fn the_journals_of_all_controllers_replay() {
    let policies = replayed(POLICIES);
    let controllers: Vec<_> = policies.iter().map(|(name, _)| *name).collect();
    assert_eq!(controllers, ["background", "cold_age", "endurance", "pressure", "tiering"]);
    assert!(policies.iter().all(|(_, count)| *count >= 10), "{policies:?}");
    let slowdown = replayed(SLOWDOWN);
    assert!(slowdown.iter().any(|(name, count)| *name == "slowdown" && *count >= 4), "{slowdown:?}");
    for file in [POLICIES, SLOWDOWN] {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file)).unwrap();
        for (line, record) in text.lines().zip(read(file)) {
            let written = serde_json::to_string(&record).unwrap();
            // Since version 6, tiers are written as rows.
            if line.contains("\"tier\"") {
                assert_eq!(serde_json::from_str::<Record>(&written).unwrap(), record, "read as it was written");
            } else {
                assert_eq!(written, line, "written as it was read");
            }
        }
    }
}

#[test]
fn the_journal_contains_a_bundle_and_a_restart() {
    let bundles: Vec<_> =
        read(POLICIES).iter().filter_map(|record| if let Record::Agent(agent) = record { Some(agent.bundle) } else { None }).collect();
    assert!(bundles.contains(&0) && bundles.contains(&1) && bundles.len() >= 3, "{bundles:?}");
}

#[test]
fn any_altered_parameter_of_pressure_changes_a_decision() {
    check_pressure(POLICIES);
}

#[test]
fn any_altered_parameter_of_background_changes_a_decision() {
    let background = |what: &str, change: &dyn Fn(&mut policy::background::Params)| {
        check(POLICIES, what, |job| {
            if let Some(start) = &mut job.background {
                change(&mut start.params);
            }
        });
    };
    background("settle", &|params| params.settle_ms += Millis(600_000));
    background("pressure_max", &|params| params.pressure_max = RatioPpm(0));
    background("available_min", &|params| params.available_min = RatioPpm(999_999));
    background("idle", &|params| params.idle_ms = Millis(1));
    background("prefetch", &|params| params.prefetch = !params.prefetch);
}

#[test]
fn any_altered_parameter_of_tiering_changes_a_decision() {
    let tiering = |what: &str, change: &dyn Fn(&mut TieringStart)| {
        check(POLICIES, what, |job| {
            if let Some(start) = &mut job.tiering {
                change(start);
            }
        });
    };
    tiering("compressed_max", &|start| start.params.compressed_max = RatioPpm(1));
    tiering("latency_max", &|start| start.params.latency_max_us = 1);
    tiering("swap_cost", &|start| start.params.swap_cost = RatioPpm(1_000_000));
    tiering("incompressible.ratio", &|start| start.incompressible.ratio_max = RatioPpm(1));
    tiering("incompressible.share", &|start| start.incompressible.share_max = RatioPpm(0));
    tiering("incompressible.retry", &|start| start.incompressible.retry_ms = Millis(1));
    tiering("bytes_per_day", &|start| start.writes.params.bytes_per_day = Bytes(1));
    tiering("burst", &|start| start.writes.params.burst = Bytes(start.writes.params.burst.0 / 2));
}

#[test]
fn any_altered_parameter_of_the_machines_write_budget_changes_a_decision() {
    for (what, params) in [
        ("bytes_per_day", policy::endurance::Params { bytes_per_day: Bytes(1), burst: Bytes(1 << 29) }),
        ("burst", policy::endurance::Params { bytes_per_day: Bytes(1 << 40), burst: Bytes(1 << 20) }),
    ] {
        let mut records = read(POLICIES);
        for record in &mut records {
            if let Record::Agent(agent) = record
                && let Some(writes) = &mut agent.writes
            {
                writes.params = params;
            }
        }
        assert!(!replay::replay(&records).differing.is_empty(), "{what}: no decision differs");
    }
}

#[test]
fn writeback_replays_and_any_altered_parameter_changes_a_decision() {
    assert_eq!(replayed(WRITEBACK), [("writeback", 9)]);
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(WRITEBACK)).unwrap();
    for (line, record) in text.lines().zip(read(WRITEBACK)) {
        assert_eq!(serde_json::to_string(&record).unwrap(), line, "written as it was read");
    }
    let writeback = |what: &str, change: &dyn Fn(&mut policy::writeback::Params)| {
        check(WRITEBACK, what, |job| {
            if let Some(start) = &mut job.writeback {
                change(&mut start.params);
            }
        });
    };
    writeback("after_min", &|params| params.after_min_ms = Millis(params.after_min_ms.0 * 2));
    writeback("period_max", &|params| params.pages_max = units::Pages(1));
}

#[test]
fn an_altered_observation_of_writeback_changes_a_decision() {
    let writeback = |what: &str, change: &dyn Fn(&mut policy::writeback::Input)| {
        let mut records = read(WRITEBACK);
        for record in &mut records {
            if let Record::Writeback(period) = record {
                change(&mut period.input);
            }
        }
        assert!(!replay::replay(&records).differing.is_empty(), "{what}: no decision differs");
    };
    writeback("threshold", &|input| input.threshold_ms = None);
    writeback("returns", &|input| input.returned = units::Pages(input.returned.0 * 100_000));
    writeback("spilled", &|input| input.spilled = false);
    writeback("obstacle", &|input| input.obstacle = None);
    writeback("stall target", &|input| input.stall_target = RatioPpm(0));
}

#[test]
fn any_altered_parameter_of_slowdown_changes_a_decision() {
    let slowdown = |what: &str, change: &dyn Fn(&mut policy::slowdown::Params)| {
        let mut records = read(SLOWDOWN);
        for record in &mut records {
            if let Record::Slow(period) = record {
                change(&mut period.params);
            }
        }
        assert!(!replay::replay(&records).differing.is_empty(), "{what}: no decision differs");
    };
    slowdown("slowdown", &|params| params.slowdown = RatioPpm(params.slowdown.0 / 2));
    slowdown("latency", &|params| params.latency_ns *= 2);
    slowdown("sample", &|params| params.sample = RatioPpm(1_000));
}
