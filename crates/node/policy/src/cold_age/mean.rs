//! The objective in the mean of the scans, for a stall target (policy `auto`).
//!
//! # Problem
//! A stall target is a share of time (TMO section 3.3), and the pressure controller keeps it in the mean. Asked of each scan by itself,
//! in K of them, it leaves resident what returns at once: 8 MiB that are used every 40 scans are 2,048 promotions, 0.3 % of the time
//! at 120 us each, but 12 % of their scan.
//!
//! # Rule
//! For each threshold, the promotions at or above it are added up over the last scans, [`SCANS_MAX`] at most. A threshold qualifies
//! if they are within what the target permits in these scans and one more, in which the worst of them happens again: a history of
//! n scans may lack a burst that comes every n + 1. Of a sample of the pages, the upper 95 % bound of the sum counts, or its mean for as
//! many pages as those that were far have shown ([`super::shown`]). All pages of the youngest threshold that qualifies are offloaded, or a part of those of a younger one, if that is more.
//!
//! Of pages with r times as many promotions as permitted, a part of 1/r keeps the mean, whether they are accessed at random or in a
//! loop: of a loop all that are far return at once, but no more often than all pages would.
//!
//! # What really returns
//! The age of a promoted page is an estimate, its promotion is counted by the kernel. A token bucket holds what the target permits
//! in [`BUCKET_SCANS`] scans. What returns beyond it is owed, for as many scans at most, and nothing goes out until quieter scans have
//! made up for it.
//!
//! # Properties
//! Each is a test of this name: memory that is used in a loop keeps the target in the mean; a lower target never takes more; what is
//! owed stops reclaim until it is made up for; a threshold that was not measured is not used.

use serde::{Deserialize, Serialize};
use units::{Age, Millis, Pages};

use super::decide::hold;
use super::lists::{PoolSizeError, copy, used};
use super::partial::{Part, far, oldest};
use super::pooled::above_count;
use super::shown::Shown;
use super::{Decision, Hold, Input, Params, Reason, Sample, next_after};
use crate::thresholds::{THRESHOLDS_MAX, Thresholds};

/// Scans that a mean is taken over at most: four hours of scans of two minutes. Then all sums are halved.
const SCANS_MAX: u16 = 128;

/// What may return at once, and what is owed at most, in scans; for page cache the latter is as much ([`crate::refaults`]).
const BUCKET_SCANS: u64 = 64;

/// What a job has promoted, in the mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Mean {
    /// Promotions at or above each threshold.
    promoted: [u64; THRESHOLDS_MAX],
    /// The most of them in one scan.
    worst: [u64; THRESHOLDS_MAX],
    /// Scans in which pages had reached the threshold.
    scans: [u16; THRESHOLDS_MAX],
    /// Promotions that may still return; below zero, what is owed.
    left: i64,
    /// Age of the job at the last scan.
    last_ms: Option<Millis>,
    /// What the pages that are far have shown.
    shown: Shown,
}

impl Default for Mean {
    fn default() -> Self {
        let lists = || [0; THRESHOLDS_MAX];
        Self { promoted: lists(), worst: lists(), scans: [0; THRESHOLDS_MAX], left: 0, last_ms: None, shown: Shown::default() }
    }
}

impl Mean {
    /// Adds a control period that permitted `allowed` promotions, unless it is of the same scan as the last.
    pub(super) fn observe(&mut self, input: &Input, allowed: Pages, returns: bool) {
        let elapsed_ms = self.last_ms.and_then(|last_ms| input.job_age_ms.checked_sub(last_ms));
        if elapsed_ms.is_some_and(|elapsed_ms| elapsed_ms < next_after(input.window_ms)) {
            return;
        }
        self.last_ms = Some(input.job_age_ms);
        if returns {
            self.shown.add(input, SCANS_MAX / 2);
        }
        let returned = input.returned.map_or(Pages::ZERO, |returned| returned.below_first() + returned.at_or_above(0));
        let bucket = i64::try_from(allowed.0.saturating_mul(BUCKET_SCANS)).unwrap_or(i64::MAX);
        self.left = self.left.saturating_add_unsigned(allowed.0).saturating_sub_unsigned(returned.0).clamp(-bucket, bucket);
        if self.scans[0] >= SCANS_MAX {
            self.halve();
        }
        let (mut promoted, mut pages) = (0u64, 0u64);
        let buckets = input.promotions.buckets().iter().zip(input.cold.buckets()).enumerate().skip(1).rev();
        for (bucket, (&promotions, &cold)) in buckets {
            (promoted, pages) = (promoted.saturating_add(promotions), pages.saturating_add(cold));
            if promoted == 0 && pages == 0 {
                continue;
            }
            let index = bucket - 1;
            self.promoted[index] = self.promoted[index].saturating_add(promoted);
            self.worst[index] = self.worst[index].max(promoted);
            self.scans[index] = self.scans[index].saturating_add(1);
        }
    }

    fn halve(&mut self) {
        self.promoted.iter_mut().chain(&mut self.worst).for_each(|sum| *sum = sum.div_ceil(2));
        self.scans.iter_mut().for_each(|scans| *scans = scans.div_ceil(2));
    }

