//! Periods of page-cache reclaim over a fake machine.

use policy::refaults::{Decision, Hold};

use super::*;
use crate::controllers::page_cache::record::PageCacheRecord;

/// The index of the policy in the agent's list.
const PAGE_CACHE: usize = 1;

const MIB: u64 = 1 << 20;

/// A machine whose job has 75 MiB of anonymous memory and 25 MiB of page cache, of which 200 pages are idle, and no swap.
fn machine() -> Machine {
    let machine = Machine::new();
    let job = machine.cgroup(JOB);
    machine.cache_frames(&job, 200);
    machine.put("proc/swaps", "Filename Type Size Used Priority\n");
    machine.set(JOB, "memory.current", &(100 * MIB).to_string());
    machine.set(JOB, "memory.pressure", &super::pressure::psi(0));
    refaulted(&machine, 0, Duration::ZERO);
    machine
}

/// The job had so many refaults so far, for which tasks waited for so long.
fn refaulted(machine: &Machine, pages: u64, waited: Duration) {
    machine.set(JOB, "io.pressure", &super::pressure::psi(u64::try_from(waited.as_micros()).unwrap()));
    let stat = format!("anon {}\nfile {}\nshmem 0\nworkingset_refault_file {pages}", 75 * MIB, 25 * MIB);
    machine.set(JOB, "memory.stat", &stat);
}

/// The decisions of periods of two minutes, in which so many pages of page cache are refaulted, each by a read of its own.
fn decisions(machine: &Machine, settings: &str, refaults: &[u64]) -> Vec<PageCacheRecord> {
    let read = Duration::from_micros(crate::tiers::DEVICE_US.into());
    let alone = |&pages: &u64| (pages, read * u32::try_from(pages).unwrap());
    decisions_of(machine, settings, &refaults.iter().map(alone).collect::<Vec<_>>())
}

/// The same, with the time for which tasks waited in each period.
fn decisions_of(machine: &Machine, settings: &str, refaults: &[(u64, Duration)]) -> Vec<PageCacheRecord> {
    let warm = "[cold_age]\nwarmup = \"0s\"\n[class.conservative]\nwarmup = \"0s\"\n[pressure]\nwarmup = \"0s\"";
    let config = machine.config(&format!("{settings}\n{warm}\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n"));
    let mut agent = Agent::new(machine.roots.clone(), config, Options::default()).unwrap();
    agent.scan(at(880));
    machine.access_frames(0);
    agent.scan(at(1_000));
    let (mut sum, mut waited) = (0, Duration::ZERO);
    for (seconds, &(pages, wait)) in (1_000..).step_by(120).zip(refaults) {
        (sum, waited) = (sum + pages, waited + wait);
        refaulted(machine, sum, waited);
        agent.decide_now(PAGE_CACHE, at(seconds));
    }
    agent.stop();
    let replay = agent.replayed();
    assert_eq!((replay.skipped, replay.differing), (0, vec![]));
    let of = |record: Record| if let Record::PageCache(record) = record { Some(*record) } else { None };
    agent.records().into_iter().filter_map(of).collect()
}

fn reclaimed(record: &PageCacheRecord) -> u64 {
    if let Decision::Reclaim { pages } = record.step.decision { pages.0 } else { 0 }
}

#[test]
fn cold_age_takes_page_cache_without_swap_until_it_returns() {
    let periods = decisions(&machine(), "policy = \"cold_age\"", &[0, 0, 0, 1_000, 0]);
    assert_eq!(periods[0].step.decision, Decision::Hold { reason: Hold::NoHistory });
    assert_eq!(periods[1..].iter().map(reclaimed).collect::<Vec<_>>(), [64, 108, 0, 0], "from the least: times 1 + 0.693");
    // 0.4 % of 25 MiB of page cache; nothing is known of the working set.
    assert_eq!((periods[3].step.allowed, periods[3].input.allowance), (Pages(25), None));
    assert!(periods[3].step.returned > Pages(1_000), "a refault takes longer than a promotion");
    assert_eq!(periods[4].step.decision, Decision::Hold { reason: Hold::Refaults });
}

#[test]
fn pages_that_read_ahead_brings_cost_no_more_than_the_wait() {
    let wait = Duration::from_millis(100);
    // 100 reads of their own take as long, and not 3,200.
    let periods = decisions_of(&machine(), "policy = \"auto\"", &[(0, wait), (0, wait), (3_200, wait), (0, wait)]);
    let waited = |record: &PageCacheRecord| record.input.waited.map(|pages| pages.0);
    let promotions = 100_000 / u64::from(crate::tiers::ZSWAP_US);
    assert_eq!(periods.iter().map(waited).collect::<Vec<_>>(), [Some(0), Some(promotions), Some(promotions), Some(promotions)]);
    let returned = |record: &PageCacheRecord| record.step.returned.0;
    assert_eq!(periods.iter().map(returned).collect::<Vec<_>>(), [0, 0, promotions, 0]);
}

#[test]
fn under_auto_the_stall_target_bounds_what_returns() {
    let periods = decisions(&machine(), "policy = \"auto\"", &[0, 0, 0, 0]);
    // 0.1 % of two minutes.
    let cost = periods[2].input.allowance.unwrap().0;
    assert_eq!(cost, 120_000 / u64::from(crate::tiers::ZSWAP_US));
    assert!(reclaimed(&periods[2]) > 0);
}

#[test]
fn page_cache_is_left_alone_if_the_operator_says_so() {
    for policy in ["cold_age", "auto"] {
        let machine = machine();
        let config = machine
            .config(&format!("policy = \"{policy}\"\n[cold_age]\npage_cache = false\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n"));
        let mut agent = Agent::new(machine.roots.clone(), config, Options::default()).unwrap();
        agent.scan(at(1_000));
        agent.decide_now(PAGE_CACHE, at(1_120));
        agent.stop();
        assert!(!agent.records().iter().any(|record| matches!(record, Record::PageCache(_))), "{policy}");
    }
}
