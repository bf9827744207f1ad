//! Swap devices on which requests fail, as the kernel's log tells.
//!
//! No counter does: a failed write leaves the page in memory, a failed read loses it and kills who touched it. Nothing more
//! is sent to devices while one that is swapped on has failed: which area a page goes to is the kernel's choice.

use std::collections::BTreeMap;

use kernel::Roots;
use kernel::block::BlockDevice;
use kernel::kmsg::{Kmsg, Request};

/// What is known of failed requests.
#[derive(Debug)]
pub(super) struct Failing {
    log: Option<Kmsg>,
    /// By kernel name of the device and kind of request, how many the log told of.
    requests: BTreeMap<(String, Request), u64>,
}

impl Failing {
    /// Knows of nothing that was before. Where the log cannot be read, nothing will be known: `thermocline doctor` tells.
    pub(super) fn new(roots: &Roots) -> Self {
        Self { log: Kmsg::open(roots).ok(), requests: BTreeMap::new() }
    }

    /// Reads on in the log.
    pub(super) fn read(&mut self, roots: &Roots) {
        let errors = self.log.as_mut().and_then(|log| log.swap_errors().ok()).unwrap_or_default();
        for error in errors {
            // A device that has vanished is told of as such.
            let Ok(device) = BlockDevice::of_number(roots, error.device) else { continue };
            let known = self.requests.entry((device.name().to_owned(), error.request)).or_default();
            *known = known.saturating_add(1);
        }
    }

    /// Forgets devices that are not swapped on any more: what is swapped on anew was mended or replaced.
    pub(super) fn keep(&mut self, devices: &[BlockDevice]) {
        self.requests.retain(|(name, _), _| devices.iter().any(|device| device.name() == name));
    }

    /// Whether none has failed.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Requests that failed, at least, of devices that are swapped on.
    pub(super) fn count(&self) -> u64 {
        self.requests.values().sum()
    }

    /// What is wrong, in words that stay the same while it does.
    pub(super) fn troubles(&self) -> impl Iterator<Item = String> {
        self.requests.keys().map(|(name, request)| {
            let what = match request {
                Request::Read => "reads fail: what lies there is lost, and a process that touches it is killed (SIGBUS)",
                Request::Write => "writes fail: what was to go there stays in memory",
            };
            format!("swap device {name}: {what}; nothing more is sent to swap devices until it is swapped off: see dmesg, and replace it")
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

    /// What is logged before and after a swapped on device is read, the troubles told of it, and whether it is still used.
    fn check(logged: &[&str], said: &[&str], offered: bool) {
        let (machine, areas) = machine();
        let mut tiers = Tiers::new(&machine.roots, &Config::default(), None, &daemon::Clock::system(Duration::ZERO));
        let mut look = |areas: &[SwapArea]| {
            let troubles = tiers.read(&machine.roots, areas, true, false, Duration::ZERO);
            (troubles, tiers.offer.device, tiers.view(Duration::ZERO).swap_errors)
        };
        assert_eq!(look(&areas), (vec![], true, 0), "what was before");
        // One record per read, as the log gives them.
        for at in 0..logged.len() {
            machine.put(LOG, &[READ, &logged[..=at].concat()].concat());
            look(&areas);
        }
        for again in ["at once", "still"] {
            let (troubles, device, errors) = look(&areas);
            assert_eq!((device, errors), (offered, if said.is_empty() { 0 } else { logged.len() as u64 }), "{logged:?} {again}");
            assert_eq!(troubles.len(), said.len(), "{troubles:?}");
            assert!(troubles.iter().zip(said).all(|(trouble, said)| trouble.contains(said) && trouble.contains("vdb")), "{troubles:?}");
        }
        assert_eq!(look(&[]), (vec![], false, 0), "swapped off");
        assert_eq!(look(&areas), (vec![], true, 0), "swapped on anew");
    }

    #[test]
    fn a_device_that_fails_is_told_of_and_left_until_it_is_swapped_off() {
        check(&[], &[], true);
        check(&[READ], &["reads fail"], false);
        check(&[WRITE, WRITE], &["writes fail"], false);
        check(&[WRITE, READ], &["reads fail", "writes fail"], false);
        check(&["1,1,1,-;Write-error on swap-device (8:32:8)\n"], &[], true);
        check(&["6,1,1,-;Adding 1048572k swap on /dev/vdb.\n"], &[], true);
    }
}
