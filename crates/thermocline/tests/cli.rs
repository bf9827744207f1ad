//! The command line as users and their scripts meet it: exit codes, what is printed where, and JSON that parses.
//!
//! Nothing here moves memory or changes this machine.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use agent::view::{Published, View};
use serde_json::Value;

/// What one run of the program did.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("no JSON: {error}: {self:?}"))
    }
}

fn finish(command: &mut Command) -> Ran {
    let output = command.env_remove("THERMOCLINE_LOG").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

fn thermocline(arguments: &[&str]) -> Ran {
    finish(Command::new(env!("CARGO_BIN_EXE_thermocline")).args(arguments))
}

/// Runs the program and expects an exit code, and pieces of text on standard output and standard error. Where a
/// stream is to hold nothing, it must be empty.
fn check(arguments: &[&str], code: i32, out: &[&str], err: &[&str]) -> Ran {
    let ran = thermocline(arguments);
    assert_eq!(ran.code, Some(code), "{arguments:?}: {ran:?}");
    for (stream, pieces) in [(&ran.out, out), (&ran.err, err)] {
        assert!(!pieces.is_empty() || stream.is_empty(), "{arguments:?}: {ran:?}");
        for piece in pieces {
            assert!(stream.contains(piece), "{arguments:?} does not say {piece:?}: {ran:?}");
        }
    }
    ran
}

fn file(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn golden_journal() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../node/agent/tests/journal-6.12-idle.jsonl");
    path.to_str().unwrap().to_owned()
}

const COMMANDS: [&str; 13] =
    ["doctor", "observe", "run", "agent", "status", "explain", "hint", "replay", "plan", "rates", "config", "completions", "man"];

#[test]
fn help_names_every_command_and_each_explains_itself() {
    check(&["--help"], 0, &COMMANDS, &[]);
    for command in COMMANDS {
        check(&[command, "--help"], 0, &["Usage: thermocline", "--format"], &[]);
    }
    let hidden = thermocline(&["--help"]);
    assert!(!hidden.out.contains("reclaim-child"), "{hidden:?}");
    check(&["--version"], 0, &[env!("CARGO_PKG_VERSION")], &[]);
    check(&[], 2, &[], &["Usage: thermocline"]);
    check(&["statsu"], 2, &[], &["status"]);
    check(&["--format", "yaml", "doctor"], 2, &[], &["text", "json"]);
    check(&["--set", "agent.scan_period", "config", "check"], 2, &[], &["KEY=VALUE"]);
}

#[test]
fn completions_and_man_pages_come_from_the_same_arguments() {
    for shell in ["bash", "zsh", "fish"] {
        check(&["completions", shell], 0, &["doctor", "explain", "format"], &[]);
    }
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("man1");
    check(&["man", target.to_str().unwrap()], 0, &[], &[]);
    for command in COMMANDS {
        let page = std::fs::read_to_string(target.join(format!("thermocline-{command}.1"))).unwrap();
        assert!(page.contains(".TH"), "{command}: {page}");
    }
    let blocked = file(directory.path(), "file", "");
    check(&["man", &blocked], 1, &[], &["cannot create", &blocked]);
}

#[test]
fn an_invalid_configuration_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let good = file(directory.path(), "good.toml", "[agent]\nscan_period = \"30s\"\n[[job]]\ncgroup = \"/a/*\"\nclass = \"standard\"\n");
    check(&["--config", &good, "config", "check"], 0, &["is valid"], &[]);
    let sound = check(&["--config", &good, "config", "check", "--format", "json"], 0, &["true"], &[]);
    assert_eq!(sound.json()["ok"], true);
    let shown = check(&["--config", &good, "config", "show", "--format", "json"], 0, &["scan_period"], &[]);
    assert!(shown.json().is_object());
    let knobs = check(&["--config", &good, "config", "knobs", "--format", "json"], 0, &["scan_period"], &[]).json();
    let knob = |key: &str| knobs.as_array().unwrap().iter().find(|knob| knob["key"] == key).unwrap().clone();
    let rate = knob("cold_age.promotion_rate");
    assert_eq!((&rate["value"], &rate["number"], &rate["search"]["scale"]), (&"0.2%".into(), &0.002.into(), &"log".into()));
    assert!(rate["search"]["low"].as_f64() < rate["number"].as_f64() && knob("agent.state_dir")["search"].is_null());
    check(&["--config", &good, "config", "knobs"], 0, &["tuner searches", "cold_age.promotion_rate", "0% to 100%"], &[]);
    // What is shown is itself a configuration, and says the same.
    let text = check(&["--config", &good, "config", "show"], 0, &["scan_period = \"30s\""], &[]).out;
    let again = file(directory.path(), "again.toml", &text);
    assert_eq!(check(&["--config", &again, "config", "show"], 0, &["scan_period"], &[]).out, text);

    let bad_text = "[agent]\nscan_periodd = \"30s\"\ncpu_budget = \"-1%\"\n[[job]]\ncgroup = \"/a\"\nclass = \"eager\"\n";
    let bad = file(directory.path(), "bad.toml", bad_text);
    let complaints = ["line 2", "scan_periodd", "line 3", "cpu_budget", "line 6", "eager"];
    check(&["--config", &bad, "config", "check"], 1, &[], &complaints);
    let ran = check(&["--config", &bad, "config", "check", "--format", "json"], 1, &complaints[1..2], &[]).json();
    assert_eq!((&ran["ok"], ran["problems"].as_array().map(Vec::len)), (&Value::Bool(false), Some(3)));
    // Nothing runs under a configuration that is wrong.
    check(&["--config", &bad, "status"], 1, &[], &["scan_periodd", "eager"]);
    check(&["--config", "/nonexistent/x.toml", "config", "check"], 1, &[], &["/nonexistent/x.toml"]);
    check(&["--config", &good, "--set", "agent.scan_period=soon", "config", "check"], 1, &[], &["command line", "soon"]);
}

