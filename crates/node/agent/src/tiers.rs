//! The tiers of this machine: which exist, what the promotion of a page costs, and how much may still be written to devices.
//!
//! They are read from the kernel each period. Which tier a job has is decided by [`crate::controllers::tiering`].

use std::time::Duration;

use config::Config;
use daemon::Clock;
use kernel::block::{self, BlockDevice};
use kernel::{Roots, vmstat};
use policy::endurance::Bucket;
use policy::tiering::Tier;
use policy::tiering::row::{Accounting, Medium, Placing, Row, RowId, reachable};
use serde::Serialize;
use units::{Bytes, Millis, Pages};

use crate::controllers::tiering::endurance::{EnduranceStart, WriteBudget, WritesRecord};
use crate::machine::Machine;
use crate::now::Now;
use crate::ram_disks::RamDisks;

mod areas;
mod compaction;
mod failing;
mod latency;
mod returns;

use areas::{Area, Areas};
use compaction::Compaction;
use failing::Failing;
use latency::{Latency, fault_on_new_memory};
use returns::Returns;
pub use returns::{Fault, FaultsView};

/// Latency of a page from a device before one was measured, in microseconds: the slower end of flash devices (TMO figure 5).
pub(crate) const DEVICE_US: u32 = 1_000;

/// Latency of a page from the compressed pool before one was measured, in microseconds (TMO section 2.5: 40 at the 90th
/// percentile).
pub(crate) const ZSWAP_US: u32 = 40;

/// Mean wait for the promotion of one page, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCosts {
    /// From the job's tier.
    pub anon_us: u32,
    /// From the file systems' devices.
    pub file_us: u32,
    /// Of `anon_us`, what the kernel does not charge to the job's pressure files. A wait for a device is charged as I/O, whatever
    /// the page; a wait for a page from zswap only if the page belonged to the working set when it was swapped out
    /// (`mm/memory.c`, `mm/workingset.c`).
    pub uncharged_us: u32,
}

/// The name of zswap's row.
const ZSWAP: &str = "zswap";

/// The tiers that the machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// zswap is on, or the machine swaps to zram.
    pub compressed: bool,
    /// There is a swap device other than zram, no swap device fails, and the write budget is not zero.
    pub device: bool,
    /// The kernel writes the oldest pages of zswap to the device if it finds nothing easier to reclaim (zswap's shrinker, Linux
    /// 6.8).
    pub shrinker: bool,
}

/// The machine's tiers.
#[derive(Debug)]
pub struct Tiers {
    /// Which exist.
    pub offer: Offer,
    writes: WriteBudget,
    areas: Areas,
    may_write: bool,
    /// zswap's row without what changes between two readings; `None` if it is off.
    zswap: Option<Row>,
    ram_disks: RamDisks,
    files: Latency,
    failing: Failing,
    compaction: Compaction,
    zswap_us: Option<u32>,
    /// Page faults on swapped-out memory.
    returns: Returns,
    /// Pages written to swap devices since boot, when last read.
    written: Option<u64>,
    /// Bytes written to swap devices since the agent started.
    written_bytes: Bytes,
}

/// The tiers as status reports them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TiersView {
    /// Which exist.
    #[serde(flatten)]
    pub offer: Offer,
    /// Each of them, in the order in which the kernel fills them.
    pub rows: Vec<RowView>,
    /// What the zram devices hold.
    #[serde(flatten)]
    pub ram_disks: RamDisks,
    /// Mean latency of a read from the swap device, in microseconds; `None` before the first read.
    pub swap_read_us: Option<u32>,
    /// Mean latency of a read from other disks, in microseconds; `None` before the first read.
    pub file_read_us: Option<u32>,
    /// Latency of a page from zswap including its fault, in microseconds; `None` before the first sample.
    pub zswap_read_us: Option<u32>,
    /// Durations of page faults on swapped-out memory, measured on pages of the agent, by where the pages were.
    pub faults: FaultsView,
    /// Bytes that may be written to swap devices now.
    pub writable_bytes: Bytes,
    /// Bytes written to swap devices since the agent started, by any process.
    pub written_bytes: Bytes,
    /// Failed requests to swap devices since the agent started, as far as the kernel logged them.
    pub swap_errors: u64,
}

