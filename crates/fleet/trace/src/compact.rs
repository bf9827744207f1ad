//! The replay form: what a model needs of a trace, packed by bits, one row per job and day.
//!
//! Parquet's own encodings decode at one to two million entries a second, a replay runs at more than ten times that. The
//! numbers that a replay needs are therefore packed as [`crate::pack`] says, and a compacted file is a Parquet file
//! whose rows hold them as bytes, with a checksum. It is made of trace files, which stay the record.
//!
//! | column | type | |
//! |---|---|---|
//! | `cluster`, `machine`, `job`, `job_key` | text, text, text, number | whose day; the file is sorted by it, then by day |
//! | `class`, `policy` | text | how the job was treated when the day began |
//! | `day_unix_ms` | number | when the day begins, in UTC |
//! | `entries` | number | how many there are of the day |
//! | `page_shift` | number | pages are counted in units of two to this power: 0 but for a job beyond 16 TiB |
//! | `checksum` | number | XXH3 of `tiles`, 64 bits; in version 1 xxHash64 |
//! | `tiles` | bytes | the numbers: cold ages, promotions, then those of [`Number`] |
//!
//! Of both histograms the file has the suffix sums, how many are of at least that age, because that is what a replay asks for.
//! They take 7 % more room than the counters themselves, which version 1 has, and save a pass over all numbers at each reading.

use std::path::{Path, PathBuf};

use parquet::data_type::ByteArray;
use twox_hash::{XxHash3_64, XxHash64};

use crate::entry::{Basis, Entry, Figures, JobId};
use crate::error::{Error, Result};
use crate::pack::{self, LANES};

mod read;
mod write;

pub use read::{Compacted, Days};
pub use write::Compactor;

/// The version of the layout. A reader takes older files, and refuses newer ones by name.
///
/// 1: histograms as counters. 2: as suffix sums, and another checksum.
pub const VERSION: u32 = 2;

/// The version from which on histograms are suffix sums.
const SINCE_SUMS: u32 = 2;

/// Entries that a job's day may have: three a second.
const DAY_ENTRIES_MAX: usize = 1 << 18;
const NOT_AS_MANY: &str = "its bytes are not as many entries as it says";
const TOO_MANY_PAGES: &str = "32 bits do not hold all its pages; compact its traces again, which counts them in larger units";

const KEY_VERSION: &str = "thermocline.compact_version";

