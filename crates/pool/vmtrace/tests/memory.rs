//! Memory that files from outside take: at most four times the file, and the allowance of [`parquet_guard`].
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;

use parquet_guard::testing::{Changes, magnify};
use peak_alloc::PeakAlloc;
use units::Bytes;
use vmtrace::{About, GROUP_VMS, Trace, Vm, Writer};

#[global_allocator]
static PEAK: PeakAlloc = PeakAlloc;

/// Reads all VMs. Returns their number, or the error, beside the peak of memory and what was allowed.
fn read(path: &Path) -> (Result<usize, String>, u64, u64) {
    let file = std::fs::metadata(path).unwrap().len();
    let before = PEAK.current_usage();
    PEAK.reset_peak_usage();
    let read = || {
        let trace = Trace::open(path)?;
        trace.vms().try_fold(0, |count, vm| vm.map(|_| count + 1))
    };
    let outcome = read().map_err(|error| error.to_string());
    let peak = (PEAK.peak_usage() - before) as u64;
    println!("{} bytes of file, {} MiB of memory: {outcome:?}", file, peak >> 20);
    (outcome, peak, parquet_guard::allowed(file))
}

#[test]
fn a_trace_takes_four_times_its_size_at_most() {
    let directory = tempfile::tempdir().unwrap();
    let (honest, hostile) = (directory.path().join("honest"), directory.path().join("hostile"));
    let mut writer = Writer::create(&honest).unwrap();
    for id in 0..GROUP_VMS as u64 {
        writer.push(&Vm { id, cores: 2, memory_bytes: Bytes(1 << 30), ..Vm::default() }).unwrap();
    }
    writer.finish(&About::default()).unwrap();
    let (outcome, peak, allowed) = read(&honest);
    assert!(outcome == Ok(GROUP_VMS) && peak < allowed, "{outcome:?} {peak} {allowed}");

    let usual = Changes { rows: 1, text: None, keys: 0, page_bytes: 1 << 20 };
    let check = |changes: &Changes, problem: &str| {
        magnify(&honest, &hostile, changes).unwrap();
        let (outcome, peak, allowed) = read(&hostile);
        assert!(peak < allowed, "{changes:?}: {peak} bytes of memory; {allowed} are allowed");
        assert!(outcome.unwrap_err().contains(problem), "{changes:?}");
    };
    check(&Changes { rows: 1 << 20, ..usual.clone() }, "1048576 rows takes");
    check(&Changes { keys: 1 << 20, ..usual }, "the footer has");
}
