//! Interfaces that not every kernel has. Each is detected by probing it.

use crate::block::BlockDevice;
use crate::cgroup::{self, Cgroup, CgroupRoot, Swappiness};
use crate::kmsg::Kmsg;
use crate::zswap::Zswap;
use crate::{Error, Result, Roots, psi, swap};

/// Cgroups that are searched for one with `memory.reclaim`.
const CGROUPS_MAX: usize = 10_000;

/// One interface.
#[derive(Debug)]
pub struct Feature {
    /// A short name in `snake_case`.
    pub name: &'static str,
    /// What Thermocline uses it for.
    pub purpose: &'static str,
    /// [`Error::Unsupported`] with the remedy if the machine lacks it.
    pub offered: Result<()>,
}

/// Probes every optional interface.
///
/// Cgroup files are probed in the first cgroup that has `memory.reclaim`. A request to reclaim 0 bytes
/// ([`Cgroup::reclaim_takes`]) has no effect on it.
#[must_use]
pub fn features(roots: &Roots) -> Vec<Feature> {
    let feature = |name, purpose, offered| Feature { name, purpose, offered };
    let in_cgroup = |probe: fn(&Cgroup) -> Result<()>| example(roots).and_then(|cgroup| probe(&cgroup));
    vec![
        feature("reclaim_swappiness", "balances anonymous memory and file cache in proactive reclaim", in_cgroup(reclaim_swappiness)),
        feature("zswap_writeback", "allows or prevents writes of a job's pages to the swap device", in_cgroup(zswap_writeback)),
        feature("zswap_shrinker", "writes back cold pages from zswap to the swap device", zswap_shrinker(roots)),
        feature("io_pressure", "reports a job's stalls on block I/O", in_cgroup(|cgroup| cgroup.io_pressure().map(drop))),
        feature("machine_io_pressure", "reports overload of the machine's block devices", psi::io(roots).map(drop)),
        feature("cgroup_freeze", "reports that a job is frozen", in_cgroup(cgroup_freeze)),
        feature("device_latency", "reports the read latency of the swap device", device_latency(roots)),
        feature("swap_errors", "reports failed requests to a swap device", Kmsg::open(roots).map(drop)),
    ]
}

