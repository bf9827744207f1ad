//! Actuators: how pages are moved out of DRAM.
//!
//! | actuator | chooses | needs |
//! |---|---|---|
//! | `exact` | exactly the pages whose age reached the threshold, of those that one process maps | a tracker that measures single pages |
//! | `lru_gen` | the oldest generations of the cgroup, by count | MGLRU's debugfs file |
//! | `memory_reclaim` | the pages that the kernel's LRU finds coldest, by count | `memory.reclaim` |
//! | `compact` | all memory of a job in the background | `process_madvise` |
//! | `writeback` | pages in zswap, by address, which go on to the swap device | `process_vm_readv`, `process_madvise`, `memory.zswap.max` |
//!
//! All but the last are one-shot: an agent that dies during a request leaves no setting behind. The last is restored by the undo list.

use std::ops::Range;

use config::Actuator as Kind;
use policy::histogram::AgeCounts;
use units::Pages;

use trackers::ages;

pub mod compact;
pub mod exact;
pub mod lru;
pub mod reclaimer;
pub mod writeback;

/// Page map entries that one step reads at most: those of 4 GiB, in some tens of milliseconds.
const STEP_ENTRIES: u64 = 1 << 20;

/// The result of one step of an actuator.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Pages that the kernel was asked to offload.
    pub pages: Pages,
    /// The same by age; empty if the actuator does not know ages.
    pub ages: AgeCounts,
    /// Cold pages that the exact actuator found, whether it asked for them or not.
    pub found: Pages,
    /// Whether the plan is finished.
    pub finished: bool,
}

/// The actuator for a job: the configured one, or the most exact one that its tracker supports.
#[must_use]
pub fn choose(configured: Kind, tracker: ages::Kind) -> Kind {
    match (configured, tracker) {
        (Kind::Auto, ages::Kind::PageIdle | ages::Kind::Damon) => Kind::Exact,
        (Kind::Auto | Kind::Exact, ages::Kind::LruGen | ages::Kind::Sampled | ages::Kind::SampledFrames | ages::Kind::Auto) => Kind::LruGen,
        // Generations are evicted by the numbers that the other trackers have read.
        (Kind::LruGen, ages::Kind::PageIdle | ages::Kind::Damon) => Kind::MemoryReclaim,
        (configured, _) => configured,
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
    fn each_tracker_has_a_supported_actuator() {
        use ages::Kind as Tracker;
        for (configured, tracker, expected) in [
            (Kind::Auto, Tracker::PageIdle, Kind::Exact),
            (Kind::Auto, Tracker::Damon, Kind::Exact),
            (Kind::Auto, Tracker::LruGen, Kind::LruGen),
            (Kind::Exact, Tracker::LruGen, Kind::LruGen),
            (Kind::Auto, Tracker::Sampled, Kind::LruGen),
            (Kind::Auto, Tracker::SampledFrames, Kind::LruGen),
            (Kind::MemoryReclaim, Tracker::SampledFrames, Kind::MemoryReclaim),
            (Kind::LruGen, Tracker::PageIdle, Kind::MemoryReclaim),
            (Kind::MemoryReclaim, Tracker::PageIdle, Kind::MemoryReclaim),
        ] {
            assert_eq!(choose(configured, tracker), expected, "{configured:?} {tracker:?}");
        }
    }
}
