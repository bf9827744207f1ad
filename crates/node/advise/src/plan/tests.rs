//! Tests with constructed journals whose correct advice is known.

use std::fs;

use config::{Class, Policy};
use policy::cold_age;
use policy::histogram::{AgeCounts, Histogram};
use policy::thresholds::Thresholds;
use policy::veto::Veto;
use policy::{balance, pressure};
use units::{Age, Pages};

use super::*;
use agent::controllers::pressure::record::Reclaimed;
use agent::journal::{AgentRecord, JobMemory, JobRecord, Journal, Outcome, PeriodRecord, PressureRecord, VERSION};

mod physical;
mod resolved;

const MIB: u64 = 1 << 20;
const PERIOD_MS: u64 = 60_000;

/// One control period of a job, in MiB: charged memory, the compressed copies and slow memory in it, far memory,
/// promotions.
#[derive(Clone, Copy, Debug, Default)]
struct Period {
    current: u64,
    pool: u64,
    far: u64,
    slow: u64,
    zram: u64,
    promoted: u64,
    veto: Option<Veto>,
    /// Resident memory that is one scan old, in MiB.
    cold: u64,
}

fn current(current: u64) -> Period {
    Period { current, ..Period::default() }
}

fn thresholds() -> Thresholds {
    Thresholds::log_spaced(4).unwrap()
}

fn agent() -> Record {
    agent_at(UnixMillis(0))
}

fn agent_at(unix_ms: UnixMillis) -> Record {
    Record::Agent(AgentRecord {
        version: VERSION,
        unix_ms,
        boot_id: "b".into(),
        kernel: "6.12".into(),
        page_bytes: 4096,
        scan_period_ms: Millis(120_000),
        thresholds: thresholds(),
        bundle: 0,
        writes: None,
    })
}

fn job(name: &str, warmup_ms: Millis) -> Record {
    Record::Job(Box::new(JobRecord {
        unix_ms: UnixMillis(0),
        job: name.into(),
        id: 1,
        class: Class::Standard,
        tracker: "page_idle".into(),
        params: cold_age::Params::new(RatioPpm(2_000), RatioPpm(980_000), warmup_ms),
        state: cold_age::State::default(),
        policy: Policy::ColdAge,
        pressure: None,
        page_cache: None,
        background: None,
        tiering: None,
        writeback: None,
    }))
}

fn memory(period: &Period) -> JobMemory {
    JobMemory {
        current: Bytes(period.current * MIB),
        far: Bytes(period.far * MIB),
        pool: Bytes(period.pool * MIB),
        pool_overhead: Bytes::ZERO,
        file: Bytes::ZERO,
        zram: Bytes(period.zram * MIB),
        zram_stored: Bytes::ZERO,
        slow: Bytes(period.slow * MIB),
    }
}

fn pages(mib: u64) -> Pages {
    Pages(mib * 256)
}

/// The `at`-th period of a job. Its working set is 10 MiB.
fn period(name: &str, at: u64, period: &Period) -> Record {
    let mut counts = AgeCounts::default();
    counts.add(Age(0), pages(10));
    counts.add(Age(1), pages(period.cold));
    let resident = Histogram::from_counts(&counts, &thresholds());
    let threshold = Some(Age(1));
    let decision = cold_age::Decision::Hold { reason: cold_age::Hold::NothingCold };
    Record::Period(Box::new(PeriodRecord {
        unix_ms: UnixMillis(at * PERIOD_MS),
        job: name.into(),
        id: 1,
        input: cold_age::Input {
            job_age_ms: Millis(at * PERIOD_MS),
            window_ms: Millis(120_000),
            cold: resident,
            resident,
            promotions: Histogram::empty(&thresholds()),
            allowance: None,
            trial_max: None,
            returned: None,
            sample: None,
            reach: None,
            veto: period.veto,
        },
        step: cold_age::Step { decision, best: threshold, threshold, working_set: pages(10), promotions_max: Pages::ZERO, pace: None },
        outcome: Outcome { elapsed_ms: Millis(PERIOD_MS), promoted: pages(period.promoted), ..Outcome::default() },
        memory: memory(period),
        resolved_to: None,
    }))
}

