//! `thermocline pool` from the outside: import, show, stranding, generate.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const FLAVOURS: &str = "arrival_s,batch,flavor,cores,memory_gb,censored,dur_bin,dur_lo_s,dur_hi_s
300,0,g,4,8,0,36,86400,86400
300,1,g,4,2,1,36,86400,86400
600,2,g,four,2,0,0,0,0
";

/// Runs it in a directory; its exit status, the JSON that it printed, and what it said.
fn pool(directory: &Path, arguments: &[&str]) -> (bool, Value, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_thermocline"))
        .current_dir(directory)
        .args(["--format", "json", "pool"])
        .args(arguments)
        .output()
        .unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.success(), json, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_published_trace_is_imported_shown_and_packed() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("dev.csv"), FLAVOURS).unwrap();
    let (done, report, _) = pool(dir.path(), &["import", "dev.csv", "--out", "dev.parquet"]);
    assert!(done && report["vms"] == 2 && report["still_running"] == 1 && report["bad_rows_total"] == 1, "{report}");
    assert!(report["bad_rows"][0].as_str().unwrap().contains("dev.csv line 4: cores is \"four\""), "{report}");
    assert!(!pool(dir.path(), &["import", "dev.csv", "--out", "dev.parquet", "--strict"]).0, "a bad row fails a strict import");
    let (done, _, said) = pool(dir.path(), &["import", "dev.csv", "--out", "dev.csv"]);
    assert!(!done && said.contains("would be replaced"), "{said}");

    let (_, shown, _) = pool(dir.path(), &["show", "dev.parquet"]);
    assert!(shown["vms"] == 2 && shown["known"]["customer"] == 0 && shown["sizes"][0]["cores"] == 4, "{shown}");

    // One server, full of cores, with 10 of 16 GiB rented.
    let arguments = ["stranding", "--trace", "dev.parquet", "--server-cores", "8", "--dram-per-core", "2GiB", "--peak-fill", "100%"];
    let (done, report, _) = pool(dir.path(), &arguments);
    let result = &report["results"][0];
    assert!(done && result["servers"] == 1 && result["refused_for_memory"] == 0, "{report}");
    let full = result["bins"].as_array().unwrap().iter().find(|bin| bin["scheduled_ratio"] == 1.0).unwrap();
    assert_eq!(full["stranded_median"], 0.375, "{report}");
    let (done, _, said) = pool(dir.path(), &["stranding", "--trace", "dev.csv"]);
    assert!(!done && said.contains("dev.csv"), "{said}");
}

#[test]
fn a_generated_trace_says_so_and_how_it_fits() {
    let dir = tempfile::tempdir().unwrap();
    let (done, made, _) = pool(dir.path(), &["generate", "--vms", "2000", "--clusters", "5", "--days", "5", "--out", "made.parquet"]);
    assert!(done && made["generated"] == true && made["written_vms"].as_u64().unwrap() > 1_000, "{made}");
    assert!(made["fit"].as_array().unwrap().iter().any(|row| row["id"] == "P08"), "{made}");
    let (_, report, _) = pool(dir.path(), &["stranding", "--trace", "made.parquet"]);
    assert!(report["generated"] == true && report["results"].as_array().unwrap().len() == 4, "{report}");
}
