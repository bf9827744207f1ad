//! Programs that end jobs when memory or swap runs out: systemd-oomd and the kubelet. Reads what makes them act, so that the agent
//! stays clear of it and `doctor` can explain it.
//!
//! systemd-oomd kills the cgroup with the most swap when more than `SwapUsedLimit=` of both memory and swap is used, and cgroups that
//! are under pressure for long (`oomd.conf(5)`). The agent fills swap on purpose, so it leaves more of it free than that.
//!
//! The kubelet evicts pods when `memory.available` falls below its threshold. Swap and zswap do not count there, so offloading delays
//! an eviction. Its default keeps the swap of pods closed, and then their anonymous memory cannot be offloaded.

use std::path::{Path, PathBuf};

use kernel::{Roots, file};
use serde::Serialize;
use units::RatioPpm;

/// The share of swap that stays free in any case: what runs into the end of swap is not only the agent's.
const SWAP_FREE_MIN: RatioPpm = RatioPpm(100_000);

/// How much more than what systemd-oomd tolerates stays free.
const MARGIN: RatioPpm = RatioPpm(50_000);

/// The directories of systemd's configuration, of which an earlier one has precedence.
const SYSTEMD: [&str; 4] = ["etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd"];

/// Drop-in files that are read at most.
const DROP_INS_MAX: usize = 100;

/// The longest configuration file that is read.
const BYTES_MAX: u64 = 1 << 20;

/// systemd-oomd's thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Oomd {
    /// The share of memory and of swap in use above which it kills.
    pub swap_used_limit: RatioPpm,
    /// The pressure at which it kills, unless the unit has a limit of its own.
    pub pressure_limit: RatioPpm,
}

impl Default for Oomd {
    /// The defaults of `oomd.conf(5)`.
    fn default() -> Self {
        Self { swap_used_limit: RatioPpm(900_000), pressure_limit: RatioPpm(600_000) }
    }
}

/// The kubelet's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kubelet {
    /// The highest threshold of `memory.available` for evictions, as written; `None` if the file states none.
    pub eviction: Option<String>,
    /// Whether pods may use swap.
    pub swap: bool,
}

/// Programs of this machine that end jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Killers {
    /// systemd-oomd, if it runs.
    pub oomd: Option<Oomd>,
    /// The kubelet, if it runs.
    pub kubelet: Option<Kubelet>,
}

impl Killers {
    /// Reads which of them run, and their configuration. What cannot be read is taken as the program's default.
    #[must_use]
    pub fn read(roots: &Roots) -> Self {
        let runs = |unit: &str| {
            let procs = roots.cgroup.join("system.slice").join(unit).join("cgroup.procs");
            file::read_optional(&procs, BYTES_MAX).is_ok_and(|pids| pids.is_some_and(|pids| !pids.trim().is_empty()))
        };
        let kubelet = || read(&roots.root.join("var/lib/kubelet/config.yaml")).map_or_else(Kubelet::default, |text| parse_kubelet(&text));
        Self {
            oomd: runs("systemd-oomd.service").then(|| read_oomd(roots)),
            kubelet: (runs("kubelet.service") || roots.cgroup.join("kubepods.slice").exists()).then(kubelet),
        }
    }

    /// The share of swap that the agent leaves free.
    #[must_use]
    pub fn swap_reserve(&self) -> RatioPpm {
        let tolerated = |oomd: Oomd| RatioPpm(1_000_000u32.saturating_sub(oomd.swap_used_limit.0).saturating_add(MARGIN.0));
        self.oomd.map_or(SWAP_FREE_MIN, |oomd| tolerated(oomd).max(SWAP_FREE_MIN).min(RatioPpm(1_000_000)))
    }
}

fn read(path: &Path) -> Option<String> {
    file::read_optional(path, BYTES_MAX).ok().flatten()
}

/// `oomd.conf` of the first directory that has one, then the drop-ins of all directories by name.
fn read_oomd(roots: &Roots) -> Oomd {
    let directories = SYSTEMD.map(|directory| roots.root.join(directory));
    let mut oomd = Oomd::default();
    if let Some(text) = directories.iter().find_map(|directory| read(&directory.join("oomd.conf"))) {
        apply_oomd(&text, &mut oomd);
    }
    let mut drop_ins: Vec<PathBuf> = Vec::new();
    for directory in &directories {
        let Ok(entries) = std::fs::read_dir(directory.join("oomd.conf.d")) else { continue };
        for path in entries.flatten().map(|entry| entry.path()).take(DROP_INS_MAX) {
            let named = path.extension().is_some_and(|extension| extension == "conf");
            if named && !drop_ins.iter().any(|known| known.file_name() == path.file_name()) {
                drop_ins.push(path);
            }
        }
    }
    drop_ins.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    drop_ins.iter().filter_map(|path| read(path)).for_each(|text| apply_oomd(&text, &mut oomd));
    oomd
}

/// Applies the settings of one file. An empty value is the default.
fn apply_oomd(text: &str, oomd: &mut Oomd) {
    for line in text.lines() {
        let Some((key, value)) = line.trim().split_once('=') else { continue };
        let value = value.trim();
        let default = Oomd::default();
        match key.trim() {
            "SwapUsedLimit" => oomd.swap_used_limit = share(value).unwrap_or(default.swap_used_limit),
            "DefaultMemoryPressureLimit" => oomd.pressure_limit = share(value).unwrap_or(default.pressure_limit),
            _ => {}
        }
    }
}