/// One tier as status reports it.
#[derive(Clone, Debug, Serialize)]
pub struct RowView {
    /// `zswap`, or the kernel's name of the swap device.
    pub name: String,
    /// What it stores pages on.
    pub medium: Medium,
    /// Priority of the swap area; `None` for zswap, which is in front of all areas.
    pub priority: Option<i32>,
    /// Latency of a page from it, in microseconds; `None` before the first measurement.
    pub read_us: Option<u32>,
    /// Free space; `None` if it has no limit of its own.
    pub free_bytes: Option<Bytes>,
    /// DRAM that it occupies.
    pub memory_bytes: Bytes,
    /// Bytes that may be written to it now; `None` if writes do not wear it out.
    pub writable_bytes: Option<Bytes>,
    /// The tier that it writes its oldest pages back to.
    pub writes_back: Option<String>,
}

/// Whether the kernel's name of a disk is that of a RAM disk (`drivers/block/brd.c`, `drivers/block/zram`).
fn is_in_memory(disk: &str) -> bool {
    ["ram", "zram"].iter().any(|kind| disk.strip_prefix(kind).is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit())))
}

impl Tiers {
    /// Tiers that are not read yet; `writes` is the write budget that an earlier agent stored.
    #[must_use]
    pub fn new(roots: &Roots, config: &Config, writes: Option<Bucket>, clock: &Clock) -> Self {
        Self {
            offer: Offer::default(),
            writes: WriteBudget::new(config.swap.endurance(), writes, Millis(units::millis(clock.now()))),
            areas: Areas::default(),
            may_write: false,
            zswap: None,
            ram_disks: RamDisks::default(),
            files: Latency::default(),
            failing: Failing::new(roots),
            compaction: Compaction::default(),
            zswap_us: None,
            returns: Returns::new(fault_on_new_memory(clock)),
            written: None,
            written_bytes: Bytes::ZERO,
        }
    }

    /// Reads the tiers of a machine that was just read. Returns errors of swap devices, in words.
    pub fn read(&mut self, roots: &Roots, machine: &Machine, now: Duration) -> Vec<String> {
        self.failing.read(roots);
        let mut errors = self.areas.read(roots, &machine.areas);
        let devices: Vec<BlockDevice> = self.areas.devices().cloned().collect();
        self.failing.keep(&devices);
        errors.extend(self.failing.errors());
        self.may_write = self.failing.is_empty() && self.writes.params().bytes_per_day > Bytes::ZERO;
        self.zswap = (machine.zswap_enabled && !machine.areas.is_empty()).then(zswap_row).flatten();
        let shrinker = machine.shrinker_enabled && machine.zswap_enabled;
        if shrinker && let Some(zswap) = &mut self.zswap {
            let areas: Vec<Row> = self.areas.usable(self.may_write).map(|area| row_of(area, Bytes::ZERO, None)).collect();
            zswap.writes_back = reachable(&areas).first().map(|next| next.id);
        }
        self.offer = Offer {
            compressed: self.zswap.is_some() || self.areas.all().iter().any(|area| area.zram.is_some()),
            device: self.may_write && !devices.is_empty(),
            shrinker,
        };
        let swapping: Vec<&str> = devices.iter().map(BlockDevice::disk_name).collect();
        let mut files = block::disks(roots).unwrap_or_default();
        files.retain(|disk| !swapping.contains(&disk.name()));
        self.files.watch(files);
        self.files.measure();
        self.charge_writes(roots, now);
        self.ram_disks = self.areas.ram_disks(machine.stored_bytes);
        errors
    }

