//! A bundle store with a rollout, and the traces of a small fleet that follows it: for the tests of the commands and of the console.

use std::path::Path;

use policy::thresholds::Thresholds;
use rollout::assignment::place_ppm;
use serde_json::Value;
use trace::{Basis, Entry, Figures, JobId, Labels, Writer};
use units::{Bytes, Millis, UnixMillis};

use program::check;

pub(crate) mod program;

const BUNDLE: &str = "schema = 1\nversion = 7\nid = \"k98\"\ncreated = 2026-01-01T00:00:00Z\nexpires = 2226-01-01T00:00:00Z\n\
                      [knobs.cold_age]\npercentile = \"98%\"\n";

const PLAN: &str = r#"
control = "40%"
machines_min = 3
settle = "1s"
baseline = "1h"
silence = "1d"
[[stage]]
name = "first"
share = "30%"
least = "10m"
[[stage]]
name = "all"
share = "100%"
least = "10m"
proof = true
[[guard]]
name = "stall"
metric = "memory_stall"
margin = "1%"
proof = true
[[guard]]
name = "agents"
metric = "agent_failures"
margin = "20%"
"#;

pub(crate) const SIGNED: &str = "--store store --root root.json --keys keys";

pub(crate) fn json(directory: &Path, arguments: &str) -> Value {
    serde_json::from_str(&check(directory, &format!("--format json {arguments}"), &[])).unwrap()
}

/// A repository with one bundle.
pub(crate) fn published(at: &Path) {
    std::fs::write(at.join("bundle.toml"), BUNDLE).unwrap();
    std::fs::write(at.join("plan.toml"), PLAN).unwrap();
    check(at, "rollout keygen keys", &[]);
    check(at, &format!("rollout init {SIGNED}"), &[]);
    check(at, &format!("rollout publish bundle.toml {SIGNED}"), &[]);
}

/// Half an hour of forty machines from `from_unix_ms` on: those below a share have bundle 7, and stall for this share of the time.
pub(crate) fn traced(at: &Path, rollout: &str, from_unix_ms: u64, share_ppm: u32, stall: f64) {
    let basis = Basis { thresholds: Thresholds::log_spaced(2).unwrap(), scan_period_ms: Millis::seconds(120), page_bytes: Bytes(4096) };
    for machine in 0..40u64 {
        let name = format!("m{machine:02}");
        let place = place_ppm(rollout, &name);
        let treated = place.0 < share_ppm.min(600_000);
        let mut writer = Writer::create(&at.join(format!("traces/machine={name}/{from_unix_ms}.parquet")), basis).unwrap();
        for entry in 0..6 {
            let own = 0.01 + 0.0001 * ((machine * 7 + entry * 3) % 11) as f64;
            let stalled = if treated { own + stall } else { own };
            let figures = Figures {
                start_unix_ms: UnixMillis(from_unix_ms + entry * 300_000),
                duration_ms: Millis(300_000),
                periods: 5,
                window_ms: Millis(300_000),
                working_set_bytes: Bytes(10 * 4096),
                memory_bytes: Bytes(20 * 4096),
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of five minutes")]
                memory_stall_us: (stalled * 3e8) as u64,
                bundle_version: if treated { 7 } else { 0 },
                agent_start_unix_ms: UnixMillis(1),
                ..Figures::default()
            };
            let id = JobId::new("c", &name, "/j", "boot", 1);
            writer
                .push(&Entry { id, labels: Labels::default(), figures, cold_pages: vec![10, 5, 5], promotions_pages: vec![1, 1, 1] })
                .unwrap();
        }
        writer.finish().unwrap();
    }
}

pub(crate) fn since(at: &Path) -> u64 {
    json(at, "rollout status --store store --root root.json")["state"]["since_unix_ms"].as_u64().unwrap()
}
