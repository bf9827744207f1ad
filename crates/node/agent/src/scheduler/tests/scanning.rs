//! Scans that take long.

use trackers::ages::{Scan, Target, Tracker};

use super::*;

/// A tracker whose scans last until the test ends them.
struct Slow(mpsc::Receiver<()>);

impl Tracker for Slow {
    fn kind(&self) -> ages::Kind {
        ages::Kind::PageIdle
    }

    fn scan(&mut self, now: Duration, targets: &[Target]) -> kernel::Result<Vec<kernel::Result<Scan>>> {
        self.0.recv().unwrap();
        Ok(targets.iter().map(|_| Ok(Scan { taken_at: now, ..Scan::default() })).collect())
    }

    fn kernel_cpu_time(&self) -> Duration {
        seconds(7)
    }
}

/// An agent that is scanning, with a job by age and a job by pressure. A sent message ends the scan.
fn scanning(machine: &Machine) -> (Agent, mpsc::Sender<()>) {
    let job = machine.cgroup(JOB);
    machine.own_frames(&job, 200);
    let _ = machine.cgroup("/p");
    for file in ["memory.pressure", "io.pressure"] {
        machine.set("/p", file, &pressure::psi(0));
    }
    machine.set("/p", "memory.min", "0");
    let rules = format!(
        "[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n[[job]]\ncgroup = \"/p\"\npolicy = \"pressure\"\nclass = \"standard\"\n"
    );
    let text = format!("[cold_age]\nwarmup = \"0s\"\npartial = false\n{rules}");
    let options = Options { ephemeral: true, ..Options::default() };
    let mut agent = Agent::new(machine.roots.clone(), machine.config(&text), options).unwrap();
    let (end, ended) = mpsc::channel();
    agent.context.trackers.give_back(Box::new(Slow(ended)));
    agent.begin_scan(agent.context.now(), false).unwrap();
    (agent, end)
}

#[test]
fn pressure_guard_and_messages_do_not_wait_for_a_scan_and_decisions_by_age_do() {
    let machine = Machine::new();
    let (mut agent, end) = scanning(&machine);
    let mut deadlines = Deadlines { scan: Duration::ZERO, control: Duration::ZERO, end: None };
    agent.policies.iter_mut().for_each(|scheduled| scheduled.next = Duration::ZERO);
    assert!(agent.observe_and_decide(&mut deadlines, ScanWait::Slice).unwrap(), "pressure is due");
    assert!(agent.jobs["/p"].slots.get::<Pressure>().unwrap().last.is_some());
    assert!(agent.cold_age(JOB).last.is_none(), "no decision by age");
    agent.check_guard();
    agent.receive(Message::Hint { job: JOB.to_owned(), hint: None });
    assert_eq!(agent.costs.scans, 0, "the scan still runs");
    assert_eq!(agent.context.trackers.kernel_cpu_time(), seconds(7), "what the tracker has cost so far");
    end.send(()).unwrap();
    while agent.scanning.is_some() {
        agent.observe_and_decide(&mut deadlines, ScanWait::Slice).unwrap();
    }
    assert_eq!(agent.costs.scans, 1);
    assert!(agent.cold_age(JOB).last.is_some(), "the decision follows the scan");
}

#[test]
fn a_policy_with_its_own_period_decides_during_a_control_period() {
    let machine = Machine::new();
    let (mut agent, end) = scanning(&machine);
    end.send(()).unwrap();
    while agent.scanning.is_some() {
        agent.finish_scan(Duration::from_secs(1)).unwrap();
    }
    let decided = |agent: &Agent| agent.jobs["/p"].slots.get::<Pressure>().unwrap().last.is_some();
    agent.control(agent.context.now());
    assert!(agent.cold_age(JOB).last.is_some() && !decided(&agent), "it is not due");
    agent.policies.iter_mut().for_each(|scheduled| scheduled.next = Duration::ZERO);
    agent.control(agent.context.now());
    assert!(decided(&agent));
    assert_eq!(agent.costs.deadlines_missed, 1, "it was due at boot");
}

