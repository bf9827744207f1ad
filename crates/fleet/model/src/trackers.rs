//! Counts entries by the tracker that obtained their ages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use units::Age;

use crate::series::{Entry, Series};
use crate::tally::COUNT_MAX;

/// Maximum number of names.
const TRACKERS_MAX: usize = 64;

/// Entries of one tracker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracked {
    /// Number of entries.
    pub entries: u64,
    /// Entries of unknown resolution: an agent before version 4 of the trace wrote them.
    pub unknown: u64,
    /// Entries that do not resolve every threshold.
    pub limited: u64,
    /// Entries whose histograms are estimated from a sample.
    pub sampled: u64,
    /// The lowest resolution of an entry, in scans; 255 if none is limited.
    pub resolved_to_scans: u8,
}

/// Entries by tracker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trackers(pub BTreeMap<String, Tracked>);

impl Trackers {
    /// Adds the entries of a job.
    pub fn job(&mut self, series: &Series) {
        let thresholds = series.buckets() - 1;
        for run in series.entries().chunk_by(|one, next| one.origin.tracker == next.origin.tracker) {
            let mut tracked = Tracked { entries: run.len() as u64, resolved_to_scans: u8::MAX, ..Tracked::default() };
            for Entry { origin, .. } in run {
                tracked.unknown += u64::from(origin.resolved_to == Age(0));
                tracked.sampled += u64::from(origin.sampled > 0);
                if !origin.resolves(thresholds - 1) {
                    tracked.limited += 1;
                    tracked.resolved_to_scans = tracked.resolved_to_scans.min(origin.resolved_to.0);
                }
            }
            self.add(series.trackers().get(usize::from(run[0].origin.tracker)).map_or("generated", String::as_str), tracked);
        }
    }

    /// Returns whether these can be the counts of a fleet, so that sums do not overflow.
    pub(crate) fn is_sound(&self) -> bool {
        let possible = |of: &Tracked| of.entries <= COUNT_MAX && [of.unknown, of.limited, of.sampled].iter().all(|&n| n <= of.entries);
        self.0.len() <= TRACKERS_MAX + 1 && self.0.values().all(possible)
    }

    /// Adds other entries.
    pub fn merge(&mut self, other: Self) {
        other.0.iter().for_each(|(name, tracked)| self.add(name, *tracked));
    }

    fn add(&mut self, name: &str, more: Tracked) {
        // The names are input: more than there can be are one tracker.
        let name = if self.0.len() >= TRACKERS_MAX && !self.0.contains_key(name) { "others" } else { name };
        let none = Tracked { resolved_to_scans: u8::MAX, ..Tracked::default() };
        let mine = self.0.entry(name.to_owned()).or_insert(none);
        mine.entries = mine.entries.saturating_add(more.entries);
        mine.unknown = mine.unknown.saturating_add(more.unknown);
        mine.limited = mine.limited.saturating_add(more.limited);
        mine.sampled = mine.sampled.saturating_add(more.sampled);
        mine.resolved_to_scans = mine.resolved_to_scans.min(more.resolved_to_scans);
    }
}
