//! Where offloaded memory goes: swap, zswap, zram, and what the devices endure.

use kernel::block::BlockDevice;
use kernel::swap::SwapArea;
use kernel::zram::Zram;
use kernel::zswap::{Parameters, Zswap};
use kernel::{Roots, file, meminfo, swap};
use units::Bytes;

use super::check::{Check, Rank, Status, check, from_error};

/// The most swap that the doctor's commands add.
const SWAP_MIB_MAX: u64 = 16 << 10;

pub(super) fn memory(roots: &Roots) -> Check {
    match meminfo::read(roots) {
        Ok(info) => check("memory", Status::Ok, format!("{} in total, {} available", info.total, info.available), ""),
        Err(error) => from_error("memory", &error),
    }
}

pub(super) fn swap_space(roots: &Roots) -> Check {
    let areas = swap::read(roots).unwrap_or_default();
    let total: Bytes = areas.iter().map(|area| area.size).sum();
    if !areas.is_empty() {
        return check("swap", Status::Ok, format!("{total} in {} areas", areas.len()), "");
    }
    let remedy = "add swap, and an entry in /etc/fstab that keeps it; zswap requires it, even if nothing is written to it";
    check("swap", Status::Missing, "no swap space", remedy).ranked(Rank::Blocks).with_commands(swap_commands(roots))
}

/// Commands that add swap of half of the memory: a file where the root file system can hold one, otherwise zram.
fn swap_commands(roots: &Roots) -> Vec<String> {
    let mounts = file::read(&roots.proc.join("mounts"), file::LARGE).unwrap_or_default();
    // A later mount covers an earlier one.
    let mut root = mounts.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        Some((fields.next()?, fields.next()?)).filter(|(at, _)| *at == "/").map(|(_, kind)| kind)
    });
    let mib = meminfo::read(roots).map_or(1024, |info| ((info.total.0 / 2) >> 20).clamp(64, SWAP_MIB_MAX));
    let text: &[&str] = match root.next_back() {
        Some("ext4" | "ext3" | "xfs") => &["fallocate -l SIZE /swapfile", "chmod 600 /swapfile", "mkswap /swapfile", "swapon /swapfile"],
        Some("btrfs") => &["btrfs filesystem mkswapfile --size SIZE /swapfile", "swapon /swapfile"],
        _ => &[
            "modprobe zram num_devices=1",
            "echo SIZE > /sys/block/zram0/disksize",
            "mkswap /dev/zram0",
            "swapon --priority 100 /dev/zram0",
        ],
    };
    text.iter().map(|command| command.replace("SIZE", &format!("{mib}M"))).collect()
}

pub(super) fn zswap(roots: &Roots) -> Check {
    const ENABLE: &str = "echo Y > /sys/module/zswap/parameters/enabled";
    let areas = swap::read(roots).unwrap_or_default();
    match Zswap::probe(roots).and_then(|zswap| zswap.parameters()) {
        Ok(parameters) => {
            let compressor = parameters.compressor.unwrap_or_default();
            if parameters.enabled == Some(true) {
                check("zswap", Status::Ok, format!("on, compressor {compressor}"), "")
            } else if areas.iter().any(|area| zram_of(roots, area).is_some()) {
                check("zswap", Status::Ok, format!("off, compressor {compressor}: the machine swaps to zram, which compresses"), "")
            } else {
                let found = format!("off, compressor {compressor}: pages are offloaded to the swap device, within swap.write_budget");
                let remedy = "set zswap.manage = true, which enables it while the agent runs, or now:";
                check("zswap", Status::Advice, found, remedy).ranked(Rank::Costs).with_commands([ENABLE])
            }
        }
        Err(error) => from_error("zswap", &error).ranked(Rank::Costs),
    }
}

/// Whether zswap's shrinker is on, where zswap has a device to write back to.
pub(super) fn shrinker(roots: &Roots, purpose: &str) -> Check {
    const NAME: &str = "zswap_shrinker";
    let parameters = Zswap::probe(roots).and_then(|zswap| zswap.parameters()).unwrap_or_default();
    let Parameters { enabled, shrinker_enabled, .. } = parameters;
    let areas = swap::read(roots).unwrap_or_default();
    let has_device = areas.iter().any(|area| zram_of(roots, area).is_none());
    match (shrinker_enabled, enabled == Some(true) && has_device) {
        (Some(true), _) => check(NAME, Status::Ok, format!("on: {purpose}"), ""),
        (_, false) => check(NAME, Status::Ok, "off, and not needed: zswap has no device to write back to, or is off", ""),
        (_, true) => {
            let found = "off: compressed pages stay in DRAM until the pool is full, however cold they are";
            let remedy = "set zswap.shrinker = true beside zswap.manage, or now:";
            check(NAME, Status::Advice, found, remedy).with_commands(["echo Y > /sys/module/zswap/parameters/shrinker_enabled"])
        }
    }
}

