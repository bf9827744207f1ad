use units::{Bytes, RatioPpm};

use super::tree::{parse_frozen, parse_populated, parse_procs};
use super::*;
use crate::testing::{cut_everywhere, get, put, tree};

const STAT: &str = include_str!("../testdata/memory.stat-6.12");
const STAT_7_2: &str = include_str!("../testdata/memory.stat-7.2");
const CPU_STAT: &str = "usage_usec 7431\nuser_usec 5000\nsystem_usec 2431\nnice_usec 0\n";
const PRESSURE: &str = "some avg10=1.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=8\n";
const EVENTS: &str = "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 0\n";

/// A machine with the cgroups `/a`, limited to 64 MiB, `/a/b` and `/c`.
const MACHINE: [(&str, &str); 14] = [
    ("sys/fs/cgroup/cgroup.controllers", "cpu io memory pids\n"),
    ("sys/fs/cgroup/cgroup.subtree_control", "cpu memory\n"),
    ("sys/fs/cgroup/cgroup.procs", "1\n2\n"),
    ("sys/fs/cgroup/a/memory.current", "4096\n"),
    ("sys/fs/cgroup/a/memory.max", "67108864\n"),
    ("sys/fs/cgroup/a/memory.low", "0\n"),
    ("sys/fs/cgroup/a/memory.stat", STAT),
    ("sys/fs/cgroup/a/memory.events", EVENTS),
    ("sys/fs/cgroup/a/memory.reclaim", ""),
    ("sys/fs/cgroup/a/cgroup.events", "populated 1\nfrozen 0\n"),
    ("sys/fs/cgroup/a/cgroup.procs", "11\n0\n12\n"),
    ("sys/fs/cgroup/a/b/memory.max", "max\n"),
    ("sys/fs/cgroup/a/b/cgroup.procs", "13\n"),
    ("sys/fs/cgroup/c/cgroup.procs", ""),
];

fn root(roots: &Roots) -> CgroupRoot {
    CgroupRoot::probe(roots).expect("cgroup v2")
}

#[test]
fn parsers_reject_truncated_files() {
    let stat = parse_stat(STAT).unwrap();
    assert!(stat.zswapped > stat.zswap && stat.zswpout > stat.zswpin, "{stat:?}");
    assert_eq!((stat.pswpin, stat.zswap_incomp, stat.pgsteal_proactive), (None, None, None), "not printed by 6.12");
    assert_eq!(stat.file_writeback, Some(Bytes(0)));
    assert!(stat.workingset_restore_anon.is_some() && stat.workingset_restore_file.is_some(), "{stat:?}");
    cut_everywhere(STAT, parse_stat);
    let stat = parse_stat(STAT_7_2).unwrap();
    assert!(stat.zswapped > stat.zswap && stat.pswpin.is_some() && stat.zswap_incomp.is_some(), "{stat:?}");
    assert!(stat.pgscan_proactive >= stat.pgsteal_proactive && stat.pgsteal_proactive.is_some(), "{stat:?}");
    cut_everywhere(STAT_7_2, parse_stat);
    assert_eq!(parse_events(EVENTS).unwrap(), MemoryEvents { low: 1, high: 2, max: 3, oom: 4, oom_kill: 5 });
    cut_everywhere(EVENTS, parse_events);
    assert_eq!(parse_limit("max\n").unwrap(), Limit::Max);
    cut_everywhere("67108864\n", parse_limit);
    assert_eq!(parse_procs("11\n0\n12\n").unwrap(), [11, 12]);
    cut_everywhere("11\n0\n12\n", parse_procs);
    cut_everywhere("populated 1\nfrozen 0\n", parse_populated);
    cut_everywhere("populated 1\nfrozen 1\n", parse_frozen);
    assert_eq!(parse_switch("1\n"), Ok(true));
    cut_everywhere("0\n", parse_switch);
    cut_everywhere(CPU_STAT, parse_cpu_usage);
    assert_eq!(parse_limit("infinity").unwrap_err().expected, "a number of bytes, or max");
}