/// A journal of one job.
fn journal(periods: impl IntoIterator<Item = Period>) -> Vec<Record> {
    let periods = periods.into_iter().zip(0..).map(|(one, at)| period("/a", at, &one));
    [agent(), job("/a", Millis(0))].into_iter().chain(periods).collect()
}

/// Repeats a period.
fn times(count: usize, period: Period) -> impl Iterator<Item = Period> {
    std::iter::repeat_n(period, count)
}

fn options(risk_ppm: u32) -> Options {
    Options { risk: RatioPpm(risk_ppm), job: None, dram: Some(Bytes(1000 * MIB)), tier_costs: vec![RatioPpm(250_000), RatioPpm(500_000)] }
}

fn planned(records: &[Record], options: &Options) -> Plan {
    of_records(records.iter().cloned().map(Ok), options).unwrap()
}

fn first(records: &[Record], risk_ppm: u32) -> JobPlan {
    planned(records, &options(risk_ppm)).jobs.remove(0)
}

/// Checks the limit in MiB at 1 % risk, and the share of periods above it.
fn check(what: &str, periods: impl IntoIterator<Item = Period>, limit: u64, risk: f64) {
    let plan = first(&journal(periods), 10_000);
    assert_eq!(plan.recommended_limit_bytes, Bytes::mib(limit), "{what}: {plan:?}");
    assert!((plan.risk_ratio - risk).abs() < 1e-12, "{what}: {plan:?}");
    assert!(plan.risk_ratio_max > risk && plan.risk_ratio_max < 1.0, "{what}: {plan:?}");
}

#[test]
fn a_limit_covers_the_periods_that_it_promises() {
    check("steady", times(1000, current(100)), 100, 0.0);
    check("just as often as the risk allows", times(990, current(100)).chain(times(10, current(200))), 100, 0.01);
    check("once more often", times(989, current(100)).chain(times(11, current(200))), 200, 0.0);
    check("not a whole number of periods", times(1042, current(100)).chain(times(10, current(200))), 100, 10.0 / 1052.0);
    let far = Period { current: 60, pool: 10, far: 40, ..Period::default() };
    check("in far memory", times(1000, far), 60, 0.0);
    let plan = first(&journal(times(1000, far)), 10_000);
    let all = |value: u64| Spread { p50: value * MIB, p95: value * MIB, p99: value * MIB, max: value * MIB };
    assert_eq!((plan.without_far_memory_bytes, plan.memory_bytes, plan.working_set_bytes), (all(90), all(60), all(10)));
    assert_eq!((plan.firm_saved_bytes, plan.starts, plan.periods), (Bytes::mib(30), 1, 1000));
    assert!((plan.span_seconds - 999.0 * 60.0).abs() < 1e-9);
}

#[test]
fn a_limit_never_decreases_with_the_risk() {
    let ramp: Vec<_> = (0..5000).map(|at| current(100 + at % 700)).collect();
    let records = journal(ramp);
    let limits = [200_000, 50_000, 10_000, 2_000, 700, 100].map(|risk| first(&records, risk).recommended_limit_bytes);
    assert!(limits.is_sorted() && limits[0] < limits[5], "{limits:?}");
    assert_eq!(limits[5], Bytes::mib(799));
}

