//! What the record of an ended guest has, in this version and in others.

use serde_json::{Value, json};

use super::predictions::of_customer;
use super::*;
use crate::host::lives::{Life, judged};
use crate::prediction::{Answer, Prediction};
use crate::share::{Share, Why};
use crate::vm::Record;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../predict/testdata/untouched.onnx")
}

/// The records of guests that have ended, the latest last.
fn lines(directory: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(directory.join("state/lives.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_life_has_what_was_touched_over_time_and_the_verdicts() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 1024, Some(256))).unwrap();
    let usage = |touched, accessed| Usage { local_touched_bytes: Bytes::mib(700), ..touched_and_accessed(touched, accessed) };
    for (touched, accessed) in [(5, 0), (5, 0), (100, 0), (100, 50)] {
        simulated.world().usage = usage(touched, accessed);
        host.watch(|| true);
    }
    host.stop("a", Duration::ZERO).unwrap();
    // A guest without pool memory has no verdict.
    host.start(request("b", 512, Some(0))).unwrap();
    host.watch(|| true);
    host.stop("b", Duration::ZERO).unwrap();
    let lines = lines(directory.path());
    assert_eq!(lines[0]["verdicts"], json!({"as_predicted": 2, "touched_once": 1, "mitigate": 1}));
    assert_eq!(lines[0]["touched_over_time"], json!({"interval_seconds": 1_800, "bytes": [Bytes::mib(800).0]}));
    assert_eq!((&lines[0]["mitigated"], &lines[0]["prediction"]), (&json!(true), &Value::Null));
    assert_eq!((&lines[1]["verdicts"], &lines[1]["touched_over_time"]["bytes"]), (&json!({}), &json!([Bytes::mib(800).0])));
}

#[test]
fn a_life_has_the_answer_of_the_model() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    drop(host);
    let host = host_with(&simulated, Settings { local: Bytes(16 << 30), ..settings() }, Some(Models::load(&model(), None)));
    simulated.world().usage = Usage { local_touched_bytes: Bytes::mib(1800), ..Usage::default() };
    for number in 0..4 {
        let name = format!("vm-{number}");
        of_customer(&host, &name, 5);
        host.stop(&name, Duration::ZERO).unwrap();
    }
    let known = predict::Request { history: Some(vec![0.6; 8]), ..of_customer(&host, "vm-4", 5).request.vm };
    host.stop("vm-4", Duration::ZERO).unwrap();
    let unseen = predict::Request { vm_type: Some("Z9".to_owned()), ..known.clone() };
    let stale = predict::Request { arrival: known.arrival + 4 * 86_400, ..known.clone() };
    let small = predict::Request { memory_bytes: Bytes::mib(512), ..known };
    for (name, vm) in [("unseen", unseen), ("stale", stale), ("small", small)] {
        host.start(Request { vm, ..request(name, 4096, None) }).unwrap();
        host.stop(name, Duration::ZERO).unwrap();
    }
    let answers: Vec<Value> = lines(directory.path()).iter().map(|life| life["prediction"]["answer"].clone()).collect();
    assert_eq!(answers, ["no_history", "no_history", "no_history", "predicted", "predicted", "unseen_category", "stale_model", "drifted"]);
    let mut found = Vec::new();
    let path = directory.path().join("state/lives.jsonl");
    let damaged = judged(&path, settings().tolerated(), &mut |guest| found.push((guest.model, guest.touched, guest.unpredicted))).unwrap();
    let (given, none) = ((691_200, Some(false), Some(false)), (691_200, None, Some(true)));
    assert_eq!((damaged, found), (0, vec![given, given, none, none, none]));
}

/// A line as it was before there were verdicts, values over time and answers.
const EARLIER: &str = r#"{"guest_life":1,"host":"host-a","name":"vm","arrival":731000,"departure":731400,"cores":2,"memory_bytes":4294967296,
"customer":5,"vm_type":"F2","guest_os":null,"location":null,"pool_bytes":1073741824,"touched_bytes":1073741824,"mitigated":false,
"model":691200,"pool_touched_bytes":1073741824,"samples":{"count":1,"pool_accessed_bytes":0,"local_accessed_bytes":0},"counters":{}}"#;

