//! `thermocline rollout` as an operator meets it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use serde_json::Value;

use program::{check, refused, thermocline};

#[path = "rollouts/program.rs"]
mod program;

const BUNDLE: &str = "schema = 1\nversion = 7\nid = \"k98\"\ncreated = 2026-01-01T00:00:00Z\nexpires = 2226-01-01T00:00:00Z\n\
                      [knobs.cold_age]\npercentile = \"98%\"\n";

#[test]
fn an_operators_day() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let (here, signed) = ("--store store --root root.json", "--store store --root root.json --keys keys");
    std::fs::write(at.join("bundle.toml"), BUNDLE).unwrap();
    std::fs::write(at.join("wrong.toml"), BUNDLE.replace("98%", "20%").replace("percentile", "percentil\" = 1\n\"x")).unwrap();

    check(at, "rollout keygen keys --dry-run", &["root", "would be created"]);
    assert!(!at.join("keys").exists());
    check(at, "rollout keygen keys", &["keys/root-1.pk8", "keys/timestamp.pk8", "keep the root keys offline"]);
    refused(at, "rollout keygen keys", &["exists"]);
    refused(at, &format!("rollout list {here}"), &["root.json"]);
    check(at, &format!("rollout init {signed}"), &["copy root.json to each machine"]);
    refused(at, &format!("rollout init {signed}"), &["holds a repository already"]);

    refused(at, &format!("rollout publish wrong.toml {signed}"), &["wrong.toml"]);
    check(at, &format!("rollout publish bundle.toml {signed} --dry-run"), &["dry run, nothing is written: bundle 7 (k98)"]);
    check(at, &format!("rollout list {here}"), &["nothing is assigned", "root       version 1, 1 of 1 keys"]);
    check(at, &format!("rollout publish bundle.toml {signed}"), &["bundle 7 (k98), valid until 2226-01-01T00:00:00Z"]);
    refused(at, &format!("rollout publish bundle.toml {signed}"), &["write version = 8"]);
    check(at, &format!("rollout show {here}"), &["percentile = \"98%\"", "version = 7"]);
    refused(at, &format!("rollout show 8 {here}"), &["published are: 7"]);

    refused(at, &format!("rollout which m1 {here}"), &["nothing is assigned yet"]);
    let assign = format!("rollout assign --rollout r --bundle 7 --share 100% --control 0% --stage fleet {signed}");
    check(at, &assign, &["rollout r, stage fleet: 100% follow bundle 7, the others the configuration file"]);
    check(at, &format!("rollout which m1 {here}"), &["m1 follows bundle 7: among bundle"]);
    let (_, text) = thermocline(at, &format!("--format json rollout which m1 {here}"));
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["version"], 7);
    check(at, &format!("rollout verify {here}"), &["1 bundles verified; timestamp expires first"]);
    check(at, &format!("rollout refresh {signed}"), &["signatures renewed"]);
    check(at, &format!("rollout revoke 7 {signed}"), &["bundle 7 is revoked"]);
    check(at, &format!("rollout which m1 {here}"), &["m1 follows its configuration file"]);

    check(at, "rollout keygen new", &["new/root-1.pk8"]);
    check(at, &format!("rollout rotate --new-keys new {signed}"), &["the old keys are no longer valid"]);
    refused(at, &format!("rollout refresh {signed}"), &["0 of the 1 keys"]);
    check(at, &format!("rollout refresh {here} --keys new"), &["signatures renewed"]);
    let (_, text) = thermocline(at, &format!("--format json rollout list {here}"));
    let listed: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&listed["roles"][0]["version"], listed["bundles"].as_array().unwrap().len()), (&Value::from(2), 0));
    // The store was tampered with.
    let timestamp = at.join("store/metadata/timestamp.json");
    let text = std::fs::read_to_string(&timestamp).unwrap();
    std::fs::write(&timestamp, text.replace("\"version\": ", "\"version\": 1")).unwrap();
    refused(at, &format!("rollout verify {here}"), &["too few valid signatures"]);
}
