//! Periods of pressure-driven offloading over a fake machine.

use policy::balance::AnonFileBias;
use policy::pressure::{Decision, Hold};

use super::*;
use crate::controllers::pressure::record::Period;

const WRITEBACK: &str = "memory.zswap.writeback";

pub(super) fn psi(total_us: u64) -> String {
    let line = |kind: &str| format!("{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}");
    line("some") + "\n" + &line("full")
}

/// A machine whose job has 100 MiB, three quarters of them anonymous.
fn machine() -> Machine {
    let machine = Machine::new();
    let _ = machine.cgroup(JOB);
    machine.set(JOB, "memory.current", &(100u64 << 20).to_string());
    machine.set(JOB, "memory.stat", &format!("anon {}\nfile {}\nshmem 0\nzswap 0\nzswpin 0", 75u64 << 20, 25u64 << 20));
    machine.set(JOB, "memory.min", "0");
    machine.set(JOB, WRITEBACK, "1");
    machine.set(JOB, "memory.zswap.max", "max");
    stalled(&machine, 0, 0);
    machine
}

fn stalled(machine: &Machine, memory_us: u64, io_us: u64) {
    machine.set(JOB, "memory.pressure", &psi(memory_us));
    machine.set(JOB, "io.pressure", &psi(io_us));
}

fn config(machine: &Machine, rule: &str) -> Config {
    machine.config(&format!("[pressure]\nratio = \"1%\"\nwarmup = \"0s\"\n[[job]]\ncgroup = \"{JOB}\"\n{rule}\n"))
}

fn agent(machine: &Machine, rule: &str, options: Options) -> Agent {
    let mut agent = Agent::new(machine.roots.clone(), config(machine, rule), options).unwrap();
    agent.scan(at(1_000));
    agent
}

/// One period, `at` seconds after boot.
fn period(agent: &mut Agent, seconds: u64) -> Period {
    agent.decide_now(PRESSURE, at(seconds));
    agent.pressure(JOB).last.unwrap_or_else(|| panic!("no period: {:?}", agent.job(JOB).error))
}

#[test]
fn a_job_is_reclaimed_from_until_it_stalls() {
    let machine = machine();
    let mut agent = agent(&machine, "class = \"standard\"\npolicy = \"pressure\"", Options::default());
    assert_eq!(period(&mut agent, 1_006).step.decision, Decision::Hold { reason: Hold::NoHistory });
    let quiet = period(&mut agent, 1_012);
    assert_eq!((quiet.step.decision, quiet.lean), (Decision::Reclaim { bytes: Bytes(1 << 20) }, AnonFileBias::Swappiness(100)));
    assert_eq!(agent.pressure(JOB).plan.unwrap().total(), Bytes(1 << 20));
    // Half of the target of 0.1 % of 6 s; then all of it, for I/O.
    stalled(&machine, 3_000, 0);
    assert_eq!(period(&mut agent, 1_018).step.decision, Decision::Reclaim { bytes: Bytes(1 << 19) });
    stalled(&machine, 3_000, 6_000);
    assert_eq!(period(&mut agent, 1_024).step.decision, Decision::Hold { reason: Hold::IoStall });
    assert!(agent.pressure(JOB).plan.is_none());
    assert!(agent.job(JOB).signals.stall.unwrap().at_target);
    agent.stop();
    let replay = agent.replayed();
    assert_eq!((replayed(&replay, "pressure"), replayed(&replay, "tiering"), replay.skipped), (4, 4, 0));
    assert_eq!(replay.differing, [0; 0]);
}

#[test]
fn the_tier_is_set_in_the_jobs_cgroup_and_restored() {
    let check = |tier: &str, writeback: &str, zswap_max: &str| {
        let machine = machine();
        let rule = format!("class = \"standard\"\npolicy = \"pressure\"\ntier = \"{tier}\"");
        machine.put("sys/class/block/vdb/stat", "0 0 0 0 0 0 0 0\n");
        let mut agent = agent(&machine, &rule, Options::default());
        period(&mut agent, 1_006);
        let file = |name: &str| machine.get(&format!("sys/fs/cgroup{JOB}/{name}"));
        assert_eq!((file(WRITEBACK).as_str(), file("memory.zswap.max").as_str()), (writeback, zswap_max), "{tier}");
        agent.stop();
        assert_eq!((file(WRITEBACK).as_str(), file("memory.zswap.max").as_str()), ("1", "max"), "{tier}");
    };
    check("zswap", "0", "max");
    check("swap", "1", "0");
    check("both", "1", "max");
}

