//! The compacted form: the numbers that a replay reads, packed by bits, one row per job, day and tracker.
//!
//! Parquet's own encodings decode one to two million entries per second; a replay processes more than ten times as
//! many. The numbers that a replay reads are therefore packed by `pack`, and a compacted file is a Parquet file whose
//! rows hold the packed bytes with a checksum. It is derived from trace files, which remain the record.
//!
//! | column | type | |
//! |---|---|---|
//! | `cluster`, `machine`, `job`, `job_key` | text, text, text, number | the job; the file is sorted by it, then by day |
//! | `class`, `policy` | text | class and policy of the job at the row's first entry |
//! | `tracker` | text | tracker of all of the row's entries: where it changes, the day has another row; none before version 3, that of the day's first entry in it |
//! | `day_unix_ms` | number | start of the day in UTC |
//! | `entries` | number | entries of the row |
//! | `page_shift` | number | pages are counted in units of two to this power: 0 except for jobs beyond 16 TiB |
//! | `checksum` | number | 64-bit XXH3 of `tiles`; in version 1 xxHash64 |
//! | `tiles` | bytes | the packed numbers: cold ages, promotions, then those of [`Number`] |
//!
//! Both histograms are stored as suffix sums (pages of at least that age), which is what a replay needs. They take 7 %
//! more space than the plain counters of version 1 and save a pass over all numbers at each read.

use std::path::{Path, PathBuf};

use parquet::data_type::ByteArray;
use twox_hash::{XxHash3_64, XxHash64};
use units::{Bytes, UnixMillis};

use crate::entry::{Basis, Entry, Figures, JobId};
use crate::error::{Error, Result};
use crate::pack::{self, LANES};

mod columns;
mod entries;
mod join;
mod read;
mod write;

pub use columns::{Compacted, compact};
pub use entries::{DayEntries, DayNumbers, Numbers};
pub use join::{FILES_MAX, Jobs, Joined, extend};
pub use read::{CompactedTrace, Days};
pub use write::Compactor;

/// Version of the layout. Readers accept older files and reject newer ones.
///
/// 1: histograms as counters. 2: as suffix sums, with another checksum. 3: with the tracker, its resolution and its sample. 4: with
/// the compressed size of sampled pages, a row for each tracker of a day, and what zswap holds in KiB.
pub const VERSION: u32 = 4;

/// First version whose histograms are suffix sums.
const SINCE_SUMS: u32 = 2;
/// First version with the tracker, [`Number::ResolvedToScans`] and [`Number::SampledPages`].
const SINCE_TRACKER: u32 = 3;
/// First version with [`Number::SampledCompressedPpm`].
const SINCE_COMPRESSED: u32 = 4;

/// Maximum size of a job's unpacked day. Constant numbers take almost nothing in the file.
const DAY_BYTES_MAX: usize = 64 << 20;
const NOT_AS_MANY: &str = "its bytes are not as many entries as its row states";
const TOO_MANY_PAGES: &str = "its page counts overflow 32 bits; compact its traces again, which counts them in larger units";

const KEY_VERSION: &str = "thermocline.compact_version";

