//! "What if" of a scheduler's log: the commands of `docs/pool-scheduler.md`, as they are printed there.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use scheduler::api::VmRequest;
use scheduler::client::Client;
use scheduler::service;
use scheduler::settings::Settings;
use serde_json::Value;
use units::Bytes;

const CONFIG: &str = r#"
listen = "127.0.0.1:0"
node_cores = 8
node_memory = "16GiB"
[[pools]]
name = "p"
slices = 16
hosts = ["a", "b", "c"]
[[pools]]
name = "q"
slices = 8
hosts = ["d", "e"]
"#;
const VMS: u64 = 80;

/// Writes `scheduler.log` of a cluster that runs short of slices and of memory. Returns the number of VMs that were placed.
fn log(directory: &Path) -> u64 {
    let text = format!("log = \"{}/scheduler.log\"\n{CONFIG}", directory.display());
    let scheduler = service::start(&Settings::parse(Path::new("test.toml"), &text).unwrap(), true).unwrap();
    let client = Client::new(&[format!("http://{}", scheduler.address)], None, Duration::from_secs(60)).unwrap();
    let mut placed = 0;
    for vm in 0..VMS {
        let memory_bytes = Bytes::gib(4 + vm % 5);
        let request = VmRequest { vm: format!("vm-{vm}"), cores: 2, memory_bytes, pool_bytes: Bytes(memory_bytes.0 / 2), spread: None };
        placed += u64::from(client.place(&request).is_ok());
        if vm % 3 == 2 {
            // Of those that were placed; a refused one does not run.
            let _ = client.end(&format!("vm-{}", vm / 2));
        }
        if vm == 20 {
            client.drain("b", true).unwrap();
        }
    }
    scheduler.stop();
    placed
}

fn run(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_thermocline")).current_dir(directory).args(arguments).output().unwrap()
}

fn json(directory: &Path, command: &str) -> Value {
    let arguments: Vec<&str> = command.split_whitespace().chain(["--format", "json"]).collect();
    let done = run(directory, &arguments);
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

/// The commands of the page's section, in order.
fn documented() -> Vec<String> {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pool-scheduler.md")).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("What if\n")).unwrap();
    let pieces = section.lines().flat_map(|line| line.split('`'));
    pieces.filter_map(|piece| piece.strip_prefix("thermocline ")).map(ToOwned::to_owned).collect()
}

#[test]
fn the_documented_commands_answer_what_if() {
    let directory = tempfile::tempdir().unwrap();
    let placed = log(directory.path());
    let commands = documented();
    assert_eq!(commands.len(), 7, "{commands:?}");
    for command in &commands {
        let done = run(directory.path(), &command.split_whitespace().collect::<Vec<_>>());
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    }
    let simulated = json(directory.path(), "pool scheduler replay scheduler.log --simulate");
    assert_eq!((&simulated["placed_as_simulated_ratio"], &simulated["vms"]), (&Value::from(1.0), &Value::from(VMS)), "{simulated:#}");
    assert_eq!(simulated["refused_replayed"], VMS - placed);
    let local = |answer: &Value| answer["local_replayed"].as_u64().unwrap();
    assert!(placed < VMS && local(&simulated) > 0, "the cluster is not short of anything: {simulated:#}");
    let smaller = json(directory.path(), "pool scheduler replay scheduler.log --pool-size 50%");
    assert!(local(&smaller) > local(&simulated), "{smaller:#}");
    // By what was requested, VMs that were all local have pool memory, too.
    let both = "pool simulate --trace vms.parquet --memory recorded,requested --pool-sizes 4 --latency 64ns";
    let both = json(directory.path(), both);
    // Not a share of time: the whole log may be of one second.
    let pooled = |row: usize| both["results"][row]["measured"]["pooled"].as_u64().unwrap();
    assert!(both["vms"] == placed && pooled(0) > 0 && pooled(1) > pooled(0), "{both:#}");
    assert_eq!(both["missing"]["recorded_vms"], 0);
}

#[test]
fn a_log_that_another_policy_decided_exits_with_1() {
    let directory = tempfile::tempdir().unwrap();
    log(directory.path());
    let path = directory.path().join("scheduler.log");
    let text = std::fs::read_to_string(&path).unwrap().replacen("\"pool_balance\"", "\"worst_fit\"", 1);
    std::fs::write(&path, text).unwrap();
    let done = run(directory.path(), &["pool", "scheduler", "replay", "scheduler.log", "--simulate"]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.code() == Some(1) && said.contains("% placed as simulated") && said.contains(", now "), "{said}");
}

#[test]
fn a_trace_of_no_scheduler_is_refused_for_recorded_memory() {
    let directory = tempfile::tempdir().unwrap();
    let made = run(directory.path(), &["pool", "generate", "--vms", "50", "--days", "1", "--out", "vms.parquet"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for memory in ["recorded", "requested"] {
        let done = run(directory.path(), &["pool", "simulate", "--trace", "vms.parquet", "--memory", memory]);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && said.contains("no pool_bytes") && said.contains("pool import scheduler.log"), "{said}");
    }
}
