//! A candidate, which no product is: policy `auto`, and what stays cold in zswap goes on to the device.
//!
//! Which entries are old is known to the agent, which has the ages of far memory. Pages that were not accessed for the second threshold
//! leave zswap's pool by [`Request::WriteBack`]. They return at the device's latency.

use super::pace::Pace;
use super::thermocline::Thermocline;
use crate::kernel::Place;
use crate::law::{Law, Request};
use crate::view::View;

/// `auto` with a second threshold.
#[derive(Debug)]
pub struct TwiceCold {
    first: Thermocline,
    idle_ms: u64,
    pace: Pace,
}

impl TwiceCold {
    /// Writes back what was idle for `idle_ms`, once in `every_ms`.
    #[must_use]
    pub fn new(first: Thermocline, idle_ms: u64, every_ms: u64) -> Self {
        Self { first, idle_ms, pace: Pace::every(every_ms) }
    }
}

impl Law for TwiceCold {
    fn step(&mut self, view: &View<'_>) -> Vec<Request> {
        let mut asked = self.first.step(view);
        if self.pace.is_due(view.now_ms()) {
            let (now, interval_ms, idle_ms) = (view.interval(), view.interval_ms(), self.idle_ms);
            let is_old = |group: &u32| {
                view.place(*group) == Place::Zswap
                    && view.last_access(*group).is_some_and(|last| u64::from(now - last) * interval_ms >= idle_ms)
            };
            asked.push(Request::WriteBack((0..view.groups()).filter(is_old).collect()));
        }
        asked
    }
}
