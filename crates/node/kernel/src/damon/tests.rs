use super::*;
use crate::testing::{get, put, tree};

const ADMIN: &str = "sys/kernel/mm/damon/admin/kdamonds";
const ME: fn() -> i32 = || i32::try_from(std::process::id()).expect("a pid");

fn monitor(pid: i32) -> Monitor {
    Monitor { pid, interval: Duration::from_millis(500), regions_min: 10, regions_max: 1000 }
}

/// The files of `count` kdamonds that this crate writes; none of the kdamonds runs.
fn machine(count: usize) -> (tempfile::TempDir, Roots) {
    let (keep, roots) = tree(&[(&format!("{ADMIN}/nr_kdamonds"), "0\n")]);
    for index in 0..count {
        for (file, text) in [
            ("state", "off\n"),
            ("pid", "-1\n"),
            ("contexts/nr_contexts", "0\n"),
            ("contexts/0/avail_operations", "vaddr\nfvaddr\npaddr\n"),
            ("contexts/0/operations", "vaddr\n"),
            ("contexts/0/monitoring_attrs/intervals/sample_us", "5000\n"),
            ("contexts/0/monitoring_attrs/intervals/aggr_us", "100000\n"),
            ("contexts/0/monitoring_attrs/intervals/update_us", "1000000\n"),
            ("contexts/0/monitoring_attrs/nr_regions/min", "10\n"),
            ("contexts/0/monitoring_attrs/nr_regions/max", "1000\n"),
            ("contexts/0/targets/nr_targets", "0\n"),
            ("contexts/0/targets/0/pid_target", "0\n"),
            ("contexts/0/schemes/nr_schemes", "0\n"),
            ("contexts/0/schemes/0/action", "pageout\n"),
            ("contexts/0/schemes/0/access_pattern/sz/max", "0\n"),
            ("contexts/0/schemes/0/access_pattern/nr_accesses/max", "0\n"),
            ("contexts/0/schemes/0/access_pattern/age/max", "0\n"),
        ] {
            put(keep.path(), &format!("{ADMIN}/{index}/{file}"), text);
        }
    }
    (keep, roots)
}

fn add_region(roots: &Roots, name: u32, fields: [(&str, &str); 4]) {
    for (field, text) in fields {
        let path = format!("kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes/0/tried_regions/{name}/{field}");
        put(&roots.sys, &path, text);
    }
}

