//! The tiers of this machine: which exist, what the promotion of a page costs, and how much may still be written to devices.
//!
//! They are read from the kernel each period. Which tier a job has is decided by [`crate::controllers::tiering`].

use std::time::Duration;

use config::Config;
use daemon::Clock;
use kernel::block::{self, BlockDevice, BlockStat};
use kernel::swap::SwapArea;
use kernel::{Roots, vmstat};
use policy::endurance::Bucket;
use policy::tiering::Tier;
use serde::Serialize;
use units::{Bytes, Pages};

use crate::controllers::tiering::endurance::{EnduranceStart, WriteBudget, WritesRecord};
use crate::now::Now;

mod failing;

use failing::Failing;

/// Latency of a page from a device before one was measured, in microseconds: the slower end of flash devices (TMO figure 5).
const DEVICE_US: u32 = 1_000;

/// Latency of a page from the compressed pool before one was measured, in microseconds (TMO section 2.5: 40 at the 90th
/// percentile).
const ZSWAP_US: u32 = 40;

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

/// The tiers that the machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// zswap is on, or swap is a compressed RAM disk.
    pub compressed: bool,
    /// There is a swap device that is no compressed RAM disk, no swap device fails, and the write budget is not zero.
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
    swap: Latency,
    files: Latency,
    failing: Failing,
    zswap_us: Option<u32>,
    fault_us: u32,
    /// Pages written to swap devices since boot, when last read.
    written: Option<u64>,
    /// Bytes written to swap devices since the agent started.
    written_bytes: Bytes,
}

/// The tiers as status reports them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct TiersView {
    /// Which exist.
    #[serde(flatten)]
    pub offer: Offer,
    /// Mean latency of a read from the swap device, in microseconds; `None` before the first read.
    pub swap_read_us: Option<u32>,
    /// Mean latency of a read from other disks, in microseconds; `None` before the first read.
    pub file_read_us: Option<u32>,
    /// Latency of a page from zswap including its fault, in microseconds; `None` before the first sample.
    pub zswap_read_us: Option<u32>,
    /// Bytes that may be written to swap devices now.
    pub writable_bytes: Bytes,
    /// Bytes written to swap devices since the agent started, by any process.
    pub written_bytes: Bytes,
    /// Failed requests to swap devices since the agent started, as far as the kernel logged them.
    pub swap_errors: u64,
}

/// Mean read latency of some devices, smoothed.
#[derive(Debug, Default)]
struct Latency {
    devices: Vec<(BlockDevice, Option<BlockStat>)>,
    mean_us: Option<u32>,
}

/// A new measurement has a weight of one part in this many.
const SMOOTHING: u64 = 4;

impl Latency {
    /// Measures these devices from now on; earlier readings of devices that remain are kept.
    fn watch(&mut self, devices: Vec<BlockDevice>) {
        let mut before = std::mem::take(&mut self.devices);
        self.devices = devices
            .into_iter()
            .map(|device| {
                let known = before.iter().position(|(old, _)| old.name() == device.name());
                let stat = known.and_then(|at| before.swap_remove(at).1);
                (device, stat)
            })
            .collect();
    }

    /// Measures the reads since the last call. Devices that no longer exist are skipped.
    fn measure(&mut self) {
        for (device, before) in &mut self.devices {
            let Ok(now) = device.stat() else { continue };
            let mean = before.replace(now).and_then(|before| now.mean_read_us_since(&before));
            if let Some(us) = mean {
                let us = self.mean_us.map_or(us, |mean| (u64::from(mean) * (SMOOTHING - 1) + us) / SMOOTHING);
                self.mean_us = Some(u32::try_from(us).unwrap_or(u32::MAX));
            }
        }
    }
}

impl Tiers {
    /// Tiers that are not read yet; `writes` is the write budget that an earlier agent stored.
    #[must_use]
    pub fn new(roots: &Roots, config: &Config, writes: Option<Bucket>, clock: &Clock) -> Self {
        Self {
            offer: Offer::default(),
            writes: WriteBudget::new(config.swap.endurance(), writes, units::millis(clock.now())),
            swap: Latency::default(),
            files: Latency::default(),
            failing: Failing::new(roots),
            zswap_us: None,
            fault_us: fault_us(clock),
            written: None,
            written_bytes: Bytes::ZERO,
        }
    }

