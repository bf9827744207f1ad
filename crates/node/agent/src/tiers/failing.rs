//! Swap devices on which requests fail, by the kernel's log.
//!
//! No counter shows them: a failed write leaves the page in memory, a failed read loses it and the process that accesses it is
//! killed. While an active swap device fails, nothing is written to any device: the kernel chooses the area of each page.

use std::collections::BTreeMap;

use kernel::Roots;
use kernel::block::BlockDevice;
use kernel::kmsg::{Kmsg, Request};

/// Failed requests of active swap devices.
#[derive(Debug)]
pub(super) struct Failing {
    log: Option<Kmsg>,
    /// Number of logged errors by kernel name of the device and kind of request.
    requests: BTreeMap<(String, Request), u64>,
}

impl Failing {
    /// Counts errors from now on. If the log cannot be read, none are counted; `thermocline doctor` reports that.
    pub(super) fn new(roots: &Roots) -> Self {
        Self { log: Kmsg::open(roots).ok(), requests: BTreeMap::new() }
    }

    /// Reads new lines of the log.
    pub(super) fn read(&mut self, roots: &Roots) {
        let errors = self.log.as_mut().and_then(|log| log.swap_errors().ok()).unwrap_or_default();
        for error in errors {
            // A device that no longer exists is reported elsewhere.
            let Ok(device) = BlockDevice::of_number(roots, error.device) else { continue };
            let known = self.requests.entry((device.name().to_owned(), error.request)).or_default();
            *known = known.saturating_add(1);
        }
    }

    /// Drops devices that are no longer active: if one becomes active again, it was repaired or replaced.
    pub(super) fn keep(&mut self, devices: &[BlockDevice]) {
        self.requests.retain(|(name, _), _| devices.iter().any(|device| device.name() == name));
    }

    /// Whether no request has failed.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Failed requests of active devices; a lower bound, because the kernel may drop log lines.
    pub(super) fn count(&self) -> u64 {
        self.requests.values().sum()
    }

    /// The errors in words, which stay the same while the error persists.
    pub(super) fn errors(&self) -> impl Iterator<Item = String> {
        self.requests.keys().map(|(name, request)| {
            let what = match request {
                Request::Read => "reads fail: its pages are lost, and a process that accesses one is killed (SIGBUS)",
                Request::Write => "writes fail: the pages stay in memory",
            };
            format!("swap device {name}: {what}; nothing is written to swap devices until it is deactivated: see dmesg, then swapoff and replace it")
        })
    }
}

#[cfg(test)]
mod tests {
    use config::Config;
    use kernel::swap::{self, SwapArea};
    use std::time::Duration;

    use crate::testing::Machine;
    use crate::tiers::Tiers;
    use units::Bytes;

    const LOG: &str = "dev/kmsg";
    const READ: &str = "1,1,1,-;Read-error on swap-device (8:16:8)\n";
    const WRITE: &str = "1,1,1,-;Write-error on swap-device (8:16:8)\n";

    /// A machine that swaps on `vdb`, number 8:16.
    fn machine() -> (Machine, Vec<SwapArea>) {
        let machine = Machine::new();
        machine.put("sys/class/block/vdb/stat", "0 0 0 0 0 0 0 0 0 0 0\n");
        std::fs::create_dir_all(machine.roots.sys.join("dev/block")).unwrap();
        std::os::unix::fs::symlink(machine.roots.sys.join("class/block/vdb"), machine.roots.sys.join("dev/block/8:16")).unwrap();
        machine.put(LOG, READ);
        let areas = swap::read(&machine.roots).unwrap();
        (machine, areas)
    }

    fn read_machine(areas: &[SwapArea]) -> crate::machine::Machine {
        crate::machine::Machine { areas: areas.to_vec(), zswap_enabled: true, ..Default::default() }
    }

    /// Reads the log after these lines, and checks the reported errors and whether the device is still used.
    fn check(logged: &[&str], expected: &[&str], offered: bool) {
        let (machine, areas) = machine();
        let mut tiers = Tiers::new(&machine.roots, &Config::default(), None, &daemon::Clock::system(Duration::ZERO));
        let mut read = |areas: &[SwapArea]| {
            let errors = tiers.read(&machine.roots, &read_machine(areas), Duration::ZERO);
            (errors, tiers.offer.device, tiers.view(Bytes::ZERO, Duration::ZERO).swap_errors)
        };
        assert_eq!(read(&areas), (vec![], true, 0), "earlier errors");
        // The log returns one record per read.
        for at in 0..logged.len() {
            machine.put(LOG, &[READ, &logged[..=at].concat()].concat());
            read(&areas);
        }
        for again in ["at once", "still"] {
            let (errors, device, count) = read(&areas);
            assert_eq!((device, count), (offered, if expected.is_empty() { 0 } else { logged.len() as u64 }), "{logged:?} {again}");
            assert_eq!(errors.len(), expected.len(), "{errors:?}");
            assert!(errors.iter().zip(expected).all(|(error, text)| error.contains(text) && error.contains("vdb")), "{errors:?}");
        }
        assert_eq!(read(&[]), (vec![], false, 0), "deactivated");
        assert_eq!(read(&areas), (vec![], true, 0), "active again");
    }

    #[test]
    fn a_failing_device_is_reported_and_not_used_until_it_is_deactivated() {
        check(&[], &[], true);
        check(&[READ], &["reads fail"], false);
        check(&[WRITE, WRITE], &["writes fail"], false);
        check(&[WRITE, READ], &["reads fail", "writes fail"], false);
        check(&["1,1,1,-;Write-error on swap-device (8:32:8)\n"], &[], true);
        check(&["6,1,1,-;Adding 1048572k swap on /dev/vdb.\n"], &[], true);
    }
}
