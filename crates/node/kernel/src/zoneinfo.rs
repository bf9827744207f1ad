//! Memory zones and their page frames: `/proc/zoneinfo`. Counts are in pages, `start_pfn` is a page frame number.
//!
//! ```text
//! Node 0, zone    DMA32
//!   pages free     742011
//!         spanned  1044480
//!         present  782288
//!   start_pfn:           4096
//! ```

use serde::Serialize;
use units::{Bytes, Pages};

use crate::{Malformed, Result, Roots, file, text};

/// One zone of a NUMA node. Counts are in pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Zone {
    /// The NUMA node.
    pub node: u32,
    /// Name: `DMA`, `DMA32`, `Normal`, `Movable` ...
    pub name: String,
    /// The high watermark: while less is free, the kernel reclaims in the background.
    pub high: u64,
    /// Page frames that the zone spans, holes included.
    pub spanned: u64,
    /// Page frames without holes.
    pub present: u64,
    /// The first page frame; `None` for a zone without memory.
    pub start_pfn: Option<u64>,
}

/// The page frames `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PfnRange {
    /// The first page frame.
    pub start: u64,
    /// The page frame after the last.
    pub end: u64,
}

/// Parses `/proc/zoneinfo`. Unknown lines are ignored.
///
/// # Errors
/// [`Malformed`] if a heading or one of the fields above does not have its form.
pub fn parse(text: &str) -> Result<Vec<Zone>, Malformed> {
    let mut zones: Vec<Zone> = Vec::new();
    for (line, row) in text::lines(text) {
        if let Some(heading) = row.strip_prefix("Node ") {
            let (node, name) = heading.split_once(", zone").ok_or_else(|| Malformed::new(line, row, "Node N, zone NAME"))?;
            let node = text::number(Some(node), line, "a node number")?;
            let name = name.trim().to_owned();
            zones.push(Zone { node, name, high: 0, spanned: 0, present: 0, start_pfn: None });
            continue;
        }
        let Some(zone) = zones.last_mut() else {
            return Err(Malformed::new(line, row, "Node N, zone NAME"));
        };
        let mut fields = row.split_ascii_whitespace();
        match fields.next() {
            Some("high") => zone.high = text::number(fields.next(), line, "a number of pages")?,
            Some("spanned") => zone.spanned = text::number(fields.next(), line, "a number of pages")?,
            Some("present") => zone.present = text::number(fields.next(), line, "a number of pages")?,
            Some("start_pfn:") => {
                zone.start_pfn = Some(text::number(fields.next(), line, "a page frame number")?);
            }
            _ => {}
        }
    }
    Ok(zones)
}

/// The sum of the high watermarks.
#[must_use]
pub fn high(zones: &[Zone]) -> Bytes {
    Pages(zones.iter().fold(0, |sum: u64, zone| sum.saturating_add(zone.high))).to_bytes(crate::page_size())
}

/// The page frames that zones span, as sorted ranges that neither touch nor overlap. Between them, such as below 4 GiB, there
/// is no memory.
#[must_use]
pub fn ranges(zones: &[Zone]) -> Vec<PfnRange> {
    let mut spans: Vec<PfnRange> = zones
        .iter()
        .filter(|zone| zone.spanned > 0)
        .filter_map(|zone| zone.start_pfn.map(|start| PfnRange { start, end: start.saturating_add(zone.spanned) }))
        .collect();
    spans.sort_unstable_by_key(|span| span.start);
    let mut merged: Vec<PfnRange> = Vec::with_capacity(spans.len());
    for span in spans {
        match merged.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => merged.push(span),
        }
    }
    merged
}

/// Reads `/proc/zoneinfo`.
///
/// # Errors
/// [`crate::Error::Parse`]; [`crate::Error::Io`].
pub fn read(roots: &Roots) -> Result<Vec<Zone>> {
    let path = roots.proc.join("zoneinfo");
    parse(&file::read(&path, file::LARGE)?).map_err(|malformed| malformed.at(&path))
}

/// The page frames to scan: [`ranges`] of this machine's zones.
///
/// # Errors
/// [`crate::Error::Parse`]; [`crate::Error::Io`].
pub fn pfn_ranges(roots: &Roots) -> Result<Vec<PfnRange>> {
    Ok(ranges(&read(roots)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cut_everywhere, tree};

    const CAPTURED: &str = include_str!("testdata/zoneinfo");

    #[test]
    fn a_captured_file_is_parsed() {
        let (_keep, roots) = tree(&[("proc/zoneinfo", CAPTURED)]);
        let zones = read(&roots).unwrap();
        let names: Vec<_> = zones.iter().map(|zone| (zone.node, zone.name.as_str(), zone.start_pfn)).collect();
        let expected =
            [(0, "DMA", Some(1)), (0, "DMA32", Some(4096)), (0, "Normal", Some(1 << 20)), (0, "Movable", None), (0, "Device", None)];
        assert_eq!(names, expected);
        assert_eq!((zones[1].spanned, zones[1].present), (1_044_480, 782_336));
        let range = |start, end| PfnRange { start, end };
        assert_eq!(pfn_ranges(&roots).unwrap(), [range(1, (1 << 20) + 5_505_024)]);
        cut_everywhere(CAPTURED, parse);
    }

    #[test]
    fn ranges_of_adjacent_or_interleaved_zones_are_merged() {
        let check = |spans: &[(u64, u64)], expected: &[(u64, u64)]| {
            let zone =
                |&(start, spanned)| Zone { node: 0, name: String::new(), high: 0, spanned, present: spanned, start_pfn: Some(start) };
            let zones: Vec<_> = spans.iter().map(zone).collect();
            let got: Vec<_> = ranges(&zones).iter().map(|range| (range.start, range.end)).collect();
            assert_eq!(got, expected, "{spans:?}");
        };
        check(&[], &[]);
        check(&[(5, 0)], &[]);
        check(&[(100, 10), (1, 9)], &[(1, 10), (100, 110)]);
        check(&[(1, 9), (10, 5)], &[(1, 15)]);
        check(&[(0, 100), (20, 10), (90, 20)], &[(0, 110)]);
        check(&[(u64::MAX, 2)], &[(u64::MAX, u64::MAX)]);
    }
}
