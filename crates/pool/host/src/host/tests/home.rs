//! Moving the hot part of a guest home before the guest is moved whole.

use policy::slowdown::rate::Estimate;
use units::AccessRate;

use super::*;
use crate::hot::Block;

/// A block of 2 MiB by its place and its accesses per second, which are at most a tenth more.
fn block(at: u64, rate: u64) -> Placed {
    let estimate = Estimate { mean: AccessRate::per_second(rate), upper: Some(AccessRate::per_second(rate + rate / 10)) };
    Placed { range: at << 21..(at + 1) << 21, block: Block { bytes: Bytes::mib(2), estimate } }
}

/// A host that permits 250,000 accesses per second to the pool, and a guest beyond its tolerance, of which these are the blocks.
fn mispredicted(directory: &Path, blocks: Option<Vec<Placed>>) -> (Host, Simulated) {
    let (_, simulated) = bench(directory);
    let host = with_budget(&simulated);
    host.start(request("a", 1024, Some(256))).unwrap();
    simulated.world().usage = Usage { local_accessed_bytes: Bytes::mib(500), ..touched_and_accessed(100, 50) };
    simulated.world().blocks = blocks;
    host.watch(|| true);
    assert!(simulated.world().log.is_empty(), "the first sample includes the boot");
    (host, simulated)
}

fn with_budget(simulated: &Simulated) -> Host {
    host_with(simulated, Settings { hot: hot::Settings { slowdown: RatioPpm(50_000), latency_ns: 200 }, ..settings() }, None)
}

fn two_hot_of_forty() -> Option<Vec<Placed>> {
    Some((0..40).map(|at| block(at, if at % 20 == 7 { 300_000 } else { 100 })).collect())
}

fn log(simulated: &Simulated) -> Vec<String> {
    std::mem::take(&mut simulated.world().log)
}

fn metric(host: &Host, line: &str) {
    let text = crate::metrics::render(host).unwrap();
    assert!(text.lines().any(|found| found == format!("thermocline_pool_host_{line}")), "{line}: {text}");
}

#[test]
fn the_hot_part_moves_home_and_the_guest_keeps_its_slices() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = mispredicted(directory.path(), two_hot_of_forty());
    host.watch(|| true);
    assert_eq!(log(&simulated), ["blocks", "home 2", "blocks"]);
    let record = host.explain("a").unwrap();
    assert_eq!((record.verdict, record.mitigated, record.home_bytes), (Some(Verdict::MoveHot), false, Some(Bytes::mib(4))));
    assert_eq!((record.local_bytes(), record.pool_bytes(), simulated.world().free), (Bytes::mib(772), Bytes::mib(256), 6));
    let list = host.list();
    assert_eq!((list.local_used_bytes, list.totals.mitigated, list.guests[0].home_bytes), (Bytes::mib(772), 1, Bytes::mib(4)));
    let events = events(&host, "a");
    for piece in ["4194304 bytes in 2 blocks move home", "moved home 4194304 of 4194304 bytes", "that is enough"] {
        assert!(events.contains(piece), "{piece}: {events}");
    }
    for line in ["hot_parts_total{outcome=\"moved\"} 1", "home_bytes 4194304", "guests_mispredicted 0", "pool_bytes 268435456"] {
        metric(&host, line);
    }
    // Its sample still counts what was moved home, and its blocks decide. The next daemon knows it.
    let host = with_budget(&simulated);
    host.watch(|| true);
    assert_eq!((host.explain("a").unwrap().verdict, log(&simulated)), (Some(Verdict::WithinSlowdown), vec!["blocks".to_owned()]));
    simulated.world().blocks = None;
    host.watch(|| true);
    assert_eq!((host.explain("a").unwrap().verdict, log(&simulated)), (Some(Verdict::NotVisible), vec!["blocks".to_owned()]));
    // It is hot again: a second part is not moved. The budget of one mitigation holds for guests, and this is the same one.
    simulated.world().blocks = Some(vec![block(0, 300_000), block(1, 1)]);
    host.update_totals(|totals| totals.last_mitigation = None);
    host.watch(|| true);
    assert!(host.explain("a").unwrap().mitigated, "{}", super::events(&host, "a"));
    assert_eq!((log(&simulated), host.list().totals.mitigated), (vec!["blocks".to_owned(), "move a".to_owned()], 1));
    assert_eq!((host.explain("a").unwrap().local_bytes(), simulated.world().free), (Bytes::mib(1024), 8));
}