/// Returns a cgroup to probe. Any is suitable: all have the same files.
fn example(roots: &Roots) -> Result<Cgroup> {
    let root = CgroupRoot::probe(roots)?;
    let mut accounted = false;
    for name in cgroup::list(&root, CGROUPS_MAX)? {
        match Cgroup::open(&root, &name) {
            Ok(cgroup) if cgroup.path().join("memory.reclaim").exists() => return Ok(cgroup),
            Ok(cgroup) => accounted |= cgroup.path().join("memory.current").exists(),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    let root = root.path().display();
    Err(if accounted {
        Error::unsupported(format!("no cgroup below {root} has memory.reclaim"), "boot Linux 5.19 or newer")
    } else {
        let remedy = format!("start a service, or enable the controller for new cgroups: echo +memory > {root}/cgroup.subtree_control");
        Error::unsupported(format!("no cgroup below {root} has the memory controller"), remedy)
    })
}

fn reclaim_swappiness(cgroup: &Cgroup) -> Result<()> {
    if cgroup.reclaim_takes(Swappiness::Value(0))? {
        return Ok(());
    }
    Err(Error::unsupported("memory.reclaim of this kernel does not support swappiness", "boot Linux 6.9 or newer"))
}

fn zswap_writeback(cgroup: &Cgroup) -> Result<()> {
    let missing = || Error::unsupported("this kernel has no memory.zswap.writeback", "boot Linux 6.8 or newer, with CONFIG_ZSWAP=y");
    cgroup.zswap_writeback()?.map(drop).ok_or_else(missing)
}

fn zswap_shrinker(roots: &Roots) -> Result<()> {
    let missing = || Error::unsupported("zswap of this kernel has no shrinker", "boot Linux 6.8 or newer");
    Zswap::probe(roots)?.parameters()?.shrinker_enabled.map(drop).ok_or_else(missing)
}

fn cgroup_freeze(cgroup: &Cgroup) -> Result<()> {
    let missing = || Error::unsupported("this kernel has no cgroup.freeze", "boot Linux 5.2 or newer");
    cgroup.freeze()?.map(drop).ok_or_else(missing)
}

/// Checks every swap area; the error names the first one whose requests are not timed.
fn device_latency(roots: &Roots) -> Result<()> {
    let areas = swap::read(roots)?;
    if areas.is_empty() {
        return Err(Error::unsupported("no swap space", "add a swap device or file (mkswap, swapon)"));
    }
    for area in areas {
        let device = BlockDevice::under_swap(roots, &area)?;
        device.stat()?;
        // A page from zram is decompressed, which samples of the jobs' pages measure.
        if device.is_compressed_ram()? {
            continue;
        }
        if device.counts_io()? != Some(true) {
            let what = format!("the requests to {}, which holds the swap area {}, are not counted", device.name(), area.name);
            let disk = device.disk_name();
            return Err(Error::unsupported(what, format!("echo 1 > /sys/block/{disk}/queue/iostats")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{put, tree};

    const PRESSURE: &str = "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=8\n";
    const SWAPS: &str = "Filename Type Size Used Priority\n/dev/vdb partition 1048572 0 -2\n";

    /// A machine with every feature.
    const MACHINE: [(&str, &str); 13] = [
        ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
        ("sys/fs/cgroup/a/cgroup.procs", "1\n"),
        ("sys/fs/cgroup/b/memory.reclaim", ""),
        ("sys/fs/cgroup/b/memory.zswap.writeback", "1\n"),
        ("sys/fs/cgroup/b/io.pressure", PRESSURE),
        ("sys/fs/cgroup/b/cgroup.freeze", "0\n"),
        ("sys/module/zswap/parameters/shrinker_enabled", "N\n"),
        ("proc/pressure/io", PRESSURE),
        ("proc/swaps", SWAPS),
        ("dev/kmsg", ""),
        ("sys/class/block/vdb/stat", "0 0 0 0 0 0 0 0 0 0 0\n"),
        ("sys/class/block/vdb/queue/iostats", "1\n"),
        ("sys/class/block/vdb/size", "2097152\n"),
    ];

    /// The features that a machine lacks, each with its error.
    fn lacking(roots: &Roots) -> Vec<(&'static str, String)> {
        let missing = features(roots).into_iter().filter_map(|feature| Some((feature.name, feature.offered.err()?)));
        missing.map(|(name, error)| (name, error.to_string())).collect()
    }

    #[test]
    fn a_machine_with_every_feature_lacks_none() {
        let (_keep, roots) = tree(&MACHINE);
        assert_eq!(lacking(&roots), []);
    }

    #[test]
    fn each_missing_interface_is_reported_with_its_remedy() {
        let check = |removed: &str, name: &str, said: &str| {
            let left: Vec<_> = MACHINE.into_iter().filter(|(path, _)| *path != removed).collect();
            let (_keep, roots) = tree(&left);
            put(&roots.sys, "module/zswap/parameters/enabled", "N\n");
            let lacking = lacking(&roots);
            assert!(matches!(&lacking[..], [(found, error)] if *found == name && error.contains(said)), "{removed}: {lacking:?}");
        };
        check("sys/fs/cgroup/b/memory.zswap.writeback", "zswap_writeback", "boot Linux 6.8");
        check("sys/fs/cgroup/b/io.pressure", "io_pressure", "psi=1");
        check("sys/fs/cgroup/b/cgroup.freeze", "cgroup_freeze", "boot Linux 5.2");
        check("sys/module/zswap/parameters/shrinker_enabled", "zswap_shrinker", "boot Linux 6.8");
        check("proc/pressure/io", "machine_io_pressure", "psi=1");
        check("proc/swaps", "device_latency", "swapon");
        check("dev/kmsg", "swap_errors", "give the agent the host's /dev/kmsg");
        check("sys/class/block/vdb/queue/iostats", "device_latency", "echo 1 > /sys/block/vdb/queue/iostats");
    }

    #[test]
    fn the_latency_of_zram_needs_no_counters_of_requests() {
        let (_keep, roots) = tree(&MACHINE);
        put(&roots.sys, "class/block/vdb/queue/iostats", "0\n");
        assert!(matches!(&lacking(&roots)[..], [("device_latency", _)]));
        put(&roots.sys, "class/block/vdb/comp_algorithm", "lzo [lz4]\n");
        assert_eq!(lacking(&roots), []);
    }

    #[test]
    fn without_a_reclaimable_cgroup_all_cgroup_features_are_missing() {
        let (_keep, roots) = tree(&MACHINE[..2]);
        let lacking = lacking(&roots);
        for name in ["reclaim_swappiness", "zswap_writeback", "io_pressure", "cgroup_freeze"] {
            assert!(lacking.iter().any(|(found, error)| *found == name && error.contains("echo +memory")), "{name}: {lacking:?}");
        }
    }
}
