//! The choice of zswap's compressor over a fake machine.

use policy::incompressible::Sample;
use trackers::compressibility::{Compression, Measurement};
use units::RatioPpm;

use super::*;

const COMPRESSOR: &str = "sys/module/zswap/parameters/compressor";
const POOL: &str = "sys/kernel/debug/zswap/pool_total_size";

/// A machine whose zswap compresses by lzo, and a job with 200 cold pages.
fn machine() -> Machine {
    let machine = machine_with_job();
    machine.put(COMPRESSOR, "lzo\n");
    machine.put(POOL, "0\n");
    machine.put("sys/kernel/debug/zswap/stored_pages", "0\n");
    machine
}

/// An agent with a sample of its job's pages: what they shrink to by lzo, lz4 and zstd.
fn sampled(machine: &Machine, settings: &str, options: Options, percent: [u32; 3]) -> Agent {
    let config = machine.config(&format!("{settings}\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n"));
    let mut agent = Agent::new(machine.roots.clone(), config, options).unwrap();
    agent.scan(at(880));
    machine.access_frames(0);
    agent.scan(at(1_000));
    let families = percent.map(|percent| Compression { ratio: RatioPpm(percent * 10_000), decompress_us: 9, compress_us: 9 });
    let tiering = &mut agent.jobs.get_mut(JOB).unwrap().job.tiering;
    tiering.measured = Some(Measurement::new(Sample { pages: 64, incompressible: 0 }, families));
    tiering.sampled_at_ms = Some(Millis(1_000_000));
    agent
}

#[test]
fn the_compressor_that_stores_least_is_in_use_while_the_agent_runs() {
    for (percent, expected) in [([34, 40, 20], "zstd"), ([34, 40, 33], "lzo"), ([34, 20, 33], "lz4")] {
        let machine = machine();
        let mut agent = sampled(&machine, "", Options::default(), percent);
        agent.control(at(1_000));
        assert_eq!(machine.get(COMPRESSOR), expected, "{percent:?}");
        agent.stop();
        assert_eq!(machine.get(COMPRESSOR), "lzo", "{percent:?}");
    }
}

#[test]
fn a_job_that_returns_at_once_gets_no_slow_compressor() {
    for (decompress_us, expected) in [([3, 2, 8], "lzo"), ([3, 2, 4], "zstd")] {
        let machine = machine();
        let mut agent = sampled(&machine, "", Options::default(), [34, 40, 20]);
        let job = &mut agent.jobs.get_mut(JOB).unwrap().job;
        job.treatment.policy = config::Policy::Background;
        let mut slower = [34, 40, 20].map(|percent| Compression { ratio: RatioPpm(percent * 10_000), decompress_us: 0, compress_us: 1 });
        for (family, us) in slower.iter_mut().zip(decompress_us) {
            family.decompress_us = us;
        }
        job.tiering.measured = Some(Measurement::new(Sample { pages: 64, incompressible: 0 }, slower));
        agent.control(at(1_000));
        assert_eq!(machine.get(COMPRESSOR), expected, "{decompress_us:?}");
    }
}

/// Gives the job a new sample, in which zstd compresses best and takes three times as long as lz4.
fn zstd_takes_three_times_as_long(agent: &mut Agent, sampled_at_ms: u64) {
    let families = [(34, 5), (40, 4), (20, 12)];
    let families = families.map(|(percent, compress_us)| Compression { ratio: RatioPpm(percent * 10_000), decompress_us: 9, compress_us });
    let tiering = &mut agent.jobs.get_mut(JOB).unwrap().job.tiering;
    tiering.measured = Some(Measurement::new(Sample { pages: 64, incompressible: 0 }, families));
    tiering.sampled_at_ms = Some(Millis(sampled_at_ms));
}

/// What zswap has stored since boot.
fn stored(machine: &Machine, pages: u64) {
    machine.put("proc/vmstat", &format!("pswpin 0\npswpout 0\nzswpout {pages}\n"));
}

/// An agent that has chosen zstd, while nothing was stored.
fn with_zstd() -> (Machine, Agent) {
    let machine = machine();
    stored(&machine, 0);
    let mut agent = sampled(&machine, "", Options::default(), [34, 40, 20]);
    zstd_takes_three_times_as_long(&mut agent, 1_000_000);
    agent.control(at(1_000));
    assert_eq!(machine.get(COMPRESSOR), "zstd");
    (machine, agent)
}

#[test]
fn a_compressor_that_takes_too_much_time_is_replaced() {
    let (machine, mut agent) = with_zstd();
    // More in a minute than any machine compresses in a twentieth of its time.
    stored(&machine, 1 << 40);
    agent.control(at(1_060));
    assert_eq!(machine.get(COMPRESSOR), "lzo");
    // It is not tried again at once, although nothing more is stored.
    for (minutes, expected) in [(2..10, "lzo"), (10..14, "zstd")] {
        for minute in minutes {
            zstd_takes_three_times_as_long(&mut agent, 1_000_000 + 60_000 * minute);
            agent.control(at(1_000 + 60 * minute));
        }
        assert_eq!(machine.get(COMPRESSOR), expected);
    }
}

