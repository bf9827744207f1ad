//! `thermocline network` beside a process that has no network.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The process, killed when this is dropped.
struct Network(Child);

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

fn command(socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.args(["network", "--listen"]).arg(socket).stderr(Stdio::piped());
    command
}

fn until<T>(what: &str, attempt: impl Fn() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn start(socket: &Path) -> Network {
    let process = Network(command(socket).spawn().unwrap());
    until("the process listens", || UnixStream::connect(socket).ok());
    process
}

fn scrape(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer).filter(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// An address that was free just now.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn metrics_are_served_for_a_process_without_a_network() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let first = start(&socket);
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let address = free_address();
    daemon::relay::offer(&socket, address, || Ok("thermocline_up 1\n# EOF\n".to_owned())).unwrap();
    let answer = until("metrics are served", || scrape(address));
    assert!(answer.ends_with("thermocline_up 1\n# EOF\n"), "{answer}");

    // Another one on the same socket refuses, and replaces it once this one is gone.
    let refused = command(&socket).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("another process serves"), "{said}");
    drop(first);
    let second = start(&socket);
    until("the process with the metrics connects again", || scrape(address));

    // What is no request ends its connection only.
    for bytes in [&b"hello\n"[..], b"metrics nowhere\n", b"put 5\n", &[b'x'; 4096]] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    }
    assert!(scrape(address).is_some());
    drop(second);
}

#[test]
fn another_address_for_the_metrics_ends_it_for_a_new_start() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let mut process = start(&socket);
    let first = free_address();
    daemon::relay::offer(&socket, first, || Ok("up 1\n# EOF\n".to_owned())).unwrap();
    until("metrics are served", || scrape(first));
    let mut other = UnixStream::connect(&socket).unwrap();
    other.write_all(format!("metrics {}\n", free_address()).as_bytes()).unwrap();
    assert!(process.0.wait().unwrap().success());
}

#[test]
fn without_a_socket_it_says_how_to_name_one() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    let output = command.arg("network").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("--listen"), "{said}");
}
