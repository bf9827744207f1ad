//! Reports slow memory, and the kernel features that policy `slowdown` uses.

use kernel::cxl::{self, Device};
use kernel::damon::Damon;
use kernel::madvise::PidFd;
use kernel::numa::{self, Balancing, MemoryTier, Node};
use kernel::page_idle::IdleBitmap;
use kernel::thp::{self, Enabled, Splitter};
use kernel::{Roots, perf};
use serde::Serialize;

use super::check::{Check, Rank, Status, check, from_error};

/// Memory nodes of this machine, and which of them can be slow memory.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SlowMemory {
    /// Online nodes.
    pub nodes: Vec<Node>,
    /// The kernel's memory tiers, fastest first.
    pub tiers: Vec<MemoryTier>,
    /// Migration between nodes by the kernel itself.
    pub balancing: Balancing,
    /// CXL memory devices and regions, and DAX devices, from which nodes are created.
    pub devices: Vec<Device>,
    /// The node that `slow.node = "auto"` selects.
    pub slow_node: Option<u32>,
    /// The nearest node with processors, from which pages are demoted.
    pub fast_node: Option<u32>,
    /// Results for single items.
    pub checks: Vec<Check>,
}

/// Examines nodes, migration between them, and interfaces for access rates.
pub(super) fn examine(roots: &Roots) -> SlowMemory {
    let mut found = SlowMemory::default();
    let mut checks = Vec::new();
    let mut report = |name, error: &kernel::Error| checks.push(as_advice(from_error(name, error)));
    found.nodes = numa::nodes(roots).unwrap_or_else(|error| (report("nodes", &error), Vec::new()).1);
    found.tiers = numa::tiers(roots).unwrap_or_else(|error| (report("memory_tiers", &error), Vec::new()).1);
    found.balancing = numa::balancing(roots).unwrap_or_else(|error| (report("numa_balancing", &error), Balancing::default()).1);
    found.devices = cxl::devices(roots).unwrap_or_else(|error| (report("cxl", &error), Vec::new()).1);
    let slow = numa::slow_nodes(&found.nodes).first().copied();
    let home = slow.and_then(|slow| numa::fast_node(&found.nodes, slow));
    (found.slow_node, found.fast_node) = (slow.map(|node| node.id), home.map(|node| node.id));
    checks.extend(found.nodes.iter().map(|node| described(node, &found.nodes)));
    checks.push(slow_node(slow, home));
    checks.extend(found.devices.iter().map(device));
    checks.extend(tiers(&found));
    checks.extend(kernel_migration(&found));
    checks.extend([huge_pages(roots), split(roots), collapse(), rates(roots), access_sampling(roots)]);
    found.checks = checks;
    found
}

/// A machine without slow memory is in order: missing items are advice.
fn as_advice(check: Check) -> Check {
    match check.status {
        Status::Missing => Check { status: Status::Advice, ..check },
        _ => check,
    }
}

fn described(node: &Node, nodes: &[Node]) -> Check {
    let cpus = match node.cpus.len() {
        0 => "no CPUs".to_owned(),
        count => format!("{count} CPUs"),
    };
    let mut found = format!("{}: {cpus}, {}, {} free", node.id, node.total, node.free);
    if let Some(latency) = node.read_latency_ns() {
        found += &format!("; read latency {latency} ns (HMAT)");
    }
    let others = nodes.iter().filter(|other| other.id != node.id);
    for (other, distance) in others.filter_map(|other| Some((other.id, node.distance_to(other.id)?))) {
        found += &format!("; distance {distance} to node {other}");
    }
    check("node", Status::Ok, found, "")
}

fn slow_node(slow: Option<&Node>, home: Option<&Node>) -> Check {
    let (Some(slow), Some(home)) = (slow, home) else {
        let remedy = "bring CXL memory online as a node (daxctl reconfigure-device --mode=system-ram); for tests, boot with numa=fake and \
                      set slow.node, or use a QEMU guest with a node without CPUs";
        return check("slow_node", Status::Advice, "no node is memory without CPUs, so slow.node = \"auto\" finds none", remedy);
    };
    let found = format!("node {}, for pages of node {}", slow.id, home.id);
    match slow.read_latency_ns() {
        Some(_) => check("slow_node", Status::Ok, found, ""),
        None => {
            let remedy = "set slow.latency to the access latency, measured with a pointer chase";
            check("slow_node", Status::Advice, format!("{found}; firmware does not report its latency (no HMAT)"), remedy)
        }
    }
}

