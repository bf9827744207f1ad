//! One fleet in every form of its traces: `thermocline model` gives the same answer, byte for byte.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use trace::{Entry, Merge, Trace, Writer};
use units::{Bytes, Pages, RatioPpm};

const HOUR_MS: u64 = 3_600_000;

fn thermocline(arguments: &[&str]) -> String {
    let ran = Command::new(env!("CARGO_BIN_EXE_thermocline")).args(arguments).env_remove("THERMOCLINE_LOG").output().unwrap();
    assert!(ran.status.success(), "{arguments:?}: {ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

/// What the model says of a trace, with everything that it can say.
fn answer(more: &[&str]) -> String {
    let common =
        ["model", "--format", "json", "--by", "class", "--percentiles", "90%,99%", "--warmups", "0s,20m", "--what-if", "bound=false"];
    thermocline(&[&common[..], more].concat())
}

/// A generated fleet, as agents would record it: some jobs are sampled, some are in zswap, some change their tracker at noon.
fn fleet(directory: &Path) -> Vec<Entry> {
    thermocline(&["model", "--generate", "24", "--days", "2", "--record", directory.to_str().unwrap()]);
    let mut entries: Vec<Entry> = Merge::of(files(directory)).unwrap().map(Result::unwrap).collect();
    for entry in &mut entries {
        let (key, start) = (entry.id.job_key.unsigned_abs(), entry.figures.start_unix_ms.0);
        entry.figures.sampled_compressed_ppm =
            RatioPpm([0, 250_000 + u32::try_from(start / HOUR_MS % 7).unwrap(), 900_000][(key % 3) as usize]);
        if key % 2 == 0 {
            (entry.figures.zswap_stored_bytes, entry.figures.zswap_pool_bytes) = (Bytes(start % 90_000_001), Bytes(start % 31_000_003));
        }
        if key % 5 == 0 && start / HOUR_MS % 24 >= 12 {
            entry.labels.tracker = "lru_gen".to_owned();
            entry.figures.sampled_pages = Pages::ZERO;
        }
    }
    entries
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Writes the entries to the file that `name` gives each of them.
fn write(directory: &Path, basis: &trace::Basis, entries: &[Entry], name: impl Fn(&Entry) -> String) {
    let mut of: BTreeMap<String, Vec<&Entry>> = BTreeMap::new();
    entries.iter().for_each(|entry| of.entry(name(entry)).or_default().push(entry));
    for (name, entries) in of {
        let mut writer = Writer::create(&directory.join(name), *basis).unwrap();
        entries.into_iter().for_each(|entry| writer.push(entry).unwrap());
        writer.finish().unwrap();
    }
}

#[test]
fn every_form_of_a_trace_gives_the_same_answer() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let entries = fleet(Path::new(&at("recorded")));
    let basis = *Trace::open(&files(Path::new(&at("recorded")))[0]).unwrap().basis();
    let place = |entry: &Entry| format!("cluster={}/machine={}", entry.id.cluster, entry.id.machine);
    // As agents write: a file of each machine and hour.
    write(Path::new(&at("hourly")), &basis, &entries, |entry| {
        format!("{}/{}.parquet", place(entry), entry.figures.start_unix_ms.0 / HOUR_MS)
    });
    write(Path::new(&at("machines")), &basis, &entries, |entry| format!("{}/all.parquet", place(entry)));
    thermocline(&["trace", "merge", &at("hourly"), "--to", &at("merged.parquet")]);
    thermocline(&["trace", "compact", &at("hourly"), "--to", &at("hourly-compacted.parquet")]);
    thermocline(&["trace", "compact", &at("machines"), "--to", &at("machines-compacted.parquet")]);
    thermocline(&["trace", "validate", &at("hourly-compacted.parquet")]);
    let expected = answer(&["--trace", &at("hourly")]);
    assert!(expected.len() > 1_000, "{expected}");
    let mut differing = Vec::new();
    let mut compare = |form: &str, found: String| {
        if found != expected {
            differing.push(form.to_owned());
        }
    };
    for form in ["machines", "merged.parquet", "hourly-compacted.parquet", "machines-compacted.parquet"] {
        compare(form, answer(&["--trace", &at(form)]));
        compare(&format!("{form}, one thread"), answer(&["--trace", &at(form), "--threads", "1"]));
    }
    compare("URL", answer(&["--trace", &format!("file://{}", at("hourly"))]));
    // Interrupted and resumed: what was done is read from the directory.
    for pass in ["first", "resumed"] {
        compare(&format!("--resume, {pass}"), answer(&["--trace", &at("machines"), "--resume", &at("resume")]));
    }
    let forms = 2 * 4 + 1 + 2;
    println!("{}", serde_json::json!({ "forms": forms + 1, "differing": differing.len() }));
    if let Some(path) = std::env::var_os("FORMS_RESULT") {
        std::fs::write(path, serde_json::json!({ "forms": forms + 1, "differing": differing.len(), "entries": entries.len() }).to_string())
            .unwrap();
    }
    assert!(differing.is_empty(), "{differing:?}");
}
