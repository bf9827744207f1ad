//! `thermocline trace` as users and their scripts meet it.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;
use std::process::Command;

use policy::thresholds::Thresholds;
use serde_json::Value;
use trace::{Basis, Entry, Figures, JobId, Labels, Writer};
use units::{Bytes, Millis, Pages, UnixMillis};

/// The first millisecond of 2026-11-20.
const DAY: u64 = 1_795_132_800_000;

/// A day of two jobs of a machine, in two files of half a day each.
fn store(dir: &Path, machine: &str) {
    let basis = Basis { thresholds: Thresholds::log_spaced(2).unwrap(), scan_period_ms: Millis::seconds(120), page_bytes: Bytes(4096) };
    for half in 0..2u64 {
        let mut writer = Writer::create(&dir.join(format!("cluster=c/date=2026-11-20/machine={machine}/{half}.parquet")), basis).unwrap();
        for job in ["/idle", "/redis, \"1\""] {
            for at in half * 144..(half + 1) * 144 {
                let id = JobId::new("c", machine, job, "boot", 1);
                let words = ["standard", "cold_age", "page_idle", "offload"].map(ToOwned::to_owned);
                let [class, policy, tracker, decision] = words;
                let figures = Figures {
                    start_unix_ms: UnixMillis(DAY + at * 300_000),
                    duration_ms: Millis(300_000),
                    periods: 5,
                    far_periods: 5,
                    window_ms: Millis(240_000),
                    working_set_bytes: Bytes(1_000 * 4096),
                    memory_bytes: Bytes(3 << 20),
                    zswap_stored_bytes: Bytes(300 * 4096),
                    zswap_pool_bytes: Bytes(100 * 4096),
                    // 1 % of the working set each minute, and twice that in the last 6 of 288.
                    promoted_pages: Pages(if at >= 282 { 100 } else { 50 }),
                    memory_stall_us: 3_000_000,
                    ..Figures::default()
                };
                let entry = Entry {
                    id,
                    labels: Labels { class, policy, tracker, decision },
                    figures,
                    cold_pages: vec![1_000, 500, 100],
                    promotions_pages: vec![900, 5, 1],
                };
                writer.push(&entry).unwrap();
            }
        }
        writer.finish().unwrap();
    }
}

/// Runs `trace`, and expects an exit status and pieces of text in its output.
fn check(arguments: &[&str], code: i32, pieces: &[&str]) -> String {
    let ran = Command::new(env!("CARGO_BIN_EXE_thermocline"))
        .args([&["trace"], arguments].concat())
        .env_remove("THERMOCLINE_LOG")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
    assert_eq!(ran.status.code(), Some(code), "{arguments:?}: {out}{err}");
    let output = if out.is_empty() { err } else { out };
    for piece in pieces {
        assert!(output.contains(piece), "{arguments:?} does not print {piece:?}: {output}");
    }
    output
}

fn json(text: &str) -> Vec<Value> {
    let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    values.map(Result::unwrap).flat_map(|value| if let Value::Array(list) = value { list } else { vec![value] }).collect()
}

#[test]
fn what_is_there_is_listed_shown_and_found_sound() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().to_str().unwrap();
    store(dir.path(), "m1");
    store(dir.path(), "m2");
    check(&["list", url], 0, &["trace", "288", "machine=m2/1.parquet"]);
    let listed = json(&check(&["list", url, "--format", "json"], 0, &[]));
    assert_eq!(listed.len(), 4);
    assert_eq!((&listed[3]["machine"], &listed[3]["date"], &listed[3]["entries"]), (&"m2".into(), &"2026-11-20".into(), &288.into()));
    assert_eq!((&listed[0]["version"], &listed[0]["thresholds_scans"]), (&trace::schema::VERSION.into(), &vec![1, 255].into()));
    check(&["validate", url], 0, &["4 files, 1152 entries; 0 files with problems"]);

    let set = format!("trace.store={url}");
    check(&["show", "--set", &set], 0, &["24.0 h", "/idle on m1", "2.00%/min", "1.00%", "50.00%", "to 2026-11-21 00:00:00"]);
    let shown = json(&check(&["show", url, "--job", "/i*", "--format", "json"], 0, &[]));
    assert_eq!(shown.len(), 2, "one per machine");
    assert_eq!((&shown[0]["job"], &shown[0]["entries"]), (&"/idle".into(), &288.into()));
    assert_eq!((&shown[0]["cold_bytes"], &shown[0]["saved_bytes"]), (&(600 * 4096).into(), &(200 * 4096).into()));
    // 282 of 288 are 97.9 %.
    assert_eq!(shown[0]["promotion_rate_p98_ratio_per_min"], 0.02);
}

