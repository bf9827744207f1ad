//! One control period of one job.

use std::hint::black_box;

use anyhow::{Result, ensure};
use policy::cold_age::{self, Input, Params, State};
use policy::histogram::{AgeCounts, Histogram};
use policy::thresholds::Thresholds;
use stats_alloc::Region;
use units::{Age, Millis, Pages, RatioPpm};

use crate::ALLOCATOR;
use crate::measure::{Bench, Effort, Report};

/// Steps per call, and length of the repeated sequence of periods.
const PERIODS: usize = 1024;

/// Measures the controller, after checking that it does not allocate.
pub(crate) fn bench(report: &mut Report, effort: Effort) -> Result<()> {
    let thresholds = Thresholds::log_spaced(32)?;
    let params = Params::new(RatioPpm(2_000), RatioPpm(980_000), Millis(120_000));
    let inputs = life(&thresholds);
    let mut state = State::default();
    let mut work = || {
        for input in &inputs {
            let (next, step) = cold_age::step(&params, &thresholds, &state, black_box(input));
            state = next;
            black_box(step);
        }
        inputs.len() as u64
    };
    let region = Region::new(ALLOCATOR);
    work();
    let allocated = region.change();
    ensure!(
        allocated.allocations == 0 && allocated.reallocations == 0,
        "cold_age::step allocates: {allocated:?} in {PERIODS} steps; it must not"
    );
    report.measure(effort, Bench { name: "cold_age_step", unit: "steps", work: &mut work, limit: None, required: None })
}

/// Returns periods of a job whose promotions vary, so that every threshold is the best one in some period.
fn life(thresholds: &Thresholds) -> Vec<Input> {
    let mut random = fastrand::Rng::with_seed(2);
    let mut histogram = |scale: u64| {
        let mut counts = AgeCounts::default();
        for age in 0..=255 {
            counts.add(Age(age), Pages(random.u64(0..scale) / (1 + u64::from(age))));
        }
        Histogram::from_counts(&counts, thresholds)
    };
    (0..PERIODS as u64)
        .map(|period| Input {
            job_age_ms: Millis(period * 60_000),
            window_ms: Millis(60_000),
            cold: histogram(1 << 20),
            resident: histogram(1 << 19),
            promotions: histogram(1 << (period % 20)),
            allowance: None,
            trial_max: None,
            returned: None,
            sample: None,
            reach: None,
            veto: None,
        })
        .collect()
}
