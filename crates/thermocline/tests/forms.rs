//! One fleet in every form of its traces: `thermocline model` gives the same answer, byte for byte.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use trace::{Entry, Figures, Merge, Trace, Writer};
use units::{Bytes, Millis, Pages, RatioPpm};

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

/// Everything that the model says of a trace: each policy, and each way of asking.
fn all_answers(trace: &str) -> Vec<String> {
    let asked: [&[&str]; 4] = [
        &["--by", "cluster", "--pairs", "--survey"],
        &["--detail", "--agents"],
        &["--policy", "pressure", "--tier-latency", "30us"],
        &["--policy", "slowdown", "--tier-latency", "300ns"],
    ];
    let common = ["model", "--format", "json", "--percentiles", "90%", "--warmups", "0s", "--trace", trace];
    asked.iter().map(|more| thermocline(&[&common[..], more].concat())).collect()
}

/// Entries whose numbers are random, each of the order of magnitude that its column has, with labels that change.
fn random_entries(given: &[Entry], seed: u64) -> Vec<Entry> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut entries = given.to_vec();
    for entry in &mut entries {
        let kept = entry.figures;
        let mut numbers = kept.to_array();
        numbers.iter_mut().for_each(|number| *number = random.u64(..=(*number * 2).max(9)));
        entry.figures = Figures::from_array(numbers);
        // What the entry is, and not what it measured.
        (entry.figures.start_unix_ms, entry.figures.job_age_ms, entry.figures.periods) =
            (kept.start_unix_ms, kept.job_age_ms, kept.periods);
        entry.figures.window_ms = Millis(random.u64(kept.window_ms.0 / 2..=kept.window_ms.0));
        entry.figures.sampled_compressed_ppm = RatioPpm(random.u32(..1_000_000));
        entry.figures.resolved_to_scans = random.u64(..=255);
        entry.labels.class = ["batch", "latency"][random.usize(..2)].to_owned();
        entry.labels.tracker = ["page_idle", "sampled", "lru_gen"][random.usize(..3)].to_owned();
        for pages in entry.cold_pages.iter_mut().chain(&mut entry.promotions_pages) {
            *pages = random.u64(..=(*pages).max(3));
        }
    }
    entries
}

#[test]
fn every_column_that_the_model_reads_survives_compaction() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    thermocline(&["model", "--generate", "6", "--days", "1", "--record", &at("recorded")]);
    let recorded = files(Path::new(&at("recorded")));
    let basis = *Trace::open(&recorded[0]).unwrap().basis();
    let given: Vec<Entry> = Merge::of(recorded).unwrap().map(Result::unwrap).collect();
    let mut before = Vec::new();
    for seed in 0..4 {
        let entries = random_entries(&given, seed);
        let (traces, compacted) = (at(&format!("traces-{seed}")), at(&format!("compacted-{seed}.parquet")));
        write(Path::new(&traces), &basis, &entries, |entry| format!("cluster={}/machine={}/x.parquet", entry.id.cluster, entry.id.machine));
        thermocline(&["trace", "compact", &traces, "--to", &compacted]);
        let (expected, found) = (all_answers(&traces), all_answers(&compacted));
        for (expected, found) in expected.iter().zip(&found) {
            assert!(expected == found, "seed {seed}:\n{expected}\n{found}");
        }
        // The answers depend on the numbers.
        assert!(expected.iter().zip(&before).all(|(one, other)| one != other), "seed {seed}: {expected:?}");
        before = expected;
    }
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

/// Compacts a fleet day by day, as operators would: `extended.parquet` is extended by each day, `daily` has a file for each, and
/// `joined.parquet` is made of these. Returns the number of days.
fn by_days(directory: &Path, basis: &trace::Basis, entries: &[Entry]) -> usize {
    let at = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let day = |entry: &Entry| entry.figures.start_unix_ms.0 / (24 * HOUR_MS);
    let mut days: BTreeMap<u64, Vec<Entry>> = BTreeMap::new();
    entries.iter().for_each(|entry| days.entry(day(entry)).or_default().push(entry.clone()));
    let (store, extended) = (at("by-day"), at("extended.parquet"));
    for (number, entries) in &days {
        let traces = format!("{store}/date={number}");
        write(Path::new(&traces), basis, entries, |entry| {
            format!("cluster={}/machine={}/{}.parquet", entry.id.cluster, entry.id.machine, entry.figures.start_unix_ms.0 / HOUR_MS)
        });
        let so_far = Path::new(&extended).exists().then_some(extended.as_str());
        let sources: Vec<_> = so_far.into_iter().chain([traces.as_str()]).collect();
        thermocline(&[&["trace", "compact"][..], &sources, &["--to", &extended]].concat());
        thermocline(&["trace", "compact", &traces, "--to", &at(&format!("daily/{number}.parquet"))]);
    }
    thermocline(&["trace", "compact", &at("daily"), "--to", &at("joined.parquet")]);
    days.len()
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
    let days = by_days(directory.path(), &basis, &entries);
    let expected = answer(&["--trace", &at("hourly")]);
    assert!(expected.len() > 1_000, "{expected}");
    let mut differing = Vec::new();
    let mut compare = |form: &str, found: String| {
        if found != expected {
            differing.push(form.to_owned());
        }
    };
    let compacted = ["hourly-compacted.parquet", "machines-compacted.parquet", "extended.parquet"];
    for form in ["machines", "merged.parquet", "daily"].into_iter().chain(compacted) {
        compare(form, answer(&["--trace", &at(form)]));
        compare(&format!("{form}, one thread"), answer(&["--trace", &at(form), "--threads", "1"]));
    }
    compare("URL", answer(&["--trace", &format!("file://{}", at("hourly"))]));
    // Interrupted and resumed: what was done is read from the directory.
    for pass in ["first", "resumed"] {
        compare(&format!("--resume, {pass}"), answer(&["--trace", &at("machines"), "--resume", &at("resume")]));
    }
    // The same bytes, whether compacted at once, day by day, or from each day's file.
    let bytes = |name: &str| std::fs::read(at(name)).unwrap();
    assert!(bytes("extended.parquet") == bytes("hourly-compacted.parquet") && bytes("joined.parquet") == bytes("extended.parquet"));
    assert!(days > 1);
    // Smaller than what agents write, an hour of each machine.
    let size = |files: Vec<PathBuf>| files.iter().map(|file| file.metadata().unwrap().len()).sum::<u64>();
    let (hourly, compacted) = (size(files(Path::new(&at("hourly")))), size(vec![at("extended.parquet").into()]));
    assert!(compacted < hourly, "{compacted} of {hourly} bytes");
    let forms = 2 * 6 + 1 + 2;
    println!("{}", serde_json::json!({ "forms": forms + 1, "differing": differing.len() }));
    if let Some(path) = std::env::var_os("FORMS_RESULT") {
        std::fs::write(path, serde_json::json!({ "forms": forms + 1, "differing": differing.len(), "entries": entries.len() }).to_string())
            .unwrap();
    }
    assert!(differing.is_empty(), "{differing:?}");
}