#[test]
fn config_check_recognizes_every_kind_of_file() {
    let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
    for (name, kind) in [
        ("thermocline.toml", "agent"),
        ("pool-manager.toml", "pool-manager"),
        ("pool-scheduler.toml", "pool-scheduler"),
        ("pool-host.toml", "pool-host"),
        ("rollout-plan.toml", "rollout-plan"),
    ] {
        let path = format!("{deploy}/{name}");
        check(&["config", "check", &path], 0, &["is valid", &format!("(checked as {kind})")], &[]);
        check(&["config", "check", "--as", kind, &path], 0, &["is valid"], &[]);
    }
    let directory = tempfile::tempdir().unwrap();
    let unclear = file(directory.path(), "x.toml", "");
    check(&["config", "check", &unclear], 1, &[], &["--as agent|pool-manager|pool-scheduler|pool-host|pool-guest|rollout-plan"]);
    let plan = file(directory.path(), "x.toml", "contro = \"5%\"\nsettle = \"1h\"\n");
    check(&["config", "check", &plan], 1, &[], &["checked as rollout-plan", "x.toml, line 1", "perhaps control is meant"]);
}

#[test]
fn doctor_says_what_is_missing_and_its_exit_code_agrees() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("thermocline");
    // Not copied by this process: a child of another test would inherit the open file, and who writes to a program
    // keeps it from being run.
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_thermocline")).arg(&program).status().unwrap().success());
    let agrees = |ran: &Ran| {
        let report = ran.json();
        assert_eq!(ran.code, Some(if report["able"] == true { 0 } else { 3 }), "{ran:?}");
        report
    };
    let report = agrees(&thermocline(&["doctor", "--format", "json"]));
    assert!(report["slow_memory"]["checks"].as_array().is_some_and(|checks| checks.iter().any(|check| check["name"] == "slow_node")));
    let text = thermocline(&["doctor"]).out;
    assert!(text.contains("page_idle") && text.contains("slow_node"), "{text}");

    // As an ordinary user, whoever runs the tests.
    let as_user = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments);
        if kernel::capability::credentials(&kernel::Roots::host()).unwrap().is_root() {
            command.uid(65_534).gid(65_534);
        }
        finish(&mut command)
    };
    let report = agrees(&as_user(&["doctor", "--format", "json"]));
    assert_eq!(report["able"], false);
    let checks = report["checks"].as_array().unwrap();
    let privileges = checks.iter().find(|check| check["name"] == "privileges").unwrap();
    assert_eq!((&privileges["status"], &privileges["remedy"]), (&"missing".into(), &"run as root".into()));
    assert!(as_user(&["doctor"]).out.contains("run as root"));
}

