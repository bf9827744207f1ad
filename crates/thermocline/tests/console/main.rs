//! The console as a browser and an attacker meet it, over real sockets; and the generated fleet and rollouts that
//! `make test-console` shows.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use model::fleet::Source;
use model::generate::Fleet;
use model::series::{Row, Series, buckets};
use policy::thresholds::Thresholds;
use serde_json::Value;
use trace::{Basis, Entry, Figures, JobId, Labels, Writer};
use units::{Bytes, Millis, Pages, RatioPpm, UnixMillis};

mod live;
#[expect(dead_code, reason = "here the program refuses nothing")]
#[path = "../rollouts/mod.rs"]
mod rollouts;

const PATIENCE: Duration = Duration::from_secs(60);

/// A running console, which is killed at the end.
struct Console {
    child: Child,
    address: String,
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("no JSON: {error}: {}", self.body))
    }
}

impl Console {
    fn start(arguments: &[&str]) -> Self {
        let listen: &[&str] = if arguments.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        let mut child = Command::new(env!("CARGO_BIN_EXE_thermocline"))
            .args(["--format", "json", "console"])
            .args(listen)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url: Value = serde_json::from_str(&line).unwrap();
        let address = url["url"].as_str().unwrap().trim_start_matches("http://").trim_end_matches('/').replace("0.0.0.0", "127.0.0.1");
        Self { child, address }
    }

    fn ask(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        Answer { status: head.split(' ').nth(1).unwrap().parse().unwrap(), head: head.to_lowercase(), body: body.to_owned() }
    }

    fn get(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address))
    }

    /// The answer once what it needs was read.
    fn ready(&self, path: &str) -> Answer {
        let begun = Instant::now();
        loop {
            let answer = self.get(path);
            if answer.status != 503 || answer.json()["state"] != "loading" || begun.elapsed() > PATIENCE {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn golden_journal() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../node/agent/tests/journal-6.12-idle.jsonl");
    path.to_str().unwrap().to_owned()
}

fn web() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../web")
}

/// The page that is compiled in was built from these sources. That the build itself is the same is for `make test-console`, which
/// has Node.js.
#[test]
fn the_committed_page_is_built_from_the_committed_sources() {
    let listed = std::fs::read_to_string(web().join("dist/sources.sha256")).unwrap();
    let mut names = Vec::new();
    for line in listed.lines() {
        let (sum, name) = line.split_once("  ").unwrap();
        let now = digest(&SHA256, &std::fs::read(web().join(name)).unwrap());
        let now: String = now.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(now, sum, "web/{name} has changed since web/dist was built; run `make console-page`");
        names.push(name);
    }
    let mut folders = vec![web().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(web()).unwrap().to_str().unwrap().to_owned();
                assert!(names.contains(&name.as_str()), "web/{name} is newer than web/dist; run `make console-page`");
            }
        }
    }
}

#[test]
fn every_answer_of_the_console_is_protected_and_nothing_can_be_changed() {
    let console = Console::start(&["--journal", &golden_journal()]);
    for path in ["/", "/console.js", "/console.css", "/api/status", "/api/none", "/none", "/../etc/passwd"] {
        let answer = console.get(path);
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'",
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
            "cache-control: no-store",
        ] {
            assert!(answer.head.contains(header), "{path} lacks {header}: {}", answer.head);
        }
        assert!(!answer.head.contains("unsafe") && !answer.head.contains("access-control-allow"), "{}", answer.head);
        assert_eq!(answer.status, if path.ends_with("none") || path.ends_with("passwd") { 404 } else { 200 }, "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE"] {
        let answer = console.ask(&format!("{method} /api/status HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", console.address));
        assert_eq!(answer.status, 405, "{method}");
    }
    // A body is not read.
    let long = format!("GET /api/status HTTP/1.1\r\nHost: {}\r\nContent-Length: 100000000\r\nConnection: close\r\n\r\n", console.address);
    assert_eq!(console.ask(&long).status, 200);
}

#[test]
fn a_page_from_elsewhere_gets_nothing_from_the_console() {
    let console = Console::start(&["--journal", &golden_journal(), "--host", "console.example"]);
    let with_host = |host: &str| console.ask(&format!("GET /api/status HTTP/1.1\r\n{host}Connection: close\r\n\r\n"));
    for host in ["Host: evil.example\r\n", "Host: evil.example:7480\r\n", "Host: 127.0.0.1.evil.example\r\n", "Host: \r\n"] {
        let answer = with_host(host);
        assert!(answer.status == 421 && !answer.body.contains("machine"), "{host}: {} {}", answer.status, answer.body);
    }
    for host in ["Host: localhost:7480\r\n", "Host: [::1]\r\n", "Host: Console.Example\r\n"] {
        assert_eq!(with_host(host).status, 200, "{host}");
    }
}

