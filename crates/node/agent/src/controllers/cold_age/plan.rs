//! What a decision by age makes cold.

use units::{Age, Pages};

use crate::actuators::exact::Cursor;
use crate::job::Job;

/// Pages to offload until the next decision.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The age from which pages are offloaded.
    pub threshold: Age,
    /// Pages left to ask for.
    pub left: Pages,
    /// How far the exact actuator has come.
    pub cursor: Cursor,
}

impl Plan {
    /// All pages of the last scan that are old enough; `None` if there are none.
    pub(super) fn new(job: &Job, threshold: Age) -> Option<Self> {
        let left = job.scan.as_ref().map_or(Pages::ZERO, |scan| scan.resident.at_least(threshold));
        (left > Pages::ZERO).then(|| Self { threshold, left, cursor: Cursor::new(&job.pids) })
    }
}
