//! Idle memory according to the access record, compared with a tracker's verdict.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::linux::clock::monotonic_ns;

use super::layout::{Layout, RegionLayout};
use super::record::{Record, Sweeps};

/// A tracker's verdict about a process; other fields are ignored.
#[derive(Debug, Deserialize)]
struct Ranges {
    pid: i32,
    /// Address ranges that the tracker considers cold.
    cold: Vec<[u64; 2]>,
    /// When the verdict was made, in nanoseconds of `CLOCK_MONOTONIC`; default: now.
    taken_at_ns: Option<u64>,
}

/// The verdict in whole pages.
#[derive(Debug, PartialEq)]
struct ColdPages {
    /// Ranges of whole pages, sorted and disjoint.
    ranges: Vec<[u64; 2]>,
}

impl ColdPages {
    /// Rounds ranges to pages: a page is cold if all of it is.
    fn new(ranges: &[[u64; 2]], page_bytes: u64) -> Result<Self> {
        let mut whole = Vec::with_capacity(ranges.len());
        for &[start, end] in ranges {
            ensure!(start <= end, "the range from {start} to {end} ends before it starts");
            let start = start.checked_next_multiple_of(page_bytes).context("a range starts at the end of the address space")?;
            let end = end - end % page_bytes;
            if start < end {
                whole.push([start, end]);
            }
        }
        whole.sort_unstable();
        let mut merged: Vec<[u64; 2]> = Vec::with_capacity(whole.len());
        for [start, end] in whole {
            match merged.last_mut() {
                Some(last) if start <= last[1] => last[1] = last[1].max(end),
                _ => merged.push([start, end]),
            }
        }
        Ok(Self { ranges: merged })
    }

    fn contains(&self, address: u64) -> bool {
        let after = self.ranges.partition_point(|range| range[0] <= address);
        after > 0 && address < self.ranges[after - 1][1]
    }

    fn bytes(&self) -> u64 {
        self.ranges.iter().map(|[start, end]| end - start).sum()
    }
}

/// Bytes by the verdict's agreement with the access record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Comparison {
    /// Idle for long enough, but not considered cold.
    idle_not_cold_bytes: u64,
    /// Considered cold, but accessed within the idle time.
    cold_not_idle_bytes: u64,
    /// Idle time within the slack of the limit, so that either verdict is correct.
    excluded_bytes: u64,
    /// All compared bytes: neither excluded nor unknown.
    compared_bytes: u64,
}

/// Idle memory of one region or of all regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Truth {
    idle_bytes: u64,
    total_bytes: u64,
    /// Accessed so often since the time in query that the earlier accesses are no longer recorded.
    unknown_bytes: u64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    comparison: Option<Comparison>,
}

#[derive(Serialize)]
struct RegionTruth<'a> {
    name: &'a str,
    #[serde(flatten)]
    truth: Truth,
    #[serde(flatten)]
    sweeps: Sweeps,
}

#[derive(Serialize)]
struct Report<'a> {
    pid: i32,
    idle_ms: u64,
    taken_at_ns: u64,
    #[serde(flatten)]
    truth: Truth,
    /// Bytes on the wrong side, and their share of the compared bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    misplaced_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    misplaced_ratio: Option<f64>,
    /// Cold bytes outside of all regions: the program's own memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    cold_outside_bytes: Option<u64>,
    regions: Vec<RegionTruth<'a>>,
}

/// Parameters of a query.
pub(super) struct Query<'a> {
    pub(super) layout: &'a Path,
    pub(super) idle_ms: u64,
    pub(super) compare: Option<&'a Path>,
    pub(super) slack_ms: u64,
}

