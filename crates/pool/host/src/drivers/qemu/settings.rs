//! Settings of the QEMU driver.

use std::path::PathBuf;
use std::time::Duration;

#[cfg(test)]
use settings::Group;
use settings::Unit;

use super::memory_device::Kind;

settings::tables! {
    /// Guests are started by QEMU, which is the default. Excludes `[libvirt]`.
    pub struct Settings = "qemu", Optional {
        program: PathBuf = Unit::Program, "qemu-system-x86_64",
            "The program.";
        accelerator: String = Unit::Text, "kvm",
            "The accelerator that runs guest code, such as `kvm` or `tcg`, with its options.";
        cpu: String = Unit::Text, "host",
            "The CPU model of guests; `max` with accelerator `tcg`.";
        distance: u8 = Unit::Count, "28" in "11" ..= "254",
            "The NUMA distance between the pool node and node 0 in the guest. The distance of a node to itself is 10.";
        balloon: bool = Unit::Bool, "true",
            "Whether guests get a balloon device, by which they report their memory use. The balloon is never inflated.";
        slices: Kind = Unit::Choice(Kind::NAMES), "dimm",
            "The device type of the slices of guests that start. Running guests keep the type that they started with.";
        pause: Duration = Unit::Duration, "50ms" in "1ms" ..= "1h",
            "The target for the pause of a guest at the end of a live migration.";
    }
}

#[cfg(test)]
impl Settings {
    /// Settings for tests.
    pub(super) fn example() -> Self {
        Self { balloon: false, program: "qemu".into(), ..Group::defaults() }
    }
}
