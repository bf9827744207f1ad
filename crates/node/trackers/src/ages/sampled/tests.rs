use super::*;

fn points(pid: i32, addresses: &[u64]) -> Points {
    Points { pid, addresses: addresses.to_vec() }
}

#[test]
fn processes_keep_their_slots() {
    let before = [points(1, &[10, 20]), points(2, &[10]), points(3, &[30])];
    let wanted = |list: &[(i32, u64)]| list.iter().map(|&(pid, address)| (pid, vec![address])).collect();
    let unused = points(std::process::id().cast_signed(), &[UNUSED_ADDRESS]);
    assert_eq!(in_slots(&before, wanted(&[(1, 5), (3, 6)])), [points(1, &[5]), unused.clone(), points(3, &[6])], "2 has exited");
    assert_eq!(in_slots(&before, wanted(&[(3, 6), (4, 7)])), [points(4, &[7]), unused, points(3, &[6])], "4 gets the slot of 1");
    assert_eq!(in_slots(&[], wanted(&[(2, 1), (1, 2)])), [points(1, &[2]), points(2, &[1])]);
    assert_eq!(in_slots(&before[..1], wanted(&[(1, 5), (9, 6)])), [points(1, &[5]), points(9, &[6])]);
}

#[test]
fn accesses_of_the_agent_are_dated_by_the_clock_of_the_reports() {
    let then = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
    let hidden = hidden_at(HashMap::from([((7, 4096), then)]), Duration::from_secs(100));
    let at = hidden[&(7, 4096)];
    assert!(at > Duration::from_secs(90) && at <= Duration::from_secs(95), "{at:?}");
}

fn counted(resident: &[(u8, u64)], accesses: &[(u8, u64)]) -> Counted {
    let counts = |pairs: &[(u8, u64)]| {
        let mut counts = AgeCounts::default();
        pairs.iter().for_each(|&(age, pages)| counts.add(Age(age), Pages(pages)));
        counts
    };
    Counted { resident: counts(resident), accesses: counts(accesses), ..Counted::default() }
}

#[test]
fn points_stand_for_the_kernels_total() {
    // 300 points of 16 pages are 4800; the kernel counts 5000.
    let scan = estimate(counted(&[(0, 100), (7, 200)], &[(2, 30)]), 4, Pages(5000), Scan::default());
    assert_eq!((scan.resident.at(Age(0)), scan.resident.at(Age(7))), (Pages(1667), Pages(3333)));
    assert_eq!(scan.accesses.at(Age(2)), Pages(500));
    assert_eq!(scan.sample.unwrap().points, Pages(300));
}

#[test]
fn memory_that_the_sample_does_not_reach_counts_as_young() {
    let scan = estimate(counted(&[(7, 100)], &[(7, 10)]), 4, Pages(5000), Scan::default());
    assert_eq!((scan.resident.at(Age(0)), scan.resident.at(Age(7))), (Pages(3400), Pages(1600)));
    assert_eq!(scan.accesses.total(), Pages(160));
    let nothing = estimate(counted(&[], &[]), 4, Pages(5000), Scan::default());
    assert_eq!((nothing.resident.at(Age(0)), nothing.accesses.total()), (Pages(5000), Pages(0)));
}

#[test]
fn many_jobs_share_the_points() {
    let limits = Limits { scan_period: Duration::from_secs(120), points_max: 16_384, job_points_max: 2048 };
    for (jobs, want) in [(0, 2048), (1, 2048), (4, 2048), (8, 1024), (1000, 128)] {
        assert_eq!(limits.points_of_job(jobs), want, "{jobs}");
    }
    assert_eq!(limits.interval(), Duration::from_secs(30));
    let often = Limits { scan_period: Duration::from_millis(300), ..limits };
    assert_eq!(often.interval(), Duration::from_millis(500), "DAMON sessions refuse shorter ones");
}

#[test]
fn a_sample_is_halved_until_it_says_too_little() {
    let mut limits = Limits { scan_period: Duration::from_secs(120), points_max: 16_384, job_points_max: 2048 };
    let halves: Vec<_> = std::iter::from_fn(|| limits.halve().map(|all| (all, limits.points_of_job(5)))).collect();
    assert_eq!(halves, [(8192, 819), (4096, 409), (2048, 204), (1024, 128)]);
    assert_eq!(limits.halve(), None);
}
