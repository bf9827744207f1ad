//! The machine's memory: its size, the compressed pool, and whether far memory has free space.

use kernel::block::BlockDevice;
use kernel::cgroup::{Cgroup, CgroupRoot};
use kernel::swap::SwapArea;
use kernel::vmstat::{self, VmStat};
use kernel::zswap::Zswap;
use kernel::{Roots, meminfo, swap, zoneinfo};
use serde::Serialize;
use units::{Bytes, Pages, RatioPpm};

use crate::killers::Killers;

/// Below this share of available memory a machine is short of it.
const SHORT: RatioPpm = RatioPpm(100_000);

/// What the kernel keeps for each page in zswap besides the pool, on 6.12: `struct zswap_entry` (56 bytes), its share of a node of
/// the tree (9 bytes), zsmalloc's handle (8 bytes), and its share of `struct zspage`.
const ENTRY_BYTES: Bytes = Bytes(80);

/// Why nothing more is compressed while the pool is full.
const POOL_FULL: &str = "zswap's pool is full; raise zswap.max_pool, or max_pool_percent of zswap";

/// Two counters of the kernel for the same quantity may differ by this much, because they are not read at the same time.
const GAP_REPORTED: f64 = 0.02;

/// What the kernel reclaimed by itself since boot. Memory that is offloaded before the machine is short of it need not be reclaimed by
/// tasks that wait for memory (SDFM section 3.2): while the agent works, direct reclaims should not grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReclaimByKernel {
    /// Allocations that had to reclaim memory themselves.
    pub direct_reclaims: u64,
    /// The same at the agent's first reading.
    pub direct_reclaims_at_start: u64,
    /// Memory that they freed.
    pub direct_bytes: Bytes,
    /// Memory that kswapd freed.
    pub kswapd_bytes: Bytes,
    /// Pages that zswap stored, by requests of the agent too.
    #[serde(skip)]
    pub stored_pages: u64,
}

impl ReclaimByKernel {
    fn of(stat: &VmStat, before: Option<Self>) -> Self {
        let bytes = |pages: Option<u64>| Pages(pages.unwrap_or(0)).to_bytes(kernel::page_size());
        let direct_reclaims = stat.allocstall.unwrap_or(0);
        Self {
            direct_reclaims,
            direct_reclaims_at_start: before.map_or(direct_reclaims, |before| before.direct_reclaims_at_start),
            direct_bytes: bytes(stat.pgsteal_direct),
            kswapd_bytes: bytes(stat.pgsteal_kswapd),
            stored_pages: stat.zswpout.unwrap_or(0),
        }
    }
}

/// The machine, as last read.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// Memory that the kernel manages.
    pub total_bytes: Bytes,
    /// Memory available without swapping.
    pub available_bytes: Bytes,
    /// Free memory above the watermarks at which the kernel reclaims: page cache that was not reclaimed could occupy it.
    pub room_bytes: Bytes,
    /// DRAM that the compressed pool occupies (zswap's own counter), with its allocator's pages.
    pub pool_bytes: Bytes,
    /// DRAM that far memory occupies beyond the compressed bytes that are charged to cgroups, as a share of these.
    pub pool_overhead_ratio: f64,
    /// Uncompressed size of what the pool holds (zswap's own counter).
    pub stored_bytes: Bytes,
    /// Swap space.
    pub swap_total_bytes: Bytes,
    /// Free swap space.
    pub swap_free_bytes: Bytes,
    /// The part of swap that stays free, so that nothing acts because of its end ([`Killers::swap_reserve`]).
    pub swap_reserve_bytes: Bytes,
    /// Whether zswap is on.
    pub zswap_enabled: bool,
    /// Times that the pool was full since boot.
    pub pool_limit_hits: u64,
    /// Pages that zswap refused since boot because they did not shrink.
    pub rejected_pages: u64,
    /// Difference between zswap's count of stored bytes and the root cgroup's `memory.stat`, as a share of the larger.
    pub reconcile_gap_ratio: f64,
    /// Reclaim that the agent did not ask for.
    pub reclaim: ReclaimByKernel,
    /// Why nothing can be offloaded now, with a remedy; `None` if far memory is available.
    pub no_far_memory: Option<&'static str>,
    /// Whether zswap's pool was full since the previous reading, and nothing else prevents offloading.
    pub pool_full: bool,
    /// Errors of the last reading.
    pub troubles: Vec<String>,
    /// The same as `pool_overhead_ratio`.
    #[serde(skip)]
    pub pool_overhead: RatioPpm,
    /// Whether zswap's shrinker writes its oldest pages to the device.
    #[serde(skip)]
    pub shrinker_enabled: bool,
    /// The compressor of zswap.
    #[serde(skip)]
    pub compressor: String,
    /// The swap areas.
    #[serde(skip)]
    pub areas: Vec<SwapArea>,
}