#[test]
fn a_guest_within_the_permitted_slowdown_stays() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = mispredicted(directory.path(), Some((0..40).map(|at| block(at, 100)).collect()));
    host.watch(|| true);
    let record = host.explain("a").unwrap();
    assert_eq!((record.verdict, record.home_bytes, log(&simulated)), (Some(Verdict::WithinSlowdown), None, vec!["blocks".to_owned()]));
    assert!(events(&host, "a").contains("accessed 4000/s, where the permitted slowdown allows 250000/s"), "{}", events(&host, "a"));
    assert_eq!(host.list().totals.mitigated, 0);
    metric(&host, "hot_parts_total{outcome=\"within_slowdown\"} 1");
    metric(&host, "guests_mispredicted 0");
}

#[test]
fn a_guest_is_moved_whole_if_its_part_is_not_enough() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = mispredicted(directory.path(), two_hot_of_forty());
    simulated.world().turns_hot = Some(block(50, 900_000));
    host.watch(|| true);
    assert_eq!(log(&simulated), ["blocks", "home 2", "blocks", "move a"]);
    let record = host.explain("a").unwrap();
    assert!(record.mitigated && record.mapped.is_empty(), "{}", events(&host, "a"));
    assert_eq!((record.local_bytes(), host.list().totals.mitigated), (Bytes::mib(1024), 1));
    assert!(events(&host, "a").contains("that is not enough, mitigate"), "{}", events(&host, "a"));
    metric(&host, "hot_parts_total{outcome=\"not_enough\"} 1");
    metric(&host, "home_bytes 0");
}

#[test]
fn a_guest_is_moved_whole_if_no_part_of_it_does() {
    let check = |blocks: Option<Vec<Placed>>, outcome: &str, why: &str| {
        let directory = tempfile::tempdir().unwrap();
        let (host, simulated) = mispredicted(directory.path(), blocks);
        host.watch(|| true);
        assert_eq!(log(&simulated), ["blocks", "move a"]);
        assert!(host.explain("a").unwrap().mitigated && events(&host, "a").contains(why), "{}", events(&host, "a"));
        metric(&host, &format!("hot_parts_total{{outcome=\"{outcome}\"}} 1"));
    };
    check(None, "not_seen", "its hot part is not known: another program uses DAMON");
    check(Some((0..40).map(|at| block(at, 300_000)).collect()), "whole", "no block can stay");
}

#[test]
fn a_part_that_fits_moves_where_the_whole_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = mispredicted(directory.path(), two_hot_of_forty());
    // 256 MiB are left, and a move of the whole needs 1 GiB.
    host.start(request("b", 1024, None)).unwrap();
    host.watch(|| true);
    assert_eq!(
        (host.explain("a").unwrap().home_bytes, log(&simulated)[..2].join(", ")),
        (Some(Bytes::mib(4)), "blocks, home 2".to_owned())
    );
}

#[test]
fn a_part_that_cannot_be_moved_counts_as_local_and_the_whole_follows() {
    let directory = tempfile::tempdir().unwrap();
    let (host, simulated) = mispredicted(directory.path(), two_hot_of_forty());
    simulated.world().home_fails = true;
    host.watch(|| true);
    let record = host.explain("a").unwrap();
    assert_eq!((record.mitigation_failures, record.mitigated, record.local_bytes()), (1, false, Bytes::mib(772)));
    host.update_totals(|totals| totals.last_mitigation = None);
    host.watch(|| true);
    assert_eq!(log(&simulated), ["blocks", "home 2", "blocks", "move a"]);
    assert!(host.explain("a").unwrap().mitigated, "{}", events(&host, "a"));
}

#[test]
fn without_a_latency_guests_are_moved_whole() {
    let directory = tempfile::tempdir().unwrap();
    let (_, simulated) = mispredicted(directory.path(), two_hot_of_forty());
    let host = restarted(&simulated);
    host.watch(|| true);
    assert!(host.explain("a").unwrap().mitigated);
    assert_eq!(log(&simulated), ["move a"]);
}
