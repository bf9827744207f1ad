//! Control periods become entries of a trace.

use std::path::Path;
use std::time::Instant;

use store::Store;
use trace::{Entry, Trace};
use units::{Millis, UnixMillis};

use super::*;
use crate::journal::{Outcome, PeriodRecord};
use crate::record::Recorder;

fn start(machine: &Machine, agent: &Agent) -> trace::Result<Option<(Recorder, Vec<String>)>> {
    Recorder::start(&machine.roots, &traced(machine), &agent.context.thresholds, "boot", at(0).unix_ms)
}

/// A full hour.
const T0: u64 = 1_795_201_200_000;
const MINUTE: u64 = 60_000;

fn traced(machine: &Machine) -> Config {
    let store = machine.path("store");
    machine.config(&format!(
        "[trace]\nstore = {store:?}\ncluster = \"c\"\n[cold_age]\nwarmup = \"0s\"\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n"
    ))
}

/// The entries of all files, and how many files there are.
fn entries_in(store: &Path) -> (Vec<Entry>, usize) {
    let store = Store::open(store.to_str().unwrap()).unwrap();
    let objects = store.list(trace::EXTENSION).unwrap();
    let mut entries = Vec::new();
    for object in &objects {
        assert!(object.path.starts_with("cluster=c/date=2026-11-20/machine=fake/"), "{}", object.path);
        let file = store.fetch(&object.path).unwrap();
        entries.extend(Trace::open(file.path()).unwrap().rows().flat_map(|rows| rows.unwrap().entries().collect::<Vec<_>>()));
    }
    entries.sort_by_key(|entry| entry.figures.start_unix_ms);
    (entries, objects.len())
}

/// How many entries the store's only file has.
fn entries_of(machine: &Machine) -> u64 {
    let store = Store::open(machine.path("store").to_str().unwrap()).unwrap();
    let objects = store.list(trace::EXTENSION).unwrap();
    assert_eq!(objects.len(), 1, "{objects:?}");
    Trace::open(store.fetch(&objects[0].path).unwrap().path()).unwrap().entries()
}

#[test]
fn periods_are_summed_by_the_minutes_in_which_they_begin() {
    let machine = machine_with_job();
    machine.put("proc/sys/kernel/hostname", "fake\n");
    let mut agent = agent(&machine);
    let (mut recorder, reports) = start(&machine, &agent).unwrap().unwrap();
    assert_eq!(reports, [""; 0]);
    // The window of the scans is 120 s: a decision every minute reads each scan's promotions twice.
    for minute in 1..=12u64 {
        machine.set(JOB, "memory.current", &(minute * 1_000).to_string());
        let stalled =
            format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0", minute * 10);
        machine.set(JOB, "memory.pressure", &stalled);
        machine.set(JOB, "io.pressure", &stalled);
        machine.set(JOB, "memory.events", &format!("low 0\nhigh 0\nmax 0\noom 0\noom_kill {}\noom_group_kill 0", 7 + minute / 6));
        let at = 1_000 + minute * 60;
        if minute % 2 == 1 {
            round(&mut agent, &machine, at, 60);
        } else {
            agent.control(super::at(at));
        }
        agent.jobs.get_mut(JOB).unwrap().job.waits.charge_offload(Duration::from_millis(3));
        let records = agent.records();
        let last = records.into_iter().rev().find_map(|record| if let Record::Period(period) = record { Some(period) } else { None });
        let elapsed_ms = if minute == 1 { 0 } else { MINUTE };
        let outcome = Outcome { elapsed_ms: Millis(elapsed_ms), promoted: Pages(minute), ..Outcome::default() };
        // Begins when the last one ended, a little after the full minute.
        let unix_ms = T0 + 53 * MINUTE + minute * MINUTE + 100;
        let record = Record::Period(Box::new(PeriodRecord { unix_ms: UnixMillis(unix_ms), outcome, ..*last.unwrap() }));
        assert_eq!(recorder.take(&[record], &agent.jobs, 0, UnixMillis(unix_ms)), [""; 0]);
    }
    assert_eq!(recorder.stop(UnixMillis(T0 + 66 * MINUTE)), [""; 0]);

    let (entries, files) = entries_in(&machine.path("store"));
    assert_eq!(files, 2, "one of each hour");
    let shown: Vec<_> = entries
        .iter()
        .map(|Entry { figures: f, .. }| {
            (f.start_unix_ms.0 - T0, f.periods, f.duration_ms.0, f.memory_bytes.0, f.memory_stall_us, f.promoted_pages.0)
        })
        .collect();
    let minute = |n: u64| n * MINUTE + 100;
    // The first period, of no known length, and five; five; one.
    let want =
        [(minute(54), 2, MINUTE, 1_500, 10, 3), (minute(55), 5, 5 * MINUTE, 5_000, 50, 25), (minute(60), 5, 5 * MINUTE, 10_000, 50, 50)];
    assert_eq!(shown, want);
    // What steps of the test themselves used comes on top.
    let cpu = entries.iter().map(|entry| entry.figures.offload_cpu_us);
    assert!(cpu.zip([3_000, 15_000, 15_000]).all(|(found, least)| (least..least + 500_000).contains(&(found + 1))), "{entries:?}");
    assert!(entries.iter().all(|entry| entry.figures.lost_us == 0 && entry.figures.own_work_us == 0), "not measured");
    let killed: Vec<_> = entries.iter().map(|entry| entry.figures.oom_kills).collect();
    assert_eq!(killed, [0, 1, 1], "those of minutes 6 and 12; earlier kills do not count");
    assert!(entries.iter().all(|entry| entry.figures.agent_start_unix_ms == entries[0].figures.agent_start_unix_ms));
    assert!(entries[0].figures.agent_start_unix_ms > UnixMillis::EPOCH);
    // Scans ended in minutes 1, 3, 5 ...; the first has no window.
    let windows: Vec<_> = entries.iter().map(|entry| entry.figures.window_ms.0).collect();
    assert_eq!(windows, [0, 360_000, 240_000]);
    let second = &entries[1];
    assert_eq!(second.promotions_pages.iter().sum::<u64>(), 3 * 60, "each scan's accesses once");
    assert_eq!(second.cold_pages.iter().sum::<u64>(), 200);
    assert_eq!((second.labels.decision.as_str(), second.labels.tracker.as_str()), ("offload", "page_idle"));
    assert_eq!((second.figures.resolved_to_scans, second.figures.sampled_pages), (255, Pages::ZERO), "every age, every page");
    assert_eq!((&*second.id.cluster, &*second.id.machine, &*second.id.job), ("c", "fake", JOB));
    assert_eq!(second.figures.working_set_bytes, Bytes(60 * page()));
}

