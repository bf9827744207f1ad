//! What this machine can do, and how to enable what it cannot. Reads only.

mod slow;

use kernel::block::BlockDevice;
use kernel::capability::{self, Capability, Feature};
use kernel::cgroup::CgroupRoot;
use kernel::zswap::Zswap;
use kernel::{Error, Roots, meminfo, pagemap, psi, swap};
use serde::Serialize;
use units::Bytes;

pub use self::slow::SlowMemory;
use trackers::ages::choose::Offer;

/// How one thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Works, but not as well as it could.
    Advice,
    /// Missing; something cannot be done.
    Missing,
    /// There, and in somebody else's use.
    Busy,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What it is.
    pub name: &'static str,
    /// How it stands.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What to do about it; empty where nothing is to be done.
    pub remedy: String,
}

/// Everything that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The kernel's release.
    pub kernel: String,
    /// The tracker that `auto` would choose.
    pub tracker: Option<&'static str>,
    /// Why that one.
    pub tracker_reason: &'static str,
    /// Whether the agent could move memory on this machine as it is.
    pub able: bool,
    /// The single checks.
    pub checks: Vec<Check>,
    /// What there is of memory that is slower than the rest, and what policy `slowdown` needs.
    pub slow_memory: SlowMemory,
}

/// Looks at everything the agent uses.
#[must_use]
pub fn examine(roots: &Roots) -> Report {
    let offer = Offer::probe(roots);
    let mut checks = vec![privileges(roots), cgroups(roots)];
    checks.extend(swap_and_zswap(roots));
    checks.push(from_result("page_idle", &offer.page_idle, "idle page tracking: exact ages of every page"));
    checks.push(from_result("lru_gen", &offer.lru_gen, "generations of every cgroup through debugfs"));
    checks.push(from_result("damon", &offer.damon, "DAMON's sysfs interface, free to use"));
    checks.push(page_tables(roots));
    checks.push(pressure(roots));
    checks.push(readahead(roots));
    // One thing that is missing can take several features with it: it is told once.
    let told: Vec<String> = checks.iter().map(|check| check.found.clone()).collect();
    checks.extend(features(roots).into_iter().filter(|feature| !told.contains(&feature.found)));
    checks.extend(endurance(roots));
    checks.extend(virtual_machines(roots));
    let chosen = offer.choose(config::Tracker::Auto);
    let blocked = |name| checks.iter().any(|check: &Check| check.name == name && check.status == Status::Missing);
    Report {
        kernel: kernel::file::read(&roots.proc.join("sys/kernel/osrelease"), kernel::file::SMALL)
            .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned()),
        tracker: chosen.map(|(kind, _)| kind.as_str()),
        tracker_reason: chosen.map_or("this kernel offers no way to see page ages", |(_, reason)| reason),
        able: chosen.is_some() && !["privileges", "cgroup2", "swap"].into_iter().any(blocked),
        checks,
        slow_memory: slow::examine(roots),
    }
}

fn check(name: &'static str, status: Status, found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { name, status, found: found.into(), remedy: remedy.into() }
}

fn from_error(name: &'static str, error: &Error) -> Check {
    match error {
        Error::Unsupported { what, remedy } => check(name, Status::Missing, what, remedy),
        Error::Busy { what, remedy } => check(name, Status::Busy, what, remedy),
        other => check(name, Status::Missing, other.to_string(), ""),
    }
}

fn from_result<T>(name: &'static str, result: &kernel::Result<T>, found: &str) -> Check {
    match result {
        Ok(_) => check(name, Status::Ok, found, ""),
        Err(error) => from_error(name, error),
    }
}