/// A line of this version.
fn line(record: &Record) -> Value {
    serde_json::to_value(Life::of("host-a", record, 2_000.0).unwrap()).unwrap()
}

/// The record of a guest with pool memory that started at second 1,000.
fn record() -> Record {
    let share = Share { slices: Slices(2), local_bytes: Bytes::mib(768), why: Why::Untouched, insensitive: false };
    let mut record = Record::new(request("a", 1024, None), share);
    record.started_at = Some(1_000.0);
    record.model = Some(691_200);
    record.prediction = Some(Prediction { model: 691_200, answer: Answer::Predicted });
    record
}

#[test]
fn lives_of_other_versions_are_read_and_an_earlier_version_reads_these() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    drop(host);
    let path = directory.path().join("state/lives.jsonl");
    let earlier = EARLIER.replace('\n', "");
    let mut later: Value = serde_json::from_str(&earlier).unwrap();
    later["prediction"] = json!({"model": 691_200, "answer": "of_a_later_version"});
    later["verdicts"] = json!({"of_a_later_version": 3});
    later["of_a_later_version"] = json!([1, 2]);
    std::fs::write(&path, format!("{earlier}\n{later}\n{earlier}\n")).unwrap();
    let mut found = Vec::new();
    let damaged = judged(&path, settings().tolerated(), &mut |guest| found.push((guest.touched, guest.unpredicted))).unwrap();
    assert_eq!((damaged, found), (0, vec![(Some(true), None); 3]));
    // Three guests are a history.
    let host = host_with(&simulated, Settings { local: Bytes(16 << 30), ..settings() }, Some(Models::load(&model(), None)));
    assert_eq!(of_customer(&host, "next", 5).prediction.unwrap().answer, Answer::Predicted);

    // The earlier version skips what it does not know, and needs all that it knew, in the same form.
    let (now, before) = (line(&record()), serde_json::from_str::<Value>(&earlier).unwrap());
    let form = |value: &Value| std::mem::discriminant(value);
    for (key, value) in before.as_object().unwrap() {
        let same = now.get(key).is_some_and(|now| now.is_null() || value.is_null() || form(now) == form(value));
        assert!(same, "{key}: {value} was, and is {:?}", now.get(key));
    }
    assert!(serde_json::to_string(&Life::of("host-a", &record(), 2_000.0).unwrap()).unwrap().starts_with("{\"guest_life\":1,"));
}

#[test]
fn guests_of_other_versions_are_adopted() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = bench(directory.path());
    host.start(request("a", 1024, Some(256))).unwrap();
    host.watch(|| true);
    drop(host);
    let path = directory.path().join("state/a.guest.json");
    let mut state: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    for key in ["touched_over_time", "prediction", "verdicts"] {
        assert!(state.as_object_mut().unwrap().remove(key).is_some(), "{key}");
    }
    state["of_a_later_version"] = json!(1);
    std::fs::write(&path, state.to_string()).unwrap();
    let host = restarted(&simulated);
    host.watch(|| true);
    host.stop("a", Duration::ZERO).unwrap();
    assert_eq!(lines(directory.path())[0]["verdicts"], json!({"as_predicted": 1}));
}

/// A guest chooses what it touches and accesses, and when.
#[test]
fn no_guest_makes_its_record_grow() {
    let mut record = record();
    let verdicts = [
        Verdict::NoPool,
        Verdict::AsPredicted,
        Verdict::NotVisible,
        Verdict::TouchedOnce,
        Verdict::Insensitive,
        Verdict::AttemptsSpent,
        Verdict::BudgetSpent,
        Verdict::Cooldown,
        Verdict::NoLocalMemory,
        Verdict::Mitigate,
    ];
    for sample in 0..100_000_u32 {
        let usage = Usage { local_touched_bytes: Bytes((1 << 46) + u64::from(sample)), ..touched_and_accessed(0, 0) };
        record.add_touched(&usage, 1_000.0 + f64::from(sample) * 60.0, Duration::from_secs(60));
        record.add_verdict(verdicts[sample as usize % verdicts.len()]);
    }
    let text = line(&record).to_string();
    assert!(text.len() < 2_000, "{} bytes: {text}", text.len());
    assert!(text.contains("\"mitigate\":10000") && text.contains("\"interval_seconds\":245760"), "{text}");
}
