//! `thermocline plan` as users and their scripts meet it, on the journal of a real kernel.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::process::{Command, Output};

use serde_json::Value;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../node/agent/tests/journal-6.12-idle.jsonl");

fn thermocline(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_thermocline")).args(arguments).env_remove("THERMOCLINE_LOG").output().unwrap()
}

/// Runs `plan` and expects an exit status and pieces of text in its output.
fn check(arguments: &[&str], code: i32, pieces: &[&str]) -> String {
    let ran = thermocline(&[&["plan"], arguments].concat());
    assert_eq!(ran.status.code(), Some(code), "{arguments:?}: {ran:?}");
    let output = String::from_utf8(if code == 0 { ran.stdout } else { ran.stderr }).unwrap();
    for piece in pieces {
        assert!(output.contains(piece), "{arguments:?} does not print {piece:?}: {output}");
    }
    output
}

#[test]
fn a_recorded_journal_gives_a_table() {
    check(&["--help"], 0, &["Usage: thermocline plan", "--risk", "--job", "--dram", "--tier-cost"]);
    check(&[GOLDEN], 0, &["page ages by page_idle (2 jobs)", "/idle", "/redis", "35 periods of 300 required", "--dram SIZE"]);
    // 35 periods are enough for a risk of 10 %; Redis is acted upon, the idle job is observed.
    let text = check(
        &[GOLDEN, "--risk", "10%", "--dram", "1GiB"],
        0,
        &["could be promised: 1.0 GiB", "was promoted within", "in class observe", "changes slowly: 35"],
    );
    assert!(!text.contains("too short"), "{text}");
    let text = check(&[GOLDEN, "--job", "/red*"], 0, &["/redis"]);
    assert!(!text.contains("/idle"), "{text}");
}

#[test]
fn programs_get_base_units() {
    let text = check(&[GOLDEN, "--risk", "10%", "--dram", "1GiB", "--format", "json"], 0, &[]);
    let plan: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&plan["accepted_risk_ratio"], &plan["periods_min"], &plan["machine"]["dram_bytes"]),
        (&0.1.into(), &30.into(), &(1u64 << 30).into())
    );
    let jobs = plan["jobs"].as_array().unwrap();
    assert_eq!(jobs.iter().map(|job| job["job"].as_str().unwrap()).collect::<Vec<_>>(), ["/idle", "/redis"]);
    for job in jobs {
        let number = |key: &str| job[key].as_u64().unwrap_or_else(|| panic!("{key}: {job}"));
        let (limit, covered, burst) = (number("recommended_limit_bytes"), number("covered_bytes"), number("burst_bytes"));
        assert!(limit >= covered && limit < covered + burst + (1 << 20) && limit.is_multiple_of(1 << 20), "{job}");
        assert!(job["memory_bytes"]["p99"].as_u64() <= job["without_far_memory_bytes"]["p99"].as_u64(), "{job}");
        assert!(job["risk_ratio"].as_f64() <= job["risk_ratio_max"].as_f64() && job["risk_ratio"].as_f64() <= Some(0.1), "{job}");
    }
    // Of 16 000 and 735 pages, these were idle in the observed job.
    assert!(jobs[0]["firm_potential_bytes"].as_u64() > Some(2 << 20) && jobs[1]["firm_potential_bytes"].is_null(), "{text}");
}

#[test]
fn slow_memory_at_a_price_saves_spending() {
    let plain = check(&[GOLDEN], 0, &[]);
    assert!(!plain.contains("cost of DRAM"), "not requested: {plain}");
    let text = check(&[GOLDEN, "--tier-cost", "0.25,0.5"], 0, &["at 25% of DRAM's price", "at 50% of DRAM's price"]);
    assert_eq!(text.matches("cold; slow memory would save").count(), 3, "for the machine and two jobs: {text}");
    let text = check(&[GOLDEN, "--tier-cost", "20%", "--tier-cost", "0", "--format", "json"], 0, &[]);
    let plan: Value = serde_json::from_str(&text).unwrap();
    for one in [&plan["machine"], &plan["jobs"][0], &plan["jobs"][1]] {
        let cold = one["cold_ratio"].as_f64().unwrap();
        let saved = |at: usize| one["spending"][at]["saved_ratio"].as_f64().unwrap();
        assert!(cold > 0.1 && cold < 1.0, "{one}");
        assert!((saved(0) - cold * 0.8).abs() < 1e-9 && (saved(1) - cold).abs() < 1e-9, "{one}");
    }
    check(&[GOLDEN, "--tier-cost", "100%"], 2, &["saves nothing"]);
    check(&[GOLDEN, "--tier-cost", "25"], 2, &["25%"]);
}

#[test]
fn errors_come_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let set = format!("agent.state_dir={}", directory.path().display());
    check(&["--set", &set], 1, &["there is no journal", directory.path().to_str().unwrap(), "thermocline agent"]);
    check(&["/nonexistent/journal"], 1, &["/nonexistent/journal"]);
    check(&[GOLDEN, "--job", "/none"], 1, &["/none", "/idle, /redis"]);
    check(&[GOLDEN, "--risk", "0%"], 2, &["above 0"]);
    check(&[GOLDEN, "--risk", "100%"], 2, &["below 100%"]);
    check(&[GOLDEN, "--dram", "64"], 2, &["64"]);

    std::fs::copy(GOLDEN, directory.path().join("journal")).unwrap();
    let total = |text: &str| serde_json::from_str::<Value>(text).unwrap()["machine"]["dram_bytes"].as_u64();
    let own = check(&["--set", &set, "--format", "json"], 0, &[]);
    assert!(total(&own) > Some(0), "its own DRAM is known: {own}");
    assert_eq!(total(&check(&[GOLDEN, "--format", "json"], 0, &[])), None, "that of another machine is not");
}
