//! Residency of a workload's pages, from its page tables.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::layout::{Layout, RegionLayout};

/// Bits of an entry of `/proc/PID/pagemap` (`Documentation/admin-guide/mm/pagemap.rst`).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// Bytes of a region by location.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Residency {
    present_bytes: u64,
    swapped_bytes: u64,
    /// In no page table. Pages of files and shared memory may nevertheless be in memory or swapped.
    absent_bytes: u64,
}

#[derive(Serialize)]
struct RegionResidency<'a> {
    name: &'a str,
    #[serde(flatten)]
    residency: Residency,
}

/// Prints the residency of each region.
///
/// # Errors
/// The layout or the process's `pagemap` cannot be read; the latter requires root or the same user.
pub(super) fn print(layout: &Path) -> Result<()> {
    let layout = Layout::read(layout)?;
    let mut regions = Vec::new();
    for region in &layout.regions {
        let path = format!("/proc/{}/pagemap", region.toucher_pid);
        let residency = read(Path::new(&path), region, layout.page_bytes)
            .with_context(|| format!("cannot read {path} for region {:?}; check that the workload still runs", region.name))?;
        regions.push(RegionResidency { name: &region.name, residency });
    }
    println!("{}", serde_json::json!({"pid": layout.pid, "regions": regions}));
    Ok(())
}

fn read(pagemap: &Path, region: &RegionLayout, page_bytes: u64) -> Result<Residency> {
    let mut file = File::open(pagemap)?;
    file.seek(SeekFrom::Start(region.start / page_bytes * 8))?;
    let mut residency = Residency::default();
    let mut left = usize::try_from(region.bytes() / page_bytes * 8)?;
    let mut chunk = vec![0; 1 << 16];
    while left > 0 {
        let part = &mut chunk[..left.min(1 << 16)];
        file.read_exact(part)?;
        left -= part.len();
        for entry in part.as_chunks::<8>().0 {
            residency.add(u64::from_ne_bytes(*entry), page_bytes);
        }
    }
    Ok(residency)
}

impl Residency {
    fn add(&mut self, entry: u64, page_bytes: u64) {
        let place = match entry {
            entry if entry & PRESENT != 0 => &mut self.present_bytes,
            entry if entry & SWAPPED != 0 => &mut self.swapped_bytes,
            _ => &mut self.absent_bytes,
        };
        *place += page_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_classified() {
        let mut residency = Residency::default();
        for entry in [PRESENT | 5, PRESENT, SWAPPED | 7, 0, 1 << 61, 1 << 55] {
            residency.add(entry, 10);
        }
        assert_eq!(residency, Residency { present_bytes: 20, swapped_bytes: 10, absent_bytes: 30 });
    }
}
