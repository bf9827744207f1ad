//! What zram devices hold of the machine's swapped memory. It left its page frames and still occupies DRAM, compressed. The kernel
//! charges that DRAM to no cgroup, and counts it by device only: a job's part is its share of all swapped memory.

use serde::Serialize;
use units::{Bytes, RatioPpm};

/// The zram devices that the machine swaps to, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RamDisks {
    /// DRAM that they occupy, with the allocator's overhead (`mem_used_total` of `mm_stat`).
    #[serde(rename = "zram_memory_bytes")]
    pub memory: Bytes,
    /// Uncompressed size of what they store (`orig_data_size`).
    #[serde(rename = "zram_stored_bytes")]
    pub stored: Bytes,
    /// Uncompressed size of what all swap areas hold, without what zswap holds.
    #[serde(skip)]
    pub swapped: Bytes,
    /// Of the last writes to swap areas, the share that went to devices that wear out.
    #[serde(skip)]
    pub to_devices: RatioPpm,
}

impl Default for RamDisks {
    /// A machine without zram.
    fn default() -> Self {
        Self { memory: Bytes::ZERO, stored: Bytes::ZERO, swapped: Bytes::ZERO, to_devices: RatioPpm::ONE }
    }
}

/// A job's part of the zram devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RamDiskShare {
    /// DRAM that its pages occupy there.
    pub memory: Bytes,
    /// Uncompressed size of these pages.
    pub stored: Bytes,
}

impl RamDisks {
    /// The part of a job that has `swapped` bytes in swap areas, without what zswap holds of it.
    #[must_use]
    pub fn share_of(&self, swapped: Bytes) -> RamDiskShare {
        let part = |of: Bytes| {
            let part = (u128::from(of.0) * u128::from(swapped.0)).checked_div(u128::from(self.swapped.0)).unwrap_or(0);
            // Counters that are not read at the same time do not charge a job more than there is.
            Bytes(u64::try_from(part).unwrap_or(u64::MAX)).min(of)
        };
        RamDiskShare { memory: part(self.memory), stored: part(self.stored) }
    }

    /// Of what was written to swap areas, the bytes that went to devices that wear out.
    #[must_use]
    pub fn worn_by(&self, written: Bytes) -> Bytes {
        Bytes(self.to_devices.share_of(written.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_all_jobs_add_up_to_what_the_devices_occupy() {
        let check = |swapped: u64, memory: u64, jobs: &[u64], expected: &[u64]| {
            let disks =
                RamDisks { memory: Bytes::mib(memory), stored: Bytes::mib(swapped), swapped: Bytes::mib(swapped), ..RamDisks::default() };
            let shares: Vec<_> = jobs.iter().map(|&job| disks.share_of(Bytes::mib(job)).memory.0 >> 20).collect();
            assert_eq!(shares, expected, "{jobs:?} of {swapped}");
        };
        check(100, 30, &[50, 30, 20], &[15, 9, 6]);
        check(100, 30, &[101], &[30]);
        check(0, 0, &[1], &[0]);
        check(0, 30, &[1], &[0]);
        assert_eq!(RamDisks::default().worn_by(Bytes(4096)), Bytes(4096), "without zram, all swap devices wear out");
    }

    #[test]
    fn a_job_on_zram_and_on_a_disk_is_charged_for_the_part_on_zram() {
        let disks = RamDisks { memory: Bytes::mib(10), stored: Bytes::mib(40), swapped: Bytes::mib(80), to_devices: RatioPpm(250_000) };
        assert_eq!(disks.share_of(Bytes::mib(20)), RamDiskShare { memory: Bytes(10 << 18), stored: Bytes::mib(10) });
        assert_eq!(disks.worn_by(Bytes::mib(8)), Bytes::mib(2));
    }
}
