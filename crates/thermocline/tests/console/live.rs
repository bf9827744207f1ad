//! A rollout and a pool, as the console shows them: compared with the commands that show the same.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use manager::api::AssignRequest;
use manager::client::{Client, Identity};
use pool::Slices;
use serde_json::{Value, json};

use super::Console;
use super::rollouts::program::check;
use super::rollouts::{SIGNED, json, published, since, traced};

const READ: &str = "--store store --root root.json";

/// A rollout that was held, pinned, resumed and promoted; and with a harm, rolled back.
fn rolled(at: &Path, harm: bool) {
    published(at);
    let step = format!("rollout step {SIGNED} --trace traces");
    check(at, &format!("rollout start 7 --plan plan.toml --id r {SIGNED}"), &[]);
    for _ in 0..3 {
        check(at, &step, &["hold"]);
    }
    let began = since(at);
    traced(at, "r", began - 1_800_000, 0, 0.0);
    traced(at, "r", began + 2_000, 300_000, 0.001);
    check(at, &format!("rollout pin --why <b>inspection</b> {SIGNED}"), &[]);
    check(at, &step, &["pinned"]);
    check(at, &format!("rollout resume {SIGNED}"), &[]);
    check(at, &step, &["promote: to all"]);
    if harm {
        traced(at, "r", since(at) + 2_000, 600_000, 0.2);
        check(at, &step, &["roll back"]);
    }
}

fn path(directory: &Path, name: &str) -> String {
    directory.join(name).to_str().unwrap().to_owned()
}

fn console_of(at: &Path) -> Console {
    Console::start(&["--rollout", &path(at, "store"), "--rollout-root", &path(at, "root.json")])
}

#[test]
fn the_rollout_view_shows_the_figures_of_rollout_status() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    rolled(at, true);
    let status = json(at, &format!("rollout status {READ} --last 100"));
    let shown = console_of(at).ready("/api/rollout").json();
    for figure in ["rollout", "bundle", "previous", "since_unix_ms", "started_unix_ms", "stage"] {
        assert_eq!(shown[figure], status["state"][figure], "{figure}");
    }
    assert_eq!((&shown["place"], &shown["published_agrees"]), (&status["place"], &status["published_agrees"]));
    assert_eq!((shown["phase"].as_str(), shown["published_agrees"].as_bool()), (Some("rolled back"), Some(true)));
    assert_eq!(shown["knobs"], json!([["cold_age.percentile", "98%"]]));
    // Each stage has its own last evaluation: that of the promotion, and that of the roll back.
    let records = status["records"].as_array().unwrap();
    let evaluation = |record: &Value| record["event"]["evaluated"]["evaluation"].clone();
    let promotion = records.iter().find(|record| record["event"]["evaluated"]["decision"].get("promote").is_some()).unwrap();
    let stages = shown["stages"].as_array().unwrap();
    assert_eq!((&stages[0]["is"], &stages[0]["evaluation"]), (&json!("done"), &evaluation(promotion)));
    assert_eq!((&stages[1]["is"], &stages[1]["evaluation"]), (&json!("rolled back"), &evaluation(records.last().unwrap())));
    assert_eq!(stages[1]["evaluation"]["judgements"][0]["verdict"], "breach");
    assert!(stages[0]["evaluation"]["treated_machines"].as_u64().unwrap() >= 3);
    assert_eq!(shown["guards"][0]["meaning"], "share of a job's time in which some task waited for memory");
    // Three holds are one row; markup in a reason stays text.
    let steps = shown["steps"].as_array().unwrap();
    let steps: Vec<_> = steps.iter().map(|step| (step["what"].as_str().unwrap(), step["count"].as_u64().unwrap())).collect();
    let kinds = [("started", 1), ("hold", 3), ("pinned", 1), ("hold", 1), ("resumed", 1), ("promoted", 1), ("rolled back", 1)];
    assert_eq!(steps, kinds);
    assert!(shown["steps"][2]["why"].as_str().unwrap().ends_with(": <b>inspection</b>"), "{}", shown["steps"][2]);
}