#[test]
fn bursts_of_promotions_add_headroom() {
    // The reaction time, a scan period of 120 s plus a control period of 60 s, covers three periods.
    let with = |current: u64, far: u64, promoted: u64| Period { current, far, promoted, ..Period::default() };
    let bursts = |bursts: &[u64]| {
        let idle = times(500, with(100, 900, 0));
        let busy: Vec<_> = bursts.iter().map(|&promoted| with(100, 900, promoted)).collect();
        idle.chain(busy).chain(times(500, with(100, 900, 0)))
    };
    check("one period", bursts(&[7]), 107, 0.0);
    check("over three periods", bursts(&[7, 8, 9]), 124, 0.0);
    check("longer than the reaction time", bursts(&[7, 8, 9, 6]), 124, 0.0);
    check("in two bursts", bursts(&[7, 0, 0, 20]), 120, 0.0);
    check("at most all far memory is promoted", times(1000, with(100, 30, 25)), 130, 0.0);
    let plan = first(&journal(bursts(&[7, 8, 9])), 10_000);
    assert_eq!((plan.covered_bytes, plan.burst_bytes, plan.reaction_seconds), (Bytes::mib(100), Bytes::mib(24), 180.0));
    // 1 MiB per minute, of a working set of 10 MiB.
    let plan = first(&journal(times(300, with(100, 900, 1))), 10_000);
    assert!(plan.promotion_rate_p99_ratio_per_min.is_some_and(|rate| (rate - 0.1).abs() < 0.001), "{plan:?}");
}

#[test]
fn a_short_history_is_covered_completely() {
    // 1 % requires 300 periods: of 299 all are covered, of 300 all but three.
    let history = |count: usize| journal(times(count - 3, current(100)).chain(times(3, current(150))));
    let check = |count: usize, risk_ppm: u32, too_short: bool, limit: u64| {
        let plan = first(&history(count), risk_ppm);
        assert_eq!((plan.too_short, plan.recommended_limit_bytes), (too_short, Bytes::mib(limit)), "{count} periods: {plan:?}");
    };
    check(299, 10_000, true, 150);
    check(300, 10_000, false, 100);
    check(300, 9_999, true, 150);
    check(60, 50_000, false, 100);
    check(59, 50_000, true, 150);
    assert_eq!(planned(&history(300), &options(9_999)).periods_min, 301);
}

#[test]
fn consecutive_periods_above_the_limit_raise_the_bound() {
    // Sixteen of 1600 periods, at regular distances or consecutive.
    let single = first(&journal((0..1600).map(|at| current(if at % 100 == 50 { 200 } else { 100 }))), 10_000);
    let together = first(&journal((0..1600).map(|at| current(if (800..816).contains(&at) { 200 } else { 100 }))), 10_000);
    for plan in [&single, &together] {
        assert_eq!((plan.recommended_limit_bytes, plan.periods), (Bytes::mib(100), 1600), "{plan:?}");
        assert!((plan.risk_ratio - 0.01).abs() < 1e-12, "{plan:?}");
    }
    assert!(single.independent_periods > 1400 && (0.015..0.02).contains(&single.risk_ratio_max), "{single:?}");
    // Equivalent to 1600 / 16 = 100 periods with one above.
    assert!((90..=101).contains(&together.independent_periods), "{together:?}");
    assert!((0.045..0.055).contains(&together.risk_ratio_max), "{together:?}");
}

#[test]
fn savings_count_only_at_the_same_time() {
    // Each job saves 100 MiB in one half of the time; together they never save more.
    let saving = |far: u64| Period { current: 200 - far, far, ..Period::default() };
    let mut records = vec![agent(), job("/a", Millis(0)), job("/b", Millis(0))];
    for at in 0..1000 {
        let (a, b) = if at < 500 { (100, 0) } else { (0, 100) };
        records.extend([period("/a", at, &saving(a)), period("/b", at, &saving(b))]);
    }
    let plan = planned(&records, &options(10_000));
    let machine = &plan.machine;
    assert_eq!((machine.periods, machine.firm_saved_bytes, machine.promise_bytes), (1000, Bytes::mib(100), Some(Bytes::mib(1100))));
    assert_eq!(machine.promise_ratio, Some(1.1));
    assert_eq!((machine.without_far_memory_bytes.p50, machine.memory_bytes.max), (400 * MIB, 300 * MIB));
    assert!(plan.jobs.iter().all(|job| job.firm_saved_bytes == Bytes::ZERO && !job.ended), "{plan:?}");

    // The saving of a job ends with the job.
    let ends = |at: u64, record: &Record| !matches!(record, Record::Period(period) if period.job == "/b" && period.unix_ms > UnixMillis(at * PERIOD_MS));
    let records: Vec<_> = records.into_iter().filter(|record| ends(900, record)).collect();
    let plan = planned(&records, &options(10_000));
    assert_eq!((plan.machine.firm_saved_bytes, plan.machine.promise_ratio), (Bytes::ZERO, Some(1.0)));
    assert_eq!(plan.jobs.iter().map(|job| job.ended).collect::<Vec<_>>(), [false, true]);
    // Consecutive jobs are not counted at the same time.
    let records = [agent(), period("/a", 1, &saving(100)), period("/b", 2, &saving(100))];
    assert_eq!(planned(&records, &options(10_000)).machine.firm_saved_bytes, Bytes::mib(100));
}

