//! Where swap-backed memory may go on this machine, what its return costs, and how much may still be written.
//!
//! What there is, is read from the kernel each period. Which tier a job gets is decided by `policy::tiering` and set
//! through the job's own cgroup files, all of them on the undo list.

use std::time::{Duration, Instant};

use config::{Config, Tier as Wanted};
use kernel::block::{self, BlockDevice, BlockStat};
use kernel::swap::SwapArea;
use kernel::{Roots, vmstat};
use policy::endurance::{self, Bucket};
use policy::tiering::{Choice, Tier, Why};
use serde::Serialize;
use units::{Bytes, Pages};

use crate::job::pressed::Costs;

mod failing;

use failing::Failing;

/// What a page from a device costs before one was ever read: the slower of what fleets of flash take (001 figure 5).
const DEVICE_US: u32 = 1_000;

/// What a page from the compressed pool costs before one was measured (001 section 2.5: 40 us at the 90th percentile).
const ZSWAP_US: u32 = 40;

/// What the machine offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// zswap is on, or swap is a compressed RAM disk.
    pub compressed: bool,
    /// There is a swap device that is no compressed RAM disk, none fails, and bytes may be written to it at all.
    pub device: bool,
    /// The kernel moves what is old in zswap on to the device where it finds nothing easier to reclaim (zswap's shrinker,
    /// Linux 6.8).
    pub shrinker: bool,
}

/// The machine's tiers.
#[derive(Debug)]
pub struct Tiers {
    /// What there is.
    pub offer: Offer,
    params: endurance::Params,
    writes: Bucket,
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

/// What people are shown of the tiers.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct TiersView {
    /// What there is.
    #[serde(flatten)]
    pub offer: Offer,
    /// Mean time of a read from the swap device, microseconds; `None` before the first.
    pub swap_read_us: Option<u32>,
    /// Mean time of a read from other disks, microseconds; `None` before the first.
    pub file_read_us: Option<u32>,
    /// Time that a page from zswap takes, its fault included, microseconds; `None` before the first sample.
    pub zswap_read_us: Option<u32>,
    /// Bytes that may be written to swap devices now.
    pub writable_bytes: Bytes,
    /// Bytes that were written to swap devices since the agent started, by anyone.
    pub written_bytes: Bytes,
    /// Requests to swap devices that failed since the agent started, as far as the kernel has logged them.
    pub swap_errors: u64,
}

/// Mean read latency of some devices, smoothed.
#[derive(Debug, Default)]
struct Latency {
    devices: Vec<(BlockDevice, Option<BlockStat>)>,
    mean_us: Option<u32>,
}

/// Each new measurement counts for a quarter.
const SMOOTHING: u64 = 4;

impl Latency {
    /// Watches these devices; readings of those that stay are kept.
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

    /// Takes in what was read since the last call. A device that has vanished has no part in it.
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
    /// Knows nothing yet but how much may be written; `writes` is what an earlier agent left of that.
    #[must_use]
    pub fn new(roots: &Roots, config: &Config, writes: Option<Bucket>, now: Duration) -> Self {
        let params = config.swap.endurance();
        Self {
            offer: Offer::default(),
            params,
            writes: writes.unwrap_or_else(|| Bucket::full(&params, units::millis(now))),
            swap: Latency::default(),
            files: Latency::default(),
            failing: Failing::new(roots),
            zswap_us: None,
            fault_us: fault_us(),
            written: None,
            written_bytes: Bytes::ZERO,
        }
    }

    /// Looks anew. Returns what is wrong with a swap area's device, in words.
    pub fn read(&mut self, roots: &Roots, areas: &[SwapArea], zswap: bool, shrinker: bool, now: Duration) -> Vec<String> {
        self.failing.read(roots);
        let mut troubles = Vec::new();
        let (mut devices, mut compressed_ram) = (Vec::new(), 0);
        for area in areas {
            match BlockDevice::under_swap(roots, area) {
                Ok(device) if device.is_compressed_ram().unwrap_or(false) => compressed_ram += 1,
                Ok(device) => devices.push(device),
                Err(error) => troubles.push(format!("swap {}: {error}", area.name)),
            }
        }
        self.failing.keep(&devices);
        troubles.extend(self.failing.troubles());
        self.offer = Offer {
            compressed: (zswap && !areas.is_empty()) || compressed_ram > 0,
            device: !devices.is_empty() && self.failing.is_empty() && self.params.bytes_per_day > Bytes::ZERO,
            shrinker: shrinker && zswap,
        };
        let swapping: Vec<&str> = devices.iter().map(BlockDevice::disk_name).collect();
        let mut files = block::disks(roots).unwrap_or_default();
        files.retain(|disk| !swapping.contains(&disk.name()));
        self.files.watch(files);
        self.swap.watch(devices);
        self.swap.measure();
        self.files.measure();
        self.note_writes(roots, now);
        troubles
    }

