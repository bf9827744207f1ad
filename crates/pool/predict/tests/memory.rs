//! Memory that models take: at most four times the file, and an allowance.
#![allow(clippy::unwrap_used, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::path::Path;

use peak_alloc::PeakAlloc;
use predict::Untouched;

#[global_allocator]
static PEAK: PeakAlloc = PeakAlloc;

const ALLOWANCE: usize = 128 << 20;
const HOSTILE_BYTES: usize = 16 << 20;

/// Loads a model. Returns the result and the peak of memory.
fn load(path: &Path) -> (Result<(), String>, usize) {
    let before = PEAK.current_usage();
    PEAK.reset_peak_usage();
    let outcome = Untouched::load(path).map(drop).map_err(|error| error.to_string());
    let peak = PEAK.peak_usage() - before;
    println!("{} bytes of file, {} MiB of memory: {outcome:?}", std::fs::metadata(path).unwrap().len(), peak >> 20);
    (outcome, peak)
}

/// A field of bytes in a protocol buffer.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![(number << 3) | 2];
    let mut length = content.len();
    while length >= 0x80 {
        bytes.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    bytes.push(u8::try_from(length).unwrap());
    bytes.extend(content);
    bytes
}

/// One test: the peak of memory is that of the process.
#[test]
fn a_model_takes_four_times_its_file_at_most() {
    let honest = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/untouched.onnx");
    let (outcome, peak) = load(&honest);
    assert!(outcome.is_ok() && peak < ALLOWANCE, "{outcome:?} {peak}");

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hostile.onnx");
    // Graph 7, node 1, attribute 5 of the node, and in it integers 8 and texts 9.
    let empty = |number: u8| field(number, &[]).repeat(HOSTILE_BYTES / 2);
    let attribute = |content: &[u8]| field(7, &field(1, &field(5, content)));
    let cases = [
        ("nodes", field(7, &empty(1))),
        ("attributes", field(7, &field(1, &empty(5)))),
        ("texts", attribute(&empty(9))),
        ("packed integers", attribute(&field(8, &vec![0; HOSTILE_BYTES]))),
        ("integers", attribute(&[8 << 3, 0].repeat(HOSTILE_BYTES / 2))),
        ("metadata", [(14 << 3) | 2, 0].repeat(HOSTILE_BYTES / 2)),
    ];
    for (what, bytes) in &cases {
        std::fs::write(&path, bytes).unwrap();
        let (outcome, peak) = load(&path);
        assert!(peak < ALLOWANCE + 4 * bytes.len(), "{what}: {} bytes of file, {peak} of memory", bytes.len());
        assert!(outcome.unwrap_err().contains("bytes of memory; the limit for a file of"), "{what}");
    }
}