#[test]
fn page_cache_needs_no_swap_and_auto_leaves_anonymous_memory_to_its_age() {
    let check = |rule: &str, swaps: &str| {
        let machine = machine();
        machine.put("proc/swaps", swaps);
        let mut agent = agent(&machine, rule, Options::default());
        period(&mut agent, 1_006);
        let asked = period(&mut agent, 1_012);
        // 1 % of the 25 MiB of page cache, in whole pages.
        assert_eq!((asked.lean, asked.step.decision), (AnonFileBias::FileOnly, Decision::Reclaim { bytes: Bytes(64 << 12) }), "{rule}");
        machine.set(JOB, "memory.min", &(100u64 << 20).to_string());
        assert_eq!(period(&mut agent, 1_018).step.decision, Decision::Hold { reason: Hold::AtFloor }, "protected whole");
    };
    check("class = \"standard\"\npolicy = \"pressure\"", "Filename Type Size Used Priority\n");
    // Where page cache is left to this controller.
    let auto = "class = \"standard\"\npolicy = \"auto\"\n[cold_age]\npage_cache = false";
    check(auto, "Filename Type Size Used Priority\n/dev/vdb partition 1024 0 -2\n");
}

#[test]
fn under_auto_stalls_are_observed_and_others_decide() {
    let machine = machine();
    let mut agent = agent(&machine, "class = \"standard\"\npolicy = \"auto\"", Options::default());
    period(&mut agent, 1_006);
    assert_eq!(period(&mut agent, 1_012).step.decision, Decision::Hold { reason: Hold::Vetoed(Veto::OtherPolicy) });
    stalled(&machine, 6_000, 0);
    assert_eq!(period(&mut agent, 1_018).step.decision, Decision::Hold { reason: Hold::MemoryStall });
    assert!(agent.job(JOB).signals.stall.unwrap().at_target);
}

#[test]
fn a_veto_is_the_reason_to_hold() {
    let check = |class: &str, dry_run: bool, prepare: fn(&Machine), want: Hold| {
        let machine = machine();
        let rule = format!("class = \"{class}\"\npolicy = \"pressure\"");
        let mut agent = agent(&machine, &rule, Options { dry_run, ephemeral: true, ..Options::default() });
        period(&mut agent, 1_006);
        prepare(&machine);
        assert_eq!(period(&mut agent, 1_012).step.decision, Decision::Hold { reason: want }, "{class} {dry_run}");
        assert_eq!(machine.get(&format!("sys/fs/cgroup{JOB}/{WRITEBACK}")) == "1", want == Hold::Vetoed(Veto::ObserveOnly));
    };
    check("observe", false, |_| (), Hold::Vetoed(Veto::ObserveOnly));
    check("standard", true, |_| (), Hold::Vetoed(Veto::ObserveOnly));
    let full = |machine: &Machine| {
        machine.set(JOB, "memory.max", &(100u64 << 20).to_string());
    };
    check("conservative", false, full, Hold::Vetoed(Veto::AtLimit));
    check("standard", false, |machine| machine.set(JOB, "memory.min", "max"), Hold::AtFloor);
}

#[test]
fn an_error_is_reported_once_and_affects_one_job() {
    let machine = machine();
    let _ = machine.cgroup("/b");
    let text = "class = \"standard\"\npolicy = \"pressure\"\n[[job]]\ncgroup = \"/b\"\nclass = \"standard\"\npolicy = \"pressure\"";
    let mut agent = agent(&machine, text, Options::default());
    for at in [1_006, 1_012, 1_018] {
        period(&mut agent, at);
    }
    assert!(agent.job("/b").error.as_ref().unwrap().contains("pressure"), "{:?}", agent.job("/b").error);
    assert_eq!(agent.pressure(JOB).recent().unwrap().len(), 3);
    agent.stop();
    let records = agent.records();
    let reported = records
        .iter()
        .filter(|record| matches!(record, Record::Event { job: Some(job), what, .. } if job == "/b" && what.contains("pressure")));
    // Once in the event of its start, once as the error.
    assert_eq!(reported.count(), 2);
}