    /// Takes what was written to swap devices since the last call, by anyone, from what may be written.
    pub fn note_writes(&mut self, roots: &Roots, now: Duration) {
        let Ok(Some(written)) = vmstat::read(roots).map(|stat| stat.pswpout) else { return };
        let pages = self.written.replace(written).map_or(0, |before| written.saturating_sub(before));
        let bytes = Pages(pages).to_bytes(kernel::page_size());
        self.written_bytes += bytes;
        self.writes.spend(&self.params, units::millis(now), bytes);
    }

    /// Takes in how long a page took to decompress. Its return costs a page fault besides.
    pub fn decompressed_in(&mut self, us: u32) {
        self.zswap_us = Some(us.saturating_add(self.fault_us));
    }

    /// What may still be written to swap devices now.
    #[must_use]
    pub fn writable(&self, now: Duration) -> Bytes {
        self.writes.available(&self.params, units::millis(now))
    }

    /// The bucket of writes, for the history.
    #[must_use]
    pub fn writes(&self) -> Bucket {
        self.writes
    }

    /// Mean time of a read from the swap device; `None` before the first.
    #[must_use]
    pub fn swap_us(&self) -> Option<u32> {
        self.swap.mean_us
    }

    /// Time that a page from zswap takes; `None` before the first sample.
    #[must_use]
    pub fn zswap_us(&self) -> Option<u32> {
        self.zswap_us
    }

    /// What the return of a page costs a job whose memory goes to `tier`.
    #[must_use]
    pub fn costs(&self, tier: Option<Tier>) -> Costs {
        let device = self.swap.mean_us.unwrap_or(DEVICE_US);
        let zswap = self.zswap_us.unwrap_or(ZSWAP_US);
        let (anon_us, unbooked_us) = match tier {
            Some(Tier::Swap) => (device, 0),
            // Of both tiers mostly what is warm comes back, and so compressed.
            None | Some(Tier::Zswap | Tier::Both) => (zswap, zswap),
        };
        Costs { anon_us, file_us: self.files.mean_us.unwrap_or(DEVICE_US), unbooked_us }
    }

    /// A copy for people.
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

/// Pages that are touched to learn what a fault costs.
const FAULTS: usize = 256;

/// Mean time of a page fault without I/O on this machine, in microseconds, rounded up: memory fresh from the kernel is
/// touched page by page.
fn fault_us() -> u32 {
    let page = usize::try_from(kernel::page_size().bytes()).unwrap_or(4096);
    let mut fresh = vec![0u8; FAULTS * page];
    let start = Instant::now();
    for at in (0..fresh.len()).step_by(page) {
        fresh[at] = 1;
    }
    let taken = start.elapsed();
    std::hint::black_box(&fresh);
    u32::try_from(taken.as_micros().div_ceil(FAULTS as u128)).unwrap_or(u32::MAX)
}

/// Where a job's swap-backed memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Placed {
    /// The choice.
    pub choice: Choice,
    /// Whether the operator made it.
    pub by_operator: bool,
}

impl Placed {
    /// The tier, if there is one.
    #[must_use]
    pub fn tier(&self) -> Option<Tier> {
        match self.choice {
            Choice::Use { tier, .. } => Some(tier),
            Choice::Hold { .. } => None,
        }
    }
}

/// The operator's own choice, if it is one.
#[must_use]
pub fn wanted(wanted: Wanted) -> Option<Tier> {
    match wanted {
        Wanted::Auto => None,
        Wanted::Zswap => Some(Tier::Zswap),
        Wanted::Swap => Some(Tier::Swap),
        Wanted::Both => Some(Tier::Both),
    }
}

/// A tier's name, and why it was chosen, in words.
#[must_use]
pub fn words(placed: Option<Placed>) -> (Option<&'static str>, &'static str) {
    let Some(placed) = placed else { return (None, "not chosen yet") };
    let name = placed.tier().map(|tier| match tier {
        Tier::Zswap => "zswap",
        Tier::Swap => "swap",
        Tier::Both => "both",
    });
    let (Choice::Use { why, .. } | Choice::Hold { why }) = placed.choice;
    let why = match why {
        Why::Compresses => "its cold pages compress well",
        Why::DoesNotCompress => "its cold pages do not compress well",
        Why::WarmerCompressedColderWritten => "its cold pages compress, and the oldest go on to the device when zswap has to make room",
        Why::OnlyTier if placed.by_operator => "chosen by the operator",
        Why::OnlyTier => "there is no other tier",
        Why::TooSlow => "the device is slower than its class accepts",
        Why::WritesSpent => "what may be written to the device is spent for now",
        Why::NoShrinker => {
            "chosen by the operator; zswap's shrinker is off, so that nothing is written until the pool is full (zswap.shrinker)"
        }
        Why::NotSampled => "its pages have not been sampled yet",
        Why::NoDevice => "there is no swap device to write to (see `thermocline doctor`)",
        Why::NoTier => "there is no far memory for it (see `thermocline doctor`)",
    };
    (name, why)
}
