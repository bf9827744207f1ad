//! Where a job's memory is, and what moved between two decisions.

use serde::{Deserialize, Serialize};
use units::{Bytes, Millis, Pages};

/// Where a job's memory is, from the kernel's own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobMemory {
    /// `memory.current`: everything charged to the job, including the compressed pool.
    pub current: Bytes,
    /// Uncompressed size of the pages in far memory that no longer occupy DRAM.
    pub far: Bytes,
    /// Size of their compressed copies in zswap, which are charged to the job.
    pub pool: Bytes,
    /// The job's share of the DRAM that the compressed pool occupies beyond that, because of fragmentation and its allocator's own
    /// data. It is charged to no job.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pool_overhead: Bytes,
    /// Page cache that the agent reclaimed, as far as it is still saved ([`policy::page_cache`]). Before version 5 of the journal, the
    /// sum of all that was reclaimed and not read back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub file: Bytes,
    /// DRAM that the job's pages occupy on zram devices. It is not included in `current`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub zram: Bytes,
    /// Uncompressed size of these pages.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub zram_stored: Bytes,
    /// Memory in a slow node. It is included in `current`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub slow: Bytes,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(bytes: &Bytes) -> bool {
    *bytes == Bytes::ZERO
}

impl JobMemory {
    /// DRAM that the machine gained: memory in far memory or in a slow node, minus the DRAM that its compressed copies
    /// occupy in zswap and on zram devices, and page cache.
    #[must_use]
    pub fn saved(&self) -> Bytes {
        self.swap_backed() + self.file + self.slow
    }

    /// The same of anonymous and shared memory alone.
    #[must_use]
    pub fn swap_backed(&self) -> Bytes {
        self.far - self.compressed_dram()
    }

    /// DRAM that the compressed copies occupy.
    #[must_use]
    pub fn compressed_dram(&self) -> Bytes {
        self.pool_dram() + self.zram
    }

    /// DRAM that the compressed copies in zswap occupy.
    #[must_use]
    pub fn pool_dram(&self) -> Bytes {
        self.pool + self.pool_overhead
    }
}

/// Pages that moved between two decisions of `cold_age`, whichever controller moved them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Milliseconds since the previous decision.
    pub elapsed_ms: Millis,
    /// Pages that the kernel was asked to offload.
    pub asked: Pages,
    /// Pages that moved to far memory.
    pub offloaded: Pages,
    /// Pages that were promoted from far memory.
    pub promoted: Pages,
}
