//! Files of every earlier version read back the same.
//!
//! `tests/trace-v1.parquet` was written by the first program that wrote traces, `compact-v1.parquet` by the first that
//! compacted them. They are never rewritten. A new version gets files of its own, written by `NEW_VERSION=1 cargo test
//! -p thermocline-trace --test versions`.
#![allow(clippy::unwrap_used, reason = "clippy's exemption for tests does not cover helpers in integration tests")]

use std::path::{Path, PathBuf};

use policy::thresholds::Thresholds;
use trace::compact::{self, CompactedTrace, Compactor, DayEntries, Number};
use trace::{Basis, Entry, FIGURES, Figures, JobId, Labels, Trace, Writer, schema};
use units::{Bytes, Millis, Pages, RatioPpm, UnixMillis};

fn fixture(form: &str, version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{form}-v{version}.parquet"))
}

/// Returns whether the fixture is to be written: it is missing, of the latest version, and `NEW_VERSION` is set.
fn is_new(path: &Path, version: u32, latest: u32) -> bool {
    version == latest && std::env::var_os("NEW_VERSION").is_some() && !path.exists()
}

/// Returns an hour of entries of two jobs on each of two machines. All numbers of an entry differ; numbers that the
/// version lacks are zero.
fn given(version: u32) -> impl Iterator<Item = Entry> {
    let basis = basis();
    let ids = ["m1", "m2"].into_iter().flat_map(|machine| {
        let mut ids = ["/redis", "/web"].map(|job| JobId::new("c", machine, job, "boot", 1));
        ids.sort();
        ids
    });
    ids.enumerate().flat_map(move |(job, id)| {
        (0..12u64).map(move |at| {
            let number = |column: usize| (job as u64 + 1) * 1_000_000 + at * 1_000 + column as u64;
            let known = |column: usize| FIGURES[..column].iter().filter(|figure| figure.since <= version).count();
            let figure = |column: usize| if FIGURES[column].since <= version { number(known(column)) } else { 0 };
            let mut figures = Figures::from_array(std::array::from_fn(figure));
            figures.start_unix_ms = UnixMillis(1_795_132_800_000 + at * 300_000);
            let words = ["standard", "cold_age", "page_idle", if at == 0 { "warming_up" } else { "offload" }].map(ToOwned::to_owned);
            let [class, policy, tracker, decision] = words;
            Entry {
                id: id.clone(),
                labels: Labels { class, policy, tracker, decision },
                figures,
                cold_pages: (0..basis.buckets()).map(|bucket| number(100 + bucket)).collect(),
                promotions_pages: (0..basis.buckets()).map(|bucket| number(200 + bucket)).collect(),
            }
        })
    })
}

fn basis() -> Basis {
    Basis { thresholds: Thresholds::log_spaced(32).unwrap(), scan_period_ms: Millis::seconds(120), page_bytes: Bytes(4096) }
}

#[test]
fn every_trace_version_reads() {
    for version in 1..=schema::VERSION {
        let path = fixture("trace", version);
        if is_new(&path, version, schema::VERSION) {
            let mut writer = Writer::create(&path, basis()).unwrap();
            given(version).for_each(|entry| writer.push(&entry).unwrap());
            writer.finish().unwrap();
        }
        let trace = Trace::open(&path).unwrap();
        assert_eq!((trace.version(), trace.basis()), (version, &basis()));
        let read: Vec<_> = trace.rows().flat_map(|rows| rows.unwrap().entries().collect::<Vec<_>>()).collect();
        assert!(read.into_iter().eq(given(version)), "version {version}");
    }
}

#[test]
fn every_compacted_version_reads() {
    // The version of the compacted form is independent of the schema's version.
    let mut given: Vec<_> = given(1).collect();
    for entry in &mut given {
        (entry.figures.resolved_to_scans, entry.figures.sampled_pages) = (2, Pages(512));
        entry.figures.sampled_compressed_ppm = RatioPpm(310_000);
    }
    for version in 1..=compact::VERSION {
        let path = fixture("compact", version);
        if is_new(&path, version, compact::VERSION) {
            let mut compactor = Compactor::create(&path, basis()).unwrap();
            given.iter().for_each(|entry| compactor.push(entry.clone()).unwrap());
            compactor.finish().unwrap();
        }
        let file = CompactedTrace::open(&path).unwrap();
        let mut unpacked = DayEntries::default();
        let mut rest = given.iter();
        for day in (0..file.groups()).flat_map(|group| file.group(group).unwrap()) {
            let day = day.unwrap();
            day.unpack(&path, file.basis(), &mut unpacked).unwrap();
            for (at, entry) in rest.by_ref().take(day.entries).enumerate() {
                let expected: Vec<u64> = [&entry.cold_pages, &entry.promotions_pages].into_iter().flat_map(|counts| sums(counts)).collect();
                assert!(unpacked.sums(at).iter().copied().map(u64::from).eq(expected), "version {version}");
                assert_eq!(u64::from(unpacked.number(at, Number::WindowMs)), entry.figures.window_ms.0);
                assert_eq!(u64::from(unpacked.number(at, Number::IoStallUs)), entry.figures.io_stall_us);
                let origin =
                    (unpacked.number(at, Number::ResolvedToScans), unpacked.number(at, Number::SampledPages), day.tracker.as_str());
                let written = if version < 3 { (0, 0, "") } else { (2, 512, "page_idle") };
                assert_eq!(origin, written, "version {version}");
                let compressed = if version < 4 { 0 } else { 310_000 };
                assert_eq!(unpacked.number(at, Number::SampledCompressedPpm), compressed, "version {version}");
            }
        }
        assert_eq!(rest.next(), None, "version {version}");
    }
}

/// Returns the suffix sums of a histogram.
fn sums(counts: &[u64]) -> Vec<u64> {
    (0..counts.len()).map(|bucket| counts[bucket..].iter().sum()).collect()
}