impl Machine {
    /// Reads the machine. A value that cannot be read is kept, and the error is added to `troubles`. `may_write` is whether the write
    /// budget is not zero.
    pub fn read(&mut self, roots: &Roots, cgroups: &CgroupRoot, may_write: bool) {
        let mut troubles = Vec::new();
        // Hits before the first reading are not current.
        let limit_hits = (self.total_bytes > Bytes::ZERO).then_some(self.pool_limit_hits);
        if let Some(info) = noted(meminfo::read(roots), &mut troubles) {
            self.total_bytes = info.total;
            self.available_bytes = info.available;
            // Without the watermarks, all free memory is room.
            self.room_bytes = info.free - zoneinfo::read(roots).map(|zones| zoneinfo::high(&zones)).unwrap_or_default();
        }
        if let Some(stat) = noted(vmstat::read(roots), &mut troubles) {
            self.reclaim = ReclaimByKernel::of(&stat, limit_hits.is_some().then_some(self.reclaim));
        }
        let areas = noted(swap::read(roots), &mut troubles);
        let compressed_swap = areas.iter().flatten().any(|area| is_zram(roots, area));
        if let Some(areas) = areas {
            self.swap_total_bytes = areas.iter().map(|area| area.size).sum();
            let used: Bytes = areas.iter().map(|area| area.used).sum();
            self.swap_free_bytes = self.swap_total_bytes - used;
            self.swap_reserve_bytes = Bytes(Killers::read(roots).swap_reserve().share_of(self.swap_total_bytes.0));
            self.areas = areas;
        }
        // A kernel without zswap is reported by `thermocline doctor`, and as the reason for offloading nothing.
        if let Ok(zswap) = Zswap::probe(roots) {
            if let Some(parameters) = noted(zswap.parameters(), &mut troubles) {
                self.zswap_enabled = parameters.enabled == Some(true);
                self.compressor = parameters.compressor.unwrap_or_default();
                self.shrinker_enabled = parameters.shrinker_enabled == Some(true);
            }
            if let Some(Some(counters)) = noted(zswap.counters(), &mut troubles) {
                self.pool_bytes = counters.pool_total_size.unwrap_or_default();
                self.stored_bytes = counters.stored_pages.unwrap_or_default().to_bytes(kernel::page_size());
                self.pool_limit_hits = counters.pool_limit_hit.unwrap_or(0);
                self.rejected_pages = counters.reject_compress_poor.unwrap_or(0).saturating_add(counters.reject_compress_fail.unwrap_or(0));
                let stat = Cgroup::open(cgroups, "/").and_then(|root| root.stat()).unwrap_or_default();
                self.reconcile_gap_ratio = stat.zswapped.map_or(0.0, |charged| gap(charged, self.stored_bytes));
                let charged = stat.zswap.unwrap_or_default();
                self.pool_overhead = RatioPpm::of((self.far_memory_dram() - charged).0, charged.0).unwrap_or_default();
                self.pool_overhead_ratio = self.pool_overhead.as_f64();
            }
        }
        self.troubles = troubles;
        let nowhere = self.judge(compressed_swap || may_write);
        let full = self.zswap_enabled && limit_hits.is_some_and(|before| self.pool_limit_hits > before);
        self.pool_full = full && nowhere.is_none();
        self.no_far_memory = nowhere.or(self.pool_full.then_some(POOL_FULL));
    }

    /// DRAM that far memory occupies: the pool, and what the kernel keeps for each page of it.
    #[must_use]
    pub fn far_memory_dram(&self) -> Bytes {
        let pages = self.stored_bytes.to_pages(kernel::page_size());
        self.pool_bytes + ENTRY_BYTES.saturating_mul(pages.0)
    }

    /// What compressed copies occupy as a share of their pages' size, with what the kernel keeps for each.
    #[must_use]
    pub fn with_entries(compressed: RatioPpm) -> RatioPpm {
        let entry = RatioPpm::of(ENTRY_BYTES.0, kernel::page_size().bytes()).unwrap_or_default();
        RatioPpm(compressed.0.saturating_add(entry.0))
    }