#[test]
fn a_token_is_needed_beyond_loopback_and_wherever_it_is_given() {
    let directory = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_thermocline")).arg("console").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, error) = run(&["--listen", "0.0.0.0:0"]);
    assert!(code == Some(1) && error.contains("--token-file"), "{error}");
    let file = directory.path().join("token");
    let path = file.to_str().unwrap();
    std::fs::write(&file, "short\n").unwrap();
    let (code, error) = run(&["--token-file", path]);
    assert!(code == Some(1) && error.contains("openssl rand"), "{error}");
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    let (code, error) = run(&["--token-file", path]);
    assert!(code == Some(1) && error.contains("0666"), "{error}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();

    let console = Console::start(&["--journal", &golden_journal(), "--token-file", path, "--listen", "0.0.0.0:0"]);
    let with = |header: &str| console.ask(&format!("GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}Connection: close\r\n\r\n"));
    for header in
        ["", "Authorization: Bearer 0123456789abcdeF\r\n", "Authorization: Bearer\r\n", "Authorization: Basic MDEyMzQ1Njc4OWFiY2RlZg==\r\n"]
    {
        let answer = with(header);
        assert!(answer.status == 401 && answer.body.contains("token"), "{header}: {}", answer.body);
    }
    assert_eq!(with("Authorization: Bearer 0123456789abcdef\r\n").status, 200);
    let page = console.ask("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    assert_eq!(page.status, 200, "the page asks for the token");
}

#[test]
fn the_console_shows_the_figures_of_the_report() {
    let journal = golden_journal();
    let console = Console::start(&["--journal", &journal, "--dram-price-per-gib", "2"]);
    let shown = console.ready("/api/machine").json();
    let report = Command::new(env!("CARGO_BIN_EXE_thermocline")).args(["report", "--format", "json", &journal]).output().unwrap();
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    for figure in ["kernel", "begins_unix_ms", "ends_unix_ms", "dram_bytes", "saved_mean_bytes", "saved", "events"] {
        assert_eq!(shown[figure], report[figure], "{figure}");
    }
    let jobs = report["jobs"].as_array().unwrap();
    assert!(!jobs.is_empty());
    for (index, job) in jobs.iter().enumerate() {
        assert_eq!(shown["jobs"][index]["periods_over"], job["periods_over"]);
        assert_eq!(console.get(&format!("/api/machine/job/{index}")).json()["points"], job["points"]);
    }
    assert_eq!(console.get(&format!("/api/machine/job/{}", jobs.len())).status, 404);
    assert_eq!(console.get("/api/machine/job/-1").status, 404);
}

#[test]
fn a_source_that_is_absent_empty_or_damaged_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let (empty, damaged) = (directory.path().join("empty"), directory.path().join("damaged"));
    std::fs::create_dir(&empty).unwrap();
    std::fs::create_dir(&damaged).unwrap();
    std::fs::write(damaged.join("x.parquet"), "PAR1 and no more").unwrap();
    let state = format!("agent.state_dir={}", empty.display());
    let check = |traces: &[&str], view: &str, state_of: &str, pieces: &[&str]| {
        let console = Console::start(&[&["--set", &state][..], traces].concat());
        let answer = console.ready(view);
        let found = answer.json();
        assert!(answer.status == 503 && found["state"] == state_of, "{view}: {}", answer.body);
        for piece in pieces {
            assert!(found["why"].as_str().unwrap().contains(piece), "{view}: {found} does not say {piece}");
        }
    };
    check(&[], "/api/machine", "absent", &["thermocline agent", empty.to_str().unwrap()]);
    check(&[], "/api/fleet", "absent", &["--traces"]);
    check(&["--traces", empty.to_str().unwrap()], "/api/fleet", "absent", &["no trace in", "trace.store"]);
    check(&["--traces", damaged.to_str().unwrap()], "/api/fleet", "failed", &["x.parquet"]);
    check(&["--traces", damaged.to_str().unwrap()], "/api/what-if", "failed", &["x.parquet"]);
    let missing = directory.path().join("missing");
    for option in ["--journal", "--traces"] {
        let output = Command::new(env!("CARGO_BIN_EXE_thermocline")).args(["console", option]).arg(&missing).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && error.contains("missing") && output.stdout.is_empty(), "{error}");
    }
}