    /// Compacts zram devices whose memory is fragmented. Returns what was done, in words.
    pub fn compact(&mut self, now: Duration) -> Vec<String> {
        self.compaction.run(&self.areas, now)
    }

    /// The table of tiers now.
    #[must_use]
    pub fn rows(&self, now: Duration) -> Vec<Row> {
        let zswap = self.zswap.map(|row| Row { latency_us: self.zswap_us, ..row });
        let areas = self.areas.usable(self.may_write).map(|area| row_of(area, self.writable(now), self.zswap_us));
        zswap.into_iter().chain(areas).collect()
    }

    /// Whether memory of a tier is written to a device that wears out.
    #[must_use]
    pub fn wears(&self, tier: Tier) -> bool {
        self.areas.usable(self.may_write).any(|area| area.zram.is_none() && tier.has(area.id))
    }

    /// Whether all swap areas are on devices outside of memory.
    #[must_use]
    pub fn all_on_devices(&self) -> bool {
        let in_memory = self.areas.all().iter().any(|area| area.zram.is_some());
        self.offer.device && !in_memory && !self.areas.devices().any(|device| is_in_memory(device.disk_name()))
    }

    /// What the zram devices hold.
    #[must_use]
    pub fn ram_disks(&self) -> &RamDisks {
        &self.ram_disks
    }

    /// The algorithm of the first zram device; `None` without one.
    #[must_use]
    pub fn zram_algorithm(&self) -> Option<String> {
        self.areas.all().iter().find_map(|area| area.zram.as_ref()?.algorithm().ok())
    }

    /// Charges what any process wrote to swap devices since the last call.
    pub fn charge_writes(&mut self, roots: &Roots, now: Duration) {
        let Ok(Some(written)) = vmstat::read(roots).map(|stat| stat.pswpout) else { return };
        let pages = self.written.replace(written).map_or(0, |before| written.saturating_sub(before));
        // `pswpout` counts writes to zram as well, which wear out nothing.
        let bytes = self.areas.worn_by(Pages(pages).to_bytes(kernel::page_size()));
        self.ram_disks.to_devices = self.areas.to_devices();
        self.written_bytes += bytes;
        self.writes.charge(Millis(units::millis(now)), bytes);
    }

    /// Notes how long a page took to decompress. Its promotion costs a page fault in addition.
    pub fn decompressed_in(&mut self, us: u32) {
        self.zswap_us = Some(us.saturating_add(self.fault_us()));
    }

    /// Measures page faults on swapped-out memory, if pages may go anywhere. The kernel counts delays of tasks.
    pub fn measure_fault(&mut self, roots: &Roots, clock: &Clock) {
        if self.offer.compressed || self.offer.device {
            self.returns.measure(roots, clock);
        }
    }