    /// Whether the machine is short of memory: then jobs of the lowest class are offloaded first.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.available_bytes.0 < SHORT.share_of(self.total_bytes.0)
    }

    /// Why no page can be offloaded; `None` if pages can.
    fn judge(&self, without_zswap: bool) -> Option<&'static str> {
        if self.swap_total_bytes == Bytes::ZERO {
            // zswap caches pages of a swap device: without one, stock kernels cannot store a page.
            return Some("no swap space is configured, and zswap needs some behind it; create a swap file, then swapon");
        }
        if self.swap_free_bytes < self.swap_reserve_bytes {
            return Some("swap space is nearly full; add more");
        }
        if !self.zswap_enabled && !without_zswap {
            return Some("zswap is off, and nothing may be written to a disk; set zswap.manage = true, or a swap.write_budget");
        }
        None
    }

    /// The difference of the kernel's counters, if it is larger than the time between the readings explains.
    #[must_use]
    pub fn gap_to_report(&self) -> Option<f64> {
        Some(self.reconcile_gap_ratio).filter(|&gap| gap > GAP_REPORTED)
    }
}

fn is_zram(roots: &Roots, area: &SwapArea) -> bool {
    BlockDevice::under_swap(roots, area).and_then(|device| device.is_compressed_ram()).unwrap_or(false)
}

fn noted<T>(result: kernel::Result<T>, troubles: &mut Vec<String>) -> Option<T> {
    result.map_err(|error| troubles.push(error.to_string())).ok()
}

fn gap(charged: Bytes, stored: Bytes) -> f64 {
    let larger = charged.max(stored);
    RatioPpm::of(charged.0.abs_diff(stored.0), larger.0).map_or(0.0, RatioPpm::as_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(swap: (u64, u64), zswap_enabled: bool, compressed_swap: bool, expected: Option<&str>) {
        let machine = Machine {
            swap_total_bytes: Bytes::mib(swap.0),
            swap_free_bytes: Bytes::mib(swap.1),
            swap_reserve_bytes: Bytes::mib(100),
            zswap_enabled,
            ..Machine::default()
        };
        let why = machine.judge(compressed_swap);
        assert_eq!(why.and_then(|why| why.split_once([';', ','])).map(|(what, _)| what), expected, "{why:?}");
    }

    #[test]
    fn far_memory_is_full_before_others_act_on_it() {
        check((0, 0), true, false, Some("no swap space is configured"));
        check((1000, 99), true, false, Some("swap space is nearly full"));
        check((1000, 100), true, false, None);
        check((1000, 500), false, false, Some("zswap is off"));
        check((1000, 500), false, true, None);
    }

    #[test]
    fn the_pools_overhead_and_the_room_for_page_cache_are_read() {
        let fake = crate::testing::Machine::new();
        let cgroups = CgroupRoot::probe(&fake.roots).unwrap();
        fake.put("sys/kernel/debug/zswap/pool_total_size", "1140\n");
        fake.put("sys/kernel/debug/zswap/stored_pages", "2\n");
        fake.put("sys/fs/cgroup/memory.stat", "zswap 1000\n");
        fake.put("proc/zoneinfo", "Node 0, zone Normal\n  high 28\n  spanned 256\n  present 256\n  start_pfn: 0\n");
        let mut machine = Machine::default();
        machine.read(&fake.roots, &cgroups, true);
        assert_eq!(machine.pool_overhead, RatioPpm(300_000), "{:?}", machine.troubles);
        assert_eq!(machine.room_bytes, Bytes::kib(512 - 28 * 4));
        // A pool without charged bytes has no job to charge its overhead to.
        fake.put("sys/fs/cgroup/memory.stat", "zswap 0\n");
        machine.read(&fake.roots, &cgroups, true);
        assert_eq!(machine.pool_overhead, RatioPpm(0));
    }

    #[test]
    fn a_compressed_page_costs_an_entry_as_well() {
        // 80 bytes of 4096.
        assert_eq!(Machine::with_entries(RatioPpm(300_000)), RatioPpm(319_531));
        assert_eq!(Machine::with_entries(RatioPpm(u32::MAX)), RatioPpm(u32::MAX));
    }

    #[test]
    fn a_pool_is_full_if_it_was_since_the_last_reading() {
        let fake = crate::testing::Machine::new();
        let cgroups = CgroupRoot::probe(&fake.roots).unwrap();
        let mut machine = Machine::default();
        let mut check = |hits: u64, used_kib: u64, expected: Option<&str>| {
            fake.put("sys/kernel/debug/zswap/pool_limit_hit", &format!("{hits}\n"));
            fake.put("proc/swaps", &format!("Filename Type Size Used Priority\n/dev/vdb partition 1024 {used_kib} -2\n"));
            machine.read(&fake.roots, &cgroups, true);
            let why = machine.no_far_memory.and_then(|why| why.split_once(';')).map(|(what, _)| what);
            assert_eq!((why, machine.pool_full), (expected, expected == Some("zswap's pool is full")), "{hits}, {used_kib}");
        };
        check(3, 0, None);
        check(3, 0, None);
        check(4, 0, Some("zswap's pool is full"));
        check(4, 0, None);
        // The more lasting reason is reported.
        check(5, 1000, Some("swap space is nearly full"));
    }
}