#[test]
fn page_cache_is_saved_only_while_there_is_room_for_it() {
    let machine = machine();
    let rule = "class = \"standard\"\npolicy = \"pressure\"";
    let mut agent = agent(&machine, rule, Options::default());
    period(&mut agent, 1_006);
    // 256 KiB of page cache are gone, and 512 KiB are free: less than that if others use it.
    agent.jobs.get_mut(JOB).unwrap().job.account_reclaim(Pages::ZERO, Bytes::kib(256));
    machine.set(JOB, "memory.stat", &format!("anon {}\nfile {}\nshmem 0", 75u64 << 20, (25u64 << 20) - (256 << 10)));
    period(&mut agent, 1_012);
    agent.control(at(1_012));
    assert_eq!(agent.job(JOB).memory.saved(), Bytes::kib(256));
    machine.put("proc/meminfo", "MemTotal: 1024 kB\nMemFree: 64 kB\nMemAvailable: 32 kB\nSwapTotal: 1024 kB\nSwapFree: 1024 kB\n");
    agent.costs.rss_bytes = Bytes::kib(16);
    agent.control(at(1_012));
    assert_eq!(agent.job(JOB).memory.saved(), Bytes::kib(64));
    let view = agent.report();
    assert_eq!((view.saved_bytes, view.savings.file_bytes, view.savings.in_use_bytes), (48 << 10, Bytes::kib(64), Bytes::kib(16)));
    // The other half of the free memory would hold what is swapped out.
    machine.set(JOB, "memory.swap.current", &(32u64 << 10).to_string());
    period(&mut agent, 1_012);
    agent.control(at(1_012));
    assert_eq!(agent.job(JOB).memory.file, Bytes::kib(32));
    agent.stop();
    let nets: Vec<_> = agent.records().iter().filter_map(|record| Some(net_of(record)?.1)).collect();
    assert_eq!(nets, [256 << 10, 48 << 10, 48 << 10]);
}

/// The machine's DRAM and net saving in a record of the ledger.
fn net_of(record: &Record) -> Option<(Bytes, i64)> {
    let Record::Savings(record) = record else { return None };
    Some((record.dram_bytes, record.ledger.net_bytes))
}

/// A machine that swaps to zram only, where 3 MiB of a job's 100 MiB are stored in 1 MiB.
fn zram_machine() -> Machine {
    let machine = machine();
    machine.put("sys/module/zswap/parameters/enabled", "N\n");
    machine.put("proc/swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 1048576 4096 100\n");
    machine.put("sys/class/block/zram0/stat", "0 0 0 0 0 0 0 0\n");
    machine.put("sys/class/block/zram0/comp_algorithm", "lzo [zstd]\n");
    machine.put("sys/class/block/zram0/mm_stat", &format!("{} 0 {} 0 0 0 0\n", 4 << 20, 2 << 20));
    machine.set(JOB, "memory.swap.current", &(3u64 << 20).to_string());
    machine
}

#[test]
fn a_job_on_zram_is_charged_for_its_share_and_wears_out_nothing() {
    let machine = zram_machine();
    let mut agent = agent(&machine, "class = \"standard\"\npolicy = \"pressure\"", Options::default());
    period(&mut agent, 1_006);
    machine.set(JOB, "memory.stat", &format!("anon {}\nfile {}\nshmem 0\nzswpin 0\npswpout 700", 75u64 << 20, 25u64 << 20));
    machine.put("proc/vmstat", "pswpin 0\npswpout 700\n");
    let decision = period(&mut agent, 1_012).step.decision;
    assert!(matches!(decision, Decision::Reclaim { .. }), "{decision:?}");
    let view = agent.report();
    let job = &view.jobs[0];
    assert_eq!((job.tier.as_deref(), job.written_bytes), (Some("zram0"), Bytes::ZERO));
    assert_eq!((job.far_bytes, job.zram_bytes, job.saved_bytes), (Bytes::mib(3), Bytes(3 << 19), Bytes(3 << 19)));
    assert_eq!((view.tiers.ram_disks.memory, view.tiers.written_bytes), (Bytes::mib(2), Bytes::ZERO));
    assert_eq!((view.tiers.rows.len(), view.tiers.rows[0].priority), (1, Some(100)));
    assert_eq!(machine.get(&format!("sys/fs/cgroup{JOB}/memory.zswap.max")), "max", "there is no zswap to bypass");
    let metrics = crate::metrics::render(&view).unwrap();
    assert!(metrics.contains("thermocline_machine_zram_bytes 2097152"), "{metrics}");
    agent.stop();
    let replay = agent.replayed();
    assert_eq!((replayed(&replay, "tiering"), replay.skipped), (2, 0));
    assert_eq!(replay.differing, [0; 0]);
}
