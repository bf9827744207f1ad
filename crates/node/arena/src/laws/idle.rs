//! A fixed idle threshold with exact ages, for both kinds: what has been idle for T is paged out, as memtierd's idle page demotion does
//! (intel/memtierd, policy `age`, with tracker `idlepage`).

use super::pace::Pace;
use crate::kernel::Place;
use crate::law::{Law, Request};
use crate::view::View;

/// The threshold.
#[derive(Clone, Copy, Debug)]
pub struct IdleThreshold {
    idle_ms: u64,
    pace: Pace,
}

impl IdleThreshold {
    /// Scans every `scan_ms`.
    #[must_use]
    pub fn new(idle_ms: u64, scan_ms: u64) -> Self {
        Self { idle_ms, pace: Pace::every(scan_ms) }
    }
}

impl Law for IdleThreshold {
    fn step(&mut self, view: &View<'_>) -> Vec<Request> {
        if !self.pace.is_due(view.now_ms()) {
            return Vec::new();
        }
        let (now, interval_ms, idle_ms) = (view.interval(), view.interval_ms(), self.idle_ms);
        let is_idle = move |group: &u32| {
            let idle = view.last_access(*group).map(|last| u64::from(now - last) * interval_ms);
            idle.is_some_and(|idle| idle >= idle_ms) && view.place(*group) == Place::Resident
        };
        vec![Request::PageOut((0..view.groups()).filter(is_idle).collect())]
    }
}
