//! Blocks in the order from coldest to hottest, with equal blocks as one run.

use serde::{Deserialize, Serialize};
use units::{AccessRate, Bytes};

use super::rate::Estimate;
use super::sum::Sum;

/// A number of equal blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The size of each.
    pub bytes: Bytes,
    /// The mean rate of each.
    pub mean: AccessRate,
    /// The upper 95 % bound of the rate of each; `None` if it cannot be determined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upper: Option<AccessRate>,
    /// The number of blocks.
    pub blocks: u32,
}

impl Run {
    pub(super) fn estimate(&self) -> Estimate {
        Estimate { mean: self.mean, upper: self.upper }
    }

    fn rank(&self) -> Rank {
        rank(self.bytes, &self.estimate())
    }
}

/// The position of a block in the order from coldest to hottest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// A rate without an upper bound ranks above all others.
    unbounded: bool,
    upper: Option<AccessRate>,
    mean: AccessRate,
    /// Of two equally hot blocks the larger saves more in slow memory, so it ranks as the colder.
    bytes: std::cmp::Reverse<Bytes>,
}

/// Returns the rank by which [`Step`] counts blocks. Blocks of equal rank are interchangeable.
#[must_use]
pub fn rank(bytes: Bytes, estimate: &Estimate) -> Rank {
    Rank { unbounded: estimate.upper.is_none(), upper: estimate.upper, mean: estimate.mean, bytes: std::cmp::Reverse(bytes) }
}

/// Blocks from coldest to hottest, with equal blocks as one run. The journal contains this form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Run>", into = "Vec<Run>")]
pub struct Runs(Vec<Run>);

impl Runs {
    /// Returns the runs, coldest first.
    #[must_use]
    pub fn as_slice(&self) -> &[Run] {
        &self.0
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.0.iter().map(|run| u64::from(run.blocks)).sum()
    }

    /// Returns their total size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.0.iter().map(|run| Bytes(run.bytes.0.saturating_mul(run.blocks.into()))).sum()
    }

    /// Returns the size of the `count` hottest.
    pub(super) fn hottest(&self, count: u32) -> Bytes {
        let mut left = count;
        let size = |run: &Run| {
            let taken = run.blocks.min(left);
            left -= taken;
            Bytes(run.bytes.0.saturating_mul(taken.into()))
        };
        self.0.iter().rev().map(size).sum()
    }

    /// Returns the accesses to all but the `count` hottest.
    pub(super) fn without_hottest(&self, count: u32) -> Sum {
        let mut left = self.blocks() - u64::from(count).min(self.blocks());
        self.0.iter().fold(Sum::default(), |sum, run| {
            let taken = u32::try_from(left).unwrap_or(u32::MAX).min(run.blocks);
            left -= u64::from(taken);
            sum.with(run.estimate(), taken)
        })
    }

    /// Returns the sum of their mean rates.
    #[must_use]
    pub fn mean(&self) -> AccessRate {
        self.0.iter().map(|run| run.mean.saturating_mul(run.blocks.into())).sum()
    }
}

impl From<Vec<Run>> for Runs {
    /// Accepts any order; runs without blocks are dropped.
    fn from(mut runs: Vec<Run>) -> Self {
        runs.retain(|run| run.blocks > 0);
        runs.sort_unstable_by_key(Run::rank);
        // If a count would overflow, the rest remains a separate run.
        runs.dedup_by(|next, kept| {
            let both = (next.rank() == kept.rank()).then(|| kept.blocks.checked_add(next.blocks)).flatten();
            kept.blocks = both.unwrap_or(kept.blocks);
            both.is_some()
        });
        Self(runs)
    }
}

impl From<Runs> for Vec<Run> {
    fn from(runs: Runs) -> Self {
        runs.0
    }
}

impl FromIterator<(Bytes, Estimate)> for Runs {
    fn from_iter<I: IntoIterator<Item = (Bytes, Estimate)>>(blocks: I) -> Self {
        let run = |(bytes, estimate): (Bytes, Estimate)| Run { bytes, mean: estimate.mean, upper: estimate.upper, blocks: 1 };
        Self::from(blocks.into_iter().map(run).collect::<Vec<_>>())
    }
}