/// `vm.page-cluster` is the base-2 logarithm of the pages that one swap fault reads.
pub(super) fn readahead(roots: &Roots) -> Check {
    let path = roots.proc.join("sys/vm/page-cluster");
    match file::read(&path, file::SMALL).map(|text| text.trim().to_owned()) {
        Ok(value) if value == "0" => check("page-cluster", Status::Ok, "each swap fault reads one page", ""),
        Ok(value) => {
            let found = format!("vm.page-cluster is {value}: a swap fault may read neighbouring pages that are not needed");
            let remedy = "reading ahead has no benefit with zswap:";
            check("page-cluster", Status::Advice, found, remedy).ranked(Rank::Costs).with_commands(["sysctl vm.page-cluster=0"])
        }
        Err(error) => from_error("page-cluster", &error),
    }
}

/// Reports the swap devices. No kernel interface reports their write endurance.
pub(super) fn endurance(roots: &Roots) -> Vec<Check> {
    let areas = swap::read(roots).unwrap_or_default();
    let devices = areas.iter().map(|area| (area, BlockDevice::under_swap(roots, area)));
    let checks = devices.filter_map(|(area, device)| match device {
        Ok(_) if zram_of(roots, area).is_some() => None,
        Ok(device) => {
            let kind = match device.is_rotational() {
                Ok(Some(true)) => "reported as rotational: too slow for far memory if it is",
                Ok(_) => "its write endurance is not known to the kernel",
                Err(_) => "its type is unknown",
            };
            let remedy = "set swap.write_budget to its rated terabytes written, divided by its planned lifetime in days";
            Some(check("swap_device", Status::Advice, format!("{} on {}: {kind}", area.name, device.name()), remedy))
        }
        Err(error) => Some(Check { status: Status::Advice, ..from_error("swap_device", &error) }),
    });
    checks.collect()
}

/// The zram device of a swap area; `None` if it has another device.
fn zram_of(roots: &Roots, area: &SwapArea) -> Option<Zram> {
    BlockDevice::under_swap(roots, area).and_then(Zram::of).ok().flatten()
}

/// Reports the zram devices that the machine swaps to.
pub(super) fn zram(roots: &Roots) -> Vec<Check> {
    let areas = swap::read(roots).unwrap_or_default();
    let devices = areas.iter().filter_map(|area| Some((area, zram_of(roots, area)?)));
    let describe = |(area, zram): (&SwapArea, Zram)| {
        let (memory, size) = (zram.memory()?, zram.disk_size()?);
        let backing = match (zram.backing_device()?, zram.backing()?) {
            (Some(device), Some(stat)) => format!("{} written back to {device}, by other programs only", stat.stored),
            _ => "no backing device".to_owned(),
        };
        let (name, priority, algorithm) = (zram.name(), area.priority, zram.algorithm()?);
        let holds = format!("{} stored in {} of DRAM", memory.stored, memory.memory);
        Ok(check("zram", Status::Ok, format!("{name}: {size}, priority {priority}, compressor {algorithm}; {holds}; {backing}"), ""))
    };
    devices.map(|device| describe(device).unwrap_or_else(|error| Check { status: Status::Advice, ..from_error("zram", &error) })).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn swap_is_added_as_the_root_file_system_permits() {
        let commands = |mounts: &str| {
            let (_keep, roots) = tree(&[
                ("proc/mounts", mounts),
                ("proc/meminfo", "MemTotal: 4194304 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"),
            ]);
            swap_space(&roots).commands.join("; ")
        };
        assert_eq!(
            commands("/dev/vda / ext4 rw 0 0\n"),
            "fallocate -l 2048M /swapfile; chmod 600 /swapfile; mkswap /swapfile; swapon /swapfile"
        );
        assert!(commands("/dev/sda1 / btrfs rw 0 0\n").starts_with("btrfs filesystem mkswapfile --size 2048M"));
        assert!(commands("rootfs / rootfs rw 0 0\noverlay / overlay rw 0 0\n").contains("/dev/zram0"));
        assert!(commands("").contains("/dev/zram0"));
    }

    #[test]
    fn a_shrinker_that_is_off_is_said_to_be_off() {
        let found = |enabled: &str, on: &str| {
            let (_keep, roots) = tree(&[
                ("proc/swaps", "Filename Type Size Used Priority\n/dev/vdb partition 1048576 0 -2\n"),
                ("sys/module/zswap/parameters/enabled", enabled),
                ("sys/module/zswap/parameters/shrinker_enabled", on),
                ("sys/class/block/vdb/size", "2097152\n"),
            ]);
            shrinker(&roots, "writes back")
        };
        assert_eq!((found("Y\n", "Y\n").status, found("N\n", "N\n").status), (Status::Ok, Status::Ok));
        let off = found("Y\n", "N\n");
        assert!(off.status == Status::Advice && off.found.starts_with("off") && off.commands.len() == 1, "{off:?}");
    }
}