#[test]
fn other_users_of_damon_are_reported_and_not_disturbed() {
    let check = |file: &str, text: &str, who: &str| {
        let (keep, roots) = machine(0);
        put(keep.path(), file, text);
        let error = Damon::probe(&roots).unwrap_err();
        assert!(matches!(error, Error::Busy { .. }) && error.to_string().contains(who), "{error}");
        assert_eq!(get(keep.path(), file), text);
    };
    check("sys/module/damon_stat/parameters/enabled", "Y\n", "damon_stat");
    check("sys/module/damon_reclaim/parameters/enabled", "Y\n", "damon_reclaim");
    check("sys/module/damon_lru_sort/parameters/enabled", "Y\n", "damon_lru_sort");
    check("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "2\n", "another process");
    let (_keep, roots) = tree(&[("sys/module/damon_stat/parameters/enabled", "Y\n")]);
    assert!(Damon::probe(&roots).unwrap_err().is_unsupported());
    let (keep, roots) = machine(0);
    put(keep.path(), "sys/module/damon_stat/parameters/enabled", "N\n");
    Damon::probe(&roots).unwrap();
}

#[test]
fn a_session_writes_its_configuration_and_reads_sorted_regions() {
    let (keep, roots) = machine(1);
    let mut session = Damon::probe(&roots).unwrap().start(&[monitor(ME())]).unwrap();
    let wrote = |file: &str| get(keep.path(), &format!("{ADMIN}/0/{file}"));
    for interval in ["sample_us", "aggr_us", "update_us"] {
        assert_eq!(wrote(&format!("contexts/0/monitoring_attrs/intervals/{interval}")), "500000");
    }
    assert_eq!(wrote("contexts/0/targets/0/pid_target"), ME().to_string());
    assert_eq!((wrote("contexts/0/schemes/0/action"), wrote("state")), ("stat".into(), "on".into()));
    assert_eq!(wrote("contexts/0/schemes/0/access_pattern/age/max"), "4294967295");
    add_region(&roots, 3, [("start", "8192\n"), ("end", "12288\n"), ("nr_accesses", "1\n"), ("age", "0\n")]);
    add_region(&roots, 12, [("start", "0\n"), ("end", "4096\n"), ("nr_accesses", "0\n"), ("age", "48\n")]);
    put(keep.path(), &format!("{ADMIN}/0/contexts/0/schemes/0/tried_regions/total_bytes"), "8192\n");
    let region = |start, end, nr_accesses, age| Region { start, end, nr_accesses, age };
    assert_eq!(session.snapshot(0).unwrap().0, [region(0, 4096, 0, 48), region(8192, 12288, 1, 0)]);
    assert_eq!(wrote("state"), "update_schemes_tried_regions");
    assert!(session.snapshot(1).unwrap_err().is_gone());
    put(keep.path(), &format!("{ADMIN}/0/pid"), "321\n");
    assert_eq!(session.kdamond_pids(), [321]);
    session.stop().unwrap();
    assert_eq!(get(keep.path(), &format!("{ADMIN}/nr_kdamonds")), "0");
}

#[test]
fn a_malformed_region_is_reported_with_its_file() {
    let (_keep, roots) = machine(1);
    let session = Damon::probe(&roots).unwrap().start(&[monitor(ME())]).unwrap();
    add_region(&roots, 0, [("start", "0\n"), ("end", "here\n"), ("nr_accesses", "1\n"), ("age", "0\n")]);
    let error = session.snapshot(0).unwrap_err();
    assert!(matches!(&error, Error::Parse { path, value, .. } if path.ends_with("0/end") && value == "here\n"), "{error:?}");
}

#[test]
fn a_dropped_session_removes_only_its_own_kdamonds() {
    let check = |file: &str, text: &str, left: &str| {
        let (keep, roots) = machine(2);
        let session = Damon::probe(&roots).unwrap().start(&[monitor(ME()), monitor(ME())]).unwrap();
        put(keep.path(), &format!("{ADMIN}/{file}"), text);
        drop(session);
        assert_eq!(get(keep.path(), &format!("{ADMIN}/nr_kdamonds")).trim(), left, "{file}");
    };
    check("0/state", "off\n", "0");
    check("1/contexts/0/targets/0/pid_target", "1\n", "2");
    check("1/contexts/0/schemes/0/action", "pageout\n", "2");
    check("nr_kdamonds", "7\n", "7");
}

#[test]
fn region_counts_out_of_range_are_rejected_before_any_write() {
    for (regions_min, regions_max) in [(2, 1000), (10, 9)] {
        let (keep, roots) = machine(1);
        let wrong = Monitor { regions_min, regions_max, ..monitor(ME()) };
        let error = Damon::probe(&roots).unwrap().start(&[monitor(ME()), wrong]).unwrap_err();
        assert!(error.to_string().contains("need 3 <= min <= max"), "{error}");
        assert_eq!(get(keep.path(), &format!("{ADMIN}/nr_kdamonds")), "0\n");
    }
}

#[test]
fn a_failed_start_leaves_no_kdamond() {
    let (keep, roots) = machine(1);
    put(keep.path(), &format!("{ADMIN}/0/contexts/0/avail_operations"), "paddr\n");
    assert!(Damon::probe(&roots).unwrap().start(&[monitor(ME())]).unwrap_err().is_unsupported());
    assert_eq!(get(keep.path(), &format!("{ADMIN}/nr_kdamonds")), "0");
}

#[test]
fn only_kdamonds_of_a_killed_agent_are_reaped() {
    // Two kdamonds for processes 11 and 12, the second not fully configured when the agent was killed.
    let left = [
        ("nr_kdamonds", "2\n"),
        ("0/contexts/nr_contexts", "1\n"),
        ("0/contexts/0/targets/nr_targets", "1\n"),
        ("0/contexts/0/targets/0/pid_target", "11\n"),
        ("0/contexts/0/schemes/nr_schemes", "1\n"),
        ("0/contexts/0/schemes/0/action", "stat\n"),
        ("1/contexts/nr_contexts", "1\n"),
    ];
    let check = |changed: &[(&str, &str)], expected_pids: &[i32], reaped: Option<usize>| {
        let (keep, roots) = machine(2);
        for (file, text) in left.iter().chain(changed) {
            put(keep.path(), &format!("{ADMIN}/{file}"), text);
        }
        let answer = Damon::reap(&roots, expected_pids);
        match (&answer, reaped) {
            (Ok(count), Some(expected)) => assert_eq!(*count, expected),
            (Err(Error::Busy { .. }), None) => {}
            _ => panic!("{changed:?} {expected_pids:?}: {answer:?}"),
        }
        let now = get(keep.path(), &format!("{ADMIN}/nr_kdamonds"));
        assert_eq!(now.trim() == "0", reaped.is_some(), "{changed:?} {expected_pids:?}");
    };
    check(&[], &[11, 12], Some(2));
    check(&[("1/contexts/nr_contexts", "0\n")], &[11, 12], Some(2));
    // Processes that the agent was about to monitor, in addition to the monitored ones.
    check(&[], &[9, 11, 12, 13], Some(2));
    check(&[], &[12, 13], None);
    check(&[], &[11], None);
    check(&[], &[], None);
    check(&[("0/contexts/0/schemes/0/action", "pageout\n")], &[11, 12], None);
    check(&[("0/contexts/0/schemes/nr_schemes", "2\n")], &[11, 12], None);
    // One kdamond may monitor points of several processes.
    let both = [("nr_kdamonds", "1\n"), ("0/contexts/0/targets/nr_targets", "2\n"), ("0/contexts/0/targets/1/pid_target", "12\n")];
    check(&both, &[11, 12], Some(1));
    check(&both, &[11], None);
    check(&both, &[12, 13], None);
    check(&[("nr_kdamonds", "0\n")], &[11, 12], Some(0));
    let (_keep, roots) = tree(&[("proc/meminfo", "")]);
    assert_eq!(Damon::reap(&roots, &[11]).unwrap(), 0, "without DAMON there are no kdamonds");
}

/// A machine with the files for these points; no kdamond runs.
fn points_machine(points: &[Points]) -> (tempfile::TempDir, Roots) {
    let (keep, roots) = machine(1);
    for (target, points) in points.iter().enumerate() {
        let at = |file: &str| format!("{ADMIN}/0/contexts/0/targets/{target}/{file}");
        put(keep.path(), &at("pid_target"), "0\n");
        put(keep.path(), &at("regions/nr_regions"), "0\n");
        for region in 0..points.addresses.len() {
            put(keep.path(), &at(&format!("regions/{region}/start")), "0\n");
            put(keep.path(), &at(&format!("regions/{region}/end")), "0\n");
        }
    }
    put(keep.path(), &format!("{ADMIN}/0/contexts/0/schemes/0/apply_interval_us"), "0\n");
    (keep, roots)
}

/// Writes the number of tried regions, and the last tried regions by address and accesses.
fn put_tried(roots: &Roots, tried: u64, regions: &[(u64, u32)]) {
    let scheme = roots.sys.join("kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes/0");
    put(&scheme, "stats/nr_tried", &format!("{tried}\n"));
    let _ = std::fs::remove_dir_all(scheme.join("tried_regions"));
    put(&scheme, "tried_regions/total_bytes", "0\n");
    for (number, (start, accesses)) in regions.iter().enumerate() {
        put(&scheme, &format!("tried_regions/{number}/start"), &format!("{start}\n"));
        put(&scheme, &format!("tried_regions/{number}/nr_accesses"), &format!("{accesses}\n"));
    }
}

fn points(pid: i32, addresses: &[u64]) -> Points {
    Points { pid, addresses: addresses.to_vec() }
}

const INTERVAL: Duration = Duration::from_secs(1);

#[test]
fn points_become_regions_that_cannot_be_merged_or_split() {
    let page = crate::page_size().bytes();
    let check = |addresses: &[u64], regions: &str| {
        let points = [points(ME(), addresses), points(ME(), &[7 * page])];
        let (keep, roots) = points_machine(&points);
        let mut session = Damon::probe(&roots).unwrap().watch_points(INTERVAL, &points).unwrap();
        let wrote = |file: &str| get(keep.path(), &format!("{ADMIN}/0/{file}"));
        assert_eq!(wrote("contexts/0/operations"), "fvaddr");
        assert_eq!(wrote("contexts/0/monitoring_attrs/intervals/sample_us"), "1000000");
        assert_eq!(wrote("contexts/0/monitoring_attrs/intervals/aggr_us"), "100000000000");
        assert_eq!(wrote("contexts/0/schemes/0/apply_interval_us"), "1000000");
        for limit in ["min", "max"] {
            assert_eq!(wrote(&format!("contexts/0/monitoring_attrs/nr_regions/{limit}")), regions);
        }
        assert_eq!(wrote("contexts/0/targets/0/regions/nr_regions"), addresses.len().to_string());
        for (region, address) in addresses.iter().enumerate() {
            let at = |name| wrote(&format!("contexts/0/targets/0/regions/{region}/{name}"));
            assert_eq!((at("start"), at("end")), (address.to_string(), (address + page).to_string()));
        }
        assert_eq!(wrote("contexts/0/targets/1/regions/0/start"), (7 * page).to_string());
        assert_eq!((wrote("state"), session.points()), ("on".into(), &points[..]));
        session.stop().unwrap();
        assert_eq!(get(keep.path(), &format!("{ADMIN}/nr_kdamonds")), "0");
    };
    check(&[page], "3");
    check(&[page, 2 * page, 9 * page, 4096 * page], "5");
}

#[test]
fn counts_are_returned_per_process_in_order() {
    let page = crate::page_size().bytes();
    let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("cat");
    let ending = i32::try_from(child.id()).unwrap();
    let points = [points(ME(), &[page, 2 * page]), points(ending, &[page]), points(ME(), &[3 * page]), points(i32::MAX, &[page])];
    let (_keep, roots) = points_machine(&points);
    let session = Damon::probe(&roots).unwrap().watch_points(INTERVAL, &points).unwrap();
    let check = |tried, regions: &[(u64, u32)], expected: Option<(u32, &[Option<&[u32]>])>| {
        put_tried(&roots, tried, regions);
        match (session.counts(), expected) {
            (Ok(Counts { samples, accessed, .. }), Some(expected)) => {
                let accessed: Vec<_> = accessed.iter().map(Option::as_deref).collect();
                assert_eq!((samples, &accessed[..]), expected, "{regions:?}");
            }
            (Err(error), None) => assert!(error.is_gone(), "{error}"),
            (answer, expected) => panic!("{answer:?} is not {expected:?}"),
        }
    };
    let all = [(page, 3), (2 * page, 0), (page, 5), (3 * page, 7)];
    check(4 * 8, &all, Some((10, &[Some(&[3, 0]), Some(&[5]), Some(&[7]), None])));
    // A page cannot be found accessed by more samples than were taken.
    check(0, &all, Some((7, &[Some(&[3, 0]), Some(&[5]), Some(&[7]), None])));
    check(4 * 8, &all[1..], None);
    check(4 * 8, &[(page, 3), (2 * page, 0), (8 * page, 5), (3 * page, 7)], None);
    check(4 * 100_000, &all, None);
    drop(child.stdin.take());
    child.wait().unwrap();
    // Kernels that list the regions of a process that has exited, and kernels that omit them.
    check(4 * 8, &all, Some((10, &[Some(&[3, 0]), None, Some(&[7]), None])));
    check(4 * 8 - 2, &[all[0], all[1], all[3]], Some((9, &[Some(&[3, 0]), None, Some(&[7]), None])));
}

#[test]
fn points_that_cannot_be_monitored_are_rejected() {
    let page = crate::page_size().bytes();
    let check = |interval, points: &[Points], said: &str| {
        let (keep, roots) = points_machine(points);
        let error = Damon::probe(&roots).unwrap().watch_points(interval, points).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(get(keep.path(), &format!("{ADMIN}/nr_kdamonds")), "0\n");
    };
    check(Duration::from_millis(49), &[points(ME(), &[page])], "at least 50");
    for addresses in [&[][..], &[page, page], &[2 * page, page], &[page + 1], &[u64::MAX - page + 1]] {
        check(INTERVAL, &[points(ME(), addresses)], "ascending");
    }
    check(INTERVAL, &[points(i32::MAX, &[page])], "is gone");
    check(INTERVAL, &[], "is gone");
    let points = [points(ME(), &[page])];
    let (keep, roots) = points_machine(&points);
    std::fs::remove_file(keep.path().join(format!("{ADMIN}/0/contexts/0/schemes/0/apply_interval_us"))).unwrap();
    assert!(Damon::probe(&roots).unwrap().watch_points(INTERVAL, &points).unwrap_err().is_unsupported());
    assert_eq!(get(keep.path(), &format!("{ADMIN}/nr_kdamonds")), "0");
}
