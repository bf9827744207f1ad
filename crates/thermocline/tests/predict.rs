//! `thermocline pool predict`, as an operator runs it.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../pool/predict/testdata").join(name)
}

fn predict(model: &Path, requests: &str) -> Output {
    predict_with(&[Path::new("--model"), model], requests)
}

fn predict_with(models: &[&Path], requests: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("requests.json");
    std::fs::write(&file, requests).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.args(["--format", "json", "pool", "predict"]).args(models).arg("--request").arg(&file);
    command.output().unwrap()
}

/// A request of the model's own test data, with a history: one that leaves several slices of 1 GiB untouched.
fn request() -> Value {
    let text = std::fs::read_to_string(testdata("untouched.jsonl")).unwrap();
    let mut rows = text.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).unwrap());
    let untouched = |row: &Value| row["untouched_ratio"].as_f64().unwrap_or(0.0) * row["request"]["memory_bytes"].as_f64().unwrap();
    let mut request = rows.find(|row| untouched(row) > 4.0 * 2f64.powi(30)).unwrap()["request"].take();
    request["history"] = serde_json::json!(vec![0.75; 20]);
    request
}

#[test]
fn every_request_gets_a_decision_with_a_reason() {
    let (known, mut unknown) = (request(), request());
    unknown["vm_type"] = "Z9".into();
    let check = |model: &Path, want: [&str; 2]| {
        let output = predict(model, &format!("{known}\n{unknown}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        for (at, want) in want.into_iter().enumerate() {
            let decision = &report["decisions"][at];
            assert_eq!(decision["reason"], want);
            assert!(decision["pool_bytes"].as_u64().unwrap() <= known["memory_bytes"].as_u64().unwrap());
            assert!(report["counts"][want].as_u64().unwrap() >= 1);
        }
    };
    check(&testdata("untouched.onnx"), ["untouched", "unseen_category"]);
    check(Path::new("/nowhere/model.onnx"), ["no_model", "no_model"]);
    check(&testdata("untouched.jsonl"), ["bad_model", "bad_model"]);
}

#[test]
fn a_vm_with_a_past_week_needs_no_model() {
    let (mut again, new) = (request(), request());
    again["own_past"] = serde_json::json!([0.8, 0.5, 0.6]);
    for models in [&[][..], &[Path::new("--model"), &testdata("untouched.onnx")]] {
        let output = predict_with(models, &format!("{again}\n{new}"));
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let decisions = &report["decisions"];
        assert_eq!((&decisions[0]["predicted_by"], &decisions[0]["untouched_ratio"]), (&"own_past".into(), &0.45.into()));
        assert_eq!(decisions[1]["reason"], if models.is_empty() { "no_model" } else { "untouched" });
    }
}

#[test]
fn a_request_that_cannot_be_read_is_named() {
    let check = |requests: &str, words: &str| {
        let output = predict(&testdata("untouched.onnx"), requests);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && message.contains(words), "{message:?} does not contain {words:?}");
    };
    check("", "no requests");
    check("{\"cores\": 1}", "request 1");
    check(&format!("{} {{\"core\": 1}}", request()), "request 2");
    check("[1]", "request 1");
}