fn device(device: &Device) -> Check {
    let mut found = device.name.clone();
    if let Some(size) = device.size {
        found += &format!(": {size}");
    }
    if let Some(node) = device.target_node {
        found += &format!(", of node {node}");
    }
    let bus = if device.name.starts_with("dax") { "dax" } else { "cxl" };
    match device.driver.as_deref() {
        Some("device_dax") => {
            let command = format!("daxctl reconfigure-device --mode=system-ram {}", device.name);
            check(bus, Status::Advice, found + ", in device mode, not memory of a node", "make it memory of a node:")
                .with_commands([command])
        }
        Some(driver) => check(bus, Status::Ok, format!("{found}, driver {driver}"), ""),
        None => check(bus, Status::Ok, found, ""),
    }
}

fn tiers(slow: &SlowMemory) -> Option<Check> {
    let tier =
        |tier: &MemoryTier| format!("{}: {}", tier.id, tier.nodes.iter().map(|node| format!("node {node}")).collect::<Vec<_>>().join(", "));
    let found = slow.tiers.iter().map(tier).collect::<Vec<_>>().join("; ");
    (!found.is_empty()).then(|| check("memory_tiers", Status::Ok, found, ""))
}

/// Migration by the kernel undoes placements of the policy, or demotes pages without its budget.
fn kernel_migration(slow: &SlowMemory) -> Vec<Check> {
    let has_slow_node = slow.slow_node.is_some();
    let demotion = slow.balancing.demotion.map(|on| match on {
        true if has_slow_node => {
            let found = "on: the kernel itself demotes pages to slow memory under memory pressure, without an access budget";
            check("demotion", Status::Advice, found, "switch it off:")
                .ranked(Rank::Costs)
                .with_commands(["echo false > /sys/kernel/mm/numa/demotion_enabled"])
        }
        true => check("demotion", Status::Ok, "on, without slow memory to demote to", ""),
        false => check("demotion", Status::Ok, "off: reclaim swaps pages out and does not demote them", ""),
    });
    let balancing = slow.balancing.mode.map(|mode| match mode {
        0 => check("numa_balancing", Status::Ok, "off: the kernel does not move pages between nodes", ""),
        _ if has_slow_node => {
            let found = format!("mode {mode}: the kernel moves pages between nodes, and undoes placements of the policy");
            check("numa_balancing", Status::Advice, found, "set slow.manage = true, which switches it off while the agent runs, or now:")
                .ranked(Rank::Costs)
                .with_commands(["sysctl kernel.numa_balancing=0"])
        }
        _ => check("numa_balancing", Status::Ok, format!("mode {mode}, without slow memory to promote from"), ""),
    });
    demotion.into_iter().chain(balancing).collect()
}

fn huge_pages(roots: &Roots) -> Check {
    const NAME: &str = "huge_pages";
    match thp::settings(roots) {
        Ok(Some(settings)) => {
            let found = |scope: &str| format!("{scope}, of {}; defrag {}", settings.size, settings.defrag);
            let remedy = "permit them to programs that use madvise(MADV_HUGEPAGE):";
            let command = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
            match settings.enabled {
                Enabled::Always => check(NAME, Status::Ok, found("for all memory"), ""),
                Enabled::Madvise => check(NAME, Status::Ok, found("for memory with MADV_HUGEPAGE"), ""),
                Enabled::Never => check(NAME, Status::Advice, found("for no memory: blocks are sampled and moved page by page"), remedy)
                    .with_commands([command]),
            }
        }
        Ok(None) => {
            let remedy = "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y";
            check(NAME, Status::Advice, "not supported by this kernel: blocks are sampled and moved page by page", remedy)
        }
        Err(error) => as_advice(from_error(NAME, &error)),
    }
}

fn split(roots: &Roots) -> Check {
    match Splitter::open(roots) {
        Ok(_) => check("split_huge_pages", Status::Ok, "sampled huge pages can be split, to measure accesses to their parts", ""),
        Err(error) => as_advice(from_error("split_huge_pages", &error)),
    }
}

fn collapse() -> Check {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    match PidFd::open(own).and_then(|process| process.can_collapse()) {
        Ok(true) => check("collapse", Status::Ok, "split huge pages can be collapsed again (MADV_COLLAPSE)", ""),
        Ok(false) => {
            let remedy = "boot Linux 6.1 or newer with CONFIG_TRANSPARENT_HUGEPAGE=y, or set slow.split = false";
            check("collapse", Status::Advice, "split huge pages stay split until khugepaged collapses them: no MADV_COLLAPSE", remedy)
        }
        Err(error) => as_advice(from_error("collapse", &error)),
    }
}

/// Interfaces that sample the accessed bits of single pages.
fn rates(roots: &Roots) -> Check {
    const NAME: &str = "access_rates";
    if IdleBitmap::open(roots).is_ok() {
        return check(NAME, Status::Ok, "from idle page tracking", "");
    }
    match Damon::probe(roots) {
        Ok(_) => check(NAME, Status::Ok, "from DAMON, which underestimates the rates of small, very hot memory", ""),
        Err(error) => as_advice(from_error(NAME, &error)),
    }
}

