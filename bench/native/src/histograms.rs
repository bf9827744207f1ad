//! Histograms from page ages, and bucketed histograms from them.

use std::hint::black_box;

use anyhow::Result;
use policy::histogram::{AgeCounts, Histogram};
use policy::thresholds::Thresholds;
use units::{Age, Pages};

use crate::measure::{Bench, Effort, Report};

/// Ages of 256 GiB of 4 KiB pages, which exceeds all caches.
const AGES: usize = 64 << 20;

/// Required rate per core and second: 1 GiB of page ages.
const REQUIRED: f64 = (1u64 << 30) as f64;

/// Mean length of a run of equal ages in a job's memory: pages that are allocated together are used together.
const RUN: usize = 200;

/// Measures both extremes: ages in runs, which is the normal case, and ages in random order.
pub(crate) fn bench(report: &mut Report, effort: Effort) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut ages = vec![0u8; AGES];
    fill_runs(&mut ages, &mut random);
    fold(report, effort, "histogram_fold_runs", &ages)?;
    random.fill(&mut ages);
    fold(report, effort, "histogram_fold_random", &ages)?;

    let thresholds = Thresholds::log_spaced(32)?;
    let mut counts = AgeCounts::default();
    for age in 0..=255 {
        counts.add(Age(age), Pages(random.u64(0..1 << 20)));
    }
    let mut work = || {
        black_box(Histogram::from_counts(black_box(&counts), &thresholds));
        1
    };
    let bench = Bench { name: "histogram_from_counts", unit: "histograms", work: &mut work, limit: None, required: None };
    report.measure(effort, bench)
}

fn fold(report: &mut Report, effort: Effort, name: &'static str, ages: &[u8]) -> Result<()> {
    let mut work = || {
        let mut counts = AgeCounts::default();
        counts.fold(black_box(ages));
        black_box(counts);
        AGES as u64
    };
    // The limit is memory bandwidth: loading and adding the same bytes.
    let mut limit = || {
        black_box(sum(black_box(ages)));
        AGES as u64
    };
    report.measure(effort, Bench { name, unit: "bytes", work: &mut work, limit: Some(&mut limit), required: Some(REQUIRED) })
}

/// Sums eight bytes at a time, so that loading is the only cost.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).map(|word| word.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)));
    words.fold(0, u64::wrapping_add)
}

/// Fills with runs of equal ages; each older age is half as frequent.
fn fill_runs(ages: &mut [u8], random: &mut fastrand::Rng) {
    let mut rest = ages;
    while !rest.is_empty() {
        let length = random.usize(1..2 * RUN).min(rest.len());
        let (run, after) = rest.split_at_mut(length);
        run.fill(random.u64(..).leading_zeros().min(255) as u8);
        rest = after;
    }
}
