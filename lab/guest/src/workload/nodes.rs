//! A workload's memory by NUMA node, and its accesses by node.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::latencies::print_line;
use crate::linux::clock::monotonic_ns;
use crate::linux::numa::nodes_of;
use crate::linux::signals::Signals;

use super::accesses::open;
use super::layout::{Layout, RegionLayout};
use super::record::Record;

/// Memory on one node, and its accesses since the previous line.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Share {
    bytes: u64,
    accesses: u64,
}

/// One line of output.
#[derive(Debug, Serialize)]
struct Line {
    at_ns: u64,
    elapsed_s: f64,
    nodes: BTreeMap<u32, Share>,
    /// Accesses of pages that were not in memory when their node was determined.
    absent_accesses: u64,
}

/// Prints a line every `every`, until `SIGTERM`, `SIGINT` or the workload's exit.
///
/// An access counts for the node of its page at the end of the interval. Pages that share a record count for the node
/// of the first one.
///
/// # Errors
/// A file cannot be read, or standard output is closed.
pub(super) fn watch(path: &Path, every: Duration) -> Result<()> {
    let signals = Signals::block(&[libc::SIGTERM, libc::SIGINT]).context("cannot block signals")?;
    let (layout, record) = open(path)?;
    let mut counts: Vec<Vec<u32>> = (0..layout.regions.len()).map(|region| counts(&record, region)).collect();
    let mut before_ns = monotonic_ns();
    let process = PathBuf::from(format!("/proc/{}", layout.pid));
    while signals.take(Some(every)).is_none() {
        // A workload without accesses would not be noticed to have exited by the calls below.
        if !process.exists() {
            return Ok(());
        }
        let at_ns = monotonic_ns();
        let mut line = Line { at_ns, elapsed_s: (at_ns - before_ns) as f64 / 1e9, nodes: BTreeMap::new(), absent_accesses: 0 };
        for (index, region) in layout.regions.iter().enumerate() {
            match line.add(&layout, region, &record, index, &mut counts[index]) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                other => other.with_context(|| format!("cannot determine the nodes of region {:?}", region.name))?,
            }
        }
        match std::fs::read_to_string(process.join("numa_maps")) {
            Ok(maps) => {
                for region in &layout.regions {
                    add_bytes(&mut line.nodes, &maps, region.start..region.end);
                }
            }
            // A kernel without NUMA has no numa_maps, and one node.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            // The workload has exited.
            Err(_) => return Ok(()),
        }
        print_line(&serde_json::to_value(&line)?)?;
        before_ns = at_ns;
    }
    Ok(())
}

fn counts(record: &Record, region: usize) -> Vec<u32> {
    (0..record.shape(region).units).map(|unit| record.count(region, unit)).collect()
}

impl Line {
    /// Adds the accesses of a region since `before`, and updates `before` to the current counts.
    fn add(&mut self, layout: &Layout, region: &RegionLayout, record: &Record, index: usize, before: &mut Vec<u32>) -> std::io::Result<()> {
        let now = counts(record, index);
        let unit_bytes = record.shape(index).unit_pages as u64 * layout.page_bytes;
        let (mut addresses, mut accesses) = (Vec::new(), Vec::new());
        for (unit, (&now, &before)) in now.iter().zip(before.iter()).enumerate() {
            if now != before {
                let start = region.start + unit as u64 * unit_bytes;
                addresses.push(start);
                let pages = region.end.saturating_sub(start).min(unit_bytes) / layout.page_bytes;
                accesses.push(u64::from(now.wrapping_sub(before)) * pages);
            }
        }
        for (node, accesses) in nodes_of(region.toucher_pid, &addresses)?.into_iter().zip(accesses) {
            match node {
                Some(node) => self.nodes.entry(node).or_default().accesses += accesses,
                None => self.absent_accesses += accesses,
            }
        }
        *before = now;
        Ok(())
    }
}

/// Adds the bytes of the mappings in `range`, from `/proc/PID/numa_maps`: `7f0000000000 default anon=512 N0=256 N1=256
/// kernelpagesize_kB=4`, counted in pages of the size at the end of the line.
fn add_bytes(nodes: &mut BTreeMap<u32, Share>, maps: &str, range: std::ops::Range<u64>) {
    for line in maps.lines() {
        let mut words = line.split(' ');
        let start = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        if !start.is_some_and(|start| range.contains(&start)) {
            continue;
        }
        let fields: Vec<(&str, u64)> =
            words.filter_map(|word| word.split_once('=')).filter_map(|(key, value)| Some((key, value.parse().ok()?))).collect();
        let page_bytes = fields.iter().find(|field| field.0 == "kernelpagesize_kB").map_or(4, |field| field.1) << 10;
        for (key, pages) in fields {
            if let Some(node) = key.strip_prefix('N').and_then(|node| node.parse().ok()) {
                nodes.entry(node).or_default().bytes += pages * page_bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_mappings_in_the_range() {
        // Captured from Linux 6.12, shortened.
        let maps = "\
            7f3400000000 default anon=51200 dirty=51200 active=1024 N0=20480 N1=30720 kernelpagesize_kB=4\n\
            7f340c800000 default file=/root/x mapped=5 N0=5 kernelpagesize_kB=4\n\
            7f3500000000 default huge anon=3 dirty=3 N1=3 kernelpagesize_kB=2048\n\
            7ffe00000000 default stack anon=3 dirty=3 N0=3 kernelpagesize_kB=4\n\
            7ffe10000000 default\n";
        for (range, expected) in [
            (0x7f34_0000_0000..0x7f34_0c80_0000, &[(0, 20_480 << 12), (1, 30_720 << 12)][..]),
            (0x7f35_0000_0000..0x7f35_0060_0000, &[(1, 6 << 20)]),
            (0x7ffe_1000_0000..0x7ffe_1000_1000, &[]),
            (0..1, &[]),
        ] {
            let mut nodes = BTreeMap::new();
            add_bytes(&mut nodes, maps, range.clone());
            let found: Vec<(u32, u64)> = nodes.iter().map(|(&node, share)| (node, share.bytes)).collect();
            assert_eq!(found, expected, "{range:x?}");
        }
    }
}