#[test]
fn observed_jobs_have_a_potential() {
    let observed = |veto| Period { current: 100, cold: 40, veto, ..Period::default() };
    let plan = |veto, warmup_ms| {
        let mut records = journal(times(400, observed(veto)));
        records[1] = job("/a", warmup_ms);
        planned(&records, &options(10_000))
    };
    for (veto, warmup_ms, want) in [
        (Some(Veto::ObserveOnly), 0, Some(Bytes::mib(40))),
        (Some(Veto::ObserveOnly), 399 * PERIOD_MS, Some(Bytes::mib(40))),
        (Some(Veto::ObserveOnly), 400 * PERIOD_MS, None),
        (Some(Veto::Incompressible), 0, None),
        (None, 0, None),
    ] {
        let plan = plan(veto, Millis(warmup_ms));
        assert_eq!((plan.jobs[0].firm_potential_bytes, plan.machine.firm_potential_bytes), (want, want), "{veto:?}, {warmup_ms} ms");
        assert_eq!(plan.machine.firm_saved_bytes, Bytes::ZERO, "nothing was offloaded");
    }
    assert_eq!(plan(Some(Veto::AtLimit), Millis(0)).jobs[0].at_limit_periods, 400);
}

#[test]
fn samples_between_two_periods_count_conservatively() {
    let params = pressure::Params {
        ratio: RatioPpm(500),
        stall_target: RatioPpm(1_000),
        io_stall_target: RatioPpm(1_000),
        step_max: RatioPpm(10_000),
        floor: Bytes::ZERO,
        warmup_ms: Millis(0),
    };
    let input = pressure::Input {
        job_age_ms: Millis(0),
        elapsed_ms: Millis(6_000),
        resident: Bytes::ZERO,
        protected: Bytes::ZERO,
        counters: pressure::Counters::default(),
        refault_cost_us: 0,
        veto: None,
    };
    let balance = balance::Input {
        anon_refaults: Pages::ZERO,
        file_refaults: Pages::ZERO,
        anon_cost_us: 0,
        file_cost_us: 0,
        anon: Bytes::ZERO,
        file: Bytes::ZERO,
        swap: true,
    };
    let (_, mut step) = pressure::step(&params, &pressure::State::default(), &input);
    step.memory_stall = RatioPpm(750);
    let lean = balance::step(&balance::State::default(), &balance).1;
    let mut records = journal(times(400, Period { current: 100, far: 50, ..Period::default() }));
    let peak = memory(&Period { current: 140, far: 10, ..Period::default() });
    let record = PressureRecord {
        unix_ms: UnixMillis(PERIOD_MS / 2),
        job: "/a".into(),
        id: 1,
        input,
        step,
        balance,
        lean,
        reclaimed: Reclaimed::default(),
        memory: peak,
    };
    records.insert(3, Record::Pressure(Box::new(record)));
    let plan = planned(&records, &options(1_000));
    let job = &plan.jobs[0];
    assert_eq!((job.periods, job.covered_bytes, job.without_far_memory_bytes.max), (400, Bytes::mib(140), 150 * MIB));
    assert_eq!((plan.machine.firm_saved_bytes, job.stall_p99_ratio), (Bytes::mib(10), Some(750e-6)));
}