#[test]
fn what_no_process_maps_is_listed_and_not_counted_as_mapped() {
    let unmapped = |text: &str| parse_stat(text).unwrap().unmapped();
    let listed = "inactive_anon 40960\nactive_anon 8192\n";
    assert_eq!(unmapped(&format!("{listed}anon 20480\nshmem 4096\nswapcached 28672\n")), Bytes(24576));
    // Pages that were promoted are in the swap cache as well, and mapped.
    assert_eq!(unmapped(&format!("{listed}anon 45056\nshmem 4096\nswapcached 28672\n")), Bytes::ZERO);
    // Locked memory is mapped, and on another list.
    assert_eq!(unmapped(&format!("{listed}anon 61440\nshmem 4096\nunevictable 20480\n")), Bytes::ZERO);
    assert!(unmapped(STAT) <= parse_stat(STAT).unwrap().swapcached.unwrap(), "nothing else of a job is unmapped");
}

#[test]
fn every_number_is_below_max() {
    assert!(Limit::Bytes(Bytes(u64::MAX)) < Limit::Max && Limit::Bytes(Bytes(1)) < Limit::Bytes(Bytes(2)));
    assert_eq!((Limit::Max.to_string(), Limit::Bytes(Bytes(7)).to_string()), ("max".into(), "7".into()));
}

#[test]
fn without_cgroup_v2_the_error_names_the_hierarchy_found() {
    let check = |files: &[(&str, &str)], what: &str| {
        let (_keep, roots) = tree(files);
        let error = CgroupRoot::probe(&roots).unwrap_err();
        assert!(error.is_unsupported() && error.to_string().contains(what), "{error}");
        assert!(error.to_string().contains("systemd.unified_cgroup_hierarchy=1"), "{error}");
    };
    check(&[("sys/fs/cgroup/memory/memory.limit_in_bytes", "1")], "cgroup v1 only");
    check(&[("sys/fs/cgroup/unified/cgroup.controllers", "")], "a hybrid hierarchy");
    check(&[("sys/kernel/x", "")], "no cgroup v2 hierarchy");
    check(&[("sys/fs/cgroup/cgroup.controllers", "cpu io\n")], "no memory controller");
}

#[test]
fn files_of_a_cgroup_are_parsed() {
    let (_keep, roots) = tree(&MACHINE);
    let a = Cgroup::open(&root(&roots), "/a/").unwrap();
    assert_eq!((a.name(), a.id()), ("/a", a.path().metadata().unwrap().ino()));
    assert_eq!(a.current().unwrap(), Bytes(4096));
    assert_eq!(a.max().unwrap(), Limit::Bytes(Bytes::mib(64)));
    assert_eq!(a.events().unwrap().oom, 4);
    assert!(a.populated().unwrap());
    assert_eq!((a.swap_current().unwrap(), a.swap_max().unwrap(), a.zswap_current().unwrap()), (None, None, None));
    assert_eq!((a.zswap_max().unwrap(), a.zswap_writeback().unwrap(), a.cpu_usage_us().unwrap()), (None, None, None));
    assert!(!a.frozen().unwrap());
    put(&roots.cgroup, "a/memory.min", "4096\n");
    put(&roots.cgroup, "a/memory.zswap.max", "max\n");
    put(&roots.cgroup, "a/memory.zswap.writeback", "0\n");
    put(&roots.cgroup, "a/cpu.stat", CPU_STAT);
    put(&roots.cgroup, "a/cgroup.events", "populated 1\nfrozen 1\n");
    assert_eq!((a.min().unwrap(), a.zswap_max().unwrap()), (Limit::Bytes(Bytes(4096)), Some(Limit::Max)));
    assert_eq!((a.zswap_writeback().unwrap(), a.cpu_usage_us().unwrap()), (Some(false), Some(7431)));
    assert!(a.frozen().unwrap());
    put(&roots.cgroup, "a/cgroup.events", "populated 1\n");
    assert!(!a.frozen().unwrap(), "before Linux 5.2");
}

