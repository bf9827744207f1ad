//! `thermocline pool models` as an operator meets it: publish, assign, fetch on a host, revoke.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;

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
