//! Reports what this machine supports, and how to enable the rest. Reads only.

mod check;
mod far;
mod killers;
mod machine;
mod protection;
mod slow;
mod trackers_offered;

use kernel::capability::{self, Feature};
use kernel::{Roots, pagemap};
use serde::Serialize;

pub use self::check::{Boot, Check, Rank, Status};
use self::check::{check, from_error};
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
    let mut checks = vec![machine::privileges(roots), machine::cgroups(roots)];
    checks.extend(machine::container(roots));
    checks.extend([far::memory(roots), far::swap_space(roots), far::zswap(roots)]);
    checks.extend(trackers_offered::all(roots, &offer));
    checks.extend([page_tables(roots), machine::pressure(roots), machine::delays(roots), far::readahead(roots)]);
    checks.extend(machine::lockdown(roots));
    // A missing item may disable several features; it is reported once.
    for feature in features(roots) {
        if feature.status == Status::Ok || checks.iter().all(|check| check.found != feature.found) {
            checks.push(feature);
        }
    }
    checks.extend(far::zram(roots));
    checks.extend(far::endurance(roots));
    checks.extend(virtual_machines(roots));
    checks.extend(killers::killers(roots));
    let chosen = offer.choose(config::Tracker::Auto);
    let mut report = Report {
        kernel: kernel::file::read(&roots.proc.join("sys/kernel/osrelease"), kernel::file::SMALL)
            .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned()),
        tracker: chosen.map(|(kind, _)| kind.as_str()),
        tracker_reason: chosen.map_or("this kernel offers no way to measure page ages", |(_, reason)| reason),
        able: false,
        checks,
        slow_memory: slow::examine(roots),
    };
    report.judge();
    report
}

/// What prevents savings or endangers jobs, before they are observed: far memory, and programs that kill.
#[must_use]
pub fn before_observing(roots: &Roots) -> Vec<Check> {
    let mut checks = vec![far::swap_space(roots), far::zswap(roots)];
    checks.extend(killers::killers(roots));
    checks.retain(|check| check.rank < Rank::Better || ["systemd-oomd", "kubelet"].contains(&check.name));
    checks
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

/// Kernel features that some tiers and policies use.
fn features(roots: &Roots) -> Vec<Check> {
    let found = |feature: Feature| match &feature.offered {
        Ok(()) if feature.name == "zswap_shrinker" => far::shrinker(roots, feature.purpose),
        Ok(()) => check(feature.name, Status::Ok, feature.purpose, ""),
        Err(error) => Check { status: Status::Advice, ..from_error(feature.name, error) },
    };
    capability::features(roots).into_iter().map(found).collect()
}

/// A virtual machine's process is an ordinary job, if its memory is not pinned.
fn virtual_machines(roots: &Roots) -> Option<Check> {
    let found = "this machine can run virtual machines; their memory is offloaded unless it is pinned";
    let remedy = "enable free page reporting in guests (virtio-balloon with free-page-reporting=on), and use neither locked memory \
                  nor passed-through devices, which pin all memory";
    roots.dev.join("kvm").exists().then(|| check("vm_host", Status::Advice, found, remedy))
}

impl Report {
    /// Adds results; what blocks decides whether the machine can offload.
    pub fn add(&mut self, checks: impl IntoIterator<Item = Check>) {
        self.checks.extend(checks);
        self.judge();
    }

    fn judge(&mut self) {
        self.able = self.checks.iter().all(|check| check.rank != Rank::Blocks);
    }

    /// Formats the report for a terminal, by rank: one line per item, with its remedy below.
    #[must_use]
    pub fn to_text(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("kernel {}\n", self.kernel);
        for rank in Rank::ALL {
            let all = self.checks.iter().chain(&self.slow_memory.checks);
            for (at, check) in all.filter(|check| check.rank == rank).enumerate() {
                if at == 0 {
                    let _ = writeln!(text, "{}", rank.heading());
                }
                check.write_to(&mut text);
            }
        }
        let tracker = self.tracker.unwrap_or("none");
        let _ = writeln!(text, "tracker `auto`: {tracker} ({})", self.tracker_reason);
        let verdict =
            if self.able { "this machine can offload cold memory" } else { "this machine cannot offload cold memory in its present state" };
        let _ = writeln!(text, "{verdict}");
        text
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine with these files.
    pub(crate) fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Roots) {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let roots = Roots::under(directory.path());
        (directory, roots)
    }

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