#[test]
fn room_is_the_least_of_a_cgroup_and_its_ancestors() {
    let (_keep, roots) = tree(&MACHINE);
    put(&roots.cgroup, "a/b/memory.current", "4096\n");
    let room = || {
        let b = Cgroup::open(&root(&roots), "/a/b").unwrap();
        (b.swap_room().unwrap(), b.zswap_room().unwrap(), b.may_pass_zswap().unwrap())
    };
    assert_eq!(room(), (Bytes(u64::MAX), Bytes(u64::MAX), true), "a kernel without swap");
    for cgroup in ["a", "a/b"] {
        for (file, text) in
            [("swap.max", "max"), ("swap.current", "100"), ("zswap.max", "max"), ("zswap.current", "40"), ("zswap.writeback", "1")]
        {
            put(&roots.cgroup, &format!("{cgroup}/memory.{file}"), &format!("{text}\n"));
        }
    }
    assert_eq!(room(), (Bytes(u64::MAX), Bytes(u64::MAX), true));
    put(&roots.cgroup, "a/b/memory.swap.max", "1000\n");
    put(&roots.cgroup, "a/b/memory.zswap.max", "50\n");
    assert_eq!(room(), (Bytes(900), Bytes(10), true));
    put(&roots.cgroup, "a/memory.swap.max", "150\n");
    put(&roots.cgroup, "a/memory.zswap.max", "30\n");
    put(&roots.cgroup, "a/memory.zswap.writeback", "0\n");
    assert_eq!(room(), (Bytes(50), Bytes::ZERO, false), "the ancestor's hold as well");
}

#[test]
fn unaccounted_pressure_is_unsupported_with_a_remedy() {
    let (_keep, roots) = tree(&MACHINE);
    let a = Cgroup::open(&root(&roots), "/a").unwrap();
    let check = |remedy: &str| {
        for error in [a.pressure().unwrap_err(), a.io_pressure().unwrap_err()] {
            assert!(error.is_unsupported() && error.to_string().contains(remedy), "{error}");
        }
    };
    check("boot with psi=1");
    put(&roots.cgroup, "a/cgroup.pressure", "1\n");
    check("boot with psi=1");
    put(&roots.cgroup, "a/cgroup.pressure", "0\n");
    check("a/cgroup.pressure");
    put(&roots.cgroup, "a/memory.pressure", PRESSURE);
    assert_eq!(a.pressure().unwrap().some.avg10, RatioPpm(10_000));
    put(&roots.cgroup, "a/io.pressure", PRESSURE);
    assert_eq!(a.io_pressure().unwrap().some.total_us, 9);
}

#[test]
fn the_root_cgroup_has_no_memory_files() {
    let (_keep, roots) = tree(&MACHINE);
    let top = Cgroup::open(&root(&roots), "/").unwrap();
    assert_eq!(top.name(), "/");
    let error = top.current().unwrap_err();
    assert!(error.is_unsupported() && error.to_string().contains("choose a cgroup below it"), "{error}");
}

#[test]
fn limits_are_read_at_each_level_that_has_one() {
    let (_keep, roots) = tree(&MACHINE);
    let root = root(&roots);
    put(&roots.cgroup, "a/memory.high", "1000\n");
    for (file, text) in [("memory.current", "4096\n"), ("memory.stat", "inactive_file 96\n"), ("memory.events", EVENTS)] {
        put(&roots.cgroup, &format!("a/b/{file}"), text);
    }
    let levels = Cgroup::open(&root, "a/b").unwrap().limit_levels().unwrap();
    let ids: Vec<_> = levels.iter().map(|level| level.id).collect();
    assert_eq!(ids, ["a/b", "a"].map(|name| Cgroup::open(&root, name).unwrap().id()));
    assert_eq!(levels[1].limit, Limit::Bytes(Bytes(1000)), "memory.high, which is smaller than memory.max");
    assert_eq!((levels[0].current, levels[0].reclaimable, levels[0].stall_us), (Bytes(4096), Bytes(96), 0));
    assert!(Cgroup::open(&root, "c").unwrap().limit_levels().unwrap_err().is_unsupported());
}

