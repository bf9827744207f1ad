//! The access record: a small shared file into which the workload writes when it accessed which pages.
//!
//! Layout, in native byte order, all numbers `u64` unless stated otherwise:
//!
//! | offset | content |
//! |---|---|
//! | 0 | magic, version, start (nanoseconds of `CLOCK_MONOTONIC`), number of regions; zeroes up to 64 |
//! | 64 + 64 i | entry of region i, see below |
//! | after the entries | per region: pages that were accessed after N seconds without access, for N of 0 to 127 or more |
//! | a region's offset | per unit: number of accesses (`u32`), ring of `depth` access times (`u32`, ms since the start) |
//!
//! A region's entry: units, pages per unit, depth, offset of its table; sweeps begun, begin and end of the last sweep
//! (nanoseconds of `CLOCK_MONOTONIC`; during a sweep the end is that of the previous one), missed periods.
//!
//! A time is written immediately before its access. Readers read while the workload runs.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use anyhow::{Context, Result, ensure};

use crate::linux::mapping::Mapping;

use super::spec::Pattern;

const MAGIC: u64 = u64::from_le_bytes(*b"labtruth");
const VERSION: u64 = 2;
const ENTRY_BYTES: usize = 64;
/// Seconds without access that are distinguished; the last counts all longer ones.
pub(super) const RETURN_SECONDS: usize = 128;
const RETURNS_BYTES: usize = 8 * RETURN_SECONDS;
/// Limit of values in a file, far above those of real workloads.
const CLAIM_MAX: u64 = 1 << 40;
/// Time that the ring of a periodic region should cover, within the limits of its depth.
const HISTORY_MS: u64 = 60_000;

/// Resolution of a region's record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    pub(super) units: usize,
    /// Pages that share one record because they are accessed together.
    pub(super) unit_pages: usize,
    /// Number of access times kept per unit.
    depth: usize,
}

impl Shape {
    /// Returns the resolution for `pages` pages with this pattern.
    pub(super) fn new(pattern: &Pattern, pages: usize) -> Self {
        let single_pages = pattern.parts().any(|part| matches!(part, Pattern::Zipf(_) | Pattern::Poisson(_) | Pattern::Requests(_)));
        let unit_pages = if single_pages { 1 } else { 64 };
        let depth = |part: &Pattern| match part {
            Pattern::PeriodMs(period) => usize::try_from(HISTORY_MS / (*period).max(1) + 2).unwrap_or(usize::MAX).clamp(4, 256),
            Pattern::Zipf(_) | Pattern::Requests(_) => 8,
            Pattern::Never(_) | Pattern::Poisson(_) | Pattern::Phases(_) => 4,
        };
        let depth = pattern.parts().map(depth).max().unwrap_or(4);
        Self { units: pages.div_ceil(unit_pages), unit_pages, depth }
    }

    fn unit_bytes(self) -> usize {
        4 * (1 + self.depth)
    }
}

/// Sweeps of a region: accesses of all of its pages.
#[derive(Debug, PartialEq, serde::Serialize)]
pub(super) struct Sweeps {
    pub(super) sweeps: u64,
    pub(super) last_sweep_begin_ns: u64,
    pub(super) last_sweep_end_ns: u64,
    pub(super) missed_periods: u64,
}

/// The access record, for its writers and readers.
pub(super) struct Record {
    mapping: Mapping,
    start_ns: u64,
    /// Shape and offset of each region's table.
    tables: Vec<(Shape, usize)>,
}

/// Fields of a region's entry, as byte offsets.
mod field {
    pub(super) const UNITS: usize = 0;
    pub(super) const UNIT_PAGES: usize = 8;
    pub(super) const DEPTH: usize = 16;
    pub(super) const OFFSET: usize = 24;
    pub(super) const SWEEPS: usize = 32;
    pub(super) const BEGIN: usize = 40;
    pub(super) const END: usize = 48;
    pub(super) const MISSED: usize = 56;
}

fn entry(region: usize) -> usize {
    64 + ENTRY_BYTES * region
}