/// Hardware access sampling, which needs no accessed bits.
fn access_sampling(roots: &Roots) -> Check {
    const NAME: &str = "access_sampling";
    match perf::access_sampling(roots) {
        Ok(found) if found.is_empty() => check(NAME, Status::Ok, "this processor does not sample memory accesses; this is optional", ""),
        Ok(found) => check(NAME, Status::Ok, format!("{} is available; slow.access_sampling uses it (not tested)", found.join(", ")), ""),
        Err(error) => as_advice(from_error(NAME, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results for one item on a machine with the given files.
    fn results(files: &[(&str, &str)], name: &str) -> Vec<(Status, String)> {
        let keep = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = keep.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let checks = examine(&Roots::under(keep.path())).checks.into_iter();
        checks
            .filter(|check| check.name == name)
            .map(|check| (check.status, format!("{} -> {} {}", check.found, check.remedy, check.commands.join("; "))))
            .collect()
    }

    /// Node 0 with two processors, node 1 without.
    const TWO_NODES: [(&str, &str); 6] = [
        ("sys/devices/system/node/node0/cpulist", "0-1\n"),
        ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 4096 kB\nNode 0 MemFree: 2048 kB\n"),
        ("sys/devices/system/node/node0/distance", "10 20\n"),
        ("sys/devices/system/node/node1/cpulist", "\n"),
        ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 2048 kB\nNode 1 MemFree: 1024 kB\n"),
        ("sys/devices/system/node/node1/distance", "20 10\n"),
    ];

    #[test]
    fn items_for_slow_memory_have_remedies() {
        let check = |extra: &[(&str, &str)], name: &str, status: Status, parts: &[&str]| {
            let results = results(&[&TWO_NODES[..], extra].concat(), name);
            assert!(
                matches!(&results[..], [(found, text)] if *found == status && parts.iter().all(|part| text.contains(part))),
                "{name}: {results:?}"
            );
        };
        let latency = ("sys/devices/system/node/node1/access0/initiators/read_latency", "500\n");
        check(&[], "slow_node", Status::Advice, &["node 1, for pages of node 0", "no HMAT", "slow.latency"]);
        check(&[latency], "slow_node", Status::Ok, &["node 1"]);
        for mode in ["1\n", "2\n"] {
            let on = ("proc/sys/kernel/numa_balancing", mode);
            check(&[on], "numa_balancing", Status::Advice, &[mode.trim(), "sysctl kernel.numa_balancing=0", "slow.manage"]);
        }
        check(&[("proc/sys/kernel/numa_balancing", "0\n")], "numa_balancing", Status::Ok, &["off"]);
        check(&[("proc/sys/kernel/numa_balancing", "?\n")], "numa_balancing", Status::Advice, &["numa_balancing, line 1"]);
        let demotion = "sys/kernel/mm/numa/demotion_enabled";
        check(&[(demotion, "true\n")], "demotion", Status::Advice, &["without an access budget", "echo false"]);
        check(&[(demotion, "false\n")], "demotion", Status::Ok, &["off"]);
        let tier = ("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0-1\n");
        check(&[tier], "memory_tiers", Status::Ok, &["4: node 0, node 1"]);
        check(&[], "huge_pages", Status::Advice, &["CONFIG_TRANSPARENT_HUGEPAGE"]);
        check(&[], "split_huge_pages", Status::Advice, &["mount -t debugfs"]);
        check(&[("sys/kernel/debug/split_huge_pages", "")], "split_huge_pages", Status::Ok, &[]);
        check(&[], "access_rates", Status::Advice, &["CONFIG_DAMON_VADDR"]);
        check(&[("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n")], "access_rates", Status::Ok, &["DAMON"]);
        check(
            &[("sys/bus/event_source/devices/ibs_op/type", "9\n")],
            "access_sampling",
            Status::Ok,
            &["ibs_op is available; slow.access_sampling uses it"],
        );
        check(&[], "access_sampling", Status::Ok, &["does not sample memory accesses"]);
        check(&[("sys/bus/dax/devices/dax0.0/size", "4096\n")], "dax", Status::Ok, &["dax0.0: 4.0 KiB"]);
    }

    #[test]
    fn nodes_are_described() {
        let nodes = results(&TWO_NODES, "node");
        let expected = [
            "0: 2 CPUs, 4.0 MiB, 2.0 MiB free; distance 20 to node 1 ->  ",
            "1: no CPUs, 2.0 MiB, 1.0 MiB free; distance 20 to node 0 ->  ",
        ];
        assert_eq!(nodes, expected.map(|text| (Status::Ok, text.to_owned())));
        let alone = [TWO_NODES[0], TWO_NODES[1], ("sys/devices/system/node/node0/distance", "10\n")];
        let results = results(&alone, "slow_node");
        assert!(matches!(&results[..], [(Status::Advice, text)] if text.contains("daxctl") && text.contains("numa=fake")), "{results:?}");
    }
}