macro_rules! numbers {
    ($($(#[doc = $doc:literal])+ $name:ident;)*) => {
        /// A number of an entry, beside its histograms.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Number {
            $($(#[doc = $doc])+ $name,)*
        }

        /// Number of variants.
        const NUMBERS: usize = [$(Number::$name),*].len();
    };
}

numbers! {
    /// Start of the entry, in milliseconds since the start of the day.
    StartMs;
    /// Duration of the entry in milliseconds.
    DurationMs;
    /// Milliseconds of accesses that its promotions cover.
    WindowMs;
    /// How long the job had been observed, in milliseconds; at most 49 days.
    JobAgeMs;
    /// Control periods in the entry.
    Periods;
    /// Control periods with far memory.
    FarPeriods;
    /// Pages promoted from far memory. Pages are in units of `page_shift`, here and below.
    PromotedPages;
    /// Pages charged to the job.
    MemoryPages;
    /// Memory in zswap, in KiB; in pages before version 4. Their ratio to the next number is what a replay needs.
    ZswapStored;
    /// DRAM that the zswap pool takes for it, in the same unit.
    ZswapPool;
    /// Pages on swap devices.
    SwapPages;
    /// Pages in slow memory nodes.
    SlowNodePages;
    /// Microseconds of memory stall.
    MemoryStallUs;
    /// Microseconds of I/O stall.
    IoStallUs;
    /// Oldest age that the tracker distinguished, in scans; 0 if unknown.
    ResolvedToScans;
    /// Pages of the sample that the histograms are estimated from; 0 if all pages were counted. Not in units of `page_shift`.
    SampledPages;
    /// Compressed size of its sampled cold pages, in millionths of their size; 0 if none was sampled.
    SampledCompressedPpm;
}

/// Returns the numbers per entry in a file of this version.
fn known(version: u32) -> usize {
    match version {
        ..SINCE_TRACKER => Number::ResolvedToScans as usize,
        SINCE_TRACKER..SINCE_COMPRESSED => Number::SampledCompressedPpm as usize,
        _ => NUMBERS,
    }
}

/// Returns the numbers per entry, with its histograms, rounded up to a multiple of [`LANES`].
fn stride(buckets: usize, version: u32) -> usize {
    (2 * buckets + known(version)).next_multiple_of(LANES)
}

/// Returns the maximum entries per job and day: two per second for 33 buckets.
fn day_entries_max(buckets: usize, version: u32) -> usize {
    DAY_BYTES_MAX / (stride(buckets, version) * size_of::<u32>())
}

/// The packed entries of one job and day, all of one tracker.
#[derive(Clone, Debug, PartialEq)]
pub struct JobDay {
    /// The job.
    pub id: JobId,
    /// Class of the job at the first entry.
    pub class: String,
    /// Policy of the job at the first entry.
    pub policy: String,
    /// Tracker of the job; empty before version 3.
    pub tracker: String,
    /// Start of the day.
    pub day_unix_ms: UnixMillis,
    /// Number of entries.
    pub entries: usize,
    /// Pages are counted in units of two to this power.
    pub page_shift: u32,
    version: u32,
    checksum: i64,
    tiles: ByteArray,
}

impl JobDay {
    /// Packs entries of one job and day.
    fn pack(entries: &[Entry], day_unix_ms: UnixMillis, basis: &Basis) -> Option<Self> {
        let first = entries.first()?;
        let page = basis.page_bytes.0.max(1);
        let largest = entries.iter().map(|entry| largest_pages(entry, page)).max().unwrap_or(0);
        // The smallest shift that makes the largest count fit into 32 bits.
        let page_shift = (u64::BITS - largest.leading_zeros()).saturating_sub(u32::BITS);
        let stride = stride(basis.buckets(), VERSION);
        let mut matrix = Vec::with_capacity(entries.len() * stride);
        for entry in entries {
            for counts in [&entry.cold_pages, &entry.promotions_pages] {
                let begin = matrix.len();
                let mut sum = 0u64;
                matrix.extend(counts.iter().rev().map(|&pages| {
                    sum = sum.saturating_add(pages);
                    clipped(sum >> page_shift)
                }));
                matrix[begin..].reverse();
            }
            matrix.extend(numbers(&entry.figures, day_unix_ms, page, page_shift));
            matrix.resize(matrix.len().next_multiple_of(stride), 0);
        }
        let labels = [&first.labels.class, &first.labels.policy, &first.labels.tracker].map(Clone::clone);
        Some(Self { page_shift, ..Self::of_rows(first.id.clone(), labels, day_unix_ms, &matrix, stride) })
    }

    /// Packs the numbers of a job's day, given row by row. The labels are class, policy and tracker.
    fn of_rows(id: JobId, [class, policy, tracker]: [String; 3], day_unix_ms: UnixMillis, matrix: &[u32], stride: usize) -> Self {
        let mut tiles = Vec::new();
        pack::pack(matrix, stride, &mut tiles);
        let (entries, checksum) = (matrix.len() / stride, checksum(VERSION, &tiles));
        Self { id, class, policy, tracker, day_unix_ms, entries, page_shift: 0, version: VERSION, checksum, tiles: ByteArray::from(tiles) }
    }

    /// Returns an error if the checksum differs from that of the packed bytes.
    fn check(&self, path: &Path) -> Result<()> {
        if checksum(self.version, self.tiles.data()) == self.checksum {
            return Ok(());
        }
        Err(self.damaged(path, "the checksum differs from that of its bytes"))
    }

    fn damaged(&self, path: &Path, what: &str) -> Error {
        Error::damaged(path, format!("the day {} of {}: {what}", crate::calendar::date(self.day_unix_ms), self.id.job))
    }

    /// Returns whether another row has entries of the same day of the job.
    fn is_day_of(&self, other: &Self) -> bool {
        (&self.id, self.day_unix_ms) == (&other.id, other.day_unix_ms)
    }

    /// Unpacks the entries, replacing the contents of `unpacked`. `path` is the file's path, for errors.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the checksum differs, the bytes do not unpack to the row's number of entries, or the page
    /// counts of a file of version 1 overflow 32 bits.
    pub fn unpack(&self, path: &Path, basis: &Basis, unpacked: &mut DayEntries) -> Result<()> {
        unpacked.clear(basis.buckets());
        self.unpack_onto(path, basis, &mut unpacked.sums, &mut unpacked.numbers)
    }

    /// Appends the suffix sums of the entries to `sums`, those of an entry as [`DayEntries::sums`] returns them, and replaces the
    /// contents of `numbers`. It is not checked that the sums decrease.
    ///
    /// # Errors
    /// As [`Self::unpack`]; `sums` is then as before.
    pub fn unpack_onto(&self, path: &Path, basis: &Basis, sums: &mut Vec<u32>, numbers: &mut DayNumbers) -> Result<()> {
        let damaged = |what: &str| self.damaged(path, what);
        self.check(path)?;
        let (buckets, stride) = (basis.buckets(), stride(basis.buckets(), self.version));
        if self.entries > day_entries_max(buckets, self.version) {
            return Err(damaged(NOT_AS_MANY));
        }
        let (begin, rest) = (sums.len(), numbers.prepare(2 * buckets, stride, known(self.version)));
        let done = pack::unpack(self.tiles.data(), (stride, 2 * buckets), self.entries, sums, rest);
        done.ok_or_else(|| damaged(NOT_AS_MANY))?;
        if self.version < SINCE_SUMS && !sums[begin..].chunks_exact_mut(buckets).all(|counts| sum_up(counts).is_some()) {
            sums.truncate(begin);
            return Err(damaged(TOO_MANY_PAGES));
        }
        Ok(())
    }
}

/// Replaces counters by their suffix sums; returns `None` on overflow.
fn sum_up(counts: &mut [u32]) -> Option<()> {
    let mut sum = 0u32;
    for count in counts.iter_mut().rev() {
        sum = sum.checked_add(*count)?;
        *count = sum;
    }
    Some(())
}

fn checksum(version: u32, tiles: &[u8]) -> i64 {
    let sum = if version < SINCE_SUMS { XxHash64::oneshot(0, tiles) } else { XxHash3_64::oneshot(tiles) };
    sum.cast_signed()
}

/// Returns the largest page count of an entry.
fn largest_pages(entry: &Entry, page: u64) -> u64 {
    let Figures { memory_bytes, swap_bytes, slow_node_bytes, promoted_pages, .. } = entry.figures;
    let bytes = memory_bytes.max(swap_bytes).max(slow_node_bytes);
    let sum = |counts: &[u64]| counts.iter().fold(0, |sum: u64, &pages| sum.saturating_add(pages));
    sum(&entry.cold_pages).max(sum(&entry.promotions_pages)).max(bytes.0 / page).max(promoted_pages.0)
}

/// Returns the numbers in the order of [`Number`].
fn numbers(figures: &Figures, day_unix_ms: UnixMillis, page: u64, page_shift: u32) -> [u32; NUMBERS] {
    let pages = |Bytes(bytes)| clipped((bytes / page) >> page_shift);
    [
        clipped(figures.start_unix_ms.since(day_unix_ms).0),
        clipped(figures.duration_ms.0),
        clipped(figures.window_ms.0),
        clipped(figures.job_age_ms.0),
        clipped(figures.periods),
        clipped(figures.far_periods),
        clipped(figures.promoted_pages.0 >> page_shift),
        pages(figures.memory_bytes),
        clipped(zswap_kib(figures.zswap_stored_bytes)),
        clipped(zswap_kib(figures.zswap_pool_bytes)),
        pages(figures.swap_bytes),
        pages(figures.slow_node_bytes),
        clipped(figures.memory_stall_us),
        clipped(figures.io_stall_us),
        clipped(figures.resolved_to_scans),
        clipped(figures.sampled_pages.0),
        figures.sampled_compressed_ppm.0,
    ]
}

/// What zswap holds of a job, in the unit of [`Number::ZswapStored`]. Every reader rounds alike, so that all forms of a trace give
/// the same answer.
#[must_use]
pub fn zswap_kib(Bytes(bytes): Bytes) -> u64 {
    bytes >> 10
}

fn clipped(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
