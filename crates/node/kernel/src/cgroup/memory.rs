//! Files of the memory controller: limits, `memory.stat`, `memory.events`.
//!
//! ```text
//! memory.max   memory.stat               memory.events
//! 67108864     anon 52428800             low 0
//!              file 8192                high 12
//! ```
//! Limits and sizes are in bytes; counters of `memory.stat` are in pages or faults.

use std::fmt;

use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::text::FlatKeyed;
use crate::{Malformed, text};

/// A limit in bytes, or no limit, which the kernel writes as `max` and which orders above every number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// A limit in bytes.
    Bytes(Bytes),
    /// No limit.
    Max,
}

impl fmt::Display for Limit {
    /// Prints the kernel's format.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{}", bytes.0),
            Self::Max => f.write_str("max"),
        }
    }
}

/// Parses a limit: a number of bytes, or `max`.
///
/// # Errors
/// [`Malformed`] if the text is neither.
pub fn parse_limit(text: &str) -> Result<Limit, Malformed> {
    match text.trim() {
        "max" => Ok(Limit::Max),
        number => text::only_number(number, "a number of bytes, or max").map(|n| Limit::Bytes(Bytes(n))),
    }
}

/// The fields of `memory.stat` that Thermocline uses; `None` if the kernel does not print it. Descendants are
/// included. Counters count pages or faults since the cgroup was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryStat {
    /// Anonymous memory in DRAM, swap cache included.
    pub anon: Option<Bytes>,
    /// Page cache, shared memory included.
    pub file: Option<Bytes>,
    /// Shared memory and tmpfs in DRAM.
    pub shmem: Option<Bytes>,
    /// Memory under writeback to a device, swap included.
    pub file_writeback: Option<Bytes>,
    /// Page cache and shared memory that a process maps.
    pub file_mapped: Option<Bytes>,
    /// Memory that is both in DRAM and in swap.
    pub swapcached: Option<Bytes>,
    /// Compressed size of the cgroup's pages in zswap, in DRAM.
    pub zswap: Option<Bytes>,
    /// Uncompressed size of those pages.
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
    /// Kernel memory, the zswap pool and slab included (Linux 5.18).
    pub kernel: Option<Bytes>,
    /// Socket buffers.
    pub sock: Option<Bytes>,
    /// Slab that can be reclaimed, such as dentries and inodes.
    pub slab_reclaimable: Option<Bytes>,
    /// Anonymous memory in transparent huge pages.
    pub anon_thp: Option<Bytes>,
    /// Incompressible memory that zswap stores uncompressed.
    pub zswap_incomp: Option<Bytes>,
    /// Pages loaded from zswap.
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
    /// Refaulted anonymous pages that were part of the working set when they were evicted.
    pub workingset_restore_anon: Option<u64>,
    /// Refaulted file pages that were part of the working set when they were evicted.
    pub workingset_restore_file: Option<u64>,
    /// Pages scanned by proactive reclaim.
    pub pgscan_proactive: Option<u64>,
    /// Pages reclaimed by proactive reclaim.
    pub pgsteal_proactive: Option<u64>,
    /// Page faults.
    pub pgfault: Option<u64>,
    /// Major page faults, which waited for I/O or decompression.
    pub pgmajfault: Option<u64>,
}

impl MemoryStat {
    /// Memory that the kernel can reclaim without swap: page cache on its lists, and slab. Shared memory and locked page cache
    /// are on other lists.
    #[must_use]
    pub fn reclaimable(&self) -> Bytes {
        let listed = self.active_file.unwrap_or_default() + self.inactive_file.unwrap_or_default();
        listed + self.slab_reclaimable.unwrap_or_default()
    }

    /// Swap-backed memory on the kernel's lists that no process maps: it is in the swap cache, on its way to a device, clean after
    /// that, or refused by zswap. Locked memory is on another list, so where there is some, this is too little.
    #[must_use]
    pub fn unmapped(&self) -> Bytes {
        let listed = self.active_anon.unwrap_or_default() + self.inactive_anon.unwrap_or_default();
        listed - (self.anon.unwrap_or_default() + self.shmem.unwrap_or_default())
    }
}

/// Parses `memory.stat`. Unknown keys are ignored.
///
/// # Errors
/// [`Malformed`] if a line has no value, or the value of a known key is not a number.
pub fn parse_stat(text: &str) -> Result<MemoryStat, Malformed> {
    let table = FlatKeyed::split(text)?;
    let count = |key| table.get(key);
    let size = |key| Ok(table.get(key)?.map(Bytes));
    Ok(MemoryStat {
        anon: size("anon")?,
        file: size("file")?,
        shmem: size("shmem")?,
        file_writeback: size("file_writeback")?,
        file_mapped: size("file_mapped")?,
        swapcached: size("swapcached")?,
        zswap: size("zswap")?,
        zswapped: size("zswapped")?,
        inactive_anon: size("inactive_anon")?,
        active_anon: size("active_anon")?,
        inactive_file: size("inactive_file")?,
        active_file: size("active_file")?,
        unevictable: size("unevictable")?,
        kernel: size("kernel")?,
        sock: size("sock")?,
        slab_reclaimable: size("slab_reclaimable")?,
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

/// `memory.events`: how often the cgroup or a descendant reached a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryEvents {
    /// Times that memory below `memory.low` was reclaimed.
    pub low: u64,
    /// Times that processes were throttled above `memory.high`.
    pub high: u64,
    /// Times that usage was about to exceed `memory.max`.
    pub max: u64,
    /// Times that an allocation failed at `memory.max`.
    pub oom: u64,
    /// Processes killed by the OOM killer.
    pub oom_kill: u64,
}

/// Parses `memory.events`. Unknown keys are ignored.
///
/// # Errors
/// [`Malformed`] if one of the five keys, which every cgroup v2 kernel prints, is missing or not a number.
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
