//! Replay identity of every controller, as `golden.rs` for `cold_age`: recorded journals give the same decisions, and each
//! altered parameter changes at least one of them.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;

use agent::journal::{self, JobRecord, Record};
use agent::replay;
use units::{Bytes, RatioPpm};

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
    pressure("warmup", &|params| params.warmup_ms += 60_000);
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
            start.params.settle_ms += 600_000;
        }
    });
}
