//! Settings of the QEMU driver.

use std::path::PathBuf;
use std::time::Duration;

use kernel::Roots;
#[cfg(test)]
use settings::Group;
use settings::Unit;
use units::Bytes;

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
        confine: bool = Unit::Bool, "true",
            "Whether each guest's process has a user of its own, no capabilities, QEMU's seccomp filter, and a cgroup with limits. Requires a host that runs as root. With `false`, a guest that escapes from QEMU has all rights of the host's service.";
        first_user: u32 = Unit::Count, "1879048192" in "1" ..= "4294900000",
            "The first user id of guests, which is also their group. Users of other programs must not be among them.";
        users: u32 = Unit::Count, "2048" in "1" ..= "65536",
            "How many user ids guests have. A guest that is moved to local memory needs a second one meanwhile.";
        device_group: Option<u32> = Unit::Count, "",
            "A group that every guest has in addition, for devices such as taps. The group of `/dev/kvm` is added without it.";
        cgroup: PathBuf = Unit::Path, "/sys/fs/cgroup/system.slice/thermocline-pool-host.service/guests",
            "The cgroup below which each guest gets its own. The cgroup above must be delegated to the host with the controllers `memory` and `pids`.";
        overhead: Bytes = Unit::Bytes, "1GiB" in "64MiB" ..= "64GiB",
            "The memory limit of a guest's cgroup beyond the guest's own memory, local and pool together: QEMU's buffers, threads, and translated code of accelerator `tcg`.";
        pause: Duration = Unit::Duration, "50ms" in "1ms" ..= "1h",
            "The target for the pause of a guest at the end of a live migration.";
    }
}

impl Settings {
    /// Checks that this process can confine guests, if it must.
    pub(in crate::drivers) fn check(&self, roots: &Roots) -> Result<(), String> {
        let is_root = kernel::capability::credentials(roots).is_ok_and(|credentials| credentials.is_root());
        if self.confine && !is_root {
            return Err(
                "qemu.confine: only root can give each guest a user of its own; run the host by its unit, or set qemu.confine = false, \
                        after which a guest that escapes from QEMU has all rights of this user"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
impl Settings {
    /// Settings for tests.
    pub(super) fn example() -> Self {
        Self { balloon: false, confine: false, program: "qemu".into(), ..Group::defaults() }
    }
}