    /// Reads the tiers. Returns errors of swap devices, in words.
    pub fn read(&mut self, roots: &Roots, areas: &[SwapArea], zswap: bool, shrinker: bool, now: Duration) -> Vec<String> {
        self.failing.read(roots);
        let mut errors = Vec::new();
        let (mut devices, mut compressed_ram) = (Vec::new(), 0);
        for area in areas {
            match BlockDevice::under_swap(roots, area) {
                Ok(device) if device.is_compressed_ram().unwrap_or(false) => compressed_ram += 1,
                Ok(device) => devices.push(device),
                Err(error) => errors.push(format!("swap {}: {error}", area.name)),
            }
        }
        self.failing.keep(&devices);
        errors.extend(self.failing.errors());
        self.offer = Offer {
            compressed: (zswap && !areas.is_empty()) || compressed_ram > 0,
            device: !devices.is_empty() && self.failing.is_empty() && self.writes.params().bytes_per_day > Bytes::ZERO,
            shrinker: shrinker && zswap,
        };
        let swapping: Vec<&str> = devices.iter().map(BlockDevice::disk_name).collect();
        let mut files = block::disks(roots).unwrap_or_default();
        files.retain(|disk| !swapping.contains(&disk.name()));
        self.files.watch(files);
        self.swap.watch(devices);
        self.swap.measure();
        self.files.measure();
        self.charge_writes(roots, now);
        errors
    }

    /// Charges what any process wrote to swap devices since the last call.
    pub fn charge_writes(&mut self, roots: &Roots, now: Duration) {
        let Ok(Some(written)) = vmstat::read(roots).map(|stat| stat.pswpout) else { return };
        let pages = self.written.replace(written).map_or(0, |before| written.saturating_sub(before));
        let bytes = Pages(pages).to_bytes(kernel::page_size());
        self.written_bytes += bytes;
        self.writes.charge(units::millis(now), bytes);
    }

    /// Notes how long a page took to decompress. Its promotion costs a page fault in addition.
    pub fn decompressed_in(&mut self, us: u32) {
        self.zswap_us = Some(us.saturating_add(self.fault_us));
    }

    /// Bytes that may be written to swap devices now.
    #[must_use]
    pub fn writable(&self, now: Duration) -> Bytes {
        self.writes.available(units::millis(now))
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

    /// Mean latency of a read from the swap device; `None` before the first read.
    #[must_use]
    pub fn swap_us(&self) -> Option<u32> {
        self.swap.mean_us
    }

    /// Latency of a page from zswap; `None` before the first sample.
    #[must_use]
    pub fn zswap_us(&self) -> Option<u32> {
        self.zswap_us
    }

    /// What the promotion of a page costs a job whose memory goes to `tier`.
    #[must_use]
    pub fn costs(&self, tier: Option<Tier>) -> PageCosts {
        let device = self.swap.mean_us.unwrap_or(DEVICE_US);
        let zswap = self.zswap_us.unwrap_or(ZSWAP_US);
        let (anon_us, uncharged_us) = match tier {
            Some(Tier::Swap) => (device, 0),
            // Of both tiers mostly warm pages are promoted, which are still compressed.
            None | Some(Tier::Zswap | Tier::Both) => (zswap, zswap),
        };
        PageCosts { anon_us, file_us: self.files.mean_us.unwrap_or(DEVICE_US), uncharged_us }
    }

    /// A copy for status.
    #[must_use]
    pub fn view(&self, now: Duration) -> TiersView {
        TiersView {
            offer: self.offer,
            swap_read_us: self.swap.mean_us,
            file_read_us: self.files.mean_us,
            zswap_read_us: self.zswap_us,
            writable_bytes: self.writable(now),
            written_bytes: self.written_bytes,
            swap_errors: self.failing.count(),
        }
    }
}

/// Pages that are touched to measure a fault.
const FAULTS: usize = 256;

/// Mean duration of a page fault without I/O on this machine, in microseconds, rounded up: newly allocated memory is touched page
/// by page.
fn fault_us(clock: &Clock) -> u32 {
    let page = usize::try_from(kernel::page_size().bytes()).unwrap_or(4096);
    let mut fresh = vec![0u8; FAULTS * page];
    let start = clock.now();
    for at in (0..fresh.len()).step_by(page) {
        fresh[at] = 1;
    }
    let taken = clock.now().saturating_sub(start);
    std::hint::black_box(&fresh);
    u32::try_from(taken.as_micros().div_ceil(FAULTS as u128)).unwrap_or(u32::MAX)
}
