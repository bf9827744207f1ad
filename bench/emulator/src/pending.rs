//! Events that were read while another one was handled.

use std::collections::VecDeque;
use std::ops::Range;

use crate::userfaultfd::Event;

/// Events that are not handled yet.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Events that were read.
    pub(crate) events: VecDeque<Event>,
    /// Pages of faults that were read.
    pub(crate) faults: Vec<u64>,
    /// A mapping that has moved, and its new address, while its parked pages are restored there.
    pub(crate) moving: Option<(Range<u64>, u64)>,
}
