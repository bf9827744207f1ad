//! A pool manager and a host as services: readiness notification, and the host's metrics.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon that is killed when the test ends.
struct Daemon {
    child: Child,
    said: std::io::Lines<BufReader<std::process::ChildStderr>>,
}

impl Daemon {
    fn start(directory: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_thermocline"))
            .current_dir(directory)
            .args(arguments)
            .env("NOTIFY_SOCKET", directory.join("notify"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, said }
    }

    /// What follows a text in what it says.
    fn after(&mut self, text: &str) -> String {
        loop {
            let line = self.said.next().unwrap_or_else(|| panic!("it ended without saying {text:?}")).unwrap();
            if let Some((_, rest)) = line.split_once(text) {
                return rest.to_owned();
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ready(notify: &UnixDatagram) {
    let mut heard = [0; 64];
    let length = notify.recv(&mut heard).unwrap();
    assert_eq!(&heard[..length], b"READY=1\n");
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn both_notify_readiness_and_the_host_serves_metrics() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let notify = UnixDatagram::bind(place.join("notify")).unwrap();
    notify.set_read_timeout(Some(PATIENCE)).unwrap();
    let manager = "listen = \"127.0.0.1:0\"\nledger = \"ledger.redb\"\npool_dir = \"pool\"\nslice_size = \"128MiB\"\n\
                   emcs = [{ slices = 2 }]\nhosts = [\"a\"]\n";
    std::fs::write(place.join("manager.toml"), manager).unwrap();
    let mut manager = Daemon::start(place, &["pool", "manager", "--config", "manager.toml", "--insecure-loopback"]);
    let port = manager.after(" on 127.0.0.1:");
    ready(&notify);
    let host = format!(
        "name = \"a\"\nlocal_memory = \"1GiB\"\nstate = \"state\"\nruntime = \"run\"\nmetrics = \"127.0.0.1:0\"\n\
         [manager]\nurl = \"http://127.0.0.1:{}\"\n",
        port.trim()
    );
    std::fs::write(place.join("host.toml"), host).unwrap();
    let mut host = Daemon::start(place, &["pool", "host", "--config", "host.toml"]);
    let url = host.after("metrics are at http://");
    ready(&notify);
    let address = url.trim().trim_end_matches("/metrics");
    let served = get(address, "/metrics");
    for line in ["local_bytes 1073741824", "guests_started_total 0", "mitigations_left 1", "manager_unavailable 0"] {
        assert!(served.lines().any(|found| found == format!("thermocline_pool_host_{line}")), "{line}: {served}");
    }
    assert!(get(address, "/").starts_with("HTTP/1.1 404"));
    drop(manager);
    let began = Instant::now();
    while get(address, "/metrics").contains("manager_unavailable 0\n") {
        assert!(began.elapsed() < PATIENCE, "the host does not report the missing manager");
    }
}
