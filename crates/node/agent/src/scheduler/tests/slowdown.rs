//! Placement without a slow node.

use super::*;

const RULE: &str = "[slow]\nperiod = \"1s\"\n[[job]]\ncgroup = \"/a\"\nclass = \"standard\"\npolicy = ";
const SLOWDOWN: usize = 4;

fn agent(machine: &Machine, policy: &str) -> Agent {
    machine.cgroup(JOB);
    let config = machine.config(&format!("{RULE}\"{policy}\"\n"));
    let clock = daemon::ManualClock::new(seconds(1_000), UnixMillis(1_000_000));
    let mut agent = Agent::with_clock(machine.roots.clone(), config, Options::default(), clock.clock()).unwrap();
    agent.scan(agent.context.now());
    agent
}

fn act(agent: &mut Agent) -> Option<Duration> {
    let Agent { policies, jobs, context, .. } = agent;
    policies[SLOWDOWN].policy.act(jobs, context)
}

#[test]
fn jobs_under_other_policies_are_not_sampled() {
    let machine = Machine::new();
    let mut agent = agent(&machine, "cold_age");
    assert_eq!((act(&mut agent), agent.report().slow_trouble), (None, None));
}

#[test]
fn a_missing_node_is_reported_once_and_searched_again_each_period() {
    let machine = Machine::new();
    machine.cgroup(JOB);
    let config = machine.config(&format!("{RULE}\"slowdown\"\n"));
    let time = daemon::ManualClock::new(seconds(1_000), UnixMillis(1_000_000));
    let mut agent = Agent::with_clock(machine.roots.clone(), config, Options::default(), time.clock()).unwrap();
    agent.scan(agent.context.now());
    let reported = |agent: &Agent| {
        let concerned =
            |record: &&Record| matches!(record, Record::Event { what, .. } if what.starts_with("nothing is placed in slow memory"));
        agent.context.log.pending().iter().filter(concerned).count()
    };
    for _ in 0..3 {
        assert_eq!(act(&mut agent), Some(seconds(1)), "another try");
        assert_eq!(reported(&agent), 1);
        time.advance(seconds(1));
    }
    agent.publish();
    let view = agent.view().get();
    assert!(view.slow.is_none() && view.slow_trouble.is_some(), "{:?}", view.slow_trouble);
    assert_eq!(view.jobs[0].tier.as_deref(), Some("slow"));
}

#[test]
fn changed_bounds_apply_to_a_job_that_goes_on() {
    let machine = Machine::new();
    let mut agent = agent(&machine, "slowdown");
    let new = machine.config(&format!("{RULE}\"slowdown\"\nfast_share_min = \"20%\"\nslow_max = \"64MiB\"\nslow_weight = 300\n"));
    agent.receive(Message::Reload(Box::new(Ok(new))));
    let treatment = agent.job(JOB).treatment;
    assert_eq!((treatment.slow.slow_max, treatment.slow.fast_share_min), (Some(units::Bytes::mib(64)), units::RatioPpm(200_000)));
    assert_eq!(treatment.slow_weight, 300);
    // A job that is released has all its slow memory promoted at once.
    agent.write_journal();
    let begun = |record: &Record| matches!(record, Record::Event { what, .. } if what.starts_with("job "));
    assert_eq!(agent.records().into_iter().filter(begun).count(), 1);
}

/// A clock that is 10 ms later at each reading.
#[derive(Debug, Default)]
struct Readings(std::sync::atomic::AtomicU32);

impl daemon::TimeSource for Readings {
    fn now(&self) -> Duration {
        seconds(1_000) + Duration::from_millis(10) * self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    fn unix_ms(&self) -> UnixMillis {
        UnixMillis(1_000_000)
    }
}

#[test]
fn the_search_for_blocks_lets_the_loop_keep_its_deadlines() {
    const JOBS: u32 = 100;
    let machine = Machine::new();
    for job in 0..JOBS {
        machine.cgroup(&format!("/job-{job}"));
    }
    for (node, cpus, distances) in [(0, "0-1\n", "10 40\n"), (1, "\n", "40 10\n")] {
        let file = |name: &str| format!("sys/devices/system/node/node{node}/{name}");
        machine.put(&file("cpulist"), cpus);
        machine.put(&file("distance"), distances);
        machine.put(&file("meminfo"), &format!("Node {node} MemTotal: 1048576 kB\nNode {node} MemFree: 1048576 kB\n"));
    }
    let rule = "[slow]\nlatency = \"400ns\"\nperiod = \"100s\"\n[[job]]\ncgroup = \"/*\"\nclass = \"standard\"\npolicy = \"slowdown\"\n";
    let clock = daemon::Clock::of(std::sync::Arc::new(Readings::default()));
    let mut agent = Agent::with_clock(machine.roots.clone(), machine.config(rule), Options::default(), clock.clone()).unwrap();
    agent.scan(agent.context.now());
    let mut slices = 0;
    loop {
        let before = clock.now();
        let wait = act(&mut agent);
        let took = clock.now() - before;
        assert!(took < SLICE * 3, "{took:?}");
        slices += 1;
        if wait != Some(Duration::ZERO) {
            assert!(wait > Some(seconds(90)), "nothing was found: another try in the next period, not after {wait:?}");
            break;
        }
    }
    // A job takes some readings, each a fifth of a slice.
    assert!((JOBS / 6..JOBS).contains(&slices), "{slices}");
}