#[test]
fn the_guard_is_checked_between_decisions() {
    let machine = machine_with_job();
    let config = machine.config(&format!("[guard]\nenabled = true\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n"));
    let mut agent = Agent::new(machine.roots.clone(), config, Options::default()).unwrap();
    agent.scan(agent.context.now());
    assert!(agent.guard.checked.take().is_some(), "the list of jobs takes long as well");
    agent.control(agent.context.now());
    let checked = agent.guard.checked;
    assert!(checked.is_some(), "a period of many jobs takes longer than the guard waits");
    agent.control(agent.context.now());
    assert_eq!(agent.guard.checked, checked, "not yet due again");
    // Switched off while the agent runs: the loop must not wake for it any more.
    agent.context.config.guard.enabled = false;
    agent.check_guard();
    assert_eq!(agent.guard.checked, None);
}

#[test]
fn a_message_to_stop_ends_the_loop_after_the_scan() {
    let machine = Machine::new();
    let (mut agent, end) = scanning(&machine);
    let (stop, messages) = mpsc::channel();
    stop.send(Message::Stop).unwrap();
    let ending = std::thread::spawn(move || end.send(()));
    let mut scans = 0;
    agent.run(&messages, None, &mut |_, view| scans = view.costs.scans).unwrap();
    assert_eq!(scans, 1);
    ending.join().unwrap().unwrap();
}

#[test]
fn a_job_that_is_recreated_during_a_scan_is_left_out() {
    let machine = Machine::new();
    let (mut agent, end) = scanning(&machine);
    machine.remove(JOB);
    // Keeps the old inode number in use, so that the new cgroup has another id.
    let _ = machine.cgroup("/other");
    let _ = machine.cgroup(JOB);
    agent.discover(agent.context.now());
    end.send(()).unwrap();
    assert!(agent.finish_scan(Duration::MAX).unwrap());
    assert!(agent.job(JOB).scan.is_none());
    assert!(agent.job("/p").scan.is_some());
}

#[test]
fn an_error_of_the_program_in_a_scan_ends_the_agent_and_settings_are_restored() {
    let machine = machine_with_job();
    let mut agent = agent(&machine);
    round(&mut agent, &machine, 1_000, FRAMES);
    round(&mut agent, &machine, 1_120, 60);
    assert_ne!(machine.get(LOW), "0");
    let (end, ended) = mpsc::channel();
    agent.context.trackers.give_back(Box::new(Slow(ended)));
    // The tracker panics.
    drop(end);
    let (_sender, messages) = mpsc::channel();
    let outcome = agent.run(&messages, None, &mut |_, _| ());
    assert!(matches!(outcome, Err(Error::Scanner(_))), "{outcome:?}");
    assert_eq!(machine.get(LOW), "0");
}

#[test]
fn a_job_whose_scan_fails_gets_no_plan() {
    let machine = machine_with_job();
    let mut agent = agent(&machine);
    round(&mut agent, &machine, 1_000, FRAMES);
    machine.access_frames(60);
    agent.scan(at(1_120));
    agent.control(at(1_120));
    agent.plan();
    assert!(agent.cold_age(JOB).plan.is_some());
    agent.context.trackers.give_back(Box::new(Failing(ages::Kind::PageIdle)));
    agent.scan(at(1_240));
    agent.plan();
    assert!(agent.cold_age(JOB).plan.is_none(), "the ages are of an earlier scan");
}