fn privileges(roots: &Roots) -> Check {
    const NEEDED: [Capability; 3] = [Capability::SysAdmin, Capability::SysPtrace, Capability::SysNice];
    match capability::credentials(roots) {
        Ok(own) => {
            let missing: Vec<_> = NEEDED.into_iter().filter(|&needed| !own.has(needed)).map(Capability::name).collect();
            if missing.is_empty() {
                check("privileges", Status::Ok, "all capabilities that the agent needs", "")
            } else {
                check("privileges", Status::Missing, format!("without {}", missing.join(", ")), "run as root")
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
        let remedy = "add a swap device or file (mkswap, swapon): zswap stores in front of one, even if nothing reaches it";
        check("swap", Status::Missing, "no swap space", remedy)
    } else {
        check("swap", Status::Ok, format!("{total} in {} areas", areas.len()), "")
    };
    let zswap = match Zswap::probe(roots).and_then(|zswap| zswap.parameters()) {
        Ok(parameters) => {
            let compressor = parameters.compressor.unwrap_or_default();
            if parameters.enabled == Some(true) {
                check("zswap", Status::Ok, format!("on, compressor {compressor}"), "")
            } else {
                let remedy = "set zswap.manage = true, or echo Y > /sys/module/zswap/parameters/enabled";
                check(
                    "zswap",
                    Status::Advice,
                    format!("off, compressor {compressor}: what is offloaded goes to the swap device, within swap.write_budget"),
                    remedy,
                )
            }
        }
        Err(error) => from_error("zswap", &error),
    };
    let memory = match meminfo::read(roots) {
        Ok(info) => check("memory", Status::Ok, format!("{} in all, {} available", info.total, info.available), ""),
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
        Ok(value) if value == "0" => check("page-cluster", Status::Ok, "each fault brings back one page", ""),
        Ok(value) => {
            let found = format!("vm.page-cluster is {value}: a fault may bring back neighbours that nobody asked for");
            check("page-cluster", Status::Advice, found, "sysctl vm.page-cluster=0, as zswap has no seek to save")
        }
        Err(error) => from_error("page-cluster", &error),
    }
}

/// What tiers and policies use of the kernel, each by its own name. None is needed by all of them.
fn features(roots: &Roots) -> Vec<Check> {
    let found = |feature: Feature| match &feature.offered {
        Ok(()) => check(feature.name, Status::Ok, feature.purpose, ""),
        Err(error) => Check { status: Status::Advice, ..from_error(feature.name, error) },
    };
    capability::features(roots).into_iter().map(found).collect()
}

/// What the swap devices are. How much may be written to one, no kernel knows.
fn endurance(roots: &Roots) -> Vec<Check> {
    let areas = swap::read(roots).unwrap_or_default();
    let devices = areas.iter().map(|area| (area, BlockDevice::under_swap(roots, area)));
    let told = devices.filter_map(|(area, device)| match device {
        Ok(device) if device.is_compressed_ram().unwrap_or(false) => None,
        Ok(device) => {
            let kind = match device.is_rotational() {
                Ok(Some(true)) => "says that it rotates: too slow for far memory, if so",
                Ok(_) => "what it may be written to is not known to the kernel",
                Err(_) => "does not tell what it is",
            };
            let remedy = "set swap.write_budget to its rated terabytes written, divided by the days that it shall last";
            Some(check("swap_device", Status::Advice, format!("{} on {}: {kind}", area.name, device.name()), remedy))
        }
        Err(error) => Some(Check { status: Status::Advice, ..from_error("swap_device", &error) }),
    });
    told.collect()
}

/// A virtual machine's process is a job like any other, if its memory can move.
fn virtual_machines(roots: &Roots) -> Option<Check> {
    let found = "this machine can run virtual machines; their memory is offloaded like any other, as long as it is not pinned";
    let remedy = "give guests free page reporting (virtio-balloon with free-page-reporting=on), and neither locked memory nor devices passed through: both pin all of it";
    roots.dev.join("kvm").exists().then(|| check("vm_host", Status::Advice, found, remedy))
}

impl Check {
    /// A line for a terminal, with the remedy below it.
    pub fn write_to(&self, text: &mut String) {
        use std::fmt::Write;
        let mark = match self.status {
            Status::Ok => "ok     ",
            Status::Advice => "advice ",
            Status::Missing => "missing",
            Status::Busy => "busy   ",
        };
        let _ = writeln!(text, "  {mark}  {:<20} {}", self.name, self.found);
        if !self.remedy.is_empty() {
            let _ = writeln!(text, "           {:<20} -> {}", "", self.remedy);
        }
    }
}

impl Report {
    /// For a terminal: one line per check, remedies below what they mend.
    #[must_use]
    pub fn to_text(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("kernel {}\n", self.kernel);
        self.checks.iter().for_each(|check| check.write_to(&mut text));
        text += "slow memory\n";
        self.slow_memory.checks.iter().for_each(|check| check.write_to(&mut text));
        let tracker = self.tracker.unwrap_or("none");
        let _ = writeln!(text, "tracker `auto`: {tracker} ({})", self.tracker_reason);
        let verdict = if self.able { "this machine can offload cold memory" } else { "this machine cannot offload cold memory as it is" };
        let _ = writeln!(text, "{verdict}");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_machine_is_told_what_it_lacks() {
        let dir = tempfile::tempdir().unwrap();
        let report = examine(&Roots::under(dir.path()));
        assert!(!report.able);
        assert_eq!(report.tracker, None);
        for name in ["cgroup2", "swap", "zswap", "page_idle", "lru_gen", "damon"] {
            let check = report.checks.iter().find(|check| check.name == name).unwrap();
            assert_eq!(check.status, Status::Missing, "{name}");
            assert!(!check.remedy.is_empty(), "{name} has a remedy");
        }
        assert!(report.to_text().contains("cannot offload"));
        assert_eq!(report.slow_memory.slow_node, None);
        assert!(report.to_text().contains("no node is memory without CPUs"));
    }
}
