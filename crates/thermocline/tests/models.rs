//! `thermocline pool models` as an operator meets it: publish, assign, fetch on a host, revoke.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;

use rollout::assignment::place_ppm;

use program::{check, refused};

#[path = "rollouts/program.rs"]
mod program;

const HOST: &str = "name = \"host-a\"\nlocal_memory = \"64GiB\"\nstate = \"state\"\n[manager]\nurl = \"http://127.0.0.1:1\"\n\
                    [predict]\nuntouched = \"models/untouched.onnx\"\nroot = \"root.json\"\n";

#[test]
fn models_reach_a_host_signed_and_are_withdrawn() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pool/predict/testdata/untouched.onnx");
    let model = model.canonicalize().unwrap();
    let signed = "--store store --root root.json --keys keys";
    std::fs::write(at.join("host.toml"), HOST).unwrap();
    check(at, "rollout keygen keys", &["root-1.pk8"]);
    check(at, &format!("rollout init {signed}"), &["root.json"]);

    refused(at, &format!("pool models publish --untouched keys/targets.pk8 {signed}"), &["targets.pk8"]);
    let publish = format!("pool models publish --untouched {} {signed}", model.display());
    check(at, &format!("{publish} --dry-run"), &["dry run, nothing is written: bundle 1 (models-", ") of untouched, valid until"]);
    check(at, &publish, &["bundle 1 (models-"]);
    check(at, "rollout show --store store --root root.json", &["[models]", "untouched = "]);

    refused(at, "pool models fetch --config host.toml", &["predict.store", "host.toml"]);
    let store = at.join("store");
    std::fs::write(at.join("host.toml"), format!("{HOST}store = \"{}\"\n", store.display())).unwrap();
    check(at, "pool models fetch --config host.toml", &["no bundle: no bundle is assigned"]);
    check(at, &format!("rollout assign --rollout m --bundle 1 --share 100% --control 0% {signed}"), &["follow bundle 1"]);
    check(at, "pool models fetch --config host.toml --dry-run", &["models/untouched.onnx would be written"]);
    check(at, "--format json pool models fetch --config host.toml --dry-run", &["\"change\":\"written\"", "\"dry_run\":true"]);
    assert!(!at.join("models/untouched.onnx").exists());
    check(at, "pool models fetch --config host.toml", &["bundle 1 (models-", "models/untouched.onnx written"]);
    assert_eq!(std::fs::read(at.join("models/untouched.onnx")).unwrap(), std::fs::read(&model).unwrap());
    check(at, "pool host --config host.toml --check", &["host host-a"]);
    check(at, "--format json pool models fetch --config host.toml", &["\"version\":1", "\"change\":\"unchanged\""]);
    check(at, &format!("rollout revoke 1 {signed}"), &["bundle 1 is revoked"]);
    check(at, "pool models fetch --config host.toml", &["no bundle", "models/untouched.onnx removed"]);
    assert!(!at.join("models/untouched.onnx").exists());
    std::fs::remove_dir_all(&store).unwrap();
    refused(at, "pool models fetch --config host.toml", &["the models stay as they were verified before"]);
}

const SIGNED: &str = "--store store --root root.json --keys keys";

const PLAN: &str = r#"
control = "40%"
machines_min = 3
settle = "1s"
baseline = "1h"
silence = "1d"
[[stage]]
name = "first"
share = "30%"
least = "10m"
[[stage]]
name = "all"
share = "100%"
least = "10m"
proof = true
[[guard]]
name = "touched"
metric = "pool_touched"
margin = "5%"
proof = true
"#;

/// When the training of the test's model ended, in its metadata.
const MODEL: i64 = 691_200;

