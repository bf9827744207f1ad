//! A thousand machines follow a rollout for two hours: counts the machines that follow it and the requests to the
//! store.
//!
//! The clock of the polls is simulated; every request, signature and file is real.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that measures")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::{Arm, Bundle};
use rollout::assignment::{ALL_PPM, Assignment, SCHEMA};
use rollout::follow::{Follower, Settings};
use rollout::keys;
use rollout::repository::{Change, Operator, Validity};

const MACHINES: u32 = 1_000;
const POLL_S: u64 = 300;

#[test]
fn a_thousand_machines_follow_with_few_requests() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (store, root, keys) = (path("store"), path("root.json"), path("keys"));
    keys::generate(&keys, 1, false).unwrap();
    let operator = Operator::open(store.to_str().unwrap(), &root, &keys, Validity::default()).unwrap();
    operator.init(1, false).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for version in [1, 2] {
        let (created, expires) = (config::bundle::rfc3339(now), config::bundle::rfc3339(now + 30 * 86_400));
        let text = format!(
            "schema = 1\nversion = {version}\nid = \"b{version}\"\ncreated = {created}\nexpires = {expires}\n[knobs.cold_age]\npercentile = \"9{version}%\"\n"
        );
        operator.change(Change::Publish(&Bundle::parse("test", &text).unwrap()), false).unwrap();
    }
    let assign = |stage: &str, share_ppm| {
        let (rollout, stage) = ("r".to_owned(), stage.to_owned());
        let assignment = Assignment {
            schema: SCHEMA,
            rollout,
            bundle: Some(2),
            previous: Some(1),
            stage,
            share_ppm,
            control_ppm: 50_000,
            clusters: Vec::new(),
            pinned: false,
        };
        operator.change(Change::Assign(&assignment), false).unwrap();
    };
    let settings = |machine: u32| Settings {
        store: store.to_str().unwrap().to_owned(),
        root: root.clone(),
        poll: Duration::from_secs(POLL_S),
        state_dir: path(&format!("state-{machine}")),
        machine: format!("m{machine}"),
        cluster: "c".to_owned(),
    };
    // In the first hour each machine finds the rollout and then no change. The second hour begins with a restart and
    // another stage.
    let mut requests = [0u64; 2];
    let mut following = [0u32; 2];
    assign("canary", 10_000);
    let mut machines = Vec::new();
    for machine in 0..MACHINES {
        let (mut follower, _) = Follower::new(settings(machine));
        let mut arm = None;
        for poll in 0..3_600 / POLL_S {
            let result = follower.poll(now + poll * POLL_S);
            assert_eq!(result.error, None);
            arm = result.guidance.map(|guidance| guidance.arm).or(arm);
            requests[0] += if poll + 1 == 3_600 / POLL_S { result.requests } else { 0 };
        }
        following[0] += u32::from(arm == Some(Arm::Bundle));
        machines.push(arm);
    }
    assign("half", ALL_PPM / 2);
    for (machine, before) in (0..).zip(machines) {
        let (mut follower, remembered) = Follower::new(settings(machine));
        let mut arm = remembered.unwrap().map(|guidance| guidance.arm);
        assert_eq!(arm, before, "the cached guidance");
        for poll in 0..3_600 / POLL_S {
            let result = follower.poll(now + 3_600 + poll * POLL_S);
            assert_eq!(result.error, None);
            arm = result.guidance.map(|guidance| guidance.arm).or(arm);
            requests[1] += if poll + 1 == 3_600 / POLL_S { result.requests } else { 0 };
        }
        assert!(before != Some(Arm::Bundle) || arm == Some(Arm::Bundle), "stages nest");
        assert_eq!(before == Some(Arm::Control), arm == Some(Arm::Control));
        following[1] += u32::from(arm == Some(Arm::Bundle));
    }
    let per_hour = requests.map(|requests| f64::from(u32::try_from(requests).unwrap()) / f64::from(MACHINES));
    println!("requests per machine and hour: {per_hour:?}; following: {following:?} of {MACHINES}");
    // Eleven polls of one file, and one full verification.
    assert!(per_hour.iter().all(|&requests| requests <= 20.0), "{per_hour:?}");
    // Five standard deviations of a binomial around 1 % and 50 %.
    assert!((1..=26).contains(&following[0]) && (421..=579).contains(&following[1]), "{following:?}");
}
