//! A thousand machines follow a rollout for two hours: counts the machines that follow it and the requests to the
//! store.
//!
//! The clock of the polls is simulated; every request, signature and file is real.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that measures")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::{Arm, Bundle};
use rollout::assignment::{Assignment, SCHEMA};
use rollout::follow::{Follower, Settings};
use rollout::keys;
use rollout::repository::{Change, Operator, Validity};
use units::RatioPpm;

const MACHINES: u32 = 1_000;
const POLL_S: u64 = 300;

/// A repository with two bundles, and what machines need to follow it.
struct Fleet {
    directory: tempfile::TempDir,
    operator: Operator,
    now: u64,
}

impl Fleet {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        keys::generate(&path("keys"), 1, false).unwrap();
        let operator = Operator::open(path("store").to_str().unwrap(), &path("root.json"), &path("keys"), Validity::default()).unwrap();
        operator.init(1, false).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        for version in [1, 2] {
            let (created, expires) = (config::bundle::rfc3339(now), config::bundle::rfc3339(now + 30 * 86_400));
            let text = format!(
                "schema = 1\nversion = {version}\nid = \"b{version}\"\ncreated = {created}\nexpires = {expires}\n[knobs.cold_age]\npercentile = \"9{version}%\"\n"
            );
            operator.change(Change::Publish(&Bundle::parse("test", &text).unwrap()), false).unwrap();
        }
        Self { directory, operator, now }
    }

    fn assign(&self, stage: &str, share_ppm: RatioPpm) {
        let assignment = Assignment {
            schema: SCHEMA,
            rollout: "r".to_owned(),
            bundle: Some(2),
            previous: Some(1),
            stage: stage.to_owned(),
            share_ppm,
            control_ppm: RatioPpm(50_000),
            clusters: Vec::new(),
            pinned: false,
        };
        self.operator.change(Change::Assign(&assignment), false).unwrap();
    }

    fn settings(&self, machine: u32) -> Settings {
        let path = |name: &str| self.directory.path().join(name);
        Settings {
            network: None,
            store: path("store").to_str().unwrap().to_owned(),
            root: path("root.json"),
            poll: Duration::from_secs(POLL_S),
            state_dir: path(&format!("state-{machine}")),
            machine: format!("m{machine}"),
            cluster: "c".to_owned(),
        }
    }

    /// Polls for the hour that begins at `from`. Returns the machine's arm at its end, and its requests.
    fn hour(&self, follower: &mut Follower, from: u64, mut arm: Option<Arm>) -> (Option<Arm>, u64) {
        let mut requests = 0;
        for poll in 0..3_600 / POLL_S {
            let result = follower.poll(self.now + from + poll * POLL_S);
            assert_eq!(result.error, None);
            arm = result.guidance.map(|guidance| guidance.arm).or(arm);
            requests = result.requests;
        }
        (arm, requests)
    }
}

#[test]
fn a_thousand_machines_follow_with_few_requests() {
    let fleet = Fleet::new();
    // In the first hour each machine finds the rollout and then no change. The second hour begins with a restart and
    // another stage.
    let mut requests = [0u64; 2];
    let mut following = [0u32; 2];
    fleet.assign("canary", RatioPpm(10_000));
    let mut machines = Vec::new();
    for machine in 0..MACHINES {
        let (mut follower, _) = Follower::new(fleet.settings(machine));
        let (arm, made) = fleet.hour(&mut follower, 0, None);
        requests[0] += made;
        following[0] += u32::from(arm == Some(Arm::Bundle));
        machines.push(arm);
    }
    fleet.assign("half", RatioPpm(500_000));
    for (machine, before) in (0..).zip(machines) {
        let (mut follower, remembered) = Follower::new(fleet.settings(machine));
        let cached = remembered.unwrap().map(|guidance| guidance.arm);
        assert_eq!(cached, before, "the cached guidance");
        let (arm, made) = fleet.hour(&mut follower, 3_600, cached);
        requests[1] += made;
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
