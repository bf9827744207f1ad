//! A rollout through a real object store (s3s-fs, an S3 server over a directory) and through its outage. `make test-s3`
//! builds the server and runs this test.
#![cfg(feature = "s3")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "clippy's exemption for tests does not cover helpers in integration tests")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::Bundle;
use rollout::assignment::{Assignment, SCHEMA};
use rollout::follow::{Follower, Settings};
use rollout::keys;
use rollout::repository::{Change, Operator, Validity};
use store::testing::{S3Server, run_with_credentials};
use units::RatioPpm;

const BUCKET: &str = "fleet";

#[test]
fn a_machine_follows_a_rollout_through_an_outage_of_the_object_store() {
    run_with_credentials("with_credentials");
}

#[test]
#[ignore = "run by the test above, with credentials in its environment"]
fn with_credentials() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(path("served").join(BUCKET)).unwrap();
    let url = format!("s3://{BUCKET}/rollout");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let server = S3Server::start(&path("served"));
    keys::generate(&path("keys"), 1, false).unwrap();
    let operator = Operator::open(&url, &path("root.json"), &path("keys"), Validity::default()).unwrap();
    operator.init(1, false).unwrap();
    let publish = |version: u64| {
        let (created, expires) = (config::bundle::rfc3339(now), config::bundle::rfc3339(now + 86_400));
        let text = format!(
            "schema = 1\nversion = {version}\nid = \"b{version}\"\ncreated = {created}\nexpires = {expires}\n[knobs.cold_age]\npercentile = \"9{version}%\"\n"
        );
        operator.change(Change::Publish(&Bundle::parse("test", &text).unwrap()), false).unwrap();
        let assignment = Assignment {
            schema: SCHEMA,
            rollout: "r".to_owned(),
            bundle: Some(version),
            previous: None,
            stage: "fleet".to_owned(),
            share_ppm: RatioPpm::ONE,
            control_ppm: RatioPpm(0),
            clusters: Vec::new(),
            pinned: false,
        };
        operator.change(Change::Assign(&assignment), false).unwrap();
    };
    publish(1);
    let (mut machine, _) = Follower::new(Settings {
        store: url.clone(),
        network: None,
        root: path("root.json"),
        poll: Duration::from_secs(300),
        state_dir: path("state"),
        machine: "m".to_owned(),
        cluster: "c".to_owned(),
    });
    let followed = |machine: &mut Follower| machine.poll(now).guidance.and_then(|guidance| guidance.bundle).map(|bundle| bundle.version);
    assert_eq!(followed(&mut machine), Some(1));
    let requests = machine.poll(now).requests;
    assert_eq!(machine.poll(now).requests, requests + 1, "an unchanged timestamp.json needs one request");

    // During an outage nothing is offered, and so nothing is refused. A bundle published after it is followed.
    drop(server);
    let report = machine.poll(now);
    assert!(report.guidance.is_none() && report.error.is_some_and(|error| error.contains(&url)));
    assert_eq!(report.refused.values().sum::<u64>(), 0);
    let _server = S3Server::start(&path("served"));
    publish(2);
    assert_eq!(followed(&mut machine), Some(2));
}