/// Guests of forty hosts that started at this time and ran for half an hour: of hosts below a share by the model of the bundle, of others
/// by an earlier one. `touched` of twenty of the former touched all of their pool memory, and one of twenty of the others.
fn ended(at: &Path, from_unix_s: u64, share_ppm: u32, touched: usize) {
    for host in 0..40 {
        let name = format!("h{host:02}");
        let treated = place_ppm("r", &name).0 < share_ppm.min(600_000);
        let (model, touched) = if treated { (MODEL, touched) } else { (MODEL - 86_400, 1) };
        let life = |guest: usize| {
            let pool_touched = if guest < touched { 1 << 30 } else { 0 };
            format!(
                "{{\"guest_life\":1,\"host\":\"{name}\",\"name\":\"vm\",\"arrival\":{from_unix_s},\"departure\":{},\"cores\":2,\
                 \"memory_bytes\":4294967296,\"customer\":7,\"vm_type\":null,\"guest_os\":null,\"location\":null,\
                 \"pool_bytes\":1073741824,\"touched_bytes\":1073741824,\"mitigated\":false,\"model\":{model},\
                 \"pool_touched_bytes\":{pool_touched},\"samples\":{{\"count\":1,\"pool_accessed_bytes\":0,\
                 \"local_accessed_bytes\":0}},\"counters\":{{}}}}\n",
                from_unix_s + 1_800
            )
        };
        let directory = at.join("lives").join(&name);
        std::fs::create_dir_all(&directory).unwrap();
        // Hosts differ a little, as those of a fleet do.
        let lives: String = (0..20 + host % 3).map(life).collect();
        std::fs::write(directory.join(format!("{from_unix_s}.jsonl")), lives).unwrap();
    }
}

/// A store with a model of untouched memory as bundle 1, whose rollout has begun. Returns when, in seconds since the epoch.
fn begun(at: &Path) -> u64 {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pool/predict/testdata/untouched.onnx");
    std::fs::write(at.join("plan.toml"), PLAN).unwrap();
    check(at, "rollout keygen keys", &[]);
    check(at, &format!("rollout init {SIGNED}"), &[]);
    check(at, &format!("pool models publish --untouched {} {SIGNED}", model.canonicalize().unwrap().display()), &[]);
    check(at, &format!("rollout start 1 --plan plan.toml --id r {SIGNED}"), &["begins in first"]);
    since(at)
}

fn since(at: &Path) -> u64 {
    let status = check(at, "--format json rollout status --store store --root root.json", &[]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    status["state"]["since_unix_ms"].as_u64().unwrap() / 1_000
}

#[test]
fn a_model_without_harm_reaches_all_hosts_by_stages() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let began = begun(at);
    let step = format!("pool models step --lives lives {SIGNED}");
    refused(at, &step, &["lives", "pool lives send"]);
    ended(at, began - 3_000, 0, 1);
    check(at, &step, &["hold: evidence covers 0.0 h"]);
    ended(at, began + 3, 300_000, 1);
    check(at, &format!("{step} --dry-run"), &["dry run, nothing is written", "promote: to all"]);
    check(at, &step, &["promote: to all", "100 % report it", "pass  touched"]);
    ended(at, since(at) + 3, 1_000_000, 1);
    check(at, &step, &["finish: all stages are done"]);
    check(at, "rollout which h01 --store store --root root.json", &["bundle 1"]);
}

#[test]
fn a_model_whose_guests_touch_their_pool_memory_is_rolled_back() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let began = begun(at);
    ended(at, began - 3_000, 0, 1);
    ended(at, began + 3, 300_000, 9);
    let step = format!("pool models step --lives lives {SIGNED} --every 1s");
    check(at, &step, &["roll back: touched: worse than allowed", "BREACH  touched", "rolled back"]);
    check(at, "rollout list --store store --root root.json", &["stage rolled back"]);
}

#[test]
fn a_plan_for_agents_is_refused_for_models() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    begun(at);
    ended(at, since(at) + 3, 300_000, 1);
    for (from, to, piece) in [
        ("\"pool_touched\"", "\"saved\"", "\"touched\" compares what agents report"),
        ("share = \"30%\"", "share = \"30%\"\nclusters = [\"a\"]", "records of guests name none"),
    ] {
        std::fs::write(at.join("other.toml"), PLAN.replace(from, to)).unwrap();
        check(at, &format!("rollout stop {SIGNED}"), &[]);
        check(at, &format!("rollout rollback {SIGNED}"), &[]);
        check(at, &format!("rollout start 1 --plan other.toml --id r{} {SIGNED}", piece.len()), &[]);
        refused(at, &format!("pool models step --lives lives {SIGNED}"), &[piece]);
    }
}