macro_rules! numbers {
    ($($(#[doc = $doc:literal])+ $name:ident;)*) => {
        /// A number of an entry beside its histograms.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Number {
            $($(#[doc = $doc])+ $name,)*
        }

        /// How many there are.
        const NUMBERS: usize = [$(Number::$name),*].len();
    };
}

numbers! {
    /// When the entry begins, in milliseconds since the day does.
    StartMs;
    /// How long it is.
    DurationMs;
    /// Milliseconds of accesses that its promotions cover.
    WindowMs;
    /// How long the job had been observed; what is beyond 49 days is 49 days.
    JobAgeMs;
    /// Control periods in it.
    Periods;
    /// Those with far memory.
    FarPeriods;
    /// Pages that came back from far memory. Pages are in units of `page_shift`, here and below.
    PromotedPages;
    /// Pages charged.
    MemoryPages;
    /// Pages in zswap.
    ZswapStoredPages;
    /// Pages that these take, compressed.
    ZswapPoolPages;
    /// Pages on swap devices.
    SwapPages;
    /// Pages in slow memory nodes.
    SlowNodePages;
    /// Microseconds of stall for memory.
    MemoryStallUs;
    /// Microseconds of stall for I/O.
    IoStallUs;
}

/// Numbers per entry, histograms and all, a multiple of [`LANES`].
fn stride(buckets: usize) -> usize {
    (2 * buckets + NUMBERS).next_multiple_of(LANES)
}

/// One job's entries of one day, packed.
#[derive(Clone, Debug, PartialEq)]
pub struct JobDay {
    /// Whose.
    pub id: JobId,
    /// Its class when the day began.
    pub class: String,
    /// What decided for it then.
    pub policy: String,
    /// When the day begins, in milliseconds since the epoch.
    pub day_unix_ms: u64,
    /// How many entries there are.
    pub entries: usize,
    /// Pages are counted in units of two to this power.
    pub page_shift: u32,
    version: u32,
    checksum: i64,
    tiles: ByteArray,
}

/// The unpacked entries of a job's day. Kept from one day to the next, it needs no memory anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    buckets: usize,
    stride: usize,
    matrix: Vec<u32>,
}

impl Unpacked {
    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.matrix.len().checked_div(self.stride).unwrap_or(0)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.matrix.is_empty()
    }

    /// The suffix sums of an entry's cold-age histogram, by bucket, and after them those of its promotion histogram. Nobody has
    /// looked whether they fall.
    #[must_use]
    #[inline]
    pub fn sums(&self, entry: usize) -> &[u32] {
        &self.matrix[entry * self.stride..][..2 * self.buckets]
    }

    /// A number of an entry.
    #[must_use]
    #[inline]
    pub fn number(&self, entry: usize, number: Number) -> u32 {
        self.matrix[entry * self.stride + 2 * self.buckets + number as usize]
    }
}

impl JobDay {
    /// Packs the entries of one job and day.
    fn pack(entries: &[Entry], day_unix_ms: u64, basis: &Basis) -> Option<Self> {
        let first = entries.first()?;
        let page = basis.page_bytes.max(1);
        let largest = entries.iter().map(|entry| largest_pages(entry, page)).max().unwrap_or(0);
        // As few bits away as leave 32.
        let page_shift = (u64::BITS - largest.leading_zeros()).saturating_sub(u32::BITS);
        let stride = stride(basis.buckets());
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
        let mut tiles = Vec::new();
        pack::pack(&matrix, stride, &mut tiles);
        Some(Self {
            id: first.id.clone(),
            class: first.labels.class.clone(),
            policy: first.labels.policy.clone(),
            day_unix_ms,
            entries: entries.len(),
            page_shift,
            version: VERSION,
            checksum: checksum(VERSION, &tiles),
            tiles: ByteArray::from(tiles),
        })
    }

    /// Unpacks the entries, in place of what `unpacked` held. `path` is the file's, for errors.
    ///
    /// # Errors
    /// [`Error::Damaged`] where the checksum is another, the bytes are not so many entries, or one of version 1 has more pages
    /// than 32 bits hold.
    pub fn unpack(&self, path: &Path, basis: &Basis, unpacked: &mut Unpacked) -> Result<()> {
        let damaged =
            |what: &str| Error::damaged(path, format!("the day {} of {}: {what}", crate::calendar::date(self.day_unix_ms), self.id.job));
        if checksum(self.version, self.tiles.data()) != self.checksum {
            return Err(damaged("the checksum is not that of its bytes"));
        }
        (unpacked.buckets, unpacked.stride) = (basis.buckets(), stride(basis.buckets()));
        if self.entries > DAY_ENTRIES_MAX {
            return Err(damaged(NOT_AS_MANY));
        }
        let done = pack::unpack(self.tiles.data(), unpacked.stride, self.entries, &mut unpacked.matrix);
        done.ok_or_else(|| damaged(NOT_AS_MANY))?;
        if self.version < SINCE_SUMS {
            let buckets = unpacked.buckets;
            for row in unpacked.matrix.chunks_exact_mut(unpacked.stride) {
                let (cold, rest) = row.split_at_mut(buckets);
                for counts in [cold, &mut rest[..buckets]] {
                    sum_up(counts).ok_or_else(|| damaged(TOO_MANY_PAGES))?;
                }
            }
        }
        Ok(())
    }
}

/// Makes counters suffix sums; `None` where they overflow.
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

/// The largest number of pages in an entry.
fn largest_pages(entry: &Entry, page: u64) -> u64 {
    let Figures { memory_bytes, zswap_stored_bytes, zswap_pool_bytes, swap_bytes, slow_node_bytes, promoted_pages, .. } = entry.figures;
    let bytes = memory_bytes.max(zswap_stored_bytes).max(zswap_pool_bytes).max(swap_bytes).max(slow_node_bytes);
    let sum = |counts: &[u64]| counts.iter().fold(0, |sum: u64, &pages| sum.saturating_add(pages));
    sum(&entry.cold_pages).max(sum(&entry.promotions_pages)).max(bytes / page).max(promoted_pages)
}

/// In the order of [`Number`].
fn numbers(figures: &Figures, day_unix_ms: u64, page: u64, page_shift: u32) -> [u32; NUMBERS] {
    let pages = |bytes: u64| clipped((bytes / page) >> page_shift);
    [
        clipped(figures.start_unix_ms - day_unix_ms),
        clipped(figures.duration_ms),
        clipped(figures.window_ms),
        clipped(figures.job_age_ms),
        clipped(figures.periods),
        clipped(figures.far_periods),
        clipped(figures.promoted_pages >> page_shift),
        pages(figures.memory_bytes),
        pages(figures.zswap_stored_bytes),
        pages(figures.zswap_pool_bytes),
        pages(figures.swap_bytes),
        pages(figures.slow_node_bytes),
        clipped(figures.memory_stall_us),
        clipped(figures.io_stall_us),
    ]
}

fn clipped(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
