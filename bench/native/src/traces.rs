//! Reading traces: the first step of the fleet model.

use std::hint::black_box;

use anyhow::Result;
use policy::thresholds::Thresholds;
use trace::compact::{CompactedTrace, Compactor, DayEntries};
use trace::{Basis, Entry, Figures, JobId, Labels, Trace, Writer};
use units::{Bytes, Millis, UnixMillis};

use crate::measure::{Bench, Effort, Report};

const JOBS: u64 = 100;
/// Entries of five minutes: two days.
const ENTRIES: u64 = 576;

/// Measures both forms of the same entries, with files in the page cache.
pub(crate) fn bench(report: &mut Report, effort: Effort) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (plain, packed) = (directory.path().join("trace.parquet"), directory.path().join("compacted.parquet"));
    let basis = Basis { thresholds: Thresholds::log_spaced(32)?, scan_period_ms: Millis::seconds(120), page_bytes: Bytes(4096) };
    let (mut writer, mut compactor) = (Writer::create(&plain, basis)?, Compactor::create(&packed, basis)?);
    for entry in fleet(basis.buckets()) {
        writer.push(&entry)?;
        compactor.push(entry)?;
    }
    let (plain_size, packed_size) = (writer.finish()?.size.0, compactor.finish()?.size.0);
    eprintln!("bytes per entry: {} as columns, {} packed", plain_size / (JOBS * ENTRIES), packed_size / (JOBS * ENTRIES));

    let trace = Trace::open(&plain)?;
    let mut columns = || (0..trace.groups()).filter_map(|group| trace.group(group).ok()).map(|rows| black_box(rows).len() as u64).sum();
    report.measure(effort, Bench { name: "trace_columns", unit: "entries", work: &mut columns, limit: None, required: None })?;

    let compacted = CompactedTrace::open(&packed)?;
    let mut unpacked = DayEntries::default();
    let mut from_file = || unpack(&compacted, &mut unpacked);
    report
        .measure(effort, Bench { name: "trace_compacted_file", unit: "entries", work: &mut from_file, limit: None, required: Some(8e6) })?;

    let groups = (0..compacted.groups()).map(|group| compacted.group(group)?.collect::<Result<Vec<_>, _>>());
    let days = groups.collect::<Result<Vec<_>, _>>()?.concat();
    let mut unpacked = DayEntries::default();
    let mut in_memory = || {
        let mut entries = 0;
        for day in &days {
            if day.unpack(compacted.path(), compacted.basis(), &mut unpacked).is_ok() {
                entries += black_box(&unpacked).len() as u64;
            }
        }
        entries
    };
    // The minimum of any replay: reading every number once.
    let numbers: Vec<u32> = vec![1; usize::try_from(JOBS * ENTRIES)? * 80];
    let mut read = || {
        black_box(numbers.iter().fold(0u32, |sum, &number| sum.wrapping_add(number)));
        JOBS * ENTRIES
    };
    let bench = Bench { name: "trace_unpack", unit: "entries", work: &mut in_memory, limit: Some(&mut read), required: Some(15e6) };
    report.measure(effort, bench)
}

fn unpack(compacted: &CompactedTrace, unpacked: &mut DayEntries) -> u64 {
    let mut entries = 0;
    for group in 0..compacted.groups() {
        for day in compacted.group(group).into_iter().flatten().flatten() {
            if day.unpack(compacted.path(), compacted.basis(), unpacked).is_ok() {
                entries += black_box(&*unpacked).len() as u64;
            }
        }
    }
    entries
}

/// Generates jobs of many sizes with drifting histograms: each counter changes by a few percent per entry.
fn fleet(buckets: usize) -> impl Iterator<Item = Entry> {
    let mut random = fastrand::Rng::with_seed(4);
    let mut ids: Vec<_> = (0..JOBS).map(|job| JobId::new("c", "m", &format!("/job-{job:04}"), "boot", job)).collect();
    ids.sort();
    ids.into_iter().flat_map(move |id| {
        let scale = 1u64 << random.u32(10..24);
        let mut levels: Vec<u64> = (0..2 * buckets).map(|bucket| random.u64(..=scale >> (bucket % buckets / 4))).collect();
        (0..ENTRIES)
            .map(|at| {
                for level in &mut levels {
                    *level = level.saturating_add(random.u64(..=*level / 16 + 1)).saturating_sub(random.u64(..=*level / 16 + 1));
                }
                let figures = Figures {
                    start_unix_ms: UnixMillis(1_795_132_800_000 + at * 300_000),
                    duration_ms: Millis(300_000),
                    window_ms: Millis(240_000),
                    periods: 5,
                    far_periods: 5,
                    job_age_ms: Millis(at * 300_000),
                    memory_bytes: Bytes(levels.iter().sum::<u64>() * 4096),
                    memory_stall_us: random.u64(..100_000),
                    ..Figures::default()
                };
                let labels = Labels { class: "standard".to_owned(), policy: "cold_age".to_owned(), ..Labels::default() };
                let (cold, promotions) = levels.split_at(buckets);
                Entry { id: id.clone(), labels, figures, cold_pages: cold.to_vec(), promotions_pages: promotions.to_vec() }
            })
            .collect::<Vec<_>>()
    })
}
