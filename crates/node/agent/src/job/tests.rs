use config::{Class, Config, Kind, Tier};
use units::RatioPpm;

use super::*;
use crate::testing::Machine;

const SECOND: Duration = Duration::from_secs(1);

fn params() -> cold_age::Params {
    cold_age::Params::new(RatioPpm(2_000), RatioPpm(980_000), 60_000)
}

fn treatment() -> Treatment {
    Treatment { class: Class::Standard, kind: Kind::Application, policy: Policy::ColdAge, tier: Tier::Auto, tracker: ages::Kind::Auto }
}

fn parameters() -> Parameters {
    let config = Config::default();
    Parameters {
        cold_age: params(),
        pressure: config.pressure_for(Class::Standard),
        background: config.background.params(),
        writes: config.swap.job_endurance(),
    }
}

fn job(machine: &Machine) -> Job {
    Job::new(machine.cgroup("/a"), treatment(), (ages::Kind::PageIdle, "test"), &parameters(), Duration::ZERO)
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

fn period(working_set: u64, promoted: u64, elapsed_ms: u64) -> ClosedPeriod {
    let step = cold_age::Step {
        decision: cold_age::Decision::Hold { reason: cold_age::Hold::NothingCold },
        best: None,
        threshold: None,
        working_set: Pages(working_set),
        promotions_max: Pages(0),
    };
    let outcome = Outcome { elapsed_ms, promoted: Pages(promoted), ..Outcome::default() };
    ClosedPeriod { unix_ms: 0, job_age_ms: 60_000, window_ms: 60_000, step, outcome }
}

#[test]
fn the_promotion_rate_is_per_minute_and_working_set() {
    let check = |working_set, promoted, elapsed_ms, want| {
        assert_eq!(period(working_set, promoted, elapsed_ms).promotion_rate_ppm(), want, "{working_set} {promoted} {elapsed_ms}");
    };
    check(1_000, 2, 60_000, Some(2_000));
    check(1_000, 2, 120_000, Some(1_000));
    check(1_000, 1, 2_000, Some(30_000));
    check(1_000, 0, 60_000, Some(0));
    check(0, 5, 60_000, None);
    check(1_000, 5, 0, None);
    check(1, u64::MAX, 1, Some(u64::MAX));
}

#[test]
fn periods_count_against_the_objective_once_far_memory_is_on() {
    let check = |far: u64, job_age_ms: u64, promoted: u64, want: (u64, u64)| {
        let machine = Machine::new();
        let mut job = job(&machine);
        job.memory.far = Bytes(far);
        job.remember(ClosedPeriod { job_age_ms, ..period(1_000, promoted, 60_000) });
        assert_eq!((job.totals.periods, job.totals.slo_violations), want, "{far} {job_age_ms} {promoted}");
    };
    check(0, 60_000, 0, (0, 0));
    check(4096, 59_999, 9, (0, 0));
    check(4096, 60_000, 0, (1, 0));
    check(4096, 60_000, 2, (1, 0));
    check(4096, 60_000, 3, (1, 1));
    // All of it came back: nothing is far any more, and that is the worst period there can be.
    check(0, 60_000, 500, (1, 1));
}

#[test]
fn only_so_many_periods_are_remembered() {
    let machine = Machine::new();
    let mut job = job(&machine);
    for unix_ms in 0..100 {
        job.remember(ClosedPeriod { unix_ms, ..period(1, 0, 1) });
    }
    assert_eq!((job.recent.len(), job.recent[0].unix_ms), (RECENT_MAX, 100 - RECENT_MAX as u64));
}

/// The pages and the window of the promotion histogram that the next decision reads.
fn promotions(job: &mut Job) -> (Vec<u64>, u64) {
    let thresholds = Thresholds::try_from(vec![1, 2, 5]).unwrap();
    let input = job.input(&thresholds, 100 * SECOND, None, None);
    (input.promotions.into(), input.window_ms)
}

#[test]
fn promotions_stand_until_a_scan_brings_newer_ones() {
    let machine = Machine::new();
    let mut job = job(&machine);
    assert_eq!(promotions(&mut job), (vec![0; 4], 0));
    job.take_scan(scan(&[(0, 9)], &[(0, 9)], Duration::ZERO)).unwrap();
    assert_eq!(promotions(&mut job), (vec![0; 4], 0), "a first scan has no window");

    job.take_scan(scan(&[(0, 9)], &[(0, 3), (1, 2)], 120 * SECOND)).unwrap();
    assert_eq!(promotions(&mut job), (vec![3, 2, 0, 0], 120_000));
    assert_eq!(promotions(&mut job), (vec![3, 2, 0, 0], 120_000), "decisions come twice as often as scans");

    // What came back between two scans belongs to the window of the scan that follows.
    job.note_promotions(&counts(&[(7, 1)]));
    assert_eq!(promotions(&mut job), (vec![3, 2, 0, 0], 120_000));
    job.take_scan(scan(&[(0, 9)], &[(2, 4)], 100 * SECOND)).unwrap();
    assert_eq!(promotions(&mut job), (vec![0, 0, 4, 1], 100_000));

    // Several scans between two decisions add up, windows and all.
    job.take_scan(scan(&[(0, 9)], &[(0, 1)], 10 * SECOND)).unwrap();
    job.take_scan(scan(&[(0, 9)], &[(0, 1), (9, 1)], 20 * SECOND)).unwrap();
    assert_eq!(promotions(&mut job), (vec![2, 0, 0, 1], 30_000));
}

#[test]
fn far_pages_age_and_come_back_at_their_age() {
    let machine = Machine::new();
    let page = kernel::page_size().bytes();
    let mut job = job(&machine);
    let at = |swapped: u64, zswpin: u64| {
        machine.set("/a", "memory.swap.current", &(swapped * page).to_string());
        machine.set("/a", "memory.stat", &format!("anon 0\nzswap 5000\nzswpin {zswpin}"));
    };
    at(0, 40);
    job.take_scan(scan(&[(0, 10), (3, 20)], &[], 10 * SECOND)).unwrap();
    job.took_out(Pages(25), counts(&[(3, 25)]), Pages(20), Age(3));
    at(20, 40);
    job.take_scan(scan(&[(0, 10)], &[], 10 * SECOND)).unwrap();
    assert_eq!(job.far.counts(), &counts(&[(4, 20)]), "what did not go out is not far");
    at(15, 45);
    job.take_scan(scan(&[(0, 15)], &[(0, 1)], 10 * SECOND)).unwrap();
    assert_eq!(job.far.counts(), &counts(&[(5, 15)]));
    let thresholds = Thresholds::try_from(vec![1, 4, 5]).unwrap();
    let input = job.input(&thresholds, 30 * SECOND, None, None);
    assert_eq!(Vec::from(input.promotions), [1, 0, 5, 0], "five came back at age 4, the counter's old 40 do not count");
    assert_eq!((Vec::from(input.resident), Vec::from(input.cold)), (vec![15, 0, 0, 0], vec![15, 0, 0, 15]));
    assert_eq!((job.memory.far.0, job.memory.pool.0, job.memory.saved().0), (15 * page, 5_000, 15 * page - 5_000));
    let outcome = job.close_period(30 * SECOND);
    assert_eq!((outcome.asked, outcome.offloaded, outcome.promoted, outcome.elapsed_ms), (Pages(25), Pages(20), Pages(5), 0));
    assert_eq!(job.close_period(40 * SECOND), Outcome { elapsed_ms: 10_000, ..Outcome::default() });
    assert_eq!((job.totals.offloaded.0, job.totals.promoted.0), (20 * page, 5 * page));
}

#[test]
fn a_counter_that_goes_back_is_no_promotion() {
    let machine = Machine::new();
    let mut job = job(&machine);
    for (zswpin, pswpin, want) in [(100, 7, 0), (103, 9, 5), (3, 0, 0), (4, 0, 1)] {
        machine.set("/a", "memory.stat", &format!("zswpin {zswpin}\npswpin {pswpin}"));
        assert_eq!(job.read_counters().unwrap(), Pages(want), "{zswpin} {pswpin}");
    }
    machine.set("/a", "memory.stat", "zswpin many");
    assert!(job.read_counters().unwrap_err().to_string().contains("memory.stat"));
    machine.remove("/a");
    assert!(job.read_counters().unwrap_err().is_gone());
}

#[test]
fn a_job_at_its_limit_is_noticed_by_event_and_by_size() {
    let machine = Machine::new();
    let mut job = job(&machine);
    let mut check = |current: u64, max: &str, events: u64, want: bool| {
        machine.set("/a", "memory.current", &current.to_string());
        machine.set("/a", "memory.max", max);
        machine.set("/a", "memory.events", &format!("low 0\nhigh 0\nmax {events}\noom 0\noom_kill 0"));
        job.read_counters().unwrap();
        assert_eq!(job.at_limit().unwrap(), want, "{current} of {max}, {events} events");
    };
    check(1_000_000, "max", 5, false);
    check(1_000_000, "max", 6, true);
    check(1_000_000, "max", 6, false);
    check(989_999, "1000000", 6, false);
    check(990_000, "1000000", 6, true);
    check(0, "0", 6, true);
}

#[test]
fn a_spent_write_budget_leaves_page_cache_to_reclaim() {
    let machine = Machine::new();
    let mut pressed = job(&machine);
    pressed.treatment.policy = Policy::Pressure;
    pressed.pressed = Some(Pressed::new(parameters().pressure));
    let plan = |anon, file| Some(Amount { anon: Bytes(anon), file: Bytes(file) });
    for (before, after) in [(plan(8, 4), plan(0, 4)), (plan(8, 0), None), (None, None)] {
        pressed.pressed.as_mut().unwrap().plan = before;
        pressed.plan = Some(Plan { threshold: Age(1), left: Pages(1), cursor: Cursor::default() });
        pressed.drop_anon_plans();
        assert_eq!((pressed.pressed.as_ref().unwrap().plan, pressed.plan.is_none()), (after, true));
    }
}

#[test]
fn writes_to_devices_are_counted_once() {
    let check = |stats: [&str; 2], asked: u64, want: u64| {
        let machine = Machine::new();
        let mut job = job(&machine);
        for (stat, written) in stats.into_iter().zip([0, asked]) {
            machine.set("/a", "memory.stat", &format!("anon 0\n{stat}"));
            job.read_counters().unwrap();
            job.wrote(Bytes(written));
        }
        assert_eq!(job.unbooked, Bytes(want), "{stats:?} {asked}");
    };
    // Where the kernel counts all of them, zswap's own are among them, and so are those of our requests.
    check(["zswpwb 1\npswpout 10", "zswpwb 3\npswpout 30"], 4096, 20 * 4096);
    check(["zswpwb 1", "zswpwb 3"], 4096, 2 * 4096 + 4096);
    check(["zswpwb 3", "zswpwb 1"], 0, 0);
    check(["file 0", "file 0"], 4096, 4096);
}