#[test]
fn a_rollout_that_is_absent_or_damaged_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let answer = Console::start(&["--set", &format!("agent.state_dir={}", at.display())]).ready("/api/rollout");
    assert!(answer.status == 503 && answer.body.contains("absent") && answer.body.contains("--rollout"), "{}", answer.body);
    published(at);
    let answer = console_of(at).ready("/api/rollout");
    assert!(answer.status == 503 && answer.body.contains("absent") && answer.body.contains("thermocline rollout start"), "{}", answer.body);
    check(at, &format!("rollout start 7 --plan plan.toml --id r {SIGNED}"), &[]);
    // Without a root that verifies it, what is published is unknown; the log still says what was decided.
    let console = Console::start(&["--rollout", &path(at, "store"), "--rollout-root", &path(at, "plan.toml")]);
    let shown = console.ready("/api/rollout").json();
    assert!(shown["published_agrees"].is_null() && shown["published_problem"].as_str().unwrap().contains("root metadata"), "{shown}");
    std::fs::write(at.join("store/log/r/00000000.json"), "rubbish").unwrap();
    let answer = console_of(at).ready("/api/rollout");
    assert!(answer.status == 503 && answer.body.contains("failed") && answer.body.contains("00000000.json"), "{}", answer.body);
    let missing = Command::new(env!("CARGO_BIN_EXE_thermocline")).args(["console", "--rollout", &path(at, "missing")]).output().unwrap();
    assert!(missing.status.code() == Some(1) && String::from_utf8_lossy(&missing.stderr).contains("missing"), "{missing:?}");
}

