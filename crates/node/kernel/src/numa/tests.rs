use super::*;
use crate::testing::{cut_everywhere, put, tree};

const MEMINFO: &str = "Node 1 MemTotal:        2048 kB\nNode 1 MemFree:         1024 kB\nNode 1 MemUsed:         1024 kB\n\
                       Node 1 Active(file):      12 kB\nNode 1 Inactive(file):    20 kB\nNode 1 HugePages_Total:     0\n";

/// Writes the files of a node.
fn put_node(roots: &Roots, id: u32, cpus: &str, kib: u64, distance: &str, latency: Option<&str>) {
    let at = |name: &str| format!("devices/system/node/node{id}/{name}");
    put(&roots.sys, &at("cpulist"), &format!("{cpus}\n"));
    put(&roots.sys, &at("meminfo"), &format!("Node {id} MemTotal: {kib} kB\nNode {id} MemFree: 4 kB\n"));
    put(&roots.sys, &at("distance"), &format!("{distance}\n"));
    if let Some(latency) = latency {
        put(&roots.sys, &at("access0/initiators/read_latency"), &format!("{latency}\n"));
        put(&roots.sys, &at("access0/initiators/write_bandwidth"), "0\n");
        put(&roots.sys, &at("access0/initiators/read_bandwidth"), "2048\n");
    }
}

#[test]
fn lists_tables_and_distances_are_parsed() {
    let check = |text, expected: &[u32]| assert_eq!(parse_list(text).unwrap(), expected, "{text:?}");
    check("0-2,5\n", &[0, 1, 2, 5]);
    check("7", &[7]);
    check("\n", &[]);
    for text in ["2-1", "a", "1-", "-1", "0-4294967295", "1;2"] {
        assert!(parse_list(text).is_err(), "{text:?}");
    }
    let memory = Memory { total: Bytes::mib(2), free: Bytes::mib(1), files: Bytes(32 << 10) };
    assert_eq!(parse_meminfo(MEMINFO).unwrap(), memory);
    let without = MEMINFO.replace("Active(file)", "Active").replace("Inactive(file)", "Inactive");
    assert_eq!(parse_meminfo(&without).unwrap(), Memory { files: Bytes::ZERO, ..memory });
    assert_eq!(parse_meminfo(&MEMINFO.replace("MemFree", "Free")).unwrap_err().expected, "MemFree");
    assert_eq!(parse_distances("10 21\n", &[0, 3]).unwrap(), [(0, 10), (3, 21)]);
    cut_everywhere("0-2,5\n", parse_list);
    cut_everywhere(MEMINFO, parse_meminfo);
    cut_everywhere("10 21\n", |text| parse_distances(text, &[0, 3]));
    cut_everywhere("true\n", parse_demotion);
}

#[test]
fn nodes_are_read_with_the_values_of_firmware() {
    let (_keep, roots) = tree(&[("sys/devices/system/node/online", "0-1\n"), ("sys/devices/system/node/power/x", "")]);
    put_node(&roots, 0, "0-1", 4096, "10 20", None);
    put_node(&roots, 1, "", 2048, "20 10", Some("500"));
    let [fast, slow] = &nodes(&roots).unwrap()[..] else { panic!("two nodes") };
    assert_eq!((fast.id, &fast.cpus[..], fast.total, fast.access), (0, &[0, 1][..], Bytes::mib(4), None));
    let access = Access { read_latency_ns: Some(500), read_bandwidth_mib: Some(2048), ..Access::default() };
    assert_eq!((slow.id, slow.cpus.len(), slow.free, slow.access), (1, 0, Bytes(4096), Some(access)));
    assert_eq!((slow.distance_to(0), slow.distance_to(7)), (Some(20), None));
    put(&roots.sys, "devices/system/node/node1/distance", "20\n");
    assert!(matches!(nodes(&roots), Err(Error::Parse { path, .. }) if path.ends_with("node1/distance")));
    let (_keep, roots) = tree(&[("sys/kernel/x", "")]);
    assert_eq!((nodes(&roots).unwrap(), tiers(&roots).unwrap()), (vec![], vec![]));
    assert_eq!(balancing(&roots).unwrap(), Balancing::default());
}

#[test]
fn the_slowest_node_without_processors_is_listed_first() {
    // (processors, memory in KiB, distances, latency) of each node.
    type Row = (&'static str, u64, &'static str, Option<&'static str>);
    let check = |rows: &[Row], slowest_first: &[u32], home: Option<u32>| {
        let (_keep, roots) = tree(&[("sys/devices/system/node/online", "")]);
        for (id, (cpus, kib, distance, latency)) in (0..).zip(rows) {
            put_node(&roots, id, cpus, *kib, distance, *latency);
        }
        let nodes = nodes(&roots).unwrap();
        let slow = slow_nodes(&nodes);
        assert_eq!(slow.iter().map(|node| node.id).collect::<Vec<_>>(), slowest_first, "{rows:?}");
        assert_eq!(slow.first().and_then(|slow| fast_node(&nodes, slow)).map(|node| node.id), home, "{rows:?}");
    };
    check(&[("0", 4, "10", None)], &[], None);
    check(&[("0", 4, "10 20", None), ("1", 4, "20 10", None)], &[], None);
    check(&[("0", 4, "10 20", None), ("", 0, "20 10", None)], &[], None);
    check(&[("0", 4, "10 20", None), ("", 4, "20 10", None)], &[1], Some(0));
    check(&[("", 4, "10 20", None), ("0", 4, "20 10", None)], &[0], Some(1));
    // Two sockets, each with an expander: of equal nodes the first; its fast node is the adjacent socket.
    let sockets =
        [("0", 4, "10 21 17 28", None), ("1", 4, "21 10 28 17", None), ("", 4, "17 28 10 28", None), ("", 4, "28 17 28 10", None)];
    check(&sockets, &[2, 3], Some(0));
    check(&[sockets[0], sockets[1], sockets[2], ("", 4, "29 18 28 10", None)], &[3, 2], Some(1));
    // Latency, if known for all nodes, takes precedence over distance.
    let timed = |one, other| [sockets[0], sockets[1], ("", 4, "17 28 10 28", one), ("", 4, "29 18 28 10", other)];
    check(&timed(Some("900"), Some("400")), &[2, 3], Some(0));
    check(&timed(Some("900"), None), &[3, 2], Some(1));
}

#[test]
fn settings_of_the_kernels_migration_are_read() {
    let (_keep, roots) = tree(&[
        ("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0\n"),
        ("sys/devices/virtual/memory_tiering/memory_tier112/nodelist", "1-2\n"),
        ("sys/devices/virtual/memory_tiering/uevent", ""),
        ("sys/kernel/mm/numa/demotion_enabled", "true\n"),
        ("proc/sys/kernel/numa_balancing", "2\n"),
    ]);
    let tier = |id, nodes: &[u32]| MemoryTier { id, nodes: nodes.to_vec() };
    assert_eq!(tiers(&roots).unwrap(), [tier(4, &[0]), tier(112, &[1, 2])]);
    assert_eq!(balancing(&roots).unwrap(), Balancing { mode: Some(2), demotion: Some(true) });
    put(&roots.proc, "sys/kernel/numa_balancing", "on\n");
    assert!(matches!(balancing(&roots), Err(Error::Parse { value, .. }) if value == "on\n"));
    nodes(&Roots::host()).unwrap();
}
