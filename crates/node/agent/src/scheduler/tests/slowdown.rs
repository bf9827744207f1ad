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
