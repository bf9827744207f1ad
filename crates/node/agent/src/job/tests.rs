use config::{Class, Config, Kind, Policy, Tier};
use policy::histogram::Histogram;
use policy::thresholds::Thresholds;

use super::*;
use crate::testing::Machine;
use units::{Millis, UnixMillis};

const SECOND: Duration = Duration::from_secs(1);

fn treatment() -> Treatment {
    Treatment {
        class: Class::Standard,
        kind: Kind::Application,
        policy: Policy::ColdAge,
        tier: Tier::Auto,
        tracker: ages::Kind::Auto,
        slow: Default::default(),
        slow_weight: 100,
    }
}

fn now(time: Duration) -> Now {
    Now { since_boot: time, unix_ms: UnixMillis(0) }
}

fn job(machine: &Machine) -> Job {
    Job::new(machine.cgroup("/a"), treatment(), (ages::Kind::PageIdle, "test"), &Config::default(), now(Duration::ZERO))
}

fn counts(pairs: &[(u8, u64)]) -> AgeCounts {
    let mut counts = AgeCounts::default();
    for &(age, pages) in pairs {
        counts.add(Age(age), Pages(pages));
    }
    counts
}

fn scan(resident: &[(u8, u64)], accesses: &[(u8, u64)], window: Duration) -> Scan {
    Scan { resident: counts(resident), accesses: counts(accesses), window, resolved_to: Age::MAX, ..Scan::default() }
}

/// The pages and the window of the promotion histogram that the next decision uses.
fn promotions(job: &mut Job) -> (Vec<u64>, u64) {
    let thresholds = Thresholds::try_from(vec![1, 2, 5]).unwrap();
    let accesses = job.promotions.for_decision();
    (Histogram::from_counts(&accesses.all, &thresholds).into(), units::millis(accesses.window))
}

#[test]
fn promotions_are_used_until_a_scan_adds_newer_ones() {
    let machine = Machine::new();
    let mut job = job(&machine);
    assert_eq!(promotions(&mut job), (vec![0; 4], 0));
    job.take_scan(scan(&[(0, 9)], &[(0, 9)], Duration::ZERO), &RamDisks::default()).unwrap();
    assert_eq!(promotions(&mut job), (vec![0; 4], 0), "a first scan has no window");

    job.take_scan(scan(&[(0, 9)], &[(0, 3), (1, 2)], 120 * SECOND), &RamDisks::default()).unwrap();
    assert_eq!(promotions(&mut job), (vec![3, 2, 0, 0], 120_000));
    assert_eq!(promotions(&mut job), (vec![3, 2, 0, 0], 120_000), "decisions come twice as often as scans");

    // What came back between two scans belongs to the window of the scan that follows.
    job.promotions.promoted(&counts(&[(7, 1)]));
    assert_eq!(promotions(&mut job), (vec![3, 2, 0, 0], 120_000));
    job.take_scan(scan(&[(0, 9)], &[(2, 4)], 100 * SECOND), &RamDisks::default()).unwrap();
    assert_eq!(promotions(&mut job), (vec![0, 0, 4, 1], 100_000));
    assert_eq!(job.promotions.for_decision().far, counts(&[(7, 1)]), "the real promotions among them");

    // Several scans between two decisions add up, windows and all.
    job.take_scan(scan(&[(0, 9)], &[(0, 1)], 10 * SECOND), &RamDisks::default()).unwrap();
    job.take_scan(scan(&[(0, 9)], &[(0, 1), (9, 1)], 20 * SECOND), &RamDisks::default()).unwrap();
    assert_eq!(promotions(&mut job), (vec![2, 0, 0, 1], 30_000));
}

#[test]
fn far_pages_age_and_are_promoted_at_their_age() {
    let machine = Machine::new();
    let page = kernel::page_size().bytes();
    let mut job = job(&machine);
    let at = |swapped: u64, zswpin: u64| {
        machine.set("/a", "memory.swap.current", &(swapped * page).to_string());
        machine.set("/a", "memory.stat", &format!("anon 0\nzswap 5000\nzswpin {zswpin}"));
    };
    at(0, 40);
    job.take_scan(scan(&[(0, 10), (3, 20)], &[], 10 * SECOND), &RamDisks::default()).unwrap();
    job.account_offload(Pages(25), counts(&[(3, 25)]), Pages(20), Age(3));
    at(20, 40);
    job.take_scan(scan(&[(0, 10)], &[], 10 * SECOND), &RamDisks::default()).unwrap();
    assert_eq!(job.far.counts(), &counts(&[(4, 20)]), "what did not go out is not far");
    at(15, 45);
    job.take_scan(scan(&[(0, 15)], &[(0, 1)], 10 * SECOND), &RamDisks::default()).unwrap();
    assert_eq!(job.far.counts(), &counts(&[(5, 15)]));
    let thresholds = Thresholds::try_from(vec![1, 4, 5]).unwrap();
    let promoted = Histogram::from_counts(&job.promotions.for_decision().all, &thresholds);
    assert_eq!(Vec::from(promoted), [1, 0, 5, 0], "five were promoted at age 4; the counter's first 40 do not count");
    assert_eq!((job.memory.far.0, job.memory.pool.0, job.memory.saved().0), (15 * page, 5_000, 15 * page - 5_000));
    let outcome = job.close_period(now(30 * SECOND));
    assert_eq!((outcome.asked, outcome.offloaded, outcome.promoted, outcome.elapsed_ms), (Pages(25), Pages(20), Pages(5), Millis::ZERO));
    assert_eq!(job.close_period(now(40 * SECOND)), Outcome { elapsed_ms: Millis(10_000), ..Outcome::default() });
    assert_eq!((job.counters.totals.offloaded.0, job.counters.totals.promoted.0), (20 * page, 5 * page));
}