#[test]
fn many_files_become_one() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("store");
    let url = url.to_str().unwrap();
    store(Path::new(url), "m1");
    store(Path::new(url), "m2");
    let merged = dir.path().join("merged.parquet");
    let merged = merged.to_str().unwrap();
    let twice = format!("{url}/cluster=c/date=2026-11-20/machine=m1/0.parquet");
    check(&["merge", url, &twice, "--to", merged], 0, &["1152 entries of 4 jobs", "288 more came twice"]);
    check(&["validate", merged], 0, &["1 files, 1152 entries; 0 files"]);
    let rows = |url: &str| check(&["export", url], 0, &[]);
    let exported = rows(merged);
    assert!(exported == rows(url), "merged, it is the same");
    assert_eq!(exported.lines().count(), 1 + 1152);
    assert!(exported.starts_with("cluster,machine,job,job_key,class,policy,tracker,decision,start_unix_ms,"));
    assert!(exported.contains("c,m1,\"/redis, \"\"1\"\"\","), "quoted as RFC 4180 has it");
    let entries = json(&check(&["export", url, "--job", "/idle", "--format", "json"], 0, &[]));
    assert_eq!((entries.len(), &entries[0]["cold_pages"]), (576, &vec![1_000, 500, 100].into()));

    let compacted = dir.path().join("compacted.parquet");
    let compacted = compacted.to_str().unwrap();
    let made = json(&check(&["compact", url, "--to", compacted, "--format", "json"], 0, &[]));
    assert_eq!((&made[0]["entries"], &made[0]["jobs"]), (&1152.into(), &4.into()));
    check(&["validate", compacted], 0, &["1 files, 1152 entries; 0 files"]);
    check(&["list", compacted], 0, &["compacted", "1152"]);
}

#[test]
fn errors_come_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().to_str().unwrap();
    check(&["list"], 1, &["trace.store"]);
    check(&["list", url], 1, &["no trace in", "each hour"]);
    check(&["list", "/nonexistent/trace"], 1, &["cannot open /nonexistent/trace"]);
    check(&["merge", url], 2, &["--to"]);
    store(dir.path(), "m1");
    check(&["show", url, "--job", "["], 1, &["--job"]);
    check(&["merge", url, "--to", "/proc/none/here.parquet"], 1, &["/proc/none"]);
    std::fs::write(dir.path().join("rubbish.parquet"), "rubbish").unwrap();
    check(&["list", url], 1, &["unreadable", "rubbish.parquet"]);
    check(&["validate", url], 1, &["rubbish.parquet", "1 files with problems"]);
    check(&["show", url], 1, &["rubbish.parquet"]);
}

#[test]
fn anonymous_traces_name_nothing_and_answer_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().to_str().unwrap();
    store(dir.path(), "m1");
    store(dir.path(), "m2");
    let elsewhere = tempfile::tempdir().unwrap();
    let to = elsewhere.path().join("given.parquet");
    let to = to.to_str().unwrap();
    let said =
        check(&["anonymise", url, "--to", to], 0, &["1152 entries of 4 jobs", "1152 read again, none names anything", "classes kept: "]);
    assert!(!said.contains("standard"), "four jobs are too few for a class of their own: {said}");
    let made = json(&check(&["anonymise", url, "--to", to, "--jobs-min", "4", "--format", "json"], 0, &[]));
    assert_eq!((&made[0]["classes_kept"], &made[0]["weeks_subtracted"]), (&serde_json::json!(["standard"]), &serde_json::json!(150)));
    check(&["validate", to], 0, &["0 files with problems"]);
    let rows = check(&["export", to, "--format", "json"], 0, &[]);
    for name in ["m1", "m2", "/redis", "/idle", "\"c\""] {
        assert!(!rows.contains(name), "{name}");
    }
}

#[test]
fn anonymous_traces_answer_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let [traces, given] = ["traces", "given.parquet"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let run = |arguments: &[&str]| {
        let ran = Command::new(env!("CARGO_BIN_EXE_thermocline")).args(arguments).output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        ran.stdout
    };
    run(&["model", "--generate", "40", "--days", "1", "--record", &traces]);
    run(&["trace", "anonymise", &traces, "--to", &given]);
    let model = |trace: &str| serde_json::from_slice::<Value>(&run(&["model", "--trace", trace, "--format", "json"])).unwrap();
    let (before, after) = (model(&traces), model(&given));
    for key in ["answers", "used_bytes", "jobs", "entries", "trackers"] {
        assert_eq!(before[key], after[key], "{key}");
    }
}