#[test]
fn a_killed_agent_loses_only_unfinished_entries() {
    let machine = machine_with_job();
    machine.put("proc/sys/kernel/hostname", "fake\n");
    // Entries of a second, so that the clock need not be another than the real one.
    let mut config = traced(&machine);
    config.trace.entry_period = seconds(1);
    let start = || Agent::new(machine.roots.clone(), config.clone(), Options::default()).unwrap();
    let mut agent = start();
    round(&mut agent, &machine, 1_000, FRAMES);
    // The job ends: so does its entry, which is logged.
    machine.remove(JOB);
    round(&mut agent, &machine, 1_120, 60);
    assert!(machine.has("state/trace/open.jsonl"));
    drop(agent);
    let mut agent = start();
    assert!(!machine.has("state/trace/open.jsonl"), "the next start made a file of it");
    agent.stop();
    assert_eq!(entries_of(&machine), 1);
}

#[test]
fn an_error_of_the_store_is_reported_once_and_its_end_as_well() {
    let machine = machine_with_job();
    machine.put("store", "a file where the directory should be");
    let mut agent = agent(&machine);
    round(&mut agent, &machine, 1_000, FRAMES);
    let records = agent.records();
    let (mut recorder, _) = start(&machine, &agent).unwrap().unwrap();
    let now = at(0).unix_ms;
    recorder.take(&records, &agent.jobs, 0, now);
    // The job is gone, and the hour over: there is a file to send.
    let none = Jobs::new();
    let later = now + Millis(120 * MINUTE);
    let mut reported = |piece: &str| {
        let start = Instant::now();
        loop {
            match recorder.take(&[], &none, 0, later).as_slice() {
                [] => assert!(start.elapsed() < seconds(60), "never reported: {piece}"),
                [report] => return assert!(report.contains(piece), "{report}"),
                more => panic!("{more:?}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    reported("files wait in");
    std::fs::remove_file(machine.path("store")).unwrap();
    reported("accepts files again");
    assert_eq!(entries_of(&machine), 1);
}

#[test]
fn a_clock_set_back_does_not_reorder_entries() {
    let machine = machine_with_job();
    machine.put("proc/sys/kernel/hostname", "fake\n");
    let mut agent = agent(&machine);
    let (mut recorder, _) = start(&machine, &agent).unwrap().unwrap();
    round(&mut agent, &machine, 1_000, 60);
    let records = agent.records();
    let last = records.into_iter().rev().find_map(|record| if let Record::Period(period) = record { Some(period) } else { None }).unwrap();
    // Set back by half an hour after five minutes, and a period that was noted late, after a long stop.
    for minute in 1..=60u64 {
        let back = if minute > 5 { 30 * MINUTE } else { 0 };
        let late = if minute == 20 { 5 * MINUTE } else { 0 };
        let unix_ms = T0 + minute * MINUTE + late - back;
        let mut period = PeriodRecord {
            unix_ms: UnixMillis(unix_ms),
            outcome: Outcome { elapsed_ms: Millis(MINUTE), ..Outcome::default() },
            ..*last.clone()
        };
        period.input.job_age_ms = Millis(minute * MINUTE);
        assert_eq!(recorder.take(&[Record::Period(Box::new(period))], &agent.jobs, 0, UnixMillis(unix_ms)), [""; 0]);
    }
    recorder.stop(UnixMillis(T0 + 30 * MINUTE));
    let (entries, _) = entries_in(&machine.path("store"));
    let ages: Vec<_> = entries.iter().map(|entry| entry.figures.job_age_ms.0 / MINUTE).collect();
    assert!(ages.is_sorted() && ages.last() == Some(&60) && entries.len() > 6, "{ages:?}");
    assert_eq!(entries.iter().map(|entry| entry.figures.periods).sum::<u64>(), 60);
    assert!(entries.iter().all(|entry| entry.figures.duration_ms <= Millis(10 * MINUTE)));
}
