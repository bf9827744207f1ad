//! What is promised was physically there.

use agent::journal::SavingsRecord;
use agent::savings::Ledger;

use super::*;

/// A journal of a given version of one job with 100 MiB and 64 GiB of reclaimed page cache, which had 300 MiB at first.
fn reclaimed_cache(version: u32) -> Vec<Record> {
    let mut records = journal(times(1, current(300)).chain(times(999, current(100))));
    for record in &mut records {
        match record {
            Record::Agent(agent) => agent.version = version,
            Record::Period(period) => period.memory.file = Bytes::gib(64),
            _ => {}
        }
    }
    records
}

#[test]
fn a_promise_is_bounded_by_the_dram_that_was_there() {
    // Before version 5, page cache is the sum of all that was reclaimed: no more of it was there than the job shrank by.
    let old = planned(&reclaimed_cache(4), &options(10_000));
    assert_eq!((old.machine.firm_saved_bytes, old.jobs[0].firm_saved_bytes), (Bytes::mib(200), Bytes::mib(200)));
    assert_eq!(old.machine.promise_bytes, Some(Bytes::mib(1200)));
    // The machine bounds what its jobs claim, in any version: it has 1000 MiB, of which 100 are in use.
    let new = planned(&reclaimed_cache(VERSION), &options(10_000));
    assert_eq!(new.machine.firm_saved_bytes, Bytes::mib(900));
    assert_eq!(planned(&reclaimed_cache(VERSION), &Options { dram: None, ..options(10_000) }).machine.promise_bytes, None);
}

#[test]
fn a_promise_is_net_of_the_agent_and_uses_the_journals_dram() {
    let mut records = vec![agent(), job("/a", Millis(0))];
    for at in 0..1000 {
        records.push(period("/a", at, &Period { current: 100, far: 50, pool: 10, ..Period::default() }));
        let ledger = Ledger { net_bytes: 33 << 20, ..Ledger::default() };
        records.push(SavingsRecord { unix_ms: UnixMillis(at * PERIOD_MS), dram_bytes: Bytes::mib(500), ledger }.into());
    }
    let plan = planned(&records, &Options { dram: None, ..options(10_000) });
    assert_eq!((plan.machine.firm_saved_bytes, plan.machine.promise_bytes), (Bytes::mib(33), Some(Bytes::mib(533))));
}

#[test]
fn memory_on_zram_devices_is_not_saved_and_not_charged_to_the_job() {
    // 40 MiB left DRAM, and 10 MiB of it hold their compressed copies, beside the 50 MiB that are charged.
    let far = Period { current: 50, zram: 10, far: 40, ..Period::default() };
    let plan = planned(&journal(times(1000, far)), &options(10_000));
    let job = &plan.jobs[0];
    assert_eq!((job.firm_saved_bytes, job.without_far_memory_bytes.max, job.memory_bytes.max), (Bytes::mib(30), 90 * MIB, 50 * MIB));
    assert_eq!((plan.machine.memory_bytes.max, plan.machine.firm_saved_bytes), (60 * MIB, Bytes::mib(30)));
}

#[test]
fn others_are_promised_no_more_than_dram_and_nothing_by_too_few_periods() {
    let mut plan = planned(&reclaimed_cache(VERSION), &options(10_000));
    plan.machine.independent_periods = plan.periods_min;
    assert_eq!(plan.spare_promise_bytes(), Bytes::mib(900));
    plan.machine.firm_saved_bytes = Bytes::mib(5000);
    assert_eq!(plan.spare_promise_bytes(), Bytes::mib(1000), "all of its DRAM");
    for spoil in [
        (|plan: &mut Plan| plan.machine.independent_periods = plan.periods_min - 1) as fn(&mut Plan),
        |plan| plan.machine.too_short = true,
        |plan| plan.machine.dram_bytes = None,
    ] {
        let mut plan = plan.clone();
        spoil(&mut plan);
        assert_eq!(plan.spare_promise_bytes(), Bytes::ZERO);
    }
}