#[test]
fn the_fleet_view_shows_what_agents_did_and_the_model_what_they_could() {
    let directory = tempfile::tempdir().unwrap();
    let made = write_fleet(directory.path(), 12, 2, 1);
    let traces = directory.path().to_str().unwrap();
    let console = Console::start(&["--traces", traces, "--dram-price-per-gib", "4"]);
    let fleet = console.ready("/api/fleet").json();
    assert_eq!((&fleet["fleet"]["jobs"], &fleet["entries"]), (&made.jobs.into(), &made.entries.into()));
    // The sums of `trace show` over all jobs.
    let shown = Command::new(env!("CARGO_BIN_EXE_thermocline")).args(["trace", "show", "--format", "json", traces]).output().unwrap();
    let shown: Vec<Value> = String::from_utf8(shown.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sum = |figure: &str| shown.iter().map(|job| job[figure].as_f64().unwrap() * job["duration_ms"].as_f64().unwrap()).sum::<f64>();
    let span_ms = (fleet["ends_unix_seconds"].as_f64().unwrap() - fleet["begins_unix_seconds"].as_f64().unwrap()) * 1e3;
    for (ours, theirs) in [("memory_bytes", "memory_bytes"), ("saved_bytes", "saved_bytes"), ("far_bytes", "far_bytes")] {
        let (found, expected) = (fleet["fleet"][ours].as_f64().unwrap(), sum(theirs) / span_ms);
        assert!(expected > 0.0 && (found / expected - 1.0).abs() < 1e-3, "{ours}: {found}, expected {expected}");
    }
    let worth = fleet["fleet"]["saved_worth"].as_f64().unwrap();
    assert!((worth - fleet["fleet"]["saved_bytes"].as_f64().unwrap() / f64::from(1 << 30) * 4.0).abs() < 1e-6);
    let clusters = fleet["clusters"].as_array().unwrap();
    assert_eq!(clusters.iter().map(|cluster| cluster["jobs"].as_u64().unwrap()).sum::<u64>(), made.jobs);
    let jobs = console.get("/api/fleet/jobs").json();
    assert_eq!(jobs["job"].as_array().unwrap().len() as u64, made.jobs);
    let job = console.get("/api/fleet/job/0").json();
    assert!(job["job"].as_str().unwrap() == shown[0]["job"] && !job["series"]["unix_seconds"].as_array().unwrap().is_empty());
    assert_eq!(console.get(&format!("/api/fleet/job/{}", made.jobs)).status, 404);
    let series = console.get("/api/fleet/series").json();
    let shares: Vec<f64> = series["rates"].as_array().unwrap().iter().map(|point| point["share_ratio"].as_f64().unwrap()).collect();
    assert!(shares.len() > 200 && shares.is_sorted() && shares.last() == Some(&1.0));

    what_if_is_the_models_answer(&console, traces);
}

/// Each outcome is that of `thermocline model` for the same parameters.
fn what_if_is_the_models_answer(console: &Console, traces: &str) {
    let answer = console.ready("/api/what-if").json();
    let arguments =
        ["model", "--format", "json", "--pairs", "--what-if", "promotion_rate=1%", "--trace", traces, "--percentiles", "50%,98%,100%"];
    let model = Command::new(env!("CARGO_BIN_EXE_thermocline")).args(arguments).output().unwrap();
    let model: Value = serde_json::from_slice(&model.stdout).unwrap();
    let list = |name: &str| answer[name].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect::<Vec<_>>();
    let (percentiles, warmups, objectives) = (list("percentiles_ratio"), list("warmups_seconds"), list("objectives_ratio_per_min"));
    let index = |values: &[f64], value: f64| values.iter().position(|&found| (found - value).abs() < 1e-12);
    let mut compared = 0;
    for theirs in model["answers"].as_array().unwrap() {
        let objective = index(&objectives, theirs["promotion_rate_max_ratio_per_min"].as_f64().unwrap()).unwrap();
        for pair in theirs["pairs"].as_array().unwrap() {
            let number = |name: &str| pair[name].as_f64().unwrap();
            let (Some(k), Some(s)) = (index(&percentiles, number("percentile_ratio")), index(&warmups, number("warmup_seconds"))) else {
                continue;
            };
            let ours = &answer["pairs"][(objective * percentiles.len() + k) * warmups.len() + s];
            for figure in ["saved_bytes", "coverage_ratio", "rate_ratio_per_min", "on_ratio"] {
                assert_eq!(ours[figure], pair[figure], "{figure} of {pair}");
            }
            compared += 1;
        }
    }
    assert!(compared >= 2 * 3 * 8, "{compared} pairs");
    let configured = |index: usize| usize::try_from(answer["configured"][index].as_u64().unwrap()).unwrap();
    let theirs = &model["answers"][0]["configured"];
    assert_eq!(objectives[configured(0)], model["answers"][0]["promotion_rate_max_ratio_per_min"]);
    assert_eq!(
        (percentiles[configured(1)], warmups[configured(2)]),
        (theirs["percentile_ratio"].as_f64().unwrap(), theirs["warmup_seconds"].as_f64().unwrap())
    );
}

/// What was written.
struct Made {
    jobs: u64,
    entries: u64,
}

/// Writes `copies` of a generated fleet as traces of agents that moved its memory: far memory is what lies above a job's own
/// threshold, promotions are the accesses to it. An entry is an hour.
fn write_fleet(directory: &Path, jobs_at_once: u64, days: u32, copies: u64) -> Made {
    let thresholds = Thresholds::log_spaced(32).unwrap();
    let fleet = Fleet::new(1, jobs_at_once, days, thresholds);
    let basis = fleet.basis();
    let mut jobs: Vec<(String, Series)> = Vec::new();
    for piece in 0..fleet.pieces() {
        fleet.read(piece, &mut |label, series| jobs.push((label.class.clone(), series.summed(12.try_into().unwrap()).unwrap()))).unwrap();
    }
    jobs.retain(|(_, series)| !series.is_empty());
    let mut made = Made { jobs: 0, entries: 0 };
    for copy in 0..copies {
        let cluster = format!("cluster-{}", copy % 6);
        let machine = format!("machine-{copy:04}");
        let path = directory.join(format!("cluster={cluster}/date=2024-01-01/machine={machine}"));
        let mut entries = Vec::new();
        for (index, (class, series)) in jobs.iter().enumerate() {
            let id = JobId::new(&cluster, &machine, &format!("/{class}.slice/{class}-{copy}-{index}.service"), "generated", index as u64);
            // From young to old, so that some jobs exceed the objective.
            let threshold = 4 + (index + usize::try_from(copy).unwrap()) % 16;
            entries.extend(series.rows().map(|row| entry(&id, class, series, &row, threshold, &basis)));
            made.jobs += 1;
        }
        entries.sort_by(|a, b| a.order().cmp(&b.order()));
        made.entries += entries.len() as u64;
        let mut writer = Writer::create(&path.join("generated.parquet"), basis).unwrap();
        entries.iter().for_each(|entry| writer.push(entry).unwrap());
        writer.finish().unwrap();
    }
    made
}

fn entry(id: &JobId, class: &str, series: &Series, row: &Row<'_>, threshold: usize, basis: &Basis) -> Entry {
    let widen = |sums: &[u32]| buckets(sums).map(u64::from).collect::<Vec<_>>();
    let pages = |count: u32| Bytes(u64::from(count) * basis.page_bytes.0);
    let on = row.age_ms >= Millis::seconds(3 * 3_600);
    let stored = if on { RatioPpm(900_000).share_of(u64::from(row.cold[threshold + 1])) * basis.page_bytes.0 } else { 0 };
    let figures = Figures {
        start_unix_ms: UnixMillis((series.start_unix_ms.0 + row.age_ms.0).saturating_sub(row.window_ms.0)),
        duration_ms: row.window_ms,
        periods: row.window_ms.0 / 60_000,
        job_age_ms: row.age_ms,
        window_ms: row.window_ms,
        working_set_bytes: pages(row.cold[0] - row.cold[1]),
        memory_bytes: pages(row.cold[0]),
        zswap_stored_bytes: Bytes(stored),
        zswap_pool_bytes: Bytes(stored / 3),
        sampled_compressed_ppm: RatioPpm(400_000),
        promoted_pages: Pages(if on { u64::from(row.promotions[threshold + 1]) } else { 0 }),
        far_periods: if on { row.window_ms.0 / 60_000 } else { 0 },
        threshold_scans: u64::from(basis.thresholds.as_slice()[threshold].0),
        resolved_to_scans: 255,
        ..Figures::default()
    };
    let words = [class, "cold_age", "generated", if on { "offload" } else { "warming_up" }].map(ToOwned::to_owned);
    let [class, policy, tracker, decision] = words;
    Entry {
        id: id.clone(),
        labels: Labels { class, policy, tracker, decision },
        figures,
        cold_pages: widen(row.cold),
        promotions_pages: widen(row.promotions),
    }
}

/// Writes the fleet of `make test-console` into the directory that the environment variable CONSOLE_FLEET names.
#[test]
#[ignore = "half a minute, for make test-console"]
fn write_the_fleet_of_the_browser_tests() {
    let directory = PathBuf::from(std::env::var_os("CONSOLE_FLEET").unwrap());
    let made = write_fleet(&directory, 60, 30, 13);
    assert!(made.jobs >= 10_000, "{} jobs", made.jobs);
    std::fs::write(directory.join("made.json"), serde_json::json!({ "jobs": made.jobs, "entries": made.entries, "days": 30 }).to_string())
        .unwrap();
}
