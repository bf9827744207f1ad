use std::fs;
use std::path::Path;

use config::Class;
use policy::cold_age;
use policy::histogram::{AgeCounts, Histogram};
use policy::thresholds::Thresholds;
use units::{Age, Bytes, Millis, Pages, RatioPpm, UnixMillis};

use super::*;
use crate::replay::replay;

const PARAMS: cold_age::Params = cold_age::Params::new(RatioPpm(2_000), RatioPpm(980_000), Millis(0));

/// A short life of one job, as an agent would write it.
fn life() -> Vec<Record> {
    let thresholds = Thresholds::log_spaced(32).unwrap();
    let mut records = vec![
        Record::Agent(AgentRecord {
            version: VERSION,
            unix_ms: UnixMillis(0),
            boot_id: "b".into(),
            kernel: "6.12".into(),
            page_bytes: 4096,
            scan_period_ms: Millis(120_000),
            thresholds,
            bundle: 0,
            writes: None,
        }),
        Record::Job(Box::new(JobRecord { params: PARAMS, ..JobRecord::new(UnixMillis(0), "/a", 7, Class::Standard, "page_idle") })),
    ];
    let mut state = cold_age::State::default();
    for i in 0..20u8 {
        let mut counts = AgeCounts::default();
        counts.add(Age(0), Pages(100_000));
        counts.add(Age(i), Pages(300));
        let cold = Histogram::from_counts(&counts, &thresholds);
        let input = cold_age::Input {
            job_age_ms: Millis(60_000),
            window_ms: Millis(60_000),
            cold,
            resident: cold,
            promotions: cold,
            allowance: None,
            trial_max: None,
            returned: None,
            sample: None,
            reach: None,
            veto: None,
        };
        let (next, step) = cold_age::step(&PARAMS, &thresholds, &state, &input);
        state = next;
        records.push(Record::Period(Box::new(PeriodRecord {
            unix_ms: UnixMillis(u64::from(i) * 60_000),
            job: "/a".into(),
            id: 7,
            input,
            step,
            outcome: Outcome::default(),
            memory: JobMemory::default(),
            resolved_to: Some(Age::MAX),
        })));
    }
    records
}

fn open(dir: &Path) -> Journal {
    Journal::open(dir, Bytes(1 << 20), 3).unwrap()
}

#[test]
fn what_is_written_is_read_and_replays() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).append(&life()).unwrap();
    let records = read(&Journal::path(dir.path())).unwrap();
    assert_eq!(records, life());
    let replay = replay(&records);
    assert_eq!((replay.periods, replay.skipped, replay.differing), (20, 0, vec![]));
}

#[test]
fn a_changed_decision_is_found() {
    let mut records = life();
    let Record::Period(period) = &mut records[9] else { panic!("a period") };
    period.step.threshold = Some(Age(200));
    assert_eq!(replay(&records).differing, [7]);
    assert_eq!(replay(&life()[2..]).skipped, 20);
}

#[test]
fn a_kill_at_any_byte_costs_the_last_record_alone() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).append(&life()).unwrap();
    let path = Journal::path(dir.path());
    let whole = fs::read(&path).unwrap();
    for cut in (0..=whole.len()).rev().step_by(37) {
        fs::write(&path, &whole[..cut]).unwrap();
        let lines = whole[..cut].iter().filter(|&&b| b == b'\n').count();
        assert_eq!(read(&path).unwrap(), life()[..lines], "cut at {cut}");
        let mut journal = open(dir.path());
        assert!(!journal.rotate_if_full().unwrap());
        journal.append(&life()[..1]).unwrap();
        assert_eq!(read(&path).unwrap().len(), lines + 1, "the next record starts on its own line");
    }
}

#[test]
fn files_are_bounded_in_size_and_number() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), Bytes(2_000), 3).unwrap();
    for i in 0..50 {
        journal.rotate_if_full().unwrap();
        journal.append(&[Record::Event { unix_ms: UnixMillis(i), job: None, what: "x".repeat(400) }]).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["journal", "journal.1", "journal.2"]);
    assert!(fs::metadata(dir.path().join("journal.1")).unwrap().len() < 3_000);
    let Some(Record::Event { unix_ms, .. }) = read(&Journal::path(dir.path())).unwrap().pop() else { panic!("an event") };
    assert_eq!(unix_ms, UnixMillis(49));
}

#[test]
fn foreign_and_newer_files_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = Journal::path(dir.path());
    fs::write(&path, "{\"record\":\"agent\"}\nrubbish\n{}\n").unwrap();
    assert!(read(&path).unwrap_err().to_string().contains("journal:1"));
    let mut records = life();
    let Record::Agent(agent) = &mut records[0] else { panic!("an agent") };
    agent.version = VERSION + 1;
    fs::write(&path, serde_json::to_string(&records[0]).unwrap() + "\n").unwrap();
    assert!(read(&path).unwrap_err().to_string().contains(&format!("version {}", VERSION + 1)));
    assert!(read(&dir.path().join("none")).unwrap_err().to_string().contains("none"));
}
