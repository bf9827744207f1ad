//! Valid inputs of each target, from which a fuzzer starts: files in this repository, and small ones that its own writers make.

use std::num::NonZero;
use std::path::Path;

use model::coverage::Coverage;
use model::fleet::{By, Model, Named, all, run};
use model::generate::Fleet;
use model::grid::{Grid, Setup};
use model::partial::{Partial, Setting};
use model::survey::Survey;
use policy::thresholds::Thresholds;
use units::{Millis, RatioPpm};

/// Bytes of a journal that are kept: whole lines.
const JOURNAL_BYTES: usize = 16 << 10;

/// Valid inputs of a target.
#[must_use]
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    match target {
        "kernel_files" => kernel_files(),
        "quantities" => texts(&["4KiB", "1.5GiB", "120s", "1h", "200MiB/s", "0.2%"]),
        "configuration" => texts(&[&config::example_toml(), "[[job]]\ncgroup = \"/a/*\"\nclass = \"standard\"\npolicy = \"auto\"\n"]),
        "bundle" => texts(&[BUNDLE]),
        "settings" => settings(),
        "import" => texts(&[SENPAI, DAMO, MEMTIERD]),
        "assignment" => texts(&[ASSIGNMENT]),
        "journal" => journals(),
        "undo" => texts(&[UNDO, HISTORY]),
        "control" => texts(&["status", "explain", "hint /a b background", "hold /a b 30", "keep /a b 1 0 2 3 4", "forget /a b"]),
        "store_answer" => texts(&["missing\n", "found 5\nhello", "found 0\n"]),
        "trace" | "model_trace" => {
            files("crates/fleet/trace/tests", &["trace-v1", "trace-v4", "compact-v1", "compact-v4"].map(|name| format!("{name}.parquet")))
        }
        "tally" => tally().into_iter().collect(),
        "vm_trace" => vm_trace().into_iter().collect(),
        "model" => files("crates/pool/predict/testdata", &["untouched.onnx".to_owned(), "insensitive.onnx".to_owned()]),
        "audit" => texts(&[AUDIT]),
        "placements" => vec![PLACEMENTS.as_bytes().to_vec()],
        _ => Vec::new(),
    }
}

const BUNDLE: &str = "schema = 1\nversion = 3\nid = \"b\"\ncreated = 2026-01-01T00:00:00Z\nexpires = 2226-01-01T00:00:00Z\n\
    [knobs.cold_age]\npromotion_rate = \"0.2%\"\n";
const ASSIGNMENT: &str = r#"{"schema": 1, "rollout": "r", "bundle": 3, "previous": null, "stage": "canary", "share_ppm": 10000,
    "control_ppm": 50000, "clusters": ["eu-1"]}"#;
const UNDO: &str = r#"{"settings": {"/nonexistent/sys/fs/cgroup/a/memory.low": {"original": "0", "ours": ["4096"]}},
    "kdamond_targets": [7], "slow": {"node": 1, "home": 0, "jobs": {"/a": 4}}}"#;
const HISTORY: &str = r#"{"boot_id": "boot", "scan_period_ms": 120000, "thresholds": [1],
    "writes": {"level": 4096, "part": 0, "at_ms": 1}, "jobs": {}}"#;
const AUDIT: &str = r#"{"sequence": 1, "time_ms": 1, "who": "manager", "what": "start", "outcome": "ok",
    "previous": "00000000000000000000000000000000", "link": "00000000000000000000000000000000"}"#;
const PLACEMENTS: &str = r#"{"sequence":1,"time_ms":1,"who":"scheduler","event":{"topology":{"shape":{"nodes":1,"node_cores":4,"node_mib":4096},"slice_bytes":1073741824,"strategy":"pool_balance","pools":[{"name":"p","slices":2,"managed":true,"hosts":["a","b"]}]}}}
{"sequence":2,"time_ms":2,"who":"scheduler","event":{"grantable":{"pool":"p","slices":2}}}
{"sequence":3,"time_ms":3,"who":"op","event":{"decided":{"id":1,"request":{"vm":"one","cores":2,"memory_bytes":2147483648,"pool_bytes":1073741824},"on":{"host":"a","nodes":[{"cores":2,"mib":1024}],"slices":1}}}}
{"sequence":4,"time_ms":4,"who":"op","event":{"drained":{"host":"a","drained":true}}}
{"sequence":5,"time_ms":5,"who":"op","event":{"ended":{"vm":"one"}}}
"#;
const SENPAI: &str = r#"{"version": "1.0", "rulesets": [{"name": "memory", "detectors": [["x", {"name": "continue"}]],
    "actions": [{"name": "senpai", "args": {"cgroup": "workload.slice/*", "interval": "5"}}]}]}"#;
