//! Page ages into histograms, and histograms into the thresholds' buckets.

use std::hint::black_box;

use anyhow::Result;
use policy::histogram::{AgeCounts, Histogram};
use policy::thresholds::Thresholds;
use units::{Age, Pages};

use crate::measure::{Bench, Effort, Report};

/// Ages of 256 GiB of 4 KiB pages: far more than any cache holds.
const AGES: usize = 64 << 20;

/// What must be folded per core and second: 1 GiB of page ages.
const REQUIRED: f64 = (1u64 << 30) as f64;

/// Pages of the same age that follow each other in the memory of a job: allocated together, used together.
const RUN: usize = 200;

/// Measures folding at both ends of what memory looks like: ages in runs, the normal case, and no order at all.
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
    // The limit is memory bandwidth: bytes that are loaded and added up.
    let mut limit = || {
        black_box(sum(black_box(ages)));
        AGES as u64
    };
    report.measure(effort, Bench { name, unit: "bytes", work: &mut work, limit: Some(&mut limit), required: Some(REQUIRED) })
}

/// Eight bytes at a time, which leaves nothing to do but to load.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).map(|word| word.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)));
    words.fold(0, u64::wrapping_add)
}

/// Runs of equal ages, half as many at each older age.
fn fill_runs(ages: &mut [u8], random: &mut fastrand::Rng) {
    let mut rest = ages;
    while !rest.is_empty() {
        let length = random.usize(1..2 * RUN).min(rest.len());
        let (run, after) = rest.split_at_mut(length);
        run.fill(random.u64(..).leading_zeros().min(255) as u8);
        rest = after;
    }
}