/// A manager with certificates, killed at the end.
struct Pool {
    child: Child,
    directory: tempfile::TempDir,
    url: String,
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Pool {
    /// Six slices at two controllers, hosts a and b.
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        check(at, "pool certificates certs --host a --host b", &[]);
        let config = "listen = \"127.0.0.1:0\"\nledger = \"ledger.redb\"\npool_dir = \"pool\"\nslice_size = \"128MiB\"\n\
                      emcs = [{ slices = 4 }, { slices = 2 }]\nhosts = [\"a\", \"b\"]\noperators = [\"operator\"]\nlease = \"2s\"\n\
                      [tls]\ncert = \"certs/manager.pem\"\nkey = \"certs/manager.key\"\nclient_ca = \"certs/ca.pem\"\n";
        std::fs::write(at.join("pool.toml"), config).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_thermocline"))
            .args(["pool", "manager", "--config", &path(at, "pool.toml")])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = loop {
            let line = lines.next().unwrap().unwrap();
            if let Some((_, port)) = line.rsplit_once(" on 127.0.0.1:") {
                break format!("https://localhost:{port}");
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, directory, url }
    }

    fn identity(&self, name: &str) -> PathBuf {
        self.directory.path().join("certs").join(name)
    }

    fn client(&self, name: &str) -> Client {
        Client::new(&self.url, Some(&Identity::at(&self.identity(name))), Duration::from_secs(10)).unwrap()
    }

    fn console(&self) -> Console {
        Console::start(&["--pool", &self.url, "--identity", self.identity("operator").to_str().unwrap(), "--refresh", "1s"])
    }
}

/// The pool, once it is as expected.
fn settled(console: &Console, expected: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let answer = console.ready("/api/pool").json();
        if expected(&answer) || begun.elapsed() > Duration::from_secs(30) {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_pool_view_shows_the_figures_of_pool_status() {
    let pool = Pool::start();
    let (at, host) = (pool.directory.path(), pool.client("a"));
    let lease = host.lease("a", "run <i>1</i>").unwrap();
    let assign = |vm: &str, slices| AssignRequest { epoch: lease.epoch, request: vm.to_owned(), vm: vm.to_owned(), slices: Slices(slices) };
    host.assign("a", &assign("web", 3)).unwrap();
    let audit = || check(at, "--format json pool manager audit --config pool.toml", &[]);
    let before = audit();
    let console = pool.console();
    let shown = console.ready("/api/pool").json();
    let status = json(at, &format!("pool status --manager {} --identity certs/operator", pool.url));
    for figure in ["slice_bytes", "slices", "grantable", "buffer_slices", "emcs"] {
        assert_eq!(shown[figure], status[figure], "{figure}");
    }
    for figure in ["host", "epoch", "instance", "vms", "slices"] {
        assert_eq!(shown["hosts"][0][figure], status["hosts"][0][figure], "{figure}");
    }
    let guest = &shown["guests"][0];
    assert_eq!((&guest["vm"], &guest["host"], &guest["slices"]), (&json!("web"), &json!(0), &json!(3)));
    let map = shown["maps"].as_array().unwrap().iter().find(|map| map["emc"] == guest["emc"]).unwrap();
    assert_eq!(map["states"].as_str().unwrap().matches('o').count(), 3);
    assert_eq!(map["guests"].as_array().unwrap().iter().filter(|found| **found == json!("web")).count(), 3);
    assert_eq!(shown["faults"], json!([]));
    assert_eq!(audit(), before, "the console changed nothing");

    // The host is silent until its lease expires, then its controller fails.
    let expired = settled(&console, |pool| pool["hosts"][0]["lease_left_seconds"].is_null());
    assert!(expired["hosts"][0]["lease_left_seconds"].is_null(), "{expired}");
    pool.client("operator").emc_failed(u16::try_from(guest["emc"].as_u64().unwrap()).unwrap()).unwrap();
    let failed = settled(&console, |pool| pool["slices"]["failed"] != 0);
    let fault = failed["faults"][0]["what"].as_str().unwrap();
    assert!(fault.contains(&format!("EMC {} has failed", guest["emc"])), "{failed}");
    assert!(failed["maps"].as_array().unwrap().iter().any(|map| map["states"].as_str().unwrap().starts_with('x')), "{failed}");
}

#[test]
fn a_pool_that_is_absent_unreachable_or_refuses_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let state = format!("agent.state_dir={}", directory.path().display());
    let answer = Console::start(&["--set", &state]).ready("/api/pool");
    assert!(answer.status == 503 && answer.body.contains("absent") && answer.body.contains("--pool"), "{}", answer.body);
    let answer = Console::start(&["--set", &state, "--pool", "http://127.0.0.1:9"]).ready("/api/pool");
    assert!(answer.status == 503 && answer.body.contains("no pool manager answers at http://127.0.0.1:9"), "{}", answer.body);
    // A manager that stops is reported, one that is back is shown.
    let mut pool = Pool::start();
    let console = pool.console();
    assert_eq!(console.ready("/api/pool").status, 200);
    pool.child.kill().unwrap();
    pool.child.wait().unwrap();
    let begun = Instant::now();
    while console.get("/api/pool").status == 200 && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(100));
    }
    let answer = console.get("/api/pool");
    assert!(answer.status == 503 && answer.body.contains("no pool manager answers"), "{}", answer.body);
    let missing = path(directory.path(), "none");
    let arguments = ["console", "--pool", "https://localhost:9", "--identity", &missing];
    let output = Command::new(env!("CARGO_BIN_EXE_thermocline")).args(arguments).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.contains("--identity") && error.contains("ca.pem"), "{error}");
}

/// Writes two rollouts into the directory that the environment variable CONSOLE_ROLLOUTS names: one is running, one is rolled back.
#[test]
#[ignore = "for make test-console"]
fn write_the_rollouts_of_the_browser_tests() {
    let directory = PathBuf::from(std::env::var_os("CONSOLE_ROLLOUTS").unwrap());
    for (name, harm) in [("running", false), ("rolled-back", true)] {
        let at = directory.join(name);
        std::fs::create_dir_all(&at).unwrap();
        rolled(&at, harm);
    }
}
