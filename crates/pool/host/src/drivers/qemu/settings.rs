//! Settings of the QEMU driver.

use std::path::PathBuf;
use std::time::Duration;

use super::memory_device::Kind;

/// How QEMU is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Program to run.
    pub program: PathBuf,
    /// Accelerator that runs guest code, such as `kvm` or `tcg`.
    pub accelerator: String,
    /// CPU model of guests.
    pub cpu: String,
    /// NUMA distance between the pool node and node 0 in the guest. A node's distance to itself is 10.
    pub distance: u8,
    /// Whether guests get a balloon device, by which they report their memory use. The balloon is never inflated.
    pub balloon: bool,
    /// Device type of the slices of guests that start. Running guests keep the type they started with.
    pub slices: Kind,
    /// Target for the pause of a guest at the end of a live migration.
    pub pause: Duration,
}

#[cfg(test)]
impl Settings {
    /// Settings for tests, with the defaults of the host's configuration.
    pub(super) fn example() -> Self {
        Self {
            program: "qemu".into(),
            accelerator: "kvm".to_owned(),
            cpu: "host".to_owned(),
            distance: 28,
            balloon: false,
            slices: Kind::Dimm,
            pause: Duration::from_millis(50),
        }
    }
}