#[test]
fn what_the_agent_offloads_does_not_decide() {
    let (machine, mut agent) = with_zstd();
    // The kernel stored nothing by itself, and then more than any machine compresses in a twentieth of its time.
    for (at_s, pages, expected) in [(1_060, 1 << 30, "zstd"), (1_120, 1 << 40, "lzo")] {
        stored(&machine, pages);
        agent.jobs.get_mut(JOB).unwrap().job.counters.totals.offloaded = Pages(1 << 30).to_bytes(kernel::page_size());
        agent.control(at(at_s));
        assert_eq!(machine.get(COMPRESSOR), expected);
    }
}

#[test]
fn others_keep_the_compressor_that_they_had() {
    let machine = machine();
    machine.put(POOL, &format!("{}\n", 64 << 20));
    let mut agent = sampled(&machine, "", Options::default(), [34, 40, 20]);
    agent.control(at(1_000));
    assert_eq!(machine.get(COMPRESSOR), "lzo");

    // They come later.
    machine.put(POOL, "0\n");
    agent.control(at(1_060));
    assert_eq!(machine.get(COMPRESSOR), "zstd");
    machine.put(POOL, &format!("{}\n", 64 << 20));
    agent.control(at(1_120));
    assert_eq!(machine.get(COMPRESSOR), "lzo");

    // The operator has decided about all of zswap.
    let mut agent = {
        agent.stop();
        drop(agent);
        sampled(&machine, "[zswap]\nmanage = true", Options::default(), [34, 40, 20])
    };
    agent.control(at(1_000));
    assert_eq!(machine.get(COMPRESSOR), "zstd");
}

#[test]
fn nothing_is_chosen_without_a_sample_in_a_dry_run_or_against_the_operator() {
    for (settings, dry_run) in [("", true), ("[zswap]\ncompressor = \"\"", false), ("[zswap]\ncompressor = \"lz4\"", false)] {
        let machine = machine();
        let mut agent = sampled(&machine, settings, Options { dry_run, ..Options::default() }, [34, 40, 20]);
        agent.control(at(1_000));
        assert_eq!(machine.get(COMPRESSOR), "lzo", "{settings}");
        assert_eq!(agent.family().as_str(), if dry_run { "zstd" } else { "lzo" }, "what it would save is estimated with its choice");
    }
    let machine = machine();
    let mut agent = sampled(&machine, "", Options::default(), [34, 40, 20]);
    agent.jobs.get_mut(JOB).unwrap().job.tiering.measured = None;
    agent.control(at(1_000));
    assert_eq!(machine.get(COMPRESSOR), "lzo");
}

#[test]
fn a_dry_run_estimates_with_the_compressor_of_an_agent_that_switches_zswap_on() {
    let dry = || Options { dry_run: true, ..Options::default() };
    for (settings, acting, expected) in [
        ("[zswap]\nmanage = true", false, "zstd"),
        ("", false, "zstd"),
        ("[zswap]\nmanage = true\ncompressor = \"\"", false, "lzo"),
        ("[zswap]\nmanage = true\ncompressor = \"lz4\"", false, "lz4"),
        ("", true, "lzo"),
    ] {
        let machine = machine();
        machine.put("sys/module/zswap/parameters/enabled", "N\n");
        std::fs::remove_dir_all(machine.path("sys/kernel/debug/zswap")).unwrap();
        let options = if acting { Options::default() } else { dry() };
        let mut agent = sampled(&machine, settings, options, [34, 40, 20]);
        agent.control(at(1_000));
        assert_eq!((agent.family().as_str(), machine.get(COMPRESSOR).as_str()), (expected, "lzo"), "{settings:?}, acting {acting}");
    }
}

#[test]
fn nothing_is_chosen_while_it_is_unknown_who_uses_zswap() {
    for (settings, expected) in [("", "lzo"), ("[zswap]\nmanage = true", "zstd")] {
        let machine = machine();
        std::fs::remove_dir_all(machine.path("sys/kernel/debug/zswap")).unwrap();
        let mut agent = sampled(&machine, settings, Options::default(), [34, 40, 20]);
        agent.control(at(1_000));
        assert_eq!(machine.get(COMPRESSOR), expected, "{settings}");
    }
}

#[test]
fn a_jobs_first_sample_is_due_before_its_policy_moves_anything() {
    let warmups = "[cold_age]\nwarmup = \"20s\"\n[pressure]\nwarmup = \"60s\"";
    let due = |policy: &str, warmups: &str| {
        let machine = machine();
        let agent = sampled(&machine, &format!("policy = \"{policy}\"\n{warmups}"), Options::default(), [34, 40, 20]);
        agent.jobs[JOB].job.tiering.warmup_ms.0 / 1_000
    };
    assert_eq!(["cold_age", "pressure", "auto"].map(|policy| due(policy, warmups)), [20, 60, 20], "auto begins with cold pages");
    assert_eq!(due("auto", ""), 60, "its part for page cache may begin first");
}