    /// A page fault on swapped-out memory; until it was measured, one on new memory.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.returns.fault()
    }

    /// Its part beside the read in microseconds, rounded up.
    fn fault_us(&self) -> u32 {
        u32::try_from(self.returns.fault().beside.as_nanos().div_ceil(1000)).unwrap_or(u32::MAX)
    }

    /// Bytes that may be written to swap devices now.
    #[must_use]
    pub fn writable(&self, now: Duration) -> Bytes {
        self.writes.available(Millis(units::millis(now)))
    }

    /// The journal's record of the write budget.
    pub fn record_writes(&mut self, now: Now) -> WritesRecord {
        let available = self.writable(now.since_boot);
        WritesRecord { unix_ms: now.unix_ms, now_ms: now.boot_ms(), charged: self.writes.take_charges(), available }
    }

    /// The write budget as of the last record.
    #[must_use]
    pub fn start(&self) -> EnduranceStart {
        self.writes.start()
    }

    /// The write budget, for the history.
    #[must_use]
    pub fn writes(&self) -> Bucket {
        self.writes.bucket()
    }

    /// What the promotion of a page costs a job whose memory goes to `tier`.
    #[must_use]
    pub fn costs(&self, tier: Option<Tier>) -> PageCosts {
        let compressed = self.zswap_us.unwrap_or(ZSWAP_US);
        let (anon_us, uncharged_us) = match tier {
            Some(tier) if tier.accounting == Accounting::SwapCost => (self.device_us(Some(tier.first)).unwrap_or(DEVICE_US), 0),
            // If the row writes back, mostly warm pages are promoted, which are still compressed.
            _ => (compressed, compressed),
        };
        PageCosts { anon_us, file_us: self.files.mean_us.unwrap_or(DEVICE_US), uncharged_us }
    }

    /// What the promotion of a page costs from memory that is compressed, and from a device, in microseconds.
    #[must_use]
    pub fn latencies(&self) -> [u32; 2] {
        [self.zswap_us.unwrap_or(ZSWAP_US), self.device_us(None).unwrap_or(DEVICE_US)]
    }

    /// Mean latency of a read from this device, or from the first one that was measured; `None` before the first read.
    fn device_us(&self, id: Option<RowId>) -> Option<u32> {
        self.areas.all().iter().filter(|area| id.is_none_or(|id| area.id == id)).find_map(|area| area.latency.mean_us)
    }

    /// A copy for status; `pool` is the DRAM that zswap occupies.
    #[must_use]
    pub fn view(&self, pool: Bytes, now: Duration) -> TiersView {
        TiersView {
            offer: self.offer,
            rows: self.row_views(pool, now),
            ram_disks: self.ram_disks,
            swap_read_us: self.device_us(None),
            file_read_us: self.files.mean_us,
            zswap_read_us: self.zswap_us,
            faults: self.returns.view(),
            writable_bytes: self.writable(now),
            written_bytes: self.written_bytes,
            swap_errors: self.failing.count(),
        }
    }

    /// All rows, usable or not.
    fn row_views(&self, pool: Bytes, now: Duration) -> Vec<RowView> {
        let writable = if self.may_write { self.writable(now) } else { Bytes::ZERO };
        let zswap = self.zswap.map(|row| (Row { latency_us: self.zswap_us, ..row }, pool));
        let areas = self.areas.all().iter().map(|area| (row_of(area, writable, self.zswap_us), area.memory));
        let view = |(row, memory_bytes): (Row, Bytes)| RowView {
            name: row.id.to_string(),
            medium: row.medium,
            priority: if let Placing::Priority(priority) = row.placing { Some(priority) } else { None },
            read_us: row.latency_us,
            free_bytes: row.free,
            memory_bytes,
            writable_bytes: row.endurance,
            writes_back: row.writes_back.map(|id| id.to_string()),
        };
        zswap.into_iter().chain(areas).map(view).collect()
    }
}

/// zswap's row: it is in front of the swap areas, and full when the machine says so.
fn zswap_row() -> Option<Row> {
    Some(Row {
        id: ZSWAP.parse().ok()?,
        medium: Medium::CompressedDram,
        latency_us: None,
        free: None,
        endurance: None,
        accounting: Accounting::Compressed,
        writes_back: None,
        placing: Placing::Cgroup,
    })
}

/// The row of a swap area, if `writable` bytes may be written to devices and a page is decompressed in `decompressed_us`.
fn row_of(area: &Area, writable: Bytes, decompressed_us: Option<u32>) -> Row {
    let (free, placing) = (Some(area.free), Placing::Priority(area.priority));
    let row = |medium, latency_us, endurance, accounting| Row {
        id: area.id,
        medium,
        latency_us,
        free,
        endurance,
        accounting,
        writes_back: None,
        placing,
    };
    if area.zram.is_some() {
        row(Medium::CompressedDram, decompressed_us, None, Accounting::Compressed)
    } else {
        row(Medium::Device, area.latency.mean_us, Some(writable), Accounting::SwapCost)
    }
}
