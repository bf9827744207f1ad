//! What moves pages out.
//!
//! | actuator | chooses | needs |
//! |---|---|---|
//! | `exact` | the very pages whose age reached the threshold | a tracker that knows single pages |
//! | `lru_gen` | the oldest generations of the cgroup, by count | MGLRU's debugfs file |
//! | `memory_reclaim` | whatever the kernel's LRU finds coldest, by count | `memory.reclaim` |
//! | `compact` | all of a job that has gone to the background | `process_madvise` |
//!
//! All are one-shot: an agent that dies in the middle leaves nothing behind.

use std::ops::Range;

use config::Actuator as Kind;
use policy::histogram::AgeCounts;
use units::Pages;

use trackers::ages;

pub mod compact;
pub mod exact;
pub mod lru;

/// What one step of an actuator did.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Pages that the kernel was asked to offload.
    pub pages: Pages,
    /// The same by age, where the actuator knows; otherwise empty.
    pub ages: AgeCounts,
    /// Whether nothing of the plan is left.
    pub finished: bool,
}

/// The actuator for a job: the configured one, or the most exact that its tracker allows.
#[must_use]
pub fn choose(wanted: Kind, tracker: ages::Kind) -> Kind {
    match (wanted, tracker) {
        (Kind::Auto, ages::Kind::PageIdle | ages::Kind::Damon) => Kind::Exact,
        (Kind::Auto | Kind::Exact, ages::Kind::LruGen | ages::Kind::Auto) => Kind::LruGen,
        // Generations are evicted by the numbers that their tracker has read.
        (Kind::LruGen, ages::Kind::PageIdle | ages::Kind::Damon) => Kind::MemoryReclaim,
        (wanted, _) => wanted,
    }
}

/// Adds a page to ranges in ascending order, joining neighbours.
fn push(ranges: &mut Vec<Range<u64>>, page: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == page.start => last.end = page.end,
        _ => ranges.push(page),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tracker_gets_an_actuator_that_it_can_serve() {
        use ages::Kind as Tracker;
        for (wanted, tracker, want) in [
            (Kind::Auto, Tracker::PageIdle, Kind::Exact),
            (Kind::Auto, Tracker::Damon, Kind::Exact),
            (Kind::Auto, Tracker::LruGen, Kind::LruGen),
            (Kind::Exact, Tracker::LruGen, Kind::LruGen),
            (Kind::LruGen, Tracker::PageIdle, Kind::MemoryReclaim),
            (Kind::MemoryReclaim, Tracker::PageIdle, Kind::MemoryReclaim),
        ] {
            assert_eq!(choose(wanted, tracker), want, "{wanted:?} {tracker:?}");
        }
    }
}
