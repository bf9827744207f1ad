//! Reports what this machine supports, and how to enable the rest. Reads only.

mod check;
mod killers;
mod protection;
mod slow;

use kernel::block::BlockDevice;
use kernel::capability::{self, Capability, Feature};
use kernel::cgroup::CgroupRoot;
use kernel::swap::SwapArea;
use kernel::zram::Zram;
use kernel::zswap::Zswap;
use kernel::{Roots, meminfo, pagemap, psi, swap};
use serde::Serialize;
use units::Bytes;

pub use self::check::{Check, Status};
use self::check::{check, from_error, from_result};
pub use self::protection::protection;
pub use self::slow::SlowMemory;
use trackers::ages::choose::Offer;

/// The complete report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Release of the kernel.
    pub kernel: String,
    /// The tracker that `auto` would choose.
    pub tracker: Option<&'static str>,
    /// The reason for that choice.
    pub tracker_reason: &'static str,
    /// Whether the agent can offload memory on this machine in its present state.
    pub able: bool,
    /// Results for single items.
    pub checks: Vec<Check>,
    /// Slow memory, and the kernel features that policy `slowdown` uses.
    pub slow_memory: SlowMemory,
}

/// Examines everything that the agent uses.
#[must_use]
pub fn examine(roots: &Roots) -> Report {
    let offer = Offer::probe(roots);
    let mut checks = vec![privileges(roots), cgroups(roots)];
    checks.extend(swap_and_zswap(roots));
    checks.push(from_result("page_idle", &offer.page_idle, "idle page tracking: ages of single pages, based on every access"));
    checks.push(from_result("sampled", &offer.sampled, "exact ages of a random sample of pages, by DAMON's trace event"));
    checks.push(from_result("lru_gen", &offer.lru_gen, "generations of every cgroup, in debugfs"));
    checks.push(from_result("damon", &offer.damon, "DAMON's sysfs interface, not in use"));
    checks.push(page_tables(roots));
    checks.push(pressure(roots));
    checks.push(readahead(roots));
    // A missing item may disable several features; it is reported once.
    let reported: Vec<String> = checks.iter().map(|check| check.found.clone()).collect();
    checks.extend(features(roots).into_iter().filter(|feature| !reported.contains(&feature.found)));
    checks.extend(zram(roots));
    checks.extend(endurance(roots));
    checks.extend(virtual_machines(roots));
    checks.extend(killers::killers(roots));
    let chosen = offer.choose(config::Tracker::Auto);
    let blocked = |name| checks.iter().any(|check: &Check| check.name == name && check.status == Status::Missing);
    Report {
        kernel: kernel::file::read(&roots.proc.join("sys/kernel/osrelease"), kernel::file::SMALL)
            .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned()),
        tracker: chosen.map(|(kind, _)| kind.as_str()),
        tracker_reason: chosen.map_or("this kernel offers no way to measure page ages", |(_, reason)| reason),
        able: chosen.is_some() && !["privileges", "cgroup2", "swap"].into_iter().any(blocked),
        checks,
        slow_memory: slow::examine(roots),
    }
}

fn privileges(roots: &Roots) -> Check {
    const NEEDED: [Capability; 3] = [Capability::SysAdmin, Capability::SysPtrace, Capability::SysNice];
    match capability::credentials(roots) {
        Ok(own) => {
            let missing: Vec<_> = NEEDED.into_iter().filter(|&needed| !own.has(needed)).map(Capability::name).collect();
            if missing.is_empty() {
                check("privileges", Status::Ok, "all required capabilities", "")
            } else {
                check("privileges", Status::Missing, format!("missing {}", missing.join(", ")), "run as root")
            }
        }
        Err(error) => from_error("privileges", &error),
    }
}

fn cgroups(roots: &Roots) -> Check {
    match CgroupRoot::probe(roots) {
        Ok(root) => check("cgroup2", Status::Ok, format!("{} with {}", root.path().display(), root.controllers().join(" ")), ""),
        Err(error) => from_error("cgroup2", &error),
    }
}

fn swap_and_zswap(roots: &Roots) -> Vec<Check> {
    let areas = swap::read(roots).unwrap_or_default();
    let total: Bytes = areas.iter().map(|area| area.size).sum();
    let swap = if areas.is_empty() {
        let remedy = "add a swap device or file (mkswap, swapon); zswap requires one, even if nothing is written to it";
        check("swap", Status::Missing, "no swap space", remedy)
    } else {
        check("swap", Status::Ok, format!("{total} in {} areas", areas.len()), "")
    };
    let zswap = match Zswap::probe(roots).and_then(|zswap| zswap.parameters()) {
        Ok(parameters) => {
            let compressor = parameters.compressor.unwrap_or_default();
            if parameters.enabled == Some(true) {
                check("zswap", Status::Ok, format!("on, compressor {compressor}"), "")
            } else if areas.iter().any(|area| zram_of(roots, area).is_some()) {
                check("zswap", Status::Ok, format!("off, compressor {compressor}: the machine swaps to zram, which compresses"), "")
            } else {
                let remedy = "set zswap.manage = true, or echo Y > /sys/module/zswap/parameters/enabled";
                check(
                    "zswap",
                    Status::Advice,
                    format!("off, compressor {compressor}: pages are offloaded to the swap device, within swap.write_budget"),
                    remedy,
                )
            }
        }
        Err(error) => from_error("zswap", &error),
    };
    let memory = match meminfo::read(roots) {
        Ok(info) => check("memory", Status::Ok, format!("{} in total, {} available", info.total, info.available), ""),
        Err(error) => from_error("memory", &error),
    };
    vec![memory, swap, zswap]
}

