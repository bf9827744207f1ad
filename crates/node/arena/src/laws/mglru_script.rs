//! A script around debugfs's `lru_gen`, as in the guest arena (`lab/arena/contenders.py`): every A/2 it evicts generations that were
//! opened A ago or earlier, with swappiness 100, and then opens one. `Documentation/admin-guide/mm/multigen_lru.rst` describes both
//! commands as the means of proactive reclaim.

use units::Bytes;

use super::pace::Pace;
use crate::generations::{GENS_MIN, Generation};
use crate::law::{Law, Request};
use crate::view::View;

/// The script.
#[derive(Clone, Copy, Debug)]
pub struct MglruScript {
    age_ms: u64,
    pace: Pace,
}

impl MglruScript {
    /// Evicts what is this old.
    #[must_use]
    pub fn new(age_ms: u64) -> Self {
        Self { age_ms, pace: Pace::every(age_ms / 2) }
    }
}

impl Law for MglruScript {
    fn step(&mut self, view: &View<'_>) -> Vec<Request> {
        if !self.pace.is_due(view.now_ms()) {
            return Vec::new();
        }
        let generations: Vec<Generation> = view.generations().collect();
        let youngest = generations.last().map_or(0, |generation| generation.seq);
        let old = generations.iter().rev().find(|generation| generation.age_ms >= self.age_ms).map(|generation| generation.seq);
        let evict = old.map(|old| Request::Evict { up_to: old.min(youngest - GENS_MIN), swappiness: 100, most: Bytes(u64::MAX) });
        evict.into_iter().chain([Request::OpenGeneration]).collect()
    }
}
