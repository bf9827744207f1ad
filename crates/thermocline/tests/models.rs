//! `thermocline pool models` as an operator meets it: publish, assign, fetch on a host, revoke.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;

use rollout::assignment::place_ppm;

use program::{check, refused, thermocline};

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

/// Of twenty guests or a few more of a host, how many touched all of their pool memory, and for how many the model had no prediction.
#[derive(Clone, Copy)]
struct Guests {
    touched: usize,
    drifted: usize,
}

const GOOD: Guests = Guests { touched: 1, drifted: 1 };

/// The record of a guest that started at this time and ran for half an hour.
fn life(host: &str, from_unix_s: u64, model: i64, touched: bool, drifted: bool) -> String {
    let (given, answer) = if drifted { (0, "drifted") } else { (1_u64 << 30, "predicted") };
    let (by, pool_touched) = (if drifted { "null".to_owned() } else { model.to_string() }, if touched { given } else { 0 });
    format!(
        "{{\"guest_life\":1,\"host\":\"{host}\",\"name\":\"vm\",\"arrival\":{from_unix_s},\"departure\":{},\"cores\":2,\
         \"memory_bytes\":4294967296,\"customer\":7,\"vm_type\":null,\"guest_os\":null,\"location\":null,\
         \"pool_bytes\":{given},\"touched_bytes\":1073741824,\"mitigated\":false,\"model\":{by},\
         \"prediction\":{{\"model\":{model},\"answer\":\"{answer}\"}},\"pool_touched_bytes\":{pool_touched},\
         \"samples\":{{\"count\":1,\"pool_accessed_bytes\":0,\"local_accessed_bytes\":0}},\"counters\":{{}}}}\n",
        from_unix_s + 1_800
    )
}

/// Guests of forty hosts that started at this time: of hosts below a share with the model of the bundle, of others with an earlier one.
fn ended(at: &Path, from_unix_s: u64, share_ppm: u32, of_bundle: Guests) {
    for host in 0..40 {
        let name = format!("h{host:02}");
        let treated = place_ppm("r", &name).0 < share_ppm.min(600_000);
        let (model, guests) = if treated { (MODEL, of_bundle) } else { (MODEL - 86_400, GOOD) };
        // Hosts differ a little, as those of a fleet do.
        let count = 20 + host % 3;
        let one = |guest: usize| life(&name, from_unix_s, model, guest < guests.touched, guest + guests.drifted >= count);
        let directory = at.join("lives").join(&name);
        std::fs::create_dir_all(&directory).unwrap();
        let lives: String = (0..count).map(one).collect();
        std::fs::write(directory.join(format!("{from_unix_s}.jsonl")), lives).unwrap();
    }
}

/// A store with a model of untouched memory as bundle 1, whose rollout by [`PLAN`] and these lines has begun. Returns when, in seconds
/// since the epoch.
fn begun(at: &Path, more: &str) -> u64 {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pool/predict/testdata/untouched.onnx");
    std::fs::write(at.join("plan.toml"), format!("{PLAN}{more}")).unwrap();
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
    let began = begun(at, "");
    let step = format!("pool models step --lives lives {SIGNED}");
    refused(at, &step, &["lives", "pool lives send"]);
    ended(at, began - 3_000, 0, GOOD);
    check(at, &step, &["hold: evidence covers 0.0 h"]);
    ended(at, began + 3, 300_000, GOOD);
    check(at, &format!("{step} --dry-run"), &["dry run, nothing is written", "promote: to all"]);
    check(at, &step, &["promote: to all", "100 % report it", "pass  touched"]);
    ended(at, since(at) + 3, 1_000_000, GOOD);
    check(at, &step, &["finish: all stages are done"]);
    check(at, "rollout which h01 --store store --root root.json", &["bundle 1"]);
}

#[test]
fn a_model_whose_guests_touch_their_pool_memory_is_rolled_back() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let began = begun(at, "");
    ended(at, began - 3_000, 0, GOOD);
    ended(at, began + 3, 300_000, Guests { touched: 9, ..GOOD });
    let step = format!("pool models step --lives lives {SIGNED} --every 1s");
    check(at, &step, &["roll back: touched: worse than allowed", "BREACH  touched", "rolled back"]);
    check(at, "rollout list --store store --root root.json", &["stage rolled back"]);
}

/// The guard of drift.
const UNPREDICTED: &str = "[[guard]]\nname = \"drift\"\nmetric = \"pool_unpredicted\"\nmargin = \"5%\"\nlimit = \"5%\"\n";

#[test]
fn a_model_that_drifts_is_rolled_back_though_no_guest_touches_its_memory() {
    let step = format!("pool models step --lives lives {SIGNED}");
    // Of half of the guests, and of all: then no guest of these hosts has pool memory, and other guards have nothing to compare.
    for (drifted, judged) in [(10, "no harm shown"), (30, "too few guests")] {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let began = begun(at, UNPREDICTED);
        ended(at, began - 3_000, 0, GOOD);
        ended(at, began + 3, 300_000, Guests { touched: 0, drifted });
        check(at, &step, &["roll back: drift: worse than allowed", "BREACH  drift"]);
        check(at, "rollout which h01 --store store --root root.json", &["its configuration file"]);
        let (_, text) = thermocline(at, "pool models judge --store lives --target 10%");
        assert!(text.contains("unpredicted") && text.contains(judged), "{text}");
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let began = begun(at, UNPREDICTED);
    ended(at, began - 3_000, 0, GOOD);
    ended(at, began + 3, 300_000, GOOD);
    check(at, &step, &["promote: to all", "pass  drift"]);
}

#[test]
fn a_rollout_begins_with_the_bundle_unless_another_one_runs() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let model = root.join("crates/pool/predict/testdata/untouched.onnx");
    let publish = |plan: &str| format!("pool models publish --untouched {} --plan {plan} {SIGNED}", model.display());
    let plan = root.join("deploy/pool-models-plan.toml").display().to_string();
    check(at, &format!("rollout plan {plan}"), &["is sound: 1 stages, 3 guards"]);
    check(at, "rollout keygen keys", &[]);
    check(at, &format!("rollout init {SIGNED}"), &[]);
    // The plan for agents.
    let agents = root.join("deploy/rollout-plan.toml").display().to_string();
    refused(at, &publish(&agents), &["compares what agents report"]);
    refused(at, &publish("nowhere.toml"), &["nowhere.toml"]);

    refused(
        at,
        &publish(&plan),
        &["bundle 1 (models-", "the rollout of bundle 1 does not begin: no bundle is assigned yet", "rollout assign"],
    );
    check(at, &format!("rollout assign --rollout first --bundle 1 --share 100% --control 0% {SIGNED}"), &["follow bundle 1"]);
    let dry = ["nothing is written: bundle 2", "nothing is written: the rollout of bundle 2 begins by"];
    check(at, &format!("{} --dry-run", publish(&plan)), &dry);
    check(at, &publish(&plan), &["bundle 2 (models-", "of bundle 2 begins in night (20% of the machines)"]);
    refused(at, &publish(&plan), &["bundle 3 (models-", "of bundle 2 is running, in night", "rollout status"]);
    check(at, &format!("rollout stop {SIGNED}"), &[]);
    refused(at, &publish(&plan), &["of bundle 2 is stopped"]);
    check(at, &format!("rollout rollback {SIGNED}"), &[]);
    check(at, &publish(&plan), &["of bundle 5 begins in night"]);
}

#[test]
fn a_plan_for_agents_is_refused_for_models() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    begun(at, "");
    ended(at, since(at) + 3, 300_000, GOOD);
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