fn page_tables(roots: &Roots) -> Check {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let scanning = pagemap::Pagemap::open(roots, own).and_then(|pagemap| pagemap.can_scan());
    match scanning {
        Ok(true) => check("pagemap", Status::Ok, "readable, with PAGEMAP_SCAN", ""),
        Ok(false) => check("pagemap", Status::Ok, "readable", ""),
        Err(error) => from_error("pagemap", &error),
    }
}

fn pressure(roots: &Roots) -> Check {
    from_result("psi", &psi::memory(roots), "pressure stall information")
}

/// `vm.page-cluster` is the base-2 logarithm of the pages that one swap fault reads.
fn readahead(roots: &Roots) -> Check {
    let path = roots.proc.join("sys/vm/page-cluster");
    match kernel::file::read(&path, kernel::file::SMALL).map(|text| text.trim().to_owned()) {
        Ok(value) if value == "0" => check("page-cluster", Status::Ok, "each swap fault reads one page", ""),
        Ok(value) => {
            let found = format!("vm.page-cluster is {value}: a swap fault may read neighbouring pages that are not needed");
            check("page-cluster", Status::Advice, found, "sysctl vm.page-cluster=0; reading ahead has no benefit with zswap")
        }
        Err(error) => from_error("page-cluster", &error),
    }
}

/// Kernel features that some tiers and policies use.
fn features(roots: &Roots) -> Vec<Check> {
    let found = |feature: Feature| match &feature.offered {
        Ok(()) => check(feature.name, Status::Ok, feature.purpose, ""),
        Err(error) => Check { status: Status::Advice, ..from_error(feature.name, error) },
    };
    capability::features(roots).into_iter().map(found).collect()
}

/// Reports the swap devices. No kernel interface reports their write endurance.
fn endurance(roots: &Roots) -> Vec<Check> {
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
fn zram(roots: &Roots) -> Vec<Check> {
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

/// A virtual machine's process is an ordinary job, if its memory is not pinned.
fn virtual_machines(roots: &Roots) -> Option<Check> {
    let found = "this machine can run virtual machines; their memory is offloaded unless it is pinned";
    let remedy = "enable free page reporting in guests (virtio-balloon with free-page-reporting=on), and use neither locked memory \
                  nor passed-through devices, which pin all memory";
    roots.dev.join("kvm").exists().then(|| check("vm_host", Status::Advice, found, remedy))
}

impl Report {
    /// Formats the report for a terminal: one line per item, with its remedy below.
    #[must_use]
    pub fn to_text(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("kernel {}\n", self.kernel);
        self.checks.iter().for_each(|check| check.write_to(&mut text));
        text += "slow memory\n";
        self.slow_memory.checks.iter().for_each(|check| check.write_to(&mut text));
        let tracker = self.tracker.unwrap_or("none");
        let _ = writeln!(text, "tracker `auto`: {tracker} ({})", self.tracker_reason);
        let verdict =
            if self.able { "this machine can offload cold memory" } else { "this machine cannot offload cold memory in its present state" };
        let _ = writeln!(text, "{verdict}");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zram_is_a_tier_and_needs_no_zswap() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("proc/swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 1048576 0 100\n");
        put("sys/module/zswap/parameters/enabled", "N\n");
        put("sys/class/block/zram0/mm_stat", "8192 2048 4096 0 4096 0 0 0 0\n");
        put("sys/class/block/zram0/comp_algorithm", "lzo [zstd]\n");
        put("sys/class/block/zram0/disksize", "1073741824\n");
        put("sys/class/block/zram0/backing_dev", "/dev/vdc\n");
        let text = |report: &Report, name: &str| report.checks.iter().find(|check| check.name == name).cloned();
        let zram = text(&examine(&Roots::under(dir.path())), "zram").unwrap();
        assert_eq!(
            (zram.status, zram.found.as_str()),
            (Status::Ok, "zram0: 1.0 GiB, priority 100, compressor zstd; 8.0 KiB stored in 4.0 KiB of DRAM; no backing device")
        );
        put("sys/class/block/zram0/bd_stat", "2 0 2\n");
        let report = examine(&Roots::under(dir.path()));
        assert!(text(&report, "zram").unwrap().found.ends_with("8.0 KiB written back to /dev/vdc, by other programs only"));
        assert_eq!(text(&report, "zswap").unwrap().status, Status::Ok);
        assert!(text(&report, "swap_device").is_none(), "zram wears out nothing");
    }

    #[test]
    fn a_machine_without_any_interface_gets_remedies_for_all() {
        let dir = tempfile::tempdir().unwrap();
        let report = examine(&Roots::under(dir.path()));
        assert!(!report.able);
        assert_eq!(report.tracker, None);
        for name in ["cgroup2", "swap", "zswap", "page_idle", "sampled", "lru_gen", "damon"] {
            let check = report.checks.iter().find(|check| check.name == name).unwrap();
            assert_eq!(check.status, Status::Missing, "{name}");
            assert!(!check.remedy.is_empty(), "{name} has a remedy");
        }
        assert!(report.to_text().contains("cannot offload"));
        assert_eq!(report.slow_memory.slow_node, None);
        assert!(report.to_text().contains("no node is memory without CPUs"));
    }
}
