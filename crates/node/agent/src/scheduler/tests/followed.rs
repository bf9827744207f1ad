//! Bundles take effect between control periods; states are kept, and the journal replays.

use config::{Arm, Bundle, Guidance, Poll};
use store::Store;
use trace::Trace;

use std::collections::BTreeMap;

use super::*;
use units::Millis;

fn bundle(version: u64, knobs: &str) -> Bundle {
    let text = format!(
        "schema = 1\nversion = {version}\nid = \"b{version}\"\ncreated = 2026-01-01T00:00:00Z\nexpires = 2226-01-01T00:00:00Z\n{knobs}"
    );
    Bundle::parse("test", &text).unwrap()
}

fn poll(bundle: Option<Bundle>) -> Poll {
    let guidance =
        Guidance { rollout: "r".into(), stage: "canary".into(), arm: Arm::Bundle, bundle, previous: None, signed_until_unix_s: None };
    Poll { guidance: Some(guidance), ..Poll::default() }
}

fn events(agent: &Agent) -> Vec<String> {
    let records = agent.records();
    let what = |record| if let Record::Event { what, .. } = record { Some(what) } else { None };
    records.into_iter().filter_map(what).collect()
}

const LOOSER: &str =
    "[knobs.cold_age]\npromotion_rate = \"50%\"\nwarmup = \"24h\"\n[knobs.pressure]\nratio = \"1%\"\n[knobs.background]\nsettle = \"3s\"\n";

#[test]
fn a_bundle_holds_from_the_next_period_on_and_costs_no_history() {
    let machine = machine_with_job();
    let text = format!(
        "policy = \"auto\"\n[cold_age]\nwarmup = \"0s\"\n[rollout]\nstore = \"/bundles\"\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n"
    );
    let mut agent = Agent::new(machine.roots.clone(), machine.config(&text), Options::default()).unwrap();
    for (at, accessed) in [(1_000, FRAMES), (1_120, 60), (1_240, 100)] {
        round(&mut agent, &machine, at, accessed);
    }
    let (state, own) = (agent.cold_age(JOB).state, agent.cold_age(JOB).params);
    agent.follow(poll(Some(bundle(7, LOOSER))));
    assert_eq!(agent.cold_age(JOB).params, own, "not before the period is over");
    round(&mut agent, &machine, 1_360, 100);
    let params = agent.cold_age(JOB).params;
    assert_eq!((params.promotion_rate_max.0, params.percentile), (500_000, own.percentile));
    assert_eq!(agent.pressure(JOB).start.params.ratio.0, 10_000);
    assert_eq!(agent.background(JOB).start.params.settle_ms, Millis(3_000));
    assert_ne!(state, policy::cold_age::State::default());
    round(&mut agent, &machine, 1_480, 60);
    agent.publish();
    let view = agent.view().get().rollout.clone().unwrap();
    assert_eq!((view.bundle_version, view.stage.as_str(), view.arm), (7, "canary", Some(Arm::Bundle)));
    // And back again.
    agent.follow(poll(None));
    round(&mut agent, &machine, 1_600, 60);
    assert_eq!(agent.cold_age(JOB).params, own);
    round(&mut agent, &machine, 1_720, 60);
    agent.stop();
    let said = events(&agent);
    for piece in ["uses bundle 7 (b7)", "uses the configuration file"] {
        assert!(said.iter().any(|said| said.contains(piece)), "{piece} in {said:?}");
    }
    let records = agent.records();
    let bundles: Vec<_> = records.iter().filter_map(|r| if let Record::Agent(agent) = r { Some(agent.bundle) } else { None }).collect();
    assert_eq!(bundles, [0, 7, 0]);
    let replayed = replay::replay(&records);
    assert_eq!((replayed.skipped, replayed.differing), (0, vec![]));
    assert!(replayed.periods >= 7, "{}", replayed.periods);
    // Without the records of the change, the replay would not come out.
    let kept = records.iter().scan(0, |seen, record| {
        *seen += u32::from(matches!(record, Record::Job(_)));
        Some((*seen, record))
    });
    let unchanged: Vec<_> =
        kept.filter(|(seen, record)| *seen < 2 || !matches!(record, Record::Job(_))).map(|(_, record)| record.clone()).collect();
    assert!(!replay::replay(&unchanged).differing.is_empty());
}

#[test]
fn entries_of_a_trace_are_of_one_bundle_each() {
    let machine = machine_with_job();
    machine.put("proc/sys/kernel/hostname", "fake\n");
    let store = machine.path("store");
    let text = format!("[trace]\nstore = {store:?}\n[cold_age]\nwarmup = \"0s\"\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n");
    let mut agent = Agent::new(machine.roots.clone(), machine.config(&text), Options::default()).unwrap();
    round(&mut agent, &machine, 1_000, FRAMES);
    round(&mut agent, &machine, 1_120, 60);
    agent.follow(poll(Some(bundle(9, LOOSER))));
    round(&mut agent, &machine, 1_240, 60);
    round(&mut agent, &machine, 1_360, 60);
    agent.stop();
    let store = Store::open(store.to_str().unwrap()).unwrap();
    let mut periods = BTreeMap::new();
    for object in store.list(trace::EXTENSION).unwrap() {
        let trace = Trace::open(store.fetch(&object.path).unwrap().path()).unwrap();
        for entry in trace.rows().flat_map(|rows| rows.unwrap().entries().collect::<Vec<_>>()) {
            *periods.entry(entry.figures.bundle_version).or_insert(0) += entry.figures.periods;
        }
    }
    assert_eq!(periods, BTreeMap::from([(0, 3), (9, 1)]));
}