#[test]
fn a_counter_that_decreases_is_no_promotion() {
    let machine = Machine::new();
    let mut job = job(&machine);
    for (zswpin, pswpin, want) in [(100, 7, 0), (103, 9, 5), (3, 0, 0), (4, 0, 1)] {
        machine.set("/a", "memory.stat", &format!("zswpin {zswpin}\npswpin {pswpin}"));
        assert_eq!(job.read_counters(&RamDisks::default()).unwrap(), Pages(want), "{zswpin} {pswpin}");
    }
    machine.set("/a", "memory.stat", "zswpin many");
    assert!(job.read_counters(&RamDisks::default()).unwrap_err().to_string().contains("memory.stat"));
    machine.remove("/a");
    assert!(job.read_counters(&RamDisks::default()).unwrap_err().is_gone());
}

#[test]
fn writes_to_devices_are_counted_once() {
    let check = |stats: [&str; 2], asked: u64, want: u64| {
        let machine = Machine::new();
        let mut job = job(&machine);
        for (stat, written) in stats.into_iter().zip([0, asked]) {
            machine.set("/a", "memory.stat", &format!("anon 0\n{stat}"));
            job.read_counters(&RamDisks::default()).unwrap();
            job.account_write(Bytes(written));
        }
        assert_eq!(job.tiering.uncharged, Bytes(want), "{stats:?} {asked}");
    };
    // Where the kernel counts all of them, zswap's own are among them, and so are those of our requests.
    check(["zswpwb 1\npswpout 10", "zswpwb 3\npswpout 30"], 4096, 20 * 4096);
    check(["zswpwb 1", "zswpwb 3"], 4096, 2 * 4096 + 4096);
    check(["zswpwb 3", "zswpwb 1"], 0, 0);
    check(["file 0", "file 0"], 4096, 4096);
}

#[test]
fn a_file_read_once_is_not_saved_for_ever() {
    let machine = Machine::new();
    let mut job = job(&machine);
    let cache = |mib: u64| machine.set("/a", "memory.stat", &format!("anon 0\nfile {}\nshmem 0", mib << 20));
    // A stream of 3 MiB in each period: as much is read as is reclaimed, and the cache keeps its size.
    for _ in 0..1_000 {
        cache(50);
        job.read_counters(&RamDisks::default()).unwrap();
        job.account_reclaim(Pages::ZERO, Bytes::mib(3));
    }
    assert_eq!(job.memory.saved(), Bytes::ZERO, "the cache is as large as it ever was");
    // What was reclaimed and not replaced is saved, until new data would have evicted it.
    job.account_reclaim(Pages::ZERO, Bytes::mib(37));
    cache(10);
    job.read_counters(&RamDisks::default()).unwrap();
    assert_eq!(job.memory.saved(), Bytes::mib(40));
    for _ in 0..200 {
        job.account_reclaim(Pages::ZERO, Bytes::mib(3));
        job.read_counters(&RamDisks::default()).unwrap();
    }
    assert_eq!(job.memory.saved().to_mib_ceil(), 0, "{}", job.memory.saved());
}

#[test]
fn the_pool_counts_with_the_dram_that_it_occupies() {
    let machine = Machine::new();
    let mut job = job(&machine);
    machine.set("/a", "memory.swap.current", "40960");
    machine.set("/a", "memory.stat", "anon 0\nzswap 10000");
    job.signals.pool_overhead = RatioPpm(300_000);
    job.read_counters(&RamDisks::default()).unwrap();
    assert_eq!((job.memory.pool, job.memory.pool_dram(), job.memory.saved()), (Bytes(10_000), Bytes(13_000), Bytes(40_960 - 13_000)));
}

#[test]
fn what_could_be_saved_is_known_after_accesses_were_observed() {
    let machine = Machine::new();
    let page = kernel::page_size().bytes();
    let mut job = job(&machine);
    let quarter = RatioPpm(250_000);
    assert_eq!(job.could_save(quarter), None);
    job.take_scan(scan(&[(0, 10), (3, 20), (9, 12)], &[], 10 * SECOND), &RamDisks::default()).unwrap();
    assert_eq!((job.could_save(quarter), job.could_save_at_most(quarter)), (None, None), "no decision yet");
    (job.signals.observed, job.signals.threshold) = (true, None);
    assert_eq!(job.could_save(quarter), Some(Bytes::ZERO), "even the oldest pages are promoted too often");
    job.signals.short_history = true;
    assert_eq!(job.could_save(quarter), None, "which is not known yet");
    assert_eq!(job.could_save_at_most(quarter), Some(Bytes(24 * page)), "all but the ten pages of age 0, of which a quarter remains");
    let cold = std::mem::replace(job.scan.as_mut().unwrap(), scan(&[(0, 42)], &[], 10 * SECOND));
    assert_eq!(job.could_save(quarter), Some(Bytes::ZERO), "nothing is cold");
    (job.scan, job.signals.short_history) = (Some(cold), false);
    job.signals.threshold = Some(Age(3));
    assert_eq!(job.could_save(quarter), Some(Bytes(24 * page)));
    assert_eq!(job.could_save(RatioPpm::ONE), Some(Bytes::ZERO));
    // What is offloaded already is part of it.
    (job.memory.far, job.memory.pool) = (Bytes(8 * page), Bytes(2 * page));
    assert_eq!(job.could_save(quarter), Some(Bytes(30 * page)));
}
