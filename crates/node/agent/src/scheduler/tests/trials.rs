//! Trials: jobs that are held, and results that are kept. Counters of instructions.

use policy::trial::Kept;

use super::*;

/// A trial in which the job was three times as slow as its class tolerates, and 300 pages returned in 1,000 s.
const SLOW: Kept = Kept {
    slowdown_ppm: 90_000,
    lower_ppm: 60_000,
    upper_ppm: 120_000,
    promoted_per_1000_s: 300,
    refaulted_per_1000_s: 0,
    at_unix_ms: UnixMillis(0),
};

fn start(machine: &Machine, settings: &str) -> Agent {
    machine.set(JOB, "io.pressure", &super::pressure::psi(0));
    machine.set(JOB, "memory.pressure", &super::pressure::psi(0));
    let young = "[cold_age]\nwarmup = \"0s\"\npartial = false\nmean = false\npromotion_rate = \"100%\"";
    let config = machine.config(&format!("{settings}\n{young}\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n"));
    Agent::new(machine.roots.clone(), config, Options::default()).unwrap()
}

fn keep(agent: &mut Agent, trial: Kept) {
    agent.receive(Message::Keep { job: JOB.to_owned(), trial });
}

fn events(agent: &Agent, piece: &str) -> usize {
    let is = |record: &Record| matches!(record, Record::Event { what, .. } if what.contains(piece));
    agent.records().iter().filter(|record| is(record)).count()
}

#[test]
fn a_kept_trial_lowers_what_is_offloaded_until_it_is_forgotten() {
    for policy in ["cold_age", "auto"] {
        let machine = machine_with_job();
        let settings = format!("policy = \"{policy}\"\n[pressure]\nstall_target = \"5%\"\nwarmup = \"0s\"");
        let mut agent = start(&machine, &settings);
        round(&mut agent, &machine, 1_000, FRAMES);
        round(&mut agent, &machine, 1_120, 60);
        // 120 pages that were idle for a scan are accessed: the objective permits that.
        let free = round(&mut agent, &machine, 1_240, 180).unwrap();
        assert_eq!(free.step.best, Some(Age(1)), "{policy}: {:?}", free.step);
        keep(&mut agent, SLOW);
        let limited = round(&mut agent, &machine, 1_360, 60).unwrap();
        // A third of 300 pages in 1,000 s, for a scan of 120 s.
        assert_eq!(limited.step.promotions_max, Pages(12), "{policy}");
        let limited = round(&mut agent, &machine, 1_480, 180).unwrap();
        assert!(limited.step.best > Some(Age(1)), "{policy}: {:?}", limited.step);
        // It survives a restart.
        agent.stop();
        assert_eq!(agent.replayed().differing, [0; 0], "{policy}");
        assert_eq!(events(&agent, "at most 100 promotions in 1,000 s"), 1, "{policy}");
        drop(agent);
        let mut agent = start(&machine, &settings);
        round(&mut agent, &machine, 1_600, 60);
        assert_eq!(round(&mut agent, &machine, 1_720, 60).unwrap().step.promotions_max, Pages(12), "{policy}");
        agent.publish();
        let shown = agent.view().get().jobs[0].trial.unwrap();
        assert_eq!((shown.slowdown_ratio, shown.promotions_max_per_second), (0.09, Some(0.1)));
        agent.receive(Message::Forget { job: JOB.to_owned() });
        let free = round(&mut agent, &machine, 1_840, 60).unwrap();
        assert!(free.step.promotions_max > Pages(100), "{policy}: {:?}", free.step);
        agent.receive(Message::Forget { job: JOB.to_owned() });
        agent.receive(Message::Forget { job: "/z".to_owned() });
        agent.stop();
        assert_eq!((events(&agent, "is forgotten"), events(&agent, "no result of a trial")), (1, 2), "{policy}");
        assert_eq!(agent.replayed().differing, [0; 0], "{policy}");
    }
}

#[test]
fn a_trial_that_found_no_harm_limits_nothing_and_old_ones_expire() {
    let machine = machine_with_job();
    let max = |settings: &str, trial: Kept| {
        let mut agent = start(&machine, settings);
        round(&mut agent, &machine, 1_000, FRAMES);
        keep(&mut agent, trial);
        let found = round(&mut agent, &machine, 1_120, 60).unwrap().step.promotions_max;
        agent.receive(Message::Forget { job: JOB.to_owned() });
        found
    };
    assert_eq!(max("", SLOW), Pages(12));
    assert_eq!(max("trial_keep = \"0s\"", SLOW), Pages(120), "60 pages are the working set, for two minutes");
    assert_eq!(max("", Kept { lower_ppm: -10_000, ..SLOW }), Pages(120));
}

#[test]
fn a_trial_holds_a_job_until_it_lets_go_or_ends() {
    let machine = machine_with_job();
    let mut agent = agent(&machine);
    round(&mut agent, &machine, 1_000, FRAMES);
    let offloads = |period: Period| matches!(period.step.decision, Decision::Offload { .. });
    assert!(offloads(round(&mut agent, &machine, 1_120, 60).unwrap()));
    agent.hold(JOB, seconds(3_600));
    assert!(agent.cold_age(JOB).plan.is_none(), "the plan ends at once");
    let held = round(&mut agent, &machine, 1_240, 60).unwrap();
    assert_eq!(held.step.decision, Decision::Hold { reason: Hold::Vetoed(Veto::ObserveOnly) });
    agent.hold(JOB, Duration::ZERO);
    assert!(offloads(round(&mut agent, &machine, 1_360, 60).unwrap()));
    agent.jobs.get_mut(JOB).unwrap().job.held_until = Some(Duration::ZERO);
    assert!(offloads(round(&mut agent, &machine, 1_480, 60).unwrap()), "a hold of a trial that died is over");
    agent.hold("/z", Duration::ZERO);
}

#[test]
fn counters_that_are_missing_are_reported_once() {
    let machine = machine_with_job();
    let mut agent = start(&machine, "count_instructions = 4");
    for seconds in [1_000, 1_120, 1_240] {
        round(&mut agent, &machine, seconds, 60);
    }
    assert_eq!(agent.job(JOB).waits.view().instructions_per_cycle, None);
    assert_eq!(events(&agent, "does not count the instructions"), 1);
}
