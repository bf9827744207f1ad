//! Katalyst's memory offloading (kubewharf/katalyst-core, `TransparentMemoryOffloadingConfiguration`, `memory_offloading.go`), per
//! container and interval.
//!
//! Policy `PSI` reclaims `max(0, 1 - avg60 / psiAvg60Threshold) * maxProbe * usage`; memory pressure only.
//!
//! Policy `Refault` follows what reclaim did since the last interval. Its accuracy is `1 - workingset_activate / pgsteal`, its scan
//! efficiency `pgsteal / pgscan`, both 1 if nothing was reclaimed. If either is below its target, the size is multiplied by the accuracy.
//! Otherwise it grows by 5 %, from a tenth of the inactive memory at least, to `maxProbe * usage` at most. With MGLRU no anonymous memory
//! is inactive before a generation is opened, which reclaim does: where nothing is, it begins with `maxProbe * usage` here.

use units::Bytes;

use super::pace::Pace;
use super::senpai::SWAPPINESS;
use crate::kernel::Counters;
use crate::law::{Law, Request};
use crate::view::View;

/// `maxProbe`, by default.
const PROBE: f64 = 0.01;

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct KatalystPsi {
    threshold: f64,
    pace: Pace,
}

impl KatalystPsi {
    /// `threshold` is a share of time.
    #[must_use]
    pub fn new(threshold: f64, interval_ms: u64) -> Self {
        Self { threshold, pace: Pace::every(interval_ms) }
    }
}

impl Law for KatalystPsi {
    fn step(&mut self, view: &View<'_>) -> Vec<Request> {
        if !self.pace.is_due(view.now_ms()) {
            return Vec::new();
        }
        let (_, average) = view.memory_stall().averages();
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a size")]
        let bytes = ((1.0 - average / self.threshold).max(0.0) * PROBE * view.current().0 as f64) as u64;
        vec![Request::Reclaim { bytes: Bytes(bytes), bias: SWAPPINESS }]
    }
}

/// `InactiveProbe`: the part of the inactive memory that it begins with.
const INACTIVE: f64 = 0.1;

/// `OffloadingSizeScaleCoeff`.
const GROWTH: f64 = 1.05;

/// `reclaimScanEfficiencyTarget`, by default.
const EFFICIENCY: f64 = 0.6;

/// The policy by refaults.
#[derive(Clone, Copy, Debug)]
pub struct KatalystRefault {
    accuracy: f64,
    pace: Pace,
    before: Counters,
    size: f64,
}

impl KatalystRefault {
    /// `accuracy` is `reclaimAccuracyTarget`, a share of what is reclaimed.
    #[must_use]
    pub fn new(accuracy: f64, interval_ms: u64) -> Self {
        Self { accuracy, pace: Pace::every(interval_ms), before: Counters::default(), size: 0.0 }
    }
}

impl Law for KatalystRefault {
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts and sizes below 2^52")]
    fn step(&mut self, view: &View<'_>) -> Vec<Request> {
        if !self.pace.is_due(view.now_ms()) {
            return Vec::new();
        }
        let now = view.counters();
        let before = std::mem::replace(&mut self.before, now);
        let reclaimed = (now.reclaimed - before.reclaimed) as f64;
        let scanned = (now.scanned - before.scanned) as f64;
        let (accuracy, efficiency) = if reclaimed > 0.0 && scanned > 0.0 {
            (1.0 - (now.activated - before.activated) as f64 / reclaimed, reclaimed / scanned)
        } else {
            (1.0, 1.0)
        };
        self.size = if accuracy < self.accuracy || efficiency < EFFICIENCY {
            (self.size * accuracy).max(0.0)
        } else {
            let most = view.current().0 as f64 * PROBE;
            let first = if view.inactive() == Bytes::ZERO { most } else { view.inactive().0 as f64 * INACTIVE };
            (self.size * GROWTH).max(first).min(most)
        };
        vec![Request::Reclaim { bytes: Bytes(self.size as u64), bias: SWAPPINESS }]
    }
}
