//! Replay identity: a journal that an agent wrote, replayed through `policy` with its recorded parameters, gives the
//! same decisions. The offline model, the simulator and every later version of the agent rest on it.
//!
//! The journal is of a 6.12 kernel with idle page tracking: Redis under a load whose hot keys change twice,
//! beside a second Redis that is only observed; after 60 s the agent is killed and another one goes on. If a change
//! to `policy` makes this test fail, the policy decides differently now, and journals of older agents no longer
//! replay: that is a new journal version, not a new golden file.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::{Path, PathBuf};

use agent::journal::{self, JobRecord, Record};
use agent::replay;
use policy::cold_age::{Decision, Hold};
use policy::thresholds::Thresholds;
use units::{Millis, RatioPpm};

/// Periods in the golden journal: two jobs, 29 periods before the kill and 6 after.
const PERIODS: usize = 70;

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journal-6.12-idle.jsonl")
}

fn golden() -> Vec<Record> {
    journal::read(&path()).unwrap()
}

#[test]
fn the_same_inputs_give_the_same_decisions() {
    let replay = replay::replay(&golden());
    assert_eq!((replay.periods, replay.skipped, replay.differing), (PERIODS, 0, vec![]));
}

#[test]
fn the_journal_holds_what_makes_the_replay_worth_something() {
    let records = golden();
    let decided = |wanted: fn(&Decision) -> bool| {
        let of_period = |record: &&Record| matches!(record, Record::Period(period) if wanted(&period.step.decision));
        records.iter().filter(of_period).count()
    };
    let kinds = [
        decided(|d| matches!(d, Decision::Offload { .. })),
        decided(|d| matches!(d, Decision::Hold { reason: Hold::WarmingUp })),
        decided(|d| matches!(d, Decision::Hold { reason: Hold::NothingCold })),
        decided(|d| matches!(d, Decision::Hold { reason: Hold::Vetoed(_) })),
    ];
    assert!(kinds.iter().all(|&count| count > 3) && kinds.iter().sum::<usize>() == PERIODS, "{kinds:?}");
    let agents = records.iter().filter(|record| matches!(record, Record::Agent(_))).count();
    let promoted = |record: &&Record| matches!(record, Record::Period(period) if period.outcome.promoted.0 > 0);
    assert!(agents == 2 && records.iter().filter(promoted).count() > 10, "a restart, and pages that came back");
}

/// Replays the journal after one change to every job's starting record.
fn check(what: &str, change: impl Fn(&mut JobRecord)) {
    let mut records = golden();
    for record in &mut records {
        if let Record::Job(job) = record {
            change(job);
        }
    }
    assert_ne!(records, golden(), "{what}: the change changes something");
    let replayed = replay::replay(&records);
    assert!(!replayed.differing.is_empty(), "{what}: not noticed");
    assert_eq!((replayed.periods, replayed.skipped), (PERIODS, 0), "{what}");
}

#[test]
fn any_one_altered_parameter_is_noticed() {
    check("a looser objective", |job| job.params.promotion_rate_max = RatioPpm(job.params.promotion_rate_max.0 * 4));
    check("a stricter objective", |job| job.params.promotion_rate_max = RatioPpm(job.params.promotion_rate_max.0 / 2));
    check("a lower percentile", |job| job.params.percentile = RatioPpm(900_000));
    check("a longer warm-up", |job| job.params.warmup_ms += Millis(2_000));
    check("a shorter warm-up", |job| job.params.warmup_ms = job.params.warmup_ms.saturating_sub(Millis(2_000)));
    check("a forgotten history", |job| job.state = policy::cold_age::State::default());

    let mut records = golden();
    for record in &mut records {
        if let Record::Agent(agent) = record {
            let mut ages = Vec::from(agent.thresholds);
            ages[16] += 1;
            agent.thresholds = Thresholds::try_from(ages).unwrap();
        }
    }
    assert!(!replay::replay(&records).differing.is_empty(), "another set of thresholds: not noticed");
}

#[test]
fn every_record_is_written_as_it_was_read() {
    let text = std::fs::read_to_string(path()).unwrap();
    for (line, record) in text.lines().zip(golden()) {
        assert_eq!(serde_json::to_string(&record).unwrap(), line);
    }
    assert_eq!(text.lines().count(), golden().len());
}

#[test]
fn a_journal_cut_anywhere_reads_and_replays_up_to_the_cut() {
    let whole = std::fs::read(path()).unwrap();
    let all = golden();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("journal");
    // At every end of a line and beside it, and at bytes in between.
    let ends = whole.iter().enumerate().filter(|&(_, &byte)| byte == b'\n').flat_map(|(at, _)| [at, at + 1, at + 2]);
    for cut in ends.chain((0..whole.len()).step_by(499)).filter(|&cut| cut <= whole.len()) {
        std::fs::write(&file, &whole[..cut]).unwrap();
        let read = journal::read(&file).unwrap();
        let lines = whole[..cut].iter().filter(|&&byte| byte == b'\n').count();
        assert!(read == all[..lines], "cut at {cut}: {} of {lines} records", read.len());
        let replayed = replay::replay(&read);
        assert_eq!((replayed.skipped, replayed.differing), (0, vec![]), "cut at {cut}");
    }
}
