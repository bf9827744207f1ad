//! The `PSI` policy of Katalyst's memory offloading (kubewharf/katalyst-core, `TransparentMemoryOffloadingConfiguration`): per container
//! and interval, `max(0, 1 - avg60 / psiAvg60Threshold) * maxProbe * usage` is reclaimed; memory pressure only.

use units::Bytes;

use super::pace::Pace;
use super::senpai::SWAPPINESS;
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