/// Prints the answer on standard output.
///
/// # Errors
/// A file is missing, or the files do not match.
pub(super) fn answer(query: &Query<'_>) -> Result<()> {
    let layout = Layout::read(query.layout)?;
    let record = Record::open(&layout.truth)?;
    let (regions, recorded) = (layout.regions.len(), record.regions());
    ensure!(regions == recorded, "{} has {regions} regions and its record {recorded}", query.layout.display());
    let mut at_ns = monotonic_ns();
    let mut verdict = None;
    let mut pid = layout.pid;
    if let Some(path) = query.compare {
        let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let context = || format!("{} is not a verdict on this workload", path.display());
        let ranges: Ranges = serde_json::from_slice(&text).with_context(context)?;
        let known = ranges.pid == layout.pid || layout.regions.iter().any(|region| region.toucher_pid == ranges.pid);
        ensure!(known, "{}: \"pid\" is {}; the workload is {}", path.display(), ranges.pid, layout.pid);
        (pid, at_ns) = (ranges.pid, ranges.taken_at_ns.unwrap_or(at_ns));
        verdict = Some(ColdPages::new(&ranges.cold, layout.page_bytes).with_context(context)?);
    }
    let mut all = Truth { comparison: verdict.is_some().then(Comparison::default), ..Truth::default() };
    let mut cold_bytes = 0;
    let mut by_region = Vec::new();
    for (index, region) in layout.regions.iter().enumerate() {
        // The child that accesses shared memory has no other region mapped.
        if pid != layout.pid && region.toucher_pid != pid {
            continue;
        }
        let measure = Measure { query, record: &record, index, region, page_bytes: layout.page_bytes, at_ns };
        let truth = measure.truth(verdict.as_ref(), &mut cold_bytes);
        all.add(&truth);
        by_region.push(RegionTruth { name: &region.name, truth, sweeps: record.sweeps(index) });
    }
    let misplaced = all.comparison.map(|comparison| comparison.idle_not_cold_bytes + comparison.cold_not_idle_bytes);
    let compared = all.comparison.map(|comparison| comparison.compared_bytes.max(1));
    let report = Report {
        pid,
        idle_ms: query.idle_ms,
        taken_at_ns: at_ns,
        truth: all,
        misplaced_bytes: misplaced,
        misplaced_ratio: misplaced.zip(compared).map(|(misplaced, compared)| misplaced as f64 / compared as f64),
        cold_outside_bytes: verdict.map(|verdict| verdict.bytes().saturating_sub(cold_bytes)),
        regions: by_region,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

impl Truth {
    fn add(&mut self, other: &Self) {
        self.idle_bytes += other.idle_bytes;
        self.total_bytes += other.total_bytes;
        self.unknown_bytes += other.unknown_bytes;
        if let (Some(sum), Some(other)) = (&mut self.comparison, &other.comparison) {
            sum.idle_not_cold_bytes += other.idle_not_cold_bytes;
            sum.cold_not_idle_bytes += other.cold_not_idle_bytes;
            sum.excluded_bytes += other.excluded_bytes;
            sum.compared_bytes += other.compared_bytes;
        }
    }
}

/// One region at one moment.
struct Measure<'a> {
    query: &'a Query<'a>,
    record: &'a Record,
    index: usize,
    region: &'a RegionLayout,
    page_bytes: u64,
    at_ns: u64,
}

impl Measure<'_> {
    /// Returns the idle memory of the region; adds the region's cold bytes by the verdict to `cold_bytes`.
    fn truth(&self, verdict: Option<&ColdPages>, cold_bytes: &mut u64) -> Truth {
        let mut truth = Truth { total_bytes: self.region.bytes(), ..Truth::default() };
        let mut comparison = Comparison::default();
        let shape = self.record.shape(self.index);
        let unit_bytes = shape.unit_pages as u64 * self.page_bytes;
        let mut start = self.region.start;
        for unit in 0..shape.units {
            let end = start.saturating_add(unit_bytes).min(self.region.end);
            let cold = verdict.map_or(0, |verdict| self.cold_bytes(verdict, start, end));
            *cold_bytes += cold;
            let bytes = end.saturating_sub(start);
            start = end;
            let Some(idle_ms) = self.record.idle_ms(self.index, unit, self.at_ns) else {
                truth.unknown_bytes += bytes;
                continue;
            };
            let idle = idle_ms >= self.query.idle_ms;
            truth.idle_bytes += if idle { bytes } else { 0 };
            if idle_ms.abs_diff(self.query.idle_ms) <= self.query.slack_ms {
                comparison.excluded_bytes += bytes;
                continue;
            }
            comparison.compared_bytes += bytes;
            if idle {
                comparison.idle_not_cold_bytes += bytes - cold;
            } else {
                comparison.cold_not_idle_bytes += cold;
            }
        }
        truth.comparison = verdict.map(|_| comparison);
        truth
    }

    /// Returns the bytes between these addresses that the verdict considers cold.
    fn cold_bytes(&self, verdict: &ColdPages, start: u64, end: u64) -> u64 {
        let pages = (start..end).step_by(usize::try_from(self.page_bytes).unwrap_or(usize::MAX));
        pages.filter(|&page| verdict.contains(page)).count() as u64 * self.page_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Shape;
    use super::super::spec::{Kind, Pattern};
    use super::*;

    #[test]
    fn cold_pages_are_whole_sorted_and_merged() {
        for (ranges, expected) in [
            (&[][..], Some(&[][..])),
            (&[[100, 4000]], Some(&[])),
            (&[[100, 12_300]], Some(&[[4096, 12_288]])),
            (&[[8192, 12_288], [0, 4096], [4096, 8192]], Some(&[[0, 12_288]])),
            (&[[0, 8192], [16_384, 20_480], [0, 4096]], Some(&[[0, 8192], [16_384, 20_480]])),
            (&[[8192, 4096]], None),
            (&[[u64::MAX, u64::MAX]], None),
        ] {
            let cold = ColdPages::new(ranges, 4096).ok().map(|cold| cold.ranges);
            assert_eq!(cold.as_deref(), expected, "{ranges:?}");
        }
        let cold = ColdPages::new(&[[4096, 8192], [16_384, 20_480]], 4096).unwrap();
        for (address, expected) in [(0, false), (4096, true), (8191, true), (8192, false), (16_384, true), (20_480, false)] {
            assert_eq!(cold.contains(address), expected, "{address}");
        }
        assert_eq!(cold.bytes(), 8192);
    }

    /// Checks a region of three units (64, 64 and 2 pages), accessed 1, 5 and 10 s before the query.
    fn check(idle_ms: u64, slack_ms: u64, cold_pages: std::ops::Range<u64>, idle: u64, expected: [u64; 4]) {
        const PAGE: u64 = 4096;
        const NOW: u64 = 20_000_000_000;
        let directory = tempfile::tempdir().unwrap();
        let record = Record::create(&directory.path().join("record"), &[Shape::new(&Pattern::Never(true), 130)], 0).unwrap();
        for (unit, seconds_ago) in [1, 5, 10].into_iter().enumerate() {
            record.access(0, unit, NOW - seconds_ago * 1_000_000_000);
        }
        let region = RegionLayout {
            name: "r".to_owned(),
            start: PAGE,
            end: PAGE * 131,
            kind: Kind::Anon,
            pattern: Pattern::Never(true),
            writes: false,
            toucher_pid: 1,
        };
        let query = Query { layout: Path::new(""), idle_ms, compare: None, slack_ms };
        let measure = Measure { query: &query, record: &record, index: 0, region: &region, page_bytes: PAGE, at_ns: NOW };
        let verdict = ColdPages::new(&[[PAGE * (1 + cold_pages.start), PAGE * (1 + cold_pages.end)]], PAGE).unwrap();
        let truth = measure.truth(Some(&verdict), &mut 0);
        let comparison = truth.comparison.unwrap();
        assert_eq!((truth.total_bytes, truth.unknown_bytes, truth.idle_bytes), (130 * PAGE, 0, idle * PAGE));
        let got = [comparison.idle_not_cold_bytes, comparison.cold_not_idle_bytes, comparison.excluded_bytes, comparison.compared_bytes];
        assert_eq!(got, expected.map(|pages| pages * PAGE), "{idle_ms} {slack_ms} {cold_pages:?}");
    }

    #[test]
    fn verdicts_are_compared_page_by_page() {
        // The correct verdict, an empty one, and one with everything.
        check(3000, 0, 64..130, 66, [0, 0, 0, 130]);
        check(3000, 0, 0..0, 66, [66, 0, 0, 130]);
        check(3000, 0, 0..130, 66, [0, 64, 0, 130]);
        // A boundary within a unit.
        check(3000, 0, 60..129, 66, [1, 4, 0, 130]);
        // The second unit is within the slack, on either side of the limit.
        check(4500, 500, 128..130, 66, [0, 0, 64, 66]);
        check(5500, 500, 64..130, 2, [0, 0, 64, 66]);
        check(20_000, 0, 0..0, 0, [0, 0, 0, 130]);
    }
}
