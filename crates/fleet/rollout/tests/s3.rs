//! A rollout through a real object store (s3s-fs, a server of the S3 protocol over a directory), and through its outage.
//! `make test-s3` builds the server and says where it is.
#![cfg(feature = "s3")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use config::Bundle;
use rollout::assignment::{ALL_PPM, Assignment, SCHEMA};
use rollout::follow::{Follower, Settings};
use rollout::keys;
use rollout::repository::{Change, Operator, Validity};

const BUCKET: &str = "fleet";
const KEY: &str = "thermocline";
const SECRET: &str = "a-secret-of-this-test-alone";
/// Set in the run of this program that finds its credentials in the environment, as an agent does.
const ADDRESS: &str = "S3_TEST_ADDRESS";
/// How long a server may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server, ended with the test.
struct Server(Child);

impl Server {
    fn start(root: &Path, address: &str) -> Self {
        let program = std::env::var("S3_SERVER").unwrap_or_else(|_| panic!("S3_SERVER does not say where s3s-fs is; run `make test-s3`"));
        let (host, port) = address.split_once(':').unwrap();
        let mut command = Command::new(program);
        command.args(["--host", host, "--port", port, "--access-key", KEY, "--secret-key", SECRET]).arg(root);
        let server = Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(start.elapsed() < PATIENCE, "the server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Credentials are looked for in the environment of a process, so that the test proper is a run of its own.
#[test]
fn a_rollout_goes_through_an_object_store() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "with_credentials", "--ignored", "--nocapture"])
        .env(ADDRESS, &address)
        .env("AWS_ENDPOINT", format!("http://{address}"))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && out.contains("1 passed"), "{out}{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
#[ignore = "run by the test above, with credentials in its environment"]
fn with_credentials() {
    let address = std::env::var(ADDRESS).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(path("served").join(BUCKET)).unwrap();
    let url = format!("s3://{BUCKET}/rollout");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let server = Server::start(&path("served"), &address);
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
            share_ppm: ALL_PPM,
            control_ppm: 0,
            clusters: Vec::new(),
            pinned: false,
        };
        operator.change(Change::Assign(&assignment), false).unwrap();
    };
    publish(1);
    let (mut machine, _) = Follower::new(Settings {
        store: url.clone(),
        root: path("root.json"),
        poll: Duration::from_secs(300),
        state_dir: path("state"),
        machine: "m".to_owned(),
        cluster: "c".to_owned(),
    });
    let followed = |machine: &mut Follower| machine.poll(now).guidance.and_then(|guidance| guidance.bundle).map(|bundle| bundle.version);
    assert_eq!(followed(&mut machine), Some(1));
    let requests = machine.poll(now).requests;
    assert_eq!(machine.poll(now).requests, requests + 1, "nothing new");

    // Away: nothing is refused, for nothing was offered; then back, with something new.
    drop(server);
    let told = machine.poll(now);
    assert!(told.guidance.is_none() && told.trouble.is_some_and(|trouble| trouble.contains(&url)));
    assert_eq!(told.refused.values().sum::<u64>(), 0);
    let _server = Server::start(&path("served"), &address);
    publish(2);
    assert_eq!(followed(&mut machine), Some(2));
}
