//! Samples of clusters, grouped by the share of their cores that were scheduled.

use serde::Serialize;

/// Width of a bin of scheduled cores, in percent. Bins are centered on its multiples.
const WIDTH_PERCENT: usize = 5;
const BINS: usize = 100 / WIDTH_PERCENT + 1;
/// Resolution of the stranded share: 0.1 %.
const STEPS: usize = 1_000;

/// The distribution of stranded DRAM in one bin of scheduled cores, as shares of all DRAM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bin {
    /// Center of the bin, which extends 2.5 percentage points to either side.
    pub scheduled_ratio: f64,
    /// Number of samples of clusters.
    pub samples: u64,
    /// 5th percentile, to 0.1 percentage points.
    pub stranded_p5: f64,
    /// Median.
    pub stranded_median: f64,
    /// 95th percentile.
    pub stranded_p95: f64,
    /// Maximum.
    pub stranded_most: f64,
}

/// Histograms of samples. Their size does not depend on the number of samples.
#[derive(Clone, Debug)]
pub(super) struct Bins(Vec<[u32; STEPS + 1]>);

impl Default for Bins {
    fn default() -> Self {
        Self(vec![[0; STEPS + 1]; BINS])
    }
}

impl Bins {
    pub(super) fn add(&mut self, scheduled: f64, stranded: f64) {
        let count = &mut self.0[place(scheduled, 100.0 / WIDTH_PERCENT as f64, BINS - 1)][place(stranded, STEPS as f64, STEPS)];
        *count = count.saturating_add(1);
    }

    pub(super) fn samples(&self) -> u64 {
        self.0.iter().flatten().copied().map(u64::from).sum()
    }

    pub(super) fn summarize(&self) -> Vec<Bin> {
        self.0.iter().enumerate().filter_map(|(index, counts)| bin(index, counts)).collect()
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
fn place(share: f64, steps: f64, last: usize) -> usize {
    (libm::round(share * steps).max(0.0) as usize).min(last)
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn bin(index: usize, counts: &[u32; STEPS + 1]) -> Option<Bin> {
    let samples: u64 = counts.iter().copied().map(u64::from).sum();
    let most = counts.iter().rposition(|&count| count > 0)?;
    let at = |percent: u64| {
        let rank = (samples * percent).div_ceil(100).max(1);
        let mut up_to = 0;
        let step = counts.iter().position(|&count| {
            up_to += u64::from(count);
            up_to >= rank
        });
        step.unwrap_or(most) as f64 / STEPS as f64
    };
    Some(Bin {
        scheduled_ratio: (index * WIDTH_PERCENT) as f64 / 100.0,
        samples,
        stranded_p5: at(5),
        stranded_median: at(50),
        stranded_p95: at(95),
        stranded_most: most as f64 / STEPS as f64,
    })
}