/// A share in percent, per mille or per ten thousand.
fn share(text: &str) -> Option<RatioPpm> {
    let percent = |unit: &str, divisor: f64| Some(text.strip_suffix(unit)?.trim().parse::<f64>().ok()? / divisor);
    let percent = percent("%", 1.0).or_else(|| percent("‰", 10.0)).or_else(|| percent("‱", 100.0))?;
    units::quantity::parse_ratio(&format!("{percent}%")).ok()
}

/// Finds the thresholds of `memory.available`, and the swap behaviour, in the kubelet's configuration. A line is enough: the names
/// occur nowhere else in it.
fn parse_kubelet(text: &str) -> Kubelet {
    let mut kubelet = Kubelet::default();
    for line in text.lines() {
        let Some((key, value)) = line.trim().split_once(':') else { continue };
        let value = value.trim().trim_matches(['"', '\'']);
        match key.trim().trim_matches(['"', '\'']) {
            "memory.available" if !value.is_empty() => {
                let larger = kubelet.eviction.as_deref().is_none_or(|known| amount(known) < amount(value));
                kubelet.eviction = if larger { Some(value.to_owned()) } else { kubelet.eviction };
            }
            "swapBehavior" => kubelet.swap = value == "LimitedSwap",
            _ => {}
        }
    }
    kubelet
}

/// Orders thresholds: percentages of the machine count as larger than amounts.
fn amount(text: &str) -> (bool, u64) {
    match text.strip_suffix('%') {
        Some(percent) => (true, percent.parse().unwrap_or(0)),
        None => (false, units::quantity::parse_bytes(&format!("{}B", text.trim_end_matches('B'))).map_or(0, |bytes| bytes.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Roots) {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let roots = Roots::under(directory.path());
        (directory, roots)
    }

    const OOMD_RUNS: (&str, &str) = ("sys/fs/cgroup/system.slice/systemd-oomd.service/cgroup.procs", "812\n");

    #[test]
    fn more_swap_stays_free_than_systemd_oomd_tolerates() {
        let reserve = |files: &[(&str, &str)]| {
            let (_keep, roots) = tree(files);
            Killers::read(&roots).swap_reserve().0
        };
        assert_eq!(reserve(&[("etc/systemd/oomd.conf", "[OOM]\nSwapUsedLimit=50%\n")]), 100_000, "it does not run");
        assert_eq!(reserve(&[("sys/fs/cgroup/system.slice/systemd-oomd.service/cgroup.procs", "\n")]), 100_000, "it has stopped");
        assert_eq!(reserve(&[OOMD_RUNS]), 150_000, "its default is 90 %");
        assert_eq!(reserve(&[OOMD_RUNS, ("usr/lib/systemd/oomd.conf", "[OOM]\n#SwapUsedLimit=10%\nSwapUsedLimit = 800‰\n")]), 250_000);
        let overridden = [
            OOMD_RUNS,
            ("etc/systemd/oomd.conf", "SwapUsedLimit=80%\n"),
            ("usr/lib/systemd/oomd.conf", "SwapUsedLimit=20%\n"),
            ("usr/lib/systemd/oomd.conf.d/50-limit.conf", "[OOM]\nSwapUsedLimit=30%\n"),
            ("etc/systemd/oomd.conf.d/50-limit.conf", "[OOM]\nSwapUsedLimit=70.5%\n"),
            ("run/systemd/oomd.conf.d/10-first.conf", "SwapUsedLimit=10%\n"),
            ("etc/systemd/oomd.conf.d/99-not.txt", "SwapUsedLimit=1%\n"),
        ];
        assert_eq!(reserve(&overridden), 345_000);
        assert_eq!(reserve(&[OOMD_RUNS, ("etc/systemd/oomd.conf", "SwapUsedLimit=soon\n")]), 150_000, "as the default");
        assert_eq!(reserve(&[OOMD_RUNS, ("etc/systemd/oomd.conf", "SwapUsedLimit=0%\n")]), 1_000_000, "nothing may be swapped");
    }

    #[test]
    fn the_kubelets_thresholds_are_found() {
        let of = |config: &str| {
            let (_keep, roots) = tree(&[("var/lib/kubelet/config.yaml", config), ("sys/fs/cgroup/kubepods.slice/memory.stat", "")]);
            Killers::read(&roots).kubelet.unwrap()
        };
        let config = "kind: KubeletConfiguration\nevictionHard:\n  memory.available: \"100Mi\"\nevictionSoft:\n  memory.available: 1Gi\n\
                      memorySwap:\n  swapBehavior: LimitedSwap\n";
        assert_eq!(of(config), Kubelet { eviction: Some("1Gi".to_owned()), swap: true });
        assert_eq!(of("evictionHard:\n  memory.available: '5%'\n  nodefs.available: 10%\n").eviction.as_deref(), Some("5%"));
        assert_eq!(of("swapBehavior: NoSwap\nmemory.available:\n"), Kubelet::default());
        let (_keep, roots) = tree(&[]);
        assert_eq!(Killers::read(&roots), Killers::default());
    }
}
