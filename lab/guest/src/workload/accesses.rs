//! Accesses of a workload by block.

use std::path::Path;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::linux::clock::monotonic_ns;
use crate::linux::numa::nodes_of;

use super::layout::{Layout, RegionLayout};
use super::record::Record;
use super::spec::{HUGE_PAGE_BYTES, Kind};

/// One block, or the part of it that belongs to the region.
#[derive(Debug, PartialEq, Serialize)]
struct Block {
    address: u64,
    /// Pages that were accessed at least once.
    touched: u32,
    /// Accesses of all its pages, including the filling.
    accesses: u64,
    /// NUMA node of its first page, if that is in memory.
    node: Option<u32>,
}

#[derive(Serialize)]
struct RegionAccesses<'a> {
    name: &'a str,
    kind: Kind,
    blocks: Vec<Block>,
    /// Pages accessed after N seconds without access, for N of 0 to 127 or more.
    returns: Vec<u64>,
}

/// Opens a running workload's layout and its access record.
///
/// # Errors
/// A file is missing, or the two do not match.
pub(super) fn open(path: &Path) -> Result<(Layout, Record)> {
    let layout = Layout::read(path)?;
    let record = Record::open(&layout.truth)?;
    let (regions, recorded) = (layout.regions.len(), record.regions());
    ensure!(regions == recorded, "{} has {regions} regions and its record {recorded}", path.display());
    Ok((layout, record))
}

/// Prints the counts of all blocks, and the time at which they were read.
///
/// # Errors
/// Those of [`open`].
pub(super) fn print(path: &Path) -> Result<()> {
    let (layout, record) = open(path)?;
    let at_ns = monotonic_ns();
    let counted = |(index, region): (usize, &RegionLayout)| {
        let mut blocks = blocks(&record, index, region, layout.page_bytes);
        add_nodes(&mut blocks, region);
        blocks
    };
    let blocks: Vec<Vec<Block>> = layout.regions.iter().enumerate().map(counted).collect();
    let regions: Vec<RegionAccesses<'_>> = layout
        .regions
        .iter()
        .zip(blocks)
        .enumerate()
        .map(|(index, (region, blocks))| RegionAccesses { name: &region.name, kind: region.kind, blocks, returns: record.returns(index) })
        .collect();
    println!("{}", serde_json::json!({"pid": layout.pid, "at_ns": at_ns, "regions": regions}));
    Ok(())
}

fn add_nodes(blocks: &mut [Block], region: &RegionLayout) {
    let first_pages: Vec<u64> = blocks.iter().map(|block| block.address.max(region.start)).collect();
    // A kernel without NUMA has no such call, and a workload that has exited no pages.
    let nodes = nodes_of(region.toucher_pid, &first_pages).unwrap_or_default();
    for (block, node) in blocks.iter_mut().zip(nodes) {
        block.node = node;
    }
}

fn blocks(record: &Record, index: usize, region: &RegionLayout, page_bytes: u64) -> Vec<Block> {
    let shape = record.shape(index);
    let unit_bytes = shape.unit_pages as u64 * page_bytes;
    let mut blocks: Vec<Block> = Vec::new();
    for unit in 0..shape.units {
        let start = region.start + unit as u64 * unit_bytes;
        let pages = (region.end.saturating_sub(start).min(unit_bytes)) / page_bytes;
        let address = start - start % HUGE_PAGE_BYTES;
        // A unit that spans two blocks counts for the first.
        if blocks.last().is_none_or(|block| block.address != address) {
            blocks.push(Block { address, touched: 0, accesses: 0, node: None });
        }
        let count = record.count(index, unit);
        if let Some(block) = blocks.last_mut() {
            block.touched += if count > 0 { u32::try_from(pages).unwrap_or(u32::MAX) } else { 0 };
            block.accesses += u64::from(count) * pages;
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::super::record::Shape;
    use super::super::spec::{Pattern, Poisson, Zipf};
    use super::*;

    const PAGE: u64 = 4096;

    /// Accesses these units of a region of `pages` pages that starts at page `first`, and checks its blocks: block
    /// number, touched pages, accesses.
    fn check(pattern: &Pattern, first: u64, pages: u64, units: &[usize], expected: &[(u64, u32, u64)]) {
        let directory = tempfile::tempdir().unwrap();
        let shape = Shape::new(pattern, usize::try_from(pages).unwrap());
        let record = Record::create(&directory.path().join("record"), &[shape], 0).unwrap();
        for &unit in units {
            record.access(0, unit, 1);
        }
        let region = RegionLayout {
            name: "r".to_owned(),
            start: first * PAGE,
            end: (first + pages) * PAGE,
            kind: Kind::Anon,
            pattern: pattern.clone(),
            writes: false,
            toucher_pid: 1,
        };
        let found: Vec<(u64, u32, u64)> = blocks(&record, 0, &region, PAGE)
            .iter()
            .map(|block| (block.address / HUGE_PAGE_BYTES, block.touched, block.accesses))
            .collect();
        assert_eq!(found, expected, "{pattern:?}");
    }

    #[test]
    fn accesses_are_counted_by_the_time_without_one() {
        let directory = tempfile::tempdir().unwrap();
        let shapes = [Shape::new(&Pattern::PeriodMs(5), 128), Shape::new(&Pattern::PeriodMs(5), 64)];
        let record = Record::create(&directory.path().join("record"), &shapes, 0).unwrap();
        for (unit, at_ms) in [(0, 0), (1, 0), (0, 900), (0, 4_100), (1, 500_000)] {
            record.access(0, unit, at_ms * 1_000_000);
        }
        let returns = record.returns(0);
        assert_eq!((returns[0], returns[3], returns[127], returns.iter().sum::<u64>()), (64, 64, 64, 192));
        assert_eq!(record.returns(1).iter().sum::<u64>(), 0);
    }

    #[test]
    fn counts_add_up_by_block() {
        let poisson = Pattern::Poisson(Poisson { least: 1.0, most: 1.0, idle: 0.0, parts: 512, exponent: 0.0, draw: 0 });
        check(&poisson, 512, 1024, &[0, 0, 511, 512], &[(1, 2, 3), (2, 1, 1)]);
        let zipf = Pattern::Zipf(Zipf { exponent: 1.0, touches_per_s: 1.0 });
        check(&zipf, 510, 4, &[1, 2, 3, 3], &[(0, 1, 1), (1, 2, 3)]);
        // Sweeps are recorded in units of 64 pages; the last unit has only two.
        check(&Pattern::PeriodMs(5), 1024, 66, &[0, 1, 1], &[(2, 66, 68)]);
    }
}