/// Checks the cold share, and the savings at a quarter and at half of DRAM's price.
#[test]
fn savings_are_the_cold_share_times_the_price_difference() {
    let check = |what: &str, periods: Vec<Period>, cold: f64, saved: [f64; 2]| {
        let plan = planned(&journal(periods), &options(10_000));
        for (ratio, spending) in [(plan.machine.cold_ratio, &plan.machine.spending), (plan.jobs[0].cold_ratio, &plan.jobs[0].spending)] {
            assert!((ratio - cold).abs() < 1e-9, "{what}: {ratio}");
            let got: Vec<f64> = spending.iter().map(|saving| saving.saved_ratio).collect();
            assert!(got.len() == 2 && got.iter().zip(saved).all(|(got, want)| (got - want).abs() < 1e-9), "{what}: {got:?}");
        }
    };
    check("nothing is far", times(400, current(100)).collect(), 0.0, [0.0, 0.0]);
    // 70 MiB in DRAM, 10 of them compressed copies of 40: 100 without far memory.
    let far = Period { current: 70, pool: 10, far: 40, ..Period::default() };
    check("40 of 100 MiB are far", times(400, far).collect(), 0.4, [0.3, 0.2]);
    check("for half of the time", times(200, far).chain(times(200, current(100))).collect(), 0.2, [0.15, 0.1]);
    let observed = Period { cold: 40, veto: Some(Veto::ObserveOnly), ..current(100) };
    check("40 of 100 MiB are cold in an observed job", times(400, observed).collect(), 0.4, [0.3, 0.2]);
    let slow = Period { slow: 30, ..current(100) };
    check("30 of 100 MiB are in slow memory", times(400, slow).collect(), 0.3, [0.225, 0.15]);
    check("and another 50 are far", times(400, Period { far: 50, pool: 0, ..slow }).collect(), 80.0 / 150.0, [0.4, 80.0 / 300.0]);
    // Slow memory is resident and cold, and not counted again in the potential.
    check("of 40 cold MiB 30 are slow", times(400, Period { slow: 30, ..observed }).collect(), 0.4, [0.3, 0.2]);
}

#[test]
fn slow_memory_is_charged_and_uses_no_dram() {
    let slow = Period { current: 100, slow: 30, far: 50, ..Period::default() };
    let plan = planned(&journal(times(400, slow)), &options(10_000));
    let (job, machine) = (&plan.jobs[0], &plan.machine);
    let all = |value: u64| Spread { p50: value * MIB, p95: value * MIB, p99: value * MIB, max: value * MIB };
    assert_eq!((job.slow_bytes, machine.slow_bytes, machine.memory_bytes), (all(30), all(30), all(70)));
    // A limit applies to charged memory, wherever it is.
    assert_eq!((job.memory_bytes, job.recommended_limit_bytes), (all(100), Bytes::mib(100)));
    assert_eq!(
        (job.firm_saved_bytes, machine.firm_saved_bytes, machine.promise_bytes),
        (Bytes::mib(80), Bytes::mib(80), Some(Bytes::mib(1080)))
    );
    for by_tier in [job.cold_ratio_by_tier, machine.cold_ratio_by_tier] {
        assert_eq!(by_tier, Cold { far: 50.0 / 150.0, slow: 0.2, potential: 0.0 });
    }
    let jobs = [agent(), period("/a", 0, &slow), period("/b", 0, &current(10))];
    let by_tier = planned(&jobs, &options(10_000)).machine.cold_ratio_by_tier;
    assert_eq!(by_tier, Cold { far: 50.0 / 160.0, slow: 30.0 / 160.0, potential: 0.0 });
}

#[test]
fn a_recreated_job_counts_as_one_job_with_two_starts() {
    let mut records = journal(times(400, current(100)));
    for record in &mut records[300..] {
        let Record::Period(period) = record else { panic!("a period") };
        period.id = 2;
    }
    let plan = first(&records, 10_000);
    assert_eq!((plan.starts, plan.periods), (2, 400));
}

