//! How the ages of a model's entries were obtained, and what they cannot answer.

use anyhow::{Result, bail};
use model::grid::Setup;
use model::tally::{Total, ratio};
use model::trackers::Trackers;
use units::Millis;

use super::report::{Answer, TrackerRow};
use super::text::{duration, percent};

fn seconds(scans: u8, scan_period: Millis) -> f64 {
    ratio(u128::from(scans) * u128::from(scan_period.0), 1_000)
}

/// The entries of each tracker.
pub(super) fn rows(trackers: &Trackers, scan_period: Millis) -> Vec<TrackerRow> {
    let all: u64 = trackers.0.values().map(|tracked| tracked.entries).sum();
    let row = |(name, tracked): (&String, &model::trackers::Tracked)| TrackerRow {
        tracker: name.clone(),
        entries: tracked.entries,
        entries_ratio: ratio(u128::from(tracked.entries), u128::from(all)),
        unknown_entries: tracked.unknown,
        limited_entries: tracked.limited,
        sampled_entries: tracked.sampled,
        resolved_to_seconds: (tracked.limited > 0).then(|| seconds(tracked.resolved_to_scans, scan_period)),
    };
    trackers.0.iter().map(row).collect()
}

/// Refuses a question that no entry can answer: all far memory, under every pair, was at thresholds above the ages that the
/// trackers distinguished.
pub(super) fn check(setup: &Setup, totals: &[Total], trackers: &Trackers, scan_period: Millis) -> Result<()> {
    let mut on = totals.iter().filter(|total| total.entries_on > 0).peekable();
    if on.peek().is_none() || on.any(Total::answers) {
        return Ok(());
    }
    let limited: Vec<_> = rows(trackers, scan_period)
        .into_iter()
        .filter_map(|row| Some(format!("{} distinguishes ages up to {}", row.tracker, duration(row.resolved_to_seconds?))))
        .collect();
    bail!(
        "no entry answers the question for {setup}: every threshold in effect is above the ages that the entry's tracker distinguished ({}); \
         record traces with agent.tracker = \"sampled\" or \"page_idle\", or give --allow-unresolved to count what was recorded",
        limited.join(", ")
    )
}

/// What the answers cannot be sure of.
pub(super) fn warnings(trackers: &Trackers, answers: &[Answer]) -> Vec<String> {
    let mut warnings = Vec::new();
    let unknown: u64 = trackers.0.values().map(|tracked| tracked.unknown).sum();
    if unknown > 0 {
        let all: u64 = trackers.0.values().map(|tracked| tracked.entries).sum();
        warnings.push(format!(
            "{unknown} of {all} entries do not show which ages their tracker distinguished, and count as if it distinguished all; agents \
             before this version wrote them"
        ));
    }
    for answer in answers {
        for (name, pair) in [("configured", &answer.configured), ("best", &answer.best)] {
            let Some(pair) = pair.as_ref().filter(|pair| pair.unresolved_ratio > 0.0) else { continue };
            warnings.push(format!(
                "P {}/min, {name} pair: {} of the entries with far memory are at thresholds above the ages that their tracker \
                 distinguished; their cold memory and promotions were not measured",
                percent(answer.promotion_rate_max_ratio_per_min, 3),
                percent(pair.unresolved_ratio, 1)
            ));
        }
    }
    warnings
}
