//! Latencies: of reads from block devices, and of a page fault.

use std::time::Duration;

use daemon::Clock;
use kernel::block::{BlockDevice, BlockStat};

/// A new measurement has a weight of one part in this many.
const SMOOTHING: u64 = 4;

/// Pages that are touched to measure a fault.
const FAULTS: usize = 256;

/// Mean read latency of some devices, smoothed.
#[derive(Debug, Default)]
pub(super) struct Latency {
    devices: Vec<(BlockDevice, Option<BlockStat>)>,
    /// In microseconds; `None` before the first read.
    pub(super) mean_us: Option<u32>,
}

impl Latency {
    /// The devices that are measured.
    pub(super) fn devices(&self) -> impl Iterator<Item = &BlockDevice> {
        self.devices.iter().map(|(device, _)| device)
    }

    /// Measures these devices from now on; earlier readings of devices that remain are kept.
    pub(super) fn watch(&mut self, devices: Vec<BlockDevice>) {
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
    pub(super) fn measure(&mut self) {
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

/// Mean duration of a page fault without I/O on this machine: newly allocated memory is touched page by page.
pub(super) fn fault_on_new_memory(clock: &Clock) -> Duration {
    let page = usize::try_from(kernel::page_size().bytes()).unwrap_or(4096);
    let mut fresh = vec![0u8; FAULTS * page];
    let start = clock.now();
    for at in (0..fresh.len()).step_by(page) {
        fresh[at] = 1;
    }
    let taken = clock.now().saturating_sub(start);
    std::hint::black_box(&fresh);
    taken / u32::try_from(FAULTS).unwrap_or(u32::MAX)
}