#[test]
fn a_pattern_selects_jobs_and_the_machine_includes_all() {
    let mut records = vec![agent()];
    for at in 0..400 {
        records.extend(["/web.slice/a", "/web.slice/b", "/db"].map(|name| period(name, at, &current(100))));
    }
    let plan = |pattern: &str| of_records(records.iter().cloned().map(Ok), &Options { job: Some(pattern.into()), ..options(10_000) });
    let check = |pattern: &str, want: &[&str]| {
        let plan = plan(pattern).unwrap();
        assert_eq!(plan.jobs.iter().map(|job| job.job.as_str()).collect::<Vec<_>>(), want, "{pattern}");
        assert_eq!(plan.machine.memory_bytes.max, 300 * MIB, "{pattern}");
    };
    check("/web.slice/*", &["/web.slice/a", "/web.slice/b"]);
    check("/*", &["/db"]);
    let error = |pattern: &str| plan(pattern).unwrap_err().to_string();
    assert!(error("/none").contains("\"/none\"; the journal has: /db, /web.slice/a"), "{}", error("/none"));
    assert!(error("/[").contains("invalid cgroup pattern"), "{}", error("/["));
}

#[test]
fn a_directory_and_its_files_give_the_same_advice() {
    let directory = tempfile::tempdir().unwrap();
    let records = journal((0..700).map(|at| current(100 + at)));
    let mut journal = Journal::open(directory.path(), Bytes(100_000), 20).unwrap();
    for (batch, at) in records.chunks(10).zip(1..) {
        journal.append(batch).unwrap();
        if journal.rotate_if_full().unwrap() {
            journal.append(&[agent_at(UnixMillis(at * 10 * PERIOD_MS)), job("/a", Millis(0))]).unwrap();
        }
    }
    let mut paths: Vec<PathBuf> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 2, "{paths:?}");
    let want = format!("{:?}", planned(&records, &options(10_000)));
    assert_eq!(format!("{:?}", of_directory(directory.path(), &options(10_000)).unwrap()), want);
    assert_eq!(format!("{:?}", of_files(&paths, &options(10_000)).unwrap()), want);

    // A torn last line is dropped, a bad line in the middle is not.
    let newest = Journal::path(directory.path());
    let mut text = fs::read_to_string(&newest).unwrap();
    fs::write(&newest, text.clone() + "{\"record\":").unwrap();
    assert_eq!(format!("{:?}", of_directory(directory.path(), &options(10_000)).unwrap()), want);
    text += "{}\n";
    let line = text.lines().count();
    fs::write(&newest, text).unwrap();
    let error = of_directory(directory.path(), &options(10_000)).unwrap_err().to_string();
    assert!(error.contains(&format!("journal:{line}: ")), "{error}");
}

#[test]
fn without_a_journal_or_periods_there_is_no_advice() {
    let directory = tempfile::tempdir().unwrap();
    let check = |records: &[Record], want: &str| {
        let lines: String = records.iter().map(|record| serde_json::to_string(record).unwrap() + "\n").collect();
        let path = directory.path().join("named");
        fs::write(&path, lines).unwrap();
        let error = of_files(&[path], &options(10_000)).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    };
    check(&[], "contains no control period");
    check(&[agent(), job("/a", Millis(0))], "contains no control period");
    check(&journal(times(3, current(1)))[1..], "contains no control period");
    let changed = |change: fn(&mut AgentRecord)| {
        let Record::Agent(mut record) = agent() else { panic!("an agent") };
        change(&mut record);
        [Record::Agent(record)]
    };
    check(&changed(|agent| agent.version = VERSION + 1), "use the program that wrote it");
    check(&changed(|agent| agent.page_bytes = 4095), "page_bytes is 4095");
    let error = of_directory(&directory.path().join("none"), &options(10_000)).unwrap_err().to_string();
    assert!(error.contains("there is no journal in") && error.contains("thermocline agent"), "{error}");
    assert!(of_files(&[directory.path().join("none")], &options(10_000)).is_err());
}

#[test]
fn extreme_numbers_do_not_panic() {
    let most = Period { current: 1 << 43, pool: 1 << 43, far: 1 << 43, promoted: 1 << 43, ..Period::default() };
    let plan = planned(&journal(times(400, most)), &Options { risk: RatioPpm(0), ..options(0) });
    assert!(plan.jobs[0].too_short && plan.jobs[0].recommended_limit_bytes >= Bytes(1 << 63), "{plan:?}");
}