impl Record {
    /// Creates the file, replacing an existing one, without any accesses.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(super) fn create(path: &Path, shapes: &[Shape], start_ns: u64) -> Result<Self> {
        let context = || format!("cannot create the access record {}", path.display());
        let mut tables = Vec::new();
        let mut bytes = entry(shapes.len()) + RETURNS_BYTES * shapes.len();
        for &shape in shapes {
            tables.push((shape, bytes));
            bytes += (shape.units * shape.unit_bytes()).next_multiple_of(8);
        }
        // A reader may still have mapped the old file, which must not shrink.
        let _ = std::fs::remove_file(path);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).with_context(context)?;
        file.set_len(bytes as u64).with_context(context)?;
        let mapping = Mapping::shared(&file, bytes).with_context(context)?;
        for (region, &(shape, offset)) in tables.iter().enumerate() {
            let entry = entry(region);
            mapping.u64_at(entry + field::UNITS).store(shape.units as u64, Relaxed);
            mapping.u64_at(entry + field::UNIT_PAGES).store(shape.unit_pages as u64, Relaxed);
            mapping.u64_at(entry + field::DEPTH).store(shape.depth as u64, Relaxed);
            mapping.u64_at(entry + field::OFFSET).store(offset as u64, Relaxed);
        }
        mapping.u64_at(8).store(VERSION, Relaxed);
        mapping.u64_at(16).store(start_ns, Relaxed);
        mapping.u64_at(24).store(tables.len() as u64, Relaxed);
        mapping.u64_at(0).store(MAGIC, Release);
        Ok(Self { mapping, start_ns, tables })
    }

    /// Locks the record in DRAM.
    ///
    /// # Errors
    /// Those of [`Mapping::lock`].
    pub(super) fn lock(&self) -> std::io::Result<()> {
        self.mapping.lock()
    }

    /// Opens a workload's record for reading.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub(super) fn open(path: &Path) -> Result<Self> {
        Self::open_checked(path).with_context(|| format!("cannot read the access record {}", path.display()))
    }

    fn open_checked(path: &Path) -> Result<Self> {
        let file = std::fs::File::open(path)?;
        let bytes = usize::try_from(file.metadata()?.len())?;
        ensure!(bytes >= entry(0), "the file has only {bytes} bytes");
        let mapping = Mapping::shared_read_only(&file, bytes)?;
        ensure!(mapping.u64_at(0).load(Acquire) == MAGIC, "the file does not start with the magic number of an access record");
        let version = mapping.u64_at(8).load(Relaxed);
        ensure!(version == VERSION, "the file has version {version}; this program supports version {VERSION}");
        let start_ns = mapping.u64_at(16).load(Relaxed);
        let count = usize::try_from(mapping.u64_at(24).load(Relaxed))?;
        ensure!(count <= (bytes - entry(0)) / (ENTRY_BYTES + RETURNS_BYTES), "the file is too short for {count} regions");
        let mut tables = Vec::new();
        for region in 0..count {
            let read = |field: usize| {
                let value = mapping.u64_at(entry(region) + field).load(Relaxed);
                ensure!((1..=CLAIM_MAX).contains(&value), "region {region} has the invalid value {value}");
                Ok(usize::try_from(value)?)
            };
            let shape = Shape { units: read(field::UNITS)?, unit_pages: read(field::UNIT_PAGES)?, depth: read(field::DEPTH)? };
            let offset = read(field::OFFSET)?;
            let end = shape.units.checked_mul(shape.unit_bytes()).and_then(|table| table.checked_add(offset));
            ensure!(offset.is_multiple_of(8) && end.is_some_and(|end| end <= bytes), "the file is too short for region {region}");
            tables.push((shape, offset));
        }
        Ok(Self { mapping, start_ns, tables })
    }

    /// Returns the number of regions.
    pub(super) fn regions(&self) -> usize {
        self.tables.len()
    }

    pub(super) fn shape(&self, region: usize) -> Shape {
        self.tables[region].0
    }

    fn unit_offset(&self, region: usize, unit: usize) -> usize {
        let (shape, offset) = self.tables[region];
        assert!(unit < shape.units, "no unit {unit} in region {region}");
        offset + unit * shape.unit_bytes()
    }

    /// Returns the milliseconds from the start to `now_ns`.
    fn since_start_ms(&self, now_ns: u64) -> u32 {
        u32::try_from(now_ns.saturating_sub(self.start_ns) / 1_000_000).unwrap_or(u32::MAX)
    }

    /// Offset of a region's counts of pages by seconds without access.
    fn returns_offset(&self, region: usize) -> usize {
        entry(self.tables.len()) + RETURNS_BYTES * region
    }

    /// Returns how many pages of a region were accessed after each number of seconds without access.
    pub(super) fn returns(&self, region: usize) -> Vec<u64> {
        let offset = self.returns_offset(region);
        (0..RETURN_SECONDS).map(|second| self.mapping.u64_at(offset + 8 * second).load(Relaxed)).collect()
    }

    /// Records an access of this unit. Each region has one writer.
    pub(super) fn access(&self, region: usize, unit: usize, now_ns: u64) {
        let offset = self.unit_offset(region, unit);
        let depth = self.tables[region].0.depth;
        let count = self.mapping.u32_at(offset).load(Relaxed);
        let now_ms = self.since_start_ms(now_ns);
        if count > 0 {
            let last_ms = self.mapping.u32_at(offset + 4 + 4 * (count.wrapping_sub(1) as usize % depth)).load(Relaxed);
            let second = (now_ms.saturating_sub(last_ms) as usize / 1000).min(RETURN_SECONDS - 1);
            let pages = self.tables[region].0.unit_pages as u64;
            self.mapping.u64_at(self.returns_offset(region) + 8 * second).fetch_add(pages, Relaxed);
        }
        self.mapping.u32_at(offset + 4 + 4 * (count as usize % depth)).store(now_ms, Relaxed);
        self.mapping.u32_at(offset).store(count.wrapping_add(1), Release);
    }

    /// Returns the number of accesses of this unit, modulo 2^32.
    pub(super) fn count(&self, region: usize, unit: usize) -> u32 {
        self.mapping.u32_at(self.unit_offset(region, unit)).load(Acquire)
    }

    /// Records the begin of a sweep of the region, after `missed` periods without one.
    pub(super) fn begin_sweep(&self, region: usize, missed: u64, now_ns: u64) {
        self.mapping.u64_at(entry(region) + field::MISSED).fetch_add(missed, Relaxed);
        self.mapping.u64_at(entry(region) + field::SWEEPS).fetch_add(1, Relaxed);
        self.mapping.u64_at(entry(region) + field::BEGIN).store(now_ns, Release);
    }

    /// Records the end of a sweep of the region.
    pub(super) fn end_sweep(&self, region: usize, now_ns: u64) {
        self.mapping.u64_at(entry(region) + field::END).store(now_ns, Release);
    }

    /// Returns the figures of a region's sweeps.
    pub(super) fn sweeps(&self, region: usize) -> Sweeps {
        let load = |field| self.mapping.u64_at(entry(region) + field).load(Acquire);
        Sweeps {
            sweeps: load(field::SWEEPS),
            last_sweep_begin_ns: load(field::BEGIN),
            last_sweep_end_ns: load(field::END),
            missed_periods: load(field::MISSED),
        }
    }

    /// Returns the milliseconds from the last access of this unit before `at_ns` to that time; `None` if that access is
    /// not recorded: the unit was accessed too often since then, or never before.
    pub(super) fn idle_ms(&self, region: usize, unit: usize, at_ns: u64) -> Option<u64> {
        let offset = self.unit_offset(region, unit);
        let depth = self.tables[region].0.depth;
        let at_ms = self.since_start_ms(at_ns);
        let count = self.mapping.u32_at(offset).load(Acquire);
        for back in 1..=count.min(u32::try_from(depth).unwrap_or(u32::MAX)) {
            let index = count.wrapping_sub(back);
            let accessed_ms = self.mapping.u32_at(offset + 4 + 4 * (index as usize % depth)).load(Relaxed);
            // The writer may have overwritten the slot meanwhile, or be writing it at this moment.
            fence(Acquire);
            let newer = self.mapping.u32_at(offset).load(Relaxed).wrapping_sub(index);
            if newer as usize > depth {
                return None;
            }
            if accessed_ms <= at_ms {
                return Some(u64::from(at_ms - accessed_ms));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::Zipf;
    use super::*;

    fn zipf() -> Pattern {
        Pattern::Zipf(Zipf { exponent: 1.0, touches_per_s: 10.0 })
    }

    #[test]
    fn resolution_follows_the_pattern() {
        for (pattern, pages, units, unit_pages, depth) in [
            (Pattern::Never(true), 64, 1, 64, 4),
            (Pattern::PeriodMs(100), 65, 2, 64, 256),
            (Pattern::PeriodMs(10_000), 1, 1, 64, 8),
            (zipf(), 65, 65, 1, 8),
        ] {
            assert_eq!(Shape::new(&pattern, pages), Shape { units, unit_pages, depth }, "{pattern:?} {pages}");
        }
    }

    /// Accesses one unit at these times (ms after the start) and checks its idle time at others.
    fn check(accesses_ms: &[u64], idle: &[(u64, Option<u64>)]) {
        const START: u64 = 5_000_000_000;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        let shapes = [Shape::new(&zipf(), 3), Shape::new(&Pattern::Never(true), 100)];
        let writer = Record::create(&path, &shapes, START).unwrap();
        let reader = Record::open(&path).unwrap();
        assert_eq!((reader.regions(), reader.shape(0), reader.shape(1)), (2, shapes[0], shapes[1]));
        for ms in accesses_ms {
            writer.access(1, 1, START + ms * 1_000_000);
        }
        for &(at_ms, expected) in idle {
            let at_ns = START + at_ms * 1_000_000;
            assert_eq!(reader.idle_ms(1, 1, at_ns), expected, "{accesses_ms:?} at {at_ms}");
            assert_eq!(reader.idle_ms(1, 0, at_ns), None, "the neighbour was never accessed");
        }
    }

    #[test]
    fn idle_time_is_known_for_the_recorded_accesses() {
        check(&[], &[(0, None), (100, None)]);
        check(&[10], &[(9, None), (10, Some(0)), (35, Some(25))]);
        check(&[10, 20, 30], &[(15, Some(5)), (29, Some(9)), (1000, Some(970))]);
        // The ring contains the last four of six accesses.
        check(&[10, 20, 30, 40, 50, 60], &[(65, Some(5)), (35, Some(5)), (29, None), (15, None)]);
    }

    #[test]
    fn sweeps_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        let writer = Record::create(&path, &[Shape::new(&Pattern::PeriodMs(5), 1)], 0).unwrap();
        writer.begin_sweep(0, 0, 10);
        writer.end_sweep(0, 20);
        writer.begin_sweep(0, 3, 30);
        let expected = Sweeps { sweeps: 2, last_sweep_begin_ns: 30, last_sweep_end_ns: 20, missed_periods: 3 };
        assert_eq!(Record::open(&path).unwrap().sweeps(0), expected);
    }

    #[test]
    fn a_truncated_or_foreign_record_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        drop(Record::create(&path, &[Shape::new(&zipf(), 3)], 1).unwrap());
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            // The last bytes may be padding.
            assert!(Record::open(&path).is_err() || length + 8 > whole.len(), "{length} bytes");
        }
        for position in (0..whole.len().min(96)).step_by(8) {
            let mut changed = whole.clone();
            changed[position..position + 8].fill(0xff);
            std::fs::write(&path, &changed).unwrap();
            let used = matches!(position, 16 | 32..64);
            assert_eq!(Record::open(&path).is_ok(), used, "changed at {position}");
        }
    }
}
