//! A small ground-truth workload, and the queries about it.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Memory with a shorter idle time counts as hot, even when this machine is busy with other tests.
const IDLE_MS: u64 = 1500;

/// A running workload.
struct Workload {
    process: Child,
    output: BufReader<ChildStdout>,
    directory: tempfile::TempDir,
    layout: Value,
}

impl Workload {
    fn start(regions: Value) -> Self {
        Self::start_spec(&json!({"seed": 1, "regions": regions}))
    }

    fn start_spec(workload: &Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (spec, layout) = (directory.path().join("spec.json"), directory.path().join("layout.json"));
        std::fs::write(&spec, workload.to_string()).unwrap();
        let mut process = labguest(["workload".into(), spec, "--layout".into(), layout.clone()]).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        assert_eq!(line(&mut output), "ready\n");
        let layout = serde_json::from_slice(&std::fs::read(layout).unwrap()).unwrap();
        Self { process, output, directory, layout }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the region's entry in the layout.
    fn region(&self, name: &str) -> &Value {
        self.layout["regions"].as_array().unwrap().iter().find(|region| region["name"] == name).unwrap()
    }

    fn bytes(&self, name: &str) -> u64 {
        let region = self.region(name);
        region["end"].as_u64().unwrap() - region["start"].as_u64().unwrap()
    }

    /// Runs one of the queries about the workload.
    fn query(&self, query: &str, more: &[&str]) -> Value {
        let output = labguest([query.into(), self.path("layout.json")]).args(more).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn truth(&self) -> Value {
        self.query("truth", &["--idle-ms", &IDLE_MS.to_string()])
    }

    /// Queries idle memory until `condition` is true.
    fn await_truth(&self, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let truth = self.truth();
            if condition(&truth) {
                return truth;
            }
            assert!(Instant::now() < deadline, "{truth}");
        }
    }

    /// Compares a verdict that considers these regions cold.
    fn compare(&self, cold: &[&str], pid: &Value) -> Value {
        let cold: Vec<Value> = cold.iter().map(|name| json!([self.region(name)["start"], self.region(name)["end"]])).collect();
        let verdict = self.path("verdict.json");
        std::fs::write(&verdict, json!({"pid": pid, "cold": cold, "tracker": "test"}).to_string()).unwrap();
        self.query("truth", &["--idle-ms", &IDLE_MS.to_string(), "--slack-ms", "0", "--compare", verdict.to_str().unwrap()])
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").arg(signal).arg(self.process.id().to_string()).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits for a process to exit; after a minute it is killed and the test fails.
fn ended(process: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status;
        }
        let late = Instant::now() > deadline;
        if late {
            process.kill().unwrap();
        }
        assert!(!late, "process {} did not exit", process.id());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn labguest<const N: usize>(arguments: [PathBuf; N]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_labguest"));
    command.args(arguments);
    command
}

fn line(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line
}

/// Returns a field of a region in an answer.
fn field<'a>(answer: &'a Value, region: &str, field: &str) -> &'a Value {
    &answer["regions"].as_array().unwrap().iter().find(|entry| entry["name"] == region).unwrap()[field]
}

fn region(name: &str, kind: &str, pattern: Value) -> Value {
    json!({"name": name, "bytes": if kind == "huge" { 4 << 20 } else { 300 << 10 }, "kind": kind, "pattern": pattern})
}

#[test]
fn all_kinds_are_idle_or_hot_as_specified() {
    let hot = json!({"period_ms": 20});
    let kinds = ["anon", "shared", "memfd", "file", "huge", "incompressible", "weights"];
    let mut regions = vec![region("zipf", "anon", json!({"zipf": {"exponent": 0.5, "touches_per_s": 20_000}}))];
    for kind in kinds {
        regions.push(region(&format!("hot-{kind}"), kind, hot.clone()));
        regions.push(region(&format!("dead-{kind}"), kind, json!({"never": true})));
    }
    regions[1]["writes"] = true.into();
    let mut workload = Workload::start(regions.into());
    let truth = workload.await_truth(|truth| field(truth, "dead-weights", "idle_bytes") != 0);
    let mut total = workload.bytes("zipf");
    for kind in kinds {
        let (hot, dead) = (format!("hot-{kind}"), format!("dead-{kind}"));
        assert_eq!(field(&truth, &hot, "idle_bytes"), 0, "{truth}");
        assert!(field(&truth, &hot, "sweeps").as_u64().unwrap() > 5, "{truth}");
        assert_eq!(*field(&truth, &dead, "idle_bytes"), workload.bytes(&dead), "{truth}");
        assert_eq!(field(&truth, &dead, "sweeps"), 1, "{truth}");
        total += workload.bytes(&hot) + workload.bytes(&dead);
    }
    // The least popular of 75 pages has 44 accesses per second.
    assert_eq!(field(&truth, "zipf", "idle_bytes"), 0, "{truth}");
    assert_eq!(truth["total_bytes"], total);
    assert_eq!(workload.region("dead-huge")["start"].as_u64().unwrap() % (2 << 20), 0);

    let pid = workload.layout["pid"].clone();
    let dead: Vec<String> = kinds.iter().map(|kind| format!("dead-{kind}")).collect();
    let dead: Vec<&str> = dead.iter().map(String::as_str).collect();
    let correct = workload.compare(&dead, &pid);
    assert_eq!(
        (&correct["misplaced_bytes"], &correct["misplaced_ratio"], &correct["cold_outside_bytes"]),
        (&0.into(), &0.0.into(), &0.into())
    );
    let wrong = workload.compare(&["dead-anon", "hot-file"], &pid);
    assert_eq!(*field(&wrong, "hot-file", "cold_not_idle_bytes"), workload.bytes("hot-file"), "{wrong}");
    assert_eq!(*field(&wrong, "dead-huge", "idle_not_cold_bytes"), workload.bytes("dead-huge"), "{wrong}");
    assert_eq!(field(&wrong, "dead-anon", "idle_not_cold_bytes"), 0, "{wrong}");
    // A verdict about the child concerns only shared memory.
    let child = workload.region("hot-shared")["toucher_pid"].clone();
    assert_ne!(child, pid);
    let of_child = workload.compare(&["dead-shared"], &child);
    assert_eq!(of_child["regions"].as_array().unwrap().len(), 2, "{of_child}");
    assert_eq!(of_child["misplaced_bytes"], 0, "{of_child}");

    let residency = workload.query("residency", &[]);
    for name in ["hot-anon", "hot-shared", "hot-memfd", "hot-file"] {
        assert_eq!(*field(&residency, name, "present_bytes"), workload.bytes(name), "{residency}");
    }
    let file = workload.path("layout.json.hot-file.data");
    assert!(file.exists());
    workload.signal("-TERM");
    assert!(ended(&mut workload.process).success());
    assert!(!file.exists());
}

#[test]
fn blocks_have_their_rates_and_a_signal_changes_them() {
    const BLOCK: u64 = 2 << 20;
    let poisson = |draw: u64| json!({"least": 5.0, "most": 500.0, "idle": 0.5, "parts": 4, "draw": draw});
    let phases = json!({"phases": [{"for_s": 3600, "poisson": poisson(0)}, {"for_s": 3600, "poisson": poisson(1)}]});
    let region = json!({"name": "blocks", "bytes": 8 * BLOCK, "kind": "anon", "pattern": phases});
    let mut workload = Workload::start(json!([region]));
    let start = workload.region("blocks")["start"].as_u64().unwrap();
    // Accesses of each block since `before`, and the elapsed seconds.
    let since = |workload: &Workload, before: &Value| {
        let now = workload.query("accesses", &[]);
        let of = |answer: &Value| -> Vec<u64> {
            answer["regions"][0]["blocks"].as_array().unwrap().iter().map(|block| block["accesses"].as_u64().unwrap()).collect()
        };
        let seconds = (now["at_ns"].as_u64().unwrap() - before["at_ns"].as_u64().unwrap()) as f64 / 1e9;
        let counts: Vec<u64> = of(&now).iter().zip(of(before)).map(|(now, before)| now - before).collect();
        (counts, seconds)
    };
    let mut hottest = Vec::new();
    for phase in 0..2 {
        if phase > 0 {
            workload.signal("-USR1");
            assert_eq!(line(&mut workload.output), "phase 1\n");
        }
        let before = workload.query("accesses", &[]);
        let blocks = before["regions"][0]["blocks"].as_array().unwrap();
        let addresses: Vec<u64> = blocks.iter().map(|block| block["address"].as_u64().unwrap()).collect();
        assert_eq!(addresses, (0..8).map(|block| start + block * BLOCK).collect::<Vec<_>>());
        let deadline = Instant::now() + Duration::from_secs(60);
        let (counts, seconds) = loop {
            let (counts, seconds) = since(&workload, &before);
            if counts.iter().sum::<u64>() > 2000 {
                break (counts, seconds);
            }
            assert!(Instant::now() < deadline, "{counts:?}");
        };
        assert_eq!(counts.iter().filter(|&&count| count == 0).count(), 4, "{counts:?}");
        let most = *counts.iter().max().unwrap();
        // The hottest block has 500 of 637 accesses per second; a busy machine catches up on delayed accesses.
        let (rate, share) = (most as f64 / seconds, most as f64 / counts.iter().sum::<u64>() as f64);
        assert!((250.0..1000.0).contains(&rate) && (0.7..0.87).contains(&share), "{counts:?} in {seconds} s");
        hottest.push(counts.iter().position(|&count| count == most).unwrap());
    }
    assert_ne!(hottest[0], hottest[1]);
}

#[test]
fn accesses_are_reported_by_node() {
    let region = json!({"name": "blocks", "bytes": 4 << 20, "kind": "anon", "pattern": {"poisson": {"least": 200, "most": 200}}});
    let mut workload = Workload::start(json!([region]));
    let mut nodes =
        labguest(["nodes".into(), workload.path("layout.json")]).args(["--every-ms", "200"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(nodes.stdout.take().unwrap());
    let mut total = 0;
    for _ in 0..3 {
        let report: Value = serde_json::from_str(&line(&mut output)).unwrap();
        let of = |field: &str| -> u64 { report["nodes"].as_object().unwrap().values().map(|node| node[field].as_u64().unwrap()).sum() };
        assert_eq!(report["absent_accesses"], 0, "{report}");
        // A kernel without NUMA reports no bytes.
        assert!([0, workload.bytes("blocks")].contains(&of("bytes")), "{report}");
        total += of("accesses");
    }
    assert!(total > 50, "{total} accesses");
    workload.signal("-TERM");
    assert!(ended(&mut workload.process).success());
    // It exits with the workload.
    assert!(ended(&mut nodes).success());
}

#[test]
fn the_exit_of_a_workload_without_accesses_is_noticed() {
    let mut workload = Workload::start(json!([region("still", "anon", json!({"never": true}))]));
    let mut nodes =
        labguest(["nodes".into(), workload.path("layout.json")]).args(["--every-ms", "50"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(nodes.stdout.take().unwrap());
    line(&mut output);
    workload.signal("-TERM");
    assert!(ended(&mut workload.process).success());
    assert!(ended(&mut nodes).success());
}

#[test]
fn requests_are_served_at_their_rate_and_reported() {
    let requests = |pages| json!({"requests": {"exponent": 1.0, "pages": pages}});
    let regions = [region("cache", "file", requests(1)), region("model", "weights", requests(3))];
    let server = json!({"rounds": 100, "rate": 1000});
    let mut workload = Workload::start_spec(&json!({"seed": 1, "regions": regions, "server": server}));
    for t in 1..=2 {
        let report: Value = serde_json::from_str(&line(&mut workload.output)).unwrap();
        assert_eq!(report["t"], t, "{report}");
        assert!((200..=1800).contains(&report["ops"].as_u64().unwrap()) && report["p99_us"].is_u64(), "{report}");
        assert!(report["access_us"].as_u64().unwrap() < 1_000_000, "{report}");
        assert!(report["faulted_us"].as_u64().unwrap() <= report["access_us"].as_u64().unwrap(), "{report}");
    }
    workload.signal("-TERM");
    let mut rest = String::new();
    workload.output.read_to_string(&mut rest).unwrap();
    let summary: Value = serde_json::from_str(rest.lines().last().unwrap()).unwrap();
    assert!(summary["requests"].as_u64().unwrap() >= 1000, "{summary}");
    assert!((0.0..1.0).contains(&summary["access_share"].as_f64().unwrap()), "{summary}");
}

#[test]
fn phases_change_on_a_signal_and_by_time() {
    let phases = json!({"phases": [{"for_s": 3600, "period_ms": 20}, {"for_s": 3600, "never": true}, {"for_s": 0.05, "period_ms": 20}]});
    let mut workload = Workload::start(json!([region("a", "anon", phases.clone()), region("b", "shared", phases)]));
    let sweeps = |truth: &Value, name: &str| field(truth, name, "sweeps").as_u64().unwrap();
    workload.await_truth(|truth| sweeps(truth, "a") > 3 && sweeps(truth, "b") > 3);
    workload.signal("-USR1");
    assert_eq!(line(&mut workload.output), "phase 1\n");
    let idle = workload.await_truth(|truth| truth["idle_bytes"] == truth["total_bytes"]);
    workload.signal("-USR1");
    assert_eq!(line(&mut workload.output), "phase 2\n");
    assert_eq!(line(&mut workload.output), "phase 3\n");
    workload.await_truth(|truth| sweeps(truth, "a") > sweeps(&idle, "a") + 3 && sweeps(truth, "b") > sweeps(&idle, "b") + 3);
}

#[test]
fn the_workload_exits_with_its_child() {
    let mut workload = Workload::start(json!([region("shared", "shared", json!({"period_ms": 20}))]));
    let child = workload.region("shared")["toucher_pid"].to_string();
    assert!(Command::new("kill").args(["-KILL", &child]).status().unwrap().success());
    assert!(!ended(&mut workload.process).success());
}

#[test]
fn invalid_files_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str, content: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let spec = path("spec.json", r#"{"seed":1,"regions":[],"colour":1}"#);
    let layout = path("layout.json", r#"{"pid":1,"page_bytes":4096,"truth":"/no/such/record","regions":[]}"#);
    let broken = path("broken.json", "{");
    let none = directory.path().join("none");
    for (arguments, error) in [
        (vec!["workload".into(), spec, "--layout".into(), none.clone()], "colour"),
        (vec!["workload".into(), none.clone(), "--layout".into(), none.clone()], "none"),
        (vec!["truth".into(), layout, "--idle-ms".into(), "1".into()], "/no/such/record"),
        (vec!["truth".into(), broken.clone(), "--idle-ms".into(), "1".into()], "broken.json"),
        (vec!["residency".into(), broken], "broken.json"),
        (vec!["residency".into(), none], "none"),
    ] {
        let output = labguest([]).args(&arguments).output().unwrap();
        let error_text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error_text.contains(error), "{arguments:?}: {error_text}");
    }
}
