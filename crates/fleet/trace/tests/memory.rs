//! Memory that files from outside take: at most four times the file, and the allowance of [`parquet_guard`].
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;

use parquet_guard::testing::{Changes, magnify};
use peak_alloc::PeakAlloc;
use policy::thresholds::Thresholds;
use trace::compact::{CompactedTrace, Compactor};
use trace::{Basis, Entry, JobId, Trace, Wanted, Writer};
use units::{Bytes, Millis};

#[global_allocator]
static PEAK: PeakAlloc = PeakAlloc;

/// Runs a reader. Returns its result, the peak of memory, and what is allowed.
fn measured(path: &Path, read: fn(&Path) -> trace::Result<usize>) -> (Result<usize, String>, u64, u64) {
    let file = std::fs::metadata(path).unwrap().len();
    let before = PEAK.current_usage();
    PEAK.reset_peak_usage();
    let outcome = read(path).map_err(|error| error.to_string());
    let peak = (PEAK.peak_usage() - before) as u64;
    println!("{} bytes of file, {} MiB of memory: {outcome:?}", file, peak >> 20);
    (outcome, peak, parquet_guard::allowed(file))
}

/// Reads every row twice: as batches, where the layout allows it, and with the library.
fn rows(path: &Path) -> trace::Result<usize> {
    let trace = Trace::open(path)?;
    let wanted = Wanted::new(&["start_unix_ms", "memory_bytes"]).unwrap();
    for group in 0..trace.groups() {
        let _ = trace.scan(group, &wanted, &mut |_, part| if part.rows.is_empty() { Err(()) } else { Ok(()) });
    }
    trace.rows().try_fold(0, |count, rows| rows.map(|rows| count + rows.len()))
}

fn days(path: &Path) -> trace::Result<usize> {
    let trace = CompactedTrace::open(path)?;
    let mut count = 0;
    for group in 0..trace.groups() {
        count += trace.group(group)?.try_fold(0, |count, day| day.map(|_| count + 1))?;
    }
    Ok(count)
}

fn basis() -> Basis {
    Basis { thresholds: Thresholds::log_spaced(32).unwrap(), scan_period_ms: Millis::seconds(120), page_bytes: Bytes(4096) }
}

fn entry() -> Entry {
    Entry {
        id: JobId::new("c", "m", "/job", "boot", 1),
        labels: trace::Labels::default(),
        figures: trace::Figures::default(),
        cold_pages: vec![0; 33],
        promotions_pages: vec![0; 33],
    }
}

fn check(honest: &Path, read: fn(&Path) -> trace::Result<usize>, cases: &[(Changes, &str)]) {
    let (outcome, peak, allowed) = measured(honest, read);
    assert!(outcome.is_ok() && peak < allowed, "{outcome:?} {peak} {allowed}");
    let hostile = honest.with_extension("hostile");
    for (changes, problem) in cases {
        magnify(honest, &hostile, changes).unwrap();
        let (outcome, peak, allowed) = measured(&hostile, read);
        let Changes { rows, keys, page_bytes, .. } = changes;
        assert!(peak < allowed, "{rows} rows, {keys} keys, pages of {page_bytes}: {peak} bytes of memory; {allowed} are allowed");
        let error = outcome.unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
}

/// One test: the peak of memory is that of the process.
#[test]
fn a_trace_takes_four_times_its_size_at_most() {
    let directory = tempfile::tempdir().unwrap();
    let usual = || Changes { rows: 1, text: None, keys: 0, page_bytes: 1 << 20 };

    let honest = directory.path().join("trace");
    let mut writer = Writer::create(&honest, basis()).unwrap();
    for _ in 0..trace::GROUP_ENTRIES {
        writer.push(&entry()).unwrap();
    }
    writer.finish().unwrap();
    check(
        &honest,
        rows,
        &[
            (Changes { rows: 1 << 18, ..usual() }, "a row group of 262144 rows takes"),
            (Changes { text: Some(vec![b'a'; 200 << 20]), ..usual() }, "a row group of 1 rows takes"),
            // Every row has the name, once in the file.
            (Changes { rows: 4096, text: Some(vec![b'a'; 64 << 10]), ..usual() }, "takes"),
            (Changes { keys: 1 << 20, ..usual() }, "the footer has"),
        ],
    );

    let honest = directory.path().join("compacted");
    let mut writer = Compactor::create(&honest, basis()).unwrap();
    writer.push(entry()).unwrap();
    writer.finish().unwrap();
    check(
        &honest,
        days,
        &[
            (Changes { rows: 1 << 20, ..usual() }, "a row group of 1048576 rows takes"),
            (Changes { text: Some(vec![b'a'; 200 << 20]), ..usual() }, "a row group of 1 rows takes"),
            (Changes { keys: 1 << 20, ..usual() }, "the footer has"),
        ],
    );
}
