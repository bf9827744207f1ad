//! Memory that a journal's lines take: a constant, whatever their length.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::fmt::Write;

use agent::journal;
use peak_alloc::PeakAlloc;

#[global_allocator]
static PEAK: PeakAlloc = PeakAlloc;

/// Memory for a line of the longest length that is read.
const ALLOWED: usize = 256 << 20;

/// Reads a journal of one line, which holds `list`. Returns the error and the peak of memory.
fn read(list: &str) -> (String, usize) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    std::fs::write(&path, format!("{{\"record\":\"job\",\"state\":{list}}}\n")).unwrap();
    let before = PEAK.current_usage();
    PEAK.reset_peak_usage();
    let error = journal::read(&path).unwrap_err().to_string();
    let peak = PEAK.peak_usage() - before;
    println!("a line of {} bytes takes {} MiB: {error:.120}", list.len(), peak >> 20);
    (error, peak)
}

/// One test: the peak of memory is that of the process.
#[test]
fn a_journal_line_takes_a_limited_amount_of_memory() {
    let repeated = |text: &str, bytes: usize| {
        let mut list = "[".to_owned();
        (0..bytes / text.len()).for_each(|_| list.write_str(text).unwrap());
        list + "0]"
    };
    for bytes in [4_000_000, 40_000_000] {
        for item in ["0,", "[],", "\"\",", "{\"\":0},"] {
            let (error, peak) = read(&repeated(item, bytes));
            assert!(peak < ALLOWED, "{bytes} bytes of {item}: {peak} bytes of memory");
            assert!(bytes < 4 << 20 || error.contains("longer than 4194304 bytes"), "{error}");
        }
    }
    // Deep nesting is an error, and no overflow of the stack.
    let (error, _) = read(&"[".repeat(900_000));
    assert!(error.contains("recursion limit"), "{error}");
}