#[test]
fn processes_of_all_trackers_are_on_the_undo_list_before_any_of_them_scans() {
    let machine = Machine::new();
    let (mut agent, end) = scanning(&machine);
    end.send(()).unwrap();
    agent.finish_scan(Duration::MAX).unwrap();
    for (job, pid, kind) in [(JOB, 11, ages::Kind::Damon), ("/p", 22, ages::Kind::Sampled)] {
        machine.set(job, "cgroup.procs", &pid.to_string());
        agent.jobs.get_mut(job).unwrap().job.tracker = (kind, "a test");
        agent.context.trackers.give_back(Box::new(Failing(kind)));
    }
    agent.begin_scan(agent.context.now(), false).unwrap();
    let mut expected = vec![11, 22, std::process::id().cast_signed()];
    expected.sort_unstable();
    assert_eq!(agent.context.undo.kdamond_targets(), expected);
    agent.finish_scan(Duration::MAX).unwrap();
}

/// A tracker that fails.
struct Failing(ages::Kind);

impl Tracker for Failing {
    fn kind(&self) -> ages::Kind {
        self.0
    }

    fn scan(&mut self, _: Duration, _: &[Target]) -> kernel::Result<Vec<kernel::Result<Scan>>> {
        Err(kernel::Error::Unsupported { what: "gone".into(), remedy: "none".into() })
    }
}

/// A tracker that can make its sample smaller once.
struct Costly(Option<u64>);

impl Tracker for Costly {
    fn kind(&self) -> ages::Kind {
        ages::Kind::PageIdle
    }

    fn scan(&mut self, _: Duration, _: &[Target]) -> kernel::Result<Vec<kernel::Result<Scan>>> {
        Ok(Vec::new())
    }

    fn sample_fewer(&mut self) -> Option<u64> {
        self.0.take()
    }
}

#[test]
fn a_tracker_that_costs_too_much_samples_fewer_pages_before_another_takes_its_place() {
    let machine = machine_with_job();
    let mut agent = agent(&machine);
    agent.scan(at(1_000));
    agent.context.trackers.give_back(Box::new(Costly(Some(4_096))));
    let costs_too_much = |agent: &mut Agent| (0..3).for_each(|_| agent.judge_cost(ages::Kind::PageIdle, seconds(1_000)));
    let reported = |agent: &Agent, what: &str| format!("{:?}", agent.context.log.pending()).contains(what);
    costs_too_much(&mut agent);
    assert!(reported(&agent, "it samples 4096 pages at most now"), "{:?}", agent.context.log.pending());
    assert_eq!(agent.job(JOB).tracker.0, ages::Kind::PageIdle);
    costs_too_much(&mut agent);
    assert!(reported(&agent, "1 jobs use sampled_frames now"), "{:?}", agent.context.log.pending());
    assert_eq!(agent.job(JOB).tracker.0, ages::Kind::SampledFrames);
}

#[test]
fn huge_pages_in_use_are_split_for_jobs_under_auto_that_are_not_conservative() {
    let may = |class: &str, policy: &str, settings: &str| {
        let machine = machine_with_job();
        let rule = format!("[[job]]\ncgroup = \"{JOB}\"\nclass = \"{class}\"\npolicy = \"{policy}\"\n");
        let config = machine.config(&format!("{settings}\n{rule}"));
        let mut agent = Agent::new(machine.roots.clone(), config, Options { ephemeral: true, ..Options::default() }).unwrap();
        agent.scan(at(1_000));
        let job = &agent.jobs[JOB].job;
        (agent.context.may_split(job), agent.context.may_split_busy(job))
    };
    assert_eq!(may("standard", "auto", ""), (true, true));
    assert_eq!(may("aggressive", "auto", ""), (true, true));
    assert_eq!(may("standard", "cold_age", ""), (true, false));
    assert_eq!(may("conservative", "auto", ""), (true, false));
    assert_eq!(may("standard", "pressure", ""), (false, false));
    assert_eq!(may("standard", "auto", "split_busy = false"), (true, false));
    assert_eq!(may("standard", "auto", "split_idle = false"), (false, true));
    assert_eq!(may("observe", "auto", ""), (false, false));
}
