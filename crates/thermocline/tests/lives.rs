//! `thermocline pool lives` and `pool import --store` as operators meet them: two hosts send, a third machine imports all.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::fmt::Write as _;
use std::path::Path;

use program::{check, refused, thermocline};

#[path = "rollouts/program.rs"]
mod program;

fn configure(directory: &Path, host: &str, more: &str) {
    let text =
        format!("name = \"{host}\"\nlocal_memory = \"64GiB\"\nstate = \"{host}\"\n{more}\n[manager]\nurl = \"http://127.0.0.1:1\"\n");
    std::fs::write(directory.join(format!("{host}.toml")), text).unwrap();
    std::fs::create_dir_all(directory.join(host)).unwrap();
}

/// Adds guests that ended.
fn end(directory: &Path, host: &str, guests: std::ops::Range<u32>) {
    let path = directory.join(host).join("lives.jsonl");
    let mut text = std::fs::read_to_string(&path).unwrap_or_default();
    for guest in guests {
        let (arrival, departure) = (1_700_000_000 + guest * 60, 1_700_003_600 + guest * 60);
        let _ = writeln!(
            text,
            "{{\"guest_life\":1,\"host\":\"{host}\",\"name\":\"vm-{guest}\",\"arrival\":{arrival},\"departure\":{departure},\"cores\":2,\
             \"memory_bytes\":4294967296,\"customer\":7,\"touched_bytes\":1073741824}}"
        );
    }
    std::fs::write(path, text).unwrap();
}

#[test]
fn the_guests_of_all_hosts_are_imported_once() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    configure(at, "host-a", "");
    refused(at, "pool lives send --config host-a.toml", &["host-a.toml", "lives_store"]);
    refused(at, "pool import --store nowhere --out vms.parquet", &["nowhere", "pool lives send"]);
    let store = format!("lives_store = \"{}\"", at.join("store").display());
    for host in ["host-a", "host-b"] {
        configure(at, host, &store);
    }
    check(at, "pool lives send --config host-a.toml", &["no guest of host-a has ended yet"]);

    end(at, "host-a", 0..3);
    end(at, "host-b", 100..102);
    check(at, "pool lives send --config host-a.toml --dry-run", &["lives.jsonl", "would be sent"]);
    refused(at, "pool import --store store --out vms.parquet", &["has no file"]);
    check(at, "pool lives send --config host-a.toml", &["sent: host-a/"]);
    check(at, "--format json pool lives send --config host-a.toml", &["\"change\":\"unchanged\"", "\"object\":\"host-a/"]);
    check(at, "pool lives send --config host-b.toml", &["sent: host-b/"]);
    check(at, "pool import --store store --out vms.parquet", &["5 VMs of 5 rows (guests of pool hosts)"]);

    // The file grows, and is put aside at its largest size: what was sent before is replaced, and not there twice.
    end(at, "host-a", 3..4);
    check(at, "pool lives send --config host-a.toml", &["sent: host-a/"]);
    std::fs::rename(at.join("host-a/lives.jsonl"), at.join("host-a/lives.1.jsonl")).unwrap();
    end(at, "host-a", 4..6);
    check(at, "pool lives send --config host-a.toml", &["lives.1.jsonl", "is there: host-a/", "lives.jsonl", "sent: host-a/"]);
    check(at, "pool import --store store --out vms.parquet", &["8 VMs of 8 rows"]);
    // One that was put aside before it was sent for the last time.
    std::fs::remove_file(at.join("host-a/lives.1.jsonl")).unwrap();
    check(at, "pool import --store store --out vms.parquet", &["8 VMs of 8 rows"]);
    check(at, "pool show vms.parquet", &["8"]);
}

/// Adds a guest that got 1 GiB of pool memory by a model, and touched so much of it.
fn end_by_model(directory: &Path, host: &str, model: i64, pool_touched: u64) {
    let path = directory.join(host).join("lives.jsonl");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let life = format!(
        "{{\"guest_life\":1,\"host\":\"{host}\",\"name\":\"vm\",\"arrival\":1700000000,\"departure\":1700003600,\"cores\":2,\
         \"memory_bytes\":4294967296,\"customer\":7,\"vm_type\":null,\"guest_os\":null,\"location\":null,\"pool_bytes\":1073741824,\
         \"touched_bytes\":1073741824,\"mitigated\":false,\"model\":{model},\"pool_touched_bytes\":{pool_touched},\
         \"samples\":{{\"count\":1,\"pool_accessed_bytes\":0,\"local_accessed_bytes\":0}},\"counters\":{{}}}}\n"
    );
    std::fs::write(path, text + &life).unwrap();
}

#[test]
fn models_are_judged_by_the_guests_of_all_hosts() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let judge = "pool models judge --store store --target 4%";
    for host in ["host-a", "host-b"] {
        configure(at, host, &format!("lives_store = \"{}\"", at.join("store").display()));
        (0..60).for_each(|_| end_by_model(at, host, 1_700_000_000, 0));
        check(at, &format!("pool lives send --config {host}.toml"), &["sent"]);
    }
    check(at, judge, &["2023-11-14T22:13:20Z", "120", "no harm shown"]);
    check(at, "--format json pool models judge --store store --target 4%", &["\"guests\":120", "\"hosts\":2", "\"verdict\":\"no_harm\""]);
    // The next one is on one host so far.
    (0..10).for_each(|_| end_by_model(at, "host-b", 1_700_086_400, 0));
    check(at, "pool lives send --config host-b.toml", &["sent"]);
    refused(at, judge, &["too few guests", "no harm shown"]);
    check(at, "pool models judge --store store --target 4% --guests 10", &["no harm shown"]);
    // A tenth of a gibibyte is more than 5 %.
    (0..8).for_each(|_| end_by_model(at, "host-b", 1_700_086_400, 107_374_182));
    check(at, "pool lives send --config host-b.toml", &["sent"]);
    refused(at, "pool models judge --store store --target 4% --guests 10", &["2023-11-15T22:13:20Z", "fails"]);
    check(at, "pool models judge --store store --target 4% --guests 10 --touched 20%", &["no harm shown"]);
    refused(at, "pool models judge --store store --target 0%", &["above 0%"]);
    refused(at, "pool models judge --store store --target 4% --least-life 2h", &["no guest that got pool memory"]);
}

#[test]
fn one_hosts_damaged_file_does_not_stop_the_import() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    configure(at, "host-a", &format!("lives_store = \"{}\"", at.join("store").display()));
    end(at, "host-a", 0..3);
    check(at, "pool lives send --config host-a.toml", &["sent: host-a/"]);
    std::fs::create_dir_all(at.join("store/host-b")).unwrap();
    std::fs::write(at.join("store/host-b/0.jsonl"), "arrival,departure\n1,2\n").unwrap();
    std::fs::write(at.join("store/host-b/1.jsonl"), "").unwrap();
    check(at, "pool import --store store --out vms.parquet", &["3 VMs of 3 rows", "skipped host-b/0.jsonl", "skipped host-b/1.jsonl"]);
    refused(at, "pool import --store store --out vms.parquet --strict", &["skipped host-b/0.jsonl"]);
    // What no line begins with is not sent.
    std::fs::write(at.join("host-a/lives.1.jsonl"), "{\"guest_life\":1").unwrap();
    let (done, text) = thermocline(at, "pool lives send --config host-a.toml");
    assert!(done && !text.contains("lives.1.jsonl"), "{text}");
}