#[test]
fn writes_have_the_kernels_format() {
    let (keep, roots) = tree(&MACHINE);
    let root = root(&roots);
    let a = Cgroup::open(&root, "a").unwrap();
    let wrote = |file: &str| get(keep.path(), &format!("sys/fs/cgroup/a/{file}"));
    a.set_low(Limit::Bytes(Bytes(8192))).unwrap();
    assert_eq!(wrote("memory.low"), "8192");
    a.set_low(Limit::Max).unwrap();
    assert_eq!(wrote("memory.low"), "max");
    for (swappiness, request) in
        [(None, "4096"), (Some(Swappiness::Value(200)), "4096 swappiness=200"), (Some(Swappiness::Max), "4096 swappiness=max")]
    {
        assert_eq!(a.reclaim(Bytes(4096), swappiness).unwrap(), ReclaimOutcome::Done);
        assert_eq!(wrote("memory.reclaim"), request);
    }
    assert!(a.reclaim_takes(Swappiness::Max).unwrap());
    assert_eq!(wrote("memory.reclaim"), "0 swappiness=max");
    a.move_process(77).unwrap();
    assert_eq!(wrote("cgroup.procs"), "77");
    let c = Cgroup::open(&root, "c").unwrap();
    for error in [a.kill().unwrap_err(), a.set_swap_max(Limit::Max).unwrap_err(), c.reclaim_takes(Swappiness::Value(0)).unwrap_err()] {
        assert!(error.is_unsupported(), "a missing file is never created: {error}");
    }
}

#[test]
fn a_recreated_cgroup_is_a_different_cgroup() {
    let (_keep, roots) = tree(&MACHINE);
    let root = root(&roots);
    let c = Cgroup::open(&root, "c").unwrap();
    std::fs::rename(c.path(), roots.cgroup.join("moved")).unwrap();
    assert!(c.procs(10).unwrap_err().is_gone());
    put(&roots.cgroup, "c/cgroup.procs", "99\n");
    put(&roots.cgroup, "c/cgroup.kill", "");
    assert!(c.procs(10).unwrap_err().is_gone());
    assert!(c.kill().unwrap_err().is_gone());
    assert_eq!(get(&roots.cgroup, "c/cgroup.kill"), "");
    assert!(Cgroup::open(&root, "d").unwrap_err().is_gone());
    assert!(Cgroup::open(&root, "a/../c").is_err());
}

#[test]
fn listings_are_breadth_first_and_bounded() {
    let (_keep, roots) = tree(&MACHINE);
    let root = root(&roots);
    assert_eq!(list(&root, 100).unwrap(), ["/a", "/c", "/a/b"]);
    assert_eq!(list(&root, 2).unwrap(), ["/a", "/c"]);
    let a = Cgroup::open(&root, "a").unwrap();
    assert_eq!(a.procs(100).unwrap(), [11, 12, 13]);
    assert_eq!(a.procs(1).unwrap(), [11]);
    for (name, id) in list_with_ids(&root, 100).unwrap() {
        assert_eq!(id, Cgroup::open(&root, &name).unwrap().id(), "{name}");
    }
    let top = Cgroup::open(&root, "/").unwrap();
    assert_eq!(top.procs(100).unwrap(), [1, 2, 11, 12, 13]);
}

#[test]
fn cgroups_are_created_with_the_memory_controller_and_removed() {
    let (keep, roots) = tree(&MACHINE);
    let root = root(&roots);
    let made = create(&root, "/new").unwrap();
    assert_eq!(get(keep.path(), "sys/fs/cgroup/cgroup.subtree_control"), "cpu memory\n", "already enabled");
    put(&roots.cgroup, "new/cgroup.subtree_control", "");
    create(&root, "new/leaf").unwrap();
    assert_eq!(get(keep.path(), "sys/fs/cgroup/new/cgroup.subtree_control"), "+memory");
    assert!(matches!(create(&root, "new/leaf"), Err(Error::Busy { .. })));
    assert!(create(&root, "nowhere/leaf").unwrap_err().is_gone());
    Cgroup::open(&root, "new/leaf").unwrap().remove().unwrap();
    std::fs::remove_file(roots.cgroup.join("new/cgroup.subtree_control")).unwrap();
    made.remove().unwrap();
    assert!(made.remove().unwrap_err().is_gone());
}

#[test]
fn this_machine_has_cgroup_v2_or_a_remedy() {
    match CgroupRoot::probe(&Roots::host()) {
        Ok(root) => {
            assert!(!list(&root, 10_000).unwrap().is_empty() || !Cgroup::open(&root, "/").unwrap().procs(10).unwrap().is_empty());
        }
        Err(error) => assert!(error.is_unsupported() && error.to_string().contains("boot with"), "{error}"),
    }
}
