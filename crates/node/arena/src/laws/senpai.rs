//! oomd's plugin `senpai` with `immediate_backoff` (`docs/core_plugins.md` and `Senpai.cpp` of facebookincubator/oomd): while the
//! averages over 10 and 60 seconds of memory and I/O pressure are below `pressure_pct`, reclaim `max_probe` of what is above
//! `limit_min_bytes`, then wait for `interval` further ticks.

use policy::balance::AnonFileBias;
use units::Bytes;

use super::pace::Pace;
use crate::law::{Law, Request};
use crate::view::View;

/// The kernel's default of `vm.swappiness`, which a lower limit reclaims by.
pub const SWAPPINESS: AnonFileBias = AnonFileBias::Swappiness(60);

/// `max_probe`, by default.
const PROBE_PERCENT: u64 = 1;

/// `limit_min_bytes`: 1 MiB in place of 100, which exceeds what the programs here occupy.
const LIMIT_MIN: Bytes = Bytes::mib(1);

/// Senpai.
#[derive(Clone, Copy, Debug)]
pub struct Senpai {
    pressure: f64,
    pace: Pace,
}

impl Senpai {
    /// `pressure` is a share of time; `interval_ms` is the time between two probes at least.
    #[must_use]
    pub fn new(pressure: f64, interval_ms: u64) -> Self {
        Self { pressure, pace: Pace::every(interval_ms) }
    }
}

impl Law for Senpai {
    fn step(&mut self, view: &View<'_>) -> Vec<Request> {
        if !self.pace.is_due(view.now_ms()) {
            return Vec::new();
        }
        let ((memory10, memory60), (io10, io60)) = (view.memory_stall().averages(), view.io_stall().averages());
        if [memory10, memory60, io10, io60].into_iter().any(|average| average >= self.pressure) {
            return Vec::new();
        }
        let above = view.current() - LIMIT_MIN;
        vec![Request::Reclaim { bytes: Bytes(above.0 * PROBE_PERCENT / 100), bias: SWAPPINESS }]
    }
}