const DAMO: &str = r#"[{"action": "pageout", "access_pattern": {"age": {"min": "30s"}}}]"#;
const MEMTIERD: &str = "policy:\n  name: age\n  config: |\n    intervalms: 5000\n    pidwatcher:\n      name: cgroups\n      config: |\n        \
    cgroups:\n        - /sys/fs/cgroup/web.slice\n    swapoutms: 10000\n";
const GUEST: &str = "name = \"vm\"\ncores = 1\nmemory = \"1GiB\"\n";

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    // Formats of one line per record have no line breaks within one.
    texts.iter().map(|text| if text.starts_with('{') { text.replace('\n', " ") } else { (*text).to_owned() }.into_bytes()).collect()
}

/// Files of this repository; those that cannot be read are missing, which the tests notice.
fn files(directory: &str, names: &[String]) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(directory);
    names.iter().filter_map(|name| std::fs::read(root.join(name)).ok()).collect()
}

/// Each with the byte that selects its reader.
fn kernel_files() -> Vec<Vec<u8>> {
    let recorded = ["maps", "smaps", "meminfo", "zoneinfo", "vmstat", "lru_gen-6.12", "memory.stat-6.12", "numa_maps"];
    let recorded = files("crates/node/kernel/src/testdata", &recorded.map(str::to_owned));
    let short = [
        "some avg10=0.00 avg60=0.12 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n",
        "low 0\nhigh 0\nmax 3\noom 0\noom_kill 0\n",
        "max\n",
        "7 (a b) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 77 4096 12 18446744073709551615\n",
        "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n",
    ];
    let numbered = |texts: Vec<Vec<u8>>, first: u8| (first..).zip(texts).map(|(which, text)| [vec![which], text].concat());
    let from = u8::try_from(recorded.len()).unwrap_or(u8::MAX);
    numbered(recorded, 0).chain(numbered(texts(&short), from)).collect()
}

fn settings() -> Vec<Vec<u8>> {
    let texts = [
        pool_host::settings::example(),
        manager::settings::example(),
        GUEST.to_owned(),
        rollout::plan::example(),
        "bundle=7,cluster=eu-*".to_owned(),
        scheduler::settings::example(),
    ];
    (0..).zip(texts).map(|(which, text)| [vec![which], text.into_bytes()].concat()).collect()
}

/// The first lines of recorded journals.
fn journals() -> Vec<Vec<u8>> {
    let mut journals = files("crates/node/agent/tests", &["journal-6.12-idle.jsonl".to_owned(), "journal-v3.jsonl".to_owned()]);
    for journal in &mut journals {
        let end = journal.iter().take(JOURNAL_BYTES).rposition(|byte| *byte == b'\n');
        journal.truncate(end.map_or(journal.len(), |end| end + 1));
    }
    journals
}

/// A tally of a small generated fleet, without its checksum.
fn tally() -> Option<Vec<u8>> {
    let fleet = Fleet::new(1, 2, 1, Thresholds::log_spaced(4).ok()?);
    let grid = Grid::new(vec![RatioPpm(990_000)], vec![Millis::ZERO]).ok()?;
    let setting = Setting::new(fleet.basis(), true, &grid, vec![Setup::new(RatioPpm(2_000))], By::Class, false);
    let mut coverage = Coverage::default();
    let pieces = all(&fleet);
    pieces.iter().try_for_each(|&piece| coverage.add(&fleet.part(piece))).ok()?;
    let empty = Model::new(&grid, &setting.setups, fleet.thresholds(), setting.by).ok()?;
    let Ok((_, model)) = run(&fleet, &pieces, NonZero::<usize>::MIN, || (None::<Survey>, empty.clone()), |_| {});
    let mut bytes = Partial::of(setting.clone(), coverage, None, model).encode(Path::new("seed")).ok()?;
    bytes.truncate(bytes.len().checked_sub(size_of::<u64>())?);
    Some(bytes)
}

fn vm_trace() -> Option<Vec<u8>> {
    let directory = tempfile::tempdir().ok()?;
    let path = directory.path().join("vms.parquet");
    let settings = vmtrace::generate::Settings { seed: 1, vms: 20, clusters: 1, days: 1 };
    vmtrace::generate::generate(&settings, &path, &mut || ()).ok()?;
    std::fs::read(path).ok()
}
