//! The configuration file, read again while the agent runs.

use units::RatioPpm;

use super::*;

fn text(machine: &Machine, more: &str, cgroup: &str, class: &str) -> Config {
    machine.config(&format!("{more}\n[cold_age]\nwarmup = \"0s\"\npartial = false\n[[job]]\ncgroup = \"{cgroup}\"\nclass = \"{class}\"\n"))
}

fn events(agent: &Agent) -> Vec<String> {
    agent.records().into_iter().filter_map(|record| if let Record::Event { what, .. } = record { Some(what) } else { None }).collect()
}

fn last_event(agent: &Agent) -> String {
    events(agent).into_iter().rfind(|what| what.contains("configuration")).unwrap_or_default()
}

/// A machine with a job that the agent protects and offloads.
fn started() -> (Machine, Agent) {
    let machine = machine_with_job();
    let mut agent = agent(&machine);
    round(&mut agent, &machine, 1_000, FRAMES);
    round(&mut agent, &machine, 1_120, 60);
    assert_ne!(machine.get(LOW), "0");
    (machine, agent)
}

#[test]
fn an_error_changes_nothing() {
    let (machine, mut agent) = started();
    let before = agent.context.config.clone();
    agent.receive(Message::Reload(Box::new(Err("x.toml:3: unknown key".to_owned()))));
    agent.receive(Message::Reload(Box::new(Ok(text(&machine, "policy = \"slowdown\"", JOB, "standard")))));
    agent.write_journal();
    assert!(agent.context.config == before && agent.jobs.contains_key(JOB));
    assert!(last_event(&agent).contains("restart the agent"), "{}", last_event(&agent));
}

#[test]
fn parameters_apply_to_jobs_that_go_on() {
    let (machine, mut agent) = started();
    let seen = agent.job(JOB).seen_at;
    let new = text(&machine, "cpu_budget = \"7%\"\nscan_period = \"90s\"\n[pressure]\nratio = \"1%\"", JOB, "standard");
    let scan_period = agent.context.config.agent.scan_period;
    agent.receive(Message::Reload(Box::new(Ok(new))));
    agent.write_journal();
    let event = last_event(&agent);
    assert!(event.contains("reloaded: agent.cpu_budget, pressure.ratio") && event.contains("next start: agent.scan_period"), "{event}");
    assert_eq!((agent.context.config.agent.cpu_budget, agent.context.config.agent.scan_period), (RatioPpm(70_000), scan_period));
    assert_eq!(agent.job(JOB).seen_at, seen, "the job goes on");
    round(&mut agent, &machine, 1_240, 60);
    let replay = agent.replayed();
    assert!(replay.differing.is_empty(), "{replay:?}");
}

#[test]
fn rules_apply_at_once_and_what_a_job_no_longer_gets_is_restored() {
    let (machine, mut agent) = started();
    agent.receive(Message::Reload(Box::new(Ok(text(&machine, "", JOB, "observe")))));
    assert_eq!(agent.job(JOB).treatment.class, config::Class::Observe);
    assert_eq!(machine.get(LOW), "0", "an observed job is not protected");
    round(&mut agent, &machine, 1_240, 60);
    assert_eq!(agent.cold_age(JOB).last.unwrap().step.decision, Decision::Hold { reason: Hold::Vetoed(Veto::ObserveOnly) });
    agent.receive(Message::Reload(Box::new(Ok(text(&machine, "", JOB, "standard")))));
    round(&mut agent, &machine, 1_360, 60);
    assert_ne!(machine.get(LOW), "0");
    agent.receive(Message::Reload(Box::new(Ok(text(&machine, "", "/elsewhere", "standard")))));
    assert!(agent.jobs.is_empty());
    assert_eq!(machine.get(LOW), "0");
    agent.write_journal();
    let events = events(&agent);
    assert!(events.iter().any(|what| what.contains("no rule names it")), "{events:?}");
}

#[test]
fn a_switch_of_a_controller_applies_to_jobs_that_go_on() {
    use crate::controllers::page_cache::PageCache;
    let (machine, mut agent) = started();
    let seen = agent.job(JOB).seen_at;
    for on in [false, true] {
        let taken = crate::job::Stall { page_cache: units::RatioPpm(500_000), ..Default::default() };
        agent.jobs.get_mut(JOB).unwrap().job.signals.stall = Some(taken);
        let switched = format!("[cold_age]\npage_cache = {on}\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n");
        agent.receive(Message::Reload(Box::new(Ok(machine.config(&switched)))));
        assert_eq!(agent.jobs[JOB].slots.get::<PageCache>().is_some(), on);
        assert_eq!(agent.jobs[JOB].job.signals.stall.unwrap().page_cache, units::RatioPpm(0), "anonymous memory has all of it again");
        agent.jobs.get_mut(JOB).unwrap().job.signals.stall = None;
        round(&mut agent, &machine, if on { 1_360 } else { 1_240 }, 60);
    }
    assert_eq!(agent.job(JOB).seen_at, seen, "the job goes on");
    let replay = agent.replayed();
    assert!(replay.differing.is_empty() && replay.skipped == 0, "{replay:?}");
}
