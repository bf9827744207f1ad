//! `thermocline pool simulate` on a generated trace: what pooling saves, the same however it is run.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_thermocline")).args(arguments).output().unwrap()
}

/// A small generated trace.
fn trace(directory: &Path) -> String {
    let path = directory.join("vms.parquet").to_str().unwrap().to_owned();
    let made = run(&["pool", "generate", "--vms", "3000", "--clusters", "2", "--days", "10", "--out", &path]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    path
}

fn simulate(trace: &str, more: &[&str]) -> Value {
    let mut arguments = vec!["pool", "simulate", "--format", "json", "--trace", trace, "--pool-sizes", "2,16"];
    arguments.extend(more);
    let done = run(&arguments);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

#[test]
fn larger_pools_save_more_and_threads_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let trace = trace(directory.path());
    let asked = ["--memory", "all_local,static=50%,pond", "--latency", "64ns", "--confirm"];
    let report = simulate(&trace, &[&asked[..], &["--threads", "1"]].concat());
    assert_eq!(report, simulate(&trace, &[&asked[..], &["--threads", "3"]].concat()));
    let saved = |row: usize| report["results"][row]["saved_ratio"].as_f64().unwrap();
    assert_eq!(report["results"].as_array().unwrap().len(), 6);
    assert_eq!((saved(0).to_bits(), saved(1).to_bits()), (0, 0), "nothing pooled, nothing saved");
    assert!(saved(3) > saved(2), "{report:#}");
    let pond = &report["results"][5];
    assert!(pond["accuracy"]["untouched"] == 0.25 && pond["pool_ratio"].as_f64() > Some(0.2), "{pond:#}");
    assert_eq!((&pond["confirmed"]["moved"], &pond["confirmed"]["rejected"]), (&Value::from(0), &Value::from(0)));
}

#[test]
fn provisioned_memory_keeps_the_service_level_by_each_rule() {
    let directory = tempfile::tempdir().unwrap();
    let trace = trace(directory.path());
    let asked = ["--memory", "oracle", "--latency", "64ns", "--placement", "pool_balance"];
    for rule in ["replayed", "rarely_moved", "scheduled"] {
        let provision = format!("--provision={rule}");
        let report = simulate(&trace, &[&asked[..], &[&provision, "--service-level", "1%"]].concat());
        assert_eq!(report["site"]["service_level"], serde_json::json!({"rule": rule, "share": 10_000}));
        for row in report["results"].as_array().unwrap() {
            let least = &row["provisioned"];
            let of = |key: &str| least[key].as_u64().unwrap();
            let (vms, counted) = (of_run(least, "started") + of_run(least, "rejected"), of_run(least, "rejected"));
            let moved = of_run(least, "moved");
            let counted = counted + if rule == "rarely_moved" { moved } else { 0 };
            assert!(counted * 100 <= vms && (rule != "scheduled" || moved == 0), "{row:#}");
            assert!(of("bytes") <= of("local_only_bytes") && of("pool_bytes") < of("bytes"), "{row:#}");
            assert_eq!(row["provisioned_saved_by_cluster"].as_array().unwrap().len(), 2);
        }
        let oracle = &report["results"][1];
        assert_eq!((&oracle["memory"], of_run(&oracle["provisioned"], "mispredicted")), (&Value::from("oracle"), 0));
    }
    // By default, the paper's rule. With two clusters there is no interval, and no pool of one server pays for its connection.
    let static_half = ["--memory", "static=50%", "--latency", "64ns", "--provision", "--prices", "dram=3,server=900"];
    let replayed = simulate(&trace, &static_half);
    assert_eq!(replayed["site"]["service_level"], serde_json::json!({"rule": "replayed", "share": 1_000}));
    let money = |row: usize| &replayed["results"][row]["money"];
    assert_eq!((&money(1)["interval"], &money(1)["verdict"]), (&Value::Null, &Value::from("undecided")), "{replayed:#}");
    assert!(money(1)["saved_per_server"].as_f64() < money(1)["break_even_per_server"].as_f64());
}

/// A counter of the run with provisioned memory.
fn of_run(provisioned: &Value, key: &str) -> u64 {
    provisioned["tally"][key].as_u64().unwrap()
}

#[test]
fn faults_come_from_the_seed() {
    let directory = tempfile::tempdir().unwrap();
    let trace = trace(directory.path());
    let asked = |seed| ["--memory", "static=50%", "--host-fails", "20d", "--emc-fails", "20d", "--manager-fails", "5d", "--seed", seed];
    let report = simulate(&trace, &asked("7"));
    assert_eq!(report, simulate(&trace, &asked("7")));
    assert_ne!(report, simulate(&trace, &asked("8")));
    let measured = &report["results"][1]["measured"];
    let lost = |key: &str| measured[key].as_u64().unwrap();
    assert!(lost("faults") > 0 && lost("lost_with_host") > 0 && lost("lost_with_emc") > 0, "{measured:#}");
}

#[test]
fn servers_of_a_sparse_pod_reach_some_devices() {
    let directory = tempfile::tempdir().unwrap();
    let trace = trace(directory.path());
    let simulate = |pod: &str, more: &[&str]| {
        let asked = ["--format", "json", "--trace", &trace, "--pool-sizes", "16", "--memory", "static=50%", "--pod", pod];
        let done = run(&[&["pool", "simulate"], &asked[..], more].concat());
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        serde_json::from_slice::<Value>(&done.stdout).unwrap()["results"][0].clone()
    };
    let row = simulate("ports=4,per-server=2", &["--latency", "by_pool_size", "--emc-fails", "5d"]);
    assert_eq!(row["added_ns"], 70, "that of a controller with 4 ports, not of a pool of 16 sockets");
    assert_eq!((&row["pod"]["servers"], &row["pod"]["devices"], &row["pod"]["pairs"]), (&8.into(), &4.into(), &28.into()));
    let measured = |key: &str| row["measured"][key].as_u64().unwrap();
    assert!(measured("emc_failures") > 10 && measured("lost_with_emc") >= measured("lost_with_emc_max"), "{row:#}");
    // The price of every device counts.
    let priced = |prices| simulate("ports=4,per-server=4", &["--clusters", "1", "--latency", "70ns", "--provision", "--prices", prices]);
    let saved = |row: &Value| row["money"]["saved_per_server"].as_f64().unwrap();
    let (free, priced) = (priced("dram=1"), priced("dram=1,device=4"));
    let [devices, servers] = ["devices", "servers"].map(|key| priced["provisioned"][key].as_f64().unwrap());
    assert!(devices >= servers, "a device for each server, and more for the servers of the last pod: {priced:#}");
    assert!((saved(&free) - saved(&priced) - 4.0 * devices / servers).abs() < 1e-6, "{free:#} {priced:#}");
}

#[test]
fn models_of_other_vms_keep_everything_local_and_say_so() {
    let directory = tempfile::tempdir().unwrap();
    let trace = trace(directory.path());
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pool/predict/testdata");
    let asked = ["--memory", "static=50%,models", "--latency", "64ns", "--models", models.to_str().unwrap()];
    let report = simulate(&trace, &asked);
    // The model's training ended with its eighth day; what has left by then is not simulated.
    assert_eq!(report["begins"], 8 * 86_400);
    let all = simulate(&trace, &["--memory", "all_local"]);
    assert!(report["vms"].as_u64() < all["vms"].as_u64() && report["vms"].as_u64() > Some(100), "{report:#}");
    let of_models = &report["results"][2];
    assert_eq!((&of_models["memory"], of_models["pool_ratio"].as_f64()), (&Value::from("models"), Some(0.0)));
    // It knows none of this trace's types and regions.
    let quality = &of_models["prediction_quality"];
    let safe = |reason: &str| quality["reasons"][reason].as_u64().unwrap();
    assert_eq!(quality["vms"], report["vms"]);
    assert_eq!(safe("unseen_category") + safe("no_history"), quality["vms"].as_u64().unwrap());
    assert!(safe("unseen_category") > 0 && !quality["alerts"].as_array().unwrap().is_empty(), "{quality:#}");
    assert_eq!(report["results"][0]["prediction_quality"], Value::Null);
}

#[test]
fn pond_needs_ground_truth() {
    let directory = tempfile::tempdir().unwrap();
    let (source, trace) = (directory.path().join("dev.csv"), directory.path().join("dev.parquet"));
    let header = "arrival_s,batch,flavor,cores,memory_gb,censored,dur_bin,dur_lo_s,dur_hi_s";
    let rows: String = (0..40).map(|vm| format!("{},{vm},g,4,8,0,36,86400,86400\n", 300 * vm)).collect();
    std::fs::write(&source, format!("{header}\n{rows}")).unwrap();
    let trace = trace.to_str().unwrap();
    assert!(run(&["pool", "import", source.to_str().unwrap(), "--out", trace]).status.success());
    let asked = |arguments: &[&str]| run(&[&["pool", "simulate", "--trace", trace, "--format", "json"], arguments].concat());
    let check = |arguments: &[&str], done: bool, words: &str| {
        let output = asked(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() == done && said.contains(words), "{arguments:?}: {said}");
    };
    check(&["--memory", "pond"], false, "neither untouched memory nor slowdowns");
    check(&["--memory", "pond"], false, "--assume-published");
    check(&["--memory", "static=15%"], true, "40 of 40 VMs have no known slowdown");
    check(&["--memory", "pond", "--assume-published"], true, "");
    let report: Value = serde_json::from_slice(&asked(&["--memory", "static=15%"]).stdout).unwrap();
    assert_eq!(report["missing"], serde_json::json!({"untouched_vms": 40, "slowdown_vms": 40, "customer_vms": 40, "recorded_vms": 40}));
}

#[test]
fn nonsense_is_refused_in_words() {
    let check = |arguments: &[&str], words: &str| {
        let done = run(&[&["pool", "simulate", "--trace", "/nowhere/vms.parquet"], arguments].concat());
        let report = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && report.contains(words), "{arguments:?}: {report}");
    };
    check(&[], "/nowhere/vms.parquet");
    check(&["--memory", "dynamic"], "static=SHARE");
    check(&["--latency", "182%"], "by_pool_size");
    check(&["--placement", "tetris"], "best_fit");
    check(&["--provision=peaks"], "rarely_moved");
    check(&["--service-level", "1%"], "--provision");
    check(&["--prices", "dram=3"], "--provision");
    check(&["--provision", "--prices", "server=3"], "price of a GiB of DRAM");
    check(&["--accuracy", "luck=1%"], "overpredictions");
    check(&["--counters", "c.jsonl"], "--models");
    check(&["--buffer", "1500MiB"], "whole GiB");
    check(&["--offline", "2s..1s"], "shorter time first");
    check(&["--pod", "ports=4"], "per-server=8");
    check(&["--pod", "ports=4,per-server=8", "--emcs", "2"], "--emcs");
    check(&["--pod", "ports=4,per-server=8", "--pool-sizes", "16,4"], "--pool-sizes 4");
    check(&["--pod", "ports=4,per-server=3", "--pool-sizes", "12"], "18 ports");
    check(&["--pod", "ports=4,per-server=8", "--pool-sizes", "192", "--latency", "switch_only"], "no switches");
    let directory = tempfile::tempdir().unwrap();
    let trace = trace(directory.path());
    let check = |arguments: &[&str], words: &str| {
        let done = run(&[&["pool", "simulate", "--trace", &trace], arguments].concat());
        let report = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && report.contains(words), "{arguments:?}: {report}");
    };
    check(&["--memory", "models"], "--models");
    check(&["--models", directory.path().to_str().unwrap()], "train nights");
    check(&["--models", "/nowhere"], "/nowhere");
}
