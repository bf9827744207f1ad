//! What the memory controller prints: limits, `memory.stat`, `memory.events`.

use std::fmt;

use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::text::FlatKeyed;
use crate::{Malformed, text};

/// A limit: so many bytes, or none at all, which the kernel writes `max` and which is above every number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// So many bytes.
    Bytes(Bytes),
    /// No limit.
    Max,
}

impl fmt::Display for Limit {
    /// As the kernel reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{}", bytes.0),
            Self::Max => f.write_str("max"),
        }
    }
}

/// Reads a limit: a number of bytes, or `max`.
///
/// # Errors
/// [`Malformed`] where it is neither.
pub fn parse_limit(text: &str) -> Result<Limit, Malformed> {
    match text.trim() {
        "max" => Ok(Limit::Max),
        number => text::only_number(number, "a number of bytes, or max").map(|n| Limit::Bytes(Bytes(n))),
    }
}

/// The fields of `memory.stat` that Thermocline uses; `None` where the kernel does not print it. Descendants are
/// included. Counters count pages or faults since the cgroup was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryStat {
    /// Anonymous memory in DRAM, swap cache included.
    pub anon: Option<Bytes>,
    /// Page cache, shared memory included.
    pub file: Option<Bytes>,
    /// Shared memory and tmpfs in DRAM.
    pub shmem: Option<Bytes>,
    /// Memory that is being written to a device, on its way to swap included.
    pub file_writeback: Option<Bytes>,
    /// Memory that is both in DRAM and in swap.
    pub swapcached: Option<Bytes>,
    /// DRAM that its pages take in zswap, compressed.
    pub zswap: Option<Bytes>,
    /// The size of those pages before compression.
    pub zswapped: Option<Bytes>,
    /// Anonymous memory on the inactive list; with multi-generational LRU, of its older generations.
    pub inactive_anon: Option<Bytes>,
    /// Anonymous memory on the active list.
    pub active_anon: Option<Bytes>,
    /// Page cache on the inactive list.
    pub inactive_file: Option<Bytes>,
    /// Page cache on the active list.
    pub active_file: Option<Bytes>,
    /// Memory that cannot be reclaimed, such as locked memory.
    pub unevictable: Option<Bytes>,
    /// Anonymous memory in transparent huge pages.
    pub anon_thp: Option<Bytes>,
    /// Memory that did not shrink and that zswap keeps as it is.
    pub zswap_incomp: Option<Bytes>,
    /// Pages brought back out of zswap.
    pub zswpin: Option<u64>,
    /// Pages stored in zswap.
    pub zswpout: Option<u64>,
    /// Pages that zswap wrote back to the swap device.
    pub zswpwb: Option<u64>,
    /// Pages read from swap devices.
    pub pswpin: Option<u64>,
    /// Pages written to swap devices.
    pub pswpout: Option<u64>,
    /// Refaults of anonymous pages.
    pub workingset_refault_anon: Option<u64>,
    /// Refaults of file pages.
    pub workingset_refault_file: Option<u64>,
    /// Refaulted anonymous pages that were in active use when they went out.
    pub workingset_restore_anon: Option<u64>,
    /// Refaulted file pages that were in active use when they went out.
    pub workingset_restore_file: Option<u64>,
    /// Pages that proactive reclaim looked at.
    pub pgscan_proactive: Option<u64>,
    /// Pages that proactive reclaim took.
    pub pgsteal_proactive: Option<u64>,
    /// Page faults.
    pub pgfault: Option<u64>,
    /// Page faults that had to wait for I/O or decompression.
    pub pgmajfault: Option<u64>,
}

/// Reads `memory.stat`. Unknown keys pass.
///
/// # Errors
/// [`Malformed`] where a line has no value, or that of a known key is not a number.
pub fn parse_stat(text: &str) -> Result<MemoryStat, Malformed> {
    let table = FlatKeyed::split(text)?;
    let count = |key| table.get(key);
    let size = |key| Ok(table.get(key)?.map(Bytes));
    Ok(MemoryStat {
        anon: size("anon")?,
        file: size("file")?,
        shmem: size("shmem")?,
        file_writeback: size("file_writeback")?,
        swapcached: size("swapcached")?,
        zswap: size("zswap")?,
        zswapped: size("zswapped")?,
        inactive_anon: size("inactive_anon")?,
        active_anon: size("active_anon")?,
        inactive_file: size("inactive_file")?,
        active_file: size("active_file")?,
        unevictable: size("unevictable")?,
        anon_thp: size("anon_thp")?,
        zswap_incomp: size("zswap_incomp")?,
        zswpin: count("zswpin")?,
        zswpout: count("zswpout")?,
        zswpwb: count("zswpwb")?,
        pswpin: count("pswpin")?,
        pswpout: count("pswpout")?,
        workingset_refault_anon: count("workingset_refault_anon")?,
        workingset_refault_file: count("workingset_refault_file")?,
        workingset_restore_anon: count("workingset_restore_anon")?,
        workingset_restore_file: count("workingset_restore_file")?,
        pgscan_proactive: count("pgscan_proactive")?,
        pgsteal_proactive: count("pgsteal_proactive")?,
        pgfault: count("pgfault")?,
        pgmajfault: count("pgmajfault")?,
    })
}

/// `memory.events`: how often the cgroup or one below it met a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryEvents {
    /// Reclaimed although under `memory.low`.
    pub low: u64,
    /// Throttled above `memory.high`.
    pub high: u64,
    /// About to pass `memory.max`.
    pub max: u64,
    /// Reached `memory.max` with nothing left to reclaim.
    pub oom: u64,
    /// Processes that the out-of-memory killer ended.
    pub oom_kill: u64,
}

/// Reads `memory.events`. Unknown keys pass.
///
/// # Errors
/// [`Malformed`] where one of the five keys, which every cgroup v2 kernel prints, is missing or not a number.
pub fn parse_events(text: &str) -> Result<MemoryEvents, Malformed> {
    let table = FlatKeyed::split(text)?;
    Ok(MemoryEvents {
        low: table.require("low")?,
        high: table.require("high")?,
        max: table.require("max")?,
        oom: table.require("oom")?,
        oom_kill: table.require("oom_kill")?,
    })
}
