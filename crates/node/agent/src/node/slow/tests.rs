//! What placement does where there is nothing to place in.

use super::*;
use crate::node::Options;
use crate::testing::Machine;

const RULE: &str = "[slow]\nperiod = \"1s\"\n[[job]]\ncgroup = \"/a\"\nclass = \"standard\"\npolicy = ";

fn agent(machine: &Machine, policy: &str) -> Agent {
    machine.cgroup("/a");
    let mut agent = Agent::new(machine.roots.clone(), machine.config(&format!("{RULE}\"{policy}\"\n")), Options::default()).unwrap();
    agent.scan(Duration::from_secs(1));
    agent
}

#[test]
fn jobs_under_other_policies_are_never_looked_at() {
    let machine = Machine::new();
    let mut agent = agent(&machine, "cold_age");
    assert_eq!((agent.place_slow(), agent.slow.trouble), (None, None));
}

#[test]
fn what_stands_in_the_way_is_told_once_and_tried_again_each_period() {
    let machine = Machine::new();
    let mut agent = agent(&machine, "slowdown");
    let told = |agent: &Agent| {
        let about_slow =
            |record: &&Record| matches!(record, Record::Event { what, .. } if what.starts_with("nothing is placed in slow memory"));
        agent.pending.iter().filter(about_slow).count()
    };
    for _ in 0..3 {
        let wait = agent.place_slow().expect("another try");
        assert!(wait > Duration::ZERO && wait <= Duration::from_secs(1), "{wait:?}");
        assert_eq!(told(&agent), 1);
        agent.slow.next = Duration::ZERO;
    }
    agent.publish();
    let view = agent.view().get();
    assert!(view.slow.is_none() && view.slow_trouble.is_some(), "{:?}", view.slow_trouble);
    assert_eq!(view.jobs[0].tier, Some("slow"));
}
