//! `thermocline model` and `trace show` on traces whose trackers do not resolve every age.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

use policy::thresholds::Thresholds;
use serde_json::Value;
use trace::{Basis, Entry, Figures, JobId, Labels, Writer};
use units::{Bytes, Millis, Pages, UnixMillis};

/// A tracker, its resolution in scans, and its sample.
type Origin = (&'static str, u64, u64);

const LRU_GEN: Origin = ("lru_gen", 2, 0);
const PAGE_IDLE: Origin = ("page_idle", 255, 0);
const SAMPLED: Origin = ("sampled", 255, 1_000);
const OLD: Origin = ("page_idle", 0, 0);

/// Writes a day of a job for each origin. Half of the memory is older than 16 scans, and only younger pages are promoted:
/// every threshold in effect is 16 scans.
fn store(dir: &Path, origins: &[Origin]) -> PathBuf {
    let thresholds = Thresholds::try_from(vec![1, 16, 255]).unwrap();
    let basis = Basis { thresholds, scan_period_ms: Millis::seconds(120), page_bytes: Bytes(4096) };
    let path = dir.join("trace.parquet");
    let mut writer = Writer::create(&path, basis).unwrap();
    for (job, &(tracker, resolved_to_scans, sampled)) in origins.iter().enumerate() {
        for at in 0..288u64 {
            let figures = Figures {
                start_unix_ms: UnixMillis(1_795_132_800_000 + at * 300_000),
                duration_ms: Millis(300_000),
                periods: 5,
                job_age_ms: Millis((at + 1) * 300_000),
                window_ms: Millis(300_000),
                working_set_bytes: Bytes(4_000 * 4096),
                memory_bytes: Bytes(10_000 * 4096),
                resolved_to_scans,
                sampled_pages: Pages(sampled),
                ..Figures::default()
            };
            let words = ["standard", "cold_age", tracker, "offload"].map(ToOwned::to_owned);
            let [class, policy, tracker, decision] = words;
            let id = JobId::new("c", "m", &format!("/job-{job}"), "boot", 1);
            let labels = Labels { class, policy, tracker, decision };
            let (cold_pages, promotions_pages) = (vec![4_000, 1_000, 3_000, 2_000], vec![900, 500, 1, 0]);
            writer.push(&Entry { id, labels, figures, cold_pages, promotions_pages }).unwrap();
        }
    }
    writer.finish().unwrap();
    path
}

/// Runs the program, and expects an exit status and pieces of text in its output.
fn check(arguments: &[&str], code: i32, pieces: &[&str]) -> String {
    let ran = Command::new(env!("CARGO_BIN_EXE_thermocline")).args(arguments).env_remove("THERMOCLINE_LOG").output().unwrap();
    assert_eq!(ran.status.code(), Some(code), "{arguments:?}: {ran:?}");
    let output = String::from_utf8(if code == 0 { ran.stdout } else { ran.stderr }).unwrap();
    for piece in pieces {
        assert!(output.contains(piece), "{arguments:?} does not print {piece:?}: {output}");
    }
    output
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&check(&[arguments, &["--format", "json"]].concat(), 0, &[])).unwrap()
}

#[test]
fn a_question_that_no_entry_answers_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let trace = store(dir.path(), &[LRU_GEN, LRU_GEN]);
    let trace = trace.to_str().unwrap();
    let refused = ["no entry answers the question", "lru_gen distinguishes ages up to 4m", "--allow-unresolved", "page_idle"];
    check(&["model", "--trace", trace], 1, &refused);
    let compacted = dir.path().join("compacted.parquet");
    let compacted = compacted.to_str().unwrap();
    check(&["trace", "compact", trace, "--to", compacted], 0, &[]);
    check(&["model", "--trace", compacted], 1, &refused);
    check(
        &["model", "--trace", trace, "--allow-unresolved"],
        0,
        &["tracker lru_gen: 100% of the entries", "up to 4m", "warning: P 0.2%/min, best pair: 100% of the entries with far memory"],
    );
    check(&["trace", "show", trace], 0, &["lru_gen, ages up to 2 scans"]);
}

#[test]
fn unresolved_entries_are_counted_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let trace = store(dir.path(), &[LRU_GEN, PAGE_IDLE, PAGE_IDLE, PAGE_IDLE]);
    let trace = trace.to_str().unwrap();
    check(
        &["model", "--trace", trace],
        0,
        &["tracker page_idle: 75% of the entries\n", "warning: P 0.2%/min, configured pair: 25% of the entries with far memory"],
    );
    let report = json(&["model", "--trace", trace]);
    let best = &report["answers"][0]["best"];
    assert_eq!((&best["unresolved_ratio"], best.get("coverage_interval_ratio")), (&0.25.into(), None), "{report}");
    let tracker = &report["trackers"][0];
    assert_eq!(
        (&tracker["tracker"], &tracker["limited_entries"], &tracker["resolved_to_seconds"]),
        (&"lru_gen".into(), &288.into(), &240.0.into())
    );
    assert_eq!(report["warnings"].as_array().unwrap().len(), 2);
    let exact = store(&dir.path().join("exact"), &[PAGE_IDLE]);
    assert_eq!(json(&["model", "--trace", exact.to_str().unwrap()])["warnings"].as_array().unwrap().len(), 0);
}

#[test]
fn a_sample_has_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let trace = store(dir.path(), &[SAMPLED]);
    let trace = trace.to_str().unwrap();
    check(&["model", "--trace", trace], 0, &["288 entries are estimated from a sample", "sampling error (95%): coverage "]);
    let best = &json(&["model", "--trace", trace])["answers"][0]["best"];
    let number = |value: &Value| value.as_f64().unwrap();
    let coverage = number(&best["coverage_ratio"]);
    let [low, high] = [0, 1].map(|bound| number(&best["coverage_interval_ratio"][bound]));
    // 600 of the 1,000 sampled pages are cold: at most 4 points of coverage to each side, and not as if each entry had
    // another sample.
    assert!(low < coverage && coverage < high && (0.02..0.09).contains(&(high - low)), "{low} to {high}: {coverage}");
    let promotions = number(&best["promotions_pages_per_second"]);
    let [few, many] = [0, 1].map(|bound| number(&best["promotions_interval_pages_per_second"][bound]));
    assert!(few < promotions && promotions < many, "{few} to {many}: {promotions}");
    check(&["trace", "show", trace], 0, &["; sampled, 1000 pages sampled)"]);
}

#[test]
fn traces_of_older_agents_show_no_resolution() {
    let dir = tempfile::tempdir().unwrap();
    let trace = store(dir.path(), &[OLD]);
    let trace = trace.to_str().unwrap();
    check(&["model", "--trace", trace], 0, &["warning: 288 of 288 entries do not show which ages their tracker distinguished"]);
    check(&["trace", "show", trace], 0, &["page_idle, unknown resolution"]);
    // The resolution of this tracker is known.
    let trace = store(&dir.path().join("lru_gen"), &[("lru_gen", 0, 0)]);
    check(&["model", "--trace", trace.to_str().unwrap()], 1, &["lru_gen distinguishes ages up to 4m"]);
}