    /// Decides for one control period, and returns the threshold as well.
    pub(super) fn decide(&self, params: &Params, input: &Input, thresholds: &Thresholds, allowed: Pages) -> (Decision, Option<Age>) {
        let largest = |reached| self.largest(params, thresholds, input, allowed, reached);
        let reached = largest(input.reached(thresholds));
        let largest = reached.or_else(|| largest(thresholds.len()));
        let threshold = largest.and_then(|(part, _)| thresholds.get(part.index));
        let held = |reason| (Decision::Hold { reason }, threshold);
        let (Some((part, all)), Some(at)) = (largest, threshold) else {
            return held(hold(params, input, Some(Age(0))).unwrap_or(Hold::ShortHistory));
        };
        let owed = self.is_owed().then_some(Hold::Owed);
        let beyond = reached.is_none().then_some(Hold::OutOfReach);
        if let Some(reason) = hold(params, input, threshold).or(owed).or(beyond) {
            return held(reason);
        }
        let resident = input.resident.at_or_above(part.index);
        let pages = if all { resident } else { (part.far_max - far(input)).min(resident) };
        let decision = match (pages, all) {
            (Pages::ZERO, true) => Decision::Hold { reason: Hold::NothingCold },
            (Pages::ZERO, false) => Decision::Hold { reason: Hold::PartIsFar },
            (pages, true) => Decision::Offload { threshold: at, pages, reason: Reason::Mean },
            (pages, false) => Decision::Offload { threshold: at, pages, reason: Reason::Partial },
        };
        (decision, threshold)
    }

    /// The threshold if pages of any age could go out.
    pub(super) fn wanted(&self, params: &Params, input: &Input, thresholds: &Thresholds, allowed: Pages) -> Option<Age> {
        thresholds.get(self.largest(params, thresholds, input, allowed, thresholds.len())?.0.index)
    }

    /// Whether more returned than the target permits.
    fn is_owed(&self) -> bool {
        self.left < 0
    }

    /// Returns the most pages that may be far, from which threshold on, and whether these are all of its pages; `None` if none of
    /// the first `reached` thresholds was measured.
    pub(super) fn largest(
        &self,
        params: &Params,
        thresholds: &Thresholds,
        input: &Input,
        allowed: Pages,
        reached: usize,
    ) -> Option<(Part, bool)> {
        let is_sample = input.sample.is_some_and(Sample::is_partial);
        let shown = self.shown.far_max(input, allowed).filter(|_| params.returns && is_sample);
        let mut best: Option<(Part, bool)> = None;
        for index in 0..reached {
            // In the first scan, pages reach the threshold: none of them could be promoted at that age.
            let Some(&scans @ 2..) = self.scans.get(index) else { break };
            let permitted = u128::from(allowed.0) * u128::from(scans);
            let promoted = u128::from(self.promoted_at_most(index, input.sample)) + u128::from(self.worst[index]);
            let all = promoted <= permitted;
            let cold = input.cold.at_or_above(index);
            let part = |promoted: u128| Pages(u64::try_from(u128::from(cold.0) * permitted / promoted.max(1)).unwrap_or(cold.0)).min(cold);
            let by_mean = || part(u128::from(self.promoted[index]) + u128::from(self.worst[index]));
            let far_max = if all { cold } else { part(promoted).max(shown.map_or(Pages::ZERO, |shown| shown.min(by_mean()))) };
            if (all || params.partial) && best.is_none_or(|(best, _)| far_max > best.far_max) {
                best = Some((Part { index, far_max }, all));
            }
        }
        let (part, all) = best?;
        let index = if all { part.index } else { oldest(thresholds, input, part, reached) };
        Some((Part { index, ..part }, all))
    }

    /// The promotions at or above threshold `index`; of a sample, the upper 95 % bound of a Poisson count ([`super::pooled`]).
    fn promoted_at_most(&self, index: usize, sample: Option<Sample>) -> u64 {
        let promoted = self.promoted[index];
        let Some(sample) = sample.filter(|sample| sample.is_partial()) else { return promoted };
        let stands_for = sample.of.0.div_ceil(sample.pages.0.max(1));
        let error = above_count(promoted.into(), stands_for.into());
        promoted.saturating_add(u64::try_from(error).unwrap_or(u64::MAX))
    }
}

/// The serialized form: lists without trailing zeros.
#[derive(Serialize, Deserialize)]
struct Stored {
    promoted: Vec<u64>,
    worst: Vec<u64>,
    scans: Vec<u16>,
    left: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "Shown::is_nothing")]
    shown: Shown,
}

impl TryFrom<Stored> for Mean {
    type Error = PoolSizeError;

    fn try_from(stored: Stored) -> Result<Self, PoolSizeError> {
        let mut mean = Self { left: stored.left, last_ms: stored.last_ms, shown: stored.shown, ..Self::default() };
        copy(&mut mean.promoted, &stored.promoted)?;
        copy(&mut mean.worst, &stored.worst)?;
        copy(&mut mean.scans, &stored.scans)?;
        Ok(mean)
    }
}

impl From<Mean> for Stored {
    fn from(mean: Mean) -> Self {
        let Mean { promoted, worst, scans, left, last_ms, shown } = mean;
        Self { promoted: used(&promoted), worst: used(&worst), scans: used(&scans), left, last_ms, shown }
    }
}