#[test]
fn doctor_checks_the_configured_stores() {
    let directory = tempfile::tempdir().unwrap();
    let (traces, bundles, root) = (directory.path().join("traces"), directory.path().join("bundles"), directory.path().join("root.json"));
    let found = |text: &str, name: &str| {
        let ran = thermocline(&["--config", &file(directory.path(), "own.toml", text), "doctor", "--format", "json"]);
        let report = ran.json();
        let checks = report["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == name).map(|check| (check["status"].as_str().unwrap().to_owned(), check.to_string()))
    };
    let stores = format!("[trace]\nstore = {traces:?}\n[rollout]\nstore = {bundles:?}\nroot = {root:?}\n");
    assert_eq!(found("", "traces").or(found("", "rollout")), None, "nothing is configured");
    assert_eq!(found(&stores, "traces").unwrap().0, "ok");
    let (status, said) = found(&stores, "rollout").unwrap();
    assert!(status == "missing" && said.contains("root.json") && said.contains("rollout init"), "{said}");
    let keys = directory.path().join("keys");
    let words = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    check(&["rollout", "keygen", &words(&keys)], 0, &["targets"], &[]);
    let made = thermocline(&["rollout", "init", "--store", &words(&bundles), "--root", &words(&root), "--keys", &words(&keys)]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let (status, said) = found(&stores, "rollout").unwrap();
    assert!(status == "ok" && said.contains("0 bundles verified, nothing is assigned"), "{said}");
    let (status, said) = found("[trace]\nstor = 1\n", "configuration").unwrap();
    assert!(status == "missing" && said.contains("stor") && said.contains("config check"), "{said}");
}

#[test]
fn a_missing_agent_is_reported_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let set = format!("agent.runtime_dir={}", directory.path().display());
    for command in [&["status"][..], &["explain", "/a"], &["hint", "/a", "auto"]] {
        for format in ["text", "json"] {
            check(&[&["--set", &set, "--format", format], command].concat(), 1, &[], &["agent.sock", "thermocline agent"]);
        }
    }
    let empty = file(directory.path(), "empty.toml", "");
    check(&["--config", &empty, "agent"], 1, &[], &["[[job]]"]);
}

#[test]
fn status_shows_what_the_agent_answers() {
    let directory = tempfile::tempdir().unwrap();
    let view = Published::default();
    view.set(View { kernel: "6.12.0-lake".to_owned(), ..View::default() });
    agent::socket::serve(directory.path(), view, std::sync::mpsc::sync_channel(1).0).unwrap();
    let set = format!("agent.runtime_dir={}", directory.path().display());
    check(&["--set", &set, "status"], 0, &["6.12.0-lake", "promotions"], &[]);
    let ran = check(&["--set", &set, "status", "--format", "json"], 0, &["6.12.0-lake"], &[]);
    assert_eq!(ran.json()["kernel"], "6.12.0-lake");
    check(&["--set", &set, "explain", "/redis"], 1, &[], &["no job /redis"]);
    check(&["--set", &set, "hint", "/redis", "background"], 1, &[], &["no job /redis", "take hints: none"]);
    check(&["--set", &set, "hint", "/redis", "asleep"], 2, &[], &["background, foreground, auto"]);
}

#[test]
fn a_journal_replays_and_a_changed_one_is_noticed() {
    let golden = golden_journal();
    check(&["replay", &golden], 0, &["decisions replayed, 0 differ"], &[]);
    let ran = check(&["replay", &golden, "--format", "json"], 0, &["periods"], &[]).json();
    assert!(ran["periods"].as_u64() > Some(20) && ran["differing"].as_array().is_some_and(Vec::is_empty), "{ran}");

    let directory = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(&golden).unwrap();
    let stricter = text.replace("\"promotion_rate_max\":120000", "\"promotion_rate_max\":1");
    assert_ne!(stricter, text);
    let changed = file(directory.path(), "changed", &stricter);
    let ran = check(&["replay", &changed, "--format", "json"], 3, &["differing"], &[]).json();
    assert!(ran["differing"].as_array().is_some_and(|differing| !differing.is_empty()), "{ran}");

    let rubbish = file(directory.path(), "rubbish", "not a journal\n");
    check(&["replay", &rubbish], 1, &[], &["rubbish:1"]);
    let unfinished = file(directory.path(), "unfinished", "not a journal");
    check(&["replay", &unfinished], 1, &[], &["unfinished:1"]);
    let empty = file(directory.path(), "empty", "");
    check(&["replay", &empty], 3, &[], &["no decisions", "is empty"]);
    let first = text.lines().next().unwrap_or_default();
    let start = file(directory.path(), "start", &format!("{first}\n"));
    check(&["replay", &start], 3, &[], &["no decisions", "none of its 1 records"]);
    let torn = file(directory.path(), "torn", text.get(..text.len() - 20).unwrap_or_default());
    check(&["replay", &torn], 0, &["70 decisions replayed, 0 differ", "the last line is torn"], &[]);
    check(&["replay", "/nonexistent/journal"], 1, &[], &["/nonexistent/journal"]);
    let set = format!("agent.state_dir={}", directory.path().display());
    check(&["--set", &set, "replay"], 1, &[], &[directory.path().to_str().unwrap()]);
}

#[test]
fn rates_wants_a_process_and_sound_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let set = format!("agent.runtime_dir={}", directory.path().display());
    let rates = |arguments: &[&str], code: i32, err: &[&str]| check(&[&["--set", &set, "rates"], arguments].concat(), code, &[], err);
    rates(&[], 2, &["--pid", "--job"]);
    rates(&["--pid", "1", "--job", "/a"], 2, &["cannot be used with"]);
    rates(&["--pid", "0"], 2, &["0"]);
    rates(&["--pid", "1", "--all", "--sample", "10%"], 2, &["cannot be used with"]);
    rates(&["--pid", "1", "--sample", "0%"], 2, &["such as 5%"]);
    rates(&["--pid", "1", "--sampling-interval", "1ms"], 2, &["such as 1s"]);
    rates(&["--pid", "1", "--samples", "1"], 2, &["2..=600"]);
    rates(&["--pid", &i32::MAX.to_string()], 1, &["/proc/2147483647", "is gone"]);
}