#[test]
fn a_bundle_that_makes_jobs_stall_is_left() {
    let machine = machine_with_job();
    let text = format!("[cold_age]\nwarmup = \"0s\"\n[rollout]\nstall_periods = 3\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n");
    let mut agent = Agent::new(machine.roots.clone(), machine.config(&text), Options::default()).unwrap();
    machine.set(JOB, "memory.swap.current", &(40 * page()).to_string());
    // Half of the time, now and before.
    let stalled = |agent: &mut Agent, at: u64| {
        let total = at * 500_000;
        machine.set(
            JOB,
            "memory.pressure",
            &format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0"),
        );
        round(agent, &machine, at, 60);
    };
    (0..6).for_each(|n| stalled(&mut agent, 1_000 + n * 120));
    // The configuration file is the operator's to judge.
    assert!(events(&agent).iter().all(|said| !said.contains("rejects")));
    // A bundle that allows any stall: the objective is the configuration file's all the same.
    agent.follow(poll(Some(bundle(4, "[knobs.pressure]\nstall_target = \"50%\"\n"))));
    let versions = (6..12).map(|n| {
        stalled(&mut agent, 1_000 + n * 120);
        agent.following.version()
    });
    let versions: Vec<_> = versions.collect();
    assert_eq!(versions, [4, 4, 4, 4, 0, 0], "from the period that it holds for, and one to compare with");
    assert!(events(&agent).iter().any(|said| said.contains("rejects bundle 4: /a has stalled beyond its target in 3 control periods")));
}

#[test]
fn the_loop_takes_up_what_it_is_sent() {
    let machine = machine_with_job();
    let text = format!("control_period = \"100ms\"\n[cold_age]\nwarmup = \"0s\"\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n");
    let mut agent = Agent::new(machine.roots.clone(), machine.config(&text), Options::default()).unwrap();
    let (sender, receiver) = mpsc::channel();
    sender.send(Message::Follow(Box::new(poll(Some(bundle(7, LOOSER)))))).unwrap();
    // Each round is a scan or a decision; the one after the decision that the bundle follows sees it.
    let mut seen = Vec::new();
    agent
        .run(&receiver, None, &mut |agent, _| {
            seen.push(agent.following.version());
            if seen.ends_with(&[7]) {
                sender.send(Message::Stop).unwrap();
            }
        })
        .unwrap();
    assert_eq!((seen.first(), seen.last()), (Some(&0), Some(&7)));
    assert!(!machine.get("state/rollout/left.json").contains("unix_s"), "a stop is no crash");
    assert!(machine.get("state/rollout/left.json").contains("\"starts\":null"));
}

#[test]
fn a_bundle_that_brings_too_much_back_is_left() {
    let check = |policy: &str, bound: bool, left: Option<usize>| {
        let machine = machine_with_job();
        let text = format!(
            "policy = \"{policy}\"\n[cold_age]\nwarmup = \"0s\"\npercentile = \"95%\"\nbound = {bound}\n[[job]]\ncgroup = \"{JOB}\"\nclass = \"standard\"\n"
        );
        let mut agent = Agent::new(machine.roots.clone(), machine.config(&text), Options::default()).unwrap();
        machine.set(JOB, "memory.swap.current", &(40 * page()).to_string());
        // Half of the working set comes back each minute, as the bundle allows and the configuration file does not.
        agent.follow(poll(Some(bundle(4, "[knobs.cold_age]\npromotion_rate = \"100%\"\n"))));
        let gone = (0..60u64).position(|n| {
            machine.set(JOB, "memory.stat", &format!("anon 0\nzswpin {}\npswpin 0\nzswpout 0", n * 60));
            round(&mut agent, &machine, 1_000 + n * 120, 60);
            n > 0 && agent.following.version() == 0
        });
        assert_eq!(gone, left, "{policy}");
        let said = events(&agent);
        assert_eq!(said.iter().any(|said| said.contains("rejects bundle 4: 8 of the last 8 periods")), left.is_some(), "{said:?}");
    };
    // Eight periods are enough, and count from the first one if the operator's own threshold is bounded from then on.
    check("cold_age", true, Some(8));
    // Otherwise the job is young for twenty periods with far memory.
    check("cold_age", false, Some(28));
    // Promotions are no objective of a policy that uses stalls.
    check("pressure", true, None);
}
